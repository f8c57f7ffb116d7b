"""`--precision` of commands that train, as the setting of the loop."""

from __future__ import annotations

from collections.abc import Sequence

from roibeam.pipelines.training.processes.precision import NAMES, check_precision

_SETTING = "train.precision"


def precision_setting(precision: str | None, settings: Sequence[str]) -> list[str]:
    """The setting that says so, as --set takes it; none where nothing was asked.

    Raises:
        ValueError: for another precision, or when a setting says one, too.
    """
    if precision is None:
        return []
    check_precision(precision)
    if any(each.partition("=")[0].strip() == _SETTING for each in settings):
        raise ValueError(f"--precision and --set {_SETTING} both say the precision; give one of them")
    return [f"{_SETTING}={NAMES[precision]}"]
