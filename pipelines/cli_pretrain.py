"""`roibeam pretrain`: the training stage reads a store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from features.counted import counted
from pipelines.caption_options import HELD_OUT, IMAGES_OF, LEAVE_OUT, MIN_MATCH, checked_data_set
from pipelines.training_options import RESUME, run_folder_lines

if TYPE_CHECKING:
    from features.store import FeatureStore


def pretrain_command(
    out: Annotated[Path, typer.Argument(help="Run folder to write: config, log, checkpoints, tokenizer.")],
    store: Annotated[str, typer.Option(help="Store that `roibeam extract` wrote: a folder, or a URL with --stage-to.")],
    captions: Annotated[
        str | None,
        typer.Option(
            help="Captions: .json of COCO, Karpathy (train and restval) or SBU, .tsv or .token; joined by image id, "
            "path or number, see docs/captions.md [default: the store's own].",
            show_default=False,
        ),
    ] = None,
    min_match: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the images in --captions that the store must have.")
    ] = MIN_MATCH,
    held_out: Annotated[list[str] | None, HELD_OUT] = None,
    leave_out_held_out: Annotated[bool, LEAVE_OUT] = False,
    images_of: Annotated[str | None, IMAGES_OF] = None,
    from_bert: Annotated[
        str | None,
        typer.Option(
            help="BERT to start from: hf:<repo>, or a folder with config.json, weights and tokenizer. Its sizes take "
            "the place of --model's [default: new weights].",
            show_default=False,
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="BERT vocab.txt, tokenizer folder, hf:<repo>, or captions: a vocabulary made from the captions "
            "[default: that of --from-bert, else captions].",
            show_default=False,
        ),
    ] = None,
    stage_to: Annotated[
        Path | None, typer.Option(help="Local folder that shards of a store at a URL are copied to as they are read.")
    ] = None,
    stage_gb: Annotated[
        float | None, typer.Option(min=0.001, help="Room for --stage-to, 10^9 bytes [default: no limit].")
    ] = None,
    system: Annotated[str, typer.Option(help="Whose model and rules: vlbert.")] = "vlbert",
    model: Annotated[str, typer.Option(help="Size of the model: small or base.")] = "small",
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 1000,
    batch_size: Annotated[int, typer.Option(min=1, help="Captions per step and process.")] = 32,
    learning_rate: Annotated[float, typer.Option(help="Peak; never scaled by batch or processes.")] = 1e-4,
    warmup_steps: Annotated[int, typer.Option(min=0, help="Steps of linear warm-up.")] = 0,
    device: Annotated[str, typer.Option(help="auto (an accelerator if there is one) or cpu.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads [default: torch's choice].")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, order, masks and dropout.")] = 0,
    id_rule: Annotated[str, typer.Option(help="As in extract: no-extension or with-extension.")] = "no-extension",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="section.field=value; sections: train, data, sampling, model.")
    ] = None,
    resume: Annotated[bool | None, RESUME] = None,
    as_json: Annotated[bool, typer.Option("--json/--no-json", help="Result as a JSON line.")] = False,
) -> None:
    """Pre-trains a VL-BERT on stored regions and captions: masked words and masked regions.

    On several GPUs: torchrun --no-python --nproc-per-node <n> roibeam pretrain ... (--no-python keeps the working
    directory off the import path).
    """
    import torch

    from pipelines.annotations import stored_captions
    from pipelines.bert_start import read_bert
    from pipelines.caption_files import CaptionFile
    from pipelines.curves import write_curves
    from pipelines.held_out import HeldOut, held_out_hint
    from pipelines.image_identity import data_set_of_store
    from pipelines.overrides import apply_overrides, parse_value
    from pipelines.pretraining.run import LeakGuard, pretrain
    from pipelines.pretraining.systems import system_named
    from pipelines.pretraining.task import DataConfig
    from pipelines.train_config import TrainConfig
    from pipelines.training import is_main_process

    chosen = system_named(system)
    if model not in chosen.sizes:
        raise ValueError(f"--model {model!r}: choose one of {', '.join(chosen.sizes)}")
    if threads is not None:
        torch.set_num_threads(threads)
    own = [setting for setting in settings or [] if not setting.startswith("model.")]
    config = TrainConfig(
        steps=steps, learning_rate=learning_rate, warmup_steps=warmup_steps, device=device, seed=seed,
        log_every=max(1, min(20, steps // 10)), checkpoint_every=max(1, min(1000, steps // 10)),
    )  # fmt: skip
    defaults = {"train": config, "data": DataConfig(batch_size=batch_size), "sampling": chosen.sampling()}
    sections = apply_overrides(defaults, own)
    overrides: dict[str, Any] = {}
    for setting in settings or []:
        name, equals, value = setting.removeprefix("model.").partition("=")
        if setting.startswith("model."):
            if not equals:
                raise ValueError(f"--set {setting!r}: expected model.field=value")
            overrides[name.strip()] = parse_value(value.strip())
    rules = HeldOut(held_out or [])
    file = None if captions is None else CaptionFile(captions, id_rule=id_rule)
    notes: list[str] = []
    with _open_store(store, stage_to, stage_gb) as opened:
        data_set = checked_data_set(images_of, data_set_of_store(opened.manifest))
        if not held_out:
            notes += filter(None, [held_out_hint(opened.ids(), data_set)])
        result = pretrain(
            opened,
            stored_captions(opened) if file is None else file.captions(),
            out,
            train_config=sections["train"],
            system=chosen,
            size=model,
            data=sections["data"],
            sampling=sections["sampling"],
            tokenizer_spec=tokenizer or from_bert or "captions",
            bert=None if from_bert is None else read_bert(from_bert),
            model_overrides=overrides,
            min_match=0 if file is None else min_match,
            guard=LeakGuard(rules, data_set, leave_out_held_out) if held_out else None,
            resume="auto" if resume is None else resume,
        )
    if not is_main_process():
        return
    write_curves(out)
    join = result.join
    notes += [] if file is None else file.notes
    facts = {
        "run": str(out),
        "checkpoint": str(result.training.checkpoint),
        "step": result.training.step,
        "seconds": round(result.training.seconds, 1),
        "captions": join.joined,
        "join": join.to_json(),
        "held_out": None if result.leaks is None else result.leaks.to_json(),
        "notes": notes,
        "vocabulary": result.vocab_size,
        "num_classes": result.num_classes,
        "last": result.training.last,
        "best": None if result.training.best is None else str(result.training.best),
        "evaluation": result.evaluation,
    }
    if as_json:
        typer.echo(json.dumps({"event": "done", **facts}))
        return
    for note in notes:
        typer.echo(f"note: {note}")
    typer.echo("\n".join(join.lines()))
    if result.leaks is not None:
        typer.echo("\n".join(result.leaks.lines()))
        typer.echo(f"{counted(len(result.leaks.leaked), 'captioned image')} left out as held out")
    typer.echo(f"{counted(result.training.step, 'step')} in {result.training.seconds:.0f} s")
    for name, mean in result.evaluation.items():
        typer.echo(f"  {name:<28} {'nothing to predict' if mean is None else f'{mean:.4f}'}")
    typer.echo(f"\n{out}/\n  {result.training.checkpoint.relative_to(out)}/   weights, optimizer, position")
    typer.echo("\n".join(run_folder_lines(out, result.training)))
    typer.echo("  tokenizer/")


def _open_store(store: str, stage_to: Path | None, stage_gb: float | None) -> FeatureStore:
    from features.staging import StagedStore
    from features.store import FeatureStore

    if stage_to is not None:
        return StagedStore(store, stage_to, max_bytes=None if stage_gb is None else int(stage_gb * 1e9))
    if "://" in store or stage_gb is not None:
        raise ValueError(f"--store {store}: a URL, and --stage-gb, need --stage-to FOLDER on a local disk")
    return FeatureStore(store)
