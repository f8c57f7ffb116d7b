"""What docs/evidence.md lists one by one: questions, claims and their verdicts, what is missing, and the runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from evidence.arms import LONGER, LONGER_SUFFIX, SEEDS
from evidence.report.claims import (
    FLOOR,
    HINT_AGAINST,
    NOT_RUN,
    NOT_SHOWN,
    OTHER_WAY,
    PAPERS,
    Judged,
    points,
)
from evidence.report.intervals import arm_id, share_of
from evidence.report.own_tables import NAMES as OWN_NAMES
from evidence.report.standing import second_attempt
from evidence.report.tables import BESIDE, QUESTIONS, STORES, SYSTEMS, Evidence, paragraph, table
from evidence.report.task_tables import ASKED
from evidence.report.task_tables import NAMES as TASK_NAMES
from evidence.runs import ALL_ARMS
from evidence.tasks.task_arms import PREFIX


def questions(evidence: Evidence) -> Iterator[str]:
    answered = {question for asked in evidence.answers.values() for question in asked}
    names = [name for name in evidence.bounds if name in QUESTIONS or name in answered]
    if not names:
        return
    told = {**QUESTIONS, **OWN_NAMES, **TASK_NAMES, **ASKED}
    yield "## Floors and ceilings\n"
    yield paragraph(
        "The floor is that of a blind reader, which sees no picture and answers as well as it can, or that of the "
        "commonest answer; the last column says which. The ceiling is that of a perfect reader, which sees the whole "
        "scene. Where the whole scene would be the answer, or is not given, the last column says what the reader "
        "knows. For tasks, which come last in the table, both stand in result files of `roibeam toyworld "
        "--tasks`; the others are computed from the test captions by `bench/evidence/readers`. *Beside* in a name: a "
        "second, true caption of the picture is given, too, as VisualBERT was trained. Shares are in percent."
    )
    yield table(
        ("question", "what is asked", "floor", "ceiling", "how it was computed"),
        (
            [name, told.get(name, ""), evidence.bound(name, "floor"), evidence.bound(name, "ceiling"),
             evidence.bounds[name].how]
            for name in names
        ),
    )  # fmt: skip


def claims(evidence: Evidence) -> Iterator[str]:
    yield "## Claims\n"
    yield paragraph(
        "Every row compares a first arm, or question, with a second one; one sentence of a paper may have several "
        "rows. The column *first; second* names the arms, as STORE/ARM, and what they are asked "
        "([questions](#floors-and-ceilings)). *Difference* is first less second, in percent points, with its 95 % "
        "interval. *Over runs* is the interval over runs alone. *Of two precisions* names seeds of which one side ran "
        "in bf16, the other in float32, and *CPU and GPU* those of two devices. Either may make a difference of its "
        "own. *One start*: all runs of a task start from one pre-trained model a side. Arms are described under "
        "[runs](#runs). The table is `bench/evidence/claims.tsv`, with the ids of the claims."
    )
    for paper in PAPERS:
        yield f"**{paper}**\n"
        rows = [
            [each.claim.sentence, each.claim.place, _sides(each), each.claim.expected, *_figures(each),
             _over_runs(each), _seeds(evidence, each), each.verdict, each.claim.remark]
            for each in evidence.judged if each.claim.paper == paper
        ]  # fmt: skip
        head = ("what the paper says", "where", "first; second", "expected", "first", "second", "difference",
                "over runs", "seeds", "verdict", "remark")  # fmt: skip
        yield table(head, rows)


def _sides(judged: Judged) -> str:
    claim = judged.claim
    second = f"{claim.second_arm}: {claim.second_question}"
    if claim.compares_trainings:
        return f"{claim.first_arm}; {claim.second_arm}: {claim.first_question}"
    if claim.second_arm == claim.first_arm:
        second = claim.second_question
    elif claim.second_arm == FLOOR:
        second = FLOOR
    return f"{claim.first_arm}: {claim.first_question}; {second}"


def _figures(judged: Judged) -> list[str]:
    found = judged.found
    if found is None:
        return ["", "", ""]
    between = f"{points(found.difference)} [{points(found.low)} .. {points(found.high)}]"
    return [f"{found.first:.1f}", f"{found.second:.1f}", between]


def _over_runs(judged: Judged) -> str:
    found = judged.found
    if found is None or found.runs_low is None or found.runs_high is None:
        return ""
    return f"{points(found.runs_low)} .. {points(found.runs_high)}"


def _seeds(evidence: Evidence, judged: Judged) -> str:
    """How many, and which of them compare runs of different precision or device."""
    if judged.found is None:
        return ""
    told = [f"{judged.found.seeds}"]
    for fact, name in (("precision", "of two precisions"), ("device", "CPU and GPU")):
        sides = [evidence.of_runs(arm, fact) for arm in (judged.claim.first_arm, judged.claim.second_arm)]
        if mixed := [str(seed) for seed in sides[0] if sides[0][seed] != sides[1].get(seed, sides[0][seed])]:
            told.append(f"{name}: {', '.join(mixed)}")
    if judged.claim.first_arm.startswith(PREFIX) and judged.found.seeds > 1:
        told.append("one start")
    return told[0] if len(told) == 1 else f"{told[0]} ({'; '.join(told[1:])})"


def not_shown(evidence: Evidence) -> Iterator[str]:
    """With the likely reason, where a person wrote one; rows of one reason together."""
    yield "## What is not shown, or goes the other way\n"
    failed = (NOT_SHOWN, OTHER_WAY, HINT_AGAINST)
    by_id = {each.claim.id: each for each in evidence.judged}
    seconds = {second.claim.id for each in evidence.judged if (second := second_attempt(each, by_id))}
    groups: dict[tuple[str, str], list[Judged]] = {}
    for each in evidence.judged:
        if each.verdict in failed:
            reason = each.claim.remark or "No reason is given yet."
            groups.setdefault((each.claim.paper, reason), []).append(each)
    if not groups:
        yield "Nothing so far: no claim that was run failed." if evidence.answers else "No runs yet."
    else:
        yield paragraph(
            "*Tried once*: there is no second attempt with more steps. Controls and pairs of our own need none."
        )
    for (paper, reason), rows in groups.items():
        told = []
        for each in rows:
            once = not (each.claim.is_control or each.claim.id in seconds or second_attempt(each, by_id))
            verdict = f"{each.verdict}, {_figures(each)[2]}{', tried once' if once else ''}"
            told.append(f"{each.claim.short} ({each.claim.first_arm}): {verdict}.")
        if len(told) == 1:
            yield f"- {paper}, {told[0]} {reason}"
        else:
            yield f"- {paper}, {len(told)} comparisons. {reason}"
            yield from (f"    - {each}" for each in told)
    yield ""


def missing(evidence: Evidence) -> Iterator[str]:
    yield "## Not run yet\n"
    without, fewer = [], []
    for arm in evidence.commands:
        planned = ALL_ARMS[arm].seeds if arm in ALL_ARMS else SEEDS
        made = {run["seed"] for run in evidence.runs if arm_id(run) == arm}
        left = [str(seed) for seed in planned if seed not in made]
        if left and arm in evidence.answers:
            fewer.append(f"{arm} {' and '.join(left)}")
        elif arm not in evidence.answers:
            without.append(arm)
    yield f"Arms without a run: {', '.join(without)}.\n" if without else "Every arm has at least one run.\n"
    if fewer:
        yield f"Further seeds: {', '.join(fewer)}.\n"
    waiting: dict[bool, list[str]] = {False: [], True: []}
    for claim in (each.claim for each in evidence.judged if each.verdict == NOT_RUN):
        there = all(arm in {*evidence.answers, FLOOR} for arm in (claim.first_arm, claim.second_arm))
        waiting[there].append(claim.id)
    yield (
        f"Claims that wait for them: {', '.join(waiting[False])}.\n"
        if waiting[False]
        else "No claim waits for a run.\n"
    )
    if waiting[True]:
        names = ", ".join(waiting[True])
        yield f"Claims whose arms have runs, but none of both with the question or the floor: {names}.\n"


def runs(evidence: Evidence) -> Iterator[str]:
    yield "## Runs\n"
    yield paragraph(
        "`make evidence` trains what is missing, and `make evidence ARGS=--list` names it. "
        "`PYTHONPATH=bench python -m evidence --one STORE/ARM SEED` makes one run: by the command shown, in "
        "`build/evidence`, with a run folder and a seed. *Last quarter* is what hidden words and matching still gained "
        "there, in points, on pictures for validation: much of it says that the model was not done. Seconds are of one "
        "core that did other work too. A run on a GPU has its name behind the seed, and no seconds. Where it says "
        "float32, the CPU was slower in bf16, and the command was run without `--precision bf16`."
    )
    hours = sum(run["seconds"] or 0 for run in evidence.runs) / 3600
    elsewhere = sum(run["seconds"] is None for run in evidence.runs)
    told = f" No time is kept of the other {elsewhere}, most of which ran on a GPU." if elsewhere else ""
    yield paragraph(f"{len(evidence.runs) - elsewhere} runs took {hours:,.1f} hours of one core.{told}")
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
                    f"{mine[0]['steps']:,}",
                    f"{np.mean(seconds):,.0f}" if seconds else "",
                    _last_quarter(mine, "masked_word_accuracy"),
                    _last_quarter(mine, "matching_accuracy"),
                    f"`{evidence.commands[arm]}`",
                ]
            )
    yield from _still_learning(evidence)
    head = ("arm", "", "seeds", "steps", "seconds", "last quarter: words", "matching", "command")
    yield table(head, rows)


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
        if left := [f"{name} {gained}" for name, gained in gains.items() if gained and float(gained) >= 1]:
            told.append(f"- {arm}: {', '.join(left)}")
    if told:
        yield paragraph(
            f"{len(told)} of the {measured} systems of the main tables gained a point or more there, so more steps "
            "might help. The aim was less than a point:"
        )
        yield "\n".join(told) + "\n"
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
            rows.append([SYSTEMS[system], f"{mine[0]['steps']:,}", *shares, *gains])
    if rows:
        yield paragraph(
            f"**Twice the steps.** Perfect regions, seed {SEEDS[0]}. Hidden words, matching and R@1 "
            "(text to image, zero-shot) are of test pictures, as in the main table. VisualBERT has a true caption "
            "beside. The last three columns are the gains of the last quarter. The rate falls to 0 at the end of each "
            "run, so a last quarter that gains little does not say that more steps bring little."
        )
        head = ("", "steps", "hidden words", "matching", "R@1", *(f"last quarter: {name}" for name in _LEARNED))
        yield table(head, rows)


def _last_quarter(runs: Sequence[Mapping[str, Any]], measure: str) -> str:
    """Mean gain of the runs from three quarters of their steps to the end, in points; "" where it is not known."""
    gains = []
    for run in runs:
        curve = run.get("curve") or {}
        if len(values := curve.get(measure, ())) > 1:
            gains.append(values[-1] - np.interp(0.75 * curve["steps"][-1], curve["steps"], values))
    return points(100 * float(np.mean(gains))) if gains else ""
