"""`roibeam.extract`: photos in, a store out, from Python."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from roibeam.extraction.weights.named_model import OtherModels
from roibeam.pipelines.extract.request import ExtractRequest, RequestedDetector, RequestedImages, RunOptions

if TYPE_CHECKING:
    from roibeam.pipelines.extract.beam_extraction import RunSummary

log = logging.getLogger(__name__)


def extract(
    photos: str | Path | Iterable[str | Path],
    store: str | Path,
    *,
    preset: str | None = None,
    detector: str | Path | None = None,
    weights: str | Path | None = None,
    vocab: str | Path | None = None,
    boxes: str | Path | None = None,
    captions: str | Path | None = None,
    device: str = "auto",
    workers: int = 1,
    **others: Unpack[OtherModels],
) -> RunSummary:
    """Writes region features of photos into a store, as `roibeam extract` does; does only what the store lacks.

        roibeam.extract("photos", "store", preset="butd-36", weights="detector.pth")
        roibeam.extract(["cat.jpg", "dog.jpg"], "store", detector="toy")

    For all options of the command, see `run_extract` in `roibeam.pipelines.extract.beam_extraction`.

    Args:
        photos: a folder, a photo, several of these, or whatever else the command takes as SOURCE (docs/extract.md).
        store: folder or URL to write.
        preset, detector, weights: as of `build_detector`.
        vocab: names of classes and attributes: a folder, a file, or "vg" [default: those of the detector's folder].
        boxes: file of boxes to describe, in place of those that the detector proposes.
        captions: caption file of the photos; the store keeps its texts.
        device: "auto" (a GPU where there is one), "cpu", "cuda" or "cuda:<n>".
        others: a backbone of another library, see `OtherModels`.
    Returns:
        how the run ended. Photos that cannot be used are no error: `failures` counts them by reason, and `succeeded` is
        false when more than 5 % of them failed.
    Raises:
        ValueError: one line: what is unknown, missing or does not fit together.
        OSError: if something cannot be read or written.
    """
    named = (photos,) if isinstance(photos, str | os.PathLike) else tuple(photos)
    wanted = RequestedDetector(
        _text(detector), preset=preset, weights=_text(weights), vocab=_text(vocab), device=device,
        backbone=others.get("backbone"), backbone_weights=others.get("backbone_weights"), pool=others.get("pool"),
        queries=_text(others.get("queries")),
    )  # fmt: skip
    request = ExtractRequest(
        RequestedImages(tuple(map(str, named)), boxes=_text(boxes), captions=_text(captions)),
        str(store),
        wanted,
        run=RunOptions(workers=workers),
    )
    with _quiet_beam():
        from roibeam.pipelines.extract.beam_extraction import run_extract

        summary = run_extract(request)
    if not summary.succeeded:
        log.warning("%s; %s names the failed ones", summary, summary.store.where("dead_letters.parquet"))
    return summary


@contextmanager
def _quiet_beam() -> Iterator[None]:
    """Hides Beam's log records below errors; the command itself shows roibeam's only."""
    logger, root = logging.getLogger("apache_beam"), logging.getLogger()
    before, handler = logger.level, logging.NullHandler()
    logger.setLevel(logging.ERROR)
    # While Beam is imported it logs to the root, which would give a program without handlers one that prints.
    root.addHandler(handler)
    root.addFilter(_is_not_of_beam)
    try:
        yield
    finally:
        root.removeFilter(_is_not_of_beam)
        root.removeHandler(handler)
        logger.setLevel(before)


def _is_not_of_beam(record: logging.LogRecord) -> bool:
    return "apache_beam" not in record.pathname


def _text(place: str | Path | None) -> str | None:
    return None if place is None else str(place)
