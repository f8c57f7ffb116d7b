"""Each runner's options: what we fill in, what users override, and the pipeline translated with them, without a run."""

import functools
import http.server
import json
import os
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import grpc
import pytest
from apache_beam.options.pipeline_options import (
    DebugOptions,
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    SetupOptions,
    SparkRunnerOptions,
    WorkerOptions,
)
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.transforms import environments
from apache_beam.utils.subprocess_server import JavaJarServer
from PIL import Image
from tiny_commands import Cli

from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import SELECTIONS
from roibeam.features.record.fingerprint import Fingerprint
from roibeam.pipelines.cli.developers import PIPELINE
from roibeam.pipelines.data.shard_plan import Plan, PlannedShard
from roibeam.pipelines.data.vocabulary import Vocabulary
from roibeam.pipelines.extract.beam_extraction import extraction_pipeline
from roibeam.pipelines.extract.request import RunnerChoice
from roibeam.pipelines.extract.runners import pipeline_run
from roibeam.pipelines.extract.runners.clusters import cancel_job_on_interrupt
from roibeam.pipelines.extract.runners.pipeline_run import WORKER_POOL, _cause, check_cluster
from roibeam.pipelines.extract.runners.pool_token import TOKEN_PARAM
from roibeam.pipelines.extract.shard.detector_spec import DetectorSpec, ExtractJob
from roibeam.pipelines.extract.shard.store_folder import StoreText
from roibeam.version import FLINK_VERSION

runner_flags = functools.partial(pipeline_run.runner_flags, preload=PIPELINE)
CLOUD = ["--project=my-project", "--region=us-central1", "--temp_location=gs://my-bucket/tmp"]
CLOUD += ["--sdk_container_image=repo/roibeam:1"]
CLUSTERS = {
    "flink": ["--flink_master=h:8081", "--parallelism=8"],
    "spark": ["--spark_master_url=spark://h:7077"],
    "dataflow": CLOUD,
}
MAX_PROTO_BYTES = 4_000_000  # gRPC's limit for one message, which job services have


def pipeline_options(runner: str, beam_args: list[str], *, device: str = "cpu", **choice: Any) -> PipelineOptions:
    made = RunnerChoice(runner=runner, beam_args=tuple(beam_args), **choice)
    return pipeline_run.pipeline_options(made, preload=PIPELINE, device=device)


def job(device: str = "cpu") -> ExtractJob:
    spec = DetectorSpec(DetectorConfig(), SELECTIONS["butd-10-100"], "random:1", device)
    return ExtractJob("/store", "/photos", spec, ExtractOptions(), "f" * 64, "v" * 64, False)


def pipeline(options: Any, *, num_shards: int = 825, device: str = "cpu") -> beam.Pipeline:
    """That of 3.3 million images in shards of 4,000, with a vocabulary of Visual Genome's size."""
    names = tuple(f"name number {number}" for number in range(1600))
    text = StoreText({}, Vocabulary(names, names[:400]), Fingerprint("f" * 64, {}, {}))
    shards = tuple(PlannedShard(number, 4000, f"{number:064x}") for number in range(num_shards))
    return extraction_pipeline(job(device), Plan({}, {}, shards), text, options)


def environment_of(proto: beam_runner_api_pb2.Pipeline) -> beam_runner_api_pb2.Environment:
    """The one environment that all our transforms run in; a second would be a second process and model per machine."""
    used = {one.environment_id for one in proto.components.transforms.values() if one.environment_id}
    assert len({proto.components.environments[name].SerializeToString() for name in used}) == 1
    return proto.components.environments[used.pop()]


@pytest.mark.parametrize("runner", ["flink", "spark"])
def test_pipelines_for_portable_clusters_translate(runner: str) -> None:
    options = pipeline_options(runner, CLUSTERS[runner])
    proto = PortableRunner.get_proto_pipeline(pipeline(options), options)
    environment = environment_of(proto)
    assert environment.urn == common_urns.environments.EXTERNAL.urn
    payload = beam_runner_api_pb2.ExternalPayload.FromString(environment.payload)
    assert payload.endpoint.url == WORKER_POOL
    assert not environment.dependencies  # nothing is staged
    assert proto.ByteSize() < MAX_PROTO_BYTES
    assert options.view_as(PortableOptions).sdk_worker_parallelism == "1"
    urns = [one.spec.urn for one in proto.components.transforms.values()]
    assert any("reshuffle" in urn.lower() for urn in urns)


def test_flink_and_spark_options_are_read_by_beam() -> None:
    flink = pipeline_options("flink", CLUSTERS["flink"]).view_as(FlinkRunnerOptions)
    assert (flink.flink_master, flink.flink_version, flink.parallelism) == ("h:8081", FLINK_VERSION, 8)
    spark = pipeline_options("spark", CLUSTERS["spark"]).view_as(SparkRunnerOptions)
    assert spark.spark_master_url == "spark://h:7077"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_dataflow_gets_one_process_and_one_gpu_per_machine(device: str) -> None:
    # Dry: Beam would ask Google about the bucket, and wait for an answer for minutes.
    options = pipeline_options("dataflow", [*CLOUD, "--dry_run=True"], device=device)
    google, workers = options.view_as(GoogleCloudOptions), options.view_as(WorkerOptions)
    assert (google.project, workers.sdk_container_image) == ("my-project", "repo/roibeam:1")
    assert "no_use_multiple_sdk_containers" in options.view_as(DebugOptions).experiments
    assert options.view_as(SetupOptions).beam_plugins == [PIPELINE]
    docker = environments.DockerEnvironment.from_container_image(
        workers.sdk_container_image, resource_hints=environments.resource_hints_from_options(options)
    )
    proto = pipeline(options, device=device).to_runner_api(default_environment=docker)
    environment = environment_of(proto)
    assert beam_runner_api_pb2.DockerPayload.FromString(environment.payload).container_image == "repo/roibeam:1"
    hints = environment.resource_hints
    assert int(hints[common_urns.resource_hints.MIN_RAM_BYTES.urn]) == 8 * 10**9
    wanted = common_urns.resource_hints.ACCELERATOR.urn
    service = google.dataflow_service_options or []
    assert (wanted in hints) == any(one.startswith("worker_accelerator=") for one in service) == (device == "cuda")


def test_the_dataflow_runner_makes_a_job_of_it() -> None:
    pytest.importorskip("google.cloud.dataflow", reason="needs apache-beam[gcp]")
    from apache_beam.runners.dataflow.internal import apiclient

    job = pipeline(pipeline_options("dataflow", [*CLOUD, "--dry_run=True"], device="cuda"), device="cuda").run().job
    assert environment_of(job.proto_pipeline).urn == common_urns.environments.DOCKER.urn
    made = apiclient.Environment([], job.options, "2", "gs://my-bucket/pipeline", job.proto_pipeline).proto
    assert any(option.startswith("worker_accelerator=") for option in made.service_options)
    # Beam adds the first of these by itself, and does not when the second is there.
    assert "use_multiple_sdk_containers" not in made.experiments
    assert "no_use_multiple_sdk_containers" in made.experiments
    (pool,) = made.worker_pools
    assert pool.machine_type == "g2-standard-8"
    (container,) = pool.sdk_harness_container_images
    assert container.container_image == "repo/roibeam:1"


def test_a_template_for_dataflow_is_written_without_google(tmp_path: Path) -> None:
    """All that Beam does before it sends a job: the pipeline and the job's description, here into a folder."""
    pytest.importorskip("google.cloud.dataflow", reason="needs apache-beam[gcp]")
    from apache_beam.runners.dataflow.internal import apiclient

    made = pipeline(pipeline_options("dataflow", [*CLOUD, "--dry_run=True", "--no_auth"], device="cuda")).run().job
    google = made.options.view_as(GoogleCloudOptions)  # a folder is no bucket, and would be refused before
    google.staging_location, google.template_location = str(tmp_path), str(tmp_path / "template.json")
    assert apiclient.DataflowApplicationClient(made.options).create_job(made) is None  # nothing was sent
    (pool,) = json.loads((tmp_path / "template.json").read_text())["environment"]["workerPools"]
    assert (pool["machineType"], pool["workerHarnessContainerImage"]) == ("g2-standard-8", "repo/roibeam:1")
    staged = beam_runner_api_pb2.Pipeline.FromString((tmp_path / "pipeline.pb").read_bytes())
    assert any(one.unique_name == "Extract" for one in staged.components.transforms.values())


def test_what_workers_get_is_small() -> None:
    assert len(pickle.dumps(job())) < 20_000


def test_options_of_the_user_count() -> None:
    flags = runner_flags("flink", [*CLUSTERS["flink"], "--environment_config=other:1", "--experiments=mine"])
    assert [flag for flag in flags if flag.startswith("--environment_config")] == ["--environment_config=other:1"]
    assert sum(flag.startswith("--experiments=") for flag in flags) == 2
    options = pipeline_options("flink", [*CLUSTERS["flink"], "--sdk_worker_parallelism=4"])
    assert options.view_as(PortableOptions).sdk_worker_parallelism == "4"
    assert runner_flags("FlinkRunner", ["--x=1"])[0] == "--runner=FlinkRunner"  # Beam's own name: Beam's own options
    assert "--environment_type=EXTERNAL" not in runner_flags("FlinkRunner", ["--x=1"])


def test_an_option_of_beam_is_told_to_go_after_the_dashes(roibeam: Cli, tmp_path: Path) -> None:
    done = roibeam("extract", "photos", "store", "--parallelism", 64)
    assert done.code == 2 and "Beam has it: give it after --, as in -- --parallelism=VALUE" in done.err
    (tmp_path / "photos").mkdir()
    extract = ("extract", tmp_path / "photos", tmp_path / "store", "--detector", "toy")
    assert "did you mean --parallelism?" in roibeam(*extract, "--dry-run", "--", "--paralelism=64").err


@pytest.mark.parametrize(
    ("runner", "beam_args", "words"),
    [
        ("flink", [], "needs -- --flink_master=HOST:8081"),
        ("spark", [], "needs -- --spark_master_url="),
        ("dataflow", CLOUD[1:], "needs -- --project=my-project"),
        ("dataflow", CLOUD[:-1], "needs -- --sdk_container_image="),
        ("local", ["--no_such=1"], "does not know --no_such"),
        ("local", ["words"], "unexpected argument 'words'"),
        ("local", ["--runner=x"], "goes before the --"),
        ("flink", ["--flink_master=localhost:1"], "does not answer as a Flink JobManager"),
    ],
)
def test_what_is_missing_is_said(runner: str, beam_args: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        pipeline_options(runner, beam_args)


@pytest.mark.parametrize(
    ("runner", "beam_args", "words"),
    [
        ("spark", ["--spark_master_url=master:7077"], "expected spark://HOST:7077, or local[2] for this machine"),
        ("spark", ["--spark_master_url=spark://localhost:1"], "no master of Spark answers (localhost:1: "),
        ("spark", ["--spark_master_url=local", "--job_server_java_launcher=no-such-java"],
         "needs Java 11 or 17: there is no 'no-such-java' on PATH"),
        ("spark", ["--spark_master_url=local", "--spark_job_server_jar=gone.jar"],
         "gone.jar: no such file; `make spark-packages` makes one"),
        ("flink", ["--flink_master=[local]", "--parallelism=1", "--flink_job_server_jar=gone.jar"],
         "gone.jar: no such file; `make flink-packages` makes one"),
        ("portable", ["--job_endpoint=localhost:1"], "--job_endpoint=localhost:1: no job service answers"),
    ],
)  # fmt: skip
def test_no_engine_no_store(runner: str, beam_args: list[str], words: str, extract: Cli, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    Image.new("RGB", (32, 32)).save(tmp_path / "images" / "a.png")
    store = tmp_path / "store"
    done = extract(tmp_path / "images", store, "--runner", runner, "--", *beam_args)
    assert done.code == 1 and words in done.err and "Traceback" not in done.err
    assert not store.exists() or not list(store.iterdir())


@pytest.fixture
def job_manager() -> Iterator[tuple[str, dict[str, Any]]]:
    """An HTTP server that answers as Flink's REST interface does when asked for an overview."""
    overview: dict[str, Any] = {"taskmanagers": 2, "slots-total": 6, "jobs": [], "canceled": []}

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path in ("/overview", "/jobs/overview")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(overview).encode())

        def do_PATCH(self) -> None:
            overview["canceled"].append(self.path)
            self.send_response(202)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = http.server.HTTPServer(("localhost", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"localhost:{server.server_port}", overview
    server.shutdown()
    server.server_close()


def test_flink_uses_all_slots_unless_told_otherwise(job_manager: tuple[str, dict[str, Any]]) -> None:
    address, overview = job_manager
    assert "--parallelism=6" in runner_flags("flink", [f"--flink_master={address}"])
    overview["slots-total"] = 0
    with pytest.raises(ValueError, match="has no task slots"):
        runner_flags("flink", [f"--flink_master=http://{address}"])


def test_a_missing_flink_is_said(job_manager: tuple[str, dict[str, Any]], caplog: pytest.LogCaptureFixture) -> None:
    """With --parallelism options are made without asking it; a job for too few slots waits without a word."""
    address, _ = job_manager
    with pytest.raises(ValueError, match="localhost:1/overview does not answer as a Flink JobManager"):
        check_cluster("flink", ["--flink_master=localhost:1", "--parallelism=2"])
    check_cluster("flink", [f"--flink_master={address}", "--parallelism=6"])
    check_cluster("flink", ["--flink_master=[local]", "--parallelism=6"])
    assert not caplog.records
    check_cluster("flink", [f"--flink_master={address}", "--parallelism=16"])
    (said,) = caplog.messages
    assert said.startswith("--parallelism=16, but the cluster at ") and "has 6 task slots now" in said


def test_ctrl_c_cancels_the_job_of_the_run_and_no_other(job_manager: tuple[str, dict[str, Any]]) -> None:
    address, told = job_manager
    options = pipeline_options("flink", [f"--flink_master={address}", "--job_name=mine"])
    with pytest.raises(KeyboardInterrupt), cancel_job_on_interrupt(options):
        name = options.view_as(GoogleCloudOptions).job_name
        assert re.fullmatch("mine-[0-9a-f]{8}", name)
        states = [("a", "other", "RUNNING"), ("b", name, "RUNNING"), ("c", name, "FINISHED")]
        told["jobs"] = [{"jid": jid, "name": each, "state": state} for jid, each, state in states]
        raise KeyboardInterrupt
    assert told["canceled"] == ["/jobs/b"]
    gone = pipeline_options("flink", ["--flink_master=localhost:1", "--parallelism=1"])
    with pytest.raises(KeyboardInterrupt), cancel_job_on_interrupt(gone):
        raise KeyboardInterrupt


def test_the_script_for_flink_says_its_own_lines_only(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "clusters.flink_cluster", "status", str(tmp_path)]
    paths = os.pathsep.join([str(Path(__file__).parents[2] / "tools"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (1, f"flink_cluster: {tmp_path}: no cluster was started here\n")


TOKEN = "a-token-of-more-than-16-letters"


def test_beam_hands_the_token_of_a_file_to_the_pool_and_nothing_shows_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    for given, url in (((), WORKER_POOL), (("--environment_config=other:1",), "other:1")):
        beam_args = [*CLUSTERS["flink"], *given]
        options = pipeline_options("flink", beam_args, pool_token_file=str(file))
        environment = environments.Environment.from_options(options.view_as(PortableOptions))
        assert isinstance(environment, environments.ExternalEnvironment)
        assert (environment.url, environment.params) == (url, {TOKEN_PARAM: TOKEN})
        assert TOKEN not in " ".join(runner_flags("flink", beam_args))  # what a dry run shows
    with pytest.raises(ValueError, match="is for a cluster's worker pools; --runner local here has none"):
        pipeline_options("local", [], pool_token_file=str(file))
    secret = json.dumps({"url": "x:1", "params": {TOKEN_PARAM: TOKEN}})
    with pytest.raises(ValueError, match="seen by all users of this machine: give --pool-token-file") as error:
        runner_flags("flink", [*CLUSTERS["flink"], f"--environment_config={secret}"])
    assert TOKEN not in str(error.value)


def test_a_job_server_that_cannot_be_fetched_is_said_with_its_remedy(tmp_path: Path) -> None:
    """Beam makes a RuntimeError of it, whose text names hosts and folders of its own."""
    with pytest.raises(RuntimeError, match="Unable to fetch") as raised:
        JavaJarServer.local_jar("http://localhost:1/job-server.jar", str(tmp_path))
    said = r"could not fetch its job server \(.*Connection refused\); .* --flink_job_server_jar=FILE"
    for error in (raised.value, raised.value.__context__):
        assert isinstance(error, Exception)
        with pytest.raises(OSError, match=said):
            raise _cause(error)


def test_a_job_service_that_dies_is_one_line() -> None:
    with grpc.insecure_channel("localhost:1") as channel, pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary("/job/state")(b"", timeout=5)
    assert isinstance(raised.value, Exception)
    with pytest.raises(OSError, match=r"job service hung up.* the same command does what is missing"):
        raise _cause(raised.value)


def test_a_dry_run_shows_options(roibeam: Cli, tmp_path: Path, tiny_network: tuple[str, ...]) -> None:
    from roibeam.pipelines.toyworld.rendering import draw_samples

    draw_samples(tmp_path, count=1)
    arguments = ("extract", tmp_path / "images", tmp_path / "store", *tiny_network, "--dry-run", "--runner", "dataflow")
    shown = roibeam(*arguments, "--", *CLOUD)
    assert shown.code == 0 and "--experiments=no_use_multiple_sdk_containers" in shown.out
    without = roibeam(*arguments)
    assert without.code == 0 and "still needed        -- --project=" in without.out
    refused = roibeam(*(each for each in arguments if each != "--dry-run"))
    assert refused.code == 1 and "needs -- --project=my-project --region=" in refused.err
    refused = roibeam(*arguments, "--workers", 2, "--", *CLOUD)
    assert refused.code == 1 and "--workers 2 goes with --runner local" in refused.err
