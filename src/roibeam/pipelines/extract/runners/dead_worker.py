"""A runner is told that a worker died before it connected: else it would wait for it for ever, and the job with it.

Beam's Java runners take a worker's death for a failed bundle only once it has connected for instructions and for data
(`ExternalEnvironmentFactory` waits without end, `GrpcDataService` three minutes). So the pool connects in its place,
takes what is sent first, and hangs up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import grpc
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc
from apache_beam.runners.worker.bundle_processor import DATA_INPUT_URN
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

    def silence() -> Iterator[Any]:
        hung_up.wait()
        yield from ()

    try:
        with grpc.insecure_channel(control) as channel:
            stub = beam_fn_api_pb2_grpc.BeamFnControlStub(_named(channel, worker_id))
            first = next(stub.Control(silence(), timeout=SECONDS), None)
            if first is not None and first.HasField("process_bundle"):
                wanted = beam_fn_api_pb2.GetProcessBundleDescriptorRequest(
                    process_bundle_descriptor_id=first.process_bundle.process_bundle_descriptor_id
                )
                bundle = stub.GetProcessBundleDescriptor(wanted, timeout=SECONDS)
                with grpc.insecure_channel(_data_address(bundle)) as data:
                    next(beam_fn_api_pb2_grpc.BeamFnDataStub(_named(data, worker_id)).Data(silence(), timeout=SECONDS))
    except grpc.RpcError as error:
        log.debug("hanging up for worker %s: %s", worker_id, error)
    finally:
        hung_up.set()


def _named(channel: grpc.Channel, worker_id: str) -> grpc.Channel:
    return grpc.intercept_channel(channel, WorkerIdInterceptor(worker_id))


def _data_address(bundle: beam_fn_api_pb2.ProcessBundleDescriptor) -> str:
    """Where its elements come from, "host:port"."""
    (source, *_) = (one for one in bundle.transforms.values() if one.spec.urn == DATA_INPUT_URN)
    return str(beam_fn_api_pb2.RemoteGrpcPort.FromString(source.spec.payload).api_service_descriptor.url)
