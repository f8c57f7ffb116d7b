"""The family "metrics_entities": the files of Flickr30k Entities as three codes read them, and phrase grounding as
three codes count it."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from harness.metrics.metric_case import MetricCase, Ours, caught, metric_family, read_metric_case
from harness.tolerances import METRICS
from roibeam.pipelines.data.datasets.entities import (
    AUTHORS,
    DATA_SET,
    RELEASE,
    TYPES,
    EntityBoxes,
    EntityImage,
    EntitySentence,
    entity_boxes,
    parse_marked_sentence,
)
from roibeam.pipelines.data.datasets.image_boxes import parse_annotation_xml
from roibeam.pipelines.finetuning.metrics.grounding import (
    GROUNDING_RULES,
    RANKS,
    UPPER_BOUND,
    CaptionKey,
    CountedPhrase,
    GroundedPhrase,
    GroundingRule,
    counted_phrases,
    covering,
    grounding_measures,
    judged_phrases,
    overlaps,
    ranked,
)

_ODD_CHAINS = ("5", "6")  # that have a box, as the case says
_MOST_TYPES = 3


def _boxes_of(case: MetricCase) -> dict[str, EntityBoxes]:
    texts = case.content("annotations_xml")
    return {
        name: entity_boxes(parse_annotation_xml(text.encode("utf-8"), name, DATA_SET), name)
        for name, text in texts.items()
    }


def _images(case: MetricCase, rule: str) -> list[EntityImage]:
    boxes = _boxes_of(case)
    images = []
    for name, text in case.content("sentences_txt").items():
        lines = [line for line in text.split("\n") if line.strip()]
        parsed = {number: parse_marked_sentence(line, rule) for number, line in enumerate(lines)}
        images.append(EntityImage(name, parsed, boxes[name]))
    return images


def _as_authors(sentence: EntitySentence) -> dict[str, Any]:
    return {
        "sentence": sentence.text,
        "phrases": [
            {
                "first_word_index": each.first_word,
                "phrase": each.text,
                "phrase_id": each.chain,
                "phrase_type": list(each.types),
            }
            for each in sentence.phrases
        ],
    }


def _parsing(case: MetricCase) -> Ours:
    found = {}
    for image in _images(case, AUTHORS):
        boxes = image.boxes
        found[image.name] = {
            "sentences": [_as_authors(each) for each in image.sentences.values()],
            "annotations": {
                # The authors' Python takes one off.
                "boxes": {c: [[x - 1 for x in box] for box in each] for c, each in boxes.boxes.items()},
                "scene": list(boxes.scene),
                "nobox": list(boxes.no_box),
                "width": boxes.width,
                "height": boxes.height,
                "depth": boxes.depth,
            },
        }
    return {"images": found}


def _odd_lines(case: MetricCase) -> Ours:
    def authors(line: str) -> list[Any]:
        return [_as_authors(parse_marked_sentence(line, AUTHORS))]

    def release(line: str) -> list[Any]:
        sentence = parse_marked_sentence(line, RELEASE)
        phrases = [each for each in sentence.phrases if each.chain in _ODD_CHAINS]
        places, chains = [each.last_word for each in phrases], [int(each.chain) for each in phrases]
        return [{"sentence": sentence.text, "last_word_indices": places, "entity_ids": chains}] * bool(phrases)

    return {
        name: {"plummer": caught(functools.partial(authors, line)), "ban": caught(functools.partial(release, line))}
        for name, line in case.content("lines").items()
    }


class _Grounding:
    """The case `grounding`: what counts, and the scored proposals of it."""

    def __init__(self, case: MetricCase) -> None:
        self.images = _images(case, RELEASE)
        self.expected = counted_phrases(self.images)
        self.proposals = {name: np.array(each, np.float64) for name, each in case.content("proposals").items()}
        self.scores: dict[CaptionKey, list[list[float]]] = {
            (str(each["image_id"]), each["sentence"]): each["scores"] for each in case.content("scores")
        }

    def predictions(self) -> list[dict[str, Any]]:
        """As `judged_phrases` takes them."""
        return [
            {
                "image_id": int(name),
                "sentence_id": number,
                "boxes": [self.proposals[name][ranked(each)].tolist() for each in scores],
            }
            for (name, number), scores in self.scores.items()
        ]

    def recalls(self, rule: GroundingRule, *, gold_moved: float = 0.0) -> dict[str, float]:
        moved = {
            key: [each._replace(boxes=each.boxes + gold_moved) for each in phrases]
            for key, phrases in self.expected.items()
        }
        return _means(judged_phrases(self.predictions(), moved, rule, "predictions"))

    def entries(self) -> list[dict[str, Any]]:
        """As jnhwkim/ban-vqa's data set has them."""
        images = {image.name: image for image in self.images}
        return [
            _entry(images[name], number, phrases, self.proposals[name])
            for (name, number), phrases in self.expected.items()
        ]


def _entry(image: EntityImage, number: int, phrases: Sequence[CountedPhrase], proposals: np.ndarray) -> dict[str, Any]:
    sentence = image.sentences[number]
    chains = [int(each.chain) for each in sentence.phrases if each.chain in image.boxes.boxes and each.chain != "0"]
    targets = [np.flatnonzero(covering(proposals, each.boxes, GROUNDING_RULES["any"])).tolist() for each in phrases]
    types = [[TYPES.index(kind) for kind in each.types] for each in phrases]
    return {
        "image_id": int(image.name),
        "sentence": sentence.text,
        "last_word_indices": [each.last_word for each in phrases],
        "entity_ids": chains,
        "entity_types": [(each + [-1] * _MOST_TYPES)[:_MOST_TYPES] for each in types],
        "target_indices": targets,
    }


def _means(phrases: Sequence[GroundedPhrase]) -> dict[str, float]:
    return {name: measure.mean for name, measure in grounding_measures(phrases).items()}


def _short(means: Mapping[str, float], recall: str = "recall") -> dict[str, float]:
    """Of all phrases."""
    named = {f"{recall}_at_{rank}": means[f"R@{rank}"] for rank in RANKS}
    return {**named, "upper_bound": means[UPPER_BOUND]}


def _by_type(means: Mapping[str, float]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for name, mean in means.items():
        is_bound = name.startswith(UPPER_BOUND)
        what, _, kind = (UPPER_BOUND, "", name.removeprefix(UPPER_BOUND).strip()) if is_bound else name.partition(" ")
        key = "upper_bound" if is_bound else what.replace("R@", "recall_at_")
        found.setdefault(key, {})[kind or "all"] = mean
    return found


def _grounding(case: MetricCase) -> Ours:
    read = _Grounding(case)
    num_phrases = sum(map(len, read.expected.values()))
    each_way = {(merged, more): GroundingRule(merged, more, "") for merged in (False, True) for more in (False, True)}
    found = read.recalls(GROUNDING_RULES["any"])
    merged = read.recalls(GROUNDING_RULES["merged"])
    return {
        "phrases": num_phrases,
        "sentences": len(read.expected),
        "ban": {**_short(found), "phrases": num_phrases},
        "visualbert": _short(found, "accuracy"),
        "mdetr_any": _by_type(found),
        "mdetr_merged": _by_type(merged),
        "conventions_recomputed": {
            "any_box_plain": _short(found),
            "union_box_plain": _short(merged),
            "any_box_plus_one": _short(read.recalls(each_way[False, True])),
            "union_box_plus_one": _short(read.recalls(each_way[True, True])),
            "any_box_plain_gt_minus_1": _short(read.recalls(each_way[False, False], gold_moved=-1)),
            "union_box_plus_one_gt_minus_1": _short(read.recalls(each_way[True, True], gold_moved=-1)),
        },
        "entries": read.entries(),
    }


def _prediction_lists(case: MetricCase) -> Ours:
    """Made from the case `grounding` beside it."""
    beside = read_metric_case(case.path.with_name("grounding.json"))
    if beside is None:
        raise ValueError(f"{case.path}: no case grounding.json beside it")
    read = _Grounding(beside)
    whole = read.predictions()
    first, *others = whole
    variants = {
        "missing_sentence": others,
        # What comes again is wrong, so that who took it would see.
        "repeated_sentence": [*whole, {**first, "boxes": [each[::-1] for each in first["boxes"]]}],
        "one_phrase_too_few": [{**first, "boxes": first["boxes"][1:]}, *others],
        "unknown_image": [*whole, {**first, "image_id": 1}],
    }

    def recall(predictions: list[dict[str, Any]]) -> dict[str, float]:
        means = _means(judged_phrases(predictions, read.expected, GROUNDING_RULES["any"], "predictions"))
        return {"recall_at_1": means["R@1"]}

    return {name: caught(functools.partial(recall, each)) for name, each in variants.items()}


def _iou_pairs(case: MetricCase) -> Ours:
    boxes = case.content("boxes")
    pairs = list(zip(np.array(boxes["a_xyxy"]), np.array(boxes["b_xyxy"]), strict=True))

    def each(*, plus_one: bool) -> list[float | None]:
        found = [float(overlaps(a[None], b[None], plus_one=plus_one)[0, 0]) for a, b in pairs]
        return [None if np.isnan(value) else value for value in found]

    plain = each(plus_one=False)
    return {"ban": plain, "mdetr": plain, "plus_one": each(plus_one=True)}


_KINDS_OF_CASE: Mapping[str, Callable[[MetricCase], Ours]] = {
    "": _prediction_lists,
    "scores": _grounding,
    "sentences_txt": _parsing,
    "lines": _odd_lines,
    "boxes": _iou_pairs,
}


def _tolerance(name: str) -> float:
    if name == "visualbert":
        return METRICS.shares_of_one
    return METRICS.overlaps if name in ("ban", "mdetr", "plus_one") else METRICS.exact


ENTITY_METRICS = metric_family(
    "metrics_entities", _KINDS_OF_CASE, _tolerance, marks=frozenset({"annotations_xml", "lines"})
)
