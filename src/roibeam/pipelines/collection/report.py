"""Report of a collection: counts of each step, figures of the kept pairs, the summary on the terminal, and report.html.

Everything from pages is hostile: the template escapes each text, pictures are decoded and drawn anew as
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
from markupsafe import Markup

from roibeam.extraction.photos.decode import DecodeError, decode_image
from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.messages import byte_count, plural
from roibeam.pipelines.collection.aggregation import Aggregated
from roibeam.pipelines.collection.page_units import PageUnit
from roibeam.pipelines.collection.pairs import STEP_OF, CollectionStep, Pair, Reason
from roibeam.pipelines.collection.part import Counts
from roibeam.pipelines.common.charts import Bar, bars_of_integers, histogram
from roibeam.pipelines.common.page_layout import rendered
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
    summary, pages, figures = done.summary(), done.pages, done.figures
    page = rendered(
        "collection.html", title=out.name,
        summary=[f"Image-text pairs of {plural(pages.taken, 'web page')}, collected as ImageBERT's LAIT was."],
        counts=[
            ("pages", f"{summary['pages']:,}"), ("images to fetch", f"{summary['images']:,}"),
            ("fetched, large enough", f"{summary['fetched']:,}"), ("pairs", f"{summary['pairs']:,}"),
            ("words a text", f"{summary['mean_words']:.1f}"), ("in the paper", paper_mean_words()),
        ],
        notes=summary["notes"], funnel=list(_funnel(summary)), rules=list(_text_rules(pages)),
        kept_texts=sum(pages.words.values()), charts=list(_histograms(figures, pages)),
        kept=[_of_pair(each) for each in figures.examples], num_kept=done.pairs.num_kept,
        dropped=_dropped((pages, done.fetch, done.pictures), done.pairs), num_hosts=len(pages.hosts),
        hosts=[
            (host, *(f"{count:,}" for count in (*pages.hosts[host], figures.hosts[host])))
            for host in largest_hosts(pages)
        ],
    )  # fmt: skip
    write_bytes_atomically(out / REPORT_NAME, page.encode("utf-8"))


def largest_hosts(pages: Counts) -> list[str]:
    """Returns the hosts of the report, by pages."""
    return sorted(pages.hosts, key=lambda host: (-pages.hosts[host][0], host))[:_MOST_HOSTS]


def _funnel(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, float, str]]:
    """Remaining pages and pairs after each step: words, count, share, and the number dropped at it."""
    left, first = summary["pages"], max(summary["pages"], 1)
    for step in CollectionStep:
        reasons: Mapping[str, int] = summary["dropped"][step.value]
        if step is CollectionStep.FETCH:  # from here on images, each of one page or of several
            left, first = summary["images"], max(summary["images"], 1)
        left -= sum(reasons.values())
        why = ", ".join(f"{reason} {count:,}" for reason, count in Counter(reasons).most_common())
        yield _STEP_WORDS[step], f"{left:,}", max(left, 0) / first, why or "none"


def _text_rules(pages: Counts) -> Iterator[tuple[str, str, list[str]]]:
    """Each rule against texts, how many it dropped, and examples."""
    for reason, count in pages.text_reasons.most_common():
        texts = [each.get("text", "") for each in pages.examples.get(reason, ())[:2]]
        yield reason, f"{count:,}", [] if reason in _UNFIT_TO_SHOW else texts


def _histograms(figures: KeptFigures, pages: Counts) -> Iterator[tuple[str, str, Markup]]:
    """Title, remark and chart."""
    if not (words := figures.words or pages.words):
        return
    bars = bars_of_integers(words)
    yield (
        "Words of a text",
        f"the paper's mean is {paper_mean_words()}",
        histogram(bars, noun="text", ticks=_ticks(bars), label="Histogram of the words of a text", title="words"),
    )
    if figures.sides:
        bars = bars_of_integers(figures.sides)
        yield (
            "Shorter side of the pictures",
            "",
            histogram(bars, noun="picture", ticks=_ticks(bars), label="Histogram of the shorter side", title="pixels"),
        )
    if figures.tenths:
        tenths = [(at / NUM_TENTHS, (at + 1) / NUM_TENTHS, figures.tenths[at]) for at in range(NUM_TENTHS)]
        bars = [Bar(low, high, count, f"{low:.1f} to {high:.1f}") for low, high, count in tenths]
        yield "Semantic score of kept pairs", "", histogram(
            bars, noun="pair", ticks=[(0.0, "0"), (0.5, "0.5"), (1.0, "1")], label="Histogram of the scores",
            title="score, 0 to 1",
        )  # fmt: skip


def _ticks(bars: Sequence[Bar]) -> list[tuple[float, str]]:
    every = max(-(-len(bars) // 5), 1)
    return [(at / len(bars), f"{bars[at].low:,.0f}") for at in range(0, len(bars), every)]


@dataclass(frozen=True)
class _Example:
    """
    Attributes:
        picture: a small JPEG in base64; "" for one that cannot be read, None without a picture.
        texts: of a picture its text and a remark.
    """

    picture: str | None
    texts: tuple[str, ...]


def _of_pair(pair: Pair, remark: str | None = None) -> _Example:
    score = "" if pair.score is None else f", score {pair.score:.2f}"
    source = f"{pair.text.source.value}{score}; {pair.page_url}"
    return _Example(_thumbnail(pair.picture.path), (pair.text.text, source if remark is None else remark))


def _dropped(counts: Sequence[Counts], pairs: Aggregated) -> dict[str, list[_Example]]:
    """Examples of what was dropped, by reason."""
    examples: dict[str, list[_Example]] = {}
    for each in counts:
        for reason, found in each.examples.items():
            if reason in each.reasons and reason not in _UNFIT_TO_SHOW:
                examples.setdefault(reason, []).extend(map(_example, found))
    for reason, dropped in groupby(pairs.dropped(), key=lambda each: each.reason.value):
        first = islice(dropped, _MOST_DROPPED)
        examples.setdefault(reason, []).extend(_of_pair(each.pair, each.detail) for each in first)
    return {each.value: examples[each.value][:_MOST_DROPPED] for each in Reason if each.value in examples}


def _example(found: Mapping[str, str]) -> _Example:
    where = found.get("image") or found.get("page") or ""
    if "path" in found:
        return _Example(_thumbnail(found["path"]), (found.get("text", ""), f"{found.get('detail', '')}; {where}"))
    return _Example(None, tuple(filter(None, (found.get("text", ""), found.get("detail", ""), where))))


def _thumbnail(path: str) -> str:
    """A small JPEG of the pixels, in base64; nothing of the file's own bytes gets into the page."""
    try:
        pixels = decode_image(Path(path).read_bytes())
    except (OSError, DecodeError):
        return ""
    scale = _THUMBNAIL_PX / max(pixels.shape[:2])
    if scale < 1:
        pixels = cv2.resize(pixels, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    done, jpeg = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 80])
    return base64.b64encode(jpeg.tobytes()).decode() if done else ""
