"""The tables of docs/real-photos.md, each the first below its heading, written from the results of the rows."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from real_photos.rows import BEST, CHEAPEST, FLOORS, MIXES, SEEDS, SYSTEMS
from real_photos.work import Work
from roibeam.pipelines.common.statistics.retrieval_ranks import CUTS, median_rank_by_chance, recall_by_chance
from roibeam.pipelines.common.statistics.verdict import Bootstrap

PUBLISHED = Path(__file__).parent / "published.tsv"
# Of the published figures the page has those whose R@10 of a sentence is higher, if it is known what they used; of one
# method in several kinds the best.
SHOWN, LEFT_OUT = 42, re.compile("IMRAM|mean (fastText|word2vec), rebuilt|VGG-19 fc1|dependency tree edges")
NAMES: Mapping[str, str] = {
    "vlbert": "VL-BERT", "vilbert": "ViLBERT", "visualbert": "VisualBERT", "imagebert": "ImageBERT",
    "interbert": "InterBERT",
}  # fmt: skip
_FLOORS = {"words": "counted words", "minilm": "MiniLM"}
_CLAIMS = {
    "scratch": "pre-training before the same 2,000 steps",
    "longer": "pre-training, against 8,000 steps of retrieval alone",
    "whole": "16 cells beside the whole photo",
}
_OUTSIDE = {"words": "none", "minilm": "MiniLM's sentences"}
WAYS = ("image_to_text", "text_to_image")
_HEAD = "| | photo asks: R@1 | R@5 | R@10 | med | sentence asks: R@1 | R@5 | R@10 | med |"


def write_page(work: Work, page: Path) -> None:
    """Fills the page; a row that is not there yet has no line."""
    tables: Mapping[str, Callable[[Work], Iterator[str]]] = {
        "All settings": first_captions, "Beside published": all_captions, "Claims": claims, "Do heads": heads,
        "What failed": mixes,
    }  # fmt: skip
    text = page.read_text("utf-8")
    for heading, table in tables.items():
        first_table = re.compile(rf"(\n## {heading}[^|]*\n)(?:\|.*\n)+")
        rows = list(table(work))
        lines = "".join(f"{line}\n" for line in (*rows, *(["| not run yet |"] if len(rows) == 2 else [])))
        text, count = first_table.subn(lambda found, lines=lines: found[1] + lines, text)
        if not count:
            raise ValueError(f"{page}: no table below the heading {heading!r}")
    page.write_text(text, "utf-8")


def there(work: Work, row: str) -> dict[str, Any] | None:
    return work.read(row) if work.is_there(row) else None


def mixes(work: Work) -> Iterator[str]:
    yield "| what a model reads | photo asks: R@10 of 200 | sentence asks | hidden words right |"
    yield "|---|---|---|---|"
    for mix in MIXES:
        if found := there(work, f"mix/{mix}"):
            measured = (found[name] for name in ("image_to_text_r10", "text_to_image_r10", "masked_word_accuracy"))
            yield f"| {mix.replace('-', ', ')} | {' | '.join(f'{100 * value:.1f}' for value in measured)} |"


def first_captions(work: Work) -> Iterator[str]:
    """The test photos and the first caption of each."""
    yield from _header()
    if found := there(work, "data"):
        yield _chance(np.ones(found["photos"]["test"], int))
    for text in FLOORS:
        yield from _of_ranks(work, f"floor/{text}", f"floor, {_FLOORS[text]}")
    for system in SYSTEMS:
        yield from _of_ranks(work, f"zero-shot/{system}-0", f"{NAMES[system]}, zero-shot")
    for system in SYSTEMS:
        yield from _of_ranks(work, f"tuned/{system}-0", f"{NAMES[system]}, fine-tuned")
    yield from _of_ranks(work, "tuned/minilm-0", f"{NAMES[CHEAPEST]} from MiniLM, fine-tuned")
    for text in FLOORS:
        if found := there(work, f"reranked/{text}"):
            label = f"{_FLOORS[text]}; its 50 best by floor + {found['weight']:g} x {NAMES[BEST]}"
            yield from _of_ranks(work, f"reranked/{text}", f"floor, {label}")


def all_captions(work: Work) -> Iterator[str]:
    """1,000 photos and all 5,000 captions: ours, and those published figures that have all recalls."""
    names = ("i_r1", "i_r5", "i_r10", "i_med", "t_r1", "t_r5", "t_r10", "t_med")
    yield _HEAD.replace("| |", "| | image features; outside data |", 1) + " checked |"
    yield f"|---|---|{'---|' * 9}"
    label = "EfficientNet-Lite0, whole photo"
    lines = [(0.0, _chance(np.full(1000, 5)).replace("| chance |", "| chance | |") + " |")]
    rows = [(f"full/floor-{text}", f"**floor, {_FLOORS[text]}**", f"{label}; {_OUTSIDE[text]}") for text in FLOORS]
    rows.append(("full/best", f"**{NAMES[BEST]}, fine-tuned**", "EfficientNet-Lite0, photo and 16 cells; none"))
    for row, name, used in rows:
        for line in _of_ranks(work, row, f"{name} | {used}"):
            lines.append((100 * float((np.array(work.read(row)[WAYS[1]]) <= 10).mean()), f"{line} here |"))
    with PUBLISHED.open(encoding="utf-8") as file:
        for each in csv.DictReader(file, delimiter="\t"):
            used = f"{re.split('[,(]', each['image features'])[0].strip()}; {each['outside data']}"
            has_all = all(each[name] for name in names if "med" not in name)
            is_better = has_all and float(each["t_r10"]) >= SHOWN
            is_better = is_better and not LEFT_OUT.search(each["method"] + each["image features"])
            if not is_better or re.search(r"\?|not known", used):
                continue
            cells = [f"{each['method']} {each['year']}", used, *(each[name] or "-" for name in names)]
            is_doubtful = re.search("doubtful|likely", each["checked"])
            seen = "doubtful" if is_doubtful else each["checked"].split()[0].strip(";")
            lines.append((float(each["t_r10"]), f"| {' | '.join(cells)} | {seen} |"))
    yield from (line for _, line in sorted(lines))


def claims(work: Work) -> Iterator[str]:
    yield "| claim | system | with | without | difference, 95 % | |"
    yield "|---|---|---|---|---|---|"
    of_systems = [(NAMES[system], [f"pretrained/{system}-{seed}" for seed in SEEDS]) for system in SYSTEMS]
    for name, rows in (*of_systems, ("InterBERT, fewer mismatched pairs", ["matched/interbert-0"])):
        found = [each["words"] for row in rows if (each := there(work, row))]
        if found:
            ours, others, asked = ([each[part] for each in found] for part in ("own", "other", "asked"))
            yield _line("hidden words: own photo, another photo", name, _compared(ours, others, asked))
    for system in ("visualbert", CHEAPEST):  # the model of words alone has VisualBERT's tasks and layers
        pairs = [
            (there(work, f"pretrained/{system}-{seed}"), there(work, f"alone/visualbert-{seed}")) for seed in SEEDS
        ]
        if both := [(one["words"], other["words"]) for one, other in pairs if one and other]:
            ours, others = [one["own"] for one, _ in both], [two["none"] for _, two in both]
            asked = [one["asked"] for one, _ in both]
            cells = _compared(ours, others, asked)
            yield _line("hidden words: own photo, VisualBERT of words alone", NAMES[system], cells)
    of_seeds = [
        (f"{label}: R@10", [(f"tuned/{CHEAPEST}-{seed}", f"{row}/{CHEAPEST}-{seed}") for seed in SEEDS])
        for row, label in _CLAIMS.items()
    ]
    of_floors = [
        (f"floor, {_FLOORS[text]}, re-ranked: R@10", [(f"reranked/{text}", f"floor/{text}")]) for text in FLOORS
    ]
    for label, rows in (*of_seeds, *of_floors):
        pairs = [(there(work, one), there(work, other)) for one, other in rows]
        ways = []
        for way in WAYS:
            hits = [[(np.array(each[way]) <= 10).astype(int) for each in pair] for pair in pairs if all(pair)]
            if hits:
                ones = [np.ones(len(pair[0]), int) for pair in hits]
                ways.append(_compared([pair[0] for pair in hits], [pair[1] for pair in hits], ones))
        if ways:
            yield _line(f"{label}, photo asks / sentence asks", NAMES[BEST if "floor" in label else CHEAPEST], *ways)


def _line(claim: str, system: str, *ways: Sequence[str]) -> str:
    same = {way[-1] for way in ways}  # "one seed"
    cells = [" / ".join(dict.fromkeys(each) if set(each) == same else each) for each in zip(*ways, strict=True)]
    return f"| {' | '.join([claim, system, *cells])} |"


def _compared(ours: Sequence[Any], others: Sequence[Any], asked: Sequence[Any]) -> list[str]:
    """Difference of two shares, with an interval over photos; of several seeds the mean, and each seed's."""
    sums = [np.sum(np.array(each, float), axis=0) for each in (ours, others, asked)]
    shares = 100 * sums[0].sum() / sums[2].sum(), 100 * sums[1].sum() / sums[2].sum()
    low, high = (100 * end for end in Bootstrap(len(sums[2])).difference(sums[0], sums[2], sums[1], sums[2]))
    each = [100 * (np.sum(a) - np.sum(b)) / np.sum(c) for a, b, c in zip(ours, others, asked, strict=True)]
    seeds = "one seed"
    if len(each) > 1:  # Student's t over seeds
        half = {2: 12.71, 3: 4.30}[len(each)] * float(np.std(each, ddof=1)) / len(each) ** 0.5
        seeds = f"{len(each)} seeds: {np.mean(each):+.1f} ± {half:.1f}"
    difference = f"{shares[0] - shares[1]:+.1f} [{low:+.1f} .. {high:+.1f}]"
    return [f"{shares[0]:.1f}", f"{shares[1]:.1f}", difference, seeds]


def heads(work: Work) -> Iterator[str]:
    """The head that is best on validation beside rules that do not look, on the photos for testing."""
    rules = ("best score", "largest", "by lot")
    yield "| system | nouns | best of its heads | best-scored detection | largest | by lot | less best rule, 95 % |"
    yield f"|{'---|' * 7}"
    found = there(work, f"heads/{CHEAPEST}-0")
    if found and found["val"]["photos"] and found["test"]["photos"]:
        val, test = (np.array(found[split]["heads"]) for split in ("val", "test"))
        layer, head = np.unravel_index(val.mean(axis=0).argmax(), val.shape[1:])
        rule = max(rules, key=lambda name: float(np.mean(found["val"][name])))
        photos, numbers = np.unique(found["test"]["photos"], return_inverse=True)
        counts = np.bincount(numbers)
        hits = np.bincount(numbers, test[:, layer, head])
        others = np.bincount(numbers, np.array(found["test"][rule]))
        low, high = Bootstrap(len(photos)).difference(hits, counts, others, counts)
        best, *levels = (100 * float(np.mean(each)) for each in (test[:, layer, head], *map(found["test"].get, rules)))
        difference = f"{best - levels[rules.index(rule)]:+.1f} [{100 * low:+.1f} .. {100 * high:+.1f}]"
        cells = [f"{best:.1f} (layer {layer + 1}, head {head + 1})", *(f"{level:.1f}" for level in levels), difference]
        yield f"| {NAMES[CHEAPEST]} | {len(test):,} | {' | '.join(cells)} |"


def _header() -> Iterator[str]:
    yield _HEAD
    yield f"|---|{'---|' * 8}"


def _chance(right: np.ndarray) -> str:
    """
    Args:
        right: captions of each photo.
    """
    captions, cells = int(right.sum()), list[str]()
    for true, candidates in ((right, captions), (np.ones(captions, int), len(right))):
        cells += [f"{100 * recall_by_chance(true, candidates, cut):.1f}" for cut in CUTS]
        cells.append(str(median_rank_by_chance(true, candidates)))
    return f"| chance | {' | '.join(cells)} |"


def _of_ranks(work: Work, row: str, label: str) -> Iterator[str]:
    found = there(work, row)
    if not found or not found.get(WAYS[0]):
        return
    cells = []
    for way in WAYS:
        ranks = np.array(found[way])
        photos = len(found[WAYS[0]])
        of_photo = np.arange(len(ranks)) * photos // len(ranks)  # captions of a photo stand together
        counts = np.bincount(of_photo)
        for cut in CUTS:
            low, high = Bootstrap(photos).ratio(np.bincount(of_photo, ranks <= cut), counts)
            cells.append(f"{100 * (ranks <= cut).mean():.1f} [{100 * low:.1f} .. {100 * high:.1f}]")
        cells.append(f"{int(np.median(ranks))}")
    yield f"| {label} | {' | '.join(cells)} |"
