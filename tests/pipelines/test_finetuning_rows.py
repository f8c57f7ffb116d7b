"""How the systems lay a task's rows out, and that what stands beside a group in a batch changes nothing for it."""

import ast
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from house import PACKAGE
from small_pretraining import in_floats_of
from task_groups import ASKED, WHOLE, batches, groups, small_network, store, tokenizer

from roibeam.pipelines.finetuning.rows import CHOICE, LABEL, REGION, TaskGroup, TaskRow, TaskText
from roibeam.pipelines.finetuning.run.group_task import predicted, scores_of
from roibeam.pipelines.finetuning.run.losses import loss_named, real_scores, scored_boxes
from roibeam.pipelines.finetuning.run.network import TaskNetwork, started_network
from roibeam.pipelines.finetuning.run.task_data import StoreImages
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.systems.options import LayoutOptions
from roibeam.pipelines.finetuning.systems.task_system import Pieces, lay_out

KINDS = (LABEL, CHOICE, REGION, "pair")
# One form of each system, all forms of VL-BERT; the others are slow.
FEW = {("vlbert", kind) for kind in KINDS} | set(
    zip(SYSTEMS, (LABEL, REGION, LABEL, "pair", REGION, CHOICE), strict=True)
)
ALL = [pytest.param(*case, marks=[] if case in FEW else pytest.mark.slow) for case in itertools.product(SYSTEMS, KINDS)]


def shown_text(system: str, form: str, parts: list[str], *, num_images: int = 1) -> tuple[str, list[int]]:
    """Pieces of a row as words, and their segments."""
    spans = SYSTEMS[system].text(Pieces(tokenizer()), [TaskText((part,)) for part in parts], form, num_images)
    text = lay_out(spans, 64, "longest")
    return " ".join(tokenizer().piece(int(piece)) for piece in text.ids), text.segments.tolist()


@pytest.mark.parametrize(
    ("system", "form", "parts", "text", "segments"),
    [
        ("vlbert", LABEL, ["a tree ?"], "[CLS] a tree ? [SEP] [MASK] [SEP]", [0, 0, 0, 0, 0, 1, 1]),
        ("vlbert", CHOICE, ["a tree ?", "sand"], "[CLS] a tree ? [SEP] sand [SEP]", [0, 0, 0, 0, 0, 1, 1]),
        ("vlbert", CHOICE, ["tree", "sand", "ball"], "[CLS] tree sand [SEP] ball [SEP]", [0, 0, 0, 0, 1, 1]),
        ("vlbert", REGION, ["red ball"], "[CLS] red ball [SEP]", [0] * 4),
        ("vilbert", LABEL, ["a tree ?"], "[CLS] a tree ? [SEP]", [0] * 5),
        ("vilbert", CHOICE, ["tree", "sand", "ball"], "[CLS] tree [SEP] sand [SEP] ball [SEP]", [0, 0, 0, 0, 0, 1, 1]),
        ("visualbert", LABEL, ["a tree"], "[CLS] a tree ? [MASK] [SEP]", [0] * 6),
        ("visualbert", LABEL, ["a tree ?"], "[CLS] a tree ? [MASK] [SEP]", [0] * 6),
        ("visualbert", CHOICE, ["tree", "sand", "ball"], "[CLS] tree sand [SEP] ball [SEP]", [0, 0, 0, 0, 1, 1]),
        ("imagebert", LABEL, ["tree", "sand"], "[CLS] tree [SEP] sand [SEP]", [0] * 5),
        ("interbert", CHOICE, ["tree", "sand"], "[CLS] tree [SEP] sand [SEP]", [0, 0, 0, 1, 1]),
    ],
)
def test_a_row_is_read_as_published(system: str, form: str, parts: list[str], text: str, segments: list[int]) -> None:
    assert shown_text(system, form, parts) == (text, segments)


def test_visualbert_reads_a_statement_about_two_images_without_a_mask() -> None:
    assert shown_text("visualbert", LABEL, ["red ball"], num_images=2) == ("[CLS] red ball [SEP]", [0] * 4)


@pytest.mark.parametrize(
    ("cut", "most", "text"),
    [
        ("longest", 8, "[CLS] two dogs run [SEP] a kitchen [SEP]"),
        ("longest", 7, "[CLS] two dogs [SEP] a kitchen [SEP]"),
        ("last", 9, "[CLS] two dogs run after [SEP] a kitchen [SEP]"),
        ("last", 7, "[CLS] two dogs run after [SEP] [SEP]"),
        ("first", 6, "[CLS] [SEP] a kitchen with [SEP]"),
        ("release", 7, "[CLS] two dogs run after [SEP] a"),
    ],
)
def test_a_long_text_loses_what_the_option_says(cut: str, most: int, text: str) -> None:
    parts = [TaskText(("two dogs run after",)), TaskText(("a kitchen with",))]
    laid = lay_out(SYSTEMS["vilbert"].text(Pieces(tokenizer()), parts, CHOICE, 1), most, cut)
    assert " ".join(tokenizer().piece(int(piece)) for piece in laid.ids) == text
    assert len(laid.ids) == len(laid.segments) == len(laid.tags)


def test_a_text_that_is_longer_than_the_model_keeps_its_mask() -> None:
    """600 words; what is read is still [MASK], and a note says that it was cut."""
    network = small_network("vlbert", LABEL)
    row = TaskRow((TaskText(tuple(["dogs"] * 600)),))
    long, made = TaskGroup("long", ("image-0",), (row,), {0: 1.0}), batches(network, "vlbert", LABEL)
    ids = made.batch([long]).inputs.text_ids[0]
    assert len(ids) == 62 and ids[-2] == tokenizer().mask_id and ids[-3] == tokenizer().sep_id
    (note,) = made.notes_of_cuts([*groups(LABEL), long], "training")
    assert note.startswith("1 training text longer than a row: 62 pieces are read of each (layout.max_pieces)")
    assert note.endswith("the longest has 604 (long)") and made.notes_of_cuts(groups(LABEL), "training") == []


def test_answers_that_are_read_elsewhere_than_at_their_mask_are_counted() -> None:
    """VisualBERT's cut takes [MASK] too: the state of another piece is read, and a note says of how many texts."""
    options = LayoutOptions(max_pieces=8, cut="before_sep")
    made = batches(small_network("visualbert", LABEL), "visualbert", LABEL, options=options)
    ids = made.batch(groups(LABEL)).inputs.text_ids
    lost = int((ids != tokenizer().mask_id).all(dim=1).sum())
    _, note = made.notes_of_cuts(groups(LABEL), "validation")
    assert lost > 1 and note.startswith(f"{lost} validation texts without the [MASK] that is read (layout.cut)")
    kept = batches(small_network("visualbert", LABEL), "visualbert", LABEL, options=replace(options, cut="longest"))
    assert len(kept.notes_of_cuts(groups(LABEL), "validation")) == 1


@pytest.mark.parametrize(("system", "kind"), ALL)
def test_a_group_has_the_same_scores_in_any_batch(system: str, kind: str) -> None:
    """Padding of texts, regions and choices; all systems, all forms, two images."""
    network = small_network(system, kind, double=True)
    made, form = batches(network, system, kind), ASKED[kind].form
    together = in_floats_of(made.batch(groups(kind)).inputs, torch.float64)
    batch = replace(made.batch(groups(kind)), inputs=together)
    with torch.no_grad():
        scores = scores_of(network.module, batch, form)
        real = real_scores(ASKED[kind], batch.inputs, batch.group_sizes)
        for place, group in enumerate(groups(kind)):
            alone = made.batch([group])
            alone = replace(alone, inputs=in_floats_of(alone.inputs, torch.float64))
            single = scores_of(network.module, alone, form)[0]
            torch.testing.assert_close(single, scores[place, real[place]], rtol=0, atol=1e-12)
    assert scores.std() > 0


@pytest.mark.parametrize("system", SYSTEMS)
def test_neither_the_order_of_choices_nor_padding_matters(system: str) -> None:
    """1e-12 in float64, 1e-5 in float32; the other group has longer texts, and more regions or fewer."""
    group, other = groups(CHOICE)[2], groups(CHOICE)[1]
    turned = replace(group, rows=group.rows[::-1])
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        network = small_network(system, CHOICE, double=dtype == torch.float64)
        found = []
        for given in ([group, turned, other], [group]):
            batch = batches(network, system, CHOICE).batch(given)
            batch = replace(batch, inputs=in_floats_of(batch.inputs, dtype))
            with torch.no_grad():
                found.append(scores_of(network.module, batch, CHOICE))
        first, second, alone = found[0][0], found[0][1], found[1][0]
        assert len(first) == 4 and first.dtype == dtype
        torch.testing.assert_close(first, second.flip(0), rtol=0, atol=bound)
        torch.testing.assert_close(first, alone, rtol=0, atol=bound)


def test_a_word_is_cut_once_and_as_any_text() -> None:
    """Texts that come cut are cut again row after row; what is kept cannot be changed by who reads it."""
    known = tokenizer()
    for text in ("dogs", "two dogs run", "?", ""):
        pieces = known.pieces(text)
        assert pieces.tolist() == known.encode(text).ids[1:-1].tolist() and not pieces.flags.writeable
    assert known.pieces("dogs") is known.pieces("dogs")


def test_a_word_that_names_a_box_carries_its_region() -> None:
    """VL-BERT's choices; other systems are not told, or add positions (VisualBERT)."""
    network = small_network("vlbert", CHOICE)
    batch = batches(network, "vlbert", CHOICE).batch(groups(CHOICE)[:1])
    words = batch.inputs.aligned_words
    pieces = len(tokenizer().encode(groups(CHOICE)[0].rows[0].parts[0].words[0]).ids) - 2
    assert words is not None and words[0, 0, :pieces].tolist() == list(range(1, 1 + pieces))
    assert (words[0, 1:] == -1).all() and network.encoder_config.text_visual == "grounded"


def test_a_word_that_names_a_box_that_is_not_there_is_an_error() -> None:
    network, group = small_network("vlbert", CHOICE), groups(CHOICE)[0]
    row = TaskRow((TaskText(("dog",), (99,)), TaskText(("sand",))))
    with pytest.raises(ValueError, match="group-0: a word names box 99, the image 'image-0' has"):
        batches(network, "vlbert", CHOICE).batch([replace(group, rows=(row,))])


def test_boxes_that_a_task_gives_are_shown_in_its_order() -> None:
    """Of a store that was extracted with them; words name them by their place there."""
    network, group = small_network("vlbert", CHOICE), groups(CHOICE)[0]
    record = store()["image-0"]
    given = replace(group, boxes=(record.boxes[[3, 1]] + 0.005,))
    batch = batches(network, "vlbert", CHOICE).batch([given]).inputs
    np.testing.assert_array_equal(batch.region_boxes[0], record.boxes[[3, 1]])
    np.testing.assert_array_equal(batch.region_features[0], record.features[[3, 1]])
    assert batch.aligned_words is not None and batch.aligned_words[0, 0, 0] == 1
    with pytest.raises(ValueError, match="record 'image-0': no region at 1 of 1 boxes of the task"):
        batches(network, "vlbert", CHOICE).batch([replace(group, boxes=(record.boxes[[0]] + 2,))])


@pytest.mark.parametrize(
    ("system", "kind"), [(system, LABEL) for system in SYSTEMS] + [("vilbert", "pair"), ("vlbert", REGION)]
)
def test_a_blind_model_sees_nothing_of_an_image(system: str, kind: str) -> None:
    """Two images of other sizes and regions give the same answer; of regions the boxes alone are left."""
    network, group = small_network(system, kind), groups(kind)[0]
    made = batches(network, system, kind, blind=True)
    if kind == REGION:
        assert not made.batch([group]).inputs.region_features.any()
        return
    other = replace(group, images=("image-5",) * len(group.images))
    first, second = predicted(network.module, made, [group, other], ASKED[kind].form, 2)
    np.testing.assert_allclose(first.scores, second.scores, atol=1e-6)
    nowhere = replace(group, images=("nowhere",) * len(group.images), swapped=True)
    without = batches(network, system, kind).without_regions("image-5")
    (third,) = predicted(network.module, without, [nowhere], ASKED[kind].form, 2)
    np.testing.assert_allclose(first.scores, third.scores, atol=1e-6)
    seen = list(predicted(network.module, batches(network, system, kind), [group, other], ASKED[kind].form, 2))
    assert abs(seen[0].scores - seen[1].scores).max() > 1e-6


def test_hidden_images_are_those_of_a_blind_model_in_training_too() -> None:
    network, hidden = small_network("visualbert", LABEL), LayoutOptions(images="hidden")
    made = batches(network, "visualbert", LABEL, options=hidden)
    first, other = (made.batch([replace(groups(LABEL)[0], images=(name,))]).inputs for name in ("image-1", "image-5"))
    assert not first.region_mask.any() and torch.equal(first.region_features, other.region_features)
    assert batches(network, "visualbert", LABEL).batch(groups(LABEL)).inputs.region_mask.any()
    with pytest.raises(ValueError, match="chooses among the regions"):
        batches(small_network("visualbert", REGION), "visualbert", REGION, options=hidden)


def test_most_regions_are_those_of_the_best_scores() -> None:
    network = small_network("vilbert", REGION)
    made = batches(network, "vilbert", REGION, options=LayoutOptions(max_regions=3))
    (said,) = predicted(network.module, made, groups(REGION)[:1], REGION, 1)
    assert said.scores.shape == (3,) and said.boxes is not None and said.boxes.shape == (3, 4)


def _imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    names = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return names | {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}


def test_tasks_and_systems_do_not_know_each_other() -> None:
    """One file a task, one a system: any pair works, and neither grows a case of the other."""
    room, inside = PACKAGE / "pipelines" / "finetuning", "roibeam.pipelines.finetuning"
    tasks, systems = sorted((room / "tasks").rglob("*.py")), sorted((room / "systems").glob("*.py"))
    assert len(tasks) > 3 and len(systems) > 5
    for path in tasks:
        for name in _imported(path):
            assert not name.startswith((f"{inside}.systems", f"{inside}.frame")), path
            assert not any(name.startswith(f"roibeam.model.{each.split('-')[0]}") for each in SYSTEMS), path
    for path in systems:
        assert not [name for name in _imported(path) if name.startswith((f"{inside}.tasks", f"{inside}.frame"))], path


# --- an image as a whole, images without any region, two images in one row ---


def network_for(system: str, **fields: Any) -> TaskNetwork:
    """That scores the whole image too, in float64, without dropout."""
    torch.manual_seed(0)
    named, like = SYSTEMS[system], small_network(system, REGION).encoder_config
    own = {name: value for name, value in like.to_diff_dict().items() if name in like.own_fields()}
    model = named.model_class(type(like)(**{**own, **fields}))
    network = started_network(named, model, ASKED[WHOLE], "ours", source="a test")
    network.module.eval().double()
    return network


def with_whole() -> list[TaskGroup]:
    """Groups with their whole images as candidates; the last one means all of its image."""
    found = []
    for group in groups(REGION):
        record = store()[group.images[0]]
        found.append(replace(group, whole_image=np.array([0, 0, record.width - 1, record.height - 1], np.float32)))
    return [*found[:-1], replace(found[-1], target=tuple(found[-1].whole_image.tolist()))]


@pytest.mark.parametrize("system", ["vlbert", "vilbert", "interbert", "vilbert-single-stream"])
def test_the_whole_image_is_the_first_candidate(system: str) -> None:
    """It has a target, a score and a box, before those of the regions, with any neighbours in a batch."""
    network = network_for(system)
    made, asked = batches(network, system, WHOLE, loss="regions"), with_whole()
    batch = made.batch(asked)
    batch = replace(batch, inputs=in_floats_of(batch.inputs, torch.float64))
    scores = scores_of(network.module, batch, REGION)
    boxes, real = scored_boxes(asked, batch.inputs)
    counted = real_scores(ASKED[WHOLE], batch.inputs, batch.group_sizes)
    assert batch.targets is not None and scores.shape == batch.targets.shape == real.shape
    wanted = [store()[group.images[0]].num_regions + 1 for group in asked]
    assert torch.equal(real, counted) and real.sum(dim=1).tolist() == wanted
    assert batch.targets[:, 0].tolist() == [0, 0, 0, 1] and batch.targets[:3, 3].tolist() == [1, 1, 1]
    np.testing.assert_array_equal(boxes[:, 0], np.stack([group.whole_image for group in asked]))
    for place, group in enumerate(asked):
        alone = made.batch([group])
        single = scores_of(network.module, replace(alone, inputs=in_floats_of(alone.inputs, torch.float64)), REGION)
        torch.testing.assert_close(single[0], scores[place, real[place]], rtol=0, atol=1e-12)
    network.module.float()
    said = list(predicted(network.module, made, asked, REGION, 3))
    for each, group in zip(said, asked, strict=True):
        assert each.boxes is not None and len(each.scores) == len(each.boxes)
        np.testing.assert_array_equal(each.boxes[0], group.whole_image)
        np.testing.assert_array_equal(np.sort(each.boxes[1:], axis=0), np.sort(store()[group.images[0]].boxes, axis=0))


@pytest.mark.parametrize(
    ("system", "fields"), [("visualbert", {}), ("imagebert", {}), ("vlbert", {"whole_image_element": False})]
)
def test_a_model_without_an_element_for_it_says_so(system: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"whole_image: this {system} has no element for the image as a whole"):
        network_for(system, **fields)


def test_the_right_box_is_mirrored_with_its_image() -> None:
    network = network_for("vlbert")
    made, asked = batches(network, "vlbert", WHOLE, loss="regions"), with_whole()
    plain, mirrored = (made.batch([replace(each, mirrored=turned) for each in asked]) for turned in (False, True))
    assert plain.targets is not None and mirrored.targets is not None
    assert not torch.equal(plain.inputs.region_boxes, mirrored.inputs.region_boxes)
    assert torch.equal(plain.targets, mirrored.targets) and plain.targets.sum() >= 4


@pytest.mark.parametrize("loss", ["regions", "rows"])
def test_a_batch_of_images_without_a_region_trains_and_is_asked(loss: str) -> None:
    """A detector may find nothing in each of a batch's images."""
    network = small_network("vlbert", REGION)
    row = TaskRow((TaskText(("a dog",)),))
    nothing = [replace(group, rows=(row,), boxes=(np.zeros((0, 4), np.float32),)) for group in groups(REGION)[:2]]
    made = batches(network, "vlbert", REGION, loss=loss)
    batch = made.batch(nothing)
    assert batch.targets is not None and batch.targets.shape == (2, 0)
    scores = scores_of(network.module, batch, REGION)
    term = loss_named(REGION, loss).term(scores, batch.targets, scores.bool())
    assert float(term.total.detach()) == 0
    for each in predicted(network.module, made, nothing, REGION, 2):
        assert each.boxes is not None and each.scores.shape == (0,) and each.boxes.shape == (0, 4)


def test_a_group_with_nothing_to_choose_is_answered_without_its_image() -> None:
    """It keeps its place among the others, and its image need not be in the store."""
    network, (first, second, *_) = small_network("vilbert", REGION), groups(REGION)
    closed = replace(first, id="closed", images=("not extracted",), is_open=False)
    with pytest.raises(ValueError, match="missing are not extracted"):
        StoreImages(store()).join([first, replace(closed, is_open=True)], "val", min_match=1.0)
    joined = StoreImages(store()).join([closed, first, closed, second, closed], "val", min_match=1.0)
    assert not joined.missing and len(joined.groups) == 5
    made = batches(network, "vilbert", REGION)
    said = list(predicted(network.module, made, joined.groups, REGION, 2))
    assert [len(each.scores) for each in said] == [0, len(said[1].scores), 0, len(said[3].scores), 0]
    for place, group in ((1, first), (3, second)):
        (alone,) = predicted(network.module, made, [group], REGION, 2)
        np.testing.assert_allclose(said[place].scores, alone.scores, atol=1e-6)


def test_vlbert_reads_two_images_in_one_row_each_in_a_segment_of_its_own() -> None:
    """The segment of the second image starts as that of the first, and its boxes are parts of its own image."""
    network = small_network("vlbert", "pair", double=True)
    module: Any = network.module
    assert SYSTEMS["vlbert"].joins_images and network.encoder_config.num_segments == 4
    segments = module.model.vlbert.embeddings.segments.weight
    assert torch.equal(segments[2], segments[3])
    group = groups("pair")[0]
    first, second = (store()[image] for image in group.images)
    second = replace(second, width=900, height=500)
    records = {group.images[0]: first, group.images[1]: second}
    made = batches(network, "vlbert", "pair", records=records)
    inputs = in_floats_of(made.batch([group]).inputs, torch.float64)
    assert inputs.batch_size == 1 and inputs.region_images is not None
    assert inputs.region_images[0].tolist() == [0] * first.num_regions + [1] * second.num_regions
    shares = inputs.region_boxes[0, first.num_regions :] / torch.tensor([first.width, first.height] * 2)
    own = np.sort(second.boxes / np.array([second.width, second.height] * 2), axis=0)
    np.testing.assert_allclose(np.sort(shares, axis=0), own, atol=1e-6)
    with torch.no_grad():
        before = network.module(inputs)
        segments[3] += torch.linspace(0, 1, segments.shape[1])
        assert float((network.module(inputs) - before).abs().max()) > 1e-6
    bare: Any = small_network("vlbert", REGION).module.model
    with pytest.raises(ValueError, match=r"a row has several images, .* num_segments=4, got 3"):
        bare.encode(made.batch([group]).inputs)
