"""How the systems lay a task's rows out, and that what stands beside a group in a batch changes nothing for it."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from house import PACKAGE
from small_pretraining import in_floats_of
from task_groups import ASKED, batches, groups, small_network, store, tokenizer

from roibeam.pipelines.finetuning.rows import CHOICE, LABEL, REGION, TaskGroup, TaskRow, TaskText
from roibeam.pipelines.finetuning.run.group_task import predicted, scores_of
from roibeam.pipelines.finetuning.run.losses import real_scores
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.systems.options import LayoutOptions
from roibeam.pipelines.finetuning.systems.task_system import Pieces, lay_out

KINDS = (LABEL, CHOICE, REGION, "pair")
# One form of each system, all forms of VL-BERT; the others are slow.
FEW = {("vlbert", kind) for kind in KINDS} | set(
    zip(SYSTEMS, (LABEL, REGION, LABEL, "pair", REGION, CHOICE), strict=True)
)
ALL = [
    pytest.param(system, kind, marks=[] if (system, kind) in FEW else pytest.mark.slow)
    for system in SYSTEMS
    for kind in KINDS
]


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
        real = real_scores(form, batch.inputs, batch.group_sizes, ASKED[kind].num_labels)
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


def test_most_regions_are_those_of_the_best_scores() -> None:
    network = small_network("vilbert", REGION)
    options = LayoutOptions(max_regions=3)
    (said,) = predicted(
        network.module, batches(network, "vilbert", REGION, options=options), groups(REGION)[:1], REGION, 1
    )
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
