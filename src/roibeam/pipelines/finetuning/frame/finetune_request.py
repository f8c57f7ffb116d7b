"""What one fine-tuning run is asked to be: names, paths and numbers alone, as a user gives them. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from roibeam.name_list import check_lists
from roibeam.pipelines.finetuning.end_to_end.encoder_request import EncoderRequest
from roibeam.pipelines.finetuning.trained_photos import HeldOutWords

NEW = "none"  # in place of a model to start from


@dataclass(frozen=True, kw_only=True)
class FinetuneRequest:
    """As of `roibeam finetune`.

    Attributes:
        out: run folder to write; with several seeds the folder that holds a run for each.
        task: a name of `TASKS`.
        start: pre-training run, model folder or official checkpoint; "none" for new weights.
        store: folder of the store with the regions of all images; None for a task of texts alone.
        data: folder with the files of the task.
        annotated_store: of the task's own boxes, beside detected ones in `store`; None for none.
        recipe: a published run; None for none.
        toy: the recipe's choices in a small model, for a few steps.
        system, size: of a model with new weights.
        from_bert: what such a model starts from, see `read_bert`; None for none.
        tokenizer: see `load_tokenizer`; None for that of the start, else one made from the texts.
        min_match: least share of the images of a split that the store must have, 0..1.
        steps, batch_size, learning_rate, warmup_steps: None for those of the recipe, else 1000, 32 groups for each
            micro-batch and process, 0.00005 and a tenth of the steps.
        epochs: passes over the training groups, in place of steps; None for those.
        device, threads, seed, settings, resume: as of `RequestedTraining`.
        held_out: images that must not be trained on, beside those of the task's own files.
        command: as it was typed, for the cards of predictions.
        seeds: runs with seeds `seed`, `seed` + 1, ...
        end_to_end: train through the region encoder, as `encoder` says; else on stored features.
    """

    out: Path
    task: str
    start: str
    store: str | None
    data: Path
    annotated_store: str | None = None
    recipe: str | None = None
    toy: bool = False
    system: str | None = None
    size: str | None = None
    from_bert: str | None = None
    tokenizer: str | None = None
    min_match: float = 1.0
    steps: int | None = None
    epochs: float | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    warmup_steps: int | None = None
    device: str = "auto"
    threads: int | None = None
    seed: int = 0
    seeds: int = 1
    settings: Sequence[str] = ()
    resume: bool | None = None
    end_to_end: bool = False
    encoder: EncoderRequest = field(default_factory=EncoderRequest)
    held_out: HeldOutWords = field(default_factory=HeldOutWords)
    command: str = ""

    def __post_init__(self) -> None:
        check_lists(self, "settings")
