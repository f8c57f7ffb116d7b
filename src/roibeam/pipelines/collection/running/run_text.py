"""What a collection says at its end, on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from roibeam.features.counted import byte_count, counted
from roibeam.pipelines.collection.reading.page_units import PageUnit
from roibeam.pipelines.collection.running.collection import Collection, paper_mean_words


def summary_text(done: Collection, out: Path) -> str:
    """Counts by step and reason, and the tree that was written."""
    lines = [
        f"{counted(done.pairs.num_kept, 'pair')} of {counted(done.pages.taken, 'page')}; "
        f"{done.figures.mean_words():.1f} words a text (the paper's mean is {paper_mean_words()})",
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
    """What a run would read."""
    files = sum(len(unit.names) for unit in units)
    return (
        f"{counted(files, 'file')} of pages, {byte_count(num_bytes)} on this machine, in {counted(len(units), 'unit')} "
        f"of work\nnothing was written or fetched"
    )
