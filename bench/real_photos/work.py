"""Commands of a row in processes of their own, until the time is over; what was begun goes on the next time.

WORK/data, WORK/store       captions and regions
WORK/runs/<row>             what a row makes
WORK/logs/<row>.log         what its commands say; WORK/commands/<row>.txt and WORK/seconds/<row>.txt: for its result
WORK/made/<row>.json        what came out in this folder
RESULTS/<row>.json          what came out first. A row that is there is made again only if another one needs what this
                            folder lacks; the first result stays
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "real_photos"
GRACE = 60  # seconds that a command has to write its checkpoint


class OutOfTime(Exception):
    """The part is over."""


@dataclass(frozen=True)
class Row:
    """
    Attributes:
        name: "<kind>/<what>"; also of its result.
        make: makes it; returns what came out.
        needs: rows that are made before.
    """

    name: str
    make: Callable[[Work, str], dict[str, Any]]
    needs: Sequence[str] = ()


@dataclass
class Work:
    """
    Attributes:
        photos, captions: as `prepare.py` takes them.
        folder, results: see the top of the file.
        ends: when the part is over, by `time.monotonic`.
        share: of the steps of all runs; less than 1 to see that all works.
    """

    photos: Path
    captions: Path
    folder: Path
    results: Path
    ends: float
    share: float = 1.0

    @property
    def data(self) -> Path:
        """Of photos for validation and test the first caption alone."""
        return self.folder / "data" / "first"

    @property
    def json(self) -> str:
        """Name of the file of captions."""
        return "dataset_flickr8k.json" if self.captions.is_dir() else self.captions.name

    def steps(self, steps: int) -> int:
        return max(1, round(self.share * steps))

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def run_folder(self, row: str) -> Path:
        return self.folder / "runs" / row

    def result(self, row: str) -> Path:
        return self.results / f"{row}.json"

    def is_there(self, row: str) -> bool:
        """Whether a row was made. Raises ValueError for one of other photos, captions or steps."""
        if not self.result(row).exists():
            return False
        kept = self.read(row)
        if (kept["of"], kept["share"]) != (self.json, self.share):
            raise ValueError(
                f"{self.result(row)} is of {kept['of']} with a share of {kept['share']}, this call of {self.json} with "
                f"{self.share}; name other --results and --work"
            )
        return True

    def made(self, row: str) -> Path:
        return self.folder / "made" / f"{row}.json"

    def differs(self, row: str) -> bool:
        """Whether this folder has other figures of a row than the first result."""
        first, again = (json.loads(path.read_text("utf-8")) for path in (self.result(row), self.made(row)))
        return any(first[name] != again[name] for name in again.keys() - {"minutes", "commands"})

    def log(self, row: str) -> Path:
        return self.folder / "logs" / f"{row}.log"

    def read(self, row: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.result(row).read_text("utf-8"))
        return found

    def roibeam(self, row: str, *words: str | Path) -> None:
        self.run(row, "-m", "roibeam", *words)

    def example(self, row: str, script: str, *words: str | Path) -> None:
        self.run(row, EXAMPLE / script, *words)

    def run(self, row: str, *words: str | Path) -> None:
        """Runs Python with these words; SystemExit where it fails, OutOfTime where it has no time left."""
        command = " ".join(str(word) for word in words).replace("-m roibeam", "roibeam")
        for path, name in ((self.folder, "WORK"), (self.photos, "PHOTOS"), (self.captions, "CAPTIONS"), (ROOT, "")):
            command = command.replace(f"{path}/", f"{name}/" if name else "").replace(str(path), name)
        known = self.folder / "commands" / f"{row}.txt"
        known.parent.mkdir(parents=True, exist_ok=True)
        before = known.read_text().splitlines() if known.exists() else []
        known.write_text("".join(f"{line}\n" for line in dict.fromkeys([*before, command])))
        log = self.log(row)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as out:
            out.write(f"\n{command}\n")
            out.flush()
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            begun = subprocess.Popen([sys.executable, *words], stdout=out, stderr=subprocess.STDOUT, env=environment)
            try:
                code = begun.wait(max(0.0, self.ends - time.monotonic()))
            except subprocess.TimeoutExpired:
                begun.send_signal(signal.SIGINT)
                try:
                    begun.wait(GRACE)
                except subprocess.TimeoutExpired:
                    begun.kill()
                    begun.wait()
                raise OutOfTime(row) from None
        if code:
            raise SystemExit(f"{row} ended with {code}; see {log}")

    def done(self, row: Row) -> None:
        """Makes a row and writes what came out, whole or not at all."""
        start, before = time.monotonic(), self.folder / "seconds" / f"{row.name}.txt"
        try:
            found = row.make(self, row.name)
        finally:
            before.parent.mkdir(parents=True, exist_ok=True)
            spent = float(before.read_text()) if before.exists() else 0.0
            before.write_text(str(round(spent + time.monotonic() - start)))
        known = self.folder / "commands" / f"{row.name}.txt"
        content = {"row": row.name, "of": self.json, "share": self.share}
        content["minutes"] = round(float(before.read_text()) / 60, 1)
        content |= {"commands": known.read_text().splitlines() if known.exists() else [], **found}
        for path in (self.result(row.name), self.made(row.name)):
            if path == self.made(row.name) or not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                aside = path.with_suffix(".part")
                aside.write_text(json.dumps(content, separators=(",", ":")) + "\n", "utf-8")
                aside.rename(path)
