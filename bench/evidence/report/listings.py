"""What docs/evidence.md lists one by one: questions, claims and their verdicts, what is missing, and the runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from evidence.arms import LONGER, LONGER_SUFFIX, SEEDS
from evidence.report.claims import (
    COLUMNS,
    FLOOR,
    HINT,
    HINT_AGAINST,
    NOT_RUN,
    NOT_SHOWN,
    OTHER_WAY,
    SHOWN,
    Judged,
    points,
    row_of,
)
from evidence.report.intervals import arm_id, share_of
from evidence.report.own_tables import NAMES as OWN_NAMES
from evidence.report.plots import plot_name
from evidence.report.standing import (
    STANDS,
    by_sentence,
    latest_attempts,
    of_papers,
    second_attempt,
    stands,
    told_verdicts,
)
from evidence.report.tables import BESIDE, FILES, QUESTIONS, STORES, SYSTEMS, Evidence, paragraph, table
from evidence.report.task_tables import ASKED
from evidence.report.task_tables import NAMES as TASK_NAMES
from evidence.runs import ALL_ARMS
from evidence.tasks.task_arms import PREFIX

_AGAINST = (OTHER_WAY, HINT_AGAINST)
_COUNTED = ((SHOWN,), (HINT,), (NOT_SHOWN,), _AGAINST)  # columns of a paper's table


def questions(evidence: Evidence) -> Iterator[str]:
    answered = {question for asked in evidence.answers.values() for question in asked}
    names = [name for name in evidence.bounds if name in QUESTIONS or name in answered]
    if not names:
        return
    told = {**QUESTIONS, **OWN_NAMES, **TASK_NAMES, **ASKED}
    link = evidence.filed(
        "floors_and_ceilings",
        ("question", "what is asked", "floor", "ceiling", "how it was computed"),
        (
            [name, told.get(name, ""), evidence.bound(name, "floor"), evidence.bound(name, "ceiling"),
             evidence.bounds[name].how]
            for name in names
        ),
    )  # fmt: skip
    yield "## Floors and ceilings\n"
    yield paragraph(
        f"{len(names)} questions have both: {link}. "
        "The floor is that of a blind reader, which sees no picture and answers as well as it can, or that of the "
        "commonest answer; the last column says which. The ceiling is that of a perfect reader, which sees the whole "
        "scene. Where the whole scene would be the answer, or is not given, the last column says what the reader "
        "knows. For tasks, which come last in the file, both stand in result files of `roibeam toyworld "
        "--tasks`; the others are computed from the test captions by `bench/evidence/readers`. *Beside* in a name: a "
        "second, true caption of the picture is given, too, as VisualBERT was trained. Shares are in percent."
    )


def claims(evidence: Evidence) -> Iterator[str]:
    by_id = {each.claim.id: each for each in evidence.judged}
    seconds = {second.claim.id for each in evidence.judged if (second := second_attempt(each, by_id))}
    rows = []
    for each in evidence.judged:
        is_tried_twice = each.claim.id in seconds or second_attempt(each, by_id) is not None
        rows.append([*row_of(each), _about_runs(evidence, each), "yes" if is_tried_twice else "no"])
    yield "## Claims\n"
    link = evidence.filed("claims", (*COLUMNS, "about the runs", "tried twice"), rows)
    yield paragraph(
        f"{link} has all {len(rows)} comparisons. Every row compares a first arm, or question, with a second one; one "
        "sentence of a paper may have several rows. Arms are named as STORE/ARM ([runs](#runs)), questions as under "
        "[floors and ceilings](#floors-and-ceilings). *Difference* is first less second, in percent points, with its "
        "95 % interval from *low* to *high*; *runs low* and *runs high* are the interval over runs alone. *Of two "
        "precisions* names seeds of which one side ran in bf16, the other in float32, and *CPU and GPU* those of two "
        "devices. Either may make a difference of its own. *One start*: all runs of a task start from one pre-trained "
        "model a side. *Tried twice*: there are two attempts, the second with more steps."
    )


def _about_runs(evidence: Evidence, judged: Judged) -> str:
    """Which seeds compare runs of different precision or device, and whether all start from one model."""
    if judged.found is None:
        return ""
    told = []
    for fact, name in (("precision", "of two precisions"), ("device", "CPU and GPU")):
        sides = [evidence.of_runs(arm, fact) for arm in (judged.claim.first_arm, judged.claim.second_arm)]
        if mixed := [str(seed) for seed in sides[0] if sides[0][seed] != sides[1].get(seed, sides[0][seed])]:
            told.append(f"{name}: {', '.join(mixed)}")
    if judged.claim.first_arm.startswith(PREFIX) and judged.found.seeds > 1:
        told.append("one start")
    return "; ".join(told)


def papers(evidence: Evidence) -> Iterator[str]:
    """A section for each paper: its plot, its sentences and how they stand, and what failed."""
    latest = of_papers(latest_attempts(evidence.judged))
    for system, paper in SYSTEMS.items():
        yield f"## {paper}\n"
        yield f"![Claims of {paper}]({plot_name(system)})\n"
        mine = [each for each in latest if each.claim.paper == paper]
        groups = sorted(by_sentence(mine).items(), key=lambda group: STANDS.index(stands(group[1])))
        rows = [
            [stands(rows), sentence, *(str(sum(each.verdict in kind for each in rows) or "") for kind in _COUNTED),
             _largest(rows)]
            for (_, sentence), rows in groups
        ]  # fmt: skip
        head = ("holds?", "what the paper says", "shown", "hint", "not shown", "against", "largest difference")
        yield table(head, rows)
        if failed := list(_failed(mine)):
            yield "\n".join(failed) + "\n"


def _largest(judged: Sequence[Judged]) -> str:
    most = max(judged, key=_size)
    return f"{_difference(most)}, {most.verdict} (*{most.claim.short}*)" if most.found else ""


def _difference(judged: Judged) -> str:
    found = judged.found
    return "" if found is None else f"{points(found.difference)} [{points(found.low)} .. {points(found.high)}]"


def _failed(judged: Sequence[Judged]) -> Iterator[str]:
    """A line for each choice of which something failed, with the reason of the largest difference."""
    groups: dict[str, list[Judged]] = {}
    for each in judged:
        if each.verdict in (NOT_SHOWN, *_AGAINST):
            groups.setdefault(each.claim.short.partition(":")[0].partition(", ")[0], []).append(each)
    for choice, rows in groups.items():
        most = max(rows, key=_size)
        told = f"{choice}*: {told_verdicts(rows)}; most, *{most.claim.short.removeprefix(choice).strip(':, ')}"
        told = told if len(rows) > 1 else f"{most.claim.short}*: *{most.verdict}"
        yield f"- *{told}*, {_difference(most)}. {most.claim.remark or 'No reason is given yet.'}"


def _size(judged: Judged) -> float:
    return 0 if judged.found is None else abs(judged.found.difference)


def not_shown(evidence: Evidence) -> Iterator[str]:
    """Of comparisons of our own; those of the papers stand in their sections."""
    yield "## What is not shown, or goes the other way\n"
    yield paragraph(
        "Below each paper's table stands a line for each choice, with the reason of its largest difference. The column "
        f"*remark* of [claims.csv]({FILES}/claims.csv) has all. Controls and pairs of our own:"
    )
    ours = [each for each in latest_attempts(evidence.judged) if each.claim.is_control]
    yield "\n".join(_failed(ours)) or "Nothing so far." if evidence.answers else "No runs yet."
    yield ""


def missing(evidence: Evidence) -> Iterator[str]:
    yield "## Not run yet\n"
    without, fewer = [], []
    for arm in evidence.commands:
        planned = ALL_ARMS[arm].seeds if arm in ALL_ARMS else SEEDS
        made = {run["seed"] for run in evidence.runs if arm_id(run) == arm}
        left = [str(seed) for seed in planned if seed not in made]
        if left and arm in evidence.answers:
            fewer.append([arm, " and ".join(left)])
        elif arm not in evidence.answers:
            without.append(arm)
    told = [f"Arms without a run: {', '.join(without)}." if without else "Every arm has at least one run."]
    if fewer:
        told.append(f"Further seeds of {len(fewer)} arms: {evidence.filed('further_seeds', ('arm', 'seeds'), fewer)}.")
    waiting: dict[bool, list[str]] = {False: [], True: []}
    for claim in (each.claim for each in evidence.judged if each.verdict == NOT_RUN):
        there = all(arm in {*evidence.answers, FLOOR} for arm in (claim.first_arm, claim.second_arm))
        waiting[there].append(claim.id)
    told += [
        f"Claims that wait for them: {', '.join(waiting[False])}." if waiting[False] else "No claim waits for a run."
    ]
    if waiting[True]:
        names = ", ".join(waiting[True])
        told.append(f"Claims whose arms have runs, but none of both with the question or the floor: {names}.")
    yield "\n".join(f"- {each}" for each in told) + "\n"


def runs(evidence: Evidence) -> Iterator[str]:
    yield "## Runs\n"
    hours = sum(run["seconds"] or 0 for run in evidence.runs) / 3600
    elsewhere = sum(run["seconds"] is None for run in evidence.runs)
    told = f" No time is kept of the other {elsewhere}, most of which ran on a GPU." if elsewhere else ""
    rows = []
    for arm in evidence.commands:
        mine = [run for run in evidence.runs if arm_id(run) == arm]
        if mine:
            seconds = [run["seconds"] for run in mine if run["seconds"] is not None]
            what = ALL_ARMS[arm].what if arm in ALL_ARMS else ""
            rows.append(
                [
                    arm,
                    what,
                    ", ".join(_seed(run) for run in mine),
                    str(mine[0]["steps"]),
                    f"{np.mean(seconds):.0f}" if seconds else "",
                    _last_quarter(mine, "masked_word_accuracy"),
                    _last_quarter(mine, "matching_accuracy"),
                    evidence.commands[arm],
                ]
            )
    head = ("arm", "what", "seeds", "steps", "seconds", "last quarter: words", "last quarter: matching", "command")
    yield paragraph(
        f"{evidence.filed('runs', head, rows)} has a row for each arm. {len(evidence.runs) - elsewhere} runs took "
        f"{hours:,.1f} hours of one core.{told} *Last quarter* is what hidden words and matching still gained there, "
        "in points, on pictures for validation: much of it says that the model was not done. Seconds are of one core "
        "that did other work too. A run on a GPU has its name behind the seed, and no seconds. Where it says float32, "
        "the CPU was slower in bf16, and the command was run without `--precision bf16`. `PYTHONPATH=bench python -m "
        "evidence --one STORE/ARM SEED` makes one run in `build/evidence`: by its command, with a run folder and a "
        "seed."
    )
    yield from _still_learning(evidence)


_LEARNED = {
    "words": "masked_word_accuracy", "regions": "masked_region_accuracy", "matching": "matching_accuracy",
}  # fmt: skip


def _seed(run: Mapping[str, Any]) -> str:
    told = [str(run[name]) for name in ("device", "precision") if name in run]
    return f"{run['seed']} ({', '.join(told)})" if told else str(run["seed"])


def _still_learning(evidence: Evidence) -> Iterator[str]:
    """The systems of the main tables that were not done."""
    told, measured = [], 0
    for arm in (f"{store}/{system}" for store in STORES for system in SYSTEMS):
        mine = [run for run in evidence.runs if arm_id(run) == arm]
        measured += bool(mine)
        gains = {name: _last_quarter(mine, measure) for name, measure in _LEARNED.items()}
        if any(gained and float(gained) >= 1 for gained in gains.values()):
            told.append([arm, *gains.values()])
    if told:
        yield paragraph(
            f"{len(told)} of the {measured} systems of the main tables gained a point or more there, so more steps "
            f"might help ({evidence.filed('last_quarter', ('arm', *_LEARNED), told)}). The aim was less than a point."
        )
    yield from _twice_the_steps(evidence)


def _twice_the_steps(evidence: Evidence) -> Iterator[str]:
    """What three of them know after twice the steps, beside the run of the same seed."""
    rows = []
    for system in LONGER:
        arms = (f"perfect/{system}", f"perfect/{system}{LONGER_SUFFIX}")
        of_one_seed = [[run for run in evidence.runs if arm_id(run) == arm and run["seed"] == SEEDS[0]] for arm in arms]
        if not all(of_one_seed):
            continue
        for arm, mine in zip(arms, of_one_seed, strict=True):
            how = BESIDE if system == "visualbert" else ""
            asked = ("words true", f"matching{how}", f"text_to_image_r1{how}")
            found = [evidence.counts(arm, question) for question in asked]
            shares = ["" if counts is None else f"{100 * share_of(counts.of([0])):.1f} %" for counts in found]
            gains = [_last_quarter(mine, measure) for measure in _LEARNED.values()]
            rows.append([SYSTEMS[system], str(mine[0]["steps"]), *shares, *gains])
    if rows:
        head = ("system", "steps", "hidden words", "matching", "R@1", *(f"last quarter: {name}" for name in _LEARNED))
        yield paragraph(
            f"**Twice the steps** ({evidence.filed('twice_the_steps', head, rows)}). Perfect regions, seed {SEEDS[0]}. "
            "Hidden words, matching and R@1 (text to image, zero-shot) are of test pictures. VisualBERT has a true "
            "caption beside. The last three columns are the gains of the last quarter. The rate falls to 0 at the end "
            "of each run, so a last quarter that gains little does not say that more steps bring little."
        )


def _last_quarter(runs: Sequence[Mapping[str, Any]], measure: str) -> str:
    """Mean gain of the runs from three quarters of their steps to the end, in points; "" where it is not known."""
    gains = []
    for run in runs:
        curve = run.get("curve") or {}
        if len(values := curve.get(measure, ())) > 1:
            gains.append(values[-1] - np.interp(0.75 * curve["steps"][-1], curve["steps"], values))
    return points(100 * float(np.mean(gains))) if gains else ""
