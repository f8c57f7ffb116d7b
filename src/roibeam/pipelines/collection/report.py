"""Report of a collection: counts of each step, figures of the kept pairs, the summary on the terminal, and report.html.

Everything from pages is hostile: each text is escaped where it becomes markup, pictures are decoded and drawn anew as
small JPEGs, and the page loads nothing.
"""

import base64
import hashlib
from collections import Counter
from collections.abc import Collection as SomeOf
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import cv2

from roibeam.extraction.photos.decode import DecodeError, decode_image
from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.messages import byte_count, escaped, plural
from roibeam.pipelines.collection.aggregation import Aggregated
from roibeam.pipelines.collection.page_units import PageUnit
from roibeam.pipelines.collection.pairs import STEP_OF, CollectionStep, Pair, Reason
from roibeam.pipelines.collection.part import Counts
from roibeam.pipelines.common.charts import Bar, bars_of_integers, histogram
from roibeam.pipelines.common.page_layout import PAGE_END, note, page_start, table, tiles
from roibeam.pipelines.common.statistics.paper_figures import figures_of as paper_figures_of

FORMAT, VERSION = "roibeam-collection", 1
NUM_TENTHS = 10


@dataclass
class KeptFigures:
    """
    Attributes:
        words: words of a text -> pairs.
        sides: shorter side of the picture, pixels -> pairs.
        tenths: tenth of the score, 0 to 9 -> pairs; none without a judge.
        hosts: host of the page -> pairs, of the requested hosts.
        examples: pairs spread over all ids.
        digest: of the kept pairs, without paths: equal for any number of workers.
    """

    words: Counter[int] = field(default_factory=Counter)
    sides: Counter[int] = field(default_factory=Counter)
    tenths: Counter[int] = field(default_factory=Counter)
    hosts: Counter[str] = field(default_factory=Counter)
    examples: list[Pair] = field(default_factory=list)
    digest: str = ""

    def mean_words(self) -> float:
        return sum(words * pairs for words, pairs in self.words.items()) / max(self.words.total(), 1)


def paper_mean_words() -> str:
    """Mean number of words of LAIT's texts, as its paper prints it."""
    [figure] = paper_figures_of("ImageBERT", "LAIT, data set", "words of a text")
    return figure.printed


def figures_of(found: Aggregated, *, hosts: SomeOf[str], num_examples: int) -> KeptFigures:
    """Counts the kept pairs."""
    figures = KeptFigures()
    digest = hashlib.sha256()
    every = max(found.num_kept // num_examples, 1)
    for number, pair in enumerate(found.kept()):
        figures.words[len(pair.text.text.split())] += 1
        figures.sides[min(pair.picture.width, pair.picture.height)] += 1
        if pair.score is not None:
            figures.tenths[min(int(pair.score * NUM_TENTHS), NUM_TENTHS - 1)] += 1
        if (host := urlsplit(pair.page_url).hostname) in hosts and host is not None:
            figures.hosts[host] += 1
        if number % every == 0 and len(figures.examples) < num_examples:
            figures.examples.append(pair)  # in the order of ids, which is a random one
        fields = (pair.pair_id, pair.text.text, pair.text.source.value, pair.picture.url, pair.picture.sha256)
        digest.update("\0".join((*fields, pair.page_url, repr(pair.score))).encode() + b"\n")
    figures.digest = digest.hexdigest()
    return figures


@dataclass(frozen=True)
class Collection:
    """
    Attributes:
        pages, fetch, pictures: counts of steps 1 to 4, of the fetch, and of steps 5 and 6.
        pairs: kept and dropped by aggregation.
        notes: steps that are off, for people.
    """

    pages: Counts
    fetch: Counts
    pictures: Counts
    pairs: Aggregated
    figures: KeptFigures
    notes: tuple[str, ...]

    def reasons(self) -> dict[CollectionStep, Counter[str]]:
        """Counts dropped ones by step and reason: pages in the first four, images in the others."""
        found: dict[CollectionStep, Counter[str]] = {step: Counter() for step in CollectionStep}
        for counts in (self.pages, self.fetch, self.pictures):
            for reason, count in counts.reasons.items():
                found[STEP_OF[Reason(reason)]][reason] += count
        for dropped, count in self.pairs.num_dropped.items():
            if count:
                found[STEP_OF[dropped]][dropped.value] += count
        return found

    def summary(self) -> dict[str, Any]:
        """Returns the content of collection.json."""
        return {
            "format": FORMAT, "version": VERSION, "pages": self.pages.taken, "candidates": self.pages.kept,
            "images": self.fetch.taken, "fetched": self.fetch.kept, "pairs": self.pairs.num_kept,
            "mean_words": round(self.figures.mean_words(), 2), "digest": self.figures.digest,
            "notes": list(self.notes),
            "dropped": {step.value: dict(sorted(counts.items())) for step, counts in self.reasons().items()},
            "dropped_texts": dict(sorted(self.pages.text_reasons.items())),
        }  # fmt: skip


def summary_text(done: Collection, out: Path) -> str:
    """Formats the counts by step and reason, and the tree that was written."""
    lines = [
        f"{plural(done.pairs.num_kept, 'pair')} of {plural(done.pages.taken, 'page')}; "
        f"{done.figures.mean_words():.1f} words a text (the paper's mean is {paper_mean_words()})"
    ]
    if not done.pairs.num_kept:
        lines.append("nothing was kept: see the commonest reasons below, and examples of each in report.html")
    for step, reasons in done.reasons().items():
        for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
            lines.append(f"  {count:>9,} {reason}  [{step.value}]")
    return "\n".join([
        *lines,
        "",
        f"{out}/",
        "  report.html      look here first: what was dropped at which step, and why; examples",
        "  local.tsv        captions with their images: roibeam extract reads it",
        "  pairs.tsv        captions with addresses: roibeam download reads it",
        "  pairs.parquet    all that is known of each pair",
        "  dropped.parquet  what aggregation dropped",
        "  photos/          the images of the pairs",
        "  collection.json  these counts; written last",
        "  work/            what a rerun goes on from",
    ])  # fmt: skip


def dry_run_text(units: Sequence[PageUnit], num_bytes: int) -> str:
    """Formats the inputs of a run."""
    files = sum(len(unit.names) for unit in units)
    return (
        f"{plural(files, 'file')} of pages, {byte_count(num_bytes)} on this machine, in {plural(len(units), 'unit')} "
        f"of work\nnothing was written or fetched"
    )


REPORT_NAME = "report.html"
NUM_KEPT_EXAMPLES = 24
_MOST_DROPPED, _MOST_HOSTS = 4, 30
_THUMBNAIL_PX = 320
_STEP_WORDS = {
    CollectionStep.PAGES: "pages read", CollectionStep.LANGUAGE: "pages in the language",
    CollectionStep.IMAGE: "pages with a dominant image", CollectionStep.TEXT: "pages with a text",
    CollectionStep.FETCH: "images fetched", CollectionStep.PICTURE: "images that are fit",
    CollectionStep.SCORE: "images with a text that fits", CollectionStep.AGGREGATION: "pairs",
}  # fmt: skip
_UNFIT_TO_SHOW = frozenset({Reason.NSFW.value, Reason.ADULT_WORD.value})


def write_report(out: Path, done: Collection) -> None:
    summary, pages = done.summary(), done.pages
    parts = [
        page_start(
            out.name, f"Image-text pairs of {plural(pages.taken, 'web page')}, collected as ImageBERT's LAIT was.",
            style=_STYLE,
        ),
        tiles([
            ("pages", f"{summary['pages']:,}"), ("images to fetch", f"{summary['images']:,}"),
            ("fetched, large enough", f"{summary['fetched']:,}"), ("pairs", f"{summary['pairs']:,}"),
            ("words a text", f"{summary['mean_words']:.1f}"), ("in the paper", paper_mean_words()),
        ]),
        *(note("Note.", text) for text in summary["notes"]),
        *_funnel(summary),
        *_text_rules(pages),
        *_histograms(done.figures, pages),
        *_kept(done.figures, done.pairs.num_kept),
        *_dropped((pages, done.fetch, done.pictures), done.pairs),
        *_hosts(pages, done.figures),
        PAGE_END,
    ]  # fmt: skip
    write_bytes_atomically(out / REPORT_NAME, "".join(parts).encode("utf-8", "replace"))


def largest_hosts(pages: Counts) -> list[str]:
    """Returns the hosts of the report, by pages."""
    return sorted(pages.hosts, key=lambda host: (-pages.hosts[host][0], host))[:_MOST_HOSTS]


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
    for step in CollectionStep:
        reasons: Mapping[str, int] = summary["dropped"][step.value]
        if step is CollectionStep.FETCH:  # from here on images, each of one page or of several
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
        texts = "<br>".join(f"<bdi>{escaped(each.get('text', ''), 80)}</bdi>" for each in examples[:2])
        texts = f"<span>{texts}</span>"  # on a phone a cell's parts stand side by side
        rows.append((escaped(reason), f"{count:,}", "" if reason in _UNFIT_TO_SHOW else texts))
    kept = sum(pages.words.values())
    yield f"<section><h2>Candidate texts <small>{plural(kept, 'text')} passed the rules</small></h2>\n"
    yield table(("Rule against it", "Texts", "Such as"), rows, numbers=(1,)) + "</section>\n"


def _histograms(figures: KeptFigures, pages: Counts) -> Iterator[str]:
    words = figures.words or pages.words
    if not words:
        return
    yield '<section><h2>Distributions</h2>\n<div class="charts">\n<div>'
    yield f"<h3>Words of a text <small>the paper's mean is {paper_mean_words()}</small></h3>"
    bars = bars_of_integers(words)
    yield histogram(bars, noun="text", ticks=_ticks(bars), label="Histogram of the words of a text", title="words")
    yield "</div>\n"
    if figures.sides:
        yield "<div><h3>Shorter side of the pictures</h3>"
        bars = bars_of_integers(figures.sides)
        yield histogram(bars, noun="picture", ticks=_ticks(bars), label="Histogram of the shorter side", title="pixels")
        yield "</div>\n"
    if figures.tenths:
        yield "<div><h3>Semantic score of kept pairs</h3>"
        tenths = [(at / NUM_TENTHS, (at + 1) / NUM_TENTHS, figures.tenths[at]) for at in range(NUM_TENTHS)]
        bars = [Bar(low, high, count, f"{low:.1f} to {high:.1f}") for low, high, count in tenths]
        yield histogram(
            bars, noun="pair", ticks=[(0.0, "0"), (0.5, "0.5"), (1.0, "1")], label="Histogram of the scores",
            title="score, 0 to 1",
        )  # fmt: skip
        yield "</div>\n"
    yield "</div></section>\n"


def _ticks(bars: Sequence[Bar]) -> list[tuple[float, str]]:
    every = max(-(-len(bars) // 5), 1)
    return [(at / len(bars), f"{bars[at].low:,.0f}") for at in range(0, len(bars), every)]


def _kept(figures: KeptFigures, num_kept: int) -> Iterator[str]:
    examples = figures.examples
    if not examples:
        return
    yield f'<section><h2>Kept pairs <small>{len(examples):,} of {num_kept:,}</small></h2>\n<div class="pairs-grid">'
    for pair in examples:
        score = "" if pair.score is None else f", score {pair.score:.2f}"
        yield _figure(pair.picture.path, pair.text.text, f"{pair.text.source.value}{score}; {pair.page_url}")
    yield "</div></section>\n"


def _dropped(counts: Sequence[Counts], pairs: Aggregated) -> Iterator[str]:
    examples: dict[str, list[str]] = {}
    for each in counts:
        for reason, found in each.examples.items():
            if reason in each.reasons and reason not in _UNFIT_TO_SHOW:
                examples.setdefault(reason, []).extend(map(_example, found))
    for reason, dropped in groupby(pairs.dropped(), key=lambda each: each.reason.value):
        first = [(each.pair.picture.path, each.pair.text.text, each.detail) for each in islice(dropped, _MOST_DROPPED)]
        examples.setdefault(reason, []).extend(_figure(*each) for each in first)
    if not examples:
        return
    yield "<section><h2>Dropped examples</h2>\n"
    for reason in [each.value for each in Reason if each.value in examples]:
        figures = "".join(examples[reason][:_MOST_DROPPED])
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


def _hosts(pages: Counts, figures: KeptFigures) -> Iterator[str]:
    if not pages.hosts:
        return
    rows = [
        (f"<bdi>{escaped(host, 80)}</bdi>", *(f"{count:,}" for count in (*pages.hosts[host], figures.hosts[host])))
        for host in largest_hosts(pages)
    ]
    yield f"<section><h2>Hosts <small>{len(rows):,} of {len(pages.hosts):,}, by pages</small></h2>\n"
    yield table(("Host", "Pages", "With image and text", "Pairs"), rows, numbers=(1, 2, 3)) + "</section>\n"
