"""Why two sources of records are not equal, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from roibeam.features.comparison.region_matching import MATCH_IOU
from roibeam.features.comparison.result import ERRORS, SAME_BOX_PX, StoreComparison
from roibeam.features.comparison.scope import ComparisonScope
from roibeam.features.counted import counted


def differences(found: StoreComparison, scope: ComparisonScope, id_rule: str) -> Iterator[str]:
    """One sentence for each kind of difference; none when the sources are equal within `found.max_error`."""
    if not found.num_common and not found.num_unreadable:
        shown = ", ".join(repr(ids[0]) for ids in (found.examples_only_left, found.examples_only_right) if ids)
        other = "; pairing ids by number may help (--ids number)" if id_rule == "exact" and shown else ""
        yield f"no image is on both sides (ids such as {shown or 'none'}){other}"
    for side, count in (("left", found.num_only_left), ("right", found.num_only_right)):
        if count:
            yield f"{counted(count, 'image')} {'is' if count == 1 else 'are'} only on the {side}"
    for source in (found.left, found.right):
        if source.bad_entries:
            yield f"{counted(sum(source.bad_entries.values()), 'entry', 'entries')} of {source.name} cannot be used"
    for count, what in (
        (found.num_unreadable, "no usable record on one side"),
        (found.num_other_size, "another height or width"),
    ):
        if count:
            yield _images_have(count, what)
    alone = [count - found.num_matched for count in (found.num_left_regions, found.num_right_regions)]
    if any(alone):
        regions = f"{counted(alone[0], 'region')} of the left and {alone[1]:,} of the right"
        yield f"{regions} have no partner of IoU >= {MATCH_IOU}"
    if moved := found.num_matched - found.num_same_box:
        yield f"{counted(moved, 'matched box', 'matched boxes')} differ{_s(moved)} by more than {SAME_BOX_PX} px"
    if not scope.features:
        yield f"features are {found.left.feature_dim} wide on the left, {found.right.feature_dim} on the right"
    for case, what in (
        ("distributions of other widths", "class distributions of another number of classes"),
        ("image features of other widths", "an image feature of another width"),
    ):
        if scope.cases[case]:
            yield _images_have(scope.cases[case], what)
    for name, what in ERRORS.items():
        error: float | None = getattr(found, name)
        if error is not None and error > found.max_error:
            yield f"{what} differ by up to {error:.2e}, more than {found.max_error:g}"
    for what, same, pairs in (
        ("classes", found.num_same_class, found.num_class_pairs),
        ("attributes", found.num_same_attribute, found.num_attribute_pairs),
    ):
        if same < pairs:
            yield f"{pairs - same:,} of {pairs:,} {what} differ{_s(pairs - same)}"


def _images_have(count: int, what: str) -> str:
    return f"{counted(count, 'image')} {'has' if count == 1 else 'have'} {what}"


def _s(count: int) -> str:
    """Ending of the verb."""
    return "s" if count == 1 else ""
