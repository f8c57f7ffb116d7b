"""`roibeam download` beside img2dataset: `python bench/download_speed.py IMG2DATASET [--photos 2000] [--rounds 5]`.

IMG2DATASET is the command of an environment of its own (`python -m venv build/peers/img2dataset`, `pip install
img2dataset` there). Both take turns and fetch the same JPEG files from one server of this machine, a process that is
not counted, into a folder of files, and resize nothing; each with 64 connections. For an arm: photos per second of its
CPU time (it and its children), and of the clock. roibeam also checks that each file is a whole image, and syncs it to
disk. For BENCHMARKS.md.
"""

from __future__ import annotations

import argparse
import io
import json
import resource
import subprocess
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
from PIL import Image

DIFFERENT = 40


def serve() -> None:
    """Serves drawn photos of 500 x 375 pixels under any path that ends in <number>.jpg; prints its port."""
    generator, photos = np.random.default_rng(0), []
    for _ in range(DIFFERENT):
        small = Image.fromarray(generator.integers(0, 256, (47, 63, 3), np.uint8))
        data = io.BytesIO()
        small.resize((500, 375), Image.Resampling.BICUBIC).save(data, "JPEG", quality=92)
        photos.append(data.getvalue())

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            data = photos[int(Path(self.path).stem) % DIFFERENT]
            self.send_response(200)
            self.send_header("Content-Type", "image/jpeg")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *words: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


def timed(words: list[str], folder: Path, photos: int) -> tuple[float, float]:
    """Photos per second of CPU time and of the clock, in that order; fails if one is missing."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    count = sum(1 for _ in folder.rglob("*.jpg"))
    if done.returncode or count != photos:
        raise SystemExit(f"{words[0]}: {count} of {photos} photos, exit code {done.returncode}\n{done.stderr[-2000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return photos / cpu, photos / wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", nargs="?", help="the command img2dataset")
    parser.add_argument("--photos", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve()
        return
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
    rows: dict[str, list[tuple[float, float]]] = {"roibeam": [], "img2dataset": []}
    try:
        for number in range(given.rounds):
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch)
                links = [f"{url}/{each}.jpg" for each in range(given.photos)]
                (folder / "list.tsv").write_text("".join(f"photo {each}\t{link}\n" for each, link in enumerate(links)))
                (folder / "list.txt").write_text("".join(f"{link}\n" for link in links))
                ours, theirs = folder / "ours", folder / "theirs"
                arms = {
                    "roibeam": (ours, [
                        sys.executable, "-m", "roibeam", "download", f"{folder}/list.tsv", str(ours),
                        *("--allow-private", "127.0.0.0/8", "--connections", "64", "--per-host", "64"),
                    ]),
                    "img2dataset": (theirs, [
                        given.peer, "--url_list", f"{folder}/list.txt", "--input_format", "txt", "--output_folder",
                        str(theirs), "--output_format", "files", "--processes_count", "1", "--thread_count", "64",
                        *("--timeout", "60", "--retries", "2"),
                        *("--resize_mode", "no", "--disable_all_reencoding", "True", "--number_sample_per_shard"),
                        *(str(given.photos), "--enable_wandb", "False"),
                    ]),
                }  # fmt: skip
                for name in sorted(arms, reverse=bool(number % 2)):
                    place, words = arms[name]
                    rows[name].append(timed(words, place, given.photos))
    finally:
        server.terminate()
    for place, what in enumerate(("photos per second of CPU time", "photos per second of the clock")):
        ours, theirs = (np.array([each[place] for each in rows[name]]) for name in rows)
        ratios = np.sort(ours / theirs)
        told = {name: [round(float(each[place]), 1) for each in found] for name, found in rows.items()}
        ratio = f"{np.median(ratios):.2f} [{ratios[0]:.2f}..{ratios[-1]:.2f}]"
        print(f"{what}: {json.dumps(told)}; roibeam / img2dataset {ratio}")


if __name__ == "__main__":
    main()
