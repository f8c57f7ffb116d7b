"""Pages a second of steps 1 to 4 of `roibeam collect run`, and memory: `python bench/collection.py [--pages 6000]`.

Pages are made up, of median 60 KB, with what real ones are made of: scripts, styles, menus, paragraphs with links,
images. They go through the product's own way, WARC files by Beam's local runner with two workers, first a tenth of
them, then all. The rate is that of the difference, so that what starts up once does not count; memory is the largest of
any process that took part.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MEDIAN_BYTES = 60_000
WORKERS = 2
BAR = 300.0  # pages a second
WORDS = (
    "the a of and to in that it is was for on with as his they at be this from have or by one had not but what all "
    "were when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see time could no make than first been its who now people my made over "
    "did down only way find use may water long little very after words called just where most know"
).split()
NOUNS = "dog cat horse boat house garden river bridge train market child woman farmer street mountain kitchen".split()


def made_page(number: int) -> bytes:
    """A page of about MEDIAN_BYTES, log-normal; about 45 % of it scripts and styles, as on the web."""
    source = random.Random(number)
    wanted = int(MEDIAN_BYTES * source.lognormvariate(0, 0.6))
    parts = [
        f"<!DOCTYPE html><html><head><meta charset=utf-8><title>Story {number}</title>"
        f'<meta property="og:image" content="/img/{number}.jpg">'
    ]
    script = "".join(f"var a{at}=function(b){{return b<{at}&&c[{at}]}};" for at in range(wanted * 45 // 100 // 40))
    parts.append(f"<script>{script}</script></head><body><nav><ul>")
    parts += [f'<li class="item"><a href="/section/{at}">Section {at}</a></li>' for at in range(30)]
    parts.append("</ul></nav><main><article>")
    what, where = source.sample(NOUNS, 2)
    parts.append(
        f'<figure><img src="/img/{number}.jpg" width=640 height=480 alt="a {what} beside a {where} in the sun">'
        f"<figcaption>A {what} and a {where}</figcaption></figure>"
    )
    size = sum(map(len, parts))
    while size < wanted:
        words = " ".join(source.choices(WORDS, k=60))
        part = (
            f'<div class="row"><p>{words.capitalize()}, <a href="/p/{size}">{source.choice(NOUNS)}</a> and '
            f'<em>{source.choice(NOUNS)}</em>.</p><span class="meta">by <b>Bob</b></span></div>'
        )
        parts.append(part)
        size += len(part)
    parts.append('</article></main><footer><img src="/logo.png"><p>All rights reserved</p></footer></body></html>')
    return "".join(parts).encode()


def write_warc(path: Path, numbers: range) -> list[int]:
    """A .warc.gz of so many pages; returns their sizes."""
    sizes = []
    with path.open("wb") as file:
        for number in numbers:
            body = made_page(number)
            sizes.append(len(body))
            url = f"http://host-{number % 50}.example/{number}.html"
            content = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + body
            head = f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {url}\r\n"
            head += f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(content)}\r\n\r\n"
            file.write(gzip.compress(head.encode() + content + b"\r\n\r\n", 6))
    return sizes


def run(pages: Path, out: Path) -> dict[str, float]:
    """Steps 1 to 4 in a process of its own: seconds, kept pages, the largest process in MB."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", str(pages), str(out)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def child(pages: str, out: str) -> None:
    from roibeam.pipelines.collection.beam_collection import PageJob, run_units
    from roibeam.pipelines.collection.page_units import plan_units
    from roibeam.pipelines.collection.part import read_counts
    from roibeam.pipelines.collection.thresholds import Thresholds
    from roibeam.pipelines.extract.request import RunnerChoice

    units = plan_units(pages, base_url="http://pages.invalid/")
    started = time.perf_counter()
    run_units(PageJob(out, Thresholds()), units, RunnerChoice(workers=WORKERS), what="looking into pages")
    seconds = time.perf_counter() - started
    counts = read_counts(Path(out), len(units))
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(each.ru_utime + each.ru_stime for each in used)
    largest = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(
        json.dumps({"seconds": seconds, "pages": counts.taken, "kept": counts.kept, "mb": largest / 1024, "cpu": cpu})
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=6000)
    parser.add_argument("--child", nargs=2)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    with tempfile.TemporaryDirectory() as folder:
        few, many = Path(folder) / "few", Path(folder) / "many"
        sizes: list[int] = []
        for place, count in ((few, options.pages // 10), (many, options.pages)):
            place.mkdir()
            for part in range(WORKERS):
                numbers = range(part, count, WORKERS)
                sizes += write_warc(place / f"part-{part}.warc.gz", numbers)
        print(f"{options.pages:,} pages of median {statistics.median(sizes) / 1000:.1f} KB, {WORKERS} workers")
        found = {name: run(place, Path(folder) / f"{name}-out") for name, place in (("few", few), ("many", many))}
    for one in found.values():
        print(
            f"  {one['pages']:>7,} pages: {one['seconds']:6.1f} s, {one['cpu']:.1f} s of CPU, {one['kept']:,} kept, "
            f"largest process {one['mb']:.0f} MB"
        )
    more = found["many"]["pages"] - found["few"]["pages"]
    rate = more / (found["many"]["seconds"] - found["few"]["seconds"])
    cpu = WORKERS * more / (found["many"]["cpu"] - found["few"]["cpu"])
    print(f"  {rate:.0f} pages/s (bar {BAR:.0f}); {cpu:.0f} on {WORKERS} cores that nobody else uses, by CPU time")


if __name__ == "__main__":
    main()
