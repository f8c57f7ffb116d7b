"""Entities of a toy world: files that stay as they are, phrases with the boxes of what they name, and parses that are
trees over the same words."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tiny_commands import Cli, ok, one_line

from roibeam.pipelines.data.datasets.entities import EntityCounts, EntityImage, read_entities, split_names
from roibeam.pipelines.toyworld.captions import NUMBERS, plural
from roibeam.pipelines.toyworld.entities import PARSES_NAME, ToyEntities
from roibeam.pipelines.toyworld.picture import SCENES_NAME, Picture, describe
from roibeam.pipelines.toyworld.scene import generate

SEED, IMAGES = 7, 80
DIGEST = "d3d53fcba94b9303323c2bab53529aa5dcbb54ffcd881f3df32d1c92ff815aa3"


class Made:
    """Nothing may be changed there."""

    def __init__(self, folder: Path) -> None:
        (folder / "world").mkdir()
        self.folder = folder / "entities"
        pictures = [describe(generate(SEED, index)) for index in range(IMAGES)]  # scenes alone: nothing is drawn
        (folder / "world" / SCENES_NAME).write_text("".join(each.to_line() for each in pictures), "ascii")
        self.written = ToyEntities(str(self.folder), folder / "world", SEED, IMAGES).write()
        self.pictures = {str(each.number): each for each in pictures}
        self.counts = EntityCounts()
        self.images = list(read_entities(str(self.folder), self.counts))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("toyentities"))


def test_the_files_are_the_same_bytes_as_ever_and_splits_are_those_of_the_pictures(made: Made) -> None:
    changed = "heads were compared on these files: raise ENTITIES_VERSION, then put the new digest here"
    assert made.written.manifest["sha256"] == DIGEST, changed
    splits = {split: split_names(str(made.folder), split) for split in ("train", "val", "test")}
    assert sum(map(len, splits.values())) == IMAGES
    for split, names in splits.items():
        assert {made.pictures[name].place.split.replace("restval", "train") for name in names} == {split}


def named(picture: Picture, words: list[str], boxes: tuple[Any, ...]) -> None:
    """That the boxes are those of all objects that the words may mean: one for "a red ball", all for "two balls"."""
    *said, noun = words
    here = {(x + 1, y + 1, x + w, y + h): thing for thing in picture.scene.objects for x, y, w, h in [thing.box]}
    things = [here[box] for box in boxes]
    if said[0].lower() in NUMBERS.values():
        assert len(things) == {word: count for count, word in NUMBERS.items()}[said[0].lower()]
        assert {plural(thing.category) for thing in things} == {noun}
    else:
        assert said[0].lower() in ("a", "an") and [thing.category for thing in things] == [noun]
    assert all(set(said[1:]) <= set(thing.attributes) for thing in things)


def test_a_phrase_has_the_boxes_of_what_it_names(made: Made) -> None:
    kinds: dict[str, int] = {}
    for image in made.images:
        picture = made.pictures[image.name]
        assert len(image.sentences) == len(picture.captions)
        for number, sentence in image.sentences.items():
            assert sentence.text.lower() == f"{picture.captions[number].text} ."
            for phrase in sentence.phrases:
                kind = image.boxes.kind_of(phrase)
                kinds[kind] = kinds.get(kind, 0) + 1
                if kind == "boxed":
                    named(picture, phrase.text.split(), image.boxes.boxes[phrase.chain])
                else:
                    assert kind == {"A picture": "not visual"}.get(phrase.text, "scene")
    assert min(kinds.values()) > 5 and kinds.keys() == {"boxed", "scene", "not visual"}
    assert made.counts.left_out == {}
    assert made.written.manifest["counts"]["with boxes"] == kinds["boxed"]


def blocks(made: Made) -> dict[str, list[list[str]]]:
    found = {}
    for block in (made.folder / PARSES_NAME).read_text("utf-8").rstrip("\n").split("\n\n"):
        first, *lines = block.split("\n")
        found[first.removeprefix("# sent_id = ")] = [line.split("\t") for line in lines]
    return found


def test_a_parse_is_a_tree_over_the_words_and_a_phrase_hangs_on_by_its_last_one(made: Made) -> None:
    parses, labels = blocks(made), set[str]()

    def heads_of(image: EntityImage, number: int, words: list[str]) -> list[int]:
        rows = parses.pop(f"{image.name}#{number}")
        assert [row[1] for row in rows] == words
        labels.update(row[7] for row in rows)
        return [int(row[6]) - 1 for row in rows]

    for image in made.images:
        for number, sentence in image.sentences.items():
            heads = heads_of(image, number, sentence.words)
            for place in range(len(heads)):
                for _ in heads:
                    place = heads[place] if place >= 0 else place
                assert place == -1  # every way ends at the root
            assert heads.count(-1) == 1
            for phrase in sentence.phrases:
                inside = range(phrase.first_word, phrase.last_word + 1)
                assert [place for place in inside if heads[place] not in inside] == [phrase.last_word]
    assert parses == {}
    assert labels >= {"det", "amod", "pobj", "prep", "nsubj", "punct", "nummod", "compound", "conj", "relcl"}


def test_the_command_writes_them_beside_a_world_that_stays_as_it_was(tmp_path: Path, roibeam: Cli) -> None:
    words = ("toyworld", tmp_path / "world", "--seed", 7, "--num-images", 40)
    assert roibeam(*words).code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "world").rglob("*.*") if path.is_file()}
    told = json.loads(ok(roibeam(*words, "--entities", tmp_path / "entities", "--json")).out)["entities"]
    assert sum(told["images"].values()) == 40
    assert {path: path.read_bytes() for path in (tmp_path / "world").rglob("*.*") if path.is_file()} == before
    again = roibeam(*words, "--entities", tmp_path / "entities")
    assert f"{tmp_path / 'entities'}: all there already" in again.out
    assert re.search(r"\d+ captions, \d+ phrases, \d+ with boxes", again.out)
    small = ("toyworld", tmp_path / "world-8", "--seed", 8, "--num-images", 40, "--entities", tmp_path / "entities")
    assert "holds entities with world" in one_line(roibeam(*small))
