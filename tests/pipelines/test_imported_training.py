"""Feature files of other code bases, imported, and trained on: no layout leaves a system without anything to do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tiny_commands import TINY_SIZES

sys.path.append(str(Path(__file__).parents[1] / "features"))
from exchange_examples import measured

from roibeam.features.exchange.formats import FORMATS, format_named
from roibeam.features.record.fingerprint import has_classes
from roibeam.features.store import FeatureStore
from roibeam.pipelines.extract.stores.store_import import import_features
from roibeam.pipelines.pretraining.request import PretrainRequest, RequestedData, RequestedModel, RequestedTraining
from roibeam.pipelines.pretraining.requested_run import run_pretraining
from roibeam.pipelines.pretraining.run_setup import PretrainResult
from roibeam.pipelines.pretraining.systems import SYSTEMS

pytestmark = pytest.mark.usefixtures("one_thread")
NUM_CLASSES = 6  # of `measured`
LAYOUTS = [(name, layout) for name in FORMATS for layout in format_named(name).layouts]
_IMAGE = ("image_num_attention_heads=2", "image_intermediate_size=64")
_SETTINGS: dict[str, tuple[str, ...]] = {
    "vlbert": ("coordinate_embedding_size=32",),
    "vilbert": (
        *_IMAGE, "image_hidden_size=32", "image_num_hidden_layers=1", "text_co_attention=[0]", "image_co_attention=[0]",
        "co_attention_size=32", "co_attention_num_heads=2",
    ),
    "interbert": (*_IMAGE, "text_num_hidden_layers=1", "image_num_hidden_layers=1", "pooled_size=32"),
}  # fmt: skip


class Imported(NamedTuple):
    stores: dict[tuple[str, str], Path]
    captions: Path


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Imported:
    """A store of every layout, and captions of its images."""
    folder = tmp_path_factory.mktemp("imported")
    records = [measured(f"image{number}", 4, seed=9 * number) for number in range(4)]
    stores = {}
    for name, layout in LAYOUTS:
        found = format_named(name)
        file = folder / f"{name}-{layout}{found.suffixes[0] if found.suffixes else ''}"
        found.write(records, file, layout=layout)
        stores[name, layout] = folder / f"{name}-{layout}-store"
        import_features(file, stores[name, layout])
    rows = [f"a {colour} dog\t{record.image_id}.jpg\n" for record in records for colour in ("red", "blue")]
    (folder / "captions.tsv").write_text("".join(rows))
    return Imported(stores, folder / "captions.tsv")


def trained(
    imported: Imported, layout: tuple[str, str], run: Path, system: str, *settings: str, **data: Any
) -> PretrainResult:
    """Two steps of a small model."""
    sizes = [each for each in TINY_SIZES if each != "--set"] + [f"model.{each}" for each in _SETTINGS.get(system, ())]
    read = RequestedData(store=[str(imported.stores[layout])], captions=[str(imported.captions)], **data)
    settings = ("train.checkpoint_every=2", *sizes, *settings)
    training = RequestedTraining(steps=2, batch_size=4, device="cpu", set=[*settings])
    return run_pretraining(PretrainRequest(run, read, RequestedModel(system=system), training))


def check_two_steps(imported: Imported, layout: tuple[str, str], system: str, run: Path) -> None:
    """Masked regions are predicted by class exactly where the file has classes, and their number is known or given."""
    with FeatureStore(imported.stores[layout]) as store:
        with_ids = has_classes(store.fingerprint)
        distribution = next(iter(store)).class_distribution
    predicts = SYSTEMS[system].class_objective is not None
    given = NUM_CLASSES if predicts and with_ids and distribution is None else None
    result = trained(imported, layout, run, system, num_classes=given)
    assert result.training.step == 2 and "masked_words" in result.evaluation
    assert ("masked_regions" in result.evaluation) == (predicts and with_ids)
    assert ("masked_region_features" in result.evaluation) == (system == "imagebert")
    assert result.num_classes == (NUM_CLASSES if predicts and with_ids else 0)
    off = [note for note in result.notes if "predicts no classes of masked regions" in note]
    assert len(off) == (predicts and not with_ids)
    assert all(note in json.loads((run / "config.json").read_text())["recorded"]["notes"] for note in off)


@pytest.mark.parametrize("number", range(len(LAYOUTS)), ids=["-".join(layout) for layout in LAYOUTS])
def test_every_layout_trains_with_one_of_the_systems(imported: Imported, tmp_path: Path, number: int) -> None:
    """Guards that what any reader gives can be trained on; all systems come, each with some layouts."""
    assert len(LAYOUTS) >= len(SYSTEMS)
    check_two_steps(imported, LAYOUTS[number], list(SYSTEMS)[number % len(SYSTEMS)], tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_every_layout_trains_with_every_system(
    imported: Imported, tmp_path: Path, layout: tuple[str, str], system: str
) -> None:
    check_two_steps(imported, layout, system, tmp_path / "run")
