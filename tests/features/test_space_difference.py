"""What two fingerprints are said to differ in."""

import dataclasses

import pytest

from roibeam.extraction.network.config import PROPOSAL_SIZES
from roibeam.extraction.network.conventions import PROPOSAL_FIELDS
from roibeam.extraction.weights.families import HeadLayout
from roibeam.features.record.fingerprint import (
    LAYOUT_CONVENTIONS,
    PROPOSAL_PARTS,
    Fingerprint,
    feature_space_of,
    space_difference,
)


def made(**details: object) -> Fingerprint:
    return Fingerprint(feature_space_of(details), {}, details)


@pytest.mark.parametrize(
    ("field", "width", "said"),
    [
        ("background", 8, "weights (perhaps only in the order of their rows, which these conventions set)"),
        ("background", 9, "weights"),  # rows of another width are other weights
        ("resize", 8, "weights"),
    ],
)
def test_weights_of_another_row_order_are_not_called_other_weights(field: str, width: int, said: str) -> None:
    def of(weights: str, value: str, feature_dim: int) -> Fingerprint:
        conventions = {"background": "last", "resize": "float"} | {field: value}
        return made(detector={"weights": weights * 16, "conventions": conventions, "feature_dim": feature_dim})

    found = space_difference(of("one", "first", 8), of("two", "other", width), {"conventions": ("caffe", "hf")})
    assert found == f"conventions caffe / hf, {'feature dim 8 / 9, ' if width == 9 else ''}{said}"


def test_the_parts_are_named_as_the_detector_names_them() -> None:
    assert set(LAYOUT_CONVENTIONS) == {field.name for field in dataclasses.fields(HeadLayout)}
    assert PROPOSAL_PARTS == {"config": PROPOSAL_SIZES, "conventions": PROPOSAL_FIELDS}


def test_parts_that_nobody_knows_are_of_the_meaning() -> None:
    assert made(regions="given", unknown=1).meaning == made(regions={"max_regions": 36}, unknown=1).meaning
    assert made(regions="given", unknown=1).meaning != made(regions="given", unknown=2).meaning
    bare = made(detector={"weights": "a"}).feature_space
    assert Fingerprint(bare).meaning != Fingerprint(made(detector={"weights": "b"}).feature_space).meaning
    # Only the name of an imported store is known.
    assert Fingerprint("imported:mine", {}, {"feature_dtype": "float16"}).meaning == "imported:mine"
