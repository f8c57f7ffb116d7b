"""report.html of a collection: the funnel by step and reason, histograms, kept and dropped examples, hosts.

Everything from pages is hostile: each text is escaped where it becomes markup, pictures are decoded and drawn anew as
small JPEGs, and the page asks for nothing.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2

from roibeam.extraction.photos.decode import DecodeError, decode_image
from roibeam.features.counted import counted
from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.features.printable import escaped
from roibeam.pipelines.collection.choosing.aggregation import DroppedPair
from roibeam.pipelines.collection.pair import Pair
from roibeam.pipelines.collection.reasons import Reason, Step
from roibeam.pipelines.collection.running.part import Counts
from roibeam.pipelines.foundation.pages.charts import Bar, bars_of_integers, histogram
from roibeam.pipelines.foundation.pages.frame import PAGE_END, note, page_start, table, tiles

REPORT_NAME = "report.html"
PAPER_MEAN_WORDS = 13
_KEPT_SHOWN, _DROPPED_SHOWN, _HOSTS_SHOWN = 24, 4, 30
_THUMBNAIL_PX = 320
_STEP_WORDS = {
    Step.PAGES: "pages read", Step.LANGUAGE: "pages in the language", Step.IMAGE: "pages with a dominant image",
    Step.TEXT: "pages with a text", Step.FETCH: "images fetched", Step.PICTURE: "images that are fit",
    Step.SCORE: "images with a text that fits", Step.AGGREGATION: "pairs",
}  # fmt: skip
_UNFIT_TO_SHOW = frozenset({Reason.NSFW.value, Reason.ADULT_WORD.value})


def write_report(
    out: Path, summary: Mapping[str, Any], pages: Counts, fetch: Counts, pictures: Counts, kept: Sequence[Pair],
    dropped: Sequence[DroppedPair],
) -> None:  # fmt: skip
    """Writes OUT/report.html.

    Args:
        summary: what collection.json holds.
        pages, fetch, pictures: counts with examples.
    """
    parts = [
        page_start(
            out.name, f"Image-text pairs of {counted(pages.taken, 'web page')}, collected as ImageBERT's LAIT was.",
            style=_STYLE,
        ),
        tiles([
            ("pages", f"{summary['pages']:,}"), ("images to fetch", f"{summary['images']:,}"),
            ("fetched, large enough", f"{summary['fetched']:,}"), ("pairs", f"{summary['pairs']:,}"),
            ("words a text", f"{summary['mean_words']:.1f}"), ("in the paper", f"{PAPER_MEAN_WORDS}"),
        ]),
        *(note("Note.", text) for text in summary["notes"]),
        *_funnel(summary),
        *_text_rules(pages),
        *_histograms(kept, pages),
        *_kept(kept),
        *_dropped((pages, fetch, pictures), dropped),
        *_hosts(pages, kept),
        PAGE_END,
    ]  # fmt: skip
    write_bytes_atomically(out / REPORT_NAME, "".join(parts).encode("utf-8", "replace"))


_STYLE = """
.funnel i { display: block; min-width: 1px; height: 12px; background: var(--bar); }
.funnel td:nth-child(3) { width: 45%; }
.pairs-grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(220px, 100%), 1fr)); gap: 18px 16px; }
.pairs-grid img, .pairs-grid .missing { width: 100%; aspect-ratio: 4 / 3; object-fit: contain;
  background: var(--frame); }
.pairs-grid figcaption { font-size: 13px; overflow-wrap: anywhere; }
"""


def _funnel(summary: Mapping[str, Any]) -> Iterator[str]:
    left, first = summary["pages"], max(summary["pages"], 1)
    rows = []
    for step in Step:
        reasons: Mapping[str, int] = summary["dropped"][step.value]
        if step is Step.FETCH:  # from here on images, each of one page or of several
            left, first = summary["images"], max(summary["images"], 1)
        left -= sum(reasons.values())
        why = ", ".join(f"{escaped(reason)} {count:,}" for reason, count in Counter(reasons).most_common())
        bar = f'<i style="width:{100 * max(left, 0) / first:.1f}%"></i>'
        rows.append((_STEP_WORDS[step], f"{left:,}", bar, why or "none"))
    yield "<section><h2>Funnel</h2>\n"
    yield table(("What is left", "Count", "Share", "Dropped at this step"), rows, numbers=(1,)).replace(
        'class="table"', 'class="table funnel"', 1
    )
    yield "</section>\n"


def _text_rules(pages: Counts) -> Iterator[str]:
    if not pages.text_reasons:
        return
    rows = []
    for reason, count in pages.text_reasons.most_common():
        examples = pages.examples.get(reason, ())
        shown = " · ".join(f"<bdi>{escaped(each.get('text', ''), 80)}</bdi>" for each in examples[:2])
        rows.append((escaped(reason), f"{count:,}", "" if reason in _UNFIT_TO_SHOW else shown))
    kept = sum(pages.words.values())
    yield f"<section><h2>Candidate texts <small>{counted(kept, 'text')} passed the rules</small></h2>\n"
    yield table(("Rule against it", "Texts", "Such as"), rows, numbers=(1,)) + "</section>\n"


def _histograms(kept: Sequence[Pair], pages: Counts) -> Iterator[str]:
    words = Counter(len(pair.text.text.split()) for pair in kept) or pages.words
    if not words:
        return
    yield '<section><h2>Distributions</h2>\n<div class="charts">\n<div>'
    yield f"<h3>Words of a text <small>the paper's mean is {PAPER_MEAN_WORDS}</small></h3>"
    bars = bars_of_integers(words)
    yield histogram(bars, noun="text", ticks=_ticks(bars), label="Histogram of the words of a text", title="words")
    yield "</div>\n"
    if kept:
        yield "<div><h3>Shorter side of the pictures</h3>"
        bars = bars_of_integers(Counter(min(pair.picture.width, pair.picture.height) for pair in kept))
        yield histogram(bars, noun="picture", ticks=_ticks(bars), label="Histogram of the shorter side", title="pixels")
        yield "</div>\n"
    scores = [pair.score for pair in kept if pair.score is not None]
    if scores:
        yield "<div><h3>Semantic score of kept pairs</h3>"
        tenths = Counter(min(int(score * 10), 9) for score in scores)
        drawn = [Bar(at / 10, (at + 1) / 10, tenths[at], f"{at / 10:.1f} to {(at + 1) / 10:.1f}") for at in range(10)]
        yield histogram(
            drawn, noun="pair", ticks=[(0.0, "0"), (0.5, "0.5"), (1.0, "1")], label="Histogram of the scores",
            title="score, 0 to 1",
        )  # fmt: skip
        yield "</div>\n"
    yield "</div></section>\n"


def _ticks(bars: Sequence[Bar]) -> list[tuple[float, str]]:
    every = max(-(-len(bars) // 5), 1)
    return [(at / len(bars), f"{bars[at].low:,.0f}") for at in range(0, len(bars), every)]


def _kept(kept: Sequence[Pair]) -> Iterator[str]:
    if not kept:
        return
    step = max(len(kept) // _KEPT_SHOWN, 1)
    shown = kept[::step][:_KEPT_SHOWN]  # in the order of ids, which is a random one
    yield f'<section><h2>Kept pairs <small>{len(shown):,} of {len(kept):,}</small></h2>\n<div class="pairs-grid">'
    for pair in shown:
        score = "" if pair.score is None else f", score {pair.score:.2f}"
        yield _figure(pair.picture.path, pair.text.text, f"{pair.text.source.value}{score}; {pair.page_url}")
    yield "</div></section>\n"


def _dropped(counts: Sequence[Counts], dropped: Sequence[DroppedPair]) -> Iterator[str]:
    examples: dict[str, list[str]] = {}
    for each in counts:
        for reason, found in each.examples.items():
            if reason in each.reasons and reason not in _UNFIT_TO_SHOW:
                examples.setdefault(reason, []).extend(map(_example, found))
    for pair in dropped:
        shown = examples.setdefault(pair.reason.value, [])
        if len(shown) < _DROPPED_SHOWN:
            shown.append(_figure(pair.pair.picture.path, pair.pair.text.text, pair.detail))
    if not examples:
        return
    yield "<section><h2>Dropped examples</h2>\n"
    for reason in [each.value for each in Reason if each.value in examples]:
        figures = "".join(examples[reason][:_DROPPED_SHOWN])
        yield f'<h3>{escaped(reason)}</h3>\n<div class="pairs-grid">{figures}</div>\n'
    yield "</section>\n"


def _example(found: Mapping[str, str]) -> str:
    where = found.get("image") or found.get("page") or ""
    if "path" in found:
        return _figure(found["path"], found.get("text", ""), f"{found.get('detail', '')}; {where}")
    words = (found.get("text", ""), found.get("detail", ""), where)
    lines = "<br>".join(f"<bdi>{escaped(each, 300)}</bdi>" for each in words if each)
    return f"<figure><figcaption>{lines}</figcaption></figure>"


def _figure(path: str, text: str, remark: str) -> str:
    jpeg = _thumbnail(path)
    if jpeg is None:
        picture = '<div class="missing"></div>'
    else:
        picture = f'<img alt="" src="data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}">'
    return (
        f"<figure>{picture}<figcaption><bdi>{escaped(text, 300)}</bdi><br>"
        f'<span class="quiet"><bdi>{escaped(remark, 300)}</bdi></span></figcaption></figure>\n'
    )


def _thumbnail(path: str) -> bytes | None:
    """A small JPEG of the pixels; nothing of the file's own bytes gets into the page."""
    try:
        pixels = decode_image(Path(path).read_bytes())
    except (OSError, DecodeError):
        return None
    scale = _THUMBNAIL_PX / max(pixels.shape[:2])
    if scale < 1:
        pixels = cv2.resize(pixels, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    done, jpeg = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 80])
    return jpeg.tobytes() if done else None


def _hosts(pages: Counts, kept: Sequence[Pair]) -> Iterator[str]:
    if not pages.hosts:
        return
    pairs = Counter(pair.page_url.split("/")[2].partition(":")[0] for pair in kept)
    largest = sorted(pages.hosts.items(), key=lambda item: (-item[1][0], item[0]))[:_HOSTS_SHOWN]
    rows = [
        (f"<bdi>{escaped(host, 80)}</bdi>", f"{taken:,}", f"{with_text:,}", f"{pairs[host]:,}")
        for host, (taken, with_text) in largest
    ]
    yield f"<section><h2>Hosts <small>{len(rows):,} of {len(pages.hosts):,}, by pages</small></h2>\n"
    yield table(("Host", "Pages", "With image and text", "Pairs"), rows, numbers=(1, 2, 3)) + "</section>\n"
