"""Flickr30k Entities as files: phrases where they are marked, boxes, and what of a folder cannot be used.

What three codes make of the same lines is compared in test_metrics.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from roibeam.pipelines.data.datasets.entities import (
    RELEASE,
    EntityCounts,
    EntityImage,
    parse_marked_sentence,
    read_entities,
    split_names,
)

XML = """<annotation><size><width>50</width><height>40</height><depth>3</depth></size>
<object><name>1</name><name>7</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>8</ymax></bndbox></object>
<object><name>1</name><bndbox><xmin>11</xmin><ymin>12</ymin><xmax>19</xmax><ymax>18</ymax></bndbox></object>
<object><name>2</name><scene>1</scene><nobndbox>0</nobndbox></object>
<object><name>3</name><scene>0</scene><nobndbox>1</nobndbox></object></annotation>"""
LINE = (
    "[/EN#1/people A man] sees ([/EN#7/people/other a man]) , in [/EN#2/scene a yard], [/EN#3/other a hat] "
    "[/EN#9/clothing a coat] and [/EN#0/notvisual it] ."
)


def make(folder: Path, sentences: dict[str, str], annotations: dict[str, str]) -> str:
    for part, suffix, texts in (("Sentences", "txt", sentences), ("Annotations", "xml", annotations)):
        (folder / part).mkdir()
        for name, text in texts.items():
            (folder / part / f"{name}.{suffix}").write_text(text, "utf-8")
    return str(folder)


def read(folder: str, **options: str) -> tuple[list[EntityImage], list[str]]:
    counts = EntityCounts()
    return list(read_entities(folder, counts, **options)), counts.lines()


def test_a_phrase_is_where_its_mark_is_with_its_boxes_and_is_told_from_those_without(tmp_path: Path) -> None:
    (image,), (whole, unknown) = read(make(tmp_path, {"36": f"\n{LINE}\n"}, {"36": XML}))
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
    images, lines = read(make(tmp_path, sentences, annotations))
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
    folder = make(tmp_path, {"1": LINE, "2": LINE}, {"1": XML, "2": XML})
    (tmp_path / "val.txt").write_text("2\n")
    images = list(read_entities(folder, EntityCounts(), names=split_names(folder, "val")))
    assert [image.name for image in images] == ["2"]
    with pytest.raises(ValueError, match=r"no test\.txt; it has lists of val"):
        split_names(folder, "test")
    with pytest.raises(ValueError, match="expected the name of a list"):
        split_names(folder, "../val")


def test_a_folder_without_its_parts_or_without_a_usable_caption_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a" / "Sentences").mkdir(parents=True)
    with pytest.raises(ValueError, match="has no folder Annotations; expected that of Flickr30k Entities"):
        read(str(tmp_path / "a"))
    (tmp_path / "b").mkdir()
    with pytest.raises(ValueError, match=r"no caption can be used \(1 images without an xml file: 1\)"):
        read(make(tmp_path / "b", {"1": LINE}, {}))
