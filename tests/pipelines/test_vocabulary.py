"""Vocabularies: the published files, a single list, the fetched lists, and lists of another detector."""

import re
from pathlib import Path

import pytest
from odd_servers import serve_oddly

from roibeam.pipelines.data.datasets.vcr import read_object_names
from roibeam.pipelines.data.datasets.visual_genome import read_names
from roibeam.pipelines.data.vocabulary import Vocabulary, load_vocabulary


def write(folder: Path, classes: int = 3, attributes: int = 2) -> Path:
    (folder / "objects_vocab.txt").write_text("\n".join(f"thing{i},other name" for i in range(classes)))
    (folder / "attributes_vocab.txt").write_text("".join(f"kind{i}\n" for i in range(attributes)))
    return folder


def test_published_lists_of_the_pack(shared_data: Path) -> None:
    names = load_vocabulary(str(shared_data / "vg"), num_classes=1600, num_attributes=400)
    assert names.classes is not None and names.attributes is not None
    assert (len(names.classes), len(names.attributes)) == (1600, 400)
    assert not any("," in name or name != name.strip() or not name for name in names.classes)


def test_folder_file_and_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    classes = ("thing0", "thing1", "thing2")
    assert load_vocabulary(str(tmp_path), num_classes=3, num_attributes=2) == Vocabulary(classes, ("kind0", "kind1"))
    assert load_vocabulary(str(tmp_path / "objects_vocab.txt"), num_classes=3, num_attributes=2) == Vocabulary(classes)
    assert load_vocabulary(None, num_classes=3, num_attributes=2) == Vocabulary()


def test_lists_of_another_detector_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    for classes, attributes, words in ((4, 2, "3 classes, but the detector has 4"), (3, 9, "9")):
        with pytest.raises(ValueError, match=words):
            load_vocabulary(str(tmp_path), num_classes=classes, num_attributes=attributes)


def one_list(tmp_path: Path, content: bytes, num_classes: int) -> tuple[str, ...] | None:
    (tmp_path / "names.txt").write_bytes(content)
    return load_vocabulary(str(tmp_path / "names.txt"), num_classes=num_classes, num_attributes=None).classes


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"\xef\xbb\xbfcat\r\ndog", ("cat", "dog")),  # as Windows editors write it
        (b"cat\ndog\n", ("cat", "dog")),
        (b"cat\nbackground\ndog\n", ("cat", "background", "dog")),  # between other names it is a class
        (b"background noise\ncat\n", ("background noise", "cat")),
        ("tabby\u2028cat\ndog\x0c\ncow\x0bbell\n".encode(), ("tabby\u2028cat", "dog", "cow\x0bbell")),
    ],
)
def test_lines_end_at_line_feeds_alone(tmp_path: Path, content: bytes, names: tuple[str, ...]) -> None:
    assert one_list(tmp_path, content, len(names)) == names


@pytest.mark.parametrize(
    "content",
    [
        "\ufeff__background__\r\ncat\r\ndog\r\n", "cat,kitten\ndog\nBackground", "no object\ncat\ndog", "BG\ncat\ndog",
        '["cat", "dog"]', '\ufeff ["__background__", "cat", "dog"]', '{"0": "cat", "1": "dog"}',
        '{"1": "dog", "0": "cat"}', '{"1": "cat", "2": "dog"}', '{"0": "no-object", "1": "cat", "2": "dog"}',
        '{"dog": 1, "cat": 0}', '[{"id": 2, "name": "dog"}, {"id": 1, "name": "cat"}]',
        '{"images": [], "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]}',
        '{"names": ["cat", "dog"]}', '{"idx_to_label": {"1": "cat", "2": "dog"}, "label_to_idx": {"cat": 1, "dog": 2}}',
    ],
)  # fmt: skip
def test_forms_of_one_list(tmp_path: Path, content: str) -> None:
    """Background has no number here, so a name of it is left out where it is first or last."""
    assert one_list(tmp_path, content.encode(), 2) == ("cat", "dog")
    objects = read_object_names(str(tmp_path / "names.txt"))  # of vcr.object_names and sampling.object_names
    assert [name.partition(",")[0] for name in objects] == ["cat", "dog"]
    assert read_names(str(tmp_path / "names.txt")).ids["dog"] == 1  # of --labels-vocab


LABELS = '"idx_to_label": {"1": "cat", "2": "dog"}, "label_to_idx": {"cat": 1, "dog": 2}, "predicate_to_idx": {"on": 1}'


@pytest.mark.parametrize(
    ("more", "attributes"),
    [
        ('"idx_to_attribute": {"1": "red", "2": "big,large"}, "attribute_to_idx": {"red": 1}', ("red", "big")),
        ('"attribute_to_idx": {"big": 2, "red": 1}', ("red", "big")),
        ('"attribute_to_idx": {"no attribute": 0, "big": 2, "red": 1}', ("red", "big")),
        ('"attribute_to_idx": {}', None),  # of four data sets, with 1,848 classes
        ('"idx_to_predicate": {"1": "on"}', None),
    ],
)
def test_a_label_map_of_vinvl_has_classes_and_attributes(
    tmp_path: Path, more: str, attributes: tuple[str, ...] | None
) -> None:
    """Guards that the attributes of the one file are taken as well: a file of classes alone leaves numbers."""
    (tmp_path / "map.json").write_text(f"{{{LABELS}, {more}}}")
    names = load_vocabulary(str(tmp_path / "map.json"), num_classes=2, num_attributes=2)
    assert names == Vocabulary(("cat", "dog"), attributes)
    with pytest.raises(ValueError, match="2 attributes, but the detector has 524" if attributes else "2 classes, but"):
        load_vocabulary(str(tmp_path / "map.json"), num_classes=2 if attributes else 3, num_attributes=524)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"cat\rdog\r", "line 1: holds a carriage return"),
        ("cat\ndog".encode("utf-16"), "is UTF-16 text; convert it to UTF-8"),
        (b"1\n2\n3\n", "its names are numbers, the first '1'"),
        (b"", "holds no name"),
        (b'["cat", 3]', "its JSON is no list of class names; expected is a list of names, "),
        (b'{"a": {"b": 1}}', "its JSON is no list of class names"),
        (b'["cat"', "begins like JSON and is none"),
        (b'{"0": "cat", "2": "dog"}', "its 2 names have numbers from 0 to 2, 1 is missing"),
        (b'["__background__", "cat", "dog", "cow"]', "3 classes, but the detector has 2"),
    ],
)
def test_what_is_no_list_of_names_is_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as raised:
        one_list(tmp_path, content, 2)
    assert "\n" not in str(raised.value) and "names.txt" in str(raised.value)


def test_a_line_without_a_name_and_a_list_that_is_no_text_or_not_there_are_refused(tmp_path: Path) -> None:
    for content in (b"cat\n\ndog\n", b"cat\n , dog\ncow", b"cat\n\n"):
        with pytest.raises(ValueError, match=r"names\.txt', line 2: no name"):
            one_list(tmp_path, content, content.count(b"\n"))
    with pytest.raises(ValueError, match=r"vocabulary '.*names\.txt', line 2: not UTF-8$"):
        one_list(tmp_path, b"cat\n\xff\n", 2)
    with pytest.raises(ValueError, match=r"vocabulary '.*objects_vocab\.txt': No such file or directory$"):
        load_vocabulary(str(tmp_path), num_classes=2, num_attributes=1)


def test_vg_lists_are_fetched_and_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "served").mkdir()
    with serve_oddly(write(tmp_path / "served"), {}) as server:
        names = load_vocabulary("vg", num_classes=3, num_attributes=2, vg_url=server)
        assert names.classes == ("thing0", "thing1", "thing2") and names.attributes == ("kind0", "kind1")
        assert len(list((tmp_path / "cache").rglob("*_vocab.txt"))) == 2
        with pytest.raises(ValueError, match=r"cannot fetch objects_vocab\.txt .*--vocab DIR"):
            load_vocabulary("vg", num_classes=3, num_attributes=2, vg_url=f"{server}/missing")
