"""Run in stages: runs of their own in one folder, each of which starts from the weights of the one before.

RUN/stages.json      the options of each stage, and which are done; written aside and renamed
RUN/stage-1/ ...     a run folder each
RUN/report.html      all of them on one page

A finished stage is not read again. The others are run, and resume as any run does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roibeam.pipelines.common.console.command_files import read_json_object
from roibeam.pipelines.training.run_folder.files import (
    STAGES_NAME,
    SUMS_NAME,
    WRITING,
    check_run_file,
    latest_checkpoint,
    write_run_json,
)
from roibeam.pipelines.training.run_folder.train_log import LOG_NAME


def stage_folder(run_dir: Path, number: int) -> Path:
    """Folder of stage `number`, from 1."""
    return run_dir / f"stage-{number}"


def furthest_stage(run_dir: Path) -> Path:
    """The folder of the last stage that has a checkpoint; `run_dir` if none has, or it is no run in stages."""
    if not (run_dir / STAGES_NAME).is_file():
        return run_dir
    folders = [stage_folder(run_dir, number + 1) for number in range(len(_read(run_dir)))]
    return next((folder for folder in reversed(folders) if latest_checkpoint(folder) is not None), run_dir)


class StagedRun:
    """
    Args:
        run_dir: new, empty, or of a run in as many stages.
        options: of each stage, texts of the options that decide its result.
    Raises:
        ValueError: if `run_dir` holds something else, another number of stages, or a stage that continued one with
            other options.
    """

    def __init__(self, run_dir: Path, options: Sequence[Sequence[str]]) -> None:
        self.run_dir = run_dir
        self._stages: list[dict[str, Any]] = [{"options": list(each), "done": False} for each in options]
        self._check_folder()
        before = _read(run_dir) if (run_dir / STAGES_NAME).is_file() else []
        if before and len(before) != len(options):
            raise ValueError(
                f"{run_dir} holds a run in {len(before)} stages, this command has {len(options)}; give the same "
                f"command, or choose another folder"
            )
        for number, (saved, now) in enumerate(zip(before, self._stages, strict=False), start=1):
            is_same = _by_name(saved["options"]) == _by_name(now["options"])
            now["done"] = saved["done"] and is_same
            if not is_same and (self.folder(number + 1) / LOG_NAME).exists():
                gone = [each for each in saved["options"] if each not in now["options"]]
                come = [each for each in now["options"] if each not in saved["options"]]
                changed = f"{' '.join(gone) or 'nothing'} -> {' '.join(come) or 'nothing'}"
                raise ValueError(
                    f"{self.folder(number)} was run with other options ({changed}), and "
                    f"{self.folder(number + 1)} went on from it; give the same command, or choose another folder"
                )

    def folder(self, number: int) -> Path:
        return stage_folder(self.run_dir, number)

    def is_done(self, number: int) -> bool:
        return bool(self._stages[number - 1]["done"])

    def mark_done(self, number: int) -> None:
        self._stages[number - 1]["done"] = True
        self.save()

    def save(self) -> None:
        """Writes stages.json; only one process may."""
        self.run_dir.mkdir(parents=True, exist_ok=True)
        write_run_json(self.run_dir / STAGES_NAME, {"stages": self._stages})

    def _check_folder(self) -> None:
        if self.run_dir.exists() and not self.run_dir.is_dir():
            raise ValueError(f"{self.run_dir} is a file; give a folder for the run")
        others = sorted(path.name for path in self.run_dir.iterdir()) if self.run_dir.is_dir() else []
        others = [
            name for name in others if not name.startswith((WRITING, SUMS_NAME, f".{SUMS_NAME}.", f".{STAGES_NAME}."))
        ]
        if others and STAGES_NAME not in others:
            raise ValueError(
                f"{self.run_dir} is not empty and no run in stages ({others[0]!r} is in it); choose a new folder"
            )


def _by_name(options: Sequence[str]) -> list[str]:
    """The options by their names, those of one name as they were given: a command may have them in any order."""
    return sorted(options, key=lambda each: each.partition(" ")[0])


def _read(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / STAGES_NAME
    check_run_file(path)
    try:
        stages = read_json_object(path)["stages"]
        return [{"options": list(each["options"]), "done": bool(each["done"])} for each in stages]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path}: damaged; expected the stages of a run, as roibeam pretrain writes them") from None
