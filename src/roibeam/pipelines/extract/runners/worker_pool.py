"""Worker pool: Beam's external environment, a process for each worker that a runner requests.

Beam's own pool starts the `python` that PATH happens to name, and its workers outlive a runner that was killed. This
one starts this interpreter with the working directory off its path, and a worker ends when its runner, its job or the
pool does (`worker_process`). A run may have a pool of its own (`run_with_workers`): no worker is left behind, and none
dies unnoticed.

Beam's Java runners take a worker's death for a failed bundle only once it has connected for instructions and for data
(`ExternalEnvironmentFactory` waits without end, `GrpcDataService` three minutes). So for a worker that died before, the
pool connects in its place, takes what is sent first, and hangs up.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc
from apache_beam.runners.worker.bundle_processor import DATA_INPUT_URN
from apache_beam.runners.worker.worker_id_interceptor import WorkerIdInterceptor

from roibeam.extraction.engine.background_threads import start_thread
from roibeam.messages import plural
from roibeam.pipelines.extract.runners.pool_token import TOKEN_PARAM, is_right, new_token
from roibeam.pipelines.extract.runners.worker_process import STOP_SECONDS
from roibeam.pipelines.extract.shard.process_setup import silence_closed_connections

log = logging.getLogger(__name__)
HANG_UP_SECONDS = 60.0  # a runner that has met the worker sends nothing


def hang_up_for(worker_id: str, control: str) -> None:
    """Returns once the runner has met the worker and lost it, had met it before, or is gone itself.

    Args:
        control: "host:port" of the runner's control service.
    """
    hung_up = threading.Event()

    def silence() -> Iterator[Any]:
        hung_up.wait()
        yield from ()

    try:
        with grpc.insecure_channel(control) as channel:
            stub = beam_fn_api_pb2_grpc.BeamFnControlStub(_named(channel, worker_id))
            first = next(stub.Control(silence(), timeout=HANG_UP_SECONDS), None)
            if first is not None and first.HasField("process_bundle"):
                query = beam_fn_api_pb2.GetProcessBundleDescriptorRequest(
                    process_bundle_descriptor_id=first.process_bundle.process_bundle_descriptor_id
                )
                bundle = stub.GetProcessBundleDescriptor(query, timeout=HANG_UP_SECONDS)
                with grpc.insecure_channel(_data_address(bundle)) as data:
                    next(
                        beam_fn_api_pb2_grpc.BeamFnDataStub(_named(data, worker_id)).Data(
                            silence(), timeout=HANG_UP_SECONDS
                        )
                    )
    except grpc.RpcError as error:
        log.debug("hanging up for worker %s: %s", worker_id, error)
    finally:
        hung_up.set()


def _named(channel: grpc.Channel, worker_id: str) -> grpc.Channel:
    return grpc.intercept_channel(channel, WorkerIdInterceptor(worker_id))


def _data_address(bundle: beam_fn_api_pb2.ProcessBundleDescriptor) -> str:
    """Address that its elements come from, "host:port"."""
    (source, *_) = (one for one in bundle.transforms.values() if one.spec.urn == DATA_INPUT_URN)
    return str(beam_fn_api_pb2.RemoteGrpcPort.FromString(source.spec.payload).api_service_descriptor.url)


KILL_SECONDS = STOP_SECONDS + 4.0
LOOK_SECONDS = 0.1
_IN_USE = "cannot listen at {host}:{port}: is another worker pool running there?"
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]")
_NO_TOKEN = "this worker pool wants another token: start the run with --pool-token-file and the file of the pool"
_T = TypeVar("_T")


class WorkerPool(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):
    """Starts and ends worker processes; a context manager that serves while it is open.

    Args:
        preload: the module whose pipeline the workers run. Each imports it before it has threads, and with it
            all that bundles need.
        host, port: where to listen; port 0 takes a free one.
        token: what a request for a worker must have among its params; None for no such thing.
        died: called, in a thread, with one line when a worker ends unexpectedly. None where a runner elsewhere waits
            for it: the line is logged, and the runner is notified.
    Attributes:
        address: "host:port", for `--environment_config`.
        params: what requests need, for the same.
    Raises:
        OSError: if the address cannot be listened at.
    """

    def __init__(
        self, preload: str, host: str = "localhost", port: int = 0, *, token: str | None = None,
        died: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self._preload, self._token, self._died = preload, token, died
        self.params = {} if token is None else {TOKEN_PARAM: token}
        self._lock = threading.Lock()
        # Keyed by connection too: Flink's TaskManagers each count their workers' ids for themselves, and those of one
        # machine share a pool.
        self._workers: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
        self._server = grpc.server(
            concurrent.futures.ThreadPoolExecutor(4, "worker-pool"), options=[("grpc.so_reuseport", 0)]
        )
        beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(self, self._server)
        _check_free(host, port)  # gRPC's error would be a page long
        try:
            bound = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError:
            raise OSError(_IN_USE.format(host=host, port=port)) from None
        self.address = f"{host}:{bound}"

    def __enter__(self) -> WorkerPool:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(grace=None)
        with self._lock:
            workers, self._workers = list(self._workers.values()), {}
        for worker in workers:
            _close_input(worker)
        for worker in workers:
            _wait_for(worker)

    @property
    def num_workers(self) -> int:
        with self._lock:
            return len(self._workers)

    def StartWorker(
        self, request: beam_fn_api_pb2.StartWorkerRequest, context: grpc.ServicerContext
    ) -> beam_fn_api_pb2.StartWorkerResponse:
        """Starts a worker for a runner; it connects to the runner by itself."""
        if self._token is not None and not is_right(self._token, request.params):
            log.warning("refused a worker to %s: %s token", context.peer(), "another" if request.params else "no")
            return beam_fn_api_pb2.StartWorkerResponse(error=_NO_TOKEN)
        # -P and the variable: neither the worker nor its children find our packages' names in the working directory.
        command = [sys.executable, "-P", "-m", "roibeam.pipelines.extract.runners.worker_process"]
        command += [self._preload, request.control_endpoint.url, request.worker_id, request.provision_endpoint.url]
        try:
            worker = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # its end is how the worker learns that the pool has gone, however it went
                start_new_session=True,  # this process handles Ctrl-C
                env={**os.environ, "PYTHONSAFEPATH": "1"},
            )
        except OSError as error:
            return beam_fn_api_pb2.StartWorkerResponse(error=f"cannot start a worker process: {error}")
        key = (context.peer(), request.worker_id)
        with self._lock:
            self._workers[key] = worker
        log.debug("worker %s of %s is process %d", request.worker_id, request.control_endpoint.url, worker.pid)
        watch = (key, worker, request.control_endpoint.url)
        threading.Thread(target=self._watch, args=watch, name="watch-worker", daemon=True).start()
        return beam_fn_api_pb2.StartWorkerResponse()

    def StopWorker(
        self, request: beam_fn_api_pb2.StopWorkerRequest, context: grpc.ServicerContext
    ) -> beam_fn_api_pb2.StopWorkerResponse:
        """Stops a worker that its runner does not need any more.

        Over another connection than the request for the worker, nothing happens here: the worker ends when its runner
        hangs up, and another runner's worker with this id goes on.
        """
        with self._lock:
            worker = self._workers.pop((context.peer(), request.worker_id), None)
        if worker is not None:
            _close_input(worker)
            _wait_for(worker)
        return beam_fn_api_pb2.StopWorkerResponse()

    def _watch(self, key: tuple[str, str], worker: subprocess.Popen[bytes], control: str) -> None:
        code = worker.wait()
        log.debug("process %d %s", worker.pid, _how_it_ended(code))
        with self._lock:
            unexpected = self._workers.get(key) is worker
            if unexpected:
                del self._workers[key]
        if not unexpected or code == 0:
            return
        line = f"worker process {worker.pid} {_how_it_ended(code)}"
        if self._died is not None:
            self._died(line)
        else:
            log.warning("%s", line)
            hang_up_for(key[1], control)


def _check_free(host: str, port: int) -> None:
    """Raises OSError when something listens at one of the host's addresses, or the host has none."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OSError(f"cannot listen at {host}:{port}: {error.strerror}") from None
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:  # an address that this machine lacks is gRPC's to leave out
                raise OSError(_IN_USE.format(host=host, port=port)) from None


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    hint = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-code).name}{hint}"


def _close_input(worker: subprocess.Popen[bytes]) -> None:
    assert worker.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        worker.stdin.close()


def _wait_for(worker: subprocess.Popen[bytes]) -> None:
    try:
        worker.wait(KILL_SECONDS)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()


def serve_worker_pool(preload: str, host: str, port: int, token: str | None = None) -> None:
    """Serves until Ctrl-C or SIGTERM; then ends the workers.

    Args:
        preload, host, port, token: as of `WorkerPool`.
    """
    if token is None and host not in _LOOPBACK:
        raise ValueError(
            f"--host {host} without --pool-token-file: any machine that reaches this pool could run code here; give "
            f"the pool and the run a file with a token"
        )
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with WorkerPool(preload, host, port, token=token) as pool:
        log.info("worker pool at %s%s; Ctrl-C ends it", pool.address, ", without a token" if token is None else "")
        ended.wait()
        log.info("ending %s", plural(pool.num_workers, "worker"))


def run_with_workers(run: Callable[[WorkerPool], _T], *, preload: str) -> _T:
    """Calls `run` with a worker pool that lasts as long, and has a token of its own.

    Beam's local engine waits for ever for a worker that died, also when stopped. So it runs in a thread that can be
    left behind, while this one watches.

    Args:
        preload: as of `WorkerPool`.
    Returns:
        The result of `run`.
    Raises:
        RuntimeError: when a worker process ended by itself.
        KeyboardInterrupt: after the workers have ended.
        Exception: of `run`.
    """
    deaths: list[str] = []
    errors: list[BaseException] = []
    results: list[_T] = []
    ended = threading.Event()

    def work(pool: WorkerPool) -> None:
        try:
            results.append(run(pool))
        except BaseException as error:  # raised where the run was called for
            errors.append(error)
        finally:
            ended.set()

    silence_closed_connections()
    with WorkerPool(preload, token=new_token(), died=deaths.append) as pool:
        start_thread("run the pipeline", lambda: work(pool))
        while not ended.wait(LOOK_SECONDS) and not deaths:
            pass
    if deaths:
        raise RuntimeError(f"{deaths[0]}; finished shards stay, the same command goes on")
    if errors:
        raise errors[0]
    return results[0]
