"""What a site says about its pages and images being used for machine learning: in headers, and in <meta> of pages.

X-Robots-Tag as img2dataset honours it, TDM-Reservation (W3C's TDMRep) and Content-Usage (IETF's AIPREF draft).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

AGENT = "roibeam"
# As img2dataset honours them; "none" is short for noindex, nofollow. `_USES` are of Content-Usage and Content-Signal:
# not for the training of models.
_USES = frozenset({"train-ai=n", "ai-train=no"})
_REFUSALS = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none"}) | _USES
# Directives with a value; any other name before a colon is that of a robot.
_WITH_VALUE = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
TDM, USAGE = "tdm-reservation", "content-usage"  # headers beside X-Robots-Tag; TDM is also the name of a <meta>
_PRODUCT = re.compile(r"\s*([A-Za-z0-9_.-]+)")
_COMPATIBLE = re.compile(r"compatible;\s*([A-Za-z0-9_.-]+)")


def agent_names(user_agent: str) -> tuple[str, ...]:
    """Names by which a site may speak of us, lower case: ours, and the one that its servers see.

    Args:
        user_agent: "mylab/1.0 (+https://...)" or "Mozilla/5.0 (compatible; mylab/1.0)".
    """
    found = _PRODUCT.match(user_agent)
    if found is not None and found[1].lower() == "mozilla":
        found = _COMPATIBLE.search(user_agent)
    return tuple(dict.fromkeys((AGENT, *(() if found is None else (found[1].lower(),)))))


def said_of_use(values: Callable[[str], Iterable[str]]) -> tuple[str, ...]:
    """What the headers of an answer say, as `refusal` reads it.

    Args:
        values: gives all values of a header of this name.
    """
    others = (f"{name}: {value}" for name in (TDM, USAGE) for value in values(name))
    return (*values("X-Robots-Tag"), *others)


def refusal(values: Iterable[str], names: Iterable[str] = (AGENT,)) -> str | None:
    """The directive that forbids us to take the image, or None.

    Args:
        values: of all X-Robots-Tag headers of an answer. A name before a colon says whom the rest of its header
            concerns ("otherbot: noai, noindex"); without a name it concerns everybody. Also "tdm-reservation: 1" and
            "content-usage: train-ai=n".
        names: ours, see `agent_names`.
    """
    ours = {*names, "*", USAGE}
    for value in values:
        is_for_us = True
        for part in value.lower().split(","):
            name, colon, rest = (piece.strip() for piece in part.partition(":"))
            if colon and name in _WITH_VALUE:
                continue
            if colon and name == TDM:
                if rest == "1":
                    return f"{TDM}: 1"
                continue
            if colon and re.fullmatch(r"[a-z0-9_.*-]+", name):
                is_for_us = name in ours
                name = rest
            if is_for_us and (found := next((word for word in name.split() if word in _REFUSALS), None)):
                return f"{USAGE}: {found}" if found in _USES else found
    return None


def shown(directive: str, where: str) -> str:
    """With where it stood, such as "X-Robots-Tag", unless it tells that itself."""
    return directive if ":" in directive else f"{where}: {directive}"
