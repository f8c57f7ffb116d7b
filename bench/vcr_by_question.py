"""VCR of the toy world by what is asked for: `python bench/vcr_by_question.py DATA --said FILE...`, or
`python bench/vcr_by_question.py DATA --only KIND --out DIR`, which writes the questions of one kind as a data set of
their own, to learn them alone.

DATA is what `roibeam toyworld --tasks` wrote for VCR; FILE is of `roibeam predict` for its split val. Rationales are
those of the right answer.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from store_rounds import table

# Kind: what its answers and its rationales differ in.
KINDS: Mapping[str, tuple[str, str]] = {
    "where": ("left, right, above, below", "colours"),
    "upon": ("in front of, behind, inside, around", "colours"),
    "which": ("attributes", "left, right, above, below, larger, smaller"),
    "differ": ("colours", "left, right, above, below, larger, smaller"),
}
_SIDES = {"left", "right", "above", "below"}


def kind_of(row: Mapping[str, Any]) -> str:
    """By its words, which are written by roibeam.pipelines.toyworld.tasks.vcr."""
    words = {token.lower() for token in row["question"] if isinstance(token, str)}
    if "what" in words:
        return "where" if words & _SIDES else "upon"
    return "which" if "which" in words else "differ"


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def shares(rows: Mapping[str, Mapping[str, Any]], said: Path) -> dict[str, tuple[int, float, float]]:
    """Kind -> questions, and the shares of right answers and right rationales."""
    found: dict[str, list[tuple[bool, bool]]] = {kind: [] for kind in KINDS}
    with open(said, encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            row = rows[line["annot_id"]]
            answer, rationale = row["answer_label"], row["rationale_label"]
            best = [
                max(range(4), key=lambda choice: float(line[f"{name}_{choice}"]))
                for name in ("answer", f"rationale_conditioned_on_a{answer}")
            ]
            found[kind_of(row)].append((best[0] == answer, best[1] == rationale))
    return {
        kind: (len(each), *(sum(part) / len(each) for part in zip(*each, strict=True)))
        for kind, each in found.items()
        if each
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("--said", type=Path, nargs="+", default=[], metavar="FILE")
    parser.add_argument("--only", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--out", type=Path, metavar="DIR", help="new folder, with --only")
    arguments = parser.parse_args()
    if bool(arguments.only) != bool(arguments.out):
        parser.error("--only and --out belong together")
    if arguments.only:
        arguments.out.mkdir()
        (arguments.out / "vcr1images").symlink_to((arguments.data / "vcr1images").resolve())
        for split in ("train", "val"):
            kept = [row for row in read_rows(arguments.data / f"{split}.jsonl") if kind_of(row) == arguments.only]
            lines = "".join(f"{json.dumps(row)}\n" for row in kept)
            (arguments.out / f"{split}.jsonl").write_text(lines, encoding="utf-8")
            print(f"{split}: {len(kept):,} questions")
    rows = {row["annot_id"]: row for row in read_rows(arguments.data / "val.jsonl")}
    for path in arguments.said:
        cells: list[tuple[str, ...]] = [
            (kind, f"{count:,}", KINDS[kind][0], f"{answers:.1%}", KINDS[kind][1], f"{rationales:.1%}")
            for kind, (count, answers, rationales) in shares(rows, path).items()
        ]
        print(f"{path}\n{table(('kind', 'questions', 'answers differ in', 'Q->A', 'rationales', 'QA->R'), cells)}")


if __name__ == "__main__":
    main()
