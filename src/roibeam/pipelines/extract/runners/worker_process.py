"""One Beam worker, started by a worker pool:

    python -m roibeam.pipelines.extract.runners.worker_process PRELOAD CONTROL WORKER_ID PROVISION

Its threads work on several bundles at once and share the one model of the process. It ends when the runner hangs up or
its standard input ends, which happens when the pool closes it or is gone; shards in work are dropped then.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import threading

from roibeam.pipelines.common.console.command_files import refuse_pipes_and_devices
from roibeam.pipelines.common.console.printable_streams import printable_streams
from roibeam.pipelines.common.console.progress import configure_logging
from roibeam.pipelines.extract.shard.process_setup import silence_closed_connections, stop_running_shards, use_one_arena

log = logging.getLogger(__name__)
STOP_SECONDS = 5.0  # for dropping the shards in work; a detector call is not waited for
PROVISION_SECONDS = 60.0


@printable_streams()
def main() -> None:
    """Works until there is no more to do."""
    preload, control, worker_id, provision = sys.argv[1:5]
    use_one_arena()
    refuse_pipes_and_devices()
    threading.Thread(target=_end_with_standard_input, name="watch-pool", daemon=True).start()
    configure_logging()
    import grpc  # here, not above: Beam complains while it is imported
    from apache_beam.runners.worker import sdk_worker

    # All that bundles need, before there are threads: two that unpickle at once would import torchvision in two orders.
    importlib.import_module(preload)
    # Beam prints the traceback of every failed bundle, beside sending it to the runner, which reports it.
    vars(sdk_worker)["print"] = lambda *words, **_: log.debug("%s", words)
    silence_closed_connections()
    try:
        if provision:
            _take_options(provision, worker_id)
        sdk_worker.SdkHarness(control, worker_id=worker_id).run()
    except grpc.RpcError as error:
        # The runner has gone without a word: its machine or process died. Another one repeats its work.
        log.info("worker %s: the runner hung up (%s)", worker_id, error.code().name)
    _end()


def _take_options(provision: str, worker_id: str) -> None:
    """The pipeline's options, for the file systems that bundles read and write."""
    import grpc
    from apache_beam.internal import pickler
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions
    from apache_beam.portability.api import beam_provision_api_pb2, beam_provision_api_pb2_grpc
    from apache_beam.runners.worker.sdk_worker_main import _load_pipeline_options
    from apache_beam.runners.worker.worker_id_interceptor import WorkerIdInterceptor
    from google.protobuf import json_format

    channel = grpc.intercept_channel(grpc.insecure_channel(provision), WorkerIdInterceptor(worker_id))
    info = beam_provision_api_pb2_grpc.ProvisionServiceStub(channel).GetProvisionInfo(
        beam_provision_api_pb2.GetProvisionInfoRequest(), timeout=PROVISION_SECONDS
    )
    text = json.dumps(json_format.MessageToDict(info.info.pipeline_options))
    options = PipelineOptions.from_dictionary(_load_pipeline_options(text))
    FileSystems.set_options(options)
    pickler.set_library(options.view_as(SetupOptions).pickle_library)


def _end_with_standard_input() -> None:
    while os.read(0, 1024):  # not sys.stdin, whose lock this thread would still hold when Python ends
        pass
    _end()


def _end() -> None:
    stop_running_shards(STOP_SECONDS)
    logging.shutdown()
    os._exit(0)  # threads of Beam's and of hanging reads would keep the process


if __name__ == "__main__":
    main()
