"""Pages and their pictures into files: what a worker does with some pages of the plan.

Imports little, so that processes start quickly.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from roibeam.pipelines.toyworld.picture import Picture, describe
from roibeam.pipelines.toyworld.randomness import IntegerStream
from roibeam.pipelines.toyworld.scene import Drawing, generate
from roibeam.pipelines.toyworld.web.page_html import ShownPicture, charset_of, page_html, site_folder
from roibeam.pipelines.toyworld.web.page_plan import FIRST_WEB_SCENE, NUM_SITES, PagePlan, plan_pages
from roibeam.pipelines.toyworld.web.page_texts import page_texts
from roibeam.pipelines.toyworld.web.web_pictures import (
    LARGEST_EDGE,
    RULE_PX,
    SORTS,
    encoded,
    natural_picture,
    natural_size,
    unnatural_picture,
)

PAGES_FOLDER = "site"
_PURPOSE_OF_PICTURE, _PURPOSE_OF_TEXT, _PURPOSE_OF_PAGE = 12, 13, 14
_OTHER_SCENES = 1 << 42  # of texts about another picture; 64 for each page


@dataclass(frozen=True)
class WebPlan:
    """What all pages follow from. `base` is the address of the site folder, `median_kb` the size of a page (10^3)."""

    seed: int
    num_pages: int
    base: str
    median_kb: int
    evaluation_scenes: tuple[int, ...]


@cache
def pages_of(plan: WebPlan) -> tuple[PagePlan, ...]:
    return tuple(plan_pages(plan.seed, plan.num_pages, plan.evaluation_scenes))


def draw_pages(out: Path, plan: WebPlan, first: int, last: int) -> list[str]:
    """Writes the pages first to last - 1 with their pictures; returns a line of json for each, its truth."""
    return [_draw_page(out / PAGES_FOLDER, plan, page) for page in pages_of(plan)[first:last]]


def _draw_page(folder: Path, plan: WebPlan, page: PagePlan) -> str:
    drawing = generate(plan.seed, page.scene)
    scene = describe(drawing)
    shown, file, entry = _picture(folder, plan, page, drawing)
    stream = IntegerStream(plan.seed, _PURPOSE_OF_TEXT, page.number)
    texts = page_texts(page, stream, scene, lambda number: _other(plan.seed, page.number, number), str(entry["sort"]))
    name = f"{site_folder(page.site)}/story-{page.number:06d}.html"
    stream = IntegerStream(plan.seed, _PURPOSE_OF_PAGE, page.number)
    spread = stream.between(40, 100) if stream.percent(50) else stream.between(100, 250)
    size = plan.median_kb * 10 * spread
    body = page_html(page, stream, f"{plan.base}/{name}", shown, texts, size)
    (folder / name).write_bytes(body)
    good_picture = bool(entry["natural"]) and min(shown.height, shown.width) > RULE_PX
    good_page = good_picture and page.kind not in ("foreign", "evaluation", "opted out")
    truth = {
        "page": f"{plan.base}/{name}",
        "file": name,
        "charset": charset_of(page),
        "kind": page.kind,
        "language": page.language,
        "picture": {**entry, "file": file, "height": shown.height, "width": shown.width},
        "texts": [asdict(text) for text in texts],
        "good": good_page and any(text.good for text in texts),
    }
    return json.dumps(truth, ensure_ascii=True) + "\n"


@cache
def _other(seed: int, page: int, number: int) -> Picture:
    return describe(generate(seed, _OTHER_SCENES + 64 * page + number))


def _picture(folder: Path, plan: WebPlan, page: PagePlan, drawing: Drawing) -> tuple[ShownPicture, str, dict[str, Any]]:
    """Writes the main picture; returns how the page shows it, its file below `folder`, and what is known of it."""
    # All copies are drawn from the stream of the first.
    owner = page.scene - FIRST_WEB_SCENE if page.copy else page.number
    stream = IntegerStream(plan.seed, _PURPOSE_OF_PICTURE, owner)
    natural = page.kind != "unnatural"
    sort = "" if natural else stream.pick(SORTS)
    if natural:
        scene = drawing.scene
        size = natural_size(stream, scene.height, scene.width, small=page.kind == "small")
    else:
        size = stream.between(RULE_PX + 1, 600), stream.between(RULE_PX + 1, LARGEST_EDGE)
    is_png = stream.percent(4 if natural else 55)
    quality = stream.between(60, 95)
    site = pages_of(plan)[owner].site if page.copy == 1 else page.site
    number = owner if page.copy == 1 else page.number  # the second page shows the first one's file
    extension = ".png" if is_png else ".jpg"
    file = f"{site_folder(site)}/img/{number:06d}{extension}"
    if page.copy == 2:  # the third has a copy of its own, a little smaller where that is still large enough
        smaller = (size[0] * 9 // 10, size[1] * 9 // 10)
        size, quality = (smaller if min(smaller) > RULE_PX else size), 70
    pixels = natural_picture(drawing, size) if natural else unnatural_picture(sort, stream, *size)
    urls = [f"{plan.base}/{file}"]
    if page.copy != 1:
        (folder / file).write_bytes(encoded(pixels, extension, quality))
    smaller_url = ""
    if natural and not page.copy and stream.percent(20):
        small = file.replace(extension, f"-half{extension}")
        half = pixels[: size[0] // 2 * 2, : size[1] // 2 * 2].reshape(size[0] // 2, 2, size[1] // 2, 2, 3)
        (folder / small).write_bytes(encoded(half.mean(axis=(1, 3)).astype("uint8"), extension, quality))
        smaller_url = f"{plan.base}/{small}"
        urls.append(smaller_url)
    entry = {"id": page.scene if natural else -1 - page.number, "urls": urls, "natural": natural, "sort": sort}
    return ShownPicture(urls[0], size[1], size[0], smaller_url), file, entry


def draw_static(out: Path, seed: int) -> None:
    """The small pictures that all pages of a site show: logo, icons, banners, thumbnails."""
    from roibeam.pipelines.toyworld.web.furniture import BANNER_HW, ICON_PX, LOGO_HW, NUM_STATIC, THUMBNAIL_PX

    for site in range(NUM_SITES):
        folder = out / PAGES_FOLDER / site_folder(site)
        (folder / "img").mkdir(parents=True)
        (folder / "static").mkdir()
        stream = IntegerStream(seed, _PURPOSE_OF_PICTURE, FIRST_WEB_SCENE + site)
        logo = unnatural_picture("logo", stream, *LOGO_HW)
        (folder / "static" / "logo.png").write_bytes(encoded(logo, ".png", 0))
        for kind in ("mail", "share"):
            icon = unnatural_picture("logo", stream, ICON_PX, ICON_PX)
            (folder / "static" / f"icon-{kind}.png").write_bytes(encoded(icon, ".png", 0))
        for number in range(NUM_STATIC):
            banner = unnatural_picture("banner", stream, *BANNER_HW)
            (folder / "static" / f"banner-{number}.png").write_bytes(encoded(banner, ".png", 0))
            drawing = generate(seed, _OTHER_SCENES - NUM_SITES * NUM_STATIC + site * NUM_STATIC + number)
            thumbnail = natural_picture(drawing, (THUMBNAIL_PX, THUMBNAIL_PX))
            (folder / "static" / f"thumbnail-{number}.jpg").write_bytes(encoded(thumbnail, ".jpg", 80))
