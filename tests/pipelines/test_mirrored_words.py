"""Left and right in the captions of mirrored photos."""

import pytest

from roibeam.pipelines.data.record_regions import swap_left_right


@pytest.mark.parametrize(
    ("caption", "mirrored"),
    [
        ("a cup left of a box", "a cup right of a box"),
        ("The Left one, the RIGHT one", "The Right one, the LEFT one"),
        ("leftmost and rightward, left-hand side", "rightmost and leftward, right-hand side"),
        ("leftovers, bright rights", "leftovers, bright rights"),
        ("right/left", "left/right"),
        ("", ""),
    ],
)
def test_whole_words_change_places(caption, mirrored):
    assert swap_left_right(caption) == mirrored
    assert swap_left_right(mirrored) == caption
