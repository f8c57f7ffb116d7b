"""`extract --dry-run`: what is in work at once by each runner's options, the time of a run on it, and what it does
without the GPU, the cluster and the bucket of the run."""

import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_commands import Cli, Pictures, ok, refused

from roibeam.features.store import FeatureStore
from roibeam.pipelines.extract.dry_run import DryRun, Estimate, estimate
from roibeam.pipelines.extract.request import ExtractRequest, RequestedDetector, RequestedImages
from roibeam.pipelines.extract.runners.pipeline_run import Slots, slots_of
from roibeam.pipelines.extract.work import open_work


@pytest.mark.parametrize(
    ("runner", "flags", "given", "shards", "computing"),
    [
        ("local", [], {"workers": 4}, 4, 4),
        ("local", [], {"workers": 8, "device": "cuda", "gpus": 4}, 8, 4),
        ("local", [], {"workers": 1, "device": "cuda", "gpus": 4}, 1, 1),
        ("local", [], {"workers": 2, "device": "cuda:1", "gpus": 4}, 2, 1),
        ("portable", ["--job_endpoint=embed"], {}, 1, 1),
        ("flink", ["--parallelism=16", "--parallelism=64"], {}, 64, 64),  # Beam takes the last one
        ("flink", ["--flink_master=h:8081"], {}, None, None),
        ("spark", ["--spark_master_url=local[6]"], {}, 6, 6),
        ("spark", ["--spark_master_url=spark://h:7077"], {}, None, None),
        ("dataflow", ["--num_workers=2", "--max_num_workers=40"], {}, 40, 40),
        ("dataflow", ["--num_workers=2"], {}, 2, 2),
        ("dataflow", [], {}, None, None),
    ],
)
def test_shards_at_once_follow_from_the_options(
    runner: str, flags: list[str], given: dict[str, Any], shards: int | None, computing: int | None
) -> None:
    found = slots_of(runner, flags, **given)
    assert (found.shards, found.computing) == (shards, computing)
    if given.get("gpus", 0) > given.get("workers", 0) > 0 and ":" not in given["device"]:
        assert "--workers 4 takes all" in found.words


def of(images: int, shard_size: int) -> Estimate:
    return Estimate(images, 3, "on the CPU", 10.0, 1e4, shard_size, ())


@pytest.mark.parametrize(
    ("images", "shard_size", "slots", "seconds"),
    [
        (400, 4000, 1, 4000),
        (400, 4000, 64, 4000),  # one shard: 63 slots have nothing to do
        (400, 6, 64, 120),  # 67 shards: two rounds, of at most 6 images
        (128, 2, 64, 20),
        (643, 10, 64, 130),  # the 65th shard, of 3 images, is alone in the second round
        (0, 5, 4, 0),
    ],
)
def test_the_time_is_that_of_the_busiest_slot(images: int, shard_size: int, slots: int, seconds: float) -> None:
    assert of(images, shard_size).seconds(slots) == seconds


def told(found: Estimate, slots: int | None) -> str:
    return DryRun("cpu", Slots(slots, slots, "slots"), ("--x",), (), found).text()


def test_fewer_shards_than_slots_are_a_warning_with_a_shard_size_that_fills_them() -> None:
    text = told(of(400, 4000), 64)
    assert "warning: 1 shard for 64 at once: 63 would idle; --shard-size 6 makes 67 shards" in text
    assert "speed               10 s/image in one process" in text
    assert "warning" not in told(of(400, 6), 64) and "warning" not in told(of(0, 6), 64)
    assert "there are no more images" in told(of(3, 1), 64)
    # Where only the cluster knows how many it has, one shard is too few anyway.
    assert "--shard-size 6 makes 67" in told(of(400, 4000), None)
    assert "8 min 20 s with 8" in told(of(400, 10), None)
    assert "nothing is left to extract" in told(of(0, 6), 64) and "images/s" not in told(of(0, 6), 64)
    assert "; rests on " in text  # the disk


def test_a_run_on_gpus_is_planned_on_a_machine_without_one(
    roibeam: Cli, pictures: Pictures, tmp_path: Path, tiny_network: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    network = ("--detector", "small", "--weights", "random:1", *tiny_network[6:])
    base = ("extract", pictures.photos, tmp_path / "store", *network, "--device", "cuda", "--dry-run")
    here = ok(roibeam(*base, "--precision", "tf32", "--workers", 2))
    assert "this machine has no GPU, on which it is faster" in here.out and "planned for cuda" in here.err
    # Neither does a bucket nor the rest of what Dataflow needs keep anybody from seeing the options.
    cloud = ok(roibeam(*base[:2], "gs://bucket/store", *base[3:], "--runner", "dataflow", "--json"))
    event = json.loads(cloud.out.splitlines()[-1])
    assert event["images"] == 8 and event["device"] == "cuda" and event["slots"] is None
    assert "--machine_type=g2-standard-8" in event["beam_options"]
    missing = [option.partition("=")[0] for option in event["missing_beam_options"]]
    assert missing == ["--project", "--region", "--temp_location", "--sdk_container_image"]
    cluster = roibeam(*base, "--runner", "flink", "--", "--flink_master=localhost:1", "--parallelism=3")
    assert cluster.code == 0 and "warning: 1 shard for 3 at once" in cluster.out
    # The CPU of this machine says nothing of how many images make a shard.
    assert "1 of at most 1,000 images" in cluster.out and "GPUs elsewhere are not timed here" in cluster.out
    assert "1 of at most 1,000 images" in here.out and "a guess: the run times its GPU" in here.out
    assert "torch sees no GPU here; --device cpu takes the CPU" in refused(roibeam(*base[:-1]))
    assert not (tmp_path / "store").exists()


def test_photos_at_a_url_that_cannot_be_read_do_not_hide_the_options(extract: Cli, tmp_path: Path) -> None:
    found = extract("nosuch://bucket/photos", tmp_path / "store", "--dry-run", "--runner", "spark")
    assert found.code == 0 and "Beam has no filesystem for nosuch://" in found.out
    assert "--environment_type=EXTERNAL" in found.out and "--spark_master_url=spark://HOST:7077" in found.out


def test_a_slow_photo_is_the_only_one_timed(
    pictures: Pictures, tmp_path: Path, tiny_network: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = dict(zip(tiny_network[::2], tiny_network[1::2], strict=True))
    settings = tiny_network[7::2]  # each after its --set
    detector = RequestedDetector(given["--detector"], weights=given["--weights"], set=settings, device="cpu")
    request = ExtractRequest(RequestedImages((str(pictures.photos),)), str(tmp_path / "store"), detector)
    work = open_work(request, tell=str)
    assert estimate(work).timed == 3
    monkeypatch.setattr("roibeam.pipelines.extract.dry_run.ENOUGH_SECONDS", 0.0)
    found = estimate(work)
    assert (found.timed, found.images) == (1, 8) and found.seconds_per_image > 0


def calls_of(script: str, task: int = 0) -> list[list[str]]:
    """What bash makes of the lines of a script that begin with roibeam: the words of each call."""
    shell = f"roibeam() {{ printf '%s\\0' \"$@\"; printf '\\n\\0'; }}\nSLURM_ARRAY_TASK_ID={task}\n{script}"
    done = subprocess.run(["bash", "-euc", shell], capture_output=True, text=True, check=True)
    return [call.split("\0")[:-1] for call in done.stdout.split("\n\0")[:-1]]


def pack(folder: Path, photos: list[Path], keys: list[str]) -> None:
    """Tars of two photos each."""
    folder.mkdir()
    for number in range(0, len(photos), 2):
        with tarfile.open(folder / f"{number // 2:05}.tar", "w") as tar:
            for photo, key in zip(photos[number : number + 2], keys[number : number + 2], strict=True):
                tar.add(photo, f"{key}.jpg")


@pytest.mark.parametrize("kind", ["folder", "tars", "list"])
def test_the_array_job_makes_stores_that_join_to_the_whole(
    roibeam: Cli, extract: Cli, pictures: Pictures, tmp_path: Path, kind: str
) -> None:
    """The pasted lines, as bash reads them: every part, one again, then the join."""
    photos = sorted(pictures.photos.iterdir())
    source, out = tmp_path / "my tars", tmp_path / "my store"
    if kind == "tars":
        pack(source, photos, [f"{number:09}" for number in range(len(photos))])
    elif kind == "list":
        source = tmp_path / "my list.txt"
        source.write_text("".join(f"{photo.name}\n" for photo in photos))
    else:
        source = pictures.photos
    options = ("--threads", 1, *(("--photos", pictures.photos) if kind == "list" else ()))
    plan = ok(extract(source, out, *options, "--dry-run", "--gpus", 3, "--device", "cpu", "--json"))
    array = json.loads(plan.out.splitlines()[-1])["array"]
    assert array["images"] == len(photos) and array["jobs"] == 3 and not out.exists()
    assert "#SBATCH --mem=16G" in array["script"] and array["timed"] > 0
    assert array["num_archives"] == (4 if kind == "tars" else 0)
    counts = []
    for task in (1, 2, 3, 2):
        (words,) = calls_of(array["script"], task)
        ok(roibeam(*words))
        with FeatureStore(f"{out}-parts/{task}") as part:
            counts.append(len(part))
    assert counts == ([4, 2, 2, 2] if kind == "tars" else [3, 3, 2, 3])
    assert max(counts) == array["most_images"]
    for words in calls_of(array["join"]):
        ok(roibeam(*words))
    ok(extract(source, tmp_path / "whole", *options))
    with FeatureStore(out) as joined, FeatureStore(tmp_path / "whole") as whole:
        assert joined.manifest.content_digest == whole.manifest.content_digest
    # A part is a part of the source as it was: with more photos the parts would be others, and overlap.
    (words,) = calls_of(array["script"], 1)
    other = [word.replace("1/3", "1/2") for word in words]
    assert "holds another run: its source: part was " in refused(roibeam(*other))


def test_hours_say_where_their_speed_was_measured(
    roibeam: Cli, pictures: Pictures, tmp_path: Path, tiny_network: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    network = ("--detector", "small", "--weights", "random:1", *tiny_network[6:])
    base = (
        "extract",
        pictures.photos,
        tmp_path / "store",
        *network,
        "--dry-run",
        "--gpus",
        4,
        "--images",
        2_000_000,
    )
    here = ok(roibeam(*base)).out
    assert "3 photos timed on the CPU" in here and "not on a GPU; --speed takes yours" in here
    assert "#SBATCH --array=1-4\n#SBATCH --gpus=1\n" in here and "--device cuda --threads 8" in here
    assert "The weights are random, so all features mean nothing: write a real file for them.\nPaste into" in here
    given = ok(roibeam(*base, "--speed", 50, "--", "--s3_region_name=x")).out
    assert "50 images/s each job: yours (--speed)" in given and "2 h 46 min with 4 jobs at once" in given
    assert "#SBATCH --time=05:45:00" in given and "--threads 8 -- --s3_region_name=x" in given
    # A bucket that cannot be read from here: the size of records is that of the settings, the speed that of BENCHMARKS.
    far = ("extract", "nosuch://bucket/tars", "s3://bucket/store", "--preset", "butd-36", "--weights", "random:1")
    plan = ok(roibeam(*far, "--dry-run", "--gpus", 64, "--images", 2_000_000, "--json", "--precision", "bf16"))
    array = json.loads(plan.out.splitlines()[-1])["array"]
    assert (
        array["images_per_second"] == 169 and "NVIDIA H200" in array["measured"] and "2026-11-26" in array["measured"]
    )
    assert array["num_bytes"] == 2_000_000 * 36 * (2 * 2048 + 2 * 1601 + 32)
    assert "s3://bucket/store-parts/{1..64} s3://bucket/store" in array["join"]


def test_keys_that_repeat_over_tars_stop_the_dry_run(extract: Cli, pictures: Pictures, tmp_path: Path) -> None:
    """Each job would see its own tars alone: the join would find it, after all GPUs were paid for."""
    pack(tmp_path / "tars", sorted(pictures.photos.iterdir()), ["000000000", "000000001"] * 4)
    line = refused(extract(tmp_path / "tars", tmp_path / "store", "--dry-run", "--gpus", 4))
    first, second = (str(tmp_path / "tars" / f"{number:05}.tar") for number in (0, 1))
    assert f"two archives have the key '000000000': '{first}' and '{second}' (2 ids are of two images)" in line
    assert "--id-prefix 00000/" in line
    for number in (0, 1):
        store = tmp_path / "parts" / f"{number:05}"
        ok(extract(tmp_path / "tars" / f"{number:05}.tar", store, "--id-prefix", f"{number:05}/"))
        with FeatureStore(store) as opened:
            assert list(opened.ids()) == [f"{number:05}/000000000", f"{number:05}/000000001"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--gpus", 4), "--gpus: for the plan of an array job; add --dry-run"),
        (("--images", 4, "--speed", 2), "--images, --speed: for the plan of an array job; add --dry-run"),
        (("--dry-run", "--images", 4), "--images: goes with --gpus"),
        (("--dry-run", "--gpus", 4, "--speed", 0), "--speed 0: expected images per second, more than 0"),
        (("--dry-run", "--gpus", 4, "--workers", 2), "leave --runner and --workers out"),
        (("--dry-run", "--gpus", 4, "--part", "1/2"), "the array job makes the parts; leave --part out"),
        (("--part", "3/2"), "--part '3/2': expected a part and the number of parts, such as 2/8"),
        (("--part", "9/9"), "--part 9/9 of 8 images in"),
    ],
)
def test_options_of_an_array_job_are_refused_where_they_mean_nothing(
    extract: Cli, pictures: Pictures, tmp_path: Path, options: tuple[object, ...], words: str
) -> None:
    assert words in refused(extract(pictures.photos, tmp_path / "store", *options))
    assert not (tmp_path / "store").exists()
