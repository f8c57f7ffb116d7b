"""`roibeam extract` as a user runs it, on small pictures and a tiny network."""

import hashlib
import json
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from small_files import write_text
from tiny_commands import Cli, ok
from tiny_commands import extract as extract_store

from roibeam.extraction.weights.detector_choice import PRESETS
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.folders.local_folder import LocalFolder, output_folder
from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.shard_plan import Plan, read_members, read_plan
from roibeam.pipelines.extract import beam_extraction, planning
from roibeam.pipelines.extract.beam_extraction import run_extract
from roibeam.pipelines.extract.request import (
    PRESET_NAMES,
    ExtractRequest,
    RequestedDetector,
    RequestedImages,
    RequestedRecords,
)
from roibeam.pipelines.extract.shard import shard_job
from roibeam.pipelines.extract.shard.detector_spec import ExtractJob
from roibeam.pipelines.extract.stores.store_check import shard_of_record
from roibeam.pipelines.toyworld.rendering import draw_samples


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    draw_samples(folder, count=12)
    return folder / "images"


@pytest.fixture(scope="module")
def plain(samples: Path, tiny_network: tuple[str, ...]) -> Path:
    """Their store, as a run without any other option makes it; shared: read only."""
    extract_store(samples, samples.parent / "plain", *tiny_network)
    return samples.parent / "plain"


def files(store: Path) -> dict[str, str]:
    return {
        str(path.relative_to(store)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }


def test_photos_in_shards_out(roibeam: Cli, extract: Cli, samples: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    done = ok(extract(samples, out, "--shard-size", 5))
    assert "12 records" in done.out and "report.html" in done.out and f"12 images in {samples}" in done.err
    kinds = {name.split(".")[-1] for name in files(out)}
    assert kinds == {"lmdb", "json", "jsonl", "parquet", "html"}
    assert len(list(out.glob("part-*.lmdb"))) == 3
    with FeatureStore(out) as store:
        assert len(store) == 12
        record = store["sample_00000"]
        assert record.features.shape == (record.num_regions, 128) and 10 <= record.num_regions <= 12
        assert record.attribute_ids is not None
        assert isinstance(record.class_distribution, np.ndarray) and record.class_distribution.shape[1] == 21
    for options, words in (((), "clean"), (("--shards", "1-"), "every record of the shards 1- read")):
        assert words in ok(roibeam("store", "verify", out, "--deep", *options)).out
    for shards in ("3", "2-1"):
        refused = roibeam("store", "verify", out, "--deep", "--shards", shards)
        assert refused.code == 1 and "expected <first>-<last>" in refused.err
    assert "--shards goes with --deep" in roibeam("store", "verify", out, "--shards", "1-").err
    first = len(read_members(LocalFolder(out), read_plan(LocalFolder(out)).shards[0]))  # type: ignore[union-attr]
    assert [shard_of_record(output_folder(out), done) for done in (0, first - 1, first, 12)] == [0, 0, 1, 2]


def test_a_request_in_python_writes_what_the_command_writes(
    extract: Cli, samples: Path, tmp_path: Path, tiny_network: tuple[str, ...]
) -> None:
    options = ("--dtype", "float32", "--distribution", "top-5", "--image-feature", "region", "--id-rule")
    ok(extract(samples, tmp_path / "a", *options, "with-extension", "--shard-size", 5))
    given = list(zip(tiny_network[::2], tiny_network[1::2], strict=True))
    settings = tuple(value for option, value in given if option == "--set")
    told: list[str] = []
    request = ExtractRequest(
        RequestedImages((str(samples),), id_rule="with-extension"),
        str(tmp_path / "b"),
        RequestedDetector(dict(given)["--detector"], weights=dict(given)["--weights"], set=settings),
        RequestedRecords(dtype="float32", distribution="top-5", image_feature="region"),
        shard_size=5,
    )
    summary = run_extract(request, tell=told.append)
    assert summary.succeeded and summary.new_images == 12 and told[2] == f"12 images in {samples}"
    assert told[3:] == [f"3 shards of at most 5 images, into {tmp_path / 'b'}"]
    with FeatureStore(tmp_path / "a") as first, FeatureStore(tmp_path / "b") as second:
        assert first.manifest.content_digest == second.manifest.content_digest == summary.manifest.content_digest
        assert first.manifest.config == second.manifest.config and len(first.manifest.shards) == 3


def test_photos_become_a_store_in_one_call_of_python(samples: Path, tmp_path: Path) -> None:
    import roibeam

    photo = samples / "sample_00000.jpg"
    done = roibeam.extract(photo, tmp_path / "store", detector="toy", device="cpu")
    assert done.succeeded and done.new_images == 1
    words = rf"RunSummary\({tmp_path}/store: 1 record with \d+ regions, 0 images failed; 1 image extracted in .*\)"
    assert re.fullmatch(words, repr(done))
    with roibeam.open_store(tmp_path / "store") as store:
        assert store["sample_00000"].num_regions >= 10 and "red" in store.vocabulary["attributes"]
    again = roibeam.extract([photo, samples / "sample_00001.jpg"], tmp_path / "store", detector="toy", device="cpu")
    assert again.new_images == 1 and again.num_images == 2
    with pytest.raises(ValueError, match="preset lxmert does not go with the detector toy"):
        roibeam.extract(samples, tmp_path / "other", preset="lxmert", detector="toy")
    assert not (tmp_path / "other").exists()


def test_help_names_every_preset() -> None:
    told = re.findall(r"[a-z0-9-]+", PRESET_NAMES)
    assert told == [*list(PRESETS)[:-1], "or", list(PRESETS)[-1]]


def test_modes_are_recorded_beside_one_feature_space(extract: Cli, samples: Path, plain: Path, tmp_path: Path) -> None:
    stores, fingerprints = {"exact": plain, "batched": tmp_path / "batched", "bf16": tmp_path / "bf16"}, {}
    ok(extract(samples, stores["batched"], "--batched"))
    ok(extract(samples, stores["bf16"], "--precision", "bf16"))
    for mode, path in stores.items():
        assert f"mode {mode}" in (path / "report.html").read_text("utf-8")
        with FeatureStore(path) as store:
            fingerprints[mode] = store.fingerprint
            assert store.fingerprint.numerics["mode"] == mode
    assert fingerprints["exact"].feature_space == fingerprints["bf16"].feature_space


def test_one_store_has_one_precision(extract: Cli, samples: Path, tmp_path: Path) -> None:
    photos, out = tmp_path / "photos", tmp_path / "store"
    photos.mkdir()
    shutil.copy(samples / "sample_00000.jpg", photos)
    ok(extract(photos, out))
    line = one_line(extract(photos, out, "--precision", "bf16"))
    assert "made with other settings: precision was float32, is now bf16; repeat the earlier command" in line
    line = one_line(extract(photos, out, "--batched"))
    assert "precision was float32, is now float32 --batched" in line
    # A plan of an earlier version does not know: then it is told.
    plan = json.loads((out / "plan.json").read_text())
    del plan["sha256"]
    assert plan["settings"].pop("mode") == "exact"
    (out / "plan.json").write_text(json.dumps(plan))
    shutil.copy(samples / "sample_00001.jpg", photos)
    done = ok(extract(photos, out, "--batched"))
    assert "shards were computed in different modes (exact, batched)" in done.err


def test_a_rerun_does_nothing_and_new_photos_add_shards(
    extract: Cli, samples: Path, plain: Path, tmp_path: Path
) -> None:
    photos, out = Path(shutil.copytree(samples, tmp_path / "photos")), tmp_path / "store"
    late = [photos / "sample_00003.jpg", photos / "sample_00007.jpg"]
    for path in late:
        path.rename(tmp_path / path.name)
    run = (photos, out, "--shard-size", 4)
    ok(extract(*run))
    before = files(out)
    again = ok(extract(*run))
    assert "nothing to do" in again.out and "note:" not in again.out
    same = {name for name, digest in files(out).items() if before[name] == digest}
    # Its summary tells of itself; the report keeps the time and the rate of the run that extracted.
    assert set(before) - same == {"run_summary.json"} and "<dt>images/s</dt>" in (out / "report.html").read_text()

    for path in late:
        (tmp_path / path.name).rename(path)
    assert "2 images extracted" in ok(extract(*run)).out
    assert "<dt>time of 2</dt>" in (out / "report.html").read_text()
    assert all(files(out)[name] == digest for name, digest in before.items() if name.startswith("part-"))
    with FeatureStore(out) as store:
        assert len(store) == 12 and "sample_00007" in store

    with FeatureStore(plain) as one, FeatureStore(out) as other:
        assert one.manifest.content_digest == other.manifest.content_digest
        assert len(one.manifest.shards) == 1 and len(other.manifest.shards) == 4

    (photos / "sample_00001.jpg").unlink()
    assert "1 image of earlier runs is not in the source now" in ok(extract(photos, out)).out


def test_failures_are_dead_letters_and_fail_the_run_past_the_limit(extract: Cli, samples: Path, tmp_path: Path) -> None:
    photos, out = Path(shutil.copytree(samples, tmp_path / "photos")), tmp_path / "store"
    (photos / "<b>bad.jpg").write_bytes(b"<html>")
    (photos / "empty.jpg").write_bytes(b"")
    done = extract(photos, out)
    assert done.code == 1
    assert "14.3 % of the images failed, more than the 5 % of --max-failures" in done.err
    assert "--retry-dead-letters tries them again" in done.err
    rows = pq.read_table(out / "dead_letters.parquet").to_pylist()
    letters = {row["image_id"]: (row["stage"], row["reason"]) for row in rows}
    assert letters == {"<b>bad": ("decode", "not an image"), "empty": ("decode", "empty file")}
    assert "<b>bad" not in (out / "report.html").read_text()
    assert extract(photos, out, "--max-failures", "0.2").code == 0
    with FeatureStore(out) as store:
        assert len(store) == 12 and store.manifest.num_dead_letters == 2


def test_a_source_of_which_nothing_can_be_extracted_is_not_begun(extract: Cli, samples: Path, tmp_path: Path) -> None:
    photos, out = tmp_path / "photos", tmp_path / "store"
    photos.mkdir()
    for number in range(9):
        (photos / f"{number}.jpg").write_bytes(b"" if number == 4 else b"<html>")
    words = f"none of 5 images from all over {photos} can be extracted, most often: not an image (decode), as {photos}"
    for options in ((), ("--shard-size", 2)):
        assert words in one_line(extract(photos, out, *options))
        assert not list(out.iterdir())
    # One photo that is tried is enough, and what is left decides at the end.
    shutil.copy(samples / "sample_00000.jpg", photos / "4.jpg")
    done = extract(photos, out, "--shard-size", 2)
    assert done.code == 1 and "88.9 % of the images failed" in done.err
    # A store may grow by photos that all fail, where so many may.
    for number in range(10, 16):
        (photos / f"{number}.jpg").write_bytes(b"")
    assert "none of 5 images" in one_line(extract(photos, out, "--max-failures", "0.3"))
    allowed = one_line(extract(photos, out, "--max-failures", "0.5"))
    assert "93.3 % of the images failed" in allowed


def test_shards_without_a_record_are_shards(roibeam: Cli, extract: Cli, tmp_path: Path) -> None:
    out = tmp_path / "store"
    write_text(tmp_path / "photos" / "a.jpg", b"")
    ok(extract(tmp_path / "photos", out, "--max-failures", "1"))
    ok(roibeam("store", "verify", out, "--deep"))
    with FeatureStore(out) as store:
        assert len(store) == 0


def test_dry_run_writes_nothing(extract: Cli, samples: Path, tmp_path: Path) -> None:
    done = extract(samples, tmp_path / "store", "--dry-run", "--shard-size", 5)
    assert done.code == 0 and not (tmp_path / "store").exists()
    assert "3 photos timed on the CPU" in done.out and "3 of at most 5 images" in done.out and "1 process" in done.out


def test_names_travel_into_store_and_report(roibeam: Cli, extract: Cli, samples: Path, tmp_path: Path) -> None:
    names = tmp_path / "vocab"
    write_text(names / "objects_vocab.txt", "\n".join(f"thing{i},synonym" for i in range(20)))
    write_text(names / "attributes_vocab.txt", "\n".join(f"kind{i}" for i in range(12)) + "\n")
    out = tmp_path / "store"
    events = [json.loads(line) for line in ok(extract(samples, out, "--vocab", names, "--json")).out.splitlines()]
    assert events[-1]["event"] == "done" and events[-1]["records"] == 12 and events[-1]["succeeded"] is True
    assert events[-2]["event"] == "progress" and events[-2]["images"] == 12
    with FeatureStore(out) as store:
        assert store.vocabulary["classes"] == [f"thing{i}" for i in range(20)]
    assert "thing" in (out / "report.html").read_text()
    shown = roibeam("store", "show", out, "sample_00002", "--max-regions", 3)
    assert shown.code == 0 and "thing" in shown.out and len(shown.out.splitlines()) == 6
    info = roibeam("store", "info", out)
    assert info.code == 0 and "20: thing0, thing1" in info.out
    assert "selection       butd-10-100, but max_regions 12\n" in info.out and "image feature" not in info.out


def test_equal_stores_for_any_shard_size_and_any_threads(
    extract: Cli, samples: Path, plain: Path, tmp_path: Path
) -> None:
    ok(extract(samples, tmp_path / "many", "--shard-size", 1, "--decode-threads", 3))
    with FeatureStore(plain) as one, FeatureStore(tmp_path / "many") as many:
        assert (len(one.manifest.shards), len(many.manifest.shards)) == (1, 12)
        assert one.manifest.content_digest == many.manifest.content_digest


def one_line(result: Any) -> str:
    assert result.code != 0
    lines = [line for line in result.err.splitlines() if line.startswith("roibeam: ")]
    assert len(lines) == 1 and "Traceback" not in result.err, result.err
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("{samples} {out}", "weights are missing: preset butd-10-100 brings none; give a weight file"),
        ("{tmp}/missing {out} --weights random:1", "no such file or folder: SOURCE"),
        ("{tmp}/none {out} --weights random:1", "no images in"),
        ("{samples} {out} --weights random:x", "random"),
        ("{samples} {out} --weights {tmp}/no.pth", "no.pth"),
        ("{samples} {samples} --weights random:1", "which is only read; name a folder beside it"),
        ("{samples} {three} --weights random:1", "is a file"),
        ("{samples} {out} extra --weights random:1", "SOURCE (the last argument is the store) '{out}'"),
        ("--detector vgg", "'vgg' is unknown: no such folder; there are toy, vg-r101-c4, vg-r101-c4-600, small"),
        ("--conventions vgg", "choose one of hf, d2, caffe"),
        ("--set conventions.resize=x", "convention resize is 'x'"),
        ("--image-feature all", "choose none, region or <network>"),
        ("--boxes {tmp}/b.json", "no such file or folder: --boxes"),
        ("--boxes {three}", "expected boxes as COCO instances"),
        ("--selection best", "there are butd-10-100"),
        ("--dtype int8", "choose one of float16"),
        ("--distribution some", "choose full, none or top-<k>"),
        ("--device tpu", "expected auto, cpu, cuda or cuda:<n>"),
        ("--device cuda:9", "torch sees"),
        ("--id-rule hash", "choose one of no-extension"),
        ("--max-failures 2", "--max-failures '"),
        ("--colour x", "there is no option --colour"),
        ("--set detector.depht=50", "did you mean depth"),
        ("--set depth=50", "expected section.field=value"),
        ("--set detector.depth=x", "expected a whole number"),
        ("--photos {tmp}", "--photos goes with"),
        ("--vocab {tmp}/v.txt", "v.txt"),
        ("--detector small --vocab {three}", "3 classes"),
        ("--detector small -- --wrkers=2", "does not know --wrkers"),
        ("--precision fp8", "--precision 'fp8': choose one of float32, tf32, bf16"),
        ("--device cpu --precision tf32", "tf32 needs a GPU"),
        ("--precision bf16 --batched", "--batched goes with --precision float32"),
    ],
)
def test_user_errors_are_one_line(roibeam: Cli, samples: Path, tmp_path: Path, arguments: str, words: str) -> None:
    three = tmp_path / "three.txt"
    three.write_text("a\nb\nc\n")
    (tmp_path / "none").mkdir()
    places = {"samples": samples, "tmp": tmp_path, "out": tmp_path / "out", "three": three}
    if arguments.startswith("--"):
        arguments = f"{{samples}} {{out}} --weights random:1 {arguments}"
    line = one_line(roibeam("extract", *(argument.format(**places) for argument in arguments.split())))
    assert words.replace("{out}", str(places["out"])) in line and not places["out"].exists()


def test_misshapen_weights_are_one_clear_line(roibeam: Cli, samples: Path, tmp_path: Path) -> None:
    torch.save({"backbone.stem.conv1.weight": torch.zeros(1)}, tmp_path / "w.pth")
    options = ("--detector", "small", "--weights", tmp_path / "w.pth")
    line = one_line(roibeam("extract", samples, tmp_path / "out", *options))
    assert "w.pth" in line and "missing" in line and not (tmp_path / "out").exists()


def test_the_output_of_another_run_is_refused(
    roibeam: Cli, extract: Cli, samples: Path, plain: Path, tmp_path: Path, tiny_network: tuple[str, ...]
) -> None:
    out = shutil.copytree(plain, tmp_path / "store")
    before = files(out)
    other_weights = [option if option != "random:1" else "random:2" for option in tiny_network]
    assert "feature_space.detector.weights was" in one_line(roibeam("extract", samples, out, *other_weights))
    regions = "selection was butd-10-100, but max_regions 12, is now butd-10-100, but max_regions 11;"
    for option, value, change in (
        ("--conventions", "caffe", "conventions was hf, is now caffe"),
        ("--set", "selection.max_regions=11", regions),
        ("--distribution", "none", "distribution was full, is now none"),
    ):
        assert f"made with other settings: {change}" in one_line(extract(samples, out, option, value))
    moved = one_line(extract(shutil.copytree(samples, tmp_path / "other"), out))
    assert "holds another run: its source: image_root was" in moved
    assert moved.strip().endswith("if the photos are the same and only moved, a link at the old path will do")
    other_ids = one_line(extract(samples, out, "--id-rule", "with-extension"))
    assert "id_rule was" in other_ids and "moved" not in other_ids
    assert files(out) == before


@pytest.mark.parametrize(
    ("begun", "recorded"),
    [
        (("--conventions", "d2", "--selection", "vl-bert"), "conventions d2, photos at 48/80, selection vl-bert"),
        # A field that a record leaves out has its default, not that of the nearest preset.
        (
            ("--conventions", "vinvl", "--selection", "vinvl", "--set", "conventions.nms_sides=box_sides"),
            "conventions vinvl, but nms_sides box_sides, photos at 48/80, selection vinvl",
        ),
    ],
)
def test_a_store_goes_on_with_what_it_recorded_where_nothing_is_named(
    roibeam: Cli, extract: Cli, samples: Path, tmp_path: Path, begun: tuple[str, ...], recorded: str
) -> None:
    out = tmp_path / "store"
    ok(extract(samples, out, *begun))
    before = files(out)
    again = ok(roibeam("extract", samples, out, "--weights", "random:1"))
    assert "nothing to do" in again.out
    goes_on = f"{out} goes on with the settings it recorded: {recorded}, but max_regions 12"
    assert again.err.splitlines()[0] == goes_on
    kept = {name: told for name, told in before.items() if name.startswith(("part", "plan", "manifest"))}
    assert kept.items() <= files(out).items()
    # What is named counts, and must be what is there.
    for option in (("--selection", "butd-36"), ("--conventions", "hf")):
        refused = one_line(roibeam("extract", samples, out, "--weights", "random:1", *option))
        assert "made with other settings" in refused


def test_a_plan_under_which_nothing_was_extracted_binds_nobody(
    roibeam: Cli, extract: Cli, samples: Path, plain: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(plain, tmp_path / "store")
    for path in (*out.glob("part-*"), out / "manifest.json"):
        path.unlink()  # as a run leaves it that fails in its first shards
    done = ok(extract(samples, out, "--conventions", "caffe", "--shard-size", 5))
    assert "12 images extracted" in done.out and "note:" not in done.out
    assert [shard.num_images for shard in read_plan(LocalFolder(out)).shards] == [5, 5, 2]  # type: ignore[union-attr]
    ok(roibeam("store", "verify", out, "--deep"))
    # Now features are there: their shards stay, and a size that is not theirs is told.
    again = extract(samples, out, "--conventions", "caffe", "--shard-size", 4)
    assert "note: --shard-size 4 is for new images; the shards of earlier runs stay as they are" in again.out
    (out / "manifest.json").unlink()  # and so they do after a run that was stopped
    refused = one_line(extract(samples, out, "--conventions", "hf"))
    assert "made with other settings: conventions was caffe, is now hf" in refused


@pytest.mark.parametrize("command", [["info"], ["verify"], ["show"]])
def test_store_commands_on_no_store_are_one_clear_line(roibeam: Cli, tmp_path: Path, command: list[str]) -> None:
    result = roibeam("store", *command, tmp_path)
    assert result.code != 0 and "Traceback" not in result.err
    assert str(tmp_path) in result.err + result.out


def test_a_driver_without_a_gpu_starts_a_run_on_gpus(
    extract: Cli, samples: Path, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It plans on its CPU, in float32; the workers get the device and the mode that were asked for."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(planning, "UNTIMED_SHARD_IMAGES", 5)
    jobs: list[ExtractJob] = []

    def sent(job: ExtractJob, *_: object) -> None:
        jobs.append(job)
        raise OSError("as far as the cluster")

    monkeypatch.setattr(beam_extraction, "run_extraction", sent)
    gpus = ("--device", "cuda", "--precision", "tf32", "--runner", "dataflow")
    cloud = ("--project=p", "--region=r", "--temp_location=gs://b/t", "--sdk_container_image=x/y:1", "--dry_run=True")
    done = extract(samples, tmp_path / "store", *gpus, "--", *cloud)
    assert "as far as the cluster" in one_line(done) and "on cuda of the workers" in done.err
    assert (jobs[0].detector.device, jobs[0].detector.mode) == ("cuda", "tf32")
    with FeatureStore(plain) as store:
        assert jobs[0].feature_space == store.fingerprint.feature_space
    plan = read_plan(LocalFolder(tmp_path / "store"))
    assert plan is not None and plan.settings["mode"] == "tf32"
    # The speed of those GPUs is unknown here.
    assert [shard.num_images for shard in plan.shards] == [5, 5, 2]


def test_threads_that_share_one_model_write_the_same_store(
    extract: Cli, samples: Path, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []
    build = shard_job.build_detector
    monkeypatch.setattr(shard_job, "build_detector", lambda *args, **named: built.append(args) or build(*args, **named))
    monkeypatch.setattr(shard_job, "_detectors", {})
    threads = ("--", "--direct_running_mode=multi_threading", "--direct_num_workers=3")
    assert extract(samples, tmp_path / "three", "--shard-size", 2, *threads).code == 0
    with FeatureStore(plain) as want, FeatureStore(tmp_path / "three") as got:
        assert got.manifest.content_digest == want.manifest.content_digest
        assert len(got.manifest.shards) == 6 and len(built) == 1


def test_an_extraction_opens_its_store_and_reads_its_plan_once(
    extract: Cli, samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Beside the driver, a worker opens the store for its shards, and one to publish it."""
    counts, read, opened = Counter[str](), read_plan, LocalFolder.__init__

    def counted_read(folder: OutputFolder) -> Plan | None:
        counts["plans read"] += 1
        return read(folder)

    def counted_open(self: LocalFolder, path: Path) -> None:
        counts["folders opened"] += 1
        opened(self, path)

    monkeypatch.setattr(LocalFolder, "__init__", counted_open)
    for module in [each for each in sys.modules.values() if vars(each).get("read_plan") is read]:
        monkeypatch.setattr(module, "read_plan", counted_read)
    assert extract(samples, tmp_path / "store", "--shard-size", 100).code == 0
    assert counts["plans read"] == 1 and counts["folders opened"] <= 3
