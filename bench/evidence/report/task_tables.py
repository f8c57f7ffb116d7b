"""What docs/evidence.md tells of the tasks: how far pre-trained models get, and what pre-training brings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from evidence.report.intervals import Counts, arm_id, difference, share, share_of
from evidence.report.tables import STORES, SYSTEMS, Evidence, gain, paragraph, table
from evidence.tasks.accidents import ACCIDENTS
from evidence.tasks.task_arms import BLIND, PAIRS, PERMUTED, PREFIX, TASKS, VQA_KINDS

NAMES: Mapping[str, str] = {
    "vqa": "VQA v2, accuracy",
    "vcr Q->AR": "VCR, Q->AR",
    "vcr Q->A": "VCR, Q->A",
    "vcr QA->R": "VCR, QA->R",
    "refcoco+ val": "RefCOCO+, val",
    "refcoco+ testA": "RefCOCO+, testA",
    "refcoco+ testB": "RefCOCO+, testB",
    "nlvr2": "NLVR2, test1",
    "nlvr2 consistency": "NLVR2, consistency",
}

ASKED: Mapping[str, str] = {
    "vqa kind": "what kind of thing it is",
    "vqa colour": "its colour",
    "vqa pattern": "its pattern",
    "vqa count": "how many",
    "vqa existence": "whether there is such a thing",
    "vqa relation": "whether two things are so related",
}

# Why a pair, or all of a task, does not get half the way. What all systems do is in the table of what is asked for.
BEHIND: Mapping[str, str] = {
    "vqa": (
        "It tells what kind of thing is there less often than ViLBERT and VisualBERT, and no system learns relations: "
        "see below."
    ),
    "vqa-vlbert": (
        "It learns few kinds and few colours. Of its states of a region, 18 % of the variance tells the colour; of "
        "ViLBERT's it is 32 % (BENCHMARKS.md, The toy world)."
    ),
    "vqa-visualbert": (
        "The run of seed 0, the lowest of three, learns neither whether a thing is there nor how many there are. That "
        "it is told no boxes is not why: on the detector's regions it learns both. Why is not known."
    ),
    "vcr": (
        "Each question asks for a relation, in its answer or in its rationale. InterBERT, and VL-BERT on the "
        "detector's regions, find 25 to 35 % of relations among four, and 70 to 77 % of colours. VL-BERT and ViLBERT "
        "learn relations no better when they learn nothing else. Pre-training does not teach them: no system finds "
        "left or right in captions more often than the commoner of both is right (BENCHMARKS.md, The toy world)."
    ),
    "vcr-visualbert": (
        "It is told no boxes, so it cannot learn left and right. It learns colours slowly, why is not known: after 500 "
        "steps of them alone it finds 54 % of the rationales that differ in them (BENCHMARKS.md, The toy world)."
    ),
    "nlvr2-visualbert": (
        "It is told no boxes, and the regions of both pictures stand in one row. ViLBERT has a row for each picture."
    ),
}


CALLED: Mapping[str, str] = {"vqa": "VQA", "vcr": "VCR", "refcoco+": "RefCOCO+", "nlvr2": "NLVR2"}
_PAIRS = [(task, system) for task, systems in PAIRS.items() for system in systems]


def _main_counts(evidence: Evidence, store: str) -> Iterator[tuple[str, str, Counts]]:
    """Task, system and what was counted for the task's main figure, of the pairs that have runs."""
    for task, system in _PAIRS:
        counts = evidence.counts(f"{PREFIX}{store}/{task}-{system}", TASKS[task].main)
        if counts is not None:
            yield task, system, counts


def tasks(evidence: Evidence) -> Iterator[str]:
    for store, (title, _) in STORES.items():
        head = ("task", "system", "floor", "ceiling", "pre-trained", "runs", "part of the way",
                "gain from pre-training", PERMUTED, BLIND)  # fmt: skip
        rows = [[title.lower(), *row] for pair in _PAIRS for row in _rows(evidence, store, *pair)]
        link = evidence.filed("tasks", ("regions", *head), rows)
    yield "## Tasks\n"
    yield paragraph(
        "Pre-trained models of seed 0 are fine-tuned on tasks of another toy world, whose pictures no model saw. "
        "VL-BERT starts from weights without the relationship task, as its published figures do, with half the steps "
        "of pre-training. Main figures, in brackets how far that is from the floor, 0 %, to the ceiling, 100 %:"
    )
    yield from _main(evidence)
    yield paragraph(
        f"{link} has all measures. *Gain from pre-training* there is by how many points a model is above the same one "
        "that starts from new weights. In its last columns the model of seed 0 is asked with another picture, or with "
        "none. It may then be below the floor, whose reader was made for questions without pictures. Expressions of "
        "RefCOCO+ choose among the regions of their own picture, so they have no other one. RefCOCO+'s testA tells "
        "things by where they meet, such as inside; its testB compares sizes."
    )
    yield from _on_the_detector(evidence)
    yield from _lengths(evidence)
    yield from _behind(evidence)
    yield from _kinds(evidence)
    yield from _accidents(evidence)


def _main(evidence: Evidence) -> Iterator[str]:
    """The main figure of each pair, and how far that is from floor to ceiling."""
    rows = []
    for store, (title, _) in STORES.items():
        found = {(task, system): counts for task, system, counts in _main_counts(evidence, store)}
        for task in PAIRS:
            main, cells = TASKS[task].main, []
            for system in SYSTEMS:
                value = share_of(found[task, system]) if (task, system) in found else None
                cells.append("" if value is None else f"{100 * value:.1f} ({way(evidence, value, main)})")
            if any(cells):
                rows.append(
                    [
                        NAMES[main],
                        title.lower(),
                        *(evidence.bound(main, which) for which in ("floor", "ceiling")),
                        *cells,
                    ]
                )
    yield table(("task", "regions", "floor", "ceiling", *SYSTEMS.values()), rows)


def _rows(evidence: Evidence, store: str, task: str, system: str) -> Iterator[list[str]]:
    """A line for each measure; none where nothing was run."""
    arm = f"{PREFIX}{store}/{task}-{system}"
    for question in (name for measures in TASKS[task].splits.values() for name in measures.values()):
        counts = evidence.counts(arm, question)
        if counts is not None:
            yield [
                NAMES[question], SYSTEMS[system], *(evidence.bound(question, which) for which in ("floor", "ceiling")),
                evidence.shown(arm, question), str(len(counts.seeds)), way(evidence, share_of(counts), question),
                evidence.less((arm, question), (f"{arm}-new", question)),
                *(evidence.shown(arm, f"{question} {how}") for how in (PERMUTED, BLIND)),
            ]  # fmt: skip


def reached_way(evidence: Evidence, share: float, question: str) -> float | None:
    """How far a share is from the floor, 0, to the ceiling, 1; None where they are not known."""
    bound = evidence.bounds.get(question)
    if bound is None or bound.floor is None or bound.ceiling is None or bound.ceiling <= bound.floor:
        return None
    return (share - bound.floor) / (bound.ceiling - bound.floor)


def way(evidence: Evidence, share: float, question: str) -> str:
    """As it is shown; "" where it is not known."""
    reached = reached_way(evidence, share, question)
    return "" if reached is None else f"{100 * reached:.0f} %"


def _on_the_detector(evidence: Evidence) -> Iterator[str]:
    """What an empty column there means, and who is below the floor."""
    below = [
        f"{SYSTEMS[system]} on {CALLED[task]}"
        for task, system, counts in _main_counts(evidence, "detector")
        if (reached := reached_way(evidence, share(counts).high, TASKS[task].main)) is not None and reached < 0
    ]
    if below:
        yield paragraph(
            "Models without pre-training ran on perfect regions alone, so the detector's have no gain to show. Below "
            f"the floor there: {', '.join(below)}. Why is not known: other systems are above it with the same regions. "
            "Floor and ceiling are those of perfect regions. The detector misses some things and finds further boxes, "
            f"so the true ones are lower.{_far_apart(evidence)}"
        )


FAR_POINTS = 5.0  # between the runs of one arm


def _far_apart(evidence: Evidence) -> str:
    """Pairs on the detector's regions whose runs differ much."""
    told = []
    for task, system, counts in _main_counts(evidence, "detector"):
        shares = [100 * share_of(counts.of([seed])) for seed in counts.seeds]
        if max(shares) - min(shares) > FAR_POINTS:
            told.append(f"{SYSTEMS[system]} on {CALLED[task]} {', '.join(f'{each:.1f}' for each in shares)} %")
    return f" Runs of one pair can lie far apart: {'; '.join(told)}." if told else ""


LONG_SECONDS = 600  # of one core, that a run is meant to take at most


def _lengths(evidence: Evidence) -> Iterator[str]:
    """What the runs of the pairs took, and which took long."""
    pairs = {f"{task}-{system}": (task, system) for task, system in _PAIRS}
    took = [
        (run["seconds"], run["arm"].removesuffix("-new"))
        for run in evidence.runs
        if run["store"].startswith(PREFIX) and run["arm"].removesuffix("-new") in pairs and run["seconds"] is not None
    ]
    if not took:
        return
    middle, most = median(seconds for seconds, _ in took) / 60, max(took)[0] / 60
    long = Counter(pairs[arm] for seconds, arm in took if seconds > LONG_SECONDS)
    named = ", ".join(f"{CALLED[task]}, {SYSTEMS[system]}: {count}" for (task, system), count in sorted(long.items()))
    over = f" {sum(long.values())} took more than {LONG_SECONDS // 60} minutes ({named})." if long else ""
    yield paragraph(
        f"A run took {middle:.1f} minutes of one core, the median of {len(took)}, and {most:.0f} at most. Most "
        f"had other work beside them.{over}"
    )


def _behind(evidence: Evidence) -> Iterator[str]:
    """Pairs that stay behind half the way on perfect regions, with the likely reason."""
    lines: dict[str, list[str]] = {}
    for task, system, counts in _main_counts(evidence, "perfect"):
        question = TASKS[task].main
        reached = reached_way(evidence, share_of(counts), question)
        if reached is not None and reached < 0.5:
            told = BEHIND.get(f"{task}-{system}", BEHIND.get(task, "No reason is given yet."))
            lines.setdefault(told, []).append(f"{SYSTEMS[system]}, {NAMES[question]}: {100 * reached:.0f} %")
    if lines:
        yield "**What gets less than half the way**, perfect regions, main figures, with the likely reason.\n"
        yield "\n".join(f"- {'; '.join(names)}. {told}" for told, names in lines.items()) + "\n"


def _kinds(evidence: Evidence) -> Iterator[str]:
    """VQA by what is asked for: who learns it, and what nobody does."""
    systems = [each for each in PAIRS["vqa"] if evidence.counts(f"{PREFIX}perfect/vqa-{each}", "vqa kind") is not None]
    if not systems:
        return
    rows = []
    for question in VQA_KINDS.values():
        bounds = (evidence.bound(question, which) for which in ("floor", "ceiling"))
        shown = (evidence.shown(f"{PREFIX}perfect/vqa-{system}", question) for system in systems)
        rows.append([ASKED[question], *bounds, *shown])
    link = evidence.filed("vqa_kinds", ("asked for", "floor", "ceiling", *(SYSTEMS[each] for each in systems)), rows)
    yield paragraph(
        f"**VQA by what is asked for** ({link}), perfect regions, seed 0. A region's feature tells its kind, colour, "
        "pattern and size. VCR's answers and many expressions of RefCOCO+ ask for relations, such as left of."
    )
    yield paragraph(f"Who gets half the way or more? {' '.join(_learned(evidence, systems))}")


def _learned(evidence: Evidence, systems: Sequence[str]) -> Iterator[str]:
    """For each thing that is asked, who gets half the way from floor to ceiling, and whose interval lies below it."""
    for question in VQA_KINDS.values():
        ways, highest = {}, {}
        for system in systems:
            counts = evidence.counts(f"{PREFIX}perfect/vqa-{system}", question)
            reached = None if counts is None else reached_way(evidence, share_of(counts), question)
            if counts is not None and reached is not None:
                ways[SYSTEMS[system]] = reached
                highest[SYSTEMS[system]] = reached_way(evidence, share(counts).high, question)
        half = [name for name, reached in ways.items() if reached >= 0.5]
        below = [name for name, reached in highest.items() if reached is not None and reached < 0]
        under = f" (below the floor: {'all' if len(below) == len(ways) else ', '.join(below)})" if below else ""
        yield f"{ASKED[question].capitalize()}: {', '.join(half) or 'nobody'}{under}."


def _accidents(evidence: Evidence) -> Iterator[str]:
    """What the releases do oddly, against the correct rule: the same run without it."""
    rows = []
    for name, each in ACCIDENTS.items():
        task, system = each.pair
        base, question = f"{PREFIX}perfect/{task}-{system}", TASKS[task].main
        against = f"{base}-{each.against}" if each.against else base
        right = evidence.counts(against, question)
        found = evidence.counts(f"{base}-{name}", question)
        less = difference(found, right) if found is not None and right is not None else None
        if less is not None:
            on = f"{NAMES[question]}, {SYSTEMS[system]}"
            precisions = [_precision(evidence, arm, task) for arm in (f"{base}-{name}", against)]
            on += f" ({precisions[0]}; the correct rule {precisions[1]})" if len(set(precisions)) > 1 else ""
            rows.append([each.what, on, evidence.shown(f"{base}-{name}", question), gain(less)])
    link = evidence.filed("releases", ("what is odd", "on", "share", "points above the correct rule"), rows)
    yield paragraph(
        f"**What the releases do oddly** ({link}). One thing at a time, against the same run by the correct rule; one "
        "run of each."
    )


def _precision(evidence: Evidence, arm: str, task: str) -> str:
    """Of the run of the first seed, which may be other than its task's own."""
    first = next(run for run in evidence.runs if arm_id(run) == arm)
    return str(first.get("precision", TASKS[task].precision))
