"""A pre-training run on text alone: a text corpus in, a run folder out; no store, no image.

lines -> a system's rows of text -> VLBatch -> model -> masked words -> the loop
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from roibeam.pipelines.pretraining.recipes.data_kinds import check_kinds, check_text_alone, text_alone_settings
from roibeam.pipelines.pretraining.run_frame import PretrainResult, RunFrame, RunModel, RunSettings, tell
from roibeam.pipelines.pretraining.samples.text_rows import TextCorpus
from roibeam.pipelines.pretraining.start import ModelChoice
from roibeam.pipelines.pretraining.task import TextTask
from roibeam.pipelines.training.model_files.trained_with import TrainedWith, trained_with


def pretrain_on_text(
    text_files: Sequence[Path], run_dir: Path, settings: RunSettings, choice: ModelChoice | None = None
) -> PretrainResult:
    """Pre-trains a model on the words of a text corpus, and writes a run folder.

    The parts of the model that see images are made and learn nothing; weight decay is theirs too. A run on images that
    goes on from this one has its feature width and region labels, so give those of its store (`ModelChoice.overrides`).

    Args:
        text_files: see `TextCorpus`.
        settings: `train_config` may be made from the number of lines, each of which begins one row an epoch;
            `data.batch_size` counts rows.
        choice: None for a small VL-BERT with new weights.
    Raises:
        ValueError: whatever does not fit, saying what to do.
    """
    run = RunFrame.opened(run_dir, settings, choice or ModelChoice())
    check_kinds(
        run.choice.system.named,
        num_stores=0,
        has_text_corpus=True,
        has_task_texts=False,
        is_end_to_end=False,
        has_validation=False,
    )
    check_text_alone(run.choice.system.named, run.settings.data, run.settings.sampling)
    texts = TextCorpus(text_files)
    config = run.train_config(len(texts.lines))
    tokenizer, unknown = run.tokenizer([("the text corpus", texts.lines)])
    tell(texts.notes)
    notes = [*texts.notes, *unknown]
    run.note_trained_images(())
    torch.manual_seed(config.seed)
    system, start = run.choice.system, run.choice.start
    # What a later stage on images is held against: features and classes are those of an earlier one.
    before = TrainedWith() if start is None else trained_with(start)
    reads_text = system.text_only_fields or {}
    model: Any = run.choice.model(reads_text, vocab_size=tokenizer.vocab_size, changes=reads_text)
    num_classes = model.config.num_region_labels - 1
    sampler: Any = system.sampler(run.settings.sampling, tokenizer, model.config, num_classes=num_classes)
    made = RunModel(model, tokenizer, sampler, num_classes, config.seed)
    task = TextTask(model, texts.lines, sampler, run.settings.data, pad_id=tokenizer.pad_id, seed=config.seed)
    run.show_first_batch(task, made, config)
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
    evaluation, asked = training.evaluation or task.evaluate(), "the first rows of text trained on, with other masks"
    assert task.hidden_words is not None
    figures = run.tell_how_good(training, evaluation, task.hidden_words, made, [texts.lines], of=asked, held_out=False)
    return PretrainResult(
        run_dir=run.run_dir,
        sources=(),
        notes=notes,
        num_classes=num_classes,
        vocab_size=tokenizer.vocab_size,
        training=training,
        figures=figures,
        asked=asked,
    )
