"""Phrase grounding: where phrases stand, what is learned of them on every system, and the command from run to score."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from captioned_records import CAPTIONS, make_store
from small_files import write_text
from small_pretraining import in_floats_of
from task_groups import LOSS, batches, small_network, tokenizer
from tiny_commands import Cli, ok, one_line

from roibeam.pipelines.data.datasets.entities import (
    RELEASE,
    EntityCounts,
    EntityImage,
    parse_marked_sentence,
    read_entities,
    split_names,
)
from roibeam.pipelines.finetuning.metrics.grounding import GROUNDING_RULES, covering
from roibeam.pipelines.finetuning.rows import PHRASE, TaskGroup, TaskRow, TaskText
from roibeam.pipelines.finetuning.run.group_task import predicted
from roibeam.pipelines.finetuning.run.losses import loss_named
from roibeam.pipelines.finetuning.scored_tasks import SCORED_TASKS
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.systems.options import LayoutOptions
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec
from roibeam.pipelines.finetuning.task import Prediction, check_best_by
from roibeam.pipelines.finetuning.tasks.language import EntitiesOptions, open_entities

MEN = "[/EN#1/people a man] and [/EN#2/people a man] near [/EN#9/other it] , [/EN#0/notvisual he] ."
TWICE = f"{MEN}\nno phrase here .\n"
BOX = "<object><name>{}</name><bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"
BOXES = (("1", 1, 1, 20, 20), ("2", 30, 1, 60, 20), ("2", 30, 60, 60, 90))


def write_entities(folder: Path, sentences: str = TWICE, boxes: tuple[Any, ...] = BOXES) -> Path:
    objects = "".join(BOX.format(*each) for each in boxes)
    size = "<size><width>100</width><height>100</height><depth>3</depth></size>"
    write_folder(folder, {"7": sentences}, {"7": f"<annotation>{size}{objects}</annotation>"})
    for split in ("train", "val", "test"):
        (folder / f"{split}.txt").write_text("7\n")
    return folder


def test_its_photos_are_counted(roibeam: Cli, tmp_path: Path) -> None:
    told = roibeam("data", "check", "flickr30k-entities", write_entities(tmp_path))
    assert told.code == 1 and re.search(
        r"^test +1 +1,000  7 .. 7; 999 rows fewer: cut, or another version; [0-9] captions fewer", told.out, re.M
    )


def test_a_phrase_stands_where_its_mark_is_or_where_its_words_come_first(tmp_path: Path) -> None:
    """What nothing boxes is left out and told; a caption without such a phrase too."""
    write_entities(tmp_path)
    options = (EntitiesOptions(place=place) for place in ("own", "release"))
    own, release = (open_entities(tmp_path, each, None).read("val") for each in options)
    assert [group.id for group in own.groups] == ["7#0"]
    assert own.groups[0].rows[0].phrases == (1, 4) and release.groups[0].rows[0].phrases == (1, 1)
    assert [len(boxes) for boxes in own.groups[0].target] == [1, 2]
    told = " ".join(own.notes)
    assert "1 phrases of an unknown chain: 7.txt caption 0, 'it'" in told and "1 not visual" in told
    assert "1 caption without a phrase that has a box left out" in told


@pytest.mark.parametrize(
    ("sentences", "boxes", "says"),
    [
        (TWICE, (), "no caption of val has a phrase with a box"),
        ("[/EN#1/people a man\n", BOXES, "no caption can be used .*a mark that does not end"),
    ],
)
def test_files_without_a_phrase_are_one_line(tmp_path: Path, sentences: str, boxes: tuple[Any, ...], says: str) -> None:
    write_entities(tmp_path, sentences, boxes)
    with pytest.raises(ValueError, match=says):
        open_entities(tmp_path, EntitiesOptions(), None).read("val")


def groups() -> list[TaskGroup]:
    """Two captions with three phrases and one; the first phrase of each means regions that overlap."""
    found = []
    for number, places in enumerate(((1, 5, 9), (2,))):
        name, words = f"image-{number}", tuple(CAPTIONS[number].split())
        boxes = make_store()[name].boxes.astype(np.float64)
        target = tuple(boxes[place : place + 1] for place in range(len(places)))
        row = TaskRow((TaskText(words),), phrases=places)
        found.append(TaskGroup(f"{number}#0", (name,), (row,), target, facts={"rule": "any"}))
    return found


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_scores_every_region_for_every_phrase(system: str) -> None:
    """Neighbours and padding change nothing; the piece is the phrase's last one; blind sees boxes alone."""
    network = small_network(system, PHRASE)
    made = batches(network, system, PHRASE)
    both = made.batch(groups())
    positions = both.inputs.phrase_positions
    assert positions is not None and positions.shape == (2, 3) and (positions[1, 1:] == -1).all()
    told = tokenizer()
    for row, group in enumerate(groups()):
        for place, word in zip(positions[row].tolist(), group.rows[0].phrases, strict=False):
            last = told.pieces(group.rows[0].parts[0].words[word])[-1]
            assert both.inputs.text_ids[row, place] == last
    said = list(predicted(network.module, made, groups(), PHRASE, 2))
    alone = list(predicted(network.module, made, groups(), PHRASE, 1))
    for first, second, group in zip(said, alone, groups(), strict=True):
        record = make_store()[group.images[0]]
        assert first.scores.shape == (len(group.rows[0].phrases), record.num_regions)
        np.testing.assert_allclose(first.scores, second.scores, rtol=1e-3, atol=1e-6)
    blind = batches(network, system, PHRASE, blind=True).batch(groups()).inputs
    assert blind.region_mask.any() and not blind.region_features.any()


CUT = LayoutOptions(max_pieces=6, cut="before_sep")


def places_of_last_pieces(group: TaskGroup) -> list[int]:
    """In the whole caption behind [CLS], counted by hand."""
    lengths = [len(tokenizer().pieces(word)) for word in group.rows[0].parts[0].words]
    return [sum(lengths[: word + 1]) for word in group.rows[0].phrases]


def test_a_phrase_whose_word_is_cut_is_read_where_the_release_reads_it() -> None:
    """The first five pieces and [SEP] are left; a word behind them is read at [SEP] or at the region that stands there,
    and behind the last region at [SEP]. It is in the loss as any other, and in any batch the same."""
    network = small_network("visualbert", PHRASE, head="release", double=True)
    made, count = batches(network, "visualbert", PHRASE, options=CUT), make_store()["image-0"].num_regions
    row = TaskRow((TaskText(("a",) * (count + 9)),), phrases=(0, 4, 5, 6, count + 6))  # "a" is one piece
    far = replace(groups()[0], rows=(row,), target=(groups()[0].target[0],) * 5)
    batch = made.batch([far, groups()[1]])
    inputs = in_floats_of(batch.inputs, torch.float64)
    assert inputs.text_ids[0].tolist()[-1] == tokenizer().sep_id and inputs.text_ids.shape[1] == 6
    assert places_of_last_pieces(far) == [1, 5, 6, 7, count + 7]
    assert inputs.phrase_positions is not None and inputs.phrase_positions[0].tolist() == [1, 5, 6, 7, 5]
    module: Any = network.module
    output, scores = module.encode(inputs), module(inputs)[0, :, :count]
    states = [*output.text_states[0, [1, 5]], *output.region_states[0, [0, 1]], output.text_states[0, 5]]
    keys = module.grounding_head.key(output.region_states[0, :count])
    for state, found in zip(states, scores, strict=True):
        query = module.grounding_head.query(state)
        torch.testing.assert_close(found, keys @ query / len(query) ** 0.5)
    assert batch.targets is not None and (batch.targets[0].sum(dim=-1) > 0).all()
    alone = module(in_floats_of(made.batch([far]).inputs, torch.float64))[0]
    torch.testing.assert_close(alone, scores, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("system", "cut"), [("visualbert", "longest"), ("vilbert", "before_sep"), ("vlbert", "before_sep")]
)
def test_elsewhere_the_last_piece_that_is_left_is_read(system: str, cut: str) -> None:
    network = small_network(system, PHRASE)
    made = batches(network, system, PHRASE, options=replace(CUT, cut=cut))
    batch = made.batch(groups()).inputs
    assert batch.phrase_positions is not None
    for row, group in enumerate(groups()):
        for position, whole in zip(batch.phrase_positions[row].tolist(), places_of_last_pieces(group), strict=False):
            assert position == min(whole, 4)


def test_phrases_whose_word_is_cut_are_counted_in_a_note() -> None:
    network = small_network("visualbert", PHRASE)
    wanted = sum(place > 4 for group in groups() for place in places_of_last_pieces(group))
    places = {"before_sep": "where that stood, [SEP] or a region", "longest": "at the last piece that is left"}
    for cut, place in places.items():
        made = batches(network, "visualbert", PHRASE, options=replace(CUT, cut=cut))
        _, note = made.notes_of_cuts(groups(), "validation")
        assert wanted > 0 and note.startswith(f"{wanted} validation phrase") and f"read {place}" in note
    whole = batches(network, "visualbert", PHRASE, options=replace(CUT, max_pieces=40))
    assert whole.notes_of_cuts(groups(), "validation") == []


def test_targets_are_shared_among_the_regions_that_cover_and_the_loss_is_of_captions() -> None:
    network = small_network("visualbert", PHRASE)
    batch = batches(network, "visualbert", PHRASE).batch(groups())
    assert batch.targets is not None
    rule = GROUNDING_RULES["any"]
    for row, group in enumerate(groups()):
        boxes = make_store()[group.images[0]].boxes
        shown = batch.inputs.region_boxes[row, batch.inputs.region_mask[row]].numpy()
        for place, right in enumerate(group.target):
            wanted = covering(shown, right, rule)
            assert wanted.any() and len(shown) == len(boxes)
            np.testing.assert_allclose(batch.targets[row, place, : len(shown)], wanted / wanted.sum())
    scores = network.module(batch.inputs)
    real = batch.inputs.region_mask
    captions, phrases = (
        loss_named(PHRASE, name).term(scores, batch.targets, real) for name in (LOSS[PHRASE], "phrases")
    )
    assert (int(captions.count), int(phrases.count)) == (2, 4)
    torch.testing.assert_close(captions.total, phrases.total)
    logs = scores.log_softmax(dim=-1)
    known = batch.targets > 0
    wanted_total = (batch.targets[known] * (batch.targets[known].log() - logs[known])).sum()
    torch.testing.assert_close(captions.total, wanted_total)


def test_several_heads_are_the_mean_of_their_weights() -> None:
    network = small_network("visualbert", PHRASE, asked=OutputSpec(PHRASE, num_heads=3))
    batch = batches(network, "visualbert", PHRASE).batch(groups()).inputs
    module: Any = network.module
    output, positions = module.model.encode(batch), batch.phrase_positions.clamp(min=0)[..., None]
    states = output.text_states.gather(1, positions.expand(-1, -1, output.text_states.shape[-1]))
    heads = (module.head.phrases, *module.head.others)
    each = [head(states, output.region_states, batch.region_mask).softmax(dim=-1) for head in heads]
    mean = torch.stack(each).mean(dim=0)
    real = batch.phrase_positions >= 0
    torch.testing.assert_close(module(batch).softmax(dim=-1)[real], mean[real])
    assert len(each) == 3


def test_box_numbers_stand_behind_features_and_the_release_has_its_own_head() -> None:
    network = small_network("visualbert", PHRASE, head="release")
    names = {name.split(".")[0] for name, each in network.module.named_parameters() if each.requires_grad}
    assert names == {"visualbert", "grounding_head"}
    made = batches(network, "visualbert", PHRASE, options=LayoutOptions(box_numbers=True))
    with pytest.raises(ValueError, match="with six numbers of each box 54, the model was made for 48, without them"):
        made.check(groups()[0])
    plain = batches(network, "visualbert", PHRASE).batch(groups()).inputs.region_features
    assert made.batch(groups()).inputs.region_features.shape[-1] == plain.shape[-1] + 6


def test_scores_that_are_no_numbers_are_counted_in_one_line(tmp_path: Path) -> None:
    task = open_entities(write_entities(tmp_path), EntitiesOptions(), None)
    (group,) = task.read("val").groups
    said = Prediction(np.array([[0.1, np.nan], [0.2, 0.3]], np.float32), np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match=r"7#0: the model's scores are no numbers \(NaN\) for 1 of its 2 phrases"):
        task.judge([group], [said])
    check_best_by(task, [group], "merged_R@1")


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([], "no boxes for caption 0 of image 7"),
        ([{"image_id": 7, "sentence_id": 0}], "entry 0: expected an object with image_id, sentence_id and boxes"),
        ([{"image_id": 7, "sentence_id": 0, "boxes": [[[1, 2, 3]], []]}], "a list of x1 y1 x2 y2 for each phrase"),
        ([{"image_id": 7, "sentence_id": 0, "boxes": [[[1, 2, 3, 4]]]}], "boxes of 1 phrases for caption 0"),
        ({"a": 1}, "expected a list of objects with image_id"),
    ],
)
def test_result_files_that_are_none_say_so(tmp_path: Path, entries: Any, says: str) -> None:
    results = tmp_path / "said.json"
    results.write_text(json.dumps(entries))
    opened = SCORED_TASKS["flickr30k-entities"].open(write_entities(tmp_path / "data"), "val", "strict")
    with pytest.raises(ValueError, match=says):
        opened.check(str(results))


def test_both_protocols_are_told_and_named(tmp_path: Path) -> None:
    """The second phrase has two boxes far apart: one of them hits by "any", only the box around both by "merged"."""
    opened = SCORED_TASKS["flickr30k-entities"].open(write_entities(tmp_path / "data"), "val", "strict")
    results = tmp_path / "said.json"
    said = [[[1, 1, 20, 20]], [[30, 1, 60, 20], [30, 1, 60, 90]]]
    results.write_text(json.dumps([{"image_id": "7", "sentence_id": 0, "boxes": said}]))
    found = {name: each.mean for name, each in opened.measures(str(results)).items()}
    assert (found["R@1"], found["R@1 people"], found["merged R@1"], found["merged R@5"]) == (1.0, 1.0, 0.5, 1.0)
    assert (found["upper bound"], found["merged upper bound"]) == (1.0, 1.0) and "merged R@1 people" not in found
    merged = SCORED_TASKS["flickr30k-entities"].open(tmp_path / "data", "val", "merged").measures(str(results))
    assert (merged["R@1"].mean, merged["R@1 people"].mean) == (0.5, 0.5)


def test_a_run_is_judged_as_its_file_is_scored_and_page_and_card_tell_phrases(roibeam: Cli, tmp_path: Path) -> None:
    world, store, data = (str(tmp_path / name) for name in ("world", "store", "data"))
    ok(roibeam("toyworld", world, "--num-images", 60, "--perfect-store", store, "--entities", data))
    words = ("--task", "flickr30k-entities", "--store", store, "--data", data, "--device", "cpu")
    small = ("--from", "none", "--system", "visualbert", "--steps", "2", "--batch-size", "4")
    run, out, page = str(tmp_path / "run"), tmp_path / "said.json", tmp_path / "page.html"
    heads = ("--set", "flickr30k-entities.heads=2")
    told = roibeam("finetune", run, *words, *small, *heads, "--json")
    evaluation = json.loads(told.out)["evaluation"]
    ignored = roibeam("finetune", tmp_path / "other", *words, *small, *heads, "--set", "head.kind=release")
    assert "heads 2 change nothing: the head of the release is one" in ignored.err and "change nothing" not in told.err
    assert roibeam("predict", run, *words[2:], "--out", out, "--page", page).code == 0
    scored = json.loads(roibeam("score", "flickr30k-entities", out, "--data", data, "--json").out)
    values = {each["name"].replace(" ", "_"): each["value"] for each in scored["figures"]}
    assert {name: values[name] for name in evaluation} == pytest.approx(evaluation)
    card = scored["card"]["predicted"][0]["told"]
    assert card["measure"] == "R@1" and card["sum"] / card["judged"] == pytest.approx(evaluation["R@1"])
    assert "phrase: " in page.read_text("utf-8") and "what is meant" in page.read_text("utf-8")
    done = roibeam("predict", run, *words[2:], "--out", out, "--permute-images")
    assert done.code == 1 and "chooses among the regions of its own image" in one_line(done)


# --- the files of Flickr30k Entities; what three codes make of the same lines is compared in test_metrics.py ---

XML = """<annotation><size><width>50</width><height>40</height><depth>3</depth></size>
<object><name>1</name><name>7</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>8</ymax></bndbox></object>
<object><name>1</name><bndbox><xmin>11</xmin><ymin>12</ymin><xmax>19</xmax><ymax>18</ymax></bndbox></object>
<object><name>2</name><scene>1</scene><nobndbox>0</nobndbox></object>
<object><name>3</name><scene>0</scene><nobndbox>1</nobndbox></object></annotation>"""
LINE = (
    "[/EN#1/people A man] sees ([/EN#7/people/other a man]) , in [/EN#2/scene a yard], [/EN#3/other a hat] "
    "[/EN#9/clothing a coat] and [/EN#0/notvisual it] ."
)


def write_folder(folder: Path, sentences: dict[str, str], annotations: dict[str, str]) -> str:
    (folder / "Annotations").mkdir(parents=True)
    for part, suffix, texts in (("Sentences", "txt", sentences), ("Annotations", "xml", annotations)):
        for name, text in texts.items():
            write_text(folder / part / f"{name}.{suffix}", text)
    return str(folder)


def read_all(folder: str, **options: str) -> tuple[list[EntityImage], list[str]]:
    counts = EntityCounts()
    return list(read_entities(folder, counts, **options)), counts.lines()


def test_a_phrase_is_where_its_mark_is_with_its_boxes_and_is_told_from_those_without(tmp_path: Path) -> None:
    (image,), (whole, unknown) = read_all(write_folder(tmp_path, {"36": f"\n{LINE}\n"}, {"36": XML}))
    sentence = image.sentences[0]
    assert sentence.text == "A man sees (a man) , in a yard, a hat a coat and it ."
    places = [(each.first_word, each.last_word) for each in sentence.phrases]
    assert places == [(0, 1), (3, 4), (7, 8), (9, 10), (11, 12), (14, 14)]
    assert sentence.phrases[1].types == ("people", "other")
    kinds = [image.boxes.kind_of(each) for each in sentence.phrases]
    assert kinds == ["boxed", "boxed", "scene", "no box", "unknown chain", "not visual"]
    assert image.boxes.boxes == {"1": ((1, 2, 9, 8), (11, 12, 19, 18)), "7": ((1, 2, 9, 8),)}
    assert (image.boxes.width, image.boxes.height) == (50, 40)
    assert whole.startswith("1 caption of 1 image; phrases: 2 boxed, 1 no box, 1 not visual, 1 scene, 1 unknown chain")
    assert unknown == "1 phrases of an unknown chain: 36.txt caption 0, 'a coat'"


def test_a_repeated_phrase_is_at_its_own_place_or_at_the_release_s() -> None:
    line = "[/EN#1/people a man] sees [/EN#7/people a man] ."
    assert [each.last_word for each in parse_marked_sentence(line).phrases] == [1, 4]
    assert [each.last_word for each in parse_marked_sentence(line, RELEASE).phrases] == [1, 1]


def test_what_cannot_be_used_is_left_out_by_name_and_counted(tmp_path: Path) -> None:
    bomb = '<!DOCTYPE a [<!ENTITY b "b">]><annotation>&b;</annotation>'
    odd = "[/EN#1/people A man runs .\n[/EN#1/people A man] runs .\n[/EN#1/people ] runs ."
    sentences = dict.fromkeys(("1", "2", "3", "4", "5"), LINE) | {"6": odd}
    boxless = "<annotation><object><name>1</name><nobndbox>1</nobndbox></object></annotation>"
    torn = XML.replace("<xmax>9</xmax>", "<xmax>wide</xmax>")
    annotations = {"1": bomb, "2": boxless, "3": torn, "4": "<annotation>", "6": XML}
    images, lines = read_all(write_folder(tmp_path, sentences, annotations))
    assert [image.name for image in images] == ["2", "6"]
    assert list(images[1].sentences) == [1]  # numbers are those of the file
    told = "\n".join(lines)
    for expected in (
        "1 images without an xml file: 5", "3 damaged xml files: ", "declares a document type", "no four numbers",
        "1 xml files without a box: 2.xml", "2 captions that cannot be read: ", "mark that does not end",
        "a mark without words",
    ):  # fmt: skip
        assert expected in told, (expected, told)


def test_only_the_images_of_a_split_are_read(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"1": LINE, "2": LINE}, {"1": XML, "2": XML})
    (tmp_path / "val.txt").write_text("2\n")
    images = list(read_entities(folder, EntityCounts(), names=split_names(folder, "val")))
    assert [image.name for image in images] == ["2"]
    for split, words in (("test", r"no test\.txt; it has lists of val"), ("../val", "expected the name of a list")):
        with pytest.raises(ValueError, match=words):
            split_names(folder, split)


def test_a_folder_without_its_parts_or_without_a_usable_caption_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a" / "Sentences").mkdir(parents=True)
    with pytest.raises(ValueError, match="has no folder Annotations; expected that of Flickr30k Entities"):
        read_all(str(tmp_path / "a"))
    with pytest.raises(ValueError, match=r"no caption can be used \(1 images without an xml file: 1\)"):
        read_all(write_folder(tmp_path / "b", {"1": LINE}, {}))
