"""Run of a request, or of several in a row: `roibeam pretrain` without the command line.

request -> recipe, system, settings, start -> stores and captions, opened -> `pretrain` -> result

Its photos and encoder become one `EndToEnd`. Each of several stages continues with the weights of the one before, in
one run folder.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from roibeam.extraction.network.conventions import Conventions
from roibeam.features.reading.temporary_copy import unfinished_lines
from roibeam.features.store import FeatureStore
from roibeam.model.common.fields import EndToEndChoices
from roibeam.pipelines.common.compute import is_main_process
from roibeam.pipelines.common.console.overrides import apply_overrides
from roibeam.pipelines.data.captions.captioned_store import (
    OWN_CAPTIONS,
    GivenStores,
    GivenValidation,
    LeakGuard,
    check_pair_agrees,
)
from roibeam.pipelines.data.captions.task_texts import TaskTexts, check_given_boxes
from roibeam.pipelines.data.compatibility import MIN_MATCH
from roibeam.pipelines.data.held_out import HeldOut
from roibeam.pipelines.data.labelled_photos import look_once, open_labelled_photos
from roibeam.pipelines.data.vocabulary import Vocabulary
from roibeam.pipelines.pretraining.checked_request import NO_BERT, RequestedStage, check_request, requests_of
from roibeam.pipelines.pretraining.end_to_end_encoder import DetectorPart, EndToEnd, JudgedPhotos
from roibeam.pipelines.pretraining.pretrain_run import pretrain, pretrain_on_text
from roibeam.pipelines.pretraining.recipes.named_systems import DEFAULT_SIZE, model_size
from roibeam.pipelines.pretraining.recipes.recipe import ModelFields, Recipe
from roibeam.pipelines.pretraining.request import PretrainRequest, RequestedData, RequestedEncoder, RequestedModel
from roibeam.pipelines.pretraining.requested_settings import (
    APPEARANCE,
    OF_MODEL,
    OF_TRAIN,
    chosen_system,
    default_sections,
    encoder_of,
    model_overrides,
    recipe_of,
    recorded_masking,
    recorded_recipe_notes,
    sections_of_encoder,
    train_config_of,
    with_masking,
)
from roibeam.pipelines.pretraining.run_setup import PretrainResult, RunSettings
from roibeam.pipelines.pretraining.samples.sampling import DataConfig
from roibeam.pipelines.pretraining.systems import ModelChoice, System, system_named
from roibeam.pipelines.training.model_files.encoder_settings import chosen_encoder, encoder_at_start
from roibeam.pipelines.training.model_files.joint_checkpoint import (
    JointCheckpoint,
    JointDetector,
    load_model_or_joint,
    region_encoder_of,
)
from roibeam.pipelines.training.model_files.model_checkpoint import ModelCheckpoint
from roibeam.pipelines.training.model_files.model_start import read_bert
from roibeam.pipelines.training.run_folder.report_page import write_stages_page
from roibeam.pipelines.training.run_folder.stages import StagedRun


def encoder_sections(
    spec: RequestedEncoder, whole_image: str, start: ModelCheckpoint | None, recipe: Recipe | None = None
) -> dict[str, Any]:
    """The sections of `--set` with their defaults: those of the run that this one continues, if any."""
    own = region_encoder_of(start.joint) if isinstance(start, JointCheckpoint) else None
    sizes, options = encoder_at_start(spec, own, None if start is None else start.source)
    choices = start.joint.choices if isinstance(start, JointCheckpoint) else EndToEndChoices(whole_image=whole_image)
    return sections_of_encoder(spec, sizes, options, choices, recipe)


def requested_encoder(spec: RequestedEncoder, sections: Mapping[str, Any], start: ModelCheckpoint | None) -> EndToEnd:
    chosen = {"choices": sections["end_to_end"], "photos": sections["photos"], "encoder": sections["encoder"]}
    config = sections["detector"]
    if not isinstance(start, JointCheckpoint):
        encoder = chosen_encoder(spec)
        part = _detector_part(
            spec, sections, Vocabulary(encoder.class_names, encoder.attribute_names), encoder.conventions
        )
        return EndToEnd(config, encoder.conventions, encoder.weights, spec.photos, detector=part, **chosen)
    own, names = region_encoder_of(start.joint), Vocabulary()
    if isinstance(start.joint, JointDetector):
        names = Vocabulary(start.joint.class_names, start.joint.attribute_names or None)
    part = _detector_part(spec, sections, names, own.conventions)
    if part is not None and isinstance(start.joint, JointDetector):
        part = replace(part, start=start.joint.detection)
    if part is not None and part.start is None and part.rules.heads == "weights":
        raise ValueError(
            f"{start.source} has no detector's heads: it was trained without --labels; "
            f"--set labelled.heads=new draws heads for the labels"
        )
    return EndToEnd(config, own.conventions, str(start.source), spec.photos, start=own, detector=part, **chosen)


def _detector_part(
    spec: RequestedEncoder, sections: Mapping[str, Any], vocabulary: Vocabulary, conventions: Conventions
) -> DetectorPart | None:
    judged = labelled = None
    exif = conventions.exif_orientation
    if spec.judge_labels is not None:
        photos = open_labelled_photos(spec.judge_labels, image_root=spec.judge_photos, vocab=spec.labels_vocab)
        photos = look_once(
            photos.once(), exif, is_trained_on=False, option="--judge-photos", most=spec.max_judge_images
        )
        judged = JudgedPhotos(photos, spec.max_judge_images)
    if spec.labels is not None:
        labelled = open_labelled_photos(spec.labels, image_root=spec.labels_photos, vocab=spec.labels_vocab)
        labelled = look_once(labelled, exif, is_trained_on=True, option="--labels-photos")
    if labelled is None:
        return None if judged is None else DetectorPart(None, judged, vocabulary=vocabulary)
    return DetectorPart(
        labelled,
        judged,
        sections["labelled"],
        sections["detection"],
        sections["detection_sampling"],
        sections["detection_losses"],
        vocabulary,
    )


logger = logging.getLogger(__name__)


def run_pretraining(request: PretrainRequest) -> PretrainResult:
    """Runs a request, and writes the run folder.

    A recipe that continues another one needs `from_run`; `run_stages` runs both. A ValueError names the command's
    option, with the remedy.
    """
    check_request(request)
    settings, choice, encoder = requested_parts(request)
    if not request.data.store:
        return pretrain_on_text(request.data.text_corpus, request.out, settings, choice)
    return _pretrain_on_stores(request, settings, choice, HeldOut(request.data.held_out), encoder)


def requested_parts(request: PretrainRequest) -> tuple[RunSettings, ModelChoice, EndToEnd | None]:
    """The training settings, the model and, end to end, the encoder of a run. The data are not read."""
    spec, training = request.model, request.training
    recipe = recipe_of(request)
    system, build = _system(request, recipe)
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    sections = default_sections(request, recipe, system.sampling)
    start = None if spec.from_run is None else load_model_or_joint(spec.from_run)
    for note in () if start is None else start.changes:
        logger.warning("%s: %s", spec.from_run, note)
    if request.end_to_end and not isinstance(start, JointCheckpoint):
        request = replace(request, encoder=encoder_of(request, recipe))
    request = with_masking(request, recipe, system)
    for note in _recorded_notes(request, recipe, system) if is_main_process() else ():
        logger.warning("%s", note)
    training = request.training
    if request.end_to_end:
        sections |= encoder_sections(request.encoder, system.whole_image, start, recipe)
    elif isinstance(start, JointCheckpoint):
        raise ValueError(
            f"--from-run {spec.from_run} was trained end to end: its encoder goes on with it, --end-to-end"
        )
    with_sections = [each for each in training.settings if not each.startswith((OF_MODEL, OF_TRAIN))]
    sections = apply_overrides(sections, with_sections)
    train_config = train_config_of(request, recipe)
    train_config(1)  # errors in --set come before anything is read
    overrides = model_overrides(training.settings)
    if recipe is not None and spec.from_run is not None:
        overrides = {**recipe.changes, **overrides}
    from_bert = _bert(spec, recipe)
    encoder = requested_encoder(request.encoder, sections, start) if request.end_to_end else None
    settings = RunSettings(
        train_config,
        data=sections["data"],
        sampling=sections["sampling"],
        inspect_rows=training.inspect_batch,
        resume=training.resume_choice,
    )
    own_tokenizer = None if start is None or start.tokenizer is None else str(start.tokenizer)
    choice = ModelChoice(
        system=system,
        build_config=build,
        overrides=overrides,
        tokenizer_spec=spec.tokenizer or own_tokenizer or from_bert or "captions",
        bert=None if from_bert is None else read_bert(from_bert),
        start=start,
        background=spec.background,
        recipe=spec.recipe or "",
        features=None if recipe is None or spec.toy else recipe.features,
    )
    return settings, choice, encoder


def _pretrain_on_stores(
    request: PretrainRequest, settings: RunSettings, choice: ModelChoice, rules: HeldOut, encoder: EndToEnd | None
) -> PretrainResult:
    data = request.data
    texts = TaskTexts(data.task_text) if data.task_text else None
    given = GivenStores(
        data.store, data.captions, data.store_weight, texts=texts, checksums=data.checksums,
        caption_column=data.caption_column,
    )  # fmt: skip
    validated = GivenValidation(data.validation_captions, data.validation_store, caption_column=data.caption_column)
    min_match = MIN_MATCH if data.min_match is None else data.min_match
    with (
        given.opened(data.cache_dir, data.cache_gb, images_of=data.numbers_of, min_match=min_match) as sources,
        validated.opened(sources[0], images_of=data.numbers_of, min_match=min_match) as evaluated,
    ):
        read = [each.store for each in (*sources, evaluated) if each is not None]
        for line in unfinished_lines(dict.fromkeys(read)) if is_main_process() else ():
            logger.warning("%s", line)
        return pretrain(
            sources,
            request.out,
            settings,
            choice,
            text_files=data.text_corpus,
            guard=LeakGuard(rules, data.drop_held_out) if data.held_out else None,
            end_to_end=encoder,
            validation=evaluated,
            num_classes=data.num_classes,
            objects=data.objects,
        )


def _system(request: PretrainRequest, recipe: Recipe | None) -> tuple[System, ModelFields]:
    """The system, and its model's configuration."""
    spec, name = request.model, chosen_system(request)
    if recipe is not None:
        return system_named(name), recipe.toy_build if spec.toy else recipe.build
    return system_named(name), model_size(name, spec.model or DEFAULT_SIZE)


def _recorded_notes(request: PretrainRequest, recipe: Recipe | None, system: System) -> list[str]:
    """Notes that the run in the folder keeps its recorded settings: from before its recipe's masking was kept end to
    end, or of another recipe of that name."""
    notes = recorded_recipe_notes(request)
    recorded = recorded_masking(request.out).get(APPEARANCE) if request.end_to_end else None
    published = system.masking.get(recipe.masking) if recipe is not None else None
    if recorded is None or published in (None, recorded) or f"{APPEARANCE}={recorded}" not in request.training.settings:
        return notes
    return [
        *notes,
        f"{request.out} goes on as it began, with {APPEARANCE}={recorded}; {request.model.recipe} has {published}: for "
        f"that, begin a new run",
    ]


def _bert(spec: RequestedModel, recipe: Recipe | None) -> str | None:
    """Location of the BERT that the model starts from; None for new weights, or for those of a run."""
    if spec.from_bert is not None:
        return None if spec.from_bert == NO_BERT else spec.from_bert
    published = recipe is not None and not spec.toy and spec.from_run is None and recipe.start
    return f"hf:google-bert/{published}" if published else None


def run_stages(
    out: Path,
    stages: Sequence[RequestedStage],
    *,
    resume: bool | None = None,
    tell: Callable[[PretrainRequest, PretrainResult], None] = lambda _request, _result: None,
) -> None:
    """Runs the stages into folders of `out`, each from the weights of the one before. Known faults of later stages are
    errors before the first one has trained.

    Args:
        resume: of every stage, in place of its request's.
        tell: called with the request and the result of each stage that ran.
    """
    run = StagedRun(out, [stage.options for stage in stages])
    done = {number for number in range(1, len(stages) + 1) if resume is not False and run.is_done(number)}
    _check_ahead(stages, done, run.folder)
    if is_main_process():
        run.save()
    for number, stage in enumerate(stages, start=1):
        folder = run.folder(number)
        if number in done:
            logger.info("%s is done: %s", stage.title(number, of=len(stages)), folder)
            continue
        logger.info("%s", stage.title(number, of=len(stages)))
        try:
            training = replace(stage.request.training, resume=resume, resume_from=None)
            request = replace(stage.request, out=folder, training=training)
            if number > 1:
                request = replace(request, model=replace(request.model, from_run=str(run.folder(number - 1))))
            tell(request, run_pretraining(request))
        finally:
            if is_main_process():
                write_stages_page(out, [each.name for each in stages])
        if is_main_process():
            run.mark_done(number)


def _check_ahead(stages: Sequence[RequestedStage], done: Collection[int], folders: Callable[[int], Path]) -> None:
    """Checks later stages before the first one has trained for days: invalid settings, missing files or local stores,
    stores with features of different spaces or without the boxes that words name.

    Args:
        done: stages whose data are not read again, and may be gone.
        folders: number of a stage -> its folder, which may hold a started run.
    """
    with ExitStack() as opened:
        first: FeatureStore | None = None
        for number, (stage, request) in enumerate(zip(stages, requests_of(stages), strict=True), start=1):
            if number in done:
                continue
            data = request.data
            try:
                aligns_words = _check_settings(replace(request, out=folders(number)))
                _check_files(data)
                for path in (each for each in (*data.store, data.validation_store) if each and "://" not in each):
                    store = opened.enter_context(FeatureStore(path))
                    if first is not None:
                        check_pair_agrees(first, store, in_one_run=False)
                    if aligns_words:
                        check_given_boxes(store)
                    first = first or store
            except (ValueError, OSError) as error:
                raise ValueError(f"{stage.title(number)}: {error}") from None


def _check_settings(request: PretrainRequest) -> bool:
    """Whether --set aligns words with the regions that they name; ValueError for an invalid setting."""
    recipe, system = recipe_of(request), system_named(chosen_system(request))
    sections = {"data": DataConfig(), "sampling": recipe.sampling if recipe else system.sampling()}
    settings = [each for each in request.training.settings if each.partition(".")[0].strip() in sections]
    return system.aligns_words(apply_overrides(sections, settings)["sampling"])


def _check_files(data: RequestedData) -> None:
    for option, files in (
        ("--captions", data.captions),
        ("--task-text", data.task_text),
        ("--text-corpus", data.text_corpus),
        ("--validation-captions", () if data.validation_captions is None else (data.validation_captions,)),
    ):
        for file in map(str, files):
            if file != OWN_CAPTIONS and not os.path.isfile(file):
                raise ValueError(f"{option}: no file here: {file!r}")
