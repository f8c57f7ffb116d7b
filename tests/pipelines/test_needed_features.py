"""The features that each recipe names: the printed `extract` commands are ones, they fit what the recipe reads, and a
store that was made otherwise is noted."""

import json
import shlex
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from captioned_records import FakeStore, make_store, run_pretrain
from typer.main import get_command

from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.network.conventions import CONVENTIONS, SELECTIONS
from roibeam.extraction.weights.detector_choice import PUBLISHED_SELECTIONS, choose_detector
from roibeam.features.record.fingerprint import Fingerprint, feature_space_of
from roibeam.pipelines.cli.commands import app
from roibeam.pipelines.data.feature_settings import GIVEN_BOXES, Features
from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES
from roibeam.pipelines.finetuning.tasks.named_tasks import TASKS
from roibeam.pipelines.pretraining.recipes.published import RECIPES

ALL: dict[str, Any] = {**RECIPES, **TASK_RECIPES}
STORES = {each.features for each in ALL.values() if each.features}
STORES |= {each.of_annotated for each in STORES if each.annotated}
EXTRACT = get_command(app).commands["extract"]  # type: ignore[attr-defined]


def recorded(detector: str, conventions: str, regions: Any, **config: Any) -> Fingerprint:
    described = {"config": {**asdict(CONFIGS[detector]), **config}, "conventions": asdict(CONVENTIONS[conventions])}
    details = {"detector": described, "regions": regions}
    plain = json.loads(json.dumps(details))
    return Fingerprint(feature_space_of(plain), {}, plain)


@pytest.mark.parametrize("features", sorted(STORES, key=str), ids=str)
def test_a_printed_command_makes_the_store(features: Features) -> None:
    """By the parser of the command line, by what chooses the detector, and by what the store would record."""
    program, name, *words = shlex.split(features.commands[0])
    assert (program, name) == ("roibeam", "extract")
    given = EXTRACT.make_context("extract", words).params
    assert (given["boxes"] is not None) == bool(features.boxes) and given["photos"] is None
    if features.detector in PUBLISHED_SELECTIONS:
        assert given["detector"] == features.detector
        return
    names = {part: given[part] for part in ("preset", "conventions", "selection", "weights")}
    chosen = choose_detector(given["detector"], **names)
    regions = "given" if features.boxes else asdict(chosen.selection)
    details = {"detector": {"config": asdict(chosen.config), "conventions": asdict(chosen.conventions)}}
    details = json.loads(json.dumps({**details, "regions": regions}))
    assert features.note("r", "s", Fingerprint(feature_space_of(details), {}, details)) is None


def test_a_command_that_is_none_is_seen() -> None:
    with pytest.raises(Exception, match="there is no option --presets; did you mean --preset"):
        EXTRACT.make_context("extract", ["PHOTOS", "STORE", "--presets", "vl-bert"])


@pytest.mark.parametrize("name", ALL)
def test_a_recipe_names_what_it_reads(name: str) -> None:
    recipe = ALL[name]
    if name in TASK_RECIPES and not TASKS[recipe.task].reads_images:
        assert recipe.features is None
        return
    features, options = recipe.features, getattr(recipe, "options", None)
    if recipe.system == "vlbert":  # section 4.1: above 0.5; the tool's own is 0.2
        assert features.preset == "vl-bert" and features.selection in ("vl-bert", "")
    if getattr(recipe, "detector", ""):
        assert features.detector == recipe.detector
    if name not in TASK_RECIPES:
        assert not features.annotated
    elif recipe.task == "vcr":
        boxes, second = ("", "vcr") if options.boxes == "detected" else ("vcr", "")
        assert (features.boxes, features.annotated) == (boxes, second)
    elif recipe.task == "refcoco+":
        second = "refcoco+" if options.annotated_in_training and not recipe.end_to_end else ""
        assert features.boxes == {"annotated": "refcoco+", "detected": "mattnet"}[options.boxes]
        assert features.annotated == second
    else:
        assert (features.boxes, features.annotated) == ("", "")
        assert (features.image_feature == "region") == (recipe.layout.whole_image == "stored")
    most = SELECTIONS[features.selection].max_regions if features.selection else 0
    shown = getattr(options, "max_regions", 0) or getattr(getattr(recipe, "sampling", None), "max_regions", 0)
    assert not most or shown <= most


def test_given_boxes_have_no_selection() -> None:
    given = Features("vl-bert", boxes="vcr")
    assert (given.detector, given.selection) == ("vg-r101-c4-600", "")
    assert Features("vl-bert").selection == "vl-bert" and Features(detector="r2c-r50", boxes="coco").selection == ""


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"preset": "vlbert"}, "preset 'vlbert' is unknown; did you mean vl-bert"),
        ({}, "preset '' is unknown"),
        ({"detector": "r2c-r51"}, "detector 'r2c-r51' is unknown; did you mean r2c-r50"),
        ({"detector": "r2c-r50"}, "selection '' is unknown"),
        ({"preset": "vl-bert", "boxes": "vqa"}, "boxes 'vqa' is unknown"),
        ({"preset": "vl-bert", "selection": "butd"}, "selection 'butd' is unknown"),
    ],
)
def test_an_unknown_name_is_refused(fields: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Features(**fields)


REGIONS = asdict(SELECTIONS["vl-bert"])
OTHERS = asdict(SELECTIONS["butd-10-100"])


@pytest.mark.parametrize(
    ("conventions", "regions", "changes", "words"),
    [
        ("caffe", REGIONS, {}, None),
        ("caffe", OTHERS, {}, "10 to 100 regions (vl-bert), store s has 10 to 100 regions (butd-10-100)"),
        ("caffe", "given", {}, "10 to 100 regions (vl-bert), store s has given boxes"),
        ("milvlg", REGIONS, {}, "detector vg-r101-c4-600, store s has conventions milvlg, photos at 600/1000"),
        ("caffe", REGIONS, {"num_classes": 80}, "detector vg-r101-c4-600, store s has num_classes 80"),
    ],
)
def test_a_store_that_was_made_otherwise_is_noted(
    conventions: str, regions: Any, changes: dict[str, int], words: str | None
) -> None:
    note = Features("vl-bert").note("vlbert-base", "s", recorded("vg-r101-c4-600", conventions, regions, **changes))
    prints = "roibeam recipes vlbert-base prints how to extract"
    assert note == (words and f"recipe vlbert-base is of {words}; {prints}")
    assert Features("vl-bert").note("vlbert-base", "s", Fingerprint("imported:butd-tsv")) is None


def test_given_boxes_and_other_networks_are_noted() -> None:
    given, detectron2 = Features("vl-bert", boxes="vcr"), Features(detector="pythia-x152-fpn")
    assert given.note("r", "s", recorded("vg-r101-c4-600", "caffe", "given")) is None
    note = given.note("r", "s", recorded("vg-r101-c4-600", "caffe", REGIONS))
    assert note is not None and "is of VCR's own boxes, store s has 10 to 100 regions (vl-bert)" in note
    details = {"detector": {"config": {"MODEL": {}}, "conventions": {}}, "regions": "given"}
    theirs = Fingerprint(feature_space_of(details), {}, details)
    assert (given.note("r", "s", theirs) or "").count("a network of detectron2's") == 1
    assert "pythia" not in (detectron2.note("r", "s", theirs) or "")
    ours = recorded("vg-r101-c4-600", "caffe", asdict(SELECTIONS["maskrcnn-benchmark-100"]))
    assert "is of detector pythia-x152-fpn, store s has conventions caffe" in (detectron2.note("r", "s", ours) or "")
    # A run from photos makes features of its own: of the store it takes the boxes.
    assert detectron2.note("r", "s", ours, boxes_alone=True) is None


def test_boxes_and_their_files_are_named() -> None:
    assert all(words and file for words, file in GIVEN_BOXES.values())
    assert {each.boxes for each in STORES} == {"", *GIVEN_BOXES}


@pytest.mark.parametrize("features", [Features("vl-bert"), None])
def test_a_pretraining_run_notes_it(tmp_path: Path, features: Features | None) -> None:
    """Beside what the model that it starts from was trained on; a run without a recipe, or a toy, has none."""
    store = FakeStore(make_store())
    store.fingerprint = recorded("vg-r101-c4-600", "caffe", asdict(SELECTIONS["butd-10-100"]))
    told = [] if features is None else [features.note("vlbert-base", str(store.path), store.fingerprint)]
    assert run_pretrain(store, tmp_path / "run", recipe="vlbert-base", features=features).notes == told


def test_what_is_printed(roibeam: Callable[..., Any]) -> None:
    shown = roibeam("recipes", "vilbert-refcoco+-detected").out
    first = "  features   preset butd-10-100: MAttNet's detected boxes, and in a second store the annotated boxes"
    assert first in shown
    assert shown.count("\n    roibeam extract PHOTOS STORE --preset butd-10-100 --boxes ") == 2
    assert "  features   none: texts alone" in roibeam("recipes", "interbert-qnli").out
    from_photos = " ".join(roibeam("recipes", "vlbert-paper").out.split())
    assert "the run makes features of its own: the store's boxes are read" in from_photos
    listed = json.loads(roibeam("recipes", "--json").out)
    for name, recipe in ALL.items():
        plain = recipe.features and {**asdict(recipe.features), "commands": list(recipe.features.commands)}
        assert listed[name]["features"] == plain
