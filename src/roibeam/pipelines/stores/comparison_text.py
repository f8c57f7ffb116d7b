"""A comparison of two stores as lines of text."""

from __future__ import annotations

from roibeam.features.comparison.store_comparison import SourceFacts, StoreComparison
from roibeam.features.counted import counted
from roibeam.features.printable import printable


def comparison_text(found: StoreComparison) -> str:
    """What `roibeam store diff` prints; one line of figures for each of the worst images when they differ."""
    lines = [f"{what:<22} {printable(figure, 300)}" for what, figure in summary_rows(found)]
    for side in (found.left, found.right):
        lines += [f"unusable: {printable(line, 300)}" for line in side.first_bad_entries]
    lines += [f"note: {printable(note, 600)}" for note in found.notes]
    if found.worst and not found.equal:
        lines.append(
            f"{'regions':>13} {'pairs':>6} {'0.1 px':>6} {'cosine':>8} {'error':>8} {'class':>6}  worst images"
        )
        for image in found.worst:
            cosine = f"{image.cosine_min:8.4f}" if image.cosine_min is not None else f"{'-':>8}"
            error = f"{image.feature_error:8.1e}" if image.feature_error is not None else f"{'-':>8}"
            same_class = "-" if image.num_same_class is None else image.num_same_class
            counts = f"{image.num_left:>6,} {image.num_right:>6,} {image.num_matched:>6,} {image.num_same_box:>6,}"
            lines.append(f"{counts} {cosine} {error} {same_class:>6}  {printable(image.image_id, 100)}")
    lines += [f"different: {printable(difference, 300)}" for difference in found.differences]
    if found.equal:
        lines.append(f"equal: boxes within 0.1 px, features, scores and distributions within {found.max_error:g}")
    return "\n".join(lines)


def summary_rows(found: StoreComparison) -> list[tuple[str, str]]:
    """(what, figure) in reading order."""
    rows = [
        ("left", _side(found.left)),
        ("right", _side(found.right)),
        (
            "images on both sides",
            f"{found.num_common:,} ({found.num_only_left:,} only left, {found.num_only_right:,} only right)",
        ),
        ("other image size", f"{found.num_other_size:,}"),
        ("regions", f"{found.num_left_regions:,} left, {found.num_right_regions:,} right"),
        (
            "matched, IoU >= 0.5",
            f"{found.num_matched:,} ({_share(found.num_matched, found.num_left_regions)} of left, "
            f"{_share(found.num_matched, found.num_right_regions)} of right)",
        ),
        ("  within 0.1 px", f"{found.num_same_box:,} ({_share(found.num_same_box, found.num_matched)} of matched)"),
    ]
    if found.cosine_mean is not None and found.cosine_p1 is not None and found.cosine_min is not None:
        cosines = f"mean {found.cosine_mean:.6f}, 1st percentile {found.cosine_p1:.6f}, smallest {found.cosine_min:.6f}"
        rows.append(("feature cosine", cosines))
    if found.feature_error is not None:
        where = f", in {found.feature_error_image}" if found.feature_error_image is not None else ""
        rows.append(("feature error", f"{found.feature_error:.2e} of the largest value{where}"))
    for what, same, pairs in (
        ("same class", found.num_same_class, found.num_class_pairs),
        ("same attribute", found.num_same_attribute, found.num_attribute_pairs),
    ):
        if pairs:
            rows.append((what, f"{same:,} of {pairs:,} ({_share(same, pairs)})"))
    if found.score_error is not None and found.score_error_mean is not None:
        rows.append(("class score error", f"mean {found.score_error_mean:.2e}, largest {found.score_error:.2e}"))
    for what, error in (
        ("attribute score error", found.attribute_score_error),
        ("distribution error", found.distribution_error),
        ("image feature error", found.image_feature_error),
    ):
        if error is not None:
            rows.append((what, f"{error:.2e}{' of the largest value' if what == 'image feature error' else ''}"))
    return rows


def _side(side: SourceFacts) -> str:
    return f"{side.name}: {counted(side.num_images, 'image')}, {side.feature_space[:24]}"


def _share(part: int, whole: int) -> str:
    if part < whole and part / whole > 0.9995:
        return "< 100 %"  # one pair among millions is not all of them
    return f"{100 * part / whole:.1f} %" if whole else "-"
