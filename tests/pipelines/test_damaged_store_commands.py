"""Stores hurt by a seed, given to commands: an error of one line, or the truth; never a crash, a hang or a lie."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asked_models import SIZES
from in_process import run_roibeam

sys.path.append(str(Path(__file__).parents[1] / "features"))
from fuzz_child import in_a_child, limited_time
from soak_share import SHARE
from store_mutations import FAMILIES, Original, hurt, write_original

from roibeam.features.exchange.formats import FORMATS, format_named
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore

_PLACES = ("link", "pipe", "swap")  # what lies in the place of a file: "swap" is another file of the store
_SECONDS = 20  # of one command
OUTCOMES: Counter[tuple[str, int]] = Counter()  # (command, exit code)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    """Its records are of one kind, so that unhurt they would go into a file of every format."""
    kinds = [{"distribution": "full", "attributes": True, "image_feature": True}]
    return write_original(tmp_path_factory.mktemp("damaged") / "store", kinds)


@pytest.fixture(scope="module")
def commands(original: Original, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[..., None]]:
    """What is done with a hurt store, by name."""
    return {
        "verify": verifies, "copy": copies, "diff": differs, "repair": repairs, "info": shows,
        **{name: exports(name) for name in FORMATS},
        "evaluate": Evaluation.of(original, tmp_path_factory.mktemp("evaluated")),
    }  # fmt: skip


def run(*arguments: object, seconds: int = _SECONDS) -> tuple[int, str]:
    """Exit code and all that was said; one that takes longer than `seconds` ends the process."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), limited_time(seconds):
        code = run_roibeam(*arguments)
    OUTCOMES[" ".join(map(str, arguments[:2])) if arguments[0] == "store" else str(arguments[0]), code] += 1
    assert "Traceback" not in said.getvalue() and "fault of roibeam" not in said.getvalue() and code != 70, (
        arguments, said.getvalue(),
    )  # fmt: skip
    return code, said.getvalue()


def hurt_on_disk(store: Original, choose: random.Random, seed: int) -> str:
    """Changes the store's files; says what was done."""
    kind = choose.choice([*FAMILIES, *_PLACES])
    if kind in FAMILIES:
        for name, data in hurt(store, kind, seed).items():
            (store.folder / name).unlink()
            (store.folder / name).write_bytes(data)
        return kind
    path = store.folder / choose.choice(sorted(store.files))
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "swap":
        other = choose.choice(sorted(set(store.files) - {path.name}))
        (store.folder / other).rename(path)
        (store.folder / other).write_bytes(store.files[path.name])
    else:
        path.symlink_to(choose.choice(["/dev/zero", "/etc/passwd", path.name, "nowhere", "."]))
    return f"{kind} {path.name}"


def restore(store: Original) -> None:
    for path in store.folder.iterdir():
        if path.is_symlink() or path.name not in store.files or not path.is_file():
            path.unlink()
    for name, data in store.files.items():
        (store.folder / name).unlink(missing_ok=True)
        (store.folder / name).write_bytes(data)


def has_wrong_values(folder: Path, wanted: dict[str, RegionRecord]) -> bool:
    """Whether the store in `folder` gives another record than the unhurt one."""
    with FeatureStore(folder) as opened:
        return any(not record.equals(wanted[record.image_id]) for record in opened)


def copies(store: Original, out: Path, *, is_sealed: bool) -> None:
    code, said = run("store", "copy", store.folder, out)
    assert code or is_sealed or not has_wrong_values(out, store.wanted), said


def exports(name: str) -> Callable[..., None]:
    def export(store: Original, out: Path, *, is_sealed: bool) -> None:
        suffixes = format_named(name).suffixes
        file = out.with_suffix(suffixes[0] if suffixes else "")
        code, said = run("store", "export", store.folder, file, "--format", name)
        if code or is_sealed:
            return
        with format_named(name).open(file) as opened:
            for outcome in opened.outcomes("float32"):
                if isinstance(outcome, RegionRecord):
                    features = store.wanted[outcome.image_id].features.astype(np.float32)
                    assert np.array_equal(outcome.features, features), (outcome.image_id, said)

    return export


def differs(store: Original, out: Path, *, is_sealed: bool) -> None:
    run("store", "diff", store.folder, store.folder)


def repairs(store: Original, out: Path, *, is_sealed: bool) -> None:
    run("store", "repair", store.folder)


def shows(store: Original, out: Path, *, is_sealed: bool) -> None:
    run("store", "info", store.folder)


def verifies(store: Original, out: Path, *, is_sealed: bool) -> None:
    run("store", "verify", store.folder)


@dataclass(frozen=True)
class Evaluation:
    """A small model, asked about captions of the store's images; whole, it must give the same figures each time.

    Attributes:
        arguments: of the command, after the store.
        figures: of the unhurt store.
    """

    arguments: tuple[object, ...]
    figures: Any

    @classmethod
    def of(cls, store: Original, folder: Path) -> Evaluation:
        from roibeam.model.visualbert.model import VisualBertConfig, VisualBertForPreTraining

        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "picture", "of", "things", *"0123456789"]
        (folder / "vocab.txt").write_text("\n".join(words))
        size = {"vocab_size": len(words), "region_feature_size": 64, "max_position_embeddings": 64}
        VisualBertForPreTraining(VisualBertConfig(**SIZES | size)).save_pretrained(folder / "model")
        seen = [record for record in store.wanted.values() if record.num_regions]
        lines = [f"a picture of {number} things\t{one.image_id}.jpg\n" for number, one in enumerate(seen)]
        (folder / "captions.tsv").write_text("".join(lines))
        files = ("--captions", folder / "captions.tsv", "--tokenizer", folder / "vocab.txt")
        given = (folder / "model", *files, "--device", "cpu", "--no-retrieval", "--threads", 1, "--json")
        arguments = ("evaluate", *given, "--store", store.folder, "--out", folder / "unhurt")
        code, said = run(*arguments, seconds=600)  # it imports torch and all that hangs on it
        assert not code, said
        return cls(given, _figures(folder / "unhurt"))

    def __call__(self, store: Original, out: Path, *, is_sealed: bool) -> None:
        code, said = run("evaluate", *self.arguments, "--store", store.folder, "--out", out)
        assert code or is_sealed or _figures(out) == self.figures, said


def _figures(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text())["figures"]


def examine(store: Original, commands: dict[str, Callable[..., None]], place: Path, seed: int) -> str:
    """ "d" where the deep verification found the damage, "." where it found none."""
    choose = random.Random(seed)
    what = hurt_on_disk(store, choose, seed)
    # Whoever recomputes sums can write any value; `verify --deep` alone compares with the digests.
    deep, _ = run("store", "verify", store.folder, "--deep")
    try:
        wrong = has_wrong_values(store.folder, store.wanted)
    except (ValueError, OSError, KeyError) as error:
        assert "\n" not in str(error) and len(str(error)) > 20, (what, error)
        wrong = False
    assert deep or not wrong, f"{what}: values that the deep verification calls whole are others"
    sealed = False
    if wrong:
        with contextlib.suppress(ValueError, OSError, KeyError), FeatureStore(store.folder) as opened:
            sealed = any(not record.equals(store.wanted[record.image_id]) for record in opened.scan(check=True))
    for name in choose.sample(sorted(commands), 3):
        commands[name](store, place / f"{seed}-{name}", is_sealed=sealed)
    return "d" if deep else "."


@pytest.mark.parametrize(
    "seeds",
    [range(3), pytest.param(range(1000, 1000 + max(1, round(2000 * SHARE))), marks=pytest.mark.soak, id="2000")],
)
def test_commands_on_damaged_stores(
    original: Original, commands: dict[str, Callable[..., None]], tmp_path: Path, seeds: range
) -> None:
    run("store", "verify", original.folder, "--deep", seconds=600)  # imports, once for all seeds

    def all_seeds(tell: Callable[[str], None]) -> None:
        for seed in seeds:
            restore(original)
            try:
                mark = examine(original, commands, tmp_path, seed)
            except BaseException:
                print(f"seed {seed}", file=sys.stderr)
                raise
            tell(mark)
        print(f"{len(seeds)} stores: {sorted(OUTCOMES.items())}")

    try:
        marks = in_a_child(all_seeds, seeds)
    finally:
        restore(original)
    assert marks.count("d") >= len(seeds) // 3, marks
