"""Fine-tuned model in Python: texts and regions in, labels out, without the files of its task."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.messages import check_list, plural
from roibeam.pipelines.finetuning.rows import LABEL, TaskGroup
from roibeam.pipelines.finetuning.run.group_task import predicted
from roibeam.pipelines.finetuning.run.predict_request import reads_photos, task_checkpoint
from roibeam.pipelines.finetuning.run.predict_run import TrainedTask
from roibeam.pipelines.finetuning.task import QuestionRows
from roibeam.pipelines.training.model_files.provenance import check_feature_space
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer
from roibeam.pipelines.training.run_folder.folder import saved_config

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskAnswer:
    """
    Attributes:
        label: as `roibeam predict` would write it.
        scores: of every label, the best first, as the model gives them: no probabilities. () of a task whose answer is
            a number.
    """

    label: str
    scores: Mapping[str, float]


class LoadedTaskModel:
    """A fine-tuned model with the settings of its run; `load_task_model` reads one.

    Attributes:
        model: in evaluation mode, on the CPU; it may be moved to another device.
        labels: of its answers; () of a task whose answer is a number.
        system: name of the pre-trained model's system.
    """

    def __init__(self, trained: TrainedTask, directly: QuestionRows, tokenizer: CaptionTokenizer) -> None:
        self._trained, self._directly = trained, directly
        self.model: nn.Module = trained.network.module.eval()
        self.tokenizer = tokenizer
        self.labels, self.task, self.system = trained.task.labels, trained.task.name, trained.system.name
        self.num_texts, self.num_images = directly.num_texts, trained.task.num_images
        self.source = trained.found.source

    def __repr__(self) -> str:
        labels = plural(len(self.labels), "label")
        return f"LoadedTaskModel({self.task}, {self.system}, {labels}, from {str(self.source)!r})"

    def check_store(self, store: FeatureStore) -> list[str]:
        """Checks that a store has features such as the model was trained on. A record does not know its store.

        Returns:
            Notes on allowed differences, for people.
        Raises:
            ValueError: when its features or its classes mean something else.
        """
        return check_feature_space(self._trained.found, store)

    def answer(
        self,
        texts: Sequence[str | Sequence[str]],
        regions: Sequence[RegionRecord | Sequence[RegionRecord]] = (),
        *,
        batch_size: int = 64,
    ) -> list[TaskAnswer]:
        """The answer to each question, with the numbers of `roibeam predict`. A text too long is cut, with a warning.

        Args:
            texts: one text of each question; of two texts both of them.
            regions: of the image of each question, as of a store or `extract_regions`; of two images both of them; ()
                for texts alone. The model reads those that the run's layout chooses.
            batch_size: questions at once.
        Raises:
            ValueError: for numbers of texts or images that are not the task's, and features of another width.
        """
        check_list(texts, "texts")
        records: dict[str, RegionRecord] = {}
        groups = [
            self._group(place, text, (given,) if isinstance(given, RegionRecord) else given, records)
            for place, (text, given) in enumerate(zip(texts, self._checked_regions(texts, regions), strict=True))
        ]
        trained = self._trained
        batches = trained.batches(records if self.num_images else None, self.tokenizer)
        for group in groups if self.num_images else ():
            batches.check(group)
        for note in batches.notes_of_cuts(groups, "input"):
            logger.warning("%s", note)
        predictions = list(predicted(self.model, batches, groups, trained.output.form, batch_size))
        answers = []
        for label, each in zip(self._directly.labels_of(predictions), predictions, strict=True):
            scores = zip(self.labels, each.scores.tolist(), strict=False)
            answers.append(TaskAnswer(label, dict(sorted(scores, key=lambda pair: -pair[1]))))
        return answers

    def _checked_regions(self, texts: Sequence[Any], regions: Sequence[Any]) -> Sequence[Any]:
        if not self.num_images:
            if regions:
                raise ValueError(f"{self.task} is a task of texts alone and shows no image; leave regions out")
            return [()] * len(texts)
        if len(regions) != len(texts):
            raise ValueError(f"{plural(len(texts), 'text')} and regions of {len(regions)}; each question has its own")
        return regions

    def _group(
        self, place: int, text: str | Sequence[str], given: Sequence[RegionRecord], records: dict[str, RegionRecord]
    ) -> TaskGroup:
        """One question; its images are added to `records`."""
        parts = (text,) if isinstance(text, str) else tuple(text)
        for found, wanted, what in ((parts, self.num_texts, "text"), (given, self.num_images, "image")):
            if len(found) != wanted:
                raise ValueError(
                    f"question {place}: {plural(len(found), what)}; {self.task} has {plural(wanted, what)}"
                )
        names = tuple(f"question {place}, image {number}" for number in range(len(given)))
        records.update(zip(names, given, strict=True))
        return TaskGroup(f"question {place}", names, (self._directly.row(parts),), None)


def load_task_model(folder: str | Path, *, task: str | None = None) -> LoadedTaskModel:
    """A fine-tuned model of a task of one label: vqa, labels, nlvr2, GLUE, or one's own of `label_task`.

    Args:
        folder: a run of `roibeam finetune` (its checkpoint as `predict` takes it; of several seeds the best run's), or
            one of its checkpoints.
        task: file of a task of one's own, which is run; None for a task that roibeam has.
    Raises:
        ValueError: for a folder that is no run, a damaged one, a model that was trained from photos, and for tasks that
            only `roibeam predict` can predict.
    """
    found = task_checkpoint(Path(folder).expanduser())
    described = saved_config(found.source.parent)["task"]
    instead = f"use roibeam predict, in Python roibeam.pipelines.run_prediction (task {described['task']})"
    if described["form"] != LABEL:
        raise ValueError(f"{folder}: its task chooses among choices or regions of its files; {instead}")
    if reads_photos(found):
        raise ValueError(f"{folder}: trained end to end, it reads photos of a store; {instead}")
    trained = TrainedTask.read(found, found.source, task)  # labels are known: no file of the task is read
    if trained.task.directly is None:
        raise ValueError(f"{folder}: its task has no rows of single questions; {instead}")
    return LoadedTaskModel(trained, trained.task.directly, trained.tokenizer())
