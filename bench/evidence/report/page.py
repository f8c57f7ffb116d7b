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
    NOT_SHOWN,
    OTHER_WAY,
    PAPERS,
    SECOND_ATTEMPT,
    SHOWN,
    WITHHELD,
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
from evidence.report.listings import claims, missing, not_shown, questions, runs
from evidence.report.own_tables import HEADS_PLOT, heads_plot, own
from evidence.report.own_tables import NAMES as OWN_NAMES
from evidence.report.plots import claims_plot, curve_plot, file_of
from evidence.report.tables import (
    QUESTIONS,
    SYSTEMS,
    Evidence,
    controls,
    noise,
    own_question,
    paragraph,
    stores,
    training_pictures,
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
_SECTIONS: Sequence[Callable[[Evidence], Iterator[str]]] = (
    questions, stores, tasks, own, controls, noise, training_pictures, claims, not_shown, missing, runs,
)  # fmt: skip


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
        results: with a folder for each store.
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
    for system, paper in SYSTEMS.items():
        (page.parent / _plot_name(system)).write_text(_plot(evidence, system, paper), encoding="utf-8")
    if plot := heads_plot(evidence):
        (page.parent / HEADS_PLOT).write_text(file_of([plot]), encoding="utf-8")
    return page


def _first_screen(evidence: Evidence, quick: bool) -> Iterator[str]:
    yield "# Evidence: what small models learn on the toy world\n"
    yield paragraph(
        f"Small models of the five papers (width 128, three or four layers) learn from {evidence.train:,} drawn "
        "pictures with captions: once with perfect regions, once with those of a small detector."
    )
    if quick:
        yield "**This is a quick run, to see that all of it works. Its figures say nothing.**\n"
    yield from _findings(evidence.judged)
    for paper in PAPERS:
        yield f"- {paper_sentence(paper, [each for each in evidence.judged if each.claim.paper == paper])}"
    yield ""
    yield paragraph(
        "Most lines of a plot compare two trainings that differ in one thing. A dot right of 0 is what the paper "
        "says; its bar, the 95 % interval, must leave 0 out. A grey band is drawn where the paper expects no "
        "difference, or no gain: there the bar must lie in the band. Claims without a second training, such as that "
        "the picture helps, and comparisons of our own are counted above and stand [below](#claims)."
    )
    for system, paper in SYSTEMS.items():  # in one paragraph: side by side where there is room
        yield f"![Claims of {paper}]({_plot_name(system)})"
    yield ""
    yield "## How to read this page\n"
    yield from _reading(evidence)


def _findings(judged: Sequence[Judged]) -> Iterator[str]:
    """How all claims came out, on how few runs, and what the largest groups of them say."""
    ran, found = [each for each in judged if each.found is not None], Counter(each.verdict for each in judged)
    if not ran:
        return
    few = sum(each.found is not None and each.found.seeds < len(SEEDS) for each in judged)
    own = Counter(each.verdict for each in ran if not each.claim.is_control)
    ours = sum(each.claim.is_control for each in ran)
    yield paragraph(
        f"**Of {len(ran)} comparisons that were run, {found[SHOWN]} are shown, {found[NOT_SHOWN]} not shown, and "
        f"{found[OTHER_WAY]} go the other way. {few} of the {len(ran)} rest on fewer than {len(SEEDS)} runs, most of "
        f"them on one: take these as hints.** Not run yet: {found[NOT_RUN]}. With so many, a few are shown, or "
        "go the other way, by chance."
    )
    yield paragraph(
        f"{len(ran) - ours} of them test a sentence of a paper: {own[SHOWN]} are shown, {own[NOT_SHOWN]} not shown, "
        f"and {own[OTHER_WAY]} go the other way. {_by_sentence(judged)} The other {ours} are comparisons of our own, "
        "controls among them."
    )
    groups: Mapping[str, Callable[[Claim], bool]] = {
        "A hidden word is guessed better with its own picture than with another one": lambda claim: (
            (claim.first_question, claim.second_question, claim.expected) == ("words true", "words wrong", "more")
        ),
        "Whether a caption belongs to a picture is told better than by a blind reader": lambda claim: (
            claim.second_arm == FLOOR and claim.first_question.startswith("matching")
        ),
        "A pre-trained model learns a task better than a new one": lambda claim: (
            claim.first_arm.startswith(PREFIX) and claim.second_arm == f"{claim.first_arm}-new"
        ),
    }
    for told, belongs in groups.items():
        mine = [each.found for each in ran if belongs(each.claim) and each.found is not None]
        shown = sum(belongs(each.claim) and each.verdict == SHOWN for each in ran)
        if mine:
            low, high = (points(pick(each.difference for each in mine)) for pick in (min, max))
            yield f"- {told}: shown in {shown} of {len(mine)} comparisons; all differences are {low} to {high} points."
    yield ""
    yield paragraph(
        f"What failed is [listed](#{NOT_SHOWN_ANCHOR}), with a likely reason where one is known. By paper, before the "
        "plots:"
    )


def _by_sentence(judged: Sequence[Judged]) -> str:
    """How many sentences of the papers are shown in all of their comparisons that were run, in some, in none."""
    verdicts: dict[tuple[str, str], set[str]] = {}
    for each in judged:
        if each.found is not None and not each.claim.is_control:
            verdicts.setdefault((each.claim.paper, each.claim.sentence), set()).add(each.verdict)
    whole = sum(found == {SHOWN} for found in verdicts.values())
    part = sum(SHOWN in found for found in verdicts.values()) - whole
    return (
        f"Of the {len(verdicts)} sentences {whole} are shown in all of their comparisons, {part} in some, and "
        f"{len(verdicts) - whole - part} in none."
    )


def _reading(evidence: Evidence) -> Iterator[str]:
    seeds = Counter(len({run["seed"] for run in evidence.runs if arm_id(run) == arm}) for arm in evidence.answers)
    few = sum(arms for count, arms in seeds.items() if count < len(SEEDS))
    meant = sum(arm in ALL_ARMS and len(ALL_ARMS[arm].seeds) < len(SEEDS) for arm in evidence.answers)
    yield paragraph(
        "`make evidence` makes all of this page; do not edit it. The pictures are those of the toy world "
        "([detectors.md](detectors.md#the-toy-world)). All pre-trained models are asked about the same "
        f"{evidence.test:,} pictures, which none of them saw in training. Tasks and texts have pictures of their own. "
        "What holds here holds for small models in a small world."
    )
    yield paragraph(
        "Each picture has five captions. All captions together have about 100 different words. "
        f"{100 * HIDDEN_WORDS:.0f} % of the words are hidden in training, 15 % in the papers, and there is no dropout: "
        "small models learn sooner so. "
        "InterBERT's groups hide as many words. ViLBERT and InterBERT learn at half the rate of the others. Two "
        "streams have more than twice the weights of one."
    )
    yield paragraph(
        "Shares are in percent. An *arm* is one way of training. Each run of it has another *seed*, a number that "
        f"chooses its random start. An interval is a bootstrap of {DRAWS:,} draws. Each draws pictures and runs, with "
        "replacement. Three runs are few, so intervals are rather too narrow. Two arms are compared on the same "
        "pictures and the seeds that both have, so a difference can differ from what two cells of a table give. Runs "
        "of a task start from one pre-trained model; another one might differ by more than they do."
    )
    yield paragraph(
        "Most arms that are compared with each other alone, such as those called *-base*, have *half the steps*: "
        f"{HALF:,} in place of {STEPS:,}. Runs through the detector go on from such a run for {END_TO_END_STEPS:,} "
        f"steps of {END_TO_END_BATCH} pictures. Claims named *all steps* or *2,000 steps* are second attempts."
    )
    yield paragraph(
        "Verdicts: *shown*, the difference is as expected and its interval leaves 0 out; *the other way*, it is "
        "the opposite and leaves 0 out; *not shown*, the interval holds 0, which does not say that both are the same. "
        "Only the direction is judged, not a size that a paper names. Some are expected to be *alike*: shown when the "
        f"whole interval lies within {ALIKE_POINTS:g} points of 0, the other way when it leaves 0 out and reaches "
        "further. *No more* is shown when it lies below "
        f"+{ALIKE_POINTS:g}, so also when the first is far behind. A remark that begins with *{WITHHELD}* says why a "
        "comparison that would count, either way, is not trusted: it is *not shown*. Where a paper measures a task, "
        "hidden words, matching or zero-shot retrieval may stand in: the third column says which."
    )
    if not evidence.answers:
        yield "**No runs yet.**\n"
    elif few:
        yield paragraph(
            f"**{few} of {len(evidence.answers)} arms have fewer than {len(SEEDS)} runs{_meant(meant)}.** An interval "
            "of one run is over pictures alone, and another run might differ by more."
        )


def _meant(arms: int) -> str:
    return f"; {arms} are meant to have fewer" if arms else ""


def paper_sentence(paper: str, judged: Sequence[Judged]) -> str:
    """How its own claims came out, in one sentence, with the largest difference of two trainings each way by name."""
    own = [each for each in judged if not each.claim.is_control]
    total, found = len(own), Counter(each.verdict for each in own)
    again = {each.claim.id for each in own}  # a first attempt does not stand for its claim where there is a second
    latest = [each for each in own if f"{each.claim.id}{SECOND_ATTEMPT}" not in again]
    if found[NOT_RUN] == total:
        return f"**{paper}**: none of its {total} claims was run yet."
    told = []
    for verdict, one, more in ((SHOWN, "is shown", "are shown"), (OTHER_WAY, "goes the other way", "go the other way")):
        if found[verdict]:
            named = _clearest([each for each in latest if each.verdict == verdict])
            told.append(f"{found[verdict]} {one if found[verdict] == 1 else more}{named}")
    told += [f"{found[verdict]} {verdict}" for verdict in (NOT_SHOWN, NOT_RUN) if found[verdict]]
    return f"**{paper}**: of {total} claims {'; '.join(told)}."


def _clearest(judged: Sequence[Judged]) -> str:
    """By name that which compares two trainings and differs most; "" where there is none."""
    compared = [each for each in judged if each.claim.compares_trainings and each.found]
    if not compared:
        return ""
    most = max(compared, key=lambda each: abs(each.found.difference if each.found else 0))
    if most.found is None:
        return ""
    runs = "1 run" if most.found.seeds == 1 else f"{most.found.seeds} runs"
    return f", most of all *{most.claim.short}* ({points(most.found.difference)} points, {runs})"


def _plot_name(system: str) -> str:
    return f"evidence_{system}.svg"


def _plot(evidence: Evidence, system: str, paper: str) -> str:
    """The learning curve, where there is one, above the paper's claims that compare two trainings."""
    compared = [each for each in evidence.judged if each.claim.paper == paper and each.claim.compares_trainings]
    plotted = [each for each in compared if each.found is not None and not each.claim.is_control]
    plots = [claims_plot(f"{paper}: what its own choices change", plotted)]
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
