"""`--precision` of commands that train, as the setting of the loop."""

from __future__ import annotations

from collections.abc import Sequence

_SETTING = "train.precision"
_NAMES = {"float32": "fp32", "bf16": "bf16", "fp16": "fp16"}


def precision_setting(precision: str | None, settings: Sequence[str]) -> list[str]:
    """The setting that says so, as --set takes it; none where nothing was asked.

    Raises:
        ValueError: for another precision, or when a setting says one, too.
    """
    if precision is None:
        return []
    if precision not in _NAMES:
        raise ValueError(f"--precision {precision!r}: choose one of {', '.join(_NAMES)}")
    if any(each.partition("=")[0].strip() == _SETTING for each in settings):
        raise ValueError(f"--precision and --set {_SETTING} both say the precision; give one of them")
    return [f"{_SETTING}={_NAMES[precision]}"]
