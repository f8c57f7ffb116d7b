"""What to say of a name that is none of those there are: the near ones, and a list where it is short."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

_MOST_NEAR, _MOST_LISTED = 3, 14
_LONG = 5  # letters of a name that another may hold
_ALIKE = 0.65  # 0 to 1, of difflib: "best" is not near to "vl-bert"


def near_names(name: str, known: Collection[str]) -> list[str]:
    """At most three of `known` that `name` may mean, the nearest first; "vl-bert" and "VLBERT" both mean "vlbert".

    Where none is near, those that it holds."""
    plain: dict[str, list[str]] = {}
    for each in known:
        plain.setdefault(_plain(each), []).append(each)
    if same := plain.get(_plain(name)):
        return same[:_MOST_NEAR]
    near = difflib.get_close_matches(_plain(name), plain, n=_MOST_NEAR, cutoff=_ALIKE)
    held = sorted((key for key in plain if len(key) >= _LONG and key in _plain(name)), key=len, reverse=True)
    return [each for key in near or held for each in plain[key]][:_MOST_NEAR]


def name_hint(name: str, known: Collection[str], *, listed_by: str = "") -> str:
    """What may have been meant, for the end of an error: "did you mean vlbert? choose one of vlbert, visualbert".

    Args:
        known: in the order to be shown; of more than fourteen only the near ones are.
        listed_by: what lists them all, such as "roibeam recipes lists all 58".
    """
    near = near_names(name, known)
    meant = f"did you mean {' or '.join(near)}?" if near else ""
    listed = list(known)
    if len(listed) <= _MOST_LISTED:
        return f"{meant} choose one of {', '.join(listed)}".strip()
    if listed_by:
        return f"{meant} {listed_by}".strip()
    return meant or f"there are {', '.join(listed[:_MOST_LISTED])} and {len(listed) - _MOST_LISTED} more"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
