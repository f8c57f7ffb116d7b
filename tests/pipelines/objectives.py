"""Every pre-training objective of every system on ten drawn captions, texts of a task or lines of text; models of
milliseconds a step."""

import dataclasses
import functools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import nn

from roibeam.features.record.region_record import RegionRecord
from roibeam.model.inputs import IGNORE_INDEX
from roibeam.pipelines.data.batches.sample import PretrainSample
from roibeam.pipelines.data.captions.corpus import CaptionTable, Corpus
from roibeam.pipelines.data.captions.task_texts import NLVR2, VCR, VQA, TaskCorpus, TaskCorpusText, TaskTable
from roibeam.pipelines.pretraining.samples.sampler import Sampler, TextSampler
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer

NUM_IMAGES, NUM_CAPTIONS, WIDTH, NUM_CLASSES, GLOBAL_WIDTH = 5, 10, 8, 5, 3
WORDS = "a the red blue green dog cat ball house tree runs sits under over near two three small large old".split()
UNMASKED = frozenset({0, 3, 4, 7})  # rows of which nothing is predicted
TEXT_ONLY = frozenset({2, 5, 8})  # rows without an image, where an objective wants some


@dataclasses.dataclass(frozen=True)
class Objective:
    system: str
    losses: frozenset[str]  # what a log of some steps must hold
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # fields that are not those of the small model
    sampling: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # and of the rules
    texts: float = 0.0  # rows of text alone that come with each caption
    without_image: frozenset[int] = frozenset()  # captions that lose their image
    group: int = 1  # rows whose whole groups a batch must hold
    task: str = ""  # whose texts are in place of captions
    text_alone: bool = False  # lines are in place of captions, without any image


_OFTEN: dict[str, Any] = {"word_probability": 0.3, "region_probability": 0.3}
_WORDS, _TEXTS = frozenset({"masked_words"}), frozenset({"text_only_words"})
_PAIRED, _MASKED = _WORDS | {"matching"}, _WORDS | {"masked_regions"}
_MATCHED, _FEATURES = _MASKED | {"matching"}, _MASKED | {"matching", "masked_region_features"}
_TWO_STREAMS: dict[str, Any] = {
    "image_hidden_size": 12, "image_num_hidden_layers": 1, "image_num_attention_heads": 2,
    "image_intermediate_size": 20, "co_attention_size": 16, "co_attention_num_heads": 2,
    "text_co_attention": (0,), "image_co_attention": (0,),
}  # fmt: skip
_SIZES: Mapping[str, Mapping[str, Any]] = {
    "vlbert": {"coordinate_embedding_size": 8},
    "vilbert": _TWO_STREAMS,
    "interbert": {
        "text_num_hidden_layers": 1, "image_num_hidden_layers": 1, "image_num_attention_heads": 2,
        "image_intermediate_size": 24, "pooled_size": 12,
    },
}  # fmt: skip
_OF_TASK, _LINES = {"text_form": "task_text", "word_probability": 0.3}, {"min_text_words": 6}
_UNPAIRED = {"with_match_head": False}
_REGRESSION = {"region_loss": "regression", "region_target_size": WIDTH}
OBJECTIVES: Mapping[str, Objective] = {
    "vlbert": Objective("vlbert", _MASKED),
    "vlbert-without-image": Objective("vlbert", _MASKED | _TEXTS, without_image=TEXT_ONLY),
    "vlbert-texts": Objective("vlbert", _MASKED | _TEXTS, sampling=_LINES, texts=0.5),
    "vlbert-text-alone": Objective("vlbert", _TEXTS, sampling=_LINES | {"word_probability": 0.3}, text_alone=True),
    "vlbert-paper": Objective(
        "vlbert", _MATCHED,
        {"region_labels": "hard", "with_pooler": True, "with_relationship_head": True, "relationship_loss": "sigmoid"},
    ),
    "vlbert-rows": Objective("vlbert", _MASKED, {"word_loss_mean": "rows", "region_loss_mean": "rows"}),
    "visualbert": Objective("visualbert", _PAIRED),
    # With as many pairs of both kinds, in a step of nothing else gradients would cancel, and their norm be rounding.
    "visualbert-one-caption": Objective(
        "visualbert", _PAIRED, sampling={"text_form": "one_caption", "mismatched_probability": 0.3}
    ),
    "visualbert-words-only": Objective("visualbert", _WORDS, _UNPAIRED, {"text_form": "words_only"}),
    "visualbert-vqa": Objective("visualbert", _WORDS, _UNPAIRED, _OF_TASK, task=VQA),
    "visualbert-vcr": Objective("visualbert", _PAIRED, sampling=_OF_TASK, task=VCR),
    "visualbert-nlvr2": Objective("visualbert", _PAIRED, sampling=_OF_TASK, task=NLVR2),
    "imagebert": Objective("imagebert", _FEATURES, sampling=_OFTEN),
    "imagebert-all-pairs": Objective(
        "imagebert", _FEATURES,
        {
            "masked_loss_pairs": "all", "feature_reduction": "sum", "global_feature_size": GLOBAL_WIDTH,
            "final_separator": "next",
        },
        _OFTEN,
    ),
    "vilbert": Objective("vilbert", _MATCHED, sampling=_OFTEN),
    "vilbert-matched": Objective(
        "vilbert", _MATCHED, {"masked_loss_pairs": "matched", "whole_image_count": "visible"},
        _OFTEN | {"overlapping_regions": "hidden", "negatives": "caption_or_image"},
    ),
    "vilbert-regression": Objective(
        "vilbert", _MATCHED, _REGRESSION, _OFTEN | {"overlapping_regions": "uncounted", "negatives": "image"}
    ),
    "vilbert-contrastive": Objective(
        "vilbert", _MATCHED, _REGRESSION | {"region_loss": "contrastive", "num_negatives": 6, "negative_rows": 2},
        _OFTEN, group=2,
    ),
    "vilbert-single-stream": Objective("vilbert-single-stream", _MATCHED, sampling=_OFTEN),
    "interbert": Objective("interbert", _MATCHED, sampling=_OFTEN),
    "interbert-regression": Objective(
        "interbert", _MATCHED, _REGRESSION, {"masking": "groups_as_released", "region_probability": 0.3}
    ),
    "interbert-conditional": Objective(
        "interbert", _MATCHED, sampling=_OFTEN | {"masking": "single", "conditional_masking": True}
    ),
}  # fmt: skip


@functools.cache
def tokenizer() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.txt"
        path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
        return load_tokenizer(str(path))


def small_model(name: str, *, dropout: float) -> nn.Module:
    """The model of an objective, with every dropout at one rate."""
    objective = OBJECTIVES[name]
    system = SYSTEMS[objective.system]
    fields: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    fields |= {"intermediate_size": 24, "region_feature_size": WIDTH, "vocab_size": tokenizer().vocab_size}
    fields |= {**_SIZES.get(objective.system, {}), **system.region_label_fields(NUM_CLASSES)}
    if objective.texts or objective.without_image or objective.text_alone:
        fields |= dict(system.text_only_fields or {})
    fields |= objective.model
    dropouts = [field for field in system.sizes["small"]().to_dict() if field.endswith("_dropout")]
    assert len(dropouts) >= 2, dropouts
    return system.model_class(system.sizes["small"](**fields, **dict.fromkeys(dropouts, dropout)))


def small_rules(name: str, model_config: Any) -> "SomeUnmasked":
    """The rules of an objective."""
    objective = OBJECTIVES[name]
    system = SYSTEMS[objective.system]
    rules = system.sampler(system.sampling(**objective.sampling), tokenizer(), model_config, num_classes=NUM_CLASSES)
    return SomeUnmasked(rules, objective.without_image)


def small_corpus(task: str = "") -> Corpus:
    """Two captions an image, or as many texts of a task, NLVR2's of two images each."""
    draw = np.random.default_rng(7)
    store = {f"image-{number}": record(number) for number in range(NUM_IMAGES)}
    texts = [" ".join(draw.choice(WORDS, int(draw.integers(3, 9)))) for _ in range(NUM_CAPTIONS)]
    places = [number * NUM_IMAGES // NUM_CAPTIONS for number in range(NUM_CAPTIONS)]
    if not task:
        return Corpus(store, CaptionTable(list(store), list(zip(places, texts, strict=True))))
    rows: list[tuple[tuple[int, ...], TaskCorpusText]] = []
    for number, (place, text) in enumerate(zip(places, texts, strict=True)):
        count = {VQA: 3, VCR: 1}.get(task, 0)
        following = [" ".join(draw.choice(WORDS, int(draw.integers(1, 5)))) for _ in range(count)]
        shown = (place, (place + 2) % NUM_IMAGES) if task == NLVR2 else (place,)
        names = tuple(f"image-{each}" for each in shown)
        matches = None if task == VQA else number % 4 == 0
        rows.append((shown, TaskCorpusText("\n".join([text, *following]), names, matches)))
    return TaskCorpus(store, TaskTable(list(store), rows, as_pair=task == VCR))


def small_lines(count: int = 7) -> list[str]:
    """A text corpus."""
    draw = np.random.default_rng(8)
    return [" ".join(draw.choice(WORDS, int(draw.integers(4, 12)))) for _ in range(count)]


def record(number: int, counts: tuple[int, int] = (2, 6)) -> RegionRecord:
    """Of at least so many regions and fewer than so many."""
    draw = np.random.default_rng(number)
    count = int(draw.integers(*counts))
    corner, extent = draw.uniform(0, 200, (count, 2)), draw.uniform(20, 200, (count, 2))
    distribution = draw.dirichlet(np.full(NUM_CLASSES + 1, 0.3), count).astype(np.float16)
    return RegionRecord(
        image_id=f"image-{number}", height=400, width=450,
        boxes=np.concatenate([corner, corner + extent], axis=1).astype(np.float32),
        features=draw.standard_normal((count, WIDTH)).astype(np.float16),
        class_ids=distribution[:, :-1].argmax(axis=1).astype(np.uint16),
        class_scores=draw.random(count).astype(np.float32), class_distribution=distribution,
        image_feature=draw.standard_normal(GLOBAL_WIDTH).astype(np.float16),
    )  # fmt: skip


class SomeUnmasked:
    """A system's rules, but rows and lines of `UNMASKED` have nothing to predict, rows of `without_image` no image."""

    def __init__(self, rules: Sampler, without_image: frozenset[int]) -> None:
        self._rules, self._without_image = rules, without_image

    @property
    def draws_images(self) -> bool:
        return self._rules.draws_images

    def check(self, record: RegionRecord) -> None:
        self._rules.check(record)

    def text_sample(self, lines: Sequence[str], line: int, random: np.random.Generator) -> PretrainSample:
        sample = cast(TextSampler, self._rules).text_sample(lines, line, random)
        return _nothing_predicted(sample) if line in UNMASKED else sample

    def sample(self, corpus: Corpus, row: int, random: np.random.Generator) -> PretrainSample:
        sample = self._rules.sample(corpus, row, random)
        if row in UNMASKED:
            sample = _nothing_predicted(sample)
        if row in self._without_image:
            fields = ("features", "boxes", "masked", "predicted")
            no_region: dict[str, Any] = {name: getattr(sample, name)[:0] for name in fields}
            targets = None if sample.targets is None else sample.targets[:0]
            sample = dataclasses.replace(sample, **no_region, region_targets=targets, whole_image=None, text_only=True)
        elif self._without_image:
            sample = dataclasses.replace(sample, text_only=None)  # so that batches differ in the losses they have
        return sample


def _nothing_predicted(sample: PretrainSample) -> PretrainSample:
    nothing = np.full_like(sample.text_labels, IGNORE_INDEX)
    twin = None if sample.twin is None else _nothing_predicted(sample.twin)
    return dataclasses.replace(sample, text_labels=nothing, predicted=np.zeros_like(sample.predicted), twin=twin)
