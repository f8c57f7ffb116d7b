"""Which of a system's objectives a run has, by what its stores tell of the classes of regions."""

from pathlib import Path
from typing import Any

import pytest
from captioned_records import CAPTIONS, NUM_CLASSES, TINY, FakeStore, captioned, make_record, pretrain_with

from roibeam.features.record.fingerprint import imported_fingerprint
from roibeam.pipelines.data.vocabulary import StoreClasses
from roibeam.pipelines.pretraining.systems import SYSTEMS, ModelChoice
from roibeam.pipelines.training.model_files.model_checkpoint import load_model
from roibeam.pipelines.training.train_config import TrainConfig

pytestmark = pytest.mark.usefixtures("one_thread")
UNKNOWN = StoreClasses(None, True, "store s does not record the number of classes of its detector", "say it")
NO_IDS = StoreClasses(None, False, "store s has no class ids", "import another file")


def imported(classes: str = "objects_id", **details: Any) -> FakeStore:
    """Two records without distributions or names."""
    records = {f"image-{number}": make_record(f"image-{number}", number, distribution="none") for number in range(2)}
    store = FakeStore(records)
    store.vocabulary = {"classes": None, "attributes": None}
    store.fingerprint = imported_fingerprint("butd-tsv", {"classes": classes, "attributes": "absent", **details})
    return store


def told(*stores: FakeStore, given: int | None = None) -> StoreClasses:
    return StoreClasses.of([(store, store["image-0"]) for store in stores], given)


def choice(system: str, **overrides: Any) -> ModelChoice:
    return ModelChoice(system=SYSTEMS[system], overrides=overrides)


def test_what_stores_and_user_tell_of_classes() -> None:
    assert told(imported(num_classes=9)).number == 9
    assert told(imported(), imported(num_classes=9)).number == 9
    assert told(imported(), given=9) == told(imported(num_classes=9), given=9) == StoreClasses(9)
    unknown, without = told(imported()), told(imported(num_classes=9), imported("absent"))
    assert (unknown.number, unknown.has_ids) == (None, True) and "--num-classes" in unknown.remedy
    assert (without.number, without.has_ids) == (None, False) and "its butd-tsv file had none" in without.missing


@pytest.mark.parametrize(
    ("stores", "given", "words"),
    [
        ((imported(num_classes=9),), 8, "of a detector of 9 classes, --num-classes says 8; leave the option out"),
        ((imported(num_classes=9), imported(num_classes=7)), None, "of one of 9; train on stores of one detector"),
        ((imported("absent"),), 9, r"--num-classes 9: store .* has no class ids \(its butd-tsv file had none\); leave"),
    ],
)
def test_classes_that_differ_are_one_line(stores: tuple[FakeStore, ...], given: int | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        told(*stores, given=given)


@pytest.mark.parametrize("classes", [UNKNOWN, NO_IDS])
@pytest.mark.parametrize("system", [name for name, each in SYSTEMS.items() if each.class_objective is not None])
def test_without_classes_their_objective_is_off_and_asking_for_it_an_error(system: str, classes: StoreClasses) -> None:
    objective = SYSTEMS[system].class_objective
    assert objective is not None
    found = choice(system).class_choice(classes, width=8, given=None)
    assert (found.number, found.fields) == (0, {objective.field: objective.off})
    assert classes.missing in found.note and classes.remedy in found.note
    for field in (objective.field, objective.labels, *objective.read_with_it):
        asking = choice(system, **{field: objective.on if field == objective.field else 7})
        with pytest.raises(ValueError, match=rf"--set model.{field}=.*{classes.missing}.* or leave the setting out"):
            asking.class_choice(classes, width=8, given=None)
    known = choice(system).class_choice(StoreClasses(5), width=8, given=5)
    assert (known.number, known.note) == (5, "") and set(known.fields) == {objective.labels}
    switched_off = choice(system, **{objective.field: objective.off})
    assert switched_off.class_choice(classes, width=8, given=None).note == ""
    with pytest.raises(ValueError, match=rf"predicts no classes of regions \(model.{objective.field}=.*leave"):
        switched_off.class_choice(StoreClasses(5), width=8, given=5)


def test_features_need_no_classes_and_have_the_width_of_the_store() -> None:
    for system, loss in (("vilbert", "regression"), ("vilbert", "contrastive"), ("interbert", "regression")):
        for classes in (UNKNOWN, NO_IDS, StoreClasses(5)):
            found = choice(system, region_loss=loss).class_choice(classes, width=8, given=None)
            assert (found.fields, found.note) == ({"region_target_size": 8}, "")
    with pytest.raises(ValueError, match="this VisualBERT predicts no classes of regions; leave the option out"):
        choice("visualbert").class_choice(UNKNOWN, width=8, given=5)


def test_a_later_stage_counts_as_the_earlier_one_and_drops_what_it_cannot_learn(tmp_path: Path) -> None:
    settings = {"train_config": TrainConfig(steps=1, device="cpu"), "model_overrides": TINY}
    rows = [(f"image-{number}", CAPTIONS[number]) for number in range(2)]
    first = pretrain_with([captioned(imported(), rows)], tmp_path / "one", num_classes=NUM_CLASSES, **settings)
    alone = ["fake-store has no probabilities of all classes: the loss trains on each region's best class"]
    assert first.evaluation["masked_regions"] is not None and first.notes == alone
    start = load_model(str(tmp_path / "one"))
    goes_on = dict(settings, start=start, tokenizer_spec=str(start.tokenizer), model_overrides={})
    second = pretrain_with([captioned(imported(), rows)], tmp_path / "two", **goes_on)
    assert second.num_classes == NUM_CLASSES and "taken for the 20 that" in second.notes[0]
    third = pretrain_with([captioned(imported("absent"), rows)], tmp_path / "three", **goes_on)
    assert third.num_classes == 0 and "masked_regions" not in third.evaluation
    without = load_model(str(tmp_path / "three"))
    assert without.model.masked_region_head is None
    told_how = ModelChoice(start=without).class_choice(StoreClasses(NUM_CLASSES), width=8, given=None).note
    assert "--set model.with_region_head=true --set model.num_region_labels=21 adds that" in told_how
    again = dict(goes_on, start=without, model_overrides={"with_region_head": True, "num_region_labels": 21})
    fourth = pretrain_with([captioned(imported(), rows)], tmp_path / "four", num_classes=NUM_CLASSES, **again)
    assert fourth.evaluation["masked_regions"] is not None and fourth.notes == alone
