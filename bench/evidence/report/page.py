"""docs/evidence.md: its first screen, and its sections in order; made from the answers of all runs and the claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evidence.arms import END_TO_END_BATCH, END_TO_END_STEPS, HALF, HIDDEN_WORDS, SEEDS, STEPS
from evidence.report.claims import (
    ALIKE_POINTS,
    FLOOR,
    NOT_RUN,
    PAPERS,
    Bound,
    Claim,
    Judged,
    check_names,
    judge,
    points,
    read_claims,
    write_claims,
)
from evidence.report.intervals import DRAWS, arm_id, read_answers, share_of
from evidence.report.listings import claims, missing, not_shown, papers, questions, runs
from evidence.report.own_tables import HEADS_PLOT, heads_plot, own
from evidence.report.own_tables import NAMES as OWN_NAMES
from evidence.report.plots import claims_plot, curve_plot, file_of, plot_name
from evidence.report.standing import (
    by_choice,
    latest_attempts,
    of_papers,
    paper_sentence,
    told_sentences,
    told_verdicts,
)
from evidence.report.tables import (
    DETECTOR,
    FILES,
    QUESTIONS,
    SYSTEMS,
    Evidence,
    controls,
    noise,
    own_question,
    paragraph,
    reached,
    stores,
    training_pictures,
    write_csv,
)
from evidence.report.task_tables import NAMES as TASK_NAMES
from evidence.report.task_tables import tasks
from evidence.runs import ALL_ARMS
from evidence.tasks.task_arms import PREFIX

if TYPE_CHECKING:
    from evidence.worlds import Sizes

CLAIMS = Path(__file__).parents[1] / "claims.tsv"
MOST_WORDS = 40  # of a sentence
NOT_SHOWN_ANCHOR = "what-is-not-shown-or-goes-the-other-way"


def write_page(
    results: Path,
    page: Path,
    *,
    commands: Mapping[str, str],
    bounds: Mapping[str, Bound],
    sizes: Sizes,
    quick: bool,
    table: Path = CLAIMS,
) -> Path:
    """Writes the page, and its plots beside it; returns the page. What was found goes into the claims, too.

    Args:
        results: folder of the answers, see `run_answers`.
        commands: of all arms, by "<store>/<arm>"; runs of another command are not read.
        bounds: what a blind and a perfect reader reach, by question.
        quick: the runs are only to see that all works: claims may name other arms, and are left as they are.
        table: the claims.
    Raises:
        ValueError: for a mistake in the claims; one line.
    """
    answers, made = read_answers(results, commands=commands)
    written = read_claims(table)
    if not quick:
        asked = {question for each in answers.values() for question in each}
        known = {**QUESTIONS, **TASK_NAMES, **OWN_NAMES, **dict.fromkeys(sorted(asked))}
        check_names(table, written, arms=commands, questions=known)
    judged = [judge(claim, answers, bounds) for claim in written]
    if not quick:
        write_claims(table, judged)
    evidence = Evidence(answers, made, judged, bounds, commands, sizes.test, sizes.train)
    parts = [*_first_screen(evidence, quick), *(part for section in _SECTIONS for part in section(evidence))]
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")
    (page.parent / FILES).mkdir(exist_ok=True)
    for name, (head, *rows) in evidence.files.items():
        write_csv(page.parent / FILES / f"{name}.csv", head, rows)
    for system, paper in SYSTEMS.items():
        (page.parent / plot_name(system)).write_text(_plot(evidence, system, paper), encoding="utf-8")
    if plot := heads_plot(evidence):
        (page.parent / HEADS_PLOT).write_text(file_of([plot]), encoding="utf-8")
    return page


def _first_screen(evidence: Evidence, quick: bool) -> Iterator[str]:
    yield "# Evidence: what small models learn on the toy world\n"
    yield paragraph(
        f"Small models of the five papers (width 128, three or four layers) learn from {evidence.train:,} drawn "
        "pictures with captions: once with perfect regions, once with those of a small detector. No model had "
        "finished learning, and most comparisons are made after half the steps, so they say which one learns faster."
    )
    if quick:
        yield "**This is a quick run, to see that all of it works. Its figures say nothing.**\n"
    yield from reached(evidence)
    yield from _findings(evidence.judged)
    yield paragraph(
        "Each row of a plot is one choice of the paper, and each bar in it a comparison that tests the choice. A bar "
        "right of 0 agrees with the paper; it is the 95 % interval, dashed where there is only one run. A grey band "
        "is drawn where the paper expects no difference, or no gain: there the bar must lie in the band. The bars of "
        "a row have the order of the [claims](#claims), which name them. Claims without a second training, such as "
        "that the picture helps, and controls stand there alone."
    )
    yield paragraph(
        "Below each plot are the paper's sentences: *yes*, shown in all comparisons; *in part*, shown in some; *hint*, "
        "a hint and nothing against; *unclear*, hints for and against, or against alone; *no*, the other way. "
        "*Against* counts hints against, too. Then a line for each choice of which something is not shown, or goes the "
        "other way, with a likely reason where one is known."
    )


def _findings(judged: Sequence[Judged]) -> Iterator[str]:
    """How all claims came out, on how few runs, and what the largest groups of them say."""
    ran = [each for each in latest_attempts(judged) if each.found is not None]
    if not ran:
        return
    papers, ours = of_papers(ran), [each for each in ran if each.claim.is_control]
    left = sum(each.verdict == NOT_RUN for each in judged)
    yield paragraph(
        f"**{len(papers)} comparisons test a sentence of a paper: {told_verdicts(papers)}.** A difference is *shown* "
        "when it is as expected, and both its interval over pictures and runs and that over runs alone leave 0 out. "
        "It is a *hint* when only the first does, or when there is one run. "
        f"{told_sentences(ran)} Of {len(ours)} comparisons of our own, controls among them, {told_verdicts(ours)}. "
        f"Not run yet: {left}."
    )
    yield paragraph(
        "Where nothing differs, about one comparison of 20 is shown or goes the other way by chance, and more are "
        f"hints. {_of_one_start(ran)}"
    )
    yield from _groups(ran)
    yield ""
    yield paragraph(f"What failed is [listed](#{NOT_SHOWN_ANCHOR}), with a likely reason where one is known. By paper:")
    for paper in PAPERS:
        yield f"- {paper_sentence(paper, [each for each in judged if each.claim.paper == paper])}"
    yield ""


def _of_one_start(ran: Sequence[Judged]) -> str:
    tasks = sum(each.claim.first_arm.startswith(PREFIX) for each in ran)
    return f"All runs of the {tasks} comparisons of tasks start from one pre-trained model a side." if tasks else ""


def _groups(ran: Sequence[Judged]) -> Iterator[str]:
    """What many comparisons say together."""

    def of_tasks(store: str) -> Callable[[Claim], bool]:
        return lambda claim: (
            claim.first_arm.startswith(f"{PREFIX}{store}/") and claim.second_arm == f"{claim.first_arm}-new"
        )

    groups: Mapping[str, Callable[[Claim], bool]] = {
        "A hidden word is guessed better with its own picture than with another one": lambda claim: (
            (claim.first_question, claim.second_question, claim.expected) == ("words true", "words wrong", "more")
        ),
        "Whether a caption belongs to a picture is told better than by a blind reader": lambda claim: (
            claim.second_arm == FLOOR and claim.first_question.startswith("matching")
        ),
        "A pre-trained model learns a task better than one of random weights, on perfect regions": of_tasks("perfect"),
        "The same on the detector's regions": of_tasks(DETECTOR),
        "With wrong captions in training the gain from the own picture is gone": lambda claim: (
            claim.first_arm.endswith("-permuted") and claim.expected == "alike"
        ),
    }
    for told, belongs in groups.items():
        mine = [each for each in ran if belongs(each.claim)]
        differences = [each.found.difference for each in mine if each.found is not None]
        if differences:
            among = f"of {len(mine)} comparisons" if len(mine) > 1 else "of 1 comparison"
            low, high = (points(pick(differences)) for pick in (min, max))
            between = (
                f"all differences are {low} to {high} points" if len(mine) > 1 else f"the difference is {low} points"
            )
            yield f"- {told}: {among} {told_verdicts(mine)}; {between}."


def _reading(evidence: Evidence) -> Iterator[str]:
    yield "## How to read this page\n"
    seeds = Counter(len({run["seed"] for run in evidence.runs if arm_id(run) == arm}) for arm in evidence.answers)
    few = sum(arms for count, arms in seeds.items() if count < len(SEEDS))
    meant = sum(arm in ALL_ARMS and len(ALL_ARMS[arm].seeds) < len(SEEDS) for arm in evidence.answers)
    yield paragraph(
        "`make evidence ARGS=--page` makes this page and its files from the results; do not edit them. `make evidence` "
        "first trains what is missing, which `ARGS=--list` names. The pictures are those of the toy world "
        "([detectors.md](detectors.md#the-toy-world)). All pre-trained models are asked about the same "
        f"{evidence.test:,} pictures, which none of them saw in training. Tasks and texts have pictures of their own. "
        "What holds here holds for small models in a small world."
    )
    yield paragraph(
        "Each picture has five captions, of about 100 different words in all. "
        f"{100 * HIDDEN_WORDS:.0f} % of the words are hidden in training, 15 % in the papers, and there is no dropout: "
        "small models learn sooner so. InterBERT's groups hide as many words. ViLBERT and InterBERT learn at half the "
        "rate of the others. Two streams have more than twice the weights of one. "
        "Shares are in percent. An *arm* is one way of training. Each run of it has another *seed*, a number that "
        "chooses its random start. Two arms are compared on the same pictures and the seeds that both have, so a "
        "difference can differ from what two shares give."
    )
    yield paragraph(
        f"A difference has two 95 % intervals. The printed one is a bootstrap of {DRAWS:,} draws: each draws pictures "
        "and runs, with replacement. Of three runs it is too narrow: where runs alone differ, it leaves 0 out about "
        "once in four. So the second one is Student's t over the differences of the runs, which is wide with three "
        "and has no meaning with one. Intervals of a share in the tables are the first kind alone."
    )
    yield paragraph(
        "Most arms that are compared with each other alone, such as those called *-base*, have *half the steps*: "
        f"{HALF:,} in place of {STEPS:,}. Runs through the detector go on from such a run for {END_TO_END_STEPS:,} "
        f"steps of {END_TO_END_BATCH} pictures. Claims that end in *all steps*, or begin with *2,000 steps*, are "
        "second attempts. A first attempt is not counted where the second one has as many runs."
    )
    yield paragraph(
        "Verdicts: *shown* and *hint*, see above; *the other way* and *hint against*, the opposite difference; *not "
        "shown*, the interval holds 0, which does not say that both are the same. Only the direction is judged, not a "
        "size that a paper names. Some are expected to be *alike*: shown when the whole interval lies within "
        f"{ALIKE_POINTS:g} points of 0, the other way when it leaves 0 out and reaches further. *No more* is shown "
        f"when it lies below +{ALIKE_POINTS:g}, so also when the first is far behind. Where a paper measures a task, "
        "hidden words, matching or zero-shot retrieval may stand in."
    )
    if not evidence.answers:
        yield "**No runs yet.**\n"
    elif few:
        planned = f"; {meant} are meant to have fewer" if meant else ""
        yield paragraph(
            f"**{few} of {len(evidence.answers)} arms have fewer than {len(SEEDS)} runs{planned}.** An interval "
            "of one run is over pictures alone, and another run might differ by more."
        )


def _plot(evidence: Evidence, system: str, paper: str) -> str:
    """The learning curve, where there is one, above the paper's claims that compare two trainings."""
    choices = by_choice([each for each in evidence.judged if each.claim.paper == paper])
    plots = [claims_plot(f"{paper}: what its own choices change", choices)]
    sized = evidence.curve(system)
    if len(sized) > 1:
        plots.insert(0, curve_plot(f"{paper}: more training pictures", *_curve(evidence, sized), key=f"{system}-curve"))
    return file_of(plots)


def _curve(evidence: Evidence, sized: Sequence[tuple[int, str]]) -> tuple[list[int], dict[str, list[float]]]:
    shares: dict[str, list[float]] = {}
    for name, question in (
        ("hidden words", "words true"),
        ("matching", "matching"),
        ("retrieval", "text_to_image_r10"),
    ):
        found = [evidence.counts(arm, own_question(evidence, arm, question)) for _, arm in sized]
        if any(counts is not None for counts in found):
            shares[name] = [float("nan") if counts is None else share_of(counts) for counts in found]
    return [pictures for pictures, _ in sized], shares


_SECTIONS: Sequence[Callable[[Evidence], Iterator[str]]] = (
    papers, _reading, questions, stores, tasks, own, controls, noise, training_pictures, claims, not_shown, missing,
    runs,
)  # fmt: skip
