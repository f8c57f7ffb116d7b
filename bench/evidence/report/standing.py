"""How the claims stand as a whole: what is counted, how often each verdict was found, and what a plot groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from evidence.report.claims import (
    HINT,
    HINT_AGAINST,
    NOT_RUN,
    NOT_SHOWN,
    OTHER_WAY,
    SHOWN,
    Judged,
    points,
)

# How the id of a second attempt differs from the first one's: all steps in place of half, 2,000 in place of 400.
_SECOND_ATTEMPTS = (lambda id: f"{id}-all", lambda id: id.replace("-learned-", "-longer-"))
_TOLD: Mapping[str, tuple[str, str]] = {
    SHOWN: ("is shown", "are shown"),
    HINT: ("is a hint", "are hints"),
    OTHER_WAY: ("goes the other way", "go the other way"),
    HINT_AGAINST: ("is a hint against it", "are hints against it"),
    NOT_SHOWN: ("is not shown", "are not shown"),
    NOT_RUN: ("was not run", "were not run"),
}


def second_attempt(judged: Judged, by_id: Mapping[str, Judged]) -> Judged | None:
    """The row that asks the same once more, of longer training; None where there is none."""
    for named in _SECOND_ATTEMPTS:
        other = named(judged.claim.id)
        if other != judged.claim.id and other in by_id:
            return by_id[other]
    return None


def latest_attempts(judged: Sequence[Judged]) -> list[Judged]:
    """All but first attempts whose second one rests on as many runs: a claim is counted once."""
    by_id = {each.claim.id: each for each in judged}
    kept = []
    for each in judged:
        second = second_attempt(each, by_id)
        if second is None or second.found is None or (each.found and second.found.seeds < each.found.seeds):
            kept.append(each)
    return kept


def of_papers(judged: Iterable[Judged]) -> list[Judged]:
    """Without controls and pairs of our own."""
    return [each for each in judged if not each.claim.is_control]


def told_verdicts(judged: Sequence[Judged], *, named: bool = False) -> str:
    """Such as "12 are shown; 3 go the other way; 20 are hints".

    Args:
        named: with the largest difference of two trainings each way, by name.
    """
    found, parts = Counter(each.verdict for each in judged), []
    for verdict, (one, more) in _TOLD.items():
        if number := found[verdict]:
            clearest = _clearest([each for each in judged if each.verdict == verdict]) if named else ""
            parts.append(f"{number} {one if number == 1 else more}{clearest if verdict in (SHOWN, OTHER_WAY) else ''}")
    return "; ".join(parts)


def told_sentences(judged: Sequence[Judged]) -> str:
    """How many sentences of the papers are shown in all of their comparisons that were run, in some, in none."""
    found = Counter(stands(rows) for rows in by_sentence(each for each in judged if each.found is not None).values())
    whole, part = found[STANDS[0]], found[STANDS[1]]
    return (
        f"Of the {found.total()} sentences {whole} are shown in all of their comparisons, {part} in some, and "
        f"{found.total() - whole - part} in none."
    )


def by_sentence(judged: Iterable[Judged]) -> dict[tuple[str, str], list[Judged]]:
    """Comparisons that test a sentence, by its paper and the sentence."""
    groups: dict[tuple[str, str], list[Judged]] = {}
    for each in of_papers(judged):
        groups.setdefault((each.claim.paper, each.claim.sentence), []).append(each)
    return groups


# How a sentence stands, in the order of a paper's table.
STANDS = ("**yes**", "in part", "hint", "unclear", "not shown", "no", "not run")


def stands(judged: Sequence[Judged]) -> str:
    """What all comparisons of a sentence say together, one of `STANDS`."""
    found = {each.verdict for each in judged} - {NOT_RUN}
    if found == {SHOWN}:
        return "**yes**"
    if SHOWN in found:
        return "in part"
    if HINT in found:
        return "unclear" if found & {OTHER_WAY, HINT_AGAINST} else "hint"
    if found & {OTHER_WAY, HINT_AGAINST}:
        return "no" if OTHER_WAY in found else "unclear"
    return "not shown" if found else "not run"


def paper_sentence(paper: str, judged: Sequence[Judged]) -> str:
    """How its own claims came out, with the largest difference of two trainings each way by name."""
    own = of_papers(latest_attempts(judged))
    if all(each.found is None for each in own):
        return f"**{paper}**: nothing was run yet."
    sentences = len({each.claim.sentence for each in own})
    comparisons = "1 comparison" if len(own) == 1 else f"{len(own)} comparisons"
    of = "1 sentence" if sentences == 1 else f"{sentences} sentences"
    return f"**{paper}**, {comparisons} of {of}. {told_verdicts(own, named=True)}."


def by_choice(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    """What a paper's plot shows: counted comparisons of two trainings, by the choice that they test.

    The choice is what stands before the colon of a claim's short name; the question stands behind it.
    """
    groups: dict[str, list[Judged]] = {}
    for each in of_papers(latest_attempts(judged)):
        if each.claim.compares_trainings and each.found is not None:
            groups.setdefault(each.claim.short.partition(":")[0], []).append(each)
    return groups


def _clearest(judged: Sequence[Judged]) -> str:
    """By name that which compares two trainings and differs most; "" where there is none."""
    compared = [each for each in judged if each.claim.compares_trainings and each.found]
    if not compared:
        return ""
    most = max(compared, key=lambda each: abs(each.found.difference if each.found else 0))
    assert most.found is not None
    return f", most of all *{most.claim.short}* ({points(most.found.difference)} points)"
