"""Options that several commands share with the same words, and the lines of training on its run folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roibeam.pipelines.cli.option_names import INPUT, argument, option
from roibeam.pipelines.training.train_config import PRECISION_NAMES, check_precision

if TYPE_CHECKING:
    from roibeam.pipelines.training.hooks import TrainResult

JSON = option("json")
THREADS = option("threads", default="torch's choice")
ID_RULE = option("id-rule")
CAPTION_COLUMN = option("caption-column", default="found once for a file", is_advanced=True)
SCRATCH = option("scratch", default="the temporary folder")


# The checkpoint of evaluate and probe, its tokenizer and classes.
def named_step(value: Any) -> Any:
    """Returns the checkpoint, or None, that an option names, with its step in place of "best"; a path stays one."""
    from roibeam.pipelines.training.run_folder.folder import named_checkpoint

    return value if value is None else type(value)(named_checkpoint(str(value)))


CHECKPOINT_HELP = (
    "Run folder of `roibeam pretrain`, checkpoints/best below it, a model's folder, or an official checkpoint "
    "(docs/models.md)."
)
CHECKPOINT = argument("CHECKPOINT", CHECKPOINT_HELP, callback=named_step)
TOKENIZER = option("tokenizer", default="that of the checkpoint's run")
CONFIG = option("config")
BACKGROUND = option("background", default="last, as in our stores and the models trained on them")
TASK_TOKEN = option("task-token")

# The detector of extract, probe and look.
PRESET_NAMES = "butd-10-100, butd-36, milvlg, lxmert, d2, vl-bert, vilbert, visualbert, imagebert or interbert"
PRESET = option(
    "preset",
    values=PRESET_NAMES,
    default="that of the store, else butd-10-100",
)
DETECTOR = option("detector", default="that of the preset")
CONVENTIONS = option("conventions", default="those of the preset or of the detector's folder")
SELECTION = option("selection", default="that of the preset; butd-10-100 with a detector's folder")
WEIGHTS = option("weights", default="those of the detector's folder")
DETECTOR_SET = option("set", "Sections: detector, conventions, selection.")

# Images that must not be inside: extract, pretrain and leaks.
_RULES = (
    "May be given again. RULE is refcoco, refcoco+, refcocog, karpathy, flickr30k, coco, vqa, vqa-minival, vcr, nlvr2, "
    "labels, visual-genome or list; FILE may be a folder of official files. docs/extract.md tells each."
)
HELD_OUT = option("held-out", _RULES)
HELD_OUT_NEEDED = option("held-out", _RULES, group=INPUT, is_advanced=False)
DROP_HELD_OUT = option("drop-held-out")
NUMBERS_OF = option("numbers-of", default="what the kind of source tells")

# All commands that train.
RESUME = option("resume", default="continue where OUT holds this very run")
RESUME_FROM = option("resume-from", default="the newest")


def resume_choice(resume: bool | None, resume_from: str | None) -> bool | str | None:
    """Merges both options into one; ValueError where they contradict each other."""
    if resume_from is not None and resume is False:
        raise ValueError("--no-resume and --resume-from contradict each other; give one of them")
    return resume if resume_from is None else resume_from


def origin_facts(run_dir: Path) -> dict[str, str]:
    """Origin of a run, for --json: "started_from", and end to end "region_encoder_started_from"."""
    from roibeam.pipelines.training.run_folder.folder import saved_config
    from roibeam.pipelines.training.run_folder.run_summary import origins

    return {name.replace(" ", "_"): words for name, words in origins(saved_config(run_dir)).items()}


def origin_lines(run_dir: Path) -> str:
    """Origin of a run, for the terminal."""
    return "\n".join(f"{name.replace('_', ' ')} {words}" for name, words in origin_facts(run_dir).items())


def run_folder_lines(run_dir: Path, result: TrainResult) -> list[str]:
    """Files of a run folder that every training writes, with a word on each, for the terminal."""
    best = [] if result.best is None else [f"  {result.best.relative_to(run_dir)}/   the best by its evaluations"]
    curves = ["  curves.svg   its curves, as a picture"] if (run_dir / "curves.svg").is_file() else []
    return [
        *best,
        "  report.html   look here first: how good, curves, settings",
        *curves,
        "  log.jsonl   one line per step",
        "  config.json   everything this run was made with",
    ]


_SETTING = "train.precision"


def precision_setting(precision: str | None, settings: Sequence[str]) -> list[str]:
    """Returns the precision as a setting of --set; none where it was not given.

    Raises:
        ValueError: for an unknown precision, or when a setting gives one, too.
    """
    if precision is None:
        return []
    check_precision(precision)
    if any(each.partition("=")[0].strip() == _SETTING for each in settings):
        raise ValueError(f"--precision and --set {_SETTING} both say the precision; give one of them")
    return [f"{_SETTING}={PRECISION_NAMES[precision]}"]
