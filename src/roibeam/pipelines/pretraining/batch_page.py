"""HTML page of a pre-training batch: its rows, hidden words and regions, and targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.messages import escaped, plural
from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.pipelines.common.charts import CANVAS_STYLE, DrawnBox, box_canvas
from roibeam.pipelines.common.page_layout import PAGE_HEAD, PAGE_STYLE, Banner, banner_html
from roibeam.pipelines.data.batches.image_batch import PhotoOrReason
from roibeam.pipelines.data.vocabulary import Names
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer
from roibeam.pipelines.training.run_folder.folder import BATCH_PAGE

_SEEN, _PREDICTED, _HIDDEN = "#aeb6c2", "#f3a800", "#c2185b"  # boxes: as they are; predicted but seen; hidden
_TOP_TARGETS = 3
_MOST_BYTES = 1_900_000  # of the rows of a page


@dataclass(frozen=True, eq=False)
class InspectedBatch:
    """Contents of the page.

    Attributes:
        batch: as the model gets it; `rows` of it are on the page.
        layout: parts of the model's sequence, stream by stream, such as (("text", "regions"),).
        counts: what this batch, of one process and before accumulation, adds to what each loss is averaged over.
        photos: by (row, image of the row), as far as known.
        as_read: whether photos are as the network reads them, blank pixels and all; then no veil lies over a masked
            region.
    """

    batch: VLBatch
    rows: int
    layout: tuple[tuple[str, ...], ...]
    counts: Mapping[str, int]
    photos: Mapping[tuple[int, int], PhotoOrReason] = field(default_factory=dict)
    banner: Banner | None = None
    as_read: bool = False


def batch_html(inspected: InspectedBatch, tokenizer: CaptionTokenizer, names: Names, title: str) -> Iterator[str]:
    """The page, part by part, without network access, at most 2 MB."""
    batch = inspected.batch
    rows = range(min(inspected.rows, batch.batch_size))
    yield PAGE_HEAD.format(title=escaped(title, 120), style=PAGE_STYLE + CANVAS_STYLE + _STYLE)
    yield f"<header><h1>{escaped(title, 200)}</h1>\n<dl class='details'>"
    for name, count in inspected.counts.items():
        yield f"<div><dt>{escaped(name.replace('_', ' '))}: counted</dt><dd>{count:,}</dd></div>"
    yield "</dl></header>\n<main>\n" + banner_html(inspected.banner) + _DENOMINATORS
    kinds = {kind for row in rows for kind in _kinds(inspected, row, tokenizer)}
    marks = "".join(f"<span>{text}</span> " for kind, text in _MARKS if kind in kinds)
    yield f'<p class="quiet legend">{marks}</p>\n'
    room = _MOST_BYTES
    for row in rows:
        section = "".join(_row(inspected, row, tokenizer, names))
        room -= len(section.encode("utf-8"))
        if room < 0:
            yield f"<p class='quiet'>{plural(len(rows) - row, 'row')} left out: the page would be too large.</p>\n"
            break
        yield section
    yield "</main>\n</body>\n</html>\n"


def write_batch_page(run_dir: Path, inspected: InspectedBatch, tokenizer: CaptionTokenizer, names: Names) -> None:
    page = "".join(batch_html(inspected, tokenizer, names, "First batch"))
    write_bytes_atomically(run_dir / BATCH_PAGE, page.encode())


_DENOMINATORS = (
    '<p class="quiet counts-note">Counts of this micro-batch, of one process. A loss is a mean over their sum in a '
    "whole step: of all its micro-batches and processes.</p>\n"
)


def _kinds(inspected: InspectedBatch, row: int, tokenizer: CaptionTokenizer) -> Iterator[str]:
    """Names in `_MARKS` of the marks that a row has."""
    batch = inspected.batch
    predicted, there = _predicted(batch, row), batch.region_mask[row]
    masked = batch.masked_regions[row]
    for kind, regions in (
        ("seen", ~predicted & ~masked), ("predicted", predicted & ~masked), ("hidden", masked & there),
    ):  # fmt: skip
        if bool((regions & there).any()):
            yield kind
    if _named_regions(batch, row):
        yield "named"
    if batch.text_labels is not None:
        labels, pieces = batch.text_labels[row], batch.text_ids[row]
        labelled = labels != IGNORE_INDEX
        changed = labelled & (pieces != labels)
        for kind, places in (
            ("word hidden", changed & (pieces == tokenizer.mask_id)),
            ("word swapped", changed & (pieces != tokenizer.mask_id)), ("word kept", labelled & (pieces == labels)),
        ):  # fmt: skip
            if bool(places.any()):
                yield kind


def _key(colour: str, text: str) -> str:
    return f'<i class="key" style="background:{colour}"></i> {text}'


_MARKS = (
    ("seen", _key(_SEEN, "region as it is")),
    ("predicted", _key(_PREDICTED, "region to predict, and seen")),
    ("hidden", _key(_HIDDEN, "region that is hidden")),
    ("word hidden", '<b class="piece hidden">[MASK]<b>word</b></b> hidden, to predict'),
    ("word swapped", '<b class="piece swapped">other<b>word</b></b> replaced, to predict'),
    ("word kept", '<b class="piece kept">word</b> left, to predict'),
    ("named", '<b class="piece">word<sub>3</sub></b> names region 3'),
)


def _row(inspected: InspectedBatch, row: int, tokenizer: CaptionTokenizer, names: Names) -> Iterator[str]:
    batch = inspected.batch
    name = batch.sample_ids[row] if batch.sample_ids else f"row {row}"
    yield f"<section><h2><bdi>{escaped(name, 200)}</bdi> <small>{escaped(_facts(batch, row))}</small></h2>\n"
    yield f'<p class="quiet">{escaped(_sequence(inspected, row))}</p>\n'
    yield f"<p class='pieces'>{''.join(_pieces(inspected, row, tokenizer))}</p>\n"
    if int(batch.region_mask[row].sum()):
        canvases, targets = "".join(_images(inspected, row)), _targets(batch, row, names)
        yield f'<div class="canvases">{canvases}<div>{targets}</div></div>\n'
    yield "</section>\n"


def _facts(batch: VLBatch, row: int) -> str:
    if batch.text_only is not None and bool(batch.text_only[row]):
        return "text alone"
    match = IGNORE_INDEX if batch.match_labels is None else int(batch.match_labels[row])
    words = {1: "the caption belongs to the image", 0: "the caption does not belong to the image"}
    return words.get(match, "no label whether the caption belongs")


def _sequence(inspected: InspectedBatch, row: int) -> str:
    """Parts of each stream, such as "text 12, whole image, regions 36, end"."""
    batch = inspected.batch
    sizes = {"text": int(batch.text_mask[row].sum()), "regions": int(batch.region_mask[row].sum())}
    streams = [
        ", ".join(f"{part} {sizes[part]}" if part in sizes else part for part in stream) for stream in inspected.layout
    ]
    return "sequence: " + " | ".join(streams)


def _pieces(inspected: InspectedBatch, row: int, tokenizer: CaptionTokenizer) -> Iterator[str]:
    batch = inspected.batch
    real = batch.text_mask[row]
    labels = None if batch.text_labels is None else batch.text_labels[row][real].tolist()
    segments, before, named = batch.text_segments[row][real].tolist(), 0, _named_regions(batch, row)
    for place, piece in enumerate(batch.text_ids[row][real].tolist()):
        label = IGNORE_INDEX if labels is None else labels[place]
        if segments[place] != before:
            before = segments[place]
            yield f'<span class="segment">segment {before}</span> '
        text = escaped(tokenizer.piece(piece), 40)
        text += "".join(f"<sub>{region}</sub>" for region in named.get(place, ()))
        if label == IGNORE_INDEX:
            yield f'<span class="piece">{text}</span> '
        elif piece == label:
            yield f'<span class="piece kept">{text}</span> '
        else:
            kind = "hidden" if piece == tokenizer.mask_id else "swapped"
            yield f'<span class="piece {kind}">{text}<b>{escaped(tokenizer.piece(label), 40)}</b></span> '


def _named_regions(batch: VLBatch, row: int) -> dict[int, list[int]]:
    """Position of a piece -> the regions that it names."""
    named: dict[int, list[int]] = {}
    if batch.aligned_words is not None:
        for region, places in enumerate(batch.aligned_words[row].tolist()):
            for place in places:
                if place >= 0:
                    named.setdefault(place, []).append(region)
    return named


def _images(inspected: InspectedBatch, row: int) -> Iterator[str]:
    """The regions of each of the row's images. Only the first has a known size; others reach as far as their boxes."""
    batch = inspected.batch
    numbers = batch.region_mask[row].nonzero()[:, 0]
    images = numbers.new_zeros(len(numbers)) if batch.region_images is None else batch.region_images[row, numbers]
    for image in sorted(set(images.tolist())):
        of_image = numbers[images == image]
        height, width = (float(side) for side in batch.image_hw[row])
        jpeg, why = inspected.photos.get((row, image), (None, "the photo is not known"))
        if image:
            width, height = (float(side) for side in batch.region_boxes[row, of_image, 2:].amax(dim=0))
            jpeg, why = None, "the size of a second photo is not in the batch"
        boxes = _boxes(inspected, row, of_image.tolist())
        canvas = box_canvas(boxes, (height, width), jpeg, description=f"regions of image {image + 1}")
        note = f'<p class="quiet">Photo not shown: <bdi>{escaped(why, 400)}</bdi></p>' if jpeg is None else ""
        yield f"<div>{canvas}{note}</div>"


def _boxes(inspected: InspectedBatch, row: int, numbers: list[int]) -> list[DrawnBox]:
    """Boxes of hidden regions first, then predicted ones: on top, and with the best places for their numbers."""
    batch = inspected.batch
    predicted, masked = _predicted(batch, row), batch.masked_regions[row]
    numbered = {region for regions in _named_regions(batch, row).values() for region in regions}
    drawn = []
    for number in sorted(numbers, key=lambda n: (not bool(masked[n]), not bool(predicted[n]))):
        is_hidden, is_predicted = bool(masked[number]), bool(predicted[number])
        x1, y1, x2, y2 = batch.region_boxes[row, number].tolist()
        drawn.append(
            DrawnBox(
                (x1, y1, x2, y2),
                _HIDDEN if is_hidden else _PREDICTED if is_predicted else _SEEN,
                label=f"{number}" if is_hidden or is_predicted or number in numbered else "",
                tooltip=f"region {number}",
                is_filled=is_hidden and not inspected.as_read,
                is_quiet=not (is_hidden or is_predicted),
                line=2.5 if is_hidden or is_predicted else 1.25,
            )
        )
    return drawn


def _predicted(batch: VLBatch, row: int) -> Tensor:
    """(R,) bool. All false if the system predicts no regions."""
    mask = batch.region_target_mask
    return batch.region_mask[row].new_zeros(batch.region_mask.shape[1]) if mask is None else mask[row]


def _targets(batch: VLBatch, row: int, names: Names) -> str:
    """A table of the targets of predicted regions."""
    numbers = _predicted(batch, row).nonzero()[:, 0].tolist()
    if not numbers or batch.region_targets is None:
        return '<p class="quiet">no region to predict</p>'
    lines = []
    one = batch.row(row)
    assert one.region_target_mask is not None
    for number, target in zip(numbers, one.targets_of(one.region_target_mask), strict=True):
        hidden = "hidden" if bool(batch.masked_regions[row, number]) else "seen"
        words = escaped(_target_words(target, names))
        lines.append(f"<tr><th scope='row'>{number}</th><td>{hidden}</td><td><bdi>{words}</bdi></td></tr>")
    return f'<p class="quiet">regions to predict, and as what</p><table class="summary">{"".join(lines)}</table>'


def _target_words(target: Tensor, names: Names) -> str:
    is_distribution = bool((target >= 0).all()) and abs(float(target.sum()) - 1) < 0.1
    if not is_distribution:
        return f"its feature, {len(target):,} numbers of length {float(target.norm()):.1f}"
    best: Sequence[int] = target.argsort(descending=True)[:_TOP_TARGETS].tolist()
    return ", ".join(
        f"{names.of_model(label, len(target))} {float(target[label]):.2f}" for label in best if float(target[label])
    )


_STYLE = """
.pieces { line-height: 2.6; margin-bottom: 10px; }
.piece { padding: 1px 3px; border-radius: 3px; }
.piece b { display: inline-block; margin-left: 4px; font-weight: 650; }
.piece.hidden { background: #c2185b; color: #fff; } .piece.swapped { background: #7a4fbf; color: #fff; }
.piece.kept { background: #f3a800; color: #14171b; font-weight: 650; }
.segment { font-size: 12px; color: var(--quiet); border-left: 2px solid var(--line); padding-left: 4px; }
.key { display: inline-block; width: 12px; height: 12px; vertical-align: -1px; border: 1px solid var(--quiet); }
.counts-note { margin-top: 12px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; margin-top: 8px; }
.legend .piece { font-weight: 400; } .legend b b, .legend .kept { font-weight: 650; }
.summary { font-size: 13px; width: auto; }
.summary th { padding: 2px 12px 2px 0; text-align: right; vertical-align: top; white-space: nowrap; }
.summary td { padding: 2px 12px 2px 0; vertical-align: top; }
.summary td:nth-child(2) { white-space: nowrap; } .summary td:last-child { overflow-wrap: anywhere; }
"""
