"""Time and memory of reading a large COCO file: `python bench/dataset_memory.py INSTANCES [--times 4000]`.

Writes a file in which the images and annotations of INSTANCES, a small `instances_*.json`, stand many times, and reads
it in three ways, each in a process of its own: as labelled images, as boxes, and by `json.load` alone. CPU time and
peak memory are the kernel's counts for the process, less those of a process that only imports. For docs/extract.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

READERS = {
    "imports": "",
    "`read_coco_instances`": "read_coco_instances(path)",
    "`read_coco_boxes`": "read_coco_boxes(path)",
    "`json.load` alone": "json.load(open(path, encoding='utf-8'))",
}
IMPORTS = (
    "import json, sys; path = sys.argv[1]; "
    "from roibeam.pipelines.data.datasets.coco import read_coco_boxes, read_coco_instances; "
)


def enlarge(source: Path, target: Path, times: int) -> int:
    """Writes the source with its images and annotations `times` over, ids of their own; returns how many boxes."""
    content = json.loads(source.read_text(encoding="utf-8"))
    images, annotations = content.pop("images"), content.pop("annotations")
    offset = 1 + max(image["id"] for image in images)
    number = 0
    with open(target, "w", encoding="utf-8") as file:
        file.write(json.dumps(content)[:-1] + ', "images": [')
        for copy in range(times):
            for image in images:
                own = {"id": copy * offset + image["id"], "file_name": f"{copy}_{image['file_name']}"}
                file.write((", " if own["id"] != images[0]["id"] else "") + json.dumps(image | own))
        file.write('], "annotations": [')
        for copy in range(times):
            for annotation in annotations:
                number += 1
                own = {"id": number, "image_id": copy * offset + annotation["image_id"]}
                file.write((", " if number > 1 else "") + json.dumps(annotation | own))
        file.write("]}")
    return number


def run(code: str, path: Path) -> tuple[float, float]:
    """CPU seconds and peak resident memory (MB) of a process that does this."""
    process = subprocess.Popen([sys.executable, "-c", IMPORTS + code, str(path)])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{code!r} ended with status {status}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("instances", type=Path, help="a small COCO instances file")
    parser.add_argument("--times", type=int, default=4000, help="how many times its annotations are written")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "instances.json"
        count = enlarge(arguments.instances, path, arguments.times)
        print(f"{count:,} annotations, {path.stat().st_size / 1e6:.0f} MB\n")
        print("| read by | CPU seconds | MB |\n|---|---|---|")
        base_seconds, base_mb = 0.0, 0.0
        for name, code in READERS.items():
            seconds, peak_mb = run(code, path)
            if not code:
                base_seconds, base_mb = seconds, peak_mb
            else:
                print(f"| {name} | {seconds - base_seconds:.1f} | {peak_mb - base_mb:.0f} |", flush=True)


if __name__ == "__main__":
    main()
