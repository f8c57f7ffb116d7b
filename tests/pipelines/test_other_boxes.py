"""A model reads stores of other boxes than it was trained on, and says so; features that mean something else are
refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from captioned_records import FakeStore
from tiny_commands import Cli, Pictures, digest, extract, ok, one_line, tiny_run

from roibeam.extraction.network.config import written_settings
from roibeam.extraction.network.conventions import SELECTIONS
from roibeam.features.record.fingerprint import Fingerprint, feature_space_of
from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.feature_settings import choice_note
from roibeam.pipelines.training.model_files.model_checkpoint import load_model
from roibeam.pipelines.training.model_files.provenance import check_feature_space

KEPT = Path(__file__).parents[1] / "data" / "kept"
# Random weights have low scores; with none asked for, the two rules keep 60 and 36 of 60 proposals.
NETWORK = (
    "--detector", "small", "--weights", "random:1", "--device", "cpu", "--set", "detector.short_edge=48",
    "--set", "detector.long_edge=80", "--set", "detector.proposals_after_nms=60", "--set", "detector.base_channels=4",
    "--set", "selection.min_score=0.0",
)  # fmt: skip
TOLD = (
    "the model was trained on 10 to 36 regions (vilbert, but min_score 0.0), {} has 10 to 100 regions (butd-10-100, "
    "but min_score 0.0): region features mean the same"
)


@pytest.fixture(scope="module")
def stores(pictures: Pictures, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One of each selection, of the same pictures."""
    folder = tmp_path_factory.mktemp("selections")
    for name in ("vilbert", "butd-10-100"):
        extract(pictures.photos, folder / name, *NETWORK, "--selection", name)
    return {path.name: path for path in folder.iterdir()}


def assert_told(done: Any, told: str) -> None:
    assert done.code == 0 and (done.out + done.err).count(told) == 1, done.out + done.err


def test_a_model_trained_on_one_selection_reads_the_other_and_says_so(
    roibeam: Cli, pictures: Pictures, stores: dict[str, Path], tmp_path: Path
) -> None:
    few, many = stores["vilbert"], stores["butd-10-100"]
    with FeatureStore(few) as left, FeatureStore(many) as right:
        assert left.fingerprint.meaning == right.fingerprint.meaning
        assert left.fingerprint.feature_space != right.fingerprint.feature_space
        record, more = left["sample_00000"], right["sample_00000"]
        places = {box.tobytes(): row for row, box in enumerate(more.boxes)}
        assert record.num_regions == 36 < more.num_regions
        rows = [places[box.tobytes()] for box in record.boxes]  # all of them are there
        np.testing.assert_array_equal(record.features, more.features[rows])
    told, captions = TOLD.format(f"store {many}"), ("--captions", pictures.captions)
    run, size = tmp_path / "run", ("--threads", 1, "--device", "cpu")
    done = ok(roibeam("pretrain", run, "--store", few, *captions, *tiny_run(1), *size))
    assert "mean the same" not in done.out + done.err

    more_run = tmp_path / "more"
    assert_told(roibeam("pretrain", more_run, "--store", many, *captions, "--from-run", run, "--steps", 1, *size), told)
    config = json.loads((more_run / "config.json").read_text())
    assert told in config["recorded"]["notes"] and told in (more_run / "report.html").read_text()
    (source,) = config["recorded"]["sources"]
    assert source["boxes"].startswith("10 to 100 regions") and source["dtype"] == "float16"

    assert_told(roibeam("evaluate", run, "--store", many, *captions, "--out", tmp_path / "e", "--device", "cpu"), told)
    results = json.loads((tmp_path / "e" / "results.json").read_text())
    assert told in results["remarks"] and results["store"]["boxes"] == source["boxes"]
    assert told in (tmp_path / "e" / "report.html").read_text()

    assert_told(roibeam("probe", run, "sample_00000", "a [MASK]", "--store", many, "--out", tmp_path / "p.svg"), told)
    assert json.loads((tmp_path / "p.json").read_text())["notes"] == [told]


def test_stores_of_two_selections_are_trained_on_together_but_are_not_one_store(
    roibeam: Cli, pictures: Pictures, stores: dict[str, Path], tmp_path: Path
) -> None:
    few, many = stores["vilbert"], stores["butd-10-100"]
    pairs = [part for store in (few, many) for part in ("--store", store, "--captions", pictures.captions)]
    told = TOLD.replace("the model was trained on", f"store {few} has").format(many)
    assert_told(roibeam("pretrain", tmp_path / "run", *pairs, *tiny_run(1), "--threads", 1, "--device", "cpu"), told)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert len(set(config["task"]["feature_spaces"])) == 2 and len(config["recorded"]["features"]) == 2
    # Either is what the model knows.
    with FeatureStore(many) as store:
        assert check_feature_space(load_model(str(tmp_path / "run")), store) == []
    before = digest(many)
    merged = roibeam("store", "copy", few, many, tmp_path / "merged")
    assert "they mean the same, but a store has boxes of one choice" in one_line(merged) and digest(many) == before
    info = roibeam("store", "info", many).out
    assert "10 to 100 regions (butd-10-100, but min_score 0.0), float16 (a model may read others" in info
    compared = roibeam("store", "diff", few, many).out
    assert "features mean the same: only the choice of boxes or the dtype differs" in compared.replace("\n", " ")


def of_kept_store(**changes: Any) -> FakeStore:
    """A store whose details are those of the kept one, with other parts."""
    details = json.loads((KEPT / "store" / "manifest.json").read_text())["fingerprint"]["details"]
    for place, value in changes.items():
        *parts, name = place.split("__")
        part = details
        for each in parts:
            part = part[each]
        assert name in part
        part[name] = value
    store = FakeStore()
    store.vocabulary = {"classes": None, "attributes": None}
    store.fingerprint = Fingerprint(feature_space_of(details), {"mode": "exact"}, details)
    return store


def test_a_run_that_recorded_digests_alone_is_held_against_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    found, other = load_model(str(KEPT / "run")), of_kept_store(regions="given", feature_dtype="float32")
    monkeypatch.chdir(KEPT)  # its store is recorded as "store"
    (told,) = check_feature_space(found, other)
    assert told == (
        "the model was trained on 10 to 12 regions (butd-10-100, but max_regions 12), float16, store fake-store has "
        "given boxes, float32: region features mean the same"
    )
    assert check_feature_space(found, of_kept_store()) == found.check_store(of_kept_store()) == []
    assert found.feature_space == of_kept_store().fingerprint.feature_space
    for changed, words in (
        ({"detector__weights": "f" * 64}, "different: weights"),
        ({"detector__conventions__region_pool": "roi-align"}, "different: conventions (region_pool roi-pool / roi-al"),
        ({"vocabulary": "v"}, "different: vocabulary null / v"),
        ({"image_feature": "region"}, "different: image feature none / region"),
        ({"detector__config__short_edge": 64}, "different: network (short_edge 48 / 64)"),
    ):
        with pytest.raises(ValueError) as error:
            found.check_store(of_kept_store(**changed))
        assert words in str(error.value) and "\n" not in str(error.value)


def test_a_model_without_its_run_says_that_it_does_not_tell(tmp_path: Path) -> None:
    load_model(str(KEPT / "run")).model.save_pretrained(tmp_path)
    found = load_model(str(tmp_path))
    assert found.feature_space is None
    unknown = f"{tmp_path} is no run's checkpoint and does not record the features that it was trained on"
    assert found.check_store(of_kept_store()) == [unknown]


def test_a_digest_alone_tells_whether_only_a_published_selection_or_the_dtype_differs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from roibeam.pipelines.training.model_files import provenance

    monkeypatch.chdir(tmp_path)  # the store is gone
    found = load_model(str(KEPT / "run"))
    with pytest.raises(ValueError, match="if only the boxes differ, put that store back"):
        check_feature_space(found, of_kept_store(regions="given"))
    read = provenance.read_json_object
    vilbert = of_kept_store(
        regions=json.loads(json.dumps(written_settings(SELECTIONS["vilbert"]))), feature_dtype="float32"
    )

    def of_vilbert(path: Path) -> dict[str, Any]:
        found = read(path)
        if "task" in found:
            found["task"]["feature_space"] = vilbert.fingerprint.feature_space
        return found

    monkeypatch.setattr(provenance, "read_json_object", of_vilbert)
    (told,) = check_feature_space(found, of_kept_store())
    assert "trained on 10 to 36 regions (vilbert), float32, store fake-store has 10 to 12 regions" in told
    with pytest.raises(ValueError, match="if only the boxes differ"):
        check_feature_space(found, of_kept_store(detector__weights="f" * 64))


def test_another_mode_is_told_with_its_figure_and_what_is_not_known_is_not() -> None:
    details = of_kept_store().fingerprint.details

    def note(*modes: str | None) -> str | None:
        left, right = (
            Fingerprint(feature_space_of(details), {} if mode is None else {"mode": mode}, details) for mode in modes
        )
        return choice_note("the model was trained on", [left], "store b has", right)

    assert note("exact", "exact") is None and note(None, "bf16") is None
    assert note("exact", "bf16") == (
        "the model was trained on mode exact, store b has mode bf16: region features mean the same; in bf16 a feature "
        "has a cosine of 0.9989 or more to that of exact, 0.99997 on average"
    )
    proposals = of_kept_store(detector__config__proposals_after_nms=300).fingerprint
    told = choice_note("a has", [of_kept_store().fingerprint], "b has", proposals)
    assert told == (
        "a has proposals by proposals_after_nms 16, b has proposals by proposals_after_nms 300: region features mean "
        "the same"
    )
