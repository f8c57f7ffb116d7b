"""docs/evidence.md and its pictures, from the answers of all runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from evidence.plots import Row, intervals_svg
from evidence.arms import ARMS, BATCH, END_TO_END_BATCH, END_TO_END_STEPS, OVERLAP_NAMES, SEEDS
from evidence.intervals import Answers, Estimate, difference, read_answers, share
from evidence.worlds import Sizes
from evidence.read_world import ReadWorld

from roibeam.pipelines.toyworld.truth import truthful_recall

_HEAD = """\
# Evidence: what small models learn on the toy world

Made by `make evidence`; do not edit. Models of width 64 and two layers, trained for {steps:,} steps of {batch}
captions, of whose words 40 % are hidden (InterBERT: its groups), on {train:,} pictures of the toy world
([detectors.md](detectors.md#the-toy-world)) with the regions of the toy detector, asked about {test:,} pictures and
captions that they never saw. {runs} runs so far. Shares are in percent, with 95 % intervals over pictures and
seeds ({seeds} at most; a draw takes both with replacement). A difference counts when its interval leaves 0 out; "not
shown" says that it does not. What holds here holds for small models in a small world: it shows that the code learns
what it should and that the controls fail as they must, not what a published model reaches.
"""
_SYSTEMS = ("vlbert", "vilbert", "visualbert", "imagebert", "interbert")
_NAMES = {
    "vlbert": "VL-BERT (paper)",
    "vilbert": "ViLBERT",
    "visualbert": "VisualBERT",
    "imagebert": "ImageBERT",
    "interbert": "InterBERT",
}


def write_page(results: Path, page: Path, *, sizes: Sizes, steps: int, commands: Mapping[str, str]) -> Path:
    """Writes the page, and its pictures beside it; returns the page.

    Args:
        sizes: of the world that was asked about.
        steps: of most runs.
        commands: of the runs that count, by arm.
    """
    answers, runs = read_answers(results, commands=commands)
    of_arms = [len({run["seed"] for run in runs if run["arm"] == arm}) for arm in answers]
    seeds = max(of_arms, default=0)
    few = (
        f"**Only {min(of_arms, default=0)} of {len(SEEDS)} seeds of some runs so far**: where they stand, what follows "
        f"is not yet\nevidence in the sense above. A difference is of the seeds that both have.\n"
    )
    head = _HEAD.format(steps=steps, batch=BATCH, train=sizes.train, test=sizes.test, runs=len(runs), seeds=seeds)
    parts = [
        head,
        *([few] if min(of_arms, default=0) < len(SEEDS) else []),
        *_in_short(answers),
        *(part for section in _SECTIONS for part in section(answers, sizes)),
        *_commands(runs),
    ]
    page.write_text("\n".join(parts) + "\n", encoding="utf-8")
    for name, rows in _plots(answers).items():
        (page.parent / f"evidence_{name}.svg").write_text(intervals_svg(rows), encoding="utf-8")
    return page


def _in_short(answers: Answers) -> Iterator[str]:
    """What is shown and what is not, one line each."""
    asked = [system for system in _SYSTEMS if system in answers]
    yield "## In short\n"
    yield _sorted_out(
        "The picture helps with grounded words (own less another)",
        {_NAMES[each]: difference(answers[each]["words true"], answers[each]["words wrong"]) for each in asked},
    )
    permuted = {_NAMES[each]: answers.get(f"{each}-permuted") for each in asked}
    left = {
        name: difference(control["words true"], control["words wrong"])
        for name, control in permuted.items()
        if control is not None
    }
    found = [name for name, estimate in left.items() if estimate is not None and estimate.above_0]
    told = f"LEFT in {', '.join(found)}" if found else f"gone in {', '.join(left)}" if left else "not run"
    yield f"- That gain after training on permuted captions: {told}."
    yield _sorted_out(
        "The picture is better than no picture (own less text-only)",
        {_NAMES[each]: difference(answers[each]["words true"], answers["text-only"]["words alone"]) for each in asked}
        if "text-only" in answers
        else {},
    )
    yield _sorted_out(
        "Matching is learned (own less permuted captions)",
        {
            _NAMES[each]: difference(answers[each]["matching"], answers[f"{each}-permuted"]["matching"])
            for each in asked
            if f"{each}-permuted" in answers
        },
    )
    for pair in _PAIRS:
        if {pair.one, pair.other} <= answers.keys():
            first, second = answers[pair.one], answers[pair.other]
            estimates = {question: difference(first[question], second[question]) for question in pair.questions}
            yield _sorted_out(f"{pair.what} (first less second; {pair.expected})", estimates)
    yield ""


def _sorted_out(what: str, found: Mapping[str, Estimate | None]) -> str:
    """A line that says of which the difference is more, less, or not shown."""
    kinds: dict[str, list[str]] = {"more": [], "not shown": [], "LESS": []}
    for name, estimate in found.items():
        if estimate is not None:
            kinds[_word(estimate)].append(name)
    told = "; ".join(f"{word} in {', '.join(names)}" for word, names in kinds.items() if names)
    return f"- {what}: {told or 'not run'}."


def _words(answers: Answers, _: Sizes) -> Iterator[str]:
    yield "## Grounded words\n"
    yield (
        "Each word that names a kind, a colour, a pattern or a state is hidden by itself. With its own picture, with\n"
        "another one, and what a model trained on the captions alone makes of it (`text-only`, VisualBERT without\n"
        "regions). InterBERT hides fewer words in training than the others and text-only, so its column against that\n"
        "compares more than the picture.\n\n"
        "![Grounded words](evidence_words.svg)\n"
    )
    yield _table(
        (
            "",
            "own picture",
            "another picture",
            "own less another",
            "own less text-only",
            "own less another, permuted captions",
        ),
        (_words_row(answers, system) for system in _SYSTEMS if system in answers),
    )
    if "text-only" in answers:
        yield f"Text alone: {_shown(share(answers['text-only']['words alone']))}.\n"
    yield (
        "The last column is the control: own less another, of a model trained with every picture's captions at\n"
        "another one.\n"
    )


def _words_row(answers: Answers, system: str) -> list[str]:
    own, wrong = answers[system]["words true"], answers[system]["words wrong"]
    permuted = answers.get(f"{system}-permuted")
    alone = answers.get("text-only", {}).get("words alone")
    return [
        _NAMES[system],
        _shown(share(own)),
        _shown(share(wrong)),
        _gain(difference(own, wrong)),
        _gain(None if alone is None else difference(own, alone)),
        _control(None if permuted is None else difference(permuted["words true"], permuted["words wrong"])),
    ]


def _regions(answers: Answers, _: Sizes) -> Iterator[str]:
    asked = [system for system in _SYSTEMS if "regions with text" in answers.get(system, {})]
    yield "## Masked regions\n"
    yield (
        "One region of a picture is hidden, all others are in sight; right is the detector's own best class.\n"
        "VisualBERT masks no regions. *Alone*: no other region overlaps it by more than 0.1 (IoU); *covered*: one\n"
        "does by more than 0.5, and shows most of it.\n"
    )
    yield _table(
        ("", "with caption", "without", "with less without", *OVERLAP_NAMES),
        (
            [
                _NAMES[system],
                *(_shown(share(answers[system][f"regions {kind} text"])) for kind in ("with", "without")),
                _gain(difference(answers[system]["regions with text"], answers[system]["regions without text"])),
                *(
                    _shown(share(answers[system][f"regions with text {how}"]))
                    for how in ("alone", "touching", "covered")
                ),
            ]
            for system in asked
        ),
    )


def _matching(answers: Answers, _: Sizes) -> Iterator[str]:
    asked = [system for system in _SYSTEMS if "matching" in answers.get(system, {})]
    yield "## Does the caption belong?\n"
    yield (
        "Half of the pairs do: chance is 50. *Masks alone*: a classifier that sees only which words and regions are\n"
        "hidden; its interval must hold 50, else the masks would tell. All are asked with one caption, as retrieval\n"
        "asks; VisualBERT is trained on another question, whether a second caption belongs beside one that does.\n\n"
        "![Matching](evidence_matching.svg)\n"
    )
    yield _table(
        ("", "right", "trained on permuted captions", "own less permuted", "masks alone"),
        (
            [
                _NAMES[system],
                _shown(share(answers[system]["matching"])),
                _shown(_of(answers, f"{system}-permuted", "matching")),
                _gain(
                    difference(answers[system]["matching"], answers[f"{system}-permuted"]["matching"])
                    if f"{system}-permuted" in answers
                    else None
                ),
                _shown(_of(answers, system, "patterns")),
            ]
            for system in asked
        ),
    )


def _retrieval(answers: Answers, sizes: Sizes) -> Iterator[str]:
    asked = [system for system in _SYSTEMS if "text_to_image_r1" in answers.get(system, {})]
    yield "## Zero-shot retrieval\n"
    yield (
        f"{sizes.test} captions and their {sizes.test} pictures, ranked by the match score, ties against the model.\n"
        "No model can reach 100: a caption is often true of other pictures too. *Ceiling* is what one reaches that\n"
        "knows all of every picture and draws lots among those that a caption is true of\n"
        "(`bench/evidence/readers.py`); the other way it would have to know what the captions' writer prefers to say,\n"
        "so there is none.\n"
    )
    names = [f"{way}_r{cut}" for way in ("text_to_image", "image_to_text") for cut in (1, 5, 10)]
    yield _table(
        ("", *(f"{way} R@{cut}" for way in ("text to image", "image to text") for cut in (1, 5, 10))),
        [
            *([_NAMES[system], *(_shown(share(answers[system][name])) for name in names)] for system in asked),
            ["ceiling", *_ceiling(sizes.test), "", "", ""],
            ["chance", *[f"{100 * cut / sizes.test:.1f}" for cut in (1, 5, 10)] * 2],
        ],
    )


def _ceiling(pictures: int) -> list[str]:
    """R@1, 5, 10 of text to image, in percent."""
    world = ReadWorld(pictures, scenes=0)
    counts = [int((world.known.likelihood(text) > 0).sum()) for text in world.texts]
    return [f"{100 * truthful_recall(counts, cut):.1f}" for cut in (1, 5, 10)]


def _comparisons(answers: Answers, _: Sizes) -> Iterator[str]:
    yield "## Compared\n"
    yield (
        'Two arms that differ in one thing, first less second. *Expected* is the order of the paper; "more" there\n'
        'reproduces it, "not shown" does not, "LESS" is the other way round. The encoder\'s features are those of the\n'
        "store but for half precision, so between these only the order of the captions differs. Masked pixels\n"
        "hide more than a vector does: the others of a photo no longer show the hidden region where they overlap it,\n"
        "so the question is harder, the more so the more of it is *covered*; compare the regions that stand *alone*.\n"
        f"All four VL-BERT arms go on from `vlbert-released`, which learned with stored features and the vector, for\n"
        f"{END_TO_END_STEPS} steps of {END_TO_END_BATCH} captions: what longer training on pixels would do, they do "
        f"not say.\n"
    )
    there = [pair for pair in _PAIRS if {pair.one, pair.other} <= answers.keys()]
    if absent := [f"{pair.one} / {pair.other}" for pair in _PAIRS if pair not in there]:
        yield f"Not run yet: {', '.join(absent)}.\n"
    rows = []
    for pair in there:
        for question in pair.questions:
            first, second = answers[pair.one][question], answers[pair.other][question]
            shares = (_shown(share(first)), _shown(share(second)))
            rows.append(
                [
                    pair.what,
                    question,
                    pair.expected.removeprefix("expected "),
                    *shares,
                    _gain(difference(first, second)),
                ]
            )
    if rows:
        yield _table(("", "asked", "expected", "first", "second", "first less second"), rows)


@dataclass(frozen=True)
class _Pair:
    """Two arms; `expected` of the first, by the paper."""

    what: str
    one: str
    other: str
    questions: Sequence[str]
    expected: str = "expected more"


_OF_PIXELS = ("words true", *(f"regions with text{how}" for how in ("", *(f" {each}" for each in OVERLAP_NAMES))))
_PAIRS = (
    _Pair("ImageBERT: noisy captions, then clean ones; both at once", "imagebert-two-stages", "imagebert-one-stage",
          ("words true", "matching")),
    _Pair("InterBERT: groups masked; one by one", "interbert", "interbert-plain", ("words true", "matching")),
    _Pair("VL-BERT on 100 new pictures: pre-trained; new weights", "probe-pretrained", "probe-new",
          ("words true", "matching")),
    _Pair("VL-BERT: the encoder's features; stored ones", "vlbert-encoder", "vlbert-stored",
          ("words true", "regions with text"), "expected alike"),
    _Pair("VL-BERT: masked pixels; hidden by a learned vector", "vlbert-pixels-frozen", "vlbert-encoder", _OF_PIXELS),
    _Pair("VL-BERT: encoder trained; frozen", "vlbert-pixels-trained", "vlbert-pixels-frozen", _OF_PIXELS[:2]),
)  # fmt: skip


def _commands(runs: Sequence[dict[str, object]]) -> Iterator[str]:
    yield "## Runs\n"
    yield (
        "`make evidence ARGS=--list` tells which are missing. Each trains by the command shown, with `--store`,\n"
        "`--captions`, `--seed`, and `--from-run` where it goes on from another. Seconds are of a processor that was\n"
        "shared with other work, training and questions together.\n"
    )
    for arm in ARMS:
        mine = [run for run in runs if run["arm"] == arm]
        if mine:
            seeds = ", ".join(str(run["seed"]) for run in mine)
            known = [float(str(run["seconds"])) for run in mine if run["seconds"] is not None]
            cost = f"; {np.mean(known):.0f} s of one core" if known else ""
            yield f"- **{arm}** ({ARMS[arm].what}; seeds {seeds}{cost}): `{mine[0]['command']}`"


_SECTIONS: Sequence[Callable[[Answers, Sizes], Iterator[str]]] = (_words, _regions, _matching, _retrieval, _comparisons)


def _plots(answers: Answers) -> dict[str, list[Row]]:
    words, matching = [], []
    for system in _SYSTEMS:
        for name, question in ((system, "words true"), (system, "words wrong"), (f"{system}-permuted", "words true")):
            if name in answers:
                kind = "permuted captions" if name != system else question.removeprefix("words ") + " picture"
                words.append(Row(f"{_NAMES[system]}, {kind}", share(answers[name][question])))
        for name in (system, f"{system}-permuted"):
            if "matching" in answers.get(name, {}):
                kind = "" if name == system else ", permuted captions"
                matching.append(Row(f"{_NAMES[system]}{kind}", share(answers[name]["matching"])))
    if "text-only" in answers:
        words.append(Row("text alone", share(answers["text-only"]["words alone"])))
    return {"words": words, "matching": matching}


def _table(head: Sequence[str], rows: Iterator[list[str]] | Sequence[list[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _of(answers: Answers, arm: str, question: str) -> Estimate | None:
    return share(answers[arm][question]) if question in answers.get(arm, {}) else None


def _shown(found: Estimate | None, *, sign: bool = False) -> str:
    if found is None:
        return "not run"
    number = "+.1f" if sign else ".1f"
    return f"{100 * found.value:{number}} [{100 * found.low:{number}} .. {100 * found.high:{number}}]"


def _control(found: Estimate | None) -> str:
    """A gain that has to be gone."""
    if found is None:
        return "not run"
    return f"{_shown(found, sign=True)} {'LEFT' if found.above_0 else 'gone'}"


def _gain(found: Estimate | None) -> str:
    """A difference and what it says."""
    if found is None:
        return "not run"
    return f"{_shown(found, sign=True)} {_word(found)}"


def _word(found: Estimate) -> str:
    return "more" if found.above_0 else "LESS" if found.below_0 else "not shown"
