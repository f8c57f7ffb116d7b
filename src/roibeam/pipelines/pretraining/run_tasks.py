"""The tasks of a run on stores: what is trained, and what its evaluations ask about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roibeam.features.record.region_record import BOX_NUMBERS, RegionRecord
from roibeam.pipelines.analysis.evaluation.words_alone import HiddenWords
from roibeam.pipelines.data.captioned.captioned_store import JoinedSource
from roibeam.pipelines.data.captioned.store_classes import known_classes
from roibeam.pipelines.data.record_photos import RecordPhotos
from roibeam.pipelines.pretraining.budgeted_task import BudgetedTask
from roibeam.pipelines.pretraining.end_to_end.encoder_choice import row_sizes
from roibeam.pipelines.pretraining.end_to_end.end_to_end_task import EndToEndTask, TaskPhotos
from roibeam.pipelines.pretraining.end_to_end.labelled_photos import LabelledStream
from roibeam.pipelines.pretraining.run_data import RunData, corpus_of
from roibeam.pipelines.pretraining.run_frame import RunModel
from roibeam.pipelines.pretraining.samples.data_config import DataConfig
from roibeam.pipelines.pretraining.task import PretrainTask
from roibeam.pipelines.pretraining.token_budget import RowLengths, count_regions
from roibeam.pipelines.pretraining.validation import Search, Validation


@dataclass(frozen=True, eq=False)
class StoreTasks:
    """
    Attributes:
        trained: the model on all sources.
        validation: the same model on the held-out captions that evaluations ask about; None for none.
    """

    trained: PretrainTask | EndToEndTask
    validation: Validation | None

    def skipped(self) -> dict[str, str]:
        """Ids of the images that this process could not use so far, each with why."""
        found: dict[str, str] = {}
        for each in (self.trained, None if self.validation is None else self.validation.task):
            found |= each.skipped if isinstance(each, EndToEndTask) else {}
        return found

    def hidden_words(self) -> HiddenWords:
        """Those that the last evaluation, which there was, asked for."""
        found = (self.trained if self.validation is None else self.validation.task).hidden_words
        assert found is not None
        return found


def tasks_of(read: RunData, made: RunModel, data: DataConfig) -> StoreTasks:
    """
    Raises:
        ValueError: when model and data do not fit, see the tasks; or a search is asked for that the model cannot do.
    """
    validation = None
    if read.asked is not None:
        search = _search(read, read.asked, made, data)
        validated = _task(read, made, data, [read.asked], photos=read.asked_photos, options={})
        validation = Validation(validated, search)
    options: dict[str, Any] = {"lines": read.lines, "validation": validation}
    labelled = None
    if read.end_to_end is None:
        options["weights"] = [each.source.weight for each in read.joined if each.source.weight is not None] or None
    else:
        labelled = read.end_to_end.labelled_stream(seed=made.seed)
    trained = _task(read, made, data, read.joined, photos=read.photos, labelled=labelled, options=options)
    return StoreTasks(trained, validation)


def _task(
    read: RunData,
    made: RunModel,
    data: DataConfig,
    joined: Sequence[JoinedSource],
    *,
    photos: RecordPhotos | None,
    labelled: LabelledStream | None = None,
    options: Mapping[str, Any],
) -> PretrainTask | EndToEndTask:
    """The one task that fits what is trained: end to end, within a token budget, or neither."""
    corpus = corpus_of(joined)
    given: dict[str, Any] = {"pad_id": made.tokenizer.pad_id, "seed": made.seed, **options}
    if made.joint is not None and photos is not None and read.end_to_end is not None:
        sizes = row_sizes(joined[0].store, joined[0].rows)
        scale = read.end_to_end.encoder.learning_rate_scale
        task_photos = TaskPhotos(photos, sizes, read.end_to_end.photos, labelled, scale)
        return EndToEndTask(made.joint, corpus, made.sampler, task_photos, data, **given)
    if not data.max_tokens:
        return PretrainTask(made.model, corpus, made.sampler, data, **given)
    lengths = RowLengths(corpus, count_regions((each.store, each.rows) for each in joined), made.tokenizer)
    return BudgetedTask(made.model, corpus, made.sampler, data, lengths=lengths, **given)


def _search(read: RunData, asked: JoinedSource, made: RunModel, data: DataConfig) -> Search | None:
    """What evaluations search among; None where they search nothing."""
    if read.searched is None:
        return None
    first = read.searched.corpus.record(0)
    classes = known_classes(asked.store, first)
    is_wider = made.model.config.region_feature_size == first.features.shape[1] + BOX_NUMBERS
    search = Search(
        made.model, made.tokenizer, classes, read.searched, data.batch_size, made.joint, read.asked_photos,
        as_read=RegionRecord.with_box_numbers if is_wider else None,
    )  # fmt: skip
    search.check()
    return search
