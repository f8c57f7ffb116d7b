"""A runner is told that a worker died before it connected: else it would wait for it for ever, and the job with it.

Beam's Java runners take a worker's death for a failed bundle only once it has connected (`ExternalEnvironmentFactory`
asks again every two minutes). So the pool connects in its place, takes the first instruction, and hangs up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import grpc
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc
from apache_beam.runners.worker.worker_id_interceptor import WorkerIdInterceptor

log = logging.getLogger(__name__)
SECONDS = 60.0  # a runner that has met the worker sends nothing


def hang_up_for(worker_id: str, control: str) -> None:
    """Returns once the runner has met the worker and lost it, had met it before, or is gone itself.

    Args:
        worker_id: as the runner calls it.
        control: "host:port" of the runner's control service.
    """
    hung_up = threading.Event()

    def silence() -> Iterator[beam_fn_api_pb2.InstructionResponse]:
        hung_up.wait()
        yield from ()

    with grpc.insecure_channel(control) as channel:
        stub = beam_fn_api_pb2_grpc.BeamFnControlStub(grpc.intercept_channel(channel, WorkerIdInterceptor(worker_id)))
        instructions = stub.Control(silence(), timeout=SECONDS)
        try:
            next(instructions, None)
        except grpc.RpcError as error:
            log.debug("hanging up for worker %s: %s", worker_id, error)
        finally:
            instructions.cancel()
            hung_up.set()
