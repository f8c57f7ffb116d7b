"""Stores hurt by a seed, given to commands: an error of one line, or the truth; never a crash, a hang or a lie."""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from in_process import run_roibeam

sys.path.append(str(Path(__file__).parents[1] / "features"))
from fuzz_child import in_a_child, limited_time
from soak_share import SHARE
from store_mutations import FAMILIES, Original, hurt, write_original

from roibeam.features.exchange.formats import FORMATS, format_named
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore

_PLACES = ("link", "pipe")  # what lies in the place of a file


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return write_original(tmp_path_factory.mktemp("damaged") / "store")


def run(*arguments: object) -> tuple[int, str]:
    """Exit code and all that was said."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = run_roibeam(*arguments)
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


COMMANDS: dict[str, Callable[..., None]] = {
    "copy": copies, "diff": differs, "repair": repairs, "info": shows, **{name: exports(name) for name in FORMATS}
}  # fmt: skip


def examine(store: Original, place: Path, seed: int) -> str:
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
    for name in choose.sample(sorted(COMMANDS), 3):
        COMMANDS[name](store, place / f"{seed}-{name}", is_sealed=sealed)
    return "d" if deep else "."


@pytest.mark.parametrize(
    "seeds",
    [range(3), pytest.param(range(1000, 1000 + max(1, round(2000 * SHARE))), marks=pytest.mark.soak, id="2000")],
)
def test_commands_on_damaged_stores(original: Original, tmp_path: Path, seeds: range) -> None:
    run("store", "verify", original.folder, "--deep")  # imports, once for all seeds

    def all_seeds(tell: Callable[[str], None]) -> None:
        for seed in seeds:
            restore(original)
            with limited_time(5 * 20):
                try:
                    mark = examine(original, tmp_path, seed)
                except BaseException:
                    print(f"seed {seed}", file=sys.stderr)
                    raise
            tell(mark)

    try:
        marks = in_a_child(all_seeds, seeds)
    finally:
        restore(original)
    assert marks.count("d") >= len(seeds) // 3, marks
