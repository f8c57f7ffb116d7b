"""The worker pool on real processes: its port, its token, its workers, and runners that are told of dead ones."""

import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc, beam_runner_api_pb2, endpoints_pb2

from roibeam.pipelines.cli.developers import PIPELINE
from roibeam.pipelines.extract.beam_extraction import ExtractShards
from roibeam.pipelines.extract.runners.pool_token import TOKEN_PARAM, read_token
from roibeam.pipelines.extract.runners.worker_pool import WorkerPool, serve_worker_pool

NOWHERE = endpoints_pb2.ApiServiceDescriptor(url="localhost:1")


def start_worker(
    channel: grpc.Channel, worker_id: str, runner: endpoints_pb2.ApiServiceDescriptor = NOWHERE, **params: str
) -> str:
    """Requests a worker of the pool at the channel's end, as a runner does; its error."""
    request = beam_fn_api_pb2.StartWorkerRequest(
        worker_id=worker_id, control_endpoint=runner, provision_endpoint=runner, params=params
    )
    return str(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel).StartWorker(request).error)


def test_a_second_worker_pool_on_a_port_is_refused_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with WorkerPool(PIPELINE) as pool:
        port = int(pool.address.rpartition(":")[2])
        with pytest.raises(OSError, match=f"cannot listen at localhost:{port}: is another worker pool running there"):
            WorkerPool(PIPELINE, port=port)
    with pytest.raises(OSError, match=r"cannot listen at no-such-host\.invalid:1: "):
        WorkerPool(PIPELINE, "no-such-host.invalid", 1)
    assert capfd.readouterr().err == ""  # gRPC would write a page of its own


def test_workers_import_the_pipeline_that_their_pool_names(capfd: pytest.CaptureFixture[str]) -> None:
    """The pool knows no pipeline; a name that has gone would end each worker before its first bundle."""
    assert ExtractShards.__module__ == PIPELINE
    told, died = threading.Event(), []

    def note(line: str) -> None:
        died.append(line)
        told.set()

    with WorkerPool("roibeam.no_such_pipeline", died=note) as pool, grpc.insecure_channel(pool.address) as channel:
        start_worker(channel, "1")
        assert told.wait(60) and died[0].startswith("worker process ")
    assert "No module named 'roibeam.no_such_pipeline'" in capfd.readouterr().err


class OneBundle(beam_fn_api_pb2_grpc.BeamFnControlServicer, beam_fn_api_pb2_grpc.BeamFnDataServicer):
    """A runner with work for a worker, which it waits for as Beam's Java runners do."""

    def __init__(self) -> None:
        self.connected: list[tuple[str, str]] = []
        self.hung_up = threading.Semaphore(0)
        self.server = grpc.server(ThreadPoolExecutor(4))
        beam_fn_api_pb2_grpc.add_BeamFnControlServicer_to_server(self, self.server)
        beam_fn_api_pb2_grpc.add_BeamFnDataServicer_to_server(self, self.server)
        self.here = endpoints_pb2.ApiServiceDescriptor(url=f"localhost:{self.server.add_insecure_port('localhost:0')}")

    def _connect(self, what: str, context: grpc.ServicerContext) -> None:
        self.connected.append((what, dict(context.invocation_metadata())["worker_id"]))
        context.add_callback(self.hung_up.release)

    def Control(self, responses: Any, context: grpc.ServicerContext) -> Iterator[beam_fn_api_pb2.InstructionRequest]:
        self._connect("control", context)
        work = beam_fn_api_pb2.ProcessBundleRequest(process_bundle_descriptor_id="stage")
        yield beam_fn_api_pb2.InstructionRequest(instruction_id="1", process_bundle=work)
        next(responses, None)

    def GetProcessBundleDescriptor(
        self, request: beam_fn_api_pb2.GetProcessBundleDescriptorRequest, context: grpc.ServicerContext
    ) -> beam_fn_api_pb2.ProcessBundleDescriptor:
        assert request.process_bundle_descriptor_id == "stage"
        port = beam_fn_api_pb2.RemoteGrpcPort(api_service_descriptor=self.here).SerializeToString()
        source = beam_runner_api_pb2.FunctionSpec(urn="beam:runner:source:v1", payload=port)
        transforms = {"a": beam_runner_api_pb2.PTransform(), "b": beam_runner_api_pb2.PTransform(spec=source)}
        return beam_fn_api_pb2.ProcessBundleDescriptor(transforms=transforms)

    def Data(self, responses: Any, context: grpc.ServicerContext) -> Iterator[beam_fn_api_pb2.Elements]:
        self._connect("data", context)
        yield beam_fn_api_pb2.Elements()
        next(responses, None)


def test_a_runner_is_told_of_a_worker_that_died_before_it_connected(capfd: pytest.CaptureFixture[str]) -> None:
    """Beam's Java runners would wait for it for ever: seen on Spark, where a job stood still."""
    runner = OneBundle()
    runner.server.start()
    with WorkerPool("roibeam.no_such_pipeline") as pool, grpc.insecure_channel(pool.address) as channel:
        start_worker(channel, "7-1", runner.here)
        assert runner.hung_up.acquire(timeout=30) and runner.hung_up.acquire(timeout=30)
    assert runner.connected == [("control", "7-1"), ("data", "7-1")]
    runner.server.stop(grace=None).wait()
    assert "No module named" in capfd.readouterr().err


TOKEN = "a-token-of-more-than-16-letters"


def test_a_pool_with_a_token_wants_it(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def note(command: list[str], **options: Any) -> Any:
        started.append(command)
        raise OSError("noted")

    monkeypatch.setattr(subprocess, "Popen", note)
    wrong = [{TOKEN_PARAM: text} for text in ("", TOKEN[:-1], "\u00e9" * 20)]
    with WorkerPool(PIPELINE, token=TOKEN) as pool, grpc.insecure_channel(pool.address) as channel:
        for params in ({}, *wrong, {"token": TOKEN}):
            error = start_worker(channel, "1", **params)
            assert "this worker pool wants another token: start the run with --pool-token-file" in error
        assert not started
        assert "noted" in start_worker(channel, "1", **pool.params) and len(started) == 1
    assert not any(TOKEN in word for word in started[0]) and TOKEN not in caplog.text
    assert len(caplog.records) == 5


@pytest.mark.parametrize("content", ["", "short", "a b" * 20, "x" * 5000, "\u00e9" * 20])
def test_a_file_that_holds_no_token_is_refused_without_a_word_of_it(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    with pytest.raises(ValueError, match="expected a token: one line of 16 to 1024 letters") as error:
        read_token(tmp_path / "token")
    assert not content or content not in str(error.value)


def test_a_pool_that_other_machines_reach_needs_a_token() -> None:
    with pytest.raises(ValueError, match=r"--host 0\.0\.0\.0 without --pool-token-file"):
        serve_worker_pool(PIPELINE, "0.0.0.0", 0)


def test_runners_that_share_a_pool_end_their_own_workers_only() -> None:
    """Flink's TaskManagers on one machine number their workers alike; ending the other's would leave it waiting."""
    with WorkerPool(PIPELINE) as pool, socket.create_server(("localhost", 0)) as silent:
        control = endpoints_pb2.ApiServiceDescriptor(url=f"localhost:{silent.getsockname()[1]}")
        own_connection = [("grpc.use_local_subchannel_pool", 1)]  # else both channels would be one connection
        runners = [grpc.insecure_channel(pool.address, options=own_connection) for _ in range(2)]
        first, second = (beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(runner) for runner in runners)
        stop = beam_fn_api_pb2.StopWorkerRequest(worker_id="1-1")
        for runner in runners:
            start_worker(runner, "1-1", control)
        assert pool.num_workers == 2
        first.StopWorker(stop)
        first.StopWorker(stop)  # and nothing else by asking again
        assert pool.num_workers == 1
        second.StopWorker(stop)
        assert pool.num_workers == 0
        for runner in runners:
            runner.close()


def test_a_token_that_others_can_write_or_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    for mode, words in ((0o600, ""), (0o400, ""), (0o644, "other users may read it (mode 0644)")):
        caplog.clear()
        path.chmod(mode)
        assert read_token(path) == TOKEN and words in caplog.text and bool(caplog.text) is bool(words)
    for mode in (0o666, 0o660, 0o602):
        path.chmod(mode)
        with pytest.raises(ValueError, match="other users may write to it"):
            read_token(path)
