"""The runs about the pictures of pre-training, and of texts: retrieval, phrases, pairs of captions, what heads look at.

They are short: what kept weights learn in a minute or two of one core.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from evidence.arms import SEEDS
from evidence.tasks.own_pictures import ENTITIES, RETRIEVAL, TEXT_TASKS
from evidence.tasks.task_arms import PERFECT, TaskArm, TaskRules
from evidence.worlds import DETECTOR

UNTRAINED_SEEDS = tuple(range(10))  # they take seconds, and one draw of weights differs much from another
HEADS = "heads-"  # before the name of a store: of arms that learn nothing
CUTS = (1, 5, 10)
BEST_HEAD, ANY_WORD, STRONGEST, COVERED, LAYER = "best head", "any word", "strongest region", "covered", "layer"
PHRASES = "phrases"
FEWER_REGIONS = 3  # half of what a picture has
_RECALLS = {
    f"{found} R@{cut}": f"{way}_r{cut}"
    for found, way in (("image", "text_to_image"), ("sentence", "image_to_text"))
    for cut in CUTS
}
_LEARNED = {"R@1": PHRASES, "R@5": f"{PHRASES} R@5", "upper bound": f"{PHRASES} {COVERED}"}
OWN_TASKS: Mapping[str, TaskRules] = {
    rules.name: rules
    for rules in (
        TaskRules(RETRIEVAL, 400, 32, 5e-4, {"test": _RECALLS}, ways=(), is_own=True),
        TaskRules(ENTITIES, 400, 32, 5e-4, {"test": _LEARNED}, ways=(), is_own=True),
        *(
            TaskRules(name, 500, 64, 5e-4, {"dev": {"accuracy": name}}, ways=(), is_own=True, has_regions=False)
            for name in TEXT_TASKS
        ),
    )
}
LOSSES: Mapping[str, str] = {
    "binary": "each pair by itself", "multi_class": "which pair is right", "triplet": "the hardest wrong pair",
    "all_three": "the sum of the three",
}  # fmt: skip
# Half of the wrong pairs have another caption, half another picture, as ImageBERT's two objectives.
NEGATIVES: Mapping[str, tuple[str, str]] = {
    "hard": ("of pictures that look alike", '["hard_caption","hard_image"]'),
    "random": ("of any pictures", '["caption","image"]'),
}


@dataclass(frozen=True)
class HeadArm:
    """Kept weights, or untrained ones of the same shape, whose attention heads are asked: nothing is learned.

    Attributes:
        name: without the store.
        what: for people.
        store: name of a store.
        shape: arm whose kept weights are asked, or have the shape of the model.
        is_trained: whether they are asked.
        seeds: of untrained weights.
    """

    name: str
    what: str
    store: str
    shape: str
    is_trained: bool
    seeds: tuple[int, ...]

    @property
    def id(self) -> str:
        """Such as "heads-perfect/visualbert"."""
        return f"{HEADS}{self.store}/{self.name}"


def _heads() -> Iterator[HeadArm]:
    for store in (PERFECT, DETECTOR):
        for system in ("visualbert", "vilbert", "imagebert"):
            kept = f"{store}/{system}"
            yield HeadArm(system, f"Heads of {system}", store, kept, True, SEEDS[:1])
            yield HeadArm(f"{system}-new", f"Heads of {system}, untrained", store, kept, False, UNTRAINED_SEEDS)


HEAD_ARMS: Mapping[str, HeadArm] = {arm.id: arm for arm in _heads()}


def imagebert(loss: str, negatives: str) -> str:
    """The arm of ImageBERT that learns retrieval so; without its store."""
    return f"{RETRIEVAL}-imagebert-{loss.replace('_', '-')}-{negatives}"


def _retrieval(store: str) -> Iterator[TaskArm]:
    rules = OWN_TASKS[RETRIEVAL]
    for system in ("vilbert", "visualbert"):
        kept = f"{store}/{system}"
        yield TaskArm(f"{RETRIEVAL}-{system}", f"retrieval, {system}", rules, system, store, kept, kept)
    for loss in LOSSES:
        for negatives in NEGATIVES:
            if store == PERFECT or loss == "binary" or negatives == "hard":
                yield _of_imagebert(store, loss, negatives)


def _of_imagebert(store: str, loss: str = "binary", negatives: str = "hard") -> TaskArm:
    """Of its best published loss, each pair by itself, where no other is named."""
    kept, (told, mix) = f"{store}/imagebert", NEGATIVES[negatives]
    what = f"retrieval, ImageBERT, loss: {LOSSES[loss]}; wrong pairs {told}"
    settings = {"head.kind": "match", "retrieval.loss": loss, "retrieval.distractors": mix}
    rules = OWN_TASKS[RETRIEVAL]
    return TaskArm(imagebert(loss, negatives), what, rules, "imagebert", store, kept, kept, settings)


def _longer(store: str) -> Iterator[TaskArm]:
    """Five times the steps at twice the rate: 400 steps barely move what 9,000 of pre-training made, on regions of the
    detector above all."""
    rules = replace(OWN_TASKS[RETRIEVAL], steps=2000, rate=1e-3)
    told = "five times the steps"
    arm = _of_imagebert(store)
    yield replace(arm, name=f"{RETRIEVAL}-imagebert-longer", what=f"retrieval, ImageBERT, {told}", rules=rules)
    kept = f"{store}/vilbert"
    yield TaskArm(f"{RETRIEVAL}-vilbert-longer", f"retrieval, ViLBERT, {told}", rules, "vilbert", store, kept, kept)


def _fewer_regions(store: str) -> Iterator[TaskArm]:
    """ImageBERT's Table 4, part 3: 36 regions of an image against 100. Pictures here have six on average."""
    arm = _of_imagebert(store)
    told = f"retrieval, ImageBERT, at most {FEWER_REGIONS} regions of a picture"
    settings = {**arm.settings, "layout.max_regions": FEWER_REGIONS}
    yield replace(arm, name=f"{RETRIEVAL}-imagebert-fewer-regions", what=told, settings=settings)


def _of_vilbert() -> Iterator[TaskArm]:
    """Its depth, its share of data, and its start, as its Tables 1 to 3 have them for retrieval."""
    rules = OWN_TASKS[RETRIEVAL]
    for name, what in (
        ("base", "half the steps of pre-training"),
        ("single", "one stream"),
        ("shallow", "one co-attention"),
        ("1k", "1,000 pictures to pre-train on"),
        ("5k", "5,000 pictures to pre-train on"),
    ):
        start, system = f"{PERFECT}/vilbert-{name}", "vilbert-single-stream" if name == "single" else "vilbert"
        yield TaskArm(
            f"{RETRIEVAL}-vilbert-{name}", f"retrieval, ViLBERT, {what}", rules, system, PERFECT, start, start
        )
    shape = f"{PERFECT}/vilbert"
    yield TaskArm(
        f"{RETRIEVAL}-vilbert-new", "retrieval, ViLBERT, not pre-trained", rules, "vilbert", PERFECT, "", shape
    )


def _phrases(store: str) -> Iterator[TaskArm]:
    rules = OWN_TASKS[ENTITIES]
    for system in ("visualbert", "vilbert"):
        kept = f"{store}/{system}"
        yield TaskArm(f"{PHRASES}-{system}", f"phrases, {system}", rules, system, store, kept, kept)
    kept = f"{store}/visualbert"
    yield TaskArm(
        f"{PHRASES}-visualbert-new", "phrases, visualbert, not pre-trained", rules, "visualbert", store, "", kept
    )
    if store == PERFECT:
        for name, what in (("base", "half the steps of pre-training"), ("late", "late fusion, half the steps")):
            start = f"{PERFECT}/visualbert-{name}"
            told = f"phrases, VisualBERT, {what}"
            yield TaskArm(f"{PHRASES}-visualbert-{name}", told, rules, "visualbert", store, start, start)


def _texts() -> Iterator[TaskArm]:
    """InterBERT's Table 3: what a text model knew, a single stream, and InterBERT."""
    for task in TEXT_TASKS:
        for name, system, what in (
            ("text-only", "visualbert", "words alone before"),
            ("interbert-single", "interbert", "a single stream before"),
            ("interbert", "interbert", "InterBERT before"),
        ):
            kept = f"{PERFECT}/{name}"
            yield TaskArm(f"{task}-{name}", f"{task}, {what}", OWN_TASKS[task], system, PERFECT, kept, kept)


def _of_one_seed() -> Iterator[TaskArm]:
    """All start from weights of seed 0, and are compared with what these reach before they learn."""
    for store in (PERFECT, DETECTOR):
        for arms in (_phrases(store), _retrieval(store), _longer(store), _fewer_regions(store)):
            yield from (replace(arm, seeds=SEEDS[:1]) for arm in arms)
    yield from (replace(arm, seeds=SEEDS[:1]) for arm in _of_vilbert())


OWN_ARMS: Mapping[str, TaskArm] = {arm.id: arm for arms in (_of_one_seed(), _texts()) for arm in arms}
QUICK_HEAD_ARMS = (f"{HEADS}{PERFECT}/visualbert",)
