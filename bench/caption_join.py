"""Time and memory of joining a caption list to as many images: `python bench/caption_join.py [--rows 3300000]`.

Writes a caption .tsv of Conceptual Captions' size, of which two thirds of the images are there, and joins it as extract
does (captions into the images of a source) and as pretrain does (captions into a table in memory), for a list with
paths and for one with URLs, whose rows name the images. Each runs in a process of its own; CPU time and peak memory are
the kernel's counts for the process, less those of one that only imports. For docs/extract.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

IMPORTS = """
import sys
from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.pipelines.data.captions.caption_files import CaptionFile
from roibeam.pipelines.data.captions.corpus import CaptionTable, TextColumn
from roibeam.pipelines.data.captions.caption_join import CaptionJoin
from roibeam.pipelines.data.captions.caption_join import give_captions
from roibeam.pipelines.data.image_table import ImageTable
from roibeam.pipelines.data.source_kinds import Source
path, rows = sys.argv[1], int(sys.argv[2])
ids = (f"images/{row // 1000:05d}/{row:08d}" for row in range(rows) if row % 3)
"""
SOURCE = (
    "images = ImageTable(ImageRef(i, f'/{i}.jpg') for i in ids)\n"
    "source = Source('folder', '/images', '/images', 'no-extension', images, [])\n"
)
RUNS = {
    "imports": "",
    "the images alone, as a source": SOURCE,
    "extract": SOURCE + "source, given = give_captions(source, path, min_match=0.25)\n"
    "assert given.report.joined == len(source.images) == rows * 2 // 3, given.report",
    "pretrain": "ids = TextColumn(ids); join = CaptionJoin(ids)\n"
    "table = CaptionTable(ids, join.rows(CaptionFile(path).captions()))\n"
    "assert len(table) == join.report().joined == rows * 2 // 3, join.report()",
}


def write_list(path: Path, rows: int, *, urls: bool) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for row in range(rows):
            image = f"https://example.org/{row}/photo.jpg" if urls else f"images/{row // 1000:05d}/{row:08d}.jpg"
            file.write(f"a caption of some ten words which says what photo {row} shows\t{image}\n")


def run(code: str, path: Path, rows: int) -> tuple[float, float]:
    """CPU seconds and peak resident memory (MB) of a process that does this."""
    process = subprocess.Popen([sys.executable, "-c", IMPORTS + code, str(path), str(rows)])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{code!r} ended with status {status}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3_300_000, help="captions; two thirds of them have an image")
    rows = parser.parse_args().rows // 3 * 3
    print(
        f"{rows:,} captions, {rows * 2 // 3:,} images\n\n| list of | joined for | CPU seconds | MB |\n|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder:
        for urls in (False, True):
            path = Path(folder) / "captions.tsv"
            write_list(path, rows, urls=urls)
            base_seconds, base_mb = 0.0, 0.0
            for name, code in RUNS.items():
                seconds, megabytes = run(code, path, rows)
                if name == "imports":
                    base_seconds, base_mb = seconds, megabytes
                    continue
                kind = "URLs" if urls else "paths"
                print(f"| {kind} | {name} | {seconds - base_seconds:.0f} | {megabytes - base_mb:.0f} |", flush=True)


if __name__ == "__main__":
    main()
