"""Whether given boxes can be of a photo at all."""

from __future__ import annotations

import numpy as np


def photo_slack(image_hw: tuple[int, int]) -> np.ndarray:
    """(2,) pixels by which boxes may reach past a photo's height and width: a hundredth of the side and one pixel."""
    return np.array(image_hw) * 0.01 + 1


def lie_inside(boxes: np.ndarray, image_hw: tuple[int, int]) -> np.ndarray:
    """Which boxes lie inside a photo, but for `photo_slack`.

    Args:
        boxes: (K, 4), x1 y1 x2 y2 in pixels.
    Returns:
        (K,) bool; False where a number is NaN.
    """
    slack_xy = photo_slack(image_hw)[::-1]
    limit = np.array(image_hw)[::-1] + slack_xy
    is_inside = (boxes >= np.tile(-slack_xy, 2)).all(axis=1) & (boxes <= np.tile(limit, 2)).all(axis=1)
    return np.asarray(is_inside)


def box_problem(
    boxes: np.ndarray, image_hw: tuple[int, int], boxes_hw: tuple[int, int] | None
) -> tuple[str, str] | None:
    """Why these boxes are not regions of this photo: a word for counting and a line for a person, or None.

    Annotations reach past the edge by a rounding error, and published codes clip them without a word. Here a box may do
    so by one pixel and a hundredth of the side; beyond that the photo is another one, or has been resized, and features
    of clipped boxes would be wrong without anybody noticing.

    Args:
        boxes: (K, 4) float32, x1 y1 x2 y2.
        image_hw: of the decoded photo, pixels.
        boxes_hw: of the image that the boxes were drawn on, if known.
    """
    height, width = image_hw
    if boxes_hw is not None and bool((np.abs(np.subtract(boxes_hw, image_hw)) > photo_slack(image_hw)).any()):
        drawn_on, found = f"{boxes_hw[1]}x{boxes_hw[0]}", f"{width}x{height}"
        return "boxes of another image size", (
            f"the boxes are of an image of {drawn_on} pixels (width x height), this one has {found}: "
            f"another photo, resized, or turned by its EXIF tag"
        )
    # Written so that NaN fails every test.
    is_box = np.isfinite(boxes).all(axis=1) & (boxes[:, 2:] >= boxes[:, :2]).all(axis=1)
    in_shares = len(boxes) > 0 and min(height, width) > 1 and 0 < float(boxes.max()) <= 1
    is_pixels = np.full(len(boxes), not in_shares)
    is_inside = lie_inside(boxes, image_hw)
    for is_good, reason, what in (
        (is_box, "not a box", "expected finite x1 y1 x2 y2 with x2 >= x1 and y2 >= y1; x, y, width, height perhaps?"),
        (is_pixels, "boxes in shares", f"all lie in 0..1; expected pixels of a photo of {width}x{height}"),
        (is_inside, "box outside the photo", f"the photo has {width}x{height} pixels; is it another or a resized one?"),
    ):
        if not is_good.all():
            first = int(np.argmin(is_good))
            numbers = " ".join(f"{edge:g}" for edge in boxes[first].tolist())
            return reason, f"box {first} of {len(boxes)} (from 0) is {numbers}; {what}"
    return None
