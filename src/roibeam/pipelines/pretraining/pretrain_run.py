"""Pre-training run: stores and captions, or a text corpus, in; a run folder out.

caption rows x store -> join -> leak guard -> corpus -> a system's samples -> VLBatch -> model -> losses -> the loop
end to end: samples -> their photos -> masked pixels -> region encoder -> model, on the same loop
text alone: lines -> a system's rows of text -> VLBatch -> model -> masked words -> the loop
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from roibeam.features.record.region_record import BOX_NUMBERS, RegionRecord
from roibeam.pipelines.analysis.evaluation.evaluation_samples import region_objective
from roibeam.pipelines.common.compute import choose_device, is_main_process
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.data.captions.captioned_store import CaptionedStore, JoinedSource, LeakGuard
from roibeam.pipelines.data.record_photos import RecordPhotos
from roibeam.pipelines.data.record_regions import ImageObjects, check_whole_grid
from roibeam.pipelines.data.vocabulary import StoreClasses, known_classes
from roibeam.pipelines.pretraining.end_to_end_encoder import DetectorChange, EndToEnd, LabelledStream, row_sizes
from roibeam.pipelines.pretraining.end_to_end_task import EndToEndTask, TaskPhotos
from roibeam.pipelines.pretraining.recipes.named_systems import check_kinds, check_text_alone, text_alone_settings
from roibeam.pipelines.pretraining.run_data import RunData, Search, Validation, corpus_of, counts_of, gather
from roibeam.pipelines.pretraining.run_setup import PretrainResult, RunModel, RunSettings, RunSetup, log_notes
from roibeam.pipelines.pretraining.samples.sampler import TextCorpus
from roibeam.pipelines.pretraining.samples.sampling import DataConfig
from roibeam.pipelines.pretraining.systems import ModelChoice
from roibeam.pipelines.pretraining.task import BudgetedTask, PretrainTask, RowLengths, TextTask, count_regions
from roibeam.pipelines.training.encoder_change import EncoderChange
from roibeam.pipelines.training.hooks import TrainResult
from roibeam.pipelines.training.model_files.provenance import (
    TrainedWith,
    check_feature_space,
    check_object_classes,
    trained_with,
)
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer, unknown_notes
from roibeam.pipelines.training.run_folder.folder import defaults_of
from roibeam.pipelines.training.train_config import TrainConfig

AnyStoreTask = PretrainTask | EndToEndTask


def tasks_of(read: RunData, made: RunModel, data: DataConfig) -> tuple[AnyStoreTask, AnyStoreTask]:
    """The model on all sources, and on the captions that it is evaluated on: held-out ones, else the same."""
    validation = None
    if read.evaluated is not None:
        search = _search(read, read.evaluated, made, data)
        validated = _task(read, made, data, [read.evaluated], photos=read.evaluated_photos, options={})
        validation = Validation(validated, search)
    options: dict[str, Any] = {"lines": read.lines, "validation": validation}
    labelled = None
    if read.end_to_end is None:
        options["weights"] = [each.source.weight for each in read.joined if each.source.weight is not None] or None
    else:
        labelled = read.end_to_end.labelled_stream(seed=made.seed)
    trained = _task(read, made, data, read.joined, photos=read.photos, labelled=labelled, options=options)
    return trained, trained if validation is None else validation.task


def _task(
    read: RunData,
    made: RunModel,
    data: DataConfig,
    joined: Sequence[JoinedSource],
    *,
    photos: RecordPhotos | None,
    labelled: LabelledStream | None = None,
    options: Mapping[str, Any],
) -> AnyStoreTask:
    """The task for the run: end to end, within a token budget, or neither."""
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


def _search(read: RunData, evaluated: JoinedSource, made: RunModel, data: DataConfig) -> Search | None:
    """Images and captions for evaluations to search; None for no search."""
    if read.searched is None:
        return None
    first = read.searched.corpus.record(0)
    classes = known_classes(evaluated.store, first)
    is_wider = made.model.config.region_feature_size == first.features.shape[1] + BOX_NUMBERS
    search = Search(
        made.model, made.tokenizer, classes, read.searched, data.batch_size, made.joint, read.evaluated_photos,
        as_read=RegionRecord.with_box_numbers if is_wider else None,
    )  # fmt: skip
    search.check()
    return search


logger = logging.getLogger(__name__)


def pretrain(
    sources: Sequence[CaptionedStore],
    run_dir: Path,
    settings: RunSettings,
    choice: ModelChoice | None = None,
    *,
    text_files: Sequence[Path] = (),
    guard: LeakGuard | None = None,
    end_to_end: EndToEnd | None = None,
    validation: CaptionedStore | None = None,
    num_classes: int | None = None,
    objects: Sequence[str] = (),
) -> PretrainResult:
    """Pre-trains a model on stores with captions, and writes a run folder.

    Args:
        sources: one, or several of one `Fingerprint.meaning`, in the order that a resumed run has too.
        choice: None for a small VL-BERT with new weights.
        text_files: of a text corpus, for a system that reads text alone too; see `TextCorpus`.
        end_to_end: trains through a region encoder, on photos; None trains on the stored features.
        validation: held-out captions for evaluations; their images are not trained on. None takes the first
            captions that are trained on.
        num_classes: foreground classes of the detector, for stores that do not record it; None: as recorded.
        objects: files with the classes and outlines of the regions, see `ImageObjects`.
    Raises:
        ValueError: if inputs or settings do not fit, with the remedy.
    """
    run = RunSetup.opened(run_dir, settings, choice or ModelChoice())
    read = gather(
        sources,
        choice=run.choice,
        sampling=run.settings.sampling,
        data=run.settings.data,
        text_files=text_files,
        guard=guard,
        end_to_end=end_to_end,
        validation=validation,
        objects=objects,
    )
    read = _with_data_notes(read, run.choice)
    known = _known_classes(read, run, num_classes)
    config = run.train_config(len(corpus_of(read.joined)))
    tokenizer, unknown = run.tokenizer(read.texts_by_source())
    unknown += _unknown_in_validation(read, tokenizer)
    run.note_trained_images(read.trained_keys())
    made = _model(run, read, tokenizer, config, known, num_classes=num_classes)
    read = dataclasses.replace(read, notes=[*read.choices, *read.notes, *unknown, *made.notes])
    trained, evaluated = tasks_of(read, made, run.settings.data)
    of_detector, of_encoder = _changes(run, read, made, config)
    run.write_first_batch(trained, made, config, [each.store for each in read.joined], of_encoder)
    if of_detector is not None:
        of_detector.before()
    training = _train(run, read, made, trained, config, text_files)
    with waiting("evaluating"):
        evaluation = training.evaluation or trained.evaluate()
    detector, encoder = (None if each is None else each.after() for each in (of_detector, of_encoder))
    left_out = dict(read.missing)
    for task in (trained, evaluated):
        left_out |= task.skipped if isinstance(task, EndToEndTask) else {}
    basis = (
        "the first captions trained on, with other masks" if read.evaluated is None else counts_of(read.evaluated.rows)
    )
    return run.write_results(
        training,
        evaluation,
        evaluated,
        made,
        [column for _, column in read.texts_by_source()],
        of=basis,
        held_out=read.evaluated is not None,
        sources=tuple(read.joined),
        notes=read.notes,
        left_out=left_out,
        detector=detector,
        encoder=encoder,
    )


def _train(
    run: RunSetup, read: RunData, made: RunModel, task: AnyStoreTask, config: TrainConfig, text_files: Sequence[Path]
) -> TrainResult:
    data, sampling = run.settings.data, run.settings.sampling
    # Held-out captions are recorded by their digest; settings of evaluation change no weight.
    of_data = {name: value for name, value in asdict(data).items() if not name.startswith("validation_")}
    sections = {"model": made.model.config, "data": data, "sampling": sampling}
    sections |= {} if read.end_to_end is None else {"photos": read.end_to_end.photos}
    described = run.described(task, made, data=of_data, sampling=asdict(sampling))
    return run.train(
        task,
        config,
        description=described | read.described(),
        defaults={name: defaults_of(each) for name, each in sections.items()},
        recorded={**read.recorded(), "text_files": [str(file) for file in text_files]},
    )


def _with_data_notes(read: RunData, choice: ModelChoice) -> RunData:
    """Adds the allowed differences from the features that the model was trained on or the recipe needs; ValueError for
    others. Notes on the data are logged before the first step, since a run may be stopped."""
    if choice.start is not None:
        allowed = check_feature_space(choice.start, read.store, reads_classes=True)
        read = dataclasses.replace(read, choices=[*allowed, *read.choices])
        check_object_classes(choice.start, () if read.objects is None else read.objects.class_names)
    if choice.features is not None:
        boxes_alone = read.end_to_end is not None
        others = [
            choice.features.note(choice.recipe, str(each.store.path), each.store.fingerprint, boxes_alone=boxes_alone)
            for each in read.joined
        ]
        read = dataclasses.replace(read, choices=[*(note for note in others if note is not None), *read.choices])
    log_notes([*read.choices, *read.notes])
    return read


def _unknown_in_validation(read: RunData, tokenizer: CaptionTokenizer) -> list[str]:
    """Notes of unknown words in held-out captions; logged."""
    if read.evaluated is None:
        return []
    notes = unknown_notes(tokenizer, read.evaluated.source.where, read.evaluated.rows.captions, stops=False)
    prefixed = read.evaluated.prefixed(notes)
    log_notes(prefixed)
    return prefixed


def _known_classes(read: RunData, run: RunSetup, num_classes: int | None) -> StoreClasses:
    """Classes of the stores' regions. ValueError, before the run writes anything, if settings need what stores lack."""
    stores = [*read.joined, *([] if read.evaluated is None else [read.evaluated])]
    for each in stores:
        check_whole_grid(each.store, getattr(run.settings.sampling, "max_regions", 0), "sampling.max_regions")
    known, first = StoreClasses(None), corpus_of(read.joined).record(0)
    if run.choice.system.class_objective is not None:
        known = StoreClasses.of(((each.store, corpus_of([each]).record(0)) for each in stores), num_classes)
    if read.end_to_end is not None:
        read.end_to_end.check_width(first)
    run.choice.class_choice(known, width=first.features.shape[1], given=num_classes)
    return known


@waiting("building the model")
def _model(
    run: RunSetup, read: RunData, tokenizer: CaptionTokenizer, config: TrainConfig, known: StoreClasses, *,
    num_classes: int | None,
) -> RunModel:  # fmt: skip
    """The model to train, as the data require."""
    first = corpus_of(read.joined).record(0)
    if read.end_to_end is not None:
        read.end_to_end.encoder.check_rates(config.parameter_groups)
    made = run_model(
        run.choice,
        run.settings.sampling,
        tokenizer,
        width=first.features.shape[1],
        known=known,
        num_classes=num_classes,
        reads_texts=read.texts is not None,
        objects=read.objects,
        end_to_end=read.end_to_end,
        seed=config.seed,
    )
    for note in made.notes:
        logger.info("%s", note)
    objective = region_objective(made.model.config)
    if objective is not None and objective.loss in ("kl", "cross entropy") and first.class_distribution is None:
        hard = f"{read.store.path} has no probabilities of all classes: the loss trains on each region's best class"
        log_notes([hard])
        made = dataclasses.replace(made, notes=(*made.notes, hard))
    cuts = run.choice.system.notes_of_cuts(made.sampler, corpus_of(read.joined))
    log_notes(cuts)
    return dataclasses.replace(made, notes=(*made.notes, *cuts))


def run_model(
    choice: ModelChoice,
    sampling: Any,
    tokenizer: CaptionTokenizer,
    *,
    width: int,
    known: StoreClasses,
    num_classes: int | None = None,
    reads_texts: bool = False,
    objects: ImageObjects | None = None,
    end_to_end: EndToEnd | None = None,
    seed: int = 0,
) -> RunModel:
    """The model of a run with its rules and its encoder. The random state of torch follows from the seed from here on.

    Args:
        width: D of the store's features.
        reads_texts: whether rows of text alone are mixed in.
        objects: region classes and outlines for the model to read; None for none.
    """
    system, classes = choice.system, choice.class_choice(known, width=width, given=num_classes)
    torch.manual_seed(seed)
    num_objects = 0 if objects is None else len(objects.class_names)
    fields = {
        "region_feature_size": system.feature_width(sampling, width),
        **classes.fields,
        **({} if objects is None and choice.start else system.object_fields(sampling, num_objects)),
        **((system.text_only_fields or {}) if reads_texts else {}),
    }
    if end_to_end is not None:
        preset = getattr(choice.build_config, "fields", {})  # its fields hold end to end too
        fields |= {name: value for name, value in system.end_to_end_fields.items() if name not in preset}
    model: Any = choice.model(fields, vocab_size=tokenizer.vocab_size, changes=classes.changes)
    options: dict[str, Any] = {} if objects is None else {"objects": objects}
    sampler = system.sampler(sampling, tokenizer, model.config, num_classes=classes.number, **options)
    joint, heads = (None, None) if end_to_end is None else end_to_end.build_joint(model, seed=seed)
    notes = (classes.note,) if classes.note else ()
    return RunModel(model, tokenizer, sampler, classes.number, seed, joint, heads, notes)


def _changes(
    run: RunSetup, read: RunData, made: RunModel, config: TrainConfig
) -> tuple[DetectorChange | None, EncoderChange | None]:
    """Evaluation of the detector before and after, if configured, in the main process of an end-to-end run; and
    measurement of how far the encoder moves."""
    if read.end_to_end is None or made.joint is None or not is_main_process():
        return None, None
    of_encoder = EncoderChange(run.run_dir, made.joint, read.end_to_end.weights)
    if made.heads is None:
        return None, of_encoder
    device = choose_device(config.device).name
    return read.end_to_end.detector_change(run.run_dir, made.joint, made.heads, device=device), of_encoder


def pretrain_on_text(
    text_files: Sequence[Path], run_dir: Path, settings: RunSettings, choice: ModelChoice | None = None
) -> PretrainResult:
    """Pre-trains a model on the words of a text corpus, and writes a run folder.

    The image parts of the model are made and learn nothing, but have weight decay. A run on images that continues this
    one has its feature width and region labels, so give those of its store (`ModelChoice.overrides`).

    Args:
        text_files: see `TextCorpus`.
        settings: `train_config` may be made from the number of lines, each of which begins one row an epoch;
            `data.batch_size` counts rows.
        choice: None for a small VL-BERT with new weights.
    """
    run = RunSetup.opened(run_dir, settings, choice or ModelChoice())
    check_kinds(run.choice.system, num_stores=0, has_text_corpus=True)
    check_text_alone(run.choice.system, run.settings.data, run.settings.sampling)
    texts = TextCorpus(text_files)
    config = run.train_config(len(texts.lines))
    tokenizer, unknown = run.tokenizer([("the text corpus", texts.lines)])
    log_notes(texts.notes)
    notes = [*texts.notes, *unknown]
    run.note_trained_images(())
    torch.manual_seed(config.seed)
    system, start = run.choice.system, run.choice.start
    # A later stage on images is compared with these features and classes of an earlier one.
    before = TrainedWith() if start is None else trained_with(start)
    reads_text = system.text_only_fields or {}
    model: Any = run.choice.model(reads_text, vocab_size=tokenizer.vocab_size, changes=reads_text)
    num_classes = model.config.num_region_labels - 1
    sampler: Any = system.sampler(run.settings.sampling, tokenizer, model.config, num_classes=num_classes)
    made = RunModel(model, tokenizer, sampler, num_classes, config.seed)
    task = TextTask(model, texts.lines, sampler, run.settings.data, pad_id=tokenizer.pad_id, seed=config.seed)
    run.write_first_batch(task, made, config)
    data = text_alone_settings(run.settings.data)
    sampling = {name: getattr(run.settings.sampling, name) for name in system.text_only_sampling}
    features = {} if before.feature_space is None else {"feature_space": before.feature_space}
    training = run.train(
        task,
        config,
        description=run.described(task, made, data=data, sampling=sampling) | {"text_corpus": texts.digest} | features,
        recorded={
            "notes": notes,
            "text_files": [str(file) for file in text_files],
            "classes": before.classes,
            **({"features": [each.to_json() for each in before.features]} if before.features else {}),
        },
    )
    evaluation, basis = training.evaluation or task.evaluate(), "the first rows of text trained on, with other masks"
    results = training, evaluation, task, made, [texts.lines]
    return run.write_results(*results, of=basis, held_out=False, sources=(), notes=notes)
