"""VCR on the loop: rows as the releases feed them, both problems in turn, regions of two stores, losses beside."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from captioned_records import FakeStore, make_record
from safetensors.torch import save_model
from task_groups import ASKED, SIZES, TINY, small_network

from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.model.inputs import IGNORE_INDEX
from roibeam.model.task_heads import REGION_CLASSES, WORDS, AuxiliaryTaskModel
from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES
from roibeam.pipelines.finetuning.rows import CHOICE
from roibeam.pipelines.finetuning.run.finetune_settings import FinetuneData
from roibeam.pipelines.finetuning.run.group_batches import GroupBatches
from roibeam.pipelines.finetuning.run.group_task import GroupTask, TurnsTask
from roibeam.pipelines.finetuning.run.losses import loss_named
from roibeam.pipelines.finetuning.run.network import TaskNetwork, read_network, started_network
from roibeam.pipelines.finetuning.run.task_data import StorePair, check_annotated
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.systems.options import LayoutOptions
from roibeam.pipelines.finetuning.systems.task_system import Pieces
from roibeam.pipelines.finetuning.task import AuxiliaryTargets, DownstreamTask
from roibeam.pipelines.finetuning.tasks import vcr, vcr_rules
from roibeam.pipelines.finetuning.tasks.vcr import VcrOptions, open_vcr
from roibeam.pipelines.finetuning.tasks.vcr_rules import NamesDrawn
from roibeam.pipelines.training.model_files.tokenizer import MADE_FROM_CAPTIONS, CaptionTokenizer, load_tokenizer
from roibeam.pipelines.training.run_folder.files import write_json

GOLDENS = Path(__file__).resolve().parents[1] / "goldens"
KINDS = ["person", "cup", "person", "dog"]


def questions(folder: Path, count: int = 3) -> Path:
    """Questions about four boxes each, of train and val."""
    for split in ("train", "val"):
        lines = [
            {
                "annot_id": f"{split}-{number}", "img_id": f"{split}-{number}", "img_fn": f"{split}{number}.jpg",
                "objects": KINDS, "question": ["what", "does", [0], "hold", "?"],
                "answer_choices": [[[1], "and", "more"], ["no", [3]], [[2], "waits"], ["nothing"]],
                "rationale_choices": [["it", "is", [place]] for place in range(4)],
                "answer_label": number % 4, "rationale_label": (number + 1) % 4,
            }
            for number in range(count)
        ]  # fmt: skip
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return folder


def words() -> CaptionTokenizer:
    text = "what does Casey hold ? cup and more no dog Riley waits nothing it is person Jessie"
    return load_tokenizer(MADE_FROM_CAPTIONS, [text] * 2)


def made_store(*, num_regions: int = 4, seed: int = 0) -> FeatureStore:
    names = [f"{split}{number}" for split in ("train", "val") for number in range(3)]
    return store_of({name: (seed + place, num_regions) for place, name in enumerate(names)})


def store_of(images: dict[str, tuple[int, int]]) -> FeatureStore:
    """Records of images by name: the seed and the number of regions of each."""
    made = {name: make_record(name, seed, num_regions=n, distribution="none") for name, (seed, n) in images.items()}
    return cast(FeatureStore, FakeStore(made))


def network_for(
    system: str,
    tokenizer: CaptionTokenizer,
    width: int,
    *,
    positions: int = 64,
    beside: AuxiliaryTargets | None = None,
    head: str = "ours",
    told: int = 0,
) -> TaskNetwork:
    torch.manual_seed(0)
    named: Any = SYSTEMS[system]
    fields = {**TINY, **SIZES.get(system, {}), "max_position_embeddings": positions}
    config = named.sizes["small"](vocab_size=tokenizer.vocab_size, region_feature_size=width, **fields)
    network = started_network(
        named, named.model_class(config), ASKED[CHOICE], head, source="a test", beside=beside, num_input_classes=told
    )
    network.module.eval()
    return network


def batches_of(
    system: str, task: DownstreamTask, store: Any, tokenizer: CaptionTokenizer, network: TaskNetwork,
    layout: LayoutOptions | None = None,
) -> GroupBatches:  # fmt: skip
    return GroupBatches(
        SYSTEMS[system], network.encoder_config, tokenizer, layout or LayoutOptions(), ASKED[CHOICE], store,
        loss=loss_named(CHOICE, task.loss), task=task,
    )  # fmt: skip


# --- rows as the releases feed them ---


class Golden:
    """Files and arrays of a case, and the names that the release drew."""

    def __init__(self, case: str, folder: Path, mode: str) -> None:
        self.arrays = np.load(GOLDENS / f"{case}.npz")
        self.config = json.loads(str(self.arrays["config"]))
        self.mode = mode
        content = next(name for name in self.arrays.files if name.startswith("file/") and name.endswith(".jsonl"))
        self.lines = _bytes(self.arrays[content])
        (folder / "train.jsonl").write_bytes(self.lines)
        (folder / "vocab.txt").write_bytes(_bytes(self.arrays["file/vocab.txt"]))
        self.tokenizer = load_tokenizer(str(folder / "vocab.txt"))

    def out(self, item: int, leaf: str) -> np.ndarray:
        return np.asarray(self.arrays[f"out/{self.mode}.{item}.{leaf}"])

    def store(self, kind: str) -> FeatureStore:
        """By the names that the questions have for their images."""
        found: dict[str, RegionRecord] = {}
        for line in self.lines.splitlines():
            row = json.loads(line)
            for name in (row["img_fn"], row["img_id"].rpartition("-")[2]):
                if f"{kind}/{name}.boxes" in self.arrays.files:
                    found[row["img_fn"].rpartition(".")[0]] = self._record(f"{kind}/{name}", row["img_fn"])
        return cast(FeatureStore, FakeStore(found))

    def _record(self, name: str, image: str) -> RegionRecord:
        boxes = self.arrays[f"{name}.boxes"].astype(np.float32)
        wide, high = self.arrays[f"{name}.size_wh"].tolist()
        nothing = np.zeros(len(boxes))
        return RegionRecord(
            image_id=image, height=int(high), width=int(wide), boxes=np.clip(boxes, 0, [wide, high] * 2).astype("f4"),
            features=self.arrays[f"{name}.features"].astype(np.float32),
            class_ids=nothing.astype(np.uint16), class_scores=nothing.astype(np.float32),
        )  # fmt: skip


def _bytes(array: np.ndarray) -> bytes:
    return str(array).encode() if array.dtype.kind in "US" else array.tobytes()


@pytest.mark.parametrize(
    ("case", "mode", "options"),
    [
        ("data_vcr_first", "QA", {"truncation": "running"}),
        ("data_vcr_first", "QAR", {"truncation": "running", "problem": "rationale"}),
        ("data_vcr_multitask", "QAR", {"truncation": "choice-end", "pieces_twice": True, "problem": "rationale"}),
    ],
)
def test_both_releases_of_vilbert_are_fed_so(
    case: str, mode: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces, segments, regions of two stores and the weighted whole image, as the batch has them."""
    golden = Golden(f"finetune_vilbert/{case}", tmp_path, mode)
    drawn = json.loads(str(golden.arrays[f"out/{mode}.names_drawn"]))
    monkeypatch.setattr(vcr, "name_rule", lambda *given, **more: NamesDrawn(iter(drawn)))
    # Its stores have other boxes than its questions.
    monkeypatch.setattr(vcr_rules, "_check_boxes", lambda *given: None)
    most, num_regions = golden.config["max_seq_length"], golden.config["max_region_num"]
    own = VcrOptions(names="drawn", boxes="detected", max_boxes=num_regions, max_pieces=most - 3, **options)
    task = open_vcr(tmp_path, own, None)
    groups = task.read("train").groups
    pair = StorePair(golden.store("image"), golden.store("gt_image"))
    network = network_for("vilbert", golden.tokenizer, golden.store("image")[groups[0].images[0]].features.shape[1])
    layout = LayoutOptions(whole_image="all")
    batch = batches_of("vilbert", task, pair, golden.tokenizer, network, layout).batch(groups).inputs.without_sharing()
    for number in range(len(groups)):
        rows = slice(4 * number, 4 * number + 4)
        real = batch.text_mask[rows].numpy()
        for leaf, ours in (("text", batch.text_ids), ("segment_ids", batch.text_segments)):
            own_rows, theirs = ours[rows].numpy() * real, golden.out(number, leaf)
            np.testing.assert_array_equal(own_rows, theirs[:, : own_rows.shape[1]])
            assert not theirs[:, own_rows.shape[1] :].any()
        assert batch.whole_image_features is not None
        shown = np.concatenate([batch.whole_image_features[rows][:1], batch.region_features[rows][0]])
        padded = np.zeros((num_regions, 8), np.float32)
        padded[: len(shown)] = shown[:num_regions, :8]
        np.testing.assert_allclose(padded, golden.out(number, "features_first8"), rtol=1e-5, atol=1e-6)
        count = int(batch.region_mask[4 * number].sum()) + 1
        assert count == int(golden.out(number, "image_mask").sum())


@pytest.mark.parametrize("mode", ["answer", "rationale"])
def test_visualbert_is_fed_so(mode: str, tmp_path: Path) -> None:
    """Names that are restarted, the front of a long choice lost, no [SEP] between question and answer."""
    golden = Golden("finetune_visualbert/data_vcr", tmp_path, mode)
    most = golden.config["max_seq_length"]
    own = VcrOptions(problem=mode, names="restarted", truncation="choice-front", max_pieces=most - 3, boxes="named")
    task = open_vcr(tmp_path, own, None)
    groups = task.read("train").groups
    store = store_of({name: (0, len(group.facts["objects"])) for group in groups for name in group.images})
    network = network_for("visualbert", golden.tokenizer, 48)
    batch = batches_of("visualbert", task, store, golden.tokenizer, network).batch(groups).inputs.without_sharing()
    for row in range(len(batch.text_ids)):
        item = f"out/{mode}.{row // 4}.{row % 4}"
        length = int(batch.text_mask[row].sum())
        assert batch.text_ids[row, :length].tolist() == golden.arrays[f"{item}.input_ids"].tolist()
        assert batch.text_segments[row, :length].tolist() == golden.arrays[f"{item}.input_type_ids"].tolist()


@pytest.mark.parametrize("mode", ["Q2A", "QA2R"])
def test_vl_bert_is_fed_so(mode: str, tmp_path: Path) -> None:
    """Names in turn, "and" between objects, one question shortened for all; a name carries the tag of its box."""
    golden = Golden("finetune_vlbert/data_vcr", tmp_path, mode)
    people = tmp_path / "people.csv"
    people.write_text("\n".join(["name", *golden.config["names_cycle"]]) + "\n", "utf-8")
    problem = {"Q2A": "answer", "QA2R": "rationale"}[mode]
    own = VcrOptions(
        problem=problem, names="in-turn", people=str(people), joining="and", truncation="shared",
        max_pieces=golden.config["seq_len"], cut_untold=False, loss="sigmoid",
    )  # fmt: skip
    task = open_vcr(tmp_path, own, None)
    groups = task.read("train").groups
    store = store_of({name: (0, len(group.facts["objects"])) for group in groups for name in group.images})
    network = network_for("vlbert", golden.tokenizer, 48, positions=80)
    batch = batches_of("vlbert", task, store, golden.tokenizer, network).batch(groups).inputs.without_sharing()
    special = {"[CLS]": golden.tokenizer.cls_id, "[SEP]": golden.tokenizer.sep_id}
    for row in range(len(batch.text_ids)):
        context = golden.out(row // 4, "question")
        choice = golden.out(row // 4, f"{problem}_choices.{row % 4}")
        nothing = np.zeros(3, np.int64)
        rows = [nothing + special["[CLS]"], *context, nothing + special["[SEP]"], *choice, nothing + special["[SEP]"]]
        length = int(batch.text_mask[row].sum())
        assert batch.text_ids[row, :length].tolist() == [int(each[0]) for each in rows]
        assert batch.text_segments[row, :length].tolist() == [0] * (len(context) + 2) + [1] * (len(choice) + 1)
        assert batch.aligned_words is not None
        for box, words_of in enumerate(batch.aligned_words[row].tolist()):
            named = [place for place, each in enumerate(rows) if each[1] == box + 1]
            tagged = [place for place in named if rows[place][0] not in special.values()]
            assert [place for place in words_of if place >= 0] == tagged


# --- two stores ---


def test_words_name_the_box_behind_the_detected_regions(tmp_path: Path) -> None:
    """VisualBERT and VL-BERT are told which region a word names: the annotated one, wherever it stands."""
    options = VcrOptions(boxes="detected", max_boxes=7)
    task = open_vcr(questions(tmp_path), options, None)
    pair = StorePair(made_store(num_regions=5, seed=50), made_store())
    tokenizer = words()
    network = network_for("visualbert", tokenizer, 48)
    batch = batches_of("visualbert", task, pair, tokenizer, network).batch(task.read("train").groups[:1]).inputs
    assert batch.region_mask.sum(dim=1).tolist()[0] == 6  # two detected, four annotated, and room for the whole image
    assert batch.aligned_words is not None
    named = batch.aligned_words[0].max(dim=1).values
    assert (named[:2] == -1).all() and named[2] > 0 and named[3] > 0  # boxes 0 and 1 stand at 2 and 3
    annotated = torch.from_numpy(made_store()["train0"].features)
    torch.testing.assert_close(batch.region_features[0, 2:], annotated, rtol=0, atol=0)


def test_two_stores_that_do_not_go_with_the_task_or_one_another_are_told(tmp_path: Path) -> None:
    detected, one = (open_vcr(questions(tmp_path), VcrOptions(**boxes), None) for boxes in ({"boxes": "detected"}, {}))
    for task, second, from_photos, words in (
        (detected, None, False, "--annotated-store is missing"),
        (one, "a store", False, "reads one store"),
        (detected, None, True, "takes regions of two stores, and photos are cut by the boxes of one"),
    ):
        with pytest.raises(ValueError, match=words):
            check_annotated(task, second, from_photos=from_photos)
    check_annotated(one, None, from_photos=True)
    small, other = made_store(num_regions=5), made_store()
    small["train0"] = replace(small["train0"], height=900)  # type: ignore[index]
    with pytest.raises(ValueError, match=r"450 x 400 pixels, that of --store of 450 x 900"):
        StorePair(small, made_store()).annotated("train0", small["train0"])
    other.fingerprint = replace(other.fingerprint, feature_space="imported:other")  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="--annotated-store fake-store has other features than --store"):
        StorePair(made_store(), other)


def test_a_record_of_other_boxes_is_told(tmp_path: Path) -> None:
    task = open_vcr(questions(tmp_path), VcrOptions(), None)
    tokenizer = words()
    made = batches_of("vilbert", task, made_store(num_regions=3), tokenizer, network_for("vilbert", tokenizer, 48))
    with pytest.raises(ValueError, match="train-0: record 'train0' has 3 regions, VCR names 4 boxes"):
        made.batch(task.read("train").groups)


def test_texts_are_cut_once(tmp_path: Path) -> None:
    task = open_vcr(questions(tmp_path), VcrOptions(max_pieces=70), None)
    tokenizer = words()
    network = network_for("vilbert", tokenizer, 48)
    with pytest.raises(ValueError, match="set 61 or fewer"):
        batches_of("vilbert", task, made_store(), tokenizer, network)
    task = open_vcr(questions(tmp_path), VcrOptions(max_pieces=20), None)
    with pytest.raises(ValueError, match="cuts the texts itself; leave that at 0, or at 23 and more"):
        batches_of("vilbert", task, made_store(), tokenizer, network, LayoutOptions(max_pieces=20))


@pytest.mark.parametrize("name", [name for name, recipe in TASK_RECIPES.items() if recipe.task == "vcr"])
def test_the_texts_of_every_recipe_can_be_laid_out(name: str, tmp_path: Path) -> None:
    """Rows are cut by the task alone: the layout's length is that of the longest of them."""
    recipe, tokenizer = TASK_RECIPES[name], words()
    task = open_vcr(questions(tmp_path), recipe.options, None)
    stores = made_store() if task.joined is None else StorePair(made_store(), made_store())
    network = network_for(recipe.system, tokenizer, 48, positions=128)
    made = batches_of(recipe.system, task, stores, tokenizer, network, recipe.layout)
    assert made.batch(task.read("train").groups).inputs.text_ids.shape[1] <= task.max_pieces + 3


@pytest.mark.parametrize(("system", "cut", "most"), [("visualbert", "choice-front", 8), ("vlbert", "shared", 5)])
def test_words_that_name_a_box_and_are_cut_are_counted(system: str, cut: str, most: int, tmp_path: Path) -> None:
    """A box whose word is gone is told to the model by no position; ViLBERT is told of none."""
    options = VcrOptions(problem="rationale", max_pieces=most, truncation=cut)
    task, tokenizer = open_vcr(questions(tmp_path), options, None), words()
    assert task.pieces is not None
    named = left = 0
    for group in task.read("train").groups:
        named += sum(tag >= 0 for row in group.rows for part in row.parts for tag in part.tags)
        for part in (part for row in task.pieces(group, Pieces(tokenizer).coder, None) for part in row):
            left += len({int(word) for word, tag in zip(part.words, part.tags, strict=True) if tag >= 0})
    made = batches_of(system, task, made_store(), tokenizer, network_for(system, tokenizer, 48))
    _, note = made.notes_of_cuts(task.read("train").groups, "training")
    assert named > left > 0 and note.startswith(f"{named - left} training words that name a box cut")
    task = open_vcr(tmp_path, replace(options, truncation="each-row"), None)
    made = batches_of("vilbert", task, made_store(), tokenizer, network_for("vilbert", tokenizer, 48))
    assert len(made.notes_of_cuts(task.read("train").groups, "training")) == 1


def test_answers_and_rationales_have_lengths_of_their_own(tmp_path: Path) -> None:
    """As one model learns both in the releases of ViLBERT: 60 pieces and 80."""
    options = VcrOptions(problem="both", max_pieces=5, rationale_pieces=8, truncation="running")
    task, coder = open_vcr(questions(tmp_path), options, None), Pieces(words()).coder
    assert task.pieces is not None and task.max_pieces == 8
    longest = {}
    for group in task.read("train").groups:
        rows = task.pieces(group, coder, None)
        longest[group.facts["problem"]] = max(sum(len(part.ids) for part in row) for row in rows)
    assert longest == {"answer": 5, "rationale": 8}
    with pytest.raises(ValueError, match="rationale_pieces is of rationales beside answers"):
        open_vcr(tmp_path, replace(options, problem="answer"), None)


# --- losses beside ---


def learning(system: str, folder: Path, *, head: str = "ours", **options: Any) -> GroupTask:
    names = folder / "names.txt"
    names.write_text("person\ncup\ndog\n", "utf-8")
    task = open_vcr(questions(folder), VcrOptions(object_names=str(names), **options), None)
    tokenizer = words()
    network = network_for(system, tokenizer, 48, beside=task.beside, head=head)
    made = batches_of(system, task, made_store(), tokenizer, network)
    groups, loss = task.read("train").groups, loss_named(CHOICE, task.loss)
    return GroupTask(network, made, task, ASKED[CHOICE], loss, groups, (), FinetuneData(batch_size=3), seed=1)


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_is_learned_beside_is_counted_before_the_model_runs(system: str, tmp_path: Path) -> None:
    """So that micro-batches and processes divide by one sum; every head gets a gradient."""
    task = learning(system, tmp_path, object_loss="shown", hidden_words=0.4, object_loss_weight=0.5)
    batch = next(task.batches(0, rank=0, num_ranks=1))
    output = task.losses(task.model, batch)
    assert {name: int(term.count) for name, term in output.losses.items()} == dict(task.counts(batch))
    whole = 12 if system == "vlbert" else 0  # its release asks it of the whole image too
    assert task.counts(batch)[REGION_CLASSES] == 12 * 4 + whole and task.counts(batch)[WORDS] > 0
    sum(term.total for term in output.losses.values()).backward()  # type: ignore[union-attr]
    trained = [each for group in task.parameter_groups() for each in group["params"]]
    heads = {id(each) for each in cast(Any, task.model).region_class_head.parameters()}
    heads |= {id(each) for each in cast(Any, task.model).model.masked_word_head.parameters()}
    assert heads <= {id(each) for each in trained}
    assert all(each.grad is not None for each in trained if id(each) in heads)


@pytest.mark.parametrize("loss", ["shown", "masked"])
def test_the_head_of_vl_berts_release_learns_classes_too(loss: str, tmp_path: Path) -> None:
    """Its choices start from the pre-trained model, the answer's segment as the question's; its counts are known."""
    task = learning("vlbert", tmp_path, head="release", object_loss=loss, hidden_boxes=0.5)
    batch = next(task.batches(0, rank=0, num_ranks=1))
    output = task.losses(task.model, batch)
    assert {name: int(term.count) for name, term in output.losses.items()} == dict(task.counts(batch))
    asked = int(cast(torch.Tensor, batch.inputs.region_target_mask).sum())
    assert task.counts(batch)[REGION_CLASSES] == asked + (12 if loss == "shown" else 0) > 0
    segments = task.model.vlbert.embeddings.segments.weight  # type: ignore[union-attr]
    assert torch.equal(segments[0], segments[1])


@pytest.mark.parametrize("system", ["vlbert", "vilbert", "visualbert", "interbert"])
def test_choices_by_the_head_of_a_release_are_read_again(system: str, tmp_path: Path) -> None:
    """As a checkpoint of a run is read for predictions."""
    task = learning(system, tmp_path, head="release")
    batch = next(task.batches(0, rank=0, num_ranks=1))
    scores = task.model(batch.inputs)
    assert scores.shape == (12, 1) and scores.std() > 0
    save_model(task.model, str(tmp_path / "model.safetensors"), metadata={"format": "pt"})
    write_json(tmp_path / "config.json", task.model_config())
    again = read_network(tmp_path, SYSTEMS[system], ASKED[CHOICE]).module
    torch.testing.assert_close(again(batch.inputs), scores, rtol=0, atol=0)


def test_all_shown_boxes_have_their_classes_and_the_loss_beside_its_weight(tmp_path: Path) -> None:
    totals = []
    for weight in (1.0, 0.25):
        task = learning("vlbert", tmp_path, object_loss="shown", object_loss_weight=weight)
        batch = next(task.batches(0, rank=0, num_ranks=1))
        totals.append(float(task.losses(task.model, batch).losses[REGION_CLASSES].total.detach()))
        inputs = batch.inputs
        assert inputs.region_target_mask is not None and not inputs.masked_regions.any()
        classes = inputs.targets_of(inputs.region_target_mask).argmax(dim=1).reshape(-1, 4)
        assert classes[0].tolist() == [1, 2, 1, 3]  # person, cup, person, dog; 0 is the whole image
    assert totals[1] == pytest.approx(totals[0] / 4)


def test_hidden_boxes_are_not_seen_and_follow_from_seed_epoch_and_question(tmp_path: Path) -> None:
    """What stands in a hidden box changes neither scores nor losses; the other boxes' does."""
    task = learning("vilbert", tmp_path, object_loss="masked", hidden_boxes=0.5)
    batch = next(task.batches(0, rank=0, num_ranks=1))
    again = next(task.batches(0, rank=0, num_ranks=1))
    hidden = batch.inputs.masked_regions
    assert hidden.any() and torch.equal(hidden, again.inputs.masked_regions)
    assert not torch.equal(hidden, next(task.batches(3, rank=0, num_ranks=1)).inputs.masked_regions)
    assert torch.equal(batch.inputs.images_to_rows(hidden), cast(Any, batch.inputs.region_target_mask))

    def losses(features: torch.Tensor) -> list[float]:
        changed = replace(batch, inputs=replace(batch.inputs, region_features=features))
        with torch.no_grad():
            return [float(term.total) for term in task.losses(task.model, changed).losses.values()]

    features = batch.inputs.region_features
    assert losses(torch.where(hidden[..., None], features + 1, features)) == pytest.approx(losses(features), abs=1e-6)
    assert losses(features + 1) != pytest.approx(losses(features), abs=1e-6)


def test_hidden_words_are_whole_and_only_hidden_in_training(tmp_path: Path) -> None:
    task = learning("vilbert", tmp_path, hidden_words=0.5)
    batch = next(task.batches(0, rank=0, num_ranks=1)).inputs
    assert batch.text_labels is not None and bool((batch.text_labels != IGNORE_INDEX).any())
    labelled = batch.text_labels != IGNORE_INDEX
    mask = words().mask_id
    assert (batch.text_ids[labelled] == mask).float().mean() > 0.5
    assert not (batch.text_ids[~labelled] == mask).any()
    whole = cast(Any, task)._batches.batch(cast(Any, task)._train)  # as predictions are made
    assert not (whole.inputs.text_ids == mask).any()


def test_a_model_without_what_is_asked_beside_is_told(tmp_path: Path) -> None:
    network = small_network("vlbert", CHOICE)
    module = cast(Any, network.module)
    module.model.masked_word_head = None
    with pytest.raises(ValueError, match="has no head for hidden words"):
        AuxiliaryTaskModel(module.model, module.head, with_words=True)
    for system, said in (("vilbert", "learns nothing beside"), ("vlbert", "learns none; set head.kind to 'ours'")):
        model = cast(Any, small_network(system, CHOICE).module).model
        with pytest.raises(ValueError, match=said):
            beside = AuxiliaryTargets(hidden_words=0.1)
            started_network(SYSTEMS[system], model, ASKED[CHOICE], "release", source="", beside=beside)


def test_both_problems_in_turn_have_orders_of_their_own(tmp_path: Path) -> None:
    """And one model is judged by both."""
    task = open_vcr(questions(tmp_path), VcrOptions(problem="both"), None)
    tokenizer = words()
    network = network_for("vilbert", tokenizer, 48)
    made = batches_of("vilbert", task, made_store(), tokenizer, network)
    loss, options = loss_named(CHOICE, task.loss), FinetuneData(batch_size=2)
    assert task.turns is not None
    problems: dict[str, GroupTask] = {}
    for number, name in enumerate(("answer", "rationale")):
        groups = [group for group in task.read("train").groups if task.turns(group) == name]
        judged = task.read("val").groups if not number else ()
        problems[name] = GroupTask(network, made, task, ASKED[CHOICE], loss, groups, judged, options, seed=(1, number))
    both = TurnsTask(problems, "step", task.loss_scales)
    stream: Iterator[Any] = both.batches(0, rank=0, num_ranks=1)
    turns = [next(stream) for _ in range(12)]
    assert [each.task for each in turns[:4]] == ["answer", "rationale", "answer", "rationale"]
    orders = {name: [each.batch.ids for each in turns if each.task == name] for name in problems}
    assert orders["answer"] != orders["rationale"]
    assert sorted(name for ids in orders["answer"][:3] for name in ids) == sorted([f"train-{n}" for n in range(3)] * 2)
    assert list(both.evaluate()) == ["Q->AR", "Q->A", "QA->R"]
