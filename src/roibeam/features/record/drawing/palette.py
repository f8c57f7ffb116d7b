"""Colours of region classes, and of the text on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# Ten colours of two palettes for colour blindness, Martin Krzywinski's (mk.bcgsc.ca/colorblind) and Okabe and Ito's
# (jfly.uni-koeln.de/color): those of which any two stay furthest apart, whoever looks. A test measures by how much.
PALETTE = (
    "#e69f00", "#008df9", "#9f0162", "#00fccf", "#d55e00", "#8400cd", "#ffb2fd", "#a40122", "#f0e442", "#ff5aaf",
)  # fmt: skip


def colours_by_class(photos: Iterable[Sequence[int]]) -> dict[int, str]:
    """One colour per class for a whole page; classes of one photo get different ones while the palette lasts.

    A class has a colour of its own, by its id, and gets another one where that is taken: so most classes look alike on
    all pictures.

    Args:
        photos: class ids of each photo's regions.
    Returns:
        class id -> "#rrggbb".
    """
    neighbours: dict[int, set[int]] = {}
    drawn: dict[int, int] = {}
    for photo in photos:
        classes = set(photo)
        for class_id in classes:
            neighbours.setdefault(class_id, set()).update(classes - {class_id})
            drawn[class_id] = drawn.get(class_id, 0) + 1
    colours: dict[int, str] = {}
    uses = dict.fromkeys(PALETTE, 0)
    for class_id in sorted(drawn, key=lambda each: (-drawn[each], each)):
        taken = {colours[other] for other in neighbours[class_id] if other in colours}
        free = [colour for colour in PALETTE if colour not in taken] or list(PALETTE)
        own = PALETTE[class_id % len(PALETTE)]
        colours[class_id] = own if own in free else min(free, key=lambda colour: uses[colour])
        uses[colours[class_id]] += 1
    return colours


def text_colour_on(background: str) -> str:
    """Black or white, whichever reads better on "#rrggbb".

    The better one always has a contrast over 4.5:1, what WCAG 2.1 asks for text at level AA.
    """
    channels = (int(background[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#000000" if (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) else "#ffffff"
