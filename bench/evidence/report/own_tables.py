"""What docs/evidence.md tells of retrieval, phrases, attention heads and texts: the arms of tasks/own_arms.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from evidence.report.intervals import share_of
from evidence.report.plots import share_curve
from evidence.report.tables import STORES, SYSTEMS, Evidence, paragraph
from evidence.tasks.own_arms import (
    ANY_WORD,
    BEST_HEAD,
    COVERED,
    HEADS,
    LAYER,
    LOSSES,
    NEGATIVES,
    PHRASES,
    STRONGEST,
    imagebert,
)
from evidence.tasks.own_pictures import RETRIEVAL, TEXT_TASKS
from evidence.tasks.task_arms import PREFIX

HEADS_PLOT = "evidence_heads.svg"
_RELATIONS = ("amod", "det", "pobj", "prep", "nsubj", "nummod", "conj", "cc", "punct", "relcl")
NAMES: Mapping[str, str] = {
    PHRASES: "phrases, R@1",
    f"{PHRASES} R@5": "phrases, R@5",
    **{
        f"{asked} {what}": f"{asked}, {what}"
        for asked in (PHRASES, *_RELATIONS)
        for what in (BEST_HEAD, ANY_WORD, STRONGEST, COVERED, *(f"{LAYER} {number}" for number in range(1, 5)))
    },
    "mrpc": "two captions of one scene",
    "rte": "the second text follows",
}
_DIRECTIONS = {"text_to_image": "text to image", "image_to_text": "image to text"}
_ASKED_HEADS = ("visualbert", "vilbert", "imagebert")


def own(evidence: Evidence) -> Iterator[str]:
    yield "## Retrieval, phrases and texts\n"
    yield paragraph(
        "Pre-trained models of seed 0 learn retrieval and phrases from 5,000 of the pictures that they were "
        "pre-trained on. They are asked about the same test pictures as before. Figures of retrieval, phrases and "
        "heads are of one run; texts have three runs, untrained heads nine or ten."
    )
    yield from _retrieval(evidence)
    yield from _losses(evidence)
    yield from _phrases(evidence)
    yield from _heads(evidence)
    yield from _relations(evidence)
    yield from _texts(evidence)
    yield ""
    if heads_plot(evidence):
        yield f"![Best head by layer]({HEADS_PLOT})\n"


def _retrieval(evidence: Evidence) -> Iterator[str]:
    rows = []
    for store, (title, _) in STORES.items():
        arms = {
            SYSTEMS["vilbert"]: ("vilbert", "vilbert"),
            SYSTEMS["visualbert"]: ("visualbert", "visualbert"),
            SYSTEMS["imagebert"]: (imagebert("binary", "hard").removeprefix(f"{RETRIEVAL}-"), "imagebert"),
            "ViLBERT, 2,000 steps": ("vilbert-longer", "vilbert"),
            "ImageBERT, 2,000 steps": ("imagebert-longer", "imagebert"),
            **{
                f"ViLBERT, {told}": (f"vilbert-{name}", f"vilbert-{name}")
                for name, told in (
                    ("base", "half the steps"), ("shallow", "one co-attention"), ("single", "one stream"),
                    ("5k", "5,000 pictures"), ("1k", "1,000 pictures"), ("new", "not pre-trained"),
                )
            },
        }  # fmt: skip
        for name, (run, start) in arms.items():
            arm = f"{PREFIX}{store}/{RETRIEVAL}-{run}"
            if evidence.counts(arm, "text_to_image_r1") is not None:
                cells = [
                    cell
                    for way in _DIRECTIONS
                    for cell in (
                        evidence.shown(arm, f"{way}_r1"),
                        evidence.shown(arm, f"{way}_r10"),
                        evidence.less((arm, f"{way}_r1"), (f"{store}/{start}", f"{way}_r1")),
                    )
                ]
                rows.append([name, title.lower(), *cells, _part(evidence, arm, "text_to_image_r10")])
    head = tuple(
        f"{told}: {part}" for told in _DIRECTIONS.values() for part in ("R@1", "R@10", "R@1, gain over zero-shot")
    )
    link = evidence.filed(
        "retrieval", ("system", "regions", *head, "text to image: R@10 as a share of the ceiling"), rows
    )
    yield (
        f"- **Retrieval** ({link}). "
        "Among 500 pictures or captions. *Gain over zero-shot* is over R@1 of the weights that the run "
        "started from. VisualBERT's are asked with one caption there, for which it was not trained, so its gain is "
        "large. ImageBERT's lines are of its best published loss, each pair by itself, with hard wrong pairs. "
        "Runs have 400 steps of 96 to 128 pairs; those of 2,000 steps have twice the rate."
    )


def _part(evidence: Evidence, arm: str, question: str) -> str:
    """A share as a part of its ceiling; "" where that is not known."""
    counts, ceiling = evidence.counts(arm, question), getattr(evidence.bounds.get(question), "ceiling", None)
    return "" if counts is None or not ceiling else f"{100 * share_of(counts) / ceiling:.0f} %"


def _losses(evidence: Evidence) -> Iterator[str]:
    rows = []
    for store, (title, _) in STORES.items():
        for loss, told in LOSSES.items():
            hard, random = (f"{PREFIX}{store}/{imagebert(loss, negatives)}" for negatives in NEGATIVES)
            best = f"{PREFIX}{store}/{imagebert('binary', 'hard')}"
            cells = []
            for way in _DIRECTIONS:
                asked = f"{way}_r1"
                cells += [evidence.shown(hard, asked), evidence.shown(random, asked)]
                cells += [evidence.less((hard, asked), (random, asked))]
                cells += ["" if hard == best else evidence.less((hard, asked), (best, asked))]
            if any(cells):
                rows.append([told, title.lower(), *cells])
    parts = ("hard", "random", "hard minus random", "hard minus each pair by itself, hard")
    head = tuple(f"{way}: {part}" for way in _DIRECTIONS.values() for part in parts)
    link = evidence.filed("retrieval_losses", ("loss", "regions", *head), rows)
    yield (
        f"- **ImageBERT's losses, and hard wrong pairs** ({link}). "
        "A wrong pair has another caption or another picture: one of any "
        "picture (random), or one of the hundred that look most alike (hard). R@1, text to image and image to text."
    )


def _phrases(evidence: Evidence) -> Iterator[str]:
    rows = []
    for store, (title, _) in STORES.items():
        for system in ("visualbert", "vilbert"):
            arm, heads = f"{PREFIX}{store}/{PHRASES}-{system}", f"{HEADS}{store}/visualbert"
            if evidence.counts(arm, PHRASES) is not None:
                baseline, learned = (heads, f"{PHRASES} {STRONGEST}"), (arm, PHRASES)
                cells = [
                    *(evidence.shown(*asked) for asked in (learned, (arm, f"{PHRASES} R@5"), baseline)),
                    *(evidence.less(learned, other) for other in (baseline, (f"{arm}-new", PHRASES))),
                    evidence.shown(arm, f"{PHRASES} {COVERED}"),
                ]
                rows.append([SYSTEMS[system], title.lower(), *cells])
    head = (
        "system",
        "regions",
        "R@1",
        "R@5",
        "baseline",
        "R@1, gain over baseline",
        "R@1, gain from pre-training",
        "covered",
    )
    link = evidence.filed("phrases", head, rows)
    yield (
        f"- **Phrases** ({link}). "
        "Which region each marked phrase of a caption means, learned by one attention head of its own. "
        "The baseline is the region with the best detection score; perfect regions all have the same, so that it is "
        "one by lot. *Covered*, the ceiling, are phrases that some region covers."
    )


def _heads(evidence: Evidence) -> Iterator[str]:
    rows = []
    for store, (title, _) in STORES.items():
        for system in _ASKED_HEADS:
            arm, new = f"{HEADS}{store}/{system}", f"{HEADS}{store}/{system}-new"
            best, baseline = (f"{PHRASES} {what}" for what in (BEST_HEAD, STRONGEST))
            if evidence.counts(arm, best) is not None:
                rows.append(
                    [SYSTEMS[system], title.lower(), evidence.shown(arm, baseline), evidence.shown(arm, best),
                     evidence.less((arm, best), (arm, baseline)),
                     evidence.less((arm, best), (arm, f"{PHRASES} {ANY_WORD}")),
                     evidence.shown(new, best), evidence.less((new, best), (new, baseline)),
                     ", ".join(f"{100 * each:.0f}" for each in by_layer(evidence, arm))]
                )  # fmt: skip
    head = ("system", "regions", "baseline", "best head", "gain over baseline", "gain over any word",
            "untrained: best head", "untrained: gain over baseline", "best head of each layer")  # fmt: skip
    link = evidence.filed("heads", head, rows)
    yield (
        f"- **What attention heads know** ({link}). "
        "No head was trained for phrases. A head is right when the region that it "
        "attends to most covers the phrase. The pictures are cut into halves, and each is judged by the head that is "
        "best on the other one. *Any word*: the head looks once for all words of a caption; one that only likes some "
        "regions gains nothing over it. *Untrained* are weights as drawn."
    )


def by_layer(evidence: Evidence, arm: str) -> list[float]:
    """What the best head of each layer reaches, 0..1, the first layer first; of a model of fewer layers fewer."""
    found = []
    while (counts := evidence.counts(arm, f"{PHRASES} {LAYER} {len(found) + 1}")) is not None:
        found.append(share_of(counts))
    return found


def heads_plot(evidence: Evidence) -> str:
    """The curve by layer of VisualBERT, trained and untrained; "" without runs."""
    shares: dict[str, list[float]] = {}
    for store in STORES:
        for ending, told in (("", "trained"), ("-new", "untrained")):
            values = by_layer(evidence, f"{HEADS}{store}/visualbert{ending}")
            if values:
                shares[f"{store} regions, {told}"] = values
    if not shares:
        return ""
    most = max(map(len, shares.values()))
    padded = {name: [*values, *[np.nan] * (most - len(values))] for name, values in shares.items()}
    return share_curve("VisualBERT: phrases found by the best head", list(range(1, most + 1)), padded, "layer", "heads")


def _relations(evidence: Evidence) -> Iterator[str]:
    rows = []
    for relation in _RELATIONS:
        best, baseline = (f"{relation} {what}" for what in (BEST_HEAD, STRONGEST))
        cells = []
        for store in STORES:
            arm = f"{HEADS}{store}/visualbert"
            cells += [evidence.shown(arm, best), evidence.less((arm, best), (arm, baseline))]
        if any(cells):
            rows.append([relation, *cells])
    head = tuple(
        cell for title, _ in STORES.values() for cell in (title.lower(), f"{title.lower()}: gain over baseline")
    )
    link = evidence.filed("relations", ("relation", *head), rows)
    yield (
        f"- **By relation** ({link}). "
        "Relations are those of a dependency parse, such as amod, an adjective, and det, an article. "
        "A word that depends on a phrase, or a phrase on it, must look at the region of the phrase. The head is "
        "VisualBERT's best, chosen on the other half; the baseline is of the same words."
    )


def _texts(evidence: Evidence) -> Iterator[str]:
    rows = []
    for task in TEXT_TASKS:
        text, single, interbert = (
            f"{PREFIX}perfect/{task}-{name}" for name in ("text-only", "interbert-single", "interbert")
        )
        cells = [evidence.shown(arm, task) for arm in (text, single, interbert)]
        if any(cells):
            less = [evidence.less((interbert, task), (other, task)) for other in (single, text)]
            rows.append([NAMES[task], *(evidence.bound(task, which) for which in ("floor", "ceiling")), *cells, *less])
    head = ("task", "floor", "ceiling", "from words alone", "from a single stream", "from InterBERT",
            "InterBERT minus single stream", "InterBERT minus words alone")  # fmt: skip
    link = evidence.filed("texts", head, rows)
    yield (
        f"- **Texts** ({link}). "
        "InterBERT is said to stay good at texts. Three starts, on two tasks of captions in GLUE's form: "
        "do two captions describe one scene (as MRPC), and does the second follow from the first (as RTE). The "
        "ceiling of the first knows the scenes, so it is higher than what texts tell. The single stream had half the "
        "steps of pre-training."
    )
