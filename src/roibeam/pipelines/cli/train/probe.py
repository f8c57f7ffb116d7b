"""`roibeam probe`: what a pre-trained model says of an image and a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roibeam.pipelines.cli.json_output import json_line
from roibeam.pipelines.cli.options import (
    BACKGROUND_FIRST,
    CHECKPOINT_HELP,
    CONFIG,
    CONVENTIONS,
    DETECTOR,
    DETECTOR_SET,
    PRESET,
    SELECTION,
    TASK,
    TOKENIZER,
    VOCAB,
    WEIGHTS,
)

if TYPE_CHECKING:
    from roibeam.pipelines.analysis.probing.probe_request import Probed


def probe_command(
    checkpoint: Annotated[str, typer.Argument(help=CHECKPOINT_HELP)],
    image: Annotated[str, typer.Argument(help="Photo; with --store the id of a record.")],
    text: Annotated[str, typer.Argument(help='Text, with [MASK] where words are to be guessed: "a dog on a [MASK]".')],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Picture to write, a new .svg or .png file; all numbers go beside it, into a .json file [default: "
            "RUN/probe.svg, then RUN/probe-2.svg; needed where the checkpoint is no run's folder].",
            show_default=False,
        ),
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Store to take the regions from [default: a detector finds them].")
    ] = None,
    photo: Annotated[
        Path | None,
        typer.Option(
            help="With --store: the record's photo, for the picture [default: boxes on grey]; needed by a model that "
            "reads photos."
        ),
    ] = None,
    weights: Annotated[str | None, WEIGHTS] = None,
    preset: Annotated[str | None, PRESET] = None,
    detector: Annotated[str | None, DETECTOR] = None,
    conventions: Annotated[str | None, CONVENTIONS] = None,
    selection: Annotated[str | None, SELECTION] = None,
    vocab: Annotated[str | None, VOCAB] = None,
    settings: Annotated[list[str] | None, DETECTOR_SET] = None,
    tokenizer: Annotated[str | None, TOKENIZER] = None,
    config: Annotated[Path | None, CONFIG] = None,
    hide: Annotated[
        list[int] | None,
        typer.Option(help="Region to hide and let the model name; again for more [default: the five best]."),
    ] = None,
    background_first: Annotated[bool, BACKGROUND_FIRST] = False,
    task: Annotated[int | None, TASK] = None,
    layer: Annotated[int | None, typer.Option(min=1, help="Layer of the attention [default: the last].")] = None,
    head: Annotated[int | None, typer.Option(min=1, help="Head of the attention [default: the mean].")] = None,
    top: Annotated[int, typer.Option(min=1, max=20, help="Guesses for each word and region.")] = 5,
    as_json: Annotated[bool, typer.Option("--json/--no-json", help="All numbers as a JSON line.")] = False,
) -> None:
    """Top words for each [MASK], classes of hidden regions, match score, and a picture of who looks at what.

    Works for pre-trained VL-BERT, ViLBERT, VisualBERT, ImageBERT and InterBERT, on a photo or a stored record.
    """
    from roibeam.pipelines.analysis.probing.probe_request import ProbeRequest, write_probe

    request = ProbeRequest(
        checkpoint=checkpoint, image=image, text=text, out=out, store=store, photo=photo, preset=preset,
        detector=detector, weights=weights, conventions=conventions, selection=selection, vocab=vocab,
        settings=tuple(settings or ()), tokenizer=tokenizer, options=config, background_first=background_first,
        hide=None if hide is None else tuple(hide), layer=layer, head=head, top=top, task=task,
    )  # fmt: skip
    _print(write_probe(request), as_json=as_json)


def _print(done: Probed, *, as_json: bool) -> None:
    from roibeam.features.counted import counted
    from roibeam.pipelines.analysis.asked_model import NO_MATCH_HEAD

    result = done.result
    if as_json:
        typer.echo(json_line({**done.numbers, "picture": str(done.picture)}))
        return
    for note in done.notes:
        typer.echo(f"note: {note}")
    typer.echo(f"{' '.join(result.pieces)}    with {counted(done.record.num_regions, 'region')}")
    if not result.words:
        typer.echo("no [MASK] in the text, so no words are guessed")
    for word in result.words:
        best = ", ".join(f"{guess.name} {100 * guess.probability:.1f} %" for guess in word.guesses)
        typer.echo(f"  [MASK] at piece {word.position}: {best}")
    for region in result.regions:
        best = ", ".join(f"{guess.name} {100 * guess.probability:.1f} %" for guess in region.guesses)
        typer.echo(f"  region {region.number} hidden, the detector says {region.seen_as}: {best}")
    if result.regions_remark:
        typer.echo(f"  no region is guessed: {result.regions_remark}")
    typer.echo(f"  match: {NO_MATCH_HEAD}" if result.match is None else f"  match: {100 * result.match:.1f} %")
    numbers = done.picture.with_suffix(".json").name
    typer.echo(f"{done.picture}   the photo, and which word looks at which region; all numbers: {numbers}")
