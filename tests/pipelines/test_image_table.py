"""The table of a source's images: order, merged rows, places, and what is no image."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.pipelines.data.image_table import ImageTable


def told(name: str, *captions: str, labels: tuple[str, ...] = ()) -> ImageRef:
    return ImageRef(name, f"/x/{name}.jpg", captions=captions, labels=labels)


@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_sorted_list(seed: int) -> None:
    random_order = random.Random(seed)
    names = [f"{'é🐱zZ/'[i % 5]}{i:03d}" for i in range(200)]
    wanted = [told(name, name * 2, labels=("a",)) for name in sorted(names, key=str.encode)]
    shuffled = random_order.sample(wanted, len(wanted))
    for given in (shuffled, wanted):
        table = ImageTable(iter(given))
        assert list(table) == wanted and len(table) == 200
        for place in (
            slice(None),
            slice(3, 9),
            slice(190, 999),
            slice(5, 2),
            slice(1, None, 50),
            slice(None, None, -7),
        ):
            assert table[place] == wanted[place]
        assert [table[0], table[-1], table[77]] == [wanted[0], wanted[-1], wanted[77]]
        with pytest.raises(IndexError):
            table[200]


def test_rows_of_one_image_add_up_in_their_order() -> None:
    rows = [told("b", "2", labels=("y", "x")), told("a"), told("b"), told("b", "1", "2", labels=("x", "z"))]
    assert list(ImageTable(rows)) == [told("a"), told("b", "2", "1", "2", labels=("y", "x", "z"))]
    assert not ImageTable([])


def test_two_locations_of_one_id_are_an_error_that_names_both() -> None:
    other = ImageRef("a", "/y/a.png")
    with pytest.raises(ValueError, match=r"two images have the id 'a': '/x/a\.jpg' and '/y/a\.png'; rename one"):
        ImageTable([told("b"), told("a"), other])
    tars = [ImageRef(key, f"tar://{key}.jpg::/{name}/0.tar#0+9") for name in ("cc3m", "cc12m") for key in "ab"]
    with pytest.raises(ValueError, match=r"the id 'a': .*/cc12m/.* \(2 ids are of two images\); .* --id-prefix, and"):
        ImageTable(tars)


def test_planned_images_are_compared_with_those_of_now() -> None:
    table = ImageTable([*map(told, "abc"), told("d", "new"), replace(told("e"), location="/y/e.jpg"), told("f")])
    planned = [(7, told("e")), (0, told("d", "old")), (0, told("c")), (1, told("gone")), (2, told("a"))]
    for _ in range(2):  # the table stays as it is
        found = table.compared_with(iter(planned))
        assert list(found.new) == [told("b"), told("f")]
        assert (found.num_gone, list(found.gone())) == (1, ["gone"])
        assert list(found.changed()) == [(0, table[3]), (7, table[4])]
    assert len(table.compared_with((0, image) for image in table).new) == 0


def test_two_walks_at_once_do_not_disturb_each_other() -> None:
    table = ImageTable(map(told, "abc"))
    assert [(x.image_id, y.image_id) for x in table for y in table] == [(x, y) for x in "abc" for y in "abc"]


def test_a_full_disk_is_one_line_that_says_where() -> None:
    table = ImageTable(map(told, "ab"))
    ((pages,),) = table._database.rows("PRAGMA page_count")
    table._database.rows(f"PRAGMA max_page_count={pages}")
    with pytest.raises(OSError, match=r"database or disk is full; is there room in TMPDIR"):
        table.compared_with((0, told(str(number))) for number in range(9999))
