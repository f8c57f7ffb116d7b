"""HTML page of a pre-training batch: its rows, hidden words and regions, and targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup
from torch import Tensor

from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.pipelines.common.charts import DrawnBox, box_canvas
from roibeam.pipelines.common.page_layout import Banner, page_sections, rendered
from roibeam.pipelines.data.batches.image_batch import PhotoOrReason
from roibeam.pipelines.data.vocabulary import Names
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer
from roibeam.pipelines.training.run_folder.folder import BATCH_PAGE

_COLOURS = {"seen": "#aeb6c2", "predicted": "#f3a800", "hidden": "#c2185b"}  # boxes: as they are; predicted but seen
_TOP_TARGETS = 3


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


def batch_html(inspected: InspectedBatch, tokenizer: CaptionTokenizer, names: Names, title: str) -> str:
    """Returns the page, without network access, at most 2 MB."""
    numbers = range(min(inspected.rows, inspected.batch.batch_size))
    [rows] = page_sections([("", "", numbers)], lambda row: _row(inspected, row, tokenizer, names))
    return rendered(
        "batch.html", title=title, counts=inspected.counts, warning=inspected.banner, colours=_COLOURS,
        marks={kind for row in numbers for kind in _kinds(inspected, row, tokenizer)}, rows=rows.rows,
        left_out=rows.left_out,
    )  # fmt: skip


def write_batch_page(run_dir: Path, inspected: InspectedBatch, tokenizer: CaptionTokenizer, names: Names) -> None:
    write_bytes_atomically(run_dir / BATCH_PAGE, batch_html(inspected, tokenizer, names, "First batch").encode())


def _kinds(inspected: InspectedBatch, row: int, tokenizer: CaptionTokenizer) -> Iterator[str]:
    """Names of the marks that a row has, for the legend."""
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


def _row(inspected: InspectedBatch, row: int, tokenizer: CaptionTokenizer, names: Names) -> Markup:
    batch = inspected.batch
    return rendered(
        "batch_row.html", name=batch.sample_ids[row] if batch.sample_ids else f"row {row}", facts=_facts(batch, row),
        sequence=_sequence(inspected, row), pieces=list(_pieces(inspected, row, tokenizer)),
        images=list(_images(inspected, row)), targets=list(_targets(batch, row, names)),
    )  # fmt: skip


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


def _pieces(inspected: InspectedBatch, row: int, tokenizer: CaptionTokenizer) -> Iterator[dict[str, Any]]:
    """Pieces of the text: what is there, what is to be predicted, and the number of a segment that begins."""
    batch = inspected.batch
    real = batch.text_mask[row]
    labels = None if batch.text_labels is None else batch.text_labels[row][real].tolist()
    segments, before, named = batch.text_segments[row][real].tolist(), 0, _named_regions(batch, row)
    for place, piece in enumerate(batch.text_ids[row][real].tolist()):
        label = IGNORE_INDEX if labels is None else labels[place]
        is_changed = label not in (IGNORE_INDEX, piece)
        kind = "" if label == IGNORE_INDEX else "hidden" if piece == tokenizer.mask_id else "swapped"
        yield {
            "segment": None if segments[place] == before else segments[place],
            "text": tokenizer.piece(piece),
            "regions": named.get(place, ()),
            "kind": "kept" if kind and not is_changed else kind,
            "label": tokenizer.piece(label) if is_changed else "",
        }
        before = segments[place]


def _named_regions(batch: VLBatch, row: int) -> dict[int, list[int]]:
    """Position of a piece -> the regions that it names."""
    named: dict[int, list[int]] = {}
    if batch.aligned_words is not None:
        for region, places in enumerate(batch.aligned_words[row].tolist()):
            for place in places:
                if place >= 0:
                    named.setdefault(place, []).append(region)
    return named


def _images(inspected: InspectedBatch, row: int) -> Iterator[tuple[Markup, str]]:
    """The regions of each of the row's images, and why its photo is not there. Only the first has a known
    size; others reach as far as their boxes."""
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
        yield canvas, why if jpeg is None else ""


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
                _COLOURS["hidden" if is_hidden else "predicted" if is_predicted else "seen"],
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


def _targets(batch: VLBatch, row: int, names: Names) -> Iterator[tuple[int, str, str]]:
    """Number, look and target of each predicted region."""
    numbers = _predicted(batch, row).nonzero()[:, 0].tolist()
    if not numbers or batch.region_targets is None:
        return
    one = batch.row(row)
    assert one.region_target_mask is not None
    for number, target in zip(numbers, one.targets_of(one.region_target_mask), strict=True):
        yield number, "hidden" if bool(batch.masked_regions[row, number]) else "seen", _target_words(target, names)


def _target_words(target: Tensor, names: Names) -> str:
    is_distribution = bool((target >= 0).all()) and abs(float(target.sum()) - 1) < 0.1
    if not is_distribution:
        return f"its feature, {len(target):,} numbers of length {float(target.norm()):.1f}"
    best: Sequence[int] = target.argsort(descending=True)[:_TOP_TARGETS].tolist()
    return ", ".join(
        f"{names.of_model(label, len(target))} {float(target[label]):.2f}" for label in best if float(target[label])
    )
