"""`roibeam probe`: what a pre-trained model says of an image and a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roibeam.pipelines.cli.options import (
    BACKGROUND,
    CHECKPOINT,
    CONFIG,
    CONVENTIONS,
    DETECTOR,
    DETECTOR_SET,
    JSON,
    PRESET,
    SELECTION,
    TASK_TOKEN,
    TOKENIZER,
    WEIGHTS,
)
from roibeam.pipelines.cli.surface.json_output import json_line
from roibeam.pipelines.cli.surface.option import argument, option
from roibeam.pipelines.common.console.progress import waiting

if TYPE_CHECKING:
    from roibeam.pipelines.analysis.probing.probe_request import Probed


def probe_command(
    checkpoint: Annotated[str, CHECKPOINT],
    image: Annotated[str, argument("IMAGE", "A photo; with --store the id of an image of the store.")],
    text: Annotated[str, argument("TEXT", 'Text, with [MASK] for words to guess: "a dog on a [MASK]".')],
    store: Annotated[
        str | None, option("store", "Its regions are shown to the model.", default="a detector finds regions")
    ] = None,
    photo: Annotated[
        Path | None,
        option(
            "photo",
            "With --store, for the picture; none: a blank page. A model trained end to end needs a photo.",
            default="none",
        ),
    ] = None,
    hide: Annotated[list[int] | None, option("hide", default="the five best regions")] = None,
    top: Annotated[int, option("top")] = 5,
    layer: Annotated[int | None, option("layer", default="the last", is_advanced=True)] = None,
    head: Annotated[int | None, option("head", default="the mean of all", is_advanced=True)] = None,
    preset: Annotated[str | None, PRESET] = None,
    weights: Annotated[str | None, WEIGHTS] = None,
    detector: Annotated[str | None, DETECTOR] = None,
    vocab: Annotated[str | None, option("vocab", default="that of the detector's folder, else none")] = None,
    conventions: Annotated[str | None, CONVENTIONS] = None,
    selection: Annotated[str | None, SELECTION] = None,
    settings: Annotated[list[str] | None, DETECTOR_SET] = None,
    tokenizer: Annotated[str | None, TOKENIZER] = None,
    config: Annotated[Path | None, CONFIG] = None,
    background: Annotated[str | None, BACKGROUND] = None,
    task_token: Annotated[int | None, TASK_TOKEN] = None,
    device: Annotated[str, option("device")] = "auto",
    out: Annotated[
        Path | None,
        option(
            "out",
            "A new .svg or .png picture; all numbers go beside it, as .json.",
            default="RUN/probe.svg, then RUN/probe-2.svg, ...",
        ),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Asks a trained model about an image and a text.

    It guesses each [MASK] and each hidden region, says whether image and text match, and draws which word looks at
    which region.

    Examples:
        roibeam probe run/ photo.jpg "a dog on a [MASK]" --detector toy
        roibeam probe run/ 000000391895 "a man on a [MASK]" --store store/
    """
    from roibeam.pipelines.analysis.probing.probe_request import ProbeRequest, write_probe

    request = ProbeRequest(
        checkpoint=checkpoint, image=image, text=text, out=out, store=store, photo=photo, preset=preset,
        detector=detector, weights=weights, conventions=conventions, selection=selection, vocab=vocab,
        settings=tuple(settings or ()), tokenizer=tokenizer, options=config, background=background,
        hide=None if hide is None else tuple(hide), layer=layer, head=head, top=top, task=task_token,
        device=device,
    )  # fmt: skip
    with waiting("asking the model"):
        done = write_probe(request)
    _print(done, as_json=as_json)


def _print(done: Probed, *, as_json: bool) -> None:
    from roibeam.features.counted import counted
    from roibeam.features.printable import on_a_line
    from roibeam.pipelines.analysis.asked_model import NO_MATCH_HEAD

    result = done.result
    if as_json:
        typer.echo(json_line({**done.numbers, "picture": str(done.picture), "device": done.device}))
        return
    for note in done.notes:
        typer.echo(on_a_line(f"note: {note}"))
    typer.echo(f"{on_a_line(' '.join(result.pieces))}    with {counted(done.record.num_regions, 'region')}")
    if not result.words:
        typer.echo("no [MASK] in the text, so no words are guessed")
    for word in result.words:
        best = ", ".join(f"{guess.name} {100 * guess.probability:.1f} %" for guess in word.guesses)
        typer.echo(f"  [MASK] at piece {word.position}: {on_a_line(best)}")
    for region in result.regions:
        best = ", ".join(f"{guess.name} {100 * guess.probability:.1f} %" for guess in region.guesses)
        typer.echo(on_a_line(f"  region {region.number} hidden, the detector says {region.seen_as}: {best}"))
    if result.regions_remark:
        typer.echo(f"  no region is guessed: {result.regions_remark}")
    typer.echo(f"  match: {NO_MATCH_HEAD}" if result.match is None else f"  match: {100 * result.match:.1f} %")
    numbers = done.picture.with_suffix(".json").name
    typer.echo(f"{done.picture}   the photo, and which word looks at which region; all numbers: {numbers}")
