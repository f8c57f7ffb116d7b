"""Where an answer is written: in the folder of the run that was asked, or where the user says. Nothing is replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from roibeam.pipelines.training.run_folder.names import STAGES_NAME


def answer_place(checkpoint: str, given: Path | None, name: str) -> Path:
    """As given, else the first of RUN/evaluation, RUN/evaluation-2, ... that is not there yet.

    Args:
        checkpoint: as of `load_model`.
        given: what the user says.
        name: of a folder or file, such as "evaluation" or "probe.svg".
    Raises:
        ValueError: when neither is given: a checkpoint that is no run's folder has no place for answers; or when
            something is there.
    """
    if given is not None:
        check_new(given)
        return given
    run = Path(checkpoint).expanduser()
    if not (run / "checkpoints").is_dir() and not (run / STAGES_NAME).is_file():
        raise ValueError(f"{checkpoint} is no run's folder: say where to write with --out, such as --out {name}")
    for number in count(1):
        place = (run / name).with_stem(Path(name).stem if number == 1 else f"{Path(name).stem}-{number}")
        if not _is_there(place):
            return place
    raise AssertionError("numbers do not end")


def check_new(out: Path) -> None:
    """Raises ValueError for a file, or a folder with something in it."""
    if _is_there(out):
        what = f"is not empty ({min(each.name for each in out.iterdir())!r} is in it)" if out.is_dir() else "is a file"
        raise ValueError(f"{out} is there already and {what}; nothing is replaced, name another one")


@contextmanager
def gone_if_it_fails(*places: Path) -> Iterator[None]:
    """Around what writes files of one answer, or the files in a folder that was empty: a half of them would stop the
    same command when there is room again."""
    try:
        yield
    except BaseException:
        for place in places:
            for file in place.iterdir() if place.is_dir() else (place,):
                file.unlink(missing_ok=True)
        raise


def _is_there(place: Path) -> bool:
    return any(place.iterdir()) if place.is_dir() else place.exists()
