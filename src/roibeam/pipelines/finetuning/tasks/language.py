"""Tasks of language: GLUE's texts without an image, and the phrases of captions (Flickr30k Entities).

GLUE is nine tasks of one or two texts. A row is [CLS] text [SEP], or [CLS] first [SEP] second [SEP]; the pooled [CLS]
is read. Each system reads it by its layers of text alone (`encode_text` of the models).

Entities has one group for each caption that has a phrase with a box; its target has for each phrase the boxes of its
chain. Phrases without a box are left out, and are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.messages import plural
from roibeam.pipelines.data.compatibility import check_choices, check_least
from roibeam.pipelines.data.datasets.entities import OWN, RELEASE, EntityCounts, EntityImage, read_entities, split_names
from roibeam.pipelines.data.datasets.text_sets import (
    GLUE_TASKS,
    MISMATCHED,
    GlueCounts,
    GlueTask,
    glue_files,
    read_glue,
)
from roibeam.pipelines.finetuning.metrics.glue import check_extra, measures_of, prediction_text, write_glue_results
from roibeam.pipelines.finetuning.metrics.grounding import (
    DATA_SPLITS,
    GROUNDING_RULES,
    CountedPhrase,
    GroundedPhrase,
    both_protocols,
    counted_phrases,
    covering,
    ranked,
)
from roibeam.pipelines.finetuning.metrics.measure import Measure, write_entries
from roibeam.pipelines.finetuning.rows import LABEL, PHRASE, TaskGroup, TaskRow, TaskText, text_row
from roibeam.pipelines.finetuning.task import (
    NUMBER_LOSS,
    DownstreamTask,
    NamedTask,
    Prediction,
    QuestionRows,
    TaskSplit,
    labelled_answers,
)

_DEV, _MISMATCHED = "dev", "mismatched"


@dataclass(frozen=True)
class GlueOptions:
    """
    Attributes:
        validation: split that judges a run: "dev", for MNLI its matched file; or for MNLI the "mismatched" one.
    """

    validation: str = _DEV

    def __post_init__(self) -> None:
        check_choices(self, validation=(_DEV, _MISMATCHED))


def glue_task(name: str) -> NamedTask:
    """The task of a name of `GLUE_TASKS`."""
    task = GLUE_TASKS[name]

    def open_task(folder: Path, options: GlueOptions, _labels: Sequence[str] | None) -> DownstreamTask:
        check_extra(task.name)

        def judge(groups: Sequence[TaskGroup], predictions: Sequence[Prediction]) -> Mapping[str, Measure]:
            return measures_of(task, _values(task, predictions), [group.facts["label"] for group in groups])

        def words(predictions: Iterable[Prediction]) -> list[str]:
            return [prediction_text(task, value) for value in _values(task, predictions)]

        return DownstreamTask(
            name=name,
            form=LABEL,
            loss="class" if task.labels else NUMBER_LOSS,
            read=_reader(task, folder),
            train="train",
            validation=MISMATCHED if options.validation == _MISMATCHED else task.validation,
            judge=judge,
            answers=labelled_answers(words),
            write=write_glue_results,
            labels=task.labels,
            num_images=0,
            splits=tuple(task.rows),
            right_words=lambda group: str(group.facts["label"]),
            directly=QuestionRows(lambda texts: text_row(*texts, images=()), words, len(task.texts)),
        )

    def check(options: GlueOptions) -> None:
        if options.validation == _MISMATCHED and MISMATCHED not in task.rows:
            raise ValueError(f"{name}.validation 'mismatched': MNLI alone has such a file; leave it at dev")

    return NamedTask(GlueOptions, open_task, check, reads_images=False)


def _values(task: GlueTask, predictions: Iterable[Prediction]) -> list[float]:
    """Numbers of the predicted labels, or similarities."""
    return [float(each.scores.argmax() if task.labels else each.scores[0]) for each in predictions]


def _reader(task: GlueTask, folder: Path) -> Callable[[str], TaskSplit]:
    places = {label: place for place, label in enumerate(task.labels)}

    def read(split: str) -> TaskSplit:
        files, counts = glue_files(folder, task, split), GlueCounts()
        groups = []
        for row in read_glue(files, task, split, counts):
            target: Any = None
            if row.label is not None:
                target = places[row.label] if places else float(row.label)
            groups.append(TaskGroup(row.id, (), (text_row(*row.texts, images=()),), target, facts={"label": row.label}))
        if not groups:
            raise ValueError(f"{str(files[0])!r}: no row in it")
        return TaskSplit(groups, files, tuple(counts.notes(split)))

    return read


NAME = "flickr30k-entities"
LOSSES = ("captions", "phrases")
ANY, MERGED = "any", "merged"


@dataclass(frozen=True)
class EntitiesOptions:
    """
    Attributes:
        place: of a phrase: that of its "own" mark; or where its words stand first in the caption ("release":
            VisualBERT, whose second "a man" lies upon the first).
        target: regions that are right: those that cover "any" box of the phrase (VisualBERT), or the one around all of
            them ("merged").
        heads: of the task's own attention: 1, as released, or several whose weights are averaged, as printed (12).
        loss: a mean over "captions", as published, or over "phrases" that any region covers.
    """

    place: str = OWN
    target: str = ANY
    heads: int = 1
    loss: str = "captions"

    def __post_init__(self) -> None:
        check_choices(self, place=(OWN, RELEASE), target=(ANY, MERGED), loss=LOSSES)
        check_least(self, heads=1)


def open_entities(folder: Path, options: EntitiesOptions, _labels: Sequence[str] | None) -> DownstreamTask:
    """Flickr30k Entities: Sentences/, Annotations/ and train.txt, val.txt, test.txt in `folder`."""

    def judge(groups: Sequence[TaskGroup], predictions: Sequence[Prediction]) -> Mapping[str, Measure]:
        return both_protocols(
            lambda rule: [replace(each, types=()) for each in _judged(groups, predictions, rule)], ANY
        )

    def answers(groups: Sequence[TaskGroup], predictions: Sequence[Prediction]) -> Iterator[dict[str, Any]]:
        for group, each in zip(groups, predictions, strict=True):
            assert each.boxes is not None
            image, _, number = group.id.rpartition("#")
            # All boxes for each phrase, the best first; the same float32 numbers as in the store.
            boxes = [each.boxes[ranked(scores.tolist())].tolist() for scores in _scores(group, each)]
            yield {"image_id": image, "sentence_id": int(number), "boxes": boxes}

    return DownstreamTask(
        name=NAME,
        form=PHRASE,
        loss=options.loss,
        read=lambda split: _read(folder, split, options),
        train="train",
        validation="val",
        judge=judge,
        answers=answers,
        write=write_entries,
        splits=DATA_SPLITS,
        num_heads=options.heads,
        reported_by="flickr30k",
    )


def _read(folder: Path, split: str, options: EntitiesOptions) -> TaskSplit:
    counts, names = EntityCounts(), split_names(str(folder), split)
    images = read_entities(str(folder), counts, names=names, rule=options.place)
    groups = list(entity_groups(images, options))
    if not groups:
        raise ValueError(f"--data {str(folder)!r}: no caption of {split} has a phrase with a box")
    left = counts.sentences - len(groups)
    notes = [f"{split}: {line}" for line in counts.lines()]
    notes += [f"{split}: {plural(left, 'caption')} without a phrase that has a box left out"] if left else []
    return TaskSplit(groups, (folder / f"{split}.txt",), tuple(notes))


def entity_groups(images: Iterable[EntityImage], options: EntitiesOptions) -> Iterator[TaskGroup]:
    for image in images:
        for (name, number), phrases in counted_phrases([image]).items():
            sentence = image.sentences[number]
            words = tuple(sentence.words)
            row = TaskRow((TaskText(words),), phrases=tuple(each.last_word for each in phrases))
            yield TaskGroup(
                id=f"{name}#{number}",
                images=(name,),
                rows=(row,),
                target=tuple(each.boxes for each in phrases),
                facts={"phrases": tuple(phrases), "rule": options.target},
            )


def _scores(group: TaskGroup, prediction: Prediction) -> np.ndarray:
    """(P, R) scores of a group's phrases. Raises ValueError for scores that are no numbers."""
    broken = int(np.isnan(prediction.scores).any(axis=-1).sum())
    if broken:
        raise ValueError(
            f"{group.id}: the model's scores are no numbers (NaN) for {broken} of its "
            f"{plural(len(prediction.scores), 'phrase')}; its weights or features are broken"
        )
    return prediction.scores


def _judged(groups: Sequence[TaskGroup], predictions: Sequence[Prediction], rule: str) -> Iterator[GroundedPhrase]:
    for group, each in zip(groups, predictions, strict=True):
        assert each.boxes is not None
        phrases: Sequence[CountedPhrase] = group.facts["phrases"]
        for phrase, scores in zip(phrases, _scores(group, each), strict=True):
            covers = covering(each.boxes[ranked(scores.tolist())], phrase.boxes, GROUNDING_RULES[rule])
            yield GroundedPhrase(group.images[0], phrase.types, covers)
