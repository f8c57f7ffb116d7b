"""Page of predictions: the best, the worst and the most confidently wrong, beside their photos; and their summary.

Rows without a label stand by confidence: the surest, the least sure and the first ones. Boxes are, for labels, the
regions of the store with the best scores; for choices those that the texts name; for regions the predicted one, the
right one, and the next best. A part of a prediction has a summary of its own, plain data for its file; summaries are
joined as the parts are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.messages import plural, printable
from roibeam.pipelines.common.charts import DrawnBox, box_canvas
from roibeam.pipelines.common.page_layout import Banner, page_sections, rendered
from roibeam.pipelines.data.batches.image_batch import PhotoOrReason, stored_photos
from roibeam.pipelines.data.vocabulary import Names
from roibeam.pipelines.finetuning.metrics.measure import Measure, Whole
from roibeam.pipelines.finetuning.rows import CHOICE, LABEL, PHRASE, TaskGroup, TaskRow, TaskText
from roibeam.pipelines.finetuning.task import DownstreamTask, Prediction

ROWS_OF_SECTION = 8
BEST, WORST, CONFIDENT = "best", "worst", "confident"
SUREST, UNSURE, FIRST = "surest", "unsure", "first"  # of rows whose right answer is not known
_KEPT = 3 * ROWS_OF_SECTION  # of each part: a row of several sections is displayed in one of them
_TOP = 5
_MOST_LETTERS = 600  # of a text of a row
_NOTHING = {"measure": "", "judged": 0, "sum": 0.0, "best_sum": 0.0, "chance_sum": 0.0, "unjudged": 0}
_SIGMOID_LOSSES = frozenset({"bce", "class_bce", "sigmoid", "regions", "rows"})  # each score is learned by itself
UPPER_BOUND = "upper bound"
_AND = " and "  # between the measures of several problems


def summarize_predictions(
    task: DownstreamTask, groups: Sequence[TaskGroup], predictions: Sequence[Prediction]
) -> dict[str, Any]:
    """Summary of groups and predictions: counts, sums of the main measure, and rows that may be displayed.

    Each of several problems of a task is judged by itself. Groups without a label are counted as "unjudged", and have
    rows of their own.
    """
    problems: dict[tuple[str, bool], list[tuple[TaskGroup, Prediction]]] = {}
    for group, each in zip(groups, predictions, strict=True):
        problem = "" if task.turns is None else task.turns(group)
        problems.setdefault((problem, task.has_label(group)), []).append((group, each))
    return joined_parts(
        _labelled_problem(task, pairs, problem) if labelled else _unjudged(task, pairs, problem)
        for (problem, labelled), pairs in problems.items()
    )


def _unjudged(task: DownstreamTask, pairs: Sequence[tuple[TaskGroup, Prediction]], problem: str) -> dict[str, Any]:
    """Summary of the groups of one problem that have no label."""
    single = [each for pair in pairs for each in (_phrases if task.form == PHRASE else _choices)(task, *pair)]
    rows = []
    for group, prediction in single:
        shares = probabilities(task, prediction.scores)
        # Of a number that is predicted, the number.
        sure = float(prediction.scores[0] if _is_number(task) else shares.max(initial=0.0))
        rows.append({"id": group.id + (f", {problem}" if problem else ""), "value": None, "confidence": sure})
    pair_of = {row["id"]: pair for row, pair in zip(rows, single, strict=True)}
    chosen = {name: _sorted(rows, name)[:_KEPT] for name in (SUREST, UNSURE, FIRST)}
    return {
        **_NOTHING,
        "unjudged": len(single) if task.form == PHRASE else len(pairs),
        "rows": {name: [_filled(task, *pair_of[row["id"]], row) for row in own] for name, own in chosen.items()},
    }


def _choices(task: DownstreamTask, group: TaskGroup, prediction: Prediction) -> Iterator[tuple[TaskGroup, Prediction]]:
    """The group; one of each context if it has choices in several, such as a rationale for each answer."""
    if task.form != CHOICE:
        yield group, prediction
        return
    contexts = [list(places) for _, places in groupby(range(len(group.rows)), lambda n: group.rows[n].parts[:-1])]
    for number, places in enumerate(contexts):
        name = group.id if len(contexts) == 1 else f"{group.id}, context {number + 1} of {len(contexts)}"
        first, last = places[0], places[-1] + 1
        yield (
            replace(group, id=name, rows=group.rows[first:last]),
            prediction._replace(scores=prediction.scores[first:last]),
        )


def _labelled_problem(
    task: DownstreamTask, pairs: Sequence[tuple[TaskGroup, Prediction]], problem: str
) -> dict[str, Any]:
    known, given = [group for group, _ in pairs], [each for _, each in pairs]
    measures = task.judge(known, given)
    main = _main(measures)
    best = _best_values(task, known, measures)
    if task.form == PHRASE:
        pairs = [each for pair in pairs for each in _phrases(task, *pair)]
    rows = [_row_facts(task, *pair, value) for pair, value in zip(pairs, main.values, strict=True)]
    for row in rows:
        row["id"] += f", {problem}" if problem else ""
    pair_of = {row["id"]: pair for row, pair in zip(rows, pairs, strict=True)}
    chosen = {name: _sorted(rows, name)[:_KEPT] for name in (BEST, WORST, CONFIDENT)}
    return {
        "measure": main.name,
        "judged": len(pairs),
        "sum": float(sum(main.values)),
        "best_sum": float(sum(best)),
        # Of labels the commonest of all parts is guessed: `chance_of` knows it.
        "chance_sum": 0.0 if task.form == LABEL or main.guess is None else len(pairs) * main.guess(),
        "unjudged": 0,
        "rows": {name: [_filled(task, *pair_of[row["id"]], row) for row in own] for name, own in chosen.items()},
    }


def _phrases(task: DownstreamTask, group: TaskGroup, prediction: Prediction) -> Iterator[tuple[TaskGroup, Prediction]]:
    """Each phrase of a caption as a row of its own, in the order in which phrases are judged. Its target is the box
    that a region covers best; None if unknown."""
    caption = group.rows[0].parts[0]
    boxes = np.zeros((0, 4)) if prediction.boxes is None else prediction.boxes
    rights = group.target if task.has_label(group) else [None] * len(group.facts["phrases"])
    for place, (phrase, right) in enumerate(zip(group.facts["phrases"], rights, strict=True)):
        overlaps = [_overlaps(boxes, each).max(initial=0.0) for each in (() if right is None else right)]
        text = TaskText((caption.text,)), TaskText((f"phrase: {phrase.text}",))
        yield (
            replace(
                group,
                id=f"{group.id}, phrase {place}",
                rows=(TaskRow(text),),
                target=None if right is None else right[int(np.argmax(overlaps))],
            ),
            Prediction(prediction.scores[place], prediction.boxes),
        )


def joined_parts(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {**_NOTHING, "rows": {}}
    for part in parts:
        for name in part["measure"].split(_AND):
            if name and name not in found["measure"].split(_AND):
                found["measure"] = _AND.join(each for each in (found["measure"], name) if each)
        for name in ("judged", "sum", "best_sum", "chance_sum", "unjudged"):
            found[name] += part[name]
        for name, rows in part["rows"].items():
            found["rows"][name] = _sorted([*found["rows"].get(name, ()), *rows], name)[:_KEPT]
    return found


def chance_of(task: DownstreamTask, groups: Sequence[TaskGroup], summary: Mapping[str, Any]) -> float:
    """Level of guessing of the main measure, 0..1, of labelled groups; 0 where it is not known."""
    judged = [group for group in groups if task.has_label(group)]
    if task.form != LABEL or not task.labels or not judged:
        return float(summary["chance_sum"]) / max(int(summary["judged"]), 1)
    guess = _main(task.judge(judged, [Prediction(np.zeros(len(task.labels), np.float32))] * len(judged))).guess
    return 0.0 if guess is None else guess()


def sections(summary: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Rows of each section of the page, none in two; sections take turns, so that few wrong rows are not all in one."""
    order = (BEST, WORST, CONFIDENT, SUREST, UNSURE, FIRST)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in order if name in summary["rows"]}
    seen: set[tuple[str, ...]] = set()  # two models of one question have rows of one id
    for _ in range(ROWS_OF_SECTION):
        for name in (each for each in (CONFIDENT, WORST, BEST, SUREST, UNSURE, FIRST) if each in found):
            row = next((each for each in summary["rows"][name] if (each["id"], *each["text"]) not in seen), None)
            if row is not None:
                found[name].append(row)
                seen.add((row["id"], *row["text"]))
    return found


def probability_of(task: DownstreamTask) -> str:
    """The function that makes the task's scores probabilities: "sigmoid" of each, or "softmax"."""
    return "sigmoid" if task.loss in _SIGMOID_LOSSES else "softmax"


def probabilities(task: DownstreamTask, scores: np.ndarray) -> np.ndarray:
    """(n,) float64, 0..1, as the task's loss reads its scores: each by itself, or all together."""
    values = np.asarray(scores, np.float64)
    if probability_of(task) == "sigmoid":
        return np.asarray(0.5 * (1 + np.tanh(values / 2)))
    powers = np.exp(values - values.max(initial=-np.inf))
    return np.asarray(powers / powers.sum()) if len(powers) else powers


def _best_values(task: DownstreamTask, groups: Sequence[TaskGroup], measures: Mapping[str, Any]) -> Sequence[float]:
    """The main measure of each group for a model that always predicts the best possible answer."""
    if UPPER_BOUND in measures:
        return list(measures[UPPER_BOUND].values)
    if task.form != LABEL or not task.labels:
        return [1.0] * len(groups)
    ideal = []
    for group in groups:
        scores, target = np.zeros(len(task.labels), np.float32), group.target
        shares = target if isinstance(target, Mapping) else {} if target is None else {target: 1.0}
        for place, value in shares.items():
            scores[place] = value
        ideal.append(Prediction(scores))
    return list(_main(task.judge(groups, ideal)).values)


def _main(measures: Mapping[str, Measure]) -> Measure:
    """The first measure that is a mean over rows."""
    return next(each for each in measures.values() if not isinstance(each, Whole))


def _row_facts(task: DownstreamTask, group: TaskGroup, prediction: Prediction, value: float) -> dict[str, Any]:
    """Sort keys of a row; `_filled` adds the rest to rows that are kept."""
    shares = probabilities(task, prediction.scores[_judged(task, group)[0]])
    right = _right_places(task, group, prediction)
    return {
        "id": group.id,
        "value": float(value),
        "confidence": float(shares.max(initial=0.0)),
        "right_share": float(max((shares[place] for place in right), default=0.0)),
    }


def _is_number(task: DownstreamTask) -> bool:
    """Whether the task is a regression."""
    return task.form == LABEL and not task.labels


def _sorted(rows: Iterable[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    if name == FIRST:
        return list(rows)
    if name == SUREST:
        return sorted(rows, key=lambda row: (-row["confidence"], row["id"]))
    if name == UNSURE:
        return sorted(rows, key=lambda row: (row["confidence"], row["id"]))
    if name == BEST:
        good = [row for row in rows if row["value"] > 0.5]
        return sorted(good, key=lambda row: (-row["value"], -row["confidence"], row["id"]))
    wrong = [row for row in rows if row["value"] < 0.5]
    if name == WORST:
        return sorted(wrong, key=lambda row: (row["value"], row["right_share"], row["id"]))
    return sorted(wrong, key=lambda row: (-row["confidence"], row["id"]))


def _judged(task: DownstreamTask, group: TaskGroup) -> tuple[slice, int | None]:
    """Slice of the scores that are judged, and for choices the number of the right one among them."""
    if task.form != CHOICE:
        return slice(None), None
    return (slice(None), group.target) if task.judged_rows is None else task.judged_rows(group)


def _right_places(task: DownstreamTask, group: TaskGroup, prediction: Prediction) -> list[int]:
    """Places of the right or best answers among the judged scores."""
    if task.form == CHOICE:
        right = _judged(task, group)[1]
        return [] if right is None else [right]
    if task.form == LABEL:
        if _is_number(task):
            return []
        if isinstance(group.target, Mapping):
            return [max(group.target, key=lambda place: group.target[place])] if group.target else []
        return [] if group.target is None else [int(group.target)]
    if prediction.boxes is None or not len(prediction.boxes):
        return []
    overlaps = _overlaps(prediction.boxes, np.asarray(group.target, np.float64))
    return [int(overlaps.argmax())] if overlaps.max() >= 0.5 else []


def _filled(task: DownstreamTask, group: TaskGroup, prediction: Prediction, row: dict[str, Any]) -> dict[str, Any]:
    """The row with everything that a page displays."""
    judged, _ = _judged(task, group)
    rows = group.rows[judged] if task.form == CHOICE else group.rows[:1]
    shares = probabilities(task, prediction.scores[judged])
    order = np.argsort(-shares, kind="stable")[:_TOP].tolist()
    is_judged = row["value"] is not None
    right = _right_places(task, group, prediction) if is_judged else []
    if _is_number(task):
        words = {0: f"{float(prediction.scores[0]):.2f}"}
    elif task.form == LABEL:
        words = {place: task.labels[place] for place in {*order, *right}}
    elif task.form == CHOICE:
        words = {place: rows[place].parts[-1].text for place in {*order, *right}}
    else:
        words = {place: f"region {place}" for place in {*order, *right}}
    context = rows[0].parts[:-1] if task.form == CHOICE else rows[0].parts
    right_words = task.right_words(group) if task.right_words is not None and is_judged else ""
    return {
        **row,
        "images": list(group.images),
        "text": [_short(part.text) for part in context],
        "said": _short(words[order[0]]) if order else "",
        "right": _short(right_words or ", ".join(words[place] for place in right)),
        "top": []
        if _is_number(task)
        else [[_short(words[place]), float(shares[place]), place in right] for place in order],
        "tags": _tags(rows, order[:1], right) if task.form == CHOICE else {},
        "boxes": _boxes(group, prediction, order, is_judged) if task.form not in (LABEL, CHOICE) else None,
    }


def _tags(rows: Sequence[TaskRow], *places: Iterable[int]) -> dict[str, str]:
    """Numbers of the boxes that the context, the choice and the right choice name, with their words."""
    found: dict[str, str] = {}
    for row in (rows[place] for chosen in places for place in chosen):
        for part in row.parts:
            for word, tag in zip(part.words, part.tags, strict=False):
                if tag >= 0:
                    found.setdefault(str(tag), _short(word))
    return found


def _boxes(group: TaskGroup, prediction: Prediction, order: Sequence[int], is_judged: bool) -> dict[str, Any]:
    boxes = np.zeros((0, 4)) if prediction.boxes is None else prediction.boxes
    right = [] if not is_judged or group.target is None else np.asarray(group.target, np.float64).tolist()
    return {"right": right, "candidates": [np.asarray(boxes[place], np.float64).tolist() for place in order]}


def _overlaps(boxes: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(n,) overlaps of boxes x1 y1 x2 y2 with the right one, for the page alone; metrics have their own."""
    both = np.minimum(boxes[:, 2:], right[2:]) - np.maximum(boxes[:, :2], right[:2])
    shared = both.clip(min=0).prod(axis=1)
    area = (boxes[:, 2:] - boxes[:, :2]).clip(min=0).prod(axis=1) + (right[2:] - right[:2]).clip(min=0).prod()
    return np.asarray(shared / np.maximum(area - shared, 1e-9))


def _short(text: str) -> str:
    return printable(text, _MOST_LETTERS)


_PREDICTED, _RIGHT, _QUIET, _NAMED = "#f3a800", "#2f9e5f", "#aeb6c2", "#4a7ab5"
_REGIONS = 6  # of a photo
_LEGENDS = {
    "regions": "Boxes: the predicted one, the right one where that is known, and the next best candidates.",
    "named": "Boxes: those that the texts name, with their numbers.",
    "best": "Boxes: the regions of the store that have the best scores.",
}
_TITLES = {
    BEST: ("Best", "right, and surest of it"),
    WORST: ("Worst", "wrong, with the least on what is right"),
    CONFIDENT: ("Most confidently wrong", "wrong, with the most on the prediction"),
    SUREST: ("Surest", "right answer not known, with the most on the prediction; of numbers the highest"),
    UNSURE: ("Least sure", "right answer not known, with the least on the prediction; of numbers the lowest"),
    FIRST: ("Others", "right answer not known, in the order of the file"),
}


def write_prediction_page(
    path: Path,
    title: str,
    summary: str,
    parts_summary: Mapping[str, Any],
    store: FeatureStore | None,
    *,
    facts: Sequence[tuple[str, str]] = (),
    remarks: Sequence[str] = (),
    banner: Banner | None = None,
) -> None:
    """Writes the page, whole or not at all; it stays below 2 MB.

    Args:
        parts_summary: of `joined_parts`.
        store: of the images, with the places of photos. None of a task of texts alone.
        facts: of the card, name and value.
        remarks: what a reader must not miss, such as images that were trained on.
        banner: why the regions mean nothing.
    """
    chosen = sections(parts_summary)
    photos = stored_photos(
        [] if store is None else [store],
        dict.fromkeys(image for rows in chosen.values() for r in rows for image in r["images"]),
    )

    def markup(row: Mapping[str, Any]) -> Markup:
        images = [] if store is None else list(_images(row, store, photos))
        choices = [
            ({"words": words, "is_right": is_right}, f"{100 * share:.1f} %") for words, share, is_right in row["top"]
        ]
        return rendered("prediction_row.html", row=row, choices=choices, images=images)

    kinds = dict.fromkeys(_kind(row) for rows in chosen.values() for row in rows if row["images"])
    page = rendered(
        "prediction.html", title=title, summary=[summary], warning=banner, remarks=remarks, facts=facts,
        legends=[_LEGENDS[kind] for kind in kinds],
        rows=page_sections([(*_TITLES[name], rows) for name, rows in chosen.items()], markup),
    )  # fmt: skip
    write_bytes_atomically(path, page.encode("utf-8"))


def _kind(row: Mapping[str, Any]) -> str:
    """Kind of the drawn boxes, a key of `_LEGENDS`."""
    return "regions" if row["boxes"] is not None else "named" if row["tags"] else "best"


def _images(
    row: Mapping[str, Any], store: FeatureStore, photos: Mapping[str, PhotoOrReason]
) -> Iterator[tuple[str, Markup, str]]:
    """Id and canvas of each image of a row, and why its photo is not there."""
    for number, image_id in enumerate(row["images"]):
        record = store.get(image_id, copy=False, check=True)
        jpeg, why = photos.get(image_id, (None, "the store has no such image"))
        if _kind(row) == "regions":
            boxes = _chosen_boxes(row)
        elif _kind(row) == "named":
            boxes = list(_named_boxes(row["tags"], record))
        else:
            boxes = list(_best_boxes(record, Names(store.vocabulary["classes"] or ())))
        described = f"image {number + 1} of {row['id']}, with {plural(len(boxes), 'box', 'boxes')}"
        canvas = box_canvas(boxes, (record.height, record.width), jpeg, description=described)
        yield image_id, canvas, why if jpeg is None else ""


def _chosen_boxes(row: Mapping[str, Any]) -> list[DrawnBox]:
    boxes, found = row["boxes"], []
    for place, box in enumerate(boxes["candidates"]):
        words, share, _ = row["top"][place]
        label = f"predicted, {100 * share:.0f} %" if place == 0 else ""
        colour = _PREDICTED if place == 0 else _QUIET
        described, line = f"{words}: {100 * share:.1f} %", 1.25 if place else 2.5
        found.append(DrawnBox(tuple(box), colour, label, described, is_quiet=place > 0, line=line))
    if boxes["right"]:
        found.insert(1, DrawnBox(tuple(boxes["right"]), _RIGHT, "right", "what is meant", line=2.5))
    return found


def _named_boxes(tags: Mapping[str, str], record: RegionRecord) -> Iterator[DrawnBox]:
    for tag, word in tags.items():
        if int(tag) < record.num_regions:
            yield DrawnBox(_corners(record, int(tag)), _NAMED, f"{word} ({tag})", f"box {tag}: {word}", line=2.0)


def _best_boxes(record: RegionRecord, names: Names) -> Iterator[DrawnBox]:
    for region in (-record.class_scores).argsort(kind="stable")[:_REGIONS].tolist():
        name = names.of_detector(int(record.class_ids[region]))
        yield DrawnBox(_corners(record, region), _NAMED, name, f"{name}, {float(record.class_scores[region]):.2f}")


def _corners(record: RegionRecord, region: int) -> tuple[float, float, float, float]:
    x1, y1, x2, y2 = record.boxes[region].tolist()
    return x1, y1, x2, y2
