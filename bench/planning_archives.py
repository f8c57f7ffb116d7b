"""Time, requests and bytes of planning many tars: `python bench/planning_archives.py`.

Makes tars as img2dataset does (a photo, its json and its caption), whose photos are holes: the headers are all there,
the disk holds little. Each is planned as `roibeam extract FOLDER OUT` does before the first photo is read, in processes
of their own that take turns: from this disk, from this disk with nothing of it in memory, and through Beam's client
from a server on loopback that answers after 20 ms (bench/slow_s3.py). Arms: one thread, and the default. All plans are
compared, byte for byte. For BENCHMARKS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from slow_s3 import BUCKET, SlowS3, drop_from_cache, slow_s3

HERE = Path(__file__).parents[1]
PLAN = """
import hashlib, json, resource, sys, tempfile, time
from pathlib import Path
from roibeam.features.folders.local_folder import LocalFolder
from roibeam.pipelines.data.shard_plan import extend_plan
from roibeam.pipelines.common.remote_files import use_beam_options
from roibeam.pipelines.data import source_images
from roibeam.pipelines.data.source_kinds import open_source
where, threads, options = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
if options:
    use_beam_options(options)
if threads:
    source_images.archive_images.__kwdefaults__["threads"] = threads
with tempfile.TemporaryDirectory() as store:
    before, start, cpu = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic(), time.process_time()
    source = open_source(where)
    extend_plan(LocalFolder(Path(store)), None, source={}, settings={}, images=source.images, shard_size=4000)
    seconds, cpu = time.monotonic() - start, time.process_time() - cpu
    whole = hashlib.sha256("".join(source.notes).encode())
    for path in sorted(Path(store).rglob("*.*")):
        whole.update(path.read_bytes())
print(json.dumps({
    "seconds": seconds, "cpu": cpu, "images": len(source.images), "digest": whole.hexdigest(),
    "mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
}))
"""


def make_tars(folder: Path, tars: int, photos: int, photo_bytes: int) -> None:
    folder.mkdir()
    for number in range(tars):
        with (folder / f"{number:05d}.tar").open("wb") as file:
            for photo in range(photos):
                key = f"{number:05d}{photo:05d}"
                texts = {"json": json.dumps({"key": key, "url": f"http://x/{key}", "status": "success"} | MORE)}
                texts["txt"] = f"a red cat beside the {photo}th street"
                for name, data, size in (
                    (f"{key}.jpg", b"", photo_bytes),
                    *((f"{key}.{extension}", text.encode(), len(text)) for extension, text in texts.items()),
                ):
                    member = tarfile.TarInfo(name)
                    member.size = size
                    file.write(member.tobuf())
                    file.write(data)
                    file.seek(-(-size // 512) * 512 - len(data), os.SEEK_CUR)
            file.truncate(file.tell() + 10240)


MORE = {"width": 256, "height": 256, "original_width": 1024, "original_height": 768, "sha256": "0" * 64, "exif": "{}"}


def planned(where: str, threads: int, server: SlowS3 | None) -> dict[str, float | str]:
    """What PLAN prints, with requests and MB that the server gave."""
    asked = (server.requests, server.sent_bytes) if server else (0, 0)
    done = subprocess.run(
        [sys.executable, "-c", PLAN, where, str(threads), *(server.options() if server else [])],
        env={**os.environ, "PYTHONPATH": str(HERE / "src")}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    found: dict[str, float | str] = json.loads(done.stdout)
    if server:
        found |= {"requests": server.requests - asked[0], "sent": (server.sent_bytes - asked[1]) / 1e6}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tars", type=int, default=1000)
    parser.add_argument("--photos", type=int, default=20, help="in each tar")
    parser.add_argument("--photo-kb", type=int, default=200)
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "tars"
        make_tars(folder, arguments.tars, arguments.photos, arguments.photo_kb * 1000)
        total_mb = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        print(f"{arguments.tars:,} tars of {arguments.photos:,} photos, {total_mb:,.0f} MB\n")
        print("| from | arm | seconds | CPU seconds | MB of memory | requests | MB sent | times as fast |")
        print("|---|---|---|---|---|---|---|---|")
        digests = set()
        with slow_s3(folder, arguments.latency_ms / 1000) as server:
            for _ in range(arguments.rounds):
                for kind in ("disk, in memory", "disk, cold", "server"):
                    digests |= measured(kind, folder, server)
        assert len(digests) == 2, digests  # locations on this disk, and at the server


def measured(kind: str, folder: Path, server: SlowS3) -> set[str]:
    """Prints a row for each arm; digests of their plans."""
    digests, first = set(), None
    for arm, threads in (("one thread", 1), ("default", 0)):
        if kind == "disk, cold":
            drop_from_cache(folder)
        remote = server if kind == "server" else None
        found = planned(f"s3://{BUCKET}/*.tar" if remote else str(folder), threads, remote)
        first = first or float(found["seconds"])
        digests.add(str(found["digest"]))
        requests, sent = (f"{found[name]:,.0f}" if name in found else "" for name in ("requests", "sent"))
        print(
            f"| {kind} | {arm} | {found['seconds']:.1f} | {found['cpu']:.1f} | {found['mb']:.0f} | {requests} | {sent} "
            f"| {first / float(found['seconds']):.2f} |",
            flush=True,
        )
    return digests


if __name__ == "__main__":
    main()
