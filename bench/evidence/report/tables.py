"""What docs/evidence.md tells of the questions: tables of shares and of their differences."""

from __future__ import annotations

import csv
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evidence.report.claims import PAPERS, Bound, Judged, points
from evidence.report.intervals import Answers, Counts, Estimate, arm_id, difference, share, share_of
from roibeam.messages import plural

SYSTEMS = dict(zip(("vlbert", "vilbert", "visualbert", "imagebert", "interbert"), PAPERS, strict=True))
DETECTOR = "detector"
BESIDE = " beside"  # VisualBERT's own way to ask: a true caption of the picture stands before the asked one
STORES = {
    "perfect": (
        "Perfect regions",
        "Regions come from the scene itself, with a little noise: what a perfect detector would see.",
    ),
    "detector": ("Regions of the toy detector", "Regions of the same pictures as the shipped toy detector finds them."),
}
QUESTIONS = {
    "words true": "a hidden word of a caption, with its own picture",
    "words wrong": "the same word with another picture",
    "words alone": "the same word without any picture, by a model that never saw one",
    **{
        f"regions {how} text{where}": f"the class of a hidden region, {how} the caption{told}"
        for how in ("with", "without")
        for where, told in (
            ("", ""),
            (" alone", "; no other region overlaps it by more than 0.1"),
            (" touching", "; another one overlaps it by 0.1 to 0.5"),
            (" covered", "; another one overlaps it by more than 0.5"),
        )
    },
    "matching": "whether a caption belongs to a picture; half do",
    "matching beside": "whether a second caption belongs, beside one that does",
    "patterns": "the same, told by which words and regions are hidden",
    **{
        f"{way}_r{cut}{how}": f"whether the right {what} is among the best {cut}{told}"
        for how, told in (("", ""), (BESIDE, ", beside a true caption"))
        for way, what in (("text_to_image", "picture"), ("image_to_text", "caption"))
        for cut in (1, 5, 10)
    },
}
OVERLAPS = ("alone", "touching", "covered")
FILES = "evidence"  # the folder of the long tables, beside the page
_CUTS = (1, 5, 10)
_ESTIMATE = re.compile(r"(\S+) \[(\S+) \.\. (\S+)\]")
_SIZED = re.compile(r"(?P<system>\w+)-(?P<thousands>\d+)k")  # an arm of fewer training pictures


@dataclass(frozen=True)
class Evidence:
    """All that the page is made of.

    Attributes:
        answers: by "<store>/<arm>" and question.
        runs: what each run says of itself.
        judged: the claims, in their order.
        bounds: what a blind and a perfect reader reach, by question.
        commands: of all arms, run or not, by "<store>/<arm>".
        test, train: numbers of pictures.
        files: long tables, each a head and rows, by the name of their file; filled while the page is made.
    """

    answers: Answers
    runs: Sequence[Mapping[str, Any]]
    judged: Sequence[Judged]
    bounds: Mapping[str, Bound]
    commands: Mapping[str, str]
    test: int
    train: int
    files: dict[str, list[Sequence[str]]] = field(default_factory=dict)

    def filed(self, name: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
        """Puts rows into a file of the long tables, behind those that it has; returns a link to it."""
        self.files.setdefault(name, [head]).extend(rows)
        return f"[{name}.csv]({FILES}/{name}.csv)"

    def counts(self, arm: str, question: str) -> Counts | None:
        return self.answers.get(arm, {}).get(question)

    def shown(self, arm: str, question: str) -> str:
        """A share with its interval, in percent; "" where it was not asked."""
        counts = self.counts(arm, question)
        return "" if counts is None else percent(share(counts))

    def less(self, first: tuple[str, str], second: tuple[str, str]) -> str:
        """The first less the second, each an arm and a question."""
        one, other = self.counts(*first), self.counts(*second)
        found = None if one is None or other is None else difference(one, other)
        return "" if found is None else gain(found)

    def bound(self, question: str, which: str) -> str:
        """The floor or the ceiling, in percent; "" where there is none."""
        value = getattr(self.bounds.get(question), which, None)
        return "" if value is None else f"{100 * value:.1f}"

    def asked_systems(self, store: str, question: str) -> list[tuple[str, str, str]]:
        """(name in the table, arm, ending of the question) of the systems; VisualBERT by its own way first."""
        found = []
        for system, name in SYSTEMS.items():
            arm = f"{store}/{system}"
            beside = self.counts(arm, question + BESIDE) is not None
            if beside:
                found.append((name, arm, BESIDE))
            if self.counts(arm, question) is not None:
                found.append((f"{name}, one caption" if beside else name, arm, ""))
        return found

    def of_runs(self, arm: str, fact: str) -> dict[int, str]:
        """ "precision" or "device" of its runs, by seed; "" where it is that of the command, or the CPU."""
        return {run["seed"]: run.get(fact, "") for run in self.runs if arm_id(run) == arm}

    def curve(self, system: str) -> list[tuple[int, str]]:
        """(training pictures, arm) of arms that differ in these alone, with answers, fewest first."""
        sized = [(int(found["thousands"]) * 1000, arm) for arm in self.answers if (found := _sized(arm, system))]
        base = f"perfect/{system}-base"
        return sorted([*sized, *([(self.train, base)] if sized and base in self.answers else [])])


def _sized(arm: str, system: str) -> re.Match[str] | None:
    found = _SIZED.fullmatch(arm.removeprefix("perfect/"))
    return found if found and found["system"] == system else None


def own_question(evidence: Evidence, arm: str, question: str) -> str:
    """The question as the arm's system is asked it: beside a true caption where that was done."""
    return question + BESIDE if evidence.counts(arm, question + BESIDE) is not None else question


def reached(evidence: Evidence) -> Iterator[str]:
    """The main tables in short: what the five systems reach, between a blind and a perfect reader."""
    asked = {"hidden words": "words true", "matching": "matching", "R@10": "text_to_image_r10"}
    rows = []
    for system, name in SYSTEMS.items():
        cells = []
        for store in STORES:
            for question in asked.values():
                counts = evidence.counts(f"{store}/{system}", own_question(evidence, f"{store}/{system}", question))
                cells.append("" if counts is None else f"{100 * share_of(counts):.0f}")
        rows.append([name, *cells] if any(cells) else [])
    if not any(rows):
        return
    for which, told in (("floor", "a blind reader"), ("ceiling", "a perfect reader")):
        bounds = [getattr(evidence.bounds.get(question), which, None) for question in asked.values()]
        rows.append([told, *(("" if bound is None else f"{100 * bound:.0f}") for bound in bounds * len(STORES))])
    heads = (f"{told}, {name}" for told in ("perfect regions", "detector") for name in asked)
    yield table(("right, in percent", *heads), [row for row in rows if row])
    yield paragraph(
        "*Hidden words*: how many are guessed, with the picture. *Matching*: whether a caption belongs to a picture. "
        f"*R@10*: whether the right one of {evidence.test:,} pictures is among the ten best for a caption, without "
        f"training for it. {_beside_floors(evidence)}"
    )


def _beside_floors(evidence: Evidence) -> str:
    floors = [evidence.bound(f"{question}{BESIDE}", "floor") for question in ("matching", "text_to_image_r10")]
    if not all(floors):
        return ""
    return (
        "VisualBERT is asked beside a true caption, as it is trained, which helps a blind reader too: "
        f"{floors[0]} at matching, {floors[1]} at R@10."
    )


def stores(evidence: Evidence) -> Iterator[str]:
    yield from _bars(evidence)
    for store, (title, what) in STORES.items():
        parts = [part for section in (_words, _regions, _matching, _retrieval) for part in section(evidence, store)]
        yield f"## {title}\n"
        if store == DETECTOR and parts:
            parts = [paragraph(f"{what} They are rows of the same files. {' '.join(parts)}")]
        else:
            yield what + "\n"
        yield from parts or ["No runs yet."]
        if store != DETECTOR or not parts:
            yield ""
    yield from _cost_of_the_detector(evidence)


def _cost_of_the_detector(evidence: Evidence) -> Iterator[str]:
    """What the same systems lose on regions that a detector found."""
    asked = {
        "hidden words": "words true", "matching": "matching", "text to image R@1": "text_to_image_r1",
        "R@10": "text_to_image_r10", "image to text R@10": "image_to_text_r10",
    }  # fmt: skip
    rows = []
    for system, name in SYSTEMS.items():
        arms = [f"{store}/{system}" for store in ("perfect", DETECTOR)]
        questions = [own_question(evidence, arms[0], question) for question in asked.values()]
        cells = [evidence.less((arms[0], question), (arms[1], question)) for question in questions]
        if any(cells):
            rows.append([name, *cells])
    if rows:
        link = evidence.filed("cost_of_the_detector", ("system", *asked), rows)
        yield paragraph(
            f"*What the detector costs* ({link}): points that perfect regions bring over those of the toy detector, on "
            "the same pictures and seeds; VisualBERT beside a true caption."
        )


def _bars(evidence: Evidence) -> Iterator[str]:
    """What was asked of the main tables beforehand, and what they reach."""
    matching, ranked, met = [], [], {"matching": 0, "most": 0, "half": 0, "gains": 0}
    for system, name in SYSTEMS.items():
        arm = f"perfect/{system}"
        for into, asked, of_ceiling in ((matching, "matching", False), (ranked, "text_to_image_r10", True)):
            question = own_question(evidence, arm, asked)
            counts, bound = evidence.counts(arm, question), evidence.bounds.get(question)
            whole = bound.ceiling if bound is not None and of_ceiling else 1.0
            if counts is not None and whole:
                reached = share_of(counts) / whole
                met["matching"] += not of_ceiling and reached >= 0.85
                met["most"] += of_ceiling and reached >= 0.75
                met["half"] += of_ceiling and 0.5 <= reached < 0.75
                blind = f"; a blind reader {100 * bound.floor / whole:.0f} %" if bound and bound.floor else ""
                beside = f" (beside a caption{blind})" if question.endswith(BESIDE) else ""
                into.append(f"{name} {100 * reached:.0f} %{beside}")
    alone, gains = evidence.counts(f"{DETECTOR}/text-only", "words alone"), []
    for name, arm, _ in evidence.asked_systems(DETECTOR, "words true"):
        counts = evidence.counts(arm, "words true")
        found = None if counts is None or alone is None else difference(counts, alone)
        if found is not None:
            met["gains"] += found.low > 0
            gains.append(f"{name} {gain(found)}")
    lines = {
        "perfect regions, matching: at least 85 % for three systems": (matching, met["matching"] >= 3),
        "perfect regions, text to image R@10: at least 75 % of the ceiling for two systems, 50 % for a third": (
            ranked, met["most"] >= 2 and met["most"] + met["half"] >= 3,
        ),
        "the detector's regions, hidden words: more than text alone for three, 0 outside the interval": (
            gains, met["gains"] >= 3,
        ),
    }  # fmt: skip
    if any(found for found, _ in lines.values()):
        yield "## What was asked for beforehand\n"
        yield "Three bars were set before the first of these runs.\n"
        for what, (found, is_met) in lines.items():
            if found:
                yield f"- {'Met' if is_met else 'Not met'}: {what}. Found: {', '.join(found)}."
        yield ""


def _words(evidence: Evidence, store: str) -> Iterator[str]:
    asked = evidence.asked_systems(store, "words true")
    alone = (f"{store}/text-only", "words alone")
    if not asked and evidence.counts(*alone) is None:
        return
    rows = [
        [name, evidence.shown(arm, "words true"), evidence.shown(arm, "words wrong"),
         evidence.less((arm, "words true"), (arm, "words wrong")), evidence.less((arm, "words true"), alone)]
        for name, arm, _ in asked
    ]  # fmt: skip
    rows.append(["text alone", evidence.shown(*alone), "", "", ""])
    rows += [[which, evidence.bound("words true", which), "", "", ""] for which in ("floor", "ceiling")]
    head = ("own picture", "another picture", "gain from the own picture", "gain over text alone")
    link = _filed(evidence, store, "hidden_words", head, rows)
    if store == DETECTOR:
        yield f"{_released(evidence, store)}"
        return
    yield (
        f"- **Hidden words** ({link}). How many are guessed right. Each word that names a kind, a colour or a pattern "
        "is hidden by itself. *Text alone* is a model that was trained on captions without pictures: it finds "
        f"{evidence.shown(*alone)} %. VL-BERT is that of its paper's first version here: it also learns whether a "
        f"caption belongs. {_released(evidence, store)} {_every_pair(evidence)}"
    )


def _filed(evidence: Evidence, store: str, name: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A link to a file that tables of both stores go into."""
    title = STORES[store][0].lower()
    return evidence.filed(name, ("regions", "system", *head), ([title, *row] for row in rows))


def _released(evidence: Evidence, store: str, question: str = "words true") -> str:
    """What VL-BERT as released finds of the same words or regions."""
    arms = {"perfect": ("perfect/vlbert-base", "perfect/vlbert-base-all"), "detector": ("detector/vlbert-released",)}
    found = [(arm, evidence.counts(arm, question)) for arm in arms[store]]
    told = [
        f"*{arm}* {100 * share_of(counts):.1f} % ({plural(len(counts.seeds), 'run')})"
        for arm, counts in found if counts is not None
    ]  # fmt: skip
    what = ", without that task, finds more words" if question == "words true" else " finds more regions"
    return f"VL-BERT as released{what}: {' and '.join(told)}." if told else ""


def _every_pair(evidence: Evidence) -> str:
    """Why systems of one stream are behind that learn from words of mismatched pairs."""
    arms = ("perfect/imagebert-all-pairs", "perfect/imagebert-base")
    every, matched = (evidence.counts(arm, "words true") for arm in arms)
    if every is None or matched is None:
        return ""
    seeds = [seed for seed in every.seeds if seed in matched.seeds]
    found = [f"{100 * share_of(counts.of(seeds)):.1f}" for counts in (every, matched)]
    return (
        "VL-BERT and InterBERT learn from hidden words of mismatched pairs, too, in layers that words and regions "
        f"share. On perfect regions ImageBERT finds {found[0]} % when it does so, {found[1]} % when not (*{arms[0]}*, "
        f"half the steps, {plural(len(seeds), 'run')})."
    )


def _regions(evidence: Evidence, store: str) -> Iterator[str]:
    asked = evidence.asked_systems(store, "regions with text")
    if not asked:
        return
    names = ("with", "without")
    rows = [
        [name, *(evidence.shown(arm, f"regions {how} text") for how in names),
         evidence.less((arm, "regions with text"), (arm, "regions without text")),
         *(evidence.shown(arm, f"regions with text {part}") for part in OVERLAPS)]
        for name, arm, _ in asked
    ]  # fmt: skip
    rows += [
        [which, *(evidence.bound(f"regions {how} text", which) for how in names), "",
         *(evidence.bound(f"regions with text {part}", which) for part in OVERLAPS)]
        for which in ("floor", "ceiling")
    ]  # fmt: skip
    link = _filed(
        evidence, store, "hidden_regions", ("with caption", "without", "gain from the caption", *OVERLAPS), rows
    )
    told = f"{_asked_by_overlap(evidence, store)} {_released(evidence, store, 'regions with text')}"
    if store == DETECTOR:
        yield (
            "Floor and ceiling of hidden regions are those of perfect regions. Here a region that overlaps the hidden "
            f"one shows a part of it, so a model can pass the ceiling. {told}"
        )
        return
    yield (
        f"- **Hidden regions** ({link}). One region is hidden and its class is asked; all others are in sight. "
        "VisualBERT never learns this. *Alone*, *touching* and *covered* say how much of the region another one "
        "overlaps: up to 0.1, up to 0.5, more (intersection over union); they are asked with the caption. VL-BERT "
        "stays behind. Likely two things cost it: its paper hides a masked region's box with its feature, so that "
        "masked regions look alike, and starts its visual layers near 0 (BENCHMARKS.md, The toy world). "
        f"{told}"
    )


def _asked_by_overlap(evidence: Evidence, store: str) -> str:
    """How many regions of each kind are asked in a run."""
    for _, arm, _ in evidence.asked_systems(store, "regions with text"):
        parts = {part: evidence.counts(arm, f"regions with text {part}") for part in OVERLAPS}
        counts = [f"{part} {found.asked[0].sum():,.0f}" for part, found in parts.items() if found is not None]
        return f"Regions of each kind: {', '.join(counts)}." if counts else ""
    return ""


def _matching(evidence: Evidence, store: str) -> Iterator[str]:
    asked = evidence.asked_systems(store, "matching")
    if not asked:
        return
    rows = [
        [name, evidence.shown(arm, f"matching{how}"),
         *(evidence.bound(f"matching{how}", which) for which in ("floor", "ceiling"))]
        for name, arm, how in asked
    ]  # fmt: skip
    link = _filed(evidence, store, "matching", ("right", "floor", "ceiling"), rows)
    told = (
        " Half of the pairs do. VisualBERT is asked as it was trained, with a true caption of the picture beside the "
        "asked one. That helps a blind reader, too: its floor is higher. Its second row, *one caption*, is asked "
        "without."
    )
    if store != DETECTOR:
        yield f"- **Does the caption belong?** ({link}){told}"


def _retrieval(evidence: Evidence, store: str) -> Iterator[str]:
    links = []
    for way, told in (("text_to_image", "Text to image"), ("image_to_text", "image to text")):
        asked = evidence.asked_systems(store, f"{way}_r10")
        if not asked:
            continue
        rows = []
        for name, arm, how in asked:
            counts = evidence.counts(arm, f"{way}_r10{how}")
            ceiling = getattr(evidence.bounds.get(f"{way}_r10{how}"), "ceiling", None)
            part = "" if counts is None or not ceiling else f"{100 * share_of(counts) / ceiling:.0f} %"
            rows.append([name, *(evidence.shown(arm, f"{way}_r{cut}{how}") for cut in _CUTS), part])
        for which in ("floor", "ceiling"):
            rows.append([which, *(evidence.bound(f"{way}_r{cut}", which) for cut in _CUTS), ""])
            if beside := [evidence.bound(f"{way}_r{cut}{BESIDE}", which) for cut in _CUTS if any(b for *_, b in asked)]:
                rows += [[f"{which}, beside a caption", *beside, ""]] if any(beside) else []
        head = (*(f"R@{cut}" for cut in _CUTS), "R@10 as a share of the ceiling")
        links.append(f"{told} ({_filed(evidence, store, way, head, rows)})")
    if links and store != DETECTOR:
        meaning = (
            f" The right one among {evidence.test:,} pictures or captions, ranked by the score for matching, without "
            "training for it. R@10 is how often it is among the first ten. VisualBERT has the true caption beside, so "
            "compare it with *floor, beside a caption*."
        )
        yield f"- **Retrieval, zero-shot.** {', '.join(links)}.{meaning}"


def controls(evidence: Evidence) -> Iterator[str]:
    rows = []
    for store, (title, _) in STORES.items():
        for system, name in SYSTEMS.items():
            permuted, arm = f"{store}/{system}-permuted", f"{store}/{system}"
            cells = [
                evidence.less((permuted, "words true"), (permuted, "words wrong")),
                evidence.shown(permuted, own_question(evidence, permuted, "matching")),
                evidence.shown(arm, "patterns"),
            ]
            if any(cells):
                rows.append([name, title.lower(), *cells])
    head = (
        "system",
        "regions",
        "wrong captions: gain from the own picture",
        "wrong captions: matching",
        "masks alone: matching",
    )
    yield "## Controls\n"
    yield paragraph(
        f"*Wrong captions* ({evidence.filed('controls', head, rows)}): a model whose pictures had other pictures' "
        "captions in training, half the steps. The gain from the own picture must be gone, and matching must be at "
        "chance, 50. *Masks alone*: what a classifier makes of the places that are hidden, without words and picture. "
        f"Its interval must hold 50.{_beside_alike(evidence)}"
    )


def _beside_alike(evidence: Evidence) -> str:
    floor = evidence.bound(f"matching{BESIDE}", "floor")
    return (
        " VisualBERT is asked beside a true caption. Two captions of one picture are alike, so it may be above 50 at "
        f"matching without a look at the picture, up to the {floor} of a blind reader."
        if floor
        else ""
    )


def noise(evidence: Evidence) -> Iterator[str]:
    found = [arm for arm in evidence.answers if re.fullmatch(r"perfect(-noise[\d.]+)?/visualbert-base", arm)]
    found.sort(key=_noise)
    rows = []
    for arm in found:
        asked = [own_question(evidence, arm, name) for name in ("words true", "matching", "text_to_image_r10")]
        rows.append([f"{_noise(arm):g}", *(evidence.shown(arm, question) for question in asked)])
    link = evidence.filed("noise", ("noise", "hidden words", "matching", "text to image R@10"), rows)
    yield "## Noise of the regions, and more training pictures\n"
    yield paragraph(
        f"*Noise* ({link}): VisualBERT after half the steps, on perfect regions whose features carry more and more "
        "noise; 0.3 is that of *perfect*. Levels that were not run are missing. It is asked beside a true caption, and "
        "a model that has not begun to learn matching is below the floor of a blind reader. "
        f"{_begun(evidence, [(f'{_noise(arm):g}', arm) for arm in found])}"
    )


def _begun(evidence: Evidence, arms: Sequence[tuple[str, str]]) -> str:
    """A sentence on VisualBERT's matching in each run by itself, for arms by the name that they have in a table."""
    told = []
    for name, arm in arms:
        counts = evidence.counts(arm, own_question(evidence, arm, "matching"))
        if counts is not None:
            shares = (f"{100 * share_of(counts.of([seed])):.1f}" for seed in counts.seeds)
            told.append(f"{', '.join(shares)} % at {name}")
    return f"VisualBERT begins to match suddenly. Run by run: {'; '.join(told)}." if told else ""


def _noise(arm: str) -> float:
    """Standard deviation, of the features; of the store "perfect" it is 0.3."""
    return float(arm.partition("/")[0].removeprefix("perfect").removeprefix("-noise") or 0.3)


def training_pictures(evidence: Evidence) -> Iterator[str]:
    rows = []
    for system, name in SYSTEMS.items():
        for pictures, arm in evidence.curve(system):
            asked = [own_question(evidence, arm, each) for each in ("words true", "matching", "text_to_image_r10")]
            rows.append([name, str(pictures), *(evidence.shown(arm, question) for question in asked)])
    head = ("system", "training pictures", "hidden words", "matching", "text to image R@10")
    yield paragraph(
        f"*Training pictures* ({evidence.filed('training_pictures', head, rows)}): all have half the steps. So fewer "
        "pictures are each seen more often, and a larger set can be behind because it was seen too few times. "
        f"{_begun(evidence, [(f'{pictures:,}', arm) for pictures, arm in evidence.curve('visualbert')])}"
    )


def percent(found: Estimate) -> str:
    return f"{100 * found.value:.1f} [{100 * found.low:.1f} .. {100 * found.high:.1f}]"


def gain(found: Estimate) -> str:
    value, low, high = (points(100 * part) for part in (found.value, found.low, found.high))
    return f"{value} [{low} .. {high}]"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a sentence where it has no row."""
    lines = [head, ["---"] * len(head), *rows]
    if len(lines) == 2:
        return "No runs yet.\n"
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines) + "\n"


def write_csv(path: Path, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Plain cells below plain names; a value with its interval becomes three columns."""
    columns: list[Sequence[str]] = []
    for name, *cells in zip(head, *rows, strict=True):
        plain = re.sub(r"\W+", "_", name.lower().replace("@", "")).strip("_")
        found = [_ESTIMATE.fullmatch(cell) for cell in cells]
        if not any(found):
            columns.append([plain, *(cell.removesuffix(" %") for cell in cells)])
            continue
        values = [each.groups() if each else (cell, "", "") for each, cell in zip(found, cells, strict=True)]
        columns += [
            [f"{plain}{end}", *part] for end, part in zip(("", "_low", "_high"), zip(*values, strict=True), strict=True)
        ]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(zip(*columns, strict=True))


def paragraph(text: str) -> str:
    return textwrap.fill(text, 128, break_long_words=False, break_on_hyphens=False) + "\n"
