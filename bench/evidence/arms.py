"""The runs of `make evidence`: what each trains on what, as arguments of `roibeam pretrain`.

All models are of width 128 and three layers deep, or what comes nearest: whatever is shown, is shown of small models in
a small world. All hide 40 % of the words, more than published: small models with few captions learn sooner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from evidence.worlds import DETECTOR, WHOLE
from roibeam.pipelines.toyworld.perfect_store import FEATURE_DIM

SEEDS = (0, 1, 2)
CONTROL_SEEDS = (0,)  # of what is to say nothing
STEPS, BATCH, RATE = 9000, 64, 2e-3
# Of single systems: at RATE ViLBERT learns no more in 9,000 steps than so in 2,250.
RATES = {"vilbert": RATE / 2, "interbert": RATE / 2}
HALF = STEPS // 2  # of the arms that are compared with each other alone
LONGER, LONGER_SUFFIX = ("vlbert", "visualbert", "imagebert"), "-longer"  # arms of twice the steps
EVALUATIONS = 8  # of a run, at even distances
HIDDEN_WORDS = 0.4
# InterBERT's groups hide 40.0 % of the words and 15.8 % of the regions with these anchors (2,000 captions).
GROUP_ANCHORS, GROUP_REGIONS, HIDDEN_REGIONS = 0.25, 0.15, 0.16
END_TO_END_STEPS, END_TO_END_BATCH = 2000, 8
QUICK_STEPS = 150

_WIDTH = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "hidden_dropout": 0,
    "attention_dropout": 0,
}
_IMAGE = {
    "image_intermediate_size": 512,
    "image_hidden_dropout": 0,
    "image_attention_dropout": 0,
    "region_embedding_dropout": 0,
    "pair_dropout": 0,
}
SMALL: Mapping[str, Mapping[str, object]] = {
    "vlbert": {**_WIDTH, "num_hidden_layers": 3, "coordinate_embedding_size": 128, "region_dropout": 0},
    "visualbert": {**_WIDTH, "num_hidden_layers": 3},
    "imagebert": {**_WIDTH, "num_hidden_layers": 3},
    "vilbert-single-stream": {**_WIDTH, "num_hidden_layers": 4},
    "vilbert": {
        **_WIDTH,
        **_IMAGE,
        "num_hidden_layers": 4,  # the last two of which look at the image
        "image_hidden_size": 128,
        "image_num_hidden_layers": 2,
        "co_attention_size": 128,
    },
    "interbert": {
        **_WIDTH,
        **_IMAGE,
        "num_hidden_layers": 2,
        "text_num_hidden_layers": 1,
        "image_num_hidden_layers": 1,
        "pooled_size": 128,
    },
}
OVERLAP_NAMES = ("alone", "touching", "covered")  # of a hidden region, by what others show of it
WORDS, WORDS_ALONE, REGIONS, MATCHING, RETRIEVAL = "words", "words alone", "regions", "matching", "retrieval"
BESIDE = "beside"  # matching and retrieval of VisualBERT as it is trained: a true caption stands before the asked one


@dataclass(frozen=True)
class Arm:
    """One kind of run; it is made once for each seed.

    Attributes:
        name: without the store.
        what: for people.
        system: as `--system`.
        measures: what is asked of it afterwards.
        store: name of a store of `worlds`.
        captions: name of a file of captions there.
        model: as `--model`.
        settings: of `--set`, beside those of the small models.
        options: further arguments.
        after: the arm of the same store whose run it goes on from.
        bert: the arm of the same store, of words alone, whose layers it starts from as from a BERT.
        text_corpus: whether it reads text without pictures too.
        labels: whether the detector goes on learning its objects beside.
        steps, batch, rate: as in `roibeam pretrain`; a rate of 0 is that of the system.
        kept: whether its weights (seed 0) are kept for fine-tuning.
        seeds: of its runs.
    """

    name: str
    what: str
    system: str
    measures: Sequence[str]
    store: str = "perfect"
    captions: str = "train"
    model: str = "small"
    settings: Mapping[str, object] = field(default_factory=dict)
    options: Sequence[str] = ()
    after: str = ""
    bert: str = ""
    text_corpus: bool = False
    labels: bool = False
    steps: int = STEPS
    batch: int = BATCH
    rate: float = 0.0
    kept: bool = False
    seeds: tuple[int, ...] = SEEDS

    @property
    def id(self) -> str:
        """Such as "perfect/vilbert"."""
        return f"{self.store}/{self.name}"

    @property
    def needs(self) -> str:
        """The arm that has to be trained before, "" for none."""
        first = self.after or self.bert
        return f"{self.store}/{first}" if first else ""

    def arguments(self, *, steps: int) -> list[str]:
        """Of `roibeam pretrain`, without run folder, files, seed, and the run that it goes on from."""
        rate = self.rate or RATES.get(self.system, RATE)
        small = {} if self.after else {f"model.{name}": value for name, value in SMALL[self.system].items()}
        fields = {**small, **self._hidden, "train.clip_norm": 1, **self.settings}
        return [
            *("--system", self.system, *([] if self.after else ["--model", self.model])),
            *("--steps", str(steps), "--warmup-steps", str(steps // 10)),
            *("--batch-size", str(self.batch), "--learning-rate", str(rate)),
            *("--set", f"train.evaluate_every={max(1, steps // EVALUATIONS)}"),
            *(word for name, value in fields.items() if value is not None for word in ("--set", f"{name}={value}")),
            *self.options,
        ]

    @property
    def sampling(self) -> list[str]:
        """Of its settings those of the system's rules, as `--set` takes them."""
        fields = {**self._hidden, **self.settings}
        return [f"{name}={value}" for name, value in fields.items() if name.startswith("sampling.")]

    @property
    def _hidden(self) -> dict[str, object]:
        if self.system == "interbert":
            return {"sampling.word_probability": GROUP_ANCHORS, "sampling.region_probability": GROUP_REGIONS}
        return {"sampling.word_probability": HIDDEN_WORDS}


_ALL = (WORDS, REGIONS, MATCHING, RETRIEVAL)
_OF_VISUALBERT = (WORDS, MATCHING, RETRIEVAL, BESIDE)
_SYSTEMS = {
    "vlbert": ("VL-BERT with its paper's relationship task", "paper-small", _ALL),
    "vilbert": ("ViLBERT", "small", _ALL),
    "visualbert": ("VisualBERT", "small", _OF_VISUALBERT),
    "imagebert": ("ImageBERT", "small", _ALL),
    "interbert": ("InterBERT, groups masked", "small", _ALL),
}
_TEXT_ONLY = {"sampling.with_regions": "false", "sampling.text_form": "words_only", "model.with_match_head": "false"}


def _main(store: str) -> Iterator[Arm]:
    """The five systems, and words alone."""
    for name, (what, model, measures) in _SYSTEMS.items():
        yield Arm(name, what, name, measures, store, model=model, kept=True)
    what = "Words alone, without any image"
    yield Arm("text-only", what, "visualbert", (WORDS_ALONE,), store, settings=_TEXT_ONLY, kept=store != DETECTOR)


def _controls(store: str) -> Iterator[Arm]:
    for name, (what, model, measures) in _SYSTEMS.items():
        asked = [measure for measure in measures if measure != RETRIEVAL]
        told = f"{what}; every picture has another's captions"
        yield Arm(f"{name}-permuted", told, name, asked, store, "permuted", model, steps=HALF, seeds=CONTROL_SEEDS)


def _compared() -> Iterator[Arm]:
    """The claims of pre-training: arms that differ in one thing from their system's base."""
    relation = {
        "model.with_pooler": "true",
        "model.with_relationship_head": "true",
        "sampling.mismatched_probability": 0.5,
    }
    two, words = (WORDS, REGIONS), (WORDS,)
    kept: Mapping[str, object] = {"text_corpus": True, "kept": True}  # tasks start from them
    yield _half("vlbert-base", "VL-BERT as released, with the text corpus", "vlbert", two, **kept)
    yield _half("vlbert-no-text", "The same without the text corpus", "vlbert", two)
    no_regions = {"model.with_region_head": "false"}
    yield _half("vlbert-no-regions", "The same without masked regions", "vlbert", words, no_regions, text_corpus=True)
    yield _half("vlbert-relation", "The same with the relationship task", "vlbert", two, relation, **kept)

    yield _half("vilbert-base", "ViLBERT", "vilbert", _ALL, kept=True)
    yield _half("vilbert-single", "One stream for words and regions", "vilbert-single-stream", _ALL, kept=True)
    one = {
        "model.image_num_hidden_layers": 1,
        "model.text_co_attention": "[3]",
        "model.image_co_attention": "[0]",
    }
    yield _half("vilbert-shallow", "ViLBERT, one co-attention instead of two", "vilbert", _ALL, one, kept=True)

    base = (WORDS, BESIDE)
    yield _half("visualbert-base", "VisualBERT", "visualbert", base, kept=True)
    late = {"model.early_fusion": "false"}
    told = "VisualBERT, image and text meet in one last layer"
    yield _half("visualbert-late", told, "visualbert", base, late, kept=True)
    alone = {"model.with_match_head": "false", "sampling.text_form": "words_only"}
    yield _half("visualbert-no-matching", "VisualBERT without the second objective", "visualbert", words, alone)
    yield _half(
        "visualbert-from-text", "VisualBERT, which starts from words alone", "visualbert", base, bert="text-only"
    )

    yield _half("imagebert-base", "ImageBERT", "imagebert", _ALL)
    for name, part in (("classes", "region_class"), ("features", "region_feature")):
        yield _half(
            f"imagebert-no-{name}", f"ImageBERT without masked regions' {name}", "imagebert",
            (WORDS, MATCHING, RETRIEVAL), {f"model.with_{part}_head": "false"},
        )  # fmt: skip
    no_match = {
        "model.with_match_head": "false",
        "model.masked_loss_pairs": "all",
        "sampling.mismatched_probability": 0,
    }
    yield _half("imagebert-no-matching", "ImageBERT without matching", "imagebert", two, no_match)
    every_pair = {"model.masked_loss_pairs": "all"}
    told = "ImageBERT, which learns from hidden words of mismatched pairs too"
    yield _half("imagebert-all-pairs", told, "imagebert", words, every_pair, seeds=SEEDS[:1])
    whole = {"model.global_feature_size": FEATURE_DIM}
    yield _half(
        "imagebert-whole", "ImageBERT with a feature of the whole picture", "imagebert", _ALL, whole, store=WHOLE
    )
    quarter = HALF // 2
    asked = (WORDS, MATCHING, RETRIEVAL)
    yield Arm(
        "imagebert-noisy", "ImageBERT, first stage: noisy captions", "imagebert", words, captions="noisy", steps=quarter
    )
    yield Arm(
        "imagebert-two-stages", "ImageBERT, second stage: clean captions", "imagebert", asked, captions="clean",
        steps=quarter, after="imagebert-noisy",
    )  # fmt: skip
    yield Arm(
        "imagebert-stage-more", "ImageBERT, noisy captions, then clean ones for half the steps", "imagebert", asked,
        captions="clean", steps=HALF, after="imagebert-noisy",
    )  # fmt: skip
    yield Arm("imagebert-clean", "ImageBERT, clean captions alone", "imagebert", asked, captions="clean", steps=HALF)
    yield Arm(
        "imagebert-one-stage", "ImageBERT, both at once", "imagebert", asked, captions="clean-and-noisy", steps=HALF
    )

    yield _half("interbert-base", "InterBERT, groups masked", "interbert", _ALL)
    single = {
        "sampling.masking": "single",
        "sampling.word_probability": HIDDEN_WORDS,
        "sampling.region_probability": HIDDEN_REGIONS,
    }
    yield _half("interbert-plain", "InterBERT, words and regions masked one by one", "interbert", _ALL, single)
    no_mismatch = {"sampling.mismatched_probability": 0}
    yield _half("interbert-true-pairs", "InterBERT, true pairs alone", "interbert", two, no_mismatch)
    both = {**single, **no_mismatch}
    yield _half("interbert-true-single", "InterBERT, true pairs, masked one by one", "interbert", two, both)
    yield _half("interbert-from-text", "InterBERT, which starts from words alone", "interbert", _ALL, bert="text-only")


def _second_attempts() -> Iterator[Arm]:
    """All steps, of what did not come out as its paper says after half of them."""
    begun = {arm.id: arm for arm in (*_compared(), *_curves())}
    for arm in (
        "perfect/vlbert-base", "perfect/vlbert-no-regions", "perfect/vilbert-5k", "perfect/visualbert-late",
        f"{WHOLE}/imagebert-whole", "perfect/interbert-plain",
    ):  # fmt: skip
        half = begun[arm]
        what = f"{half.what}, all steps"
        kept = arm == "perfect/visualbert-late"  # tasks start from it
        yield replace(half, name=f"{half.name}-all", what=what, steps=STEPS, kept=kept)


def _longer() -> Iterator[Arm]:
    """Twice the steps, of three systems of the main table: do they still learn at the end of these, too?"""
    for arm in _main("perfect"):
        if arm.name in LONGER:
            what = f"{arm.what}, twice the steps"
            yield replace(
                arm, name=f"{arm.name}{LONGER_SUFFIX}", what=what, steps=2 * STEPS, kept=False, seeds=SEEDS[:1]
            )


def _half(
    name: str,
    what: str,
    system: str,
    measures: Iterable[str],
    settings: Mapping[str, object] | None = None,
    **others: object,
) -> Arm:
    return Arm(name, what, system, tuple(measures), settings=settings or {}, steps=HALF, **others)  # type: ignore[arg-type]


def _curves() -> Iterator[Arm]:
    """Fewer training pictures, as many steps."""
    for system, measures in (("visualbert", (WORDS, BESIDE)), ("vilbert", _ALL)):
        for called, share in (("1k", 0.05), ("5k", 0.25)):
            what = f"{_SYSTEMS[system][0]}, {called.removesuffix('k')},000 training pictures"
            yield _half(f"{system}-{called}", what, system, measures, {"data.share": share}, kept=system == "vilbert")


def _noises() -> Iterator[Arm]:
    for noise in (0.6, 1.2, 2.4):
        what = f"VisualBERT, noise of {noise} in place of 0.3"
        yield _half("visualbert-base", what, "visualbert", (WORDS, BESIDE), store=f"perfect-noise{noise}")


def _through_the_detector() -> Iterator[Arm]:
    """VL-BERT as released, going on from the same run: on stored features, or through the detector's last stage."""
    yield Arm(
        "vlbert-released", "VL-BERT as released, stored features", "vlbert", (WORDS, REGIONS), DETECTOR, steps=HALF,
        kept=True,
    )  # fmt: skip
    common = {
        "store": DETECTOR,
        "after": "vlbert-released",
        "steps": END_TO_END_STEPS,
        "batch": END_TO_END_BATCH,
        "rate": RATE / 10,
    }
    # As with stored features: no mirrored photos, none put together by shape, the whole image as the regions' mean.
    alike = {"photos.flip": "false", "photos.aspect_buckets": "false", "end_to_end.whole_image": "model"}
    pixels = ("--end-to-end", "--detector", "toy")
    frozen = {**alike, "encoder.frozen_stages": "[1,2,3,4,5]"}
    for name, what, options, settings, labels in (
        ("vlbert-stored", "Stored features of the detector", (), {}, False),
        ("vlbert-frozen", "Masked pixels, detector frozen", pixels, frozen, False),
        ("vlbert-trained", "Masked pixels, detector trained", pixels, alike, False),
        ("vlbert-joint", "Masked pixels, detector trained on its objects too", pixels, alike, True),
    ):
        yield Arm(name, what, "vlbert", (WORDS, REGIONS), options=options, settings=settings, labels=labels, **common)  # type: ignore[arg-type]


def _for_tasks() -> Iterator[Arm]:
    """Only to be fine-tuned."""
    single_image = {
        f"model.{name}": value for name, value in {"num_hidden_layers": 4, "text_num_hidden_layers": 0}.items()
    }
    yield _half(
        "interbert-single", "InterBERT with a single stream", "interbert", (WORDS,),
        {**single_image, "model.image_num_hidden_layers": 0}, kept=True, seeds=SEEDS[:1],
    )  # fmt: skip


def _in_order() -> Iterator[Arm]:
    yield from _main("perfect")
    yield from _controls("perfect")
    yield from _main(DETECTOR)
    yield from _controls(DETECTOR)
    yield from _compared()
    yield from _curves()
    yield from _noises()
    yield from _for_tasks()
    yield from _through_the_detector()
    yield from _second_attempts()
    yield from _longer()


ARMS: Mapping[str, Arm] = {arm.id: arm for arm in _in_order()}  # in the order in which they are run
QUICK_ARMS = ("perfect/visualbert", "perfect/text-only", "perfect/visualbert-permuted", "detector/vilbert")
