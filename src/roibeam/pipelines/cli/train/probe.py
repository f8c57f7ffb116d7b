"""`roibeam probe`: what a pre-trained model says of an image and a text."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import numpy as np

    from roibeam.features.record.region_record import RegionRecord
    from roibeam.pipelines.pretraining.probing.probe import ProbeResult


def probe_command(
    checkpoint: Annotated[
        str,
        typer.Argument(
            help="Run folder of `roibeam pretrain`, a model's folder, or an official checkpoint (docs/checkpoints.md)."
        ),
    ],
    image: Annotated[str, typer.Argument(help="Photo; with --store the id of a record.")],
    text: Annotated[str, typer.Argument(help='Text, with [MASK] where words are to be guessed: "a dog on a [MASK]".')],
    out: Annotated[Path, typer.Option(help="Picture to write, replaced if it is there.")] = Path("probe.svg"),
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
    weights: Annotated[str | None, typer.Option(help="Of the detector, as in extract.")] = None,
    detector: Annotated[str, typer.Option(help="As in extract; toy knows the toy world.")] = "vg-r101-c4",
    conventions: Annotated[str | None, typer.Option(help="As in extract.")] = None,
    selection: Annotated[str, typer.Option(help="As in extract.")] = "butd-10-100",
    vocab: Annotated[
        str | None, typer.Option(help="Class names, as in extract [default: those of the store or detector].")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="section.field=value of the detector, as in extract.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="As in pretrain [default: that of the checkpoint's run].")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Official JSON configuration beside an official checkpoint.")
    ] = None,
    hide: Annotated[
        list[int] | None,
        typer.Option(help="Region to hide and let the model name; again for more [default: the five best]."),
    ] = None,
    background_first: Annotated[
        bool,
        typer.Option(
            "--background-first/--background-last",
            help="Where the model's classes have background: last in our stores, first in those of bottom-up "
            "attention, so in most official checkpoints.",
        ),
    ] = False,
    task: Annotated[
        int | None, typer.Option(min=0, help="Task token, for a multi-task ViLBERT with such tokens; needed there.")
    ] = None,
    layer: Annotated[int | None, typer.Option(min=1, help="Layer of the attention [default: the last].")] = None,
    head: Annotated[int | None, typer.Option(min=1, help="Head of the attention [default: the mean].")] = None,
    top: Annotated[int, typer.Option(min=1, max=20, help="Guesses for each word and region.")] = 5,
    as_json: Annotated[bool, typer.Option("--json/--no-json", help="All numbers as a JSON line.")] = False,
) -> None:
    """Top words for each [MASK], classes of hidden regions, match score, and a picture of who looks at what.

    Works for VL-BERT, ViLBERT, VisualBERT, ImageBERT and InterBERT, on a photo or a stored record.
    """
    from roibeam.pipelines.model_files.joint_checkpoint import JointCheckpoint, load_model_or_joint
    from roibeam.pipelines.model_files.tokenizer import load_tokenizer
    from roibeam.pipelines.pretraining.probing.photo_model import PhotoModel
    from roibeam.pipelines.pretraining.probing.probe import Names, probe
    from roibeam.pipelines.pretraining.probing.probe_picture import probe_svg

    if store is None and photo is not None:
        raise ValueError("--photo is for --store; without it IMAGE is the photo")
    if out.suffix != ".svg":
        raise ValueError(f"--out {out}: the picture is an .svg file")
    if not out.parent.is_dir():
        raise ValueError(f"--out {out}: there is no folder {out.parent}")
    found = load_model_or_joint(checkpoint, options=config)
    if isinstance(found, JointCheckpoint) and store is not None and photo is None:
        raise ValueError(f"{checkpoint} reads photos: add --photo, that of the record {image!r}")
    model: Any = found.model
    if not hasattr(model, "match_log_odds"):
        raise ValueError(f"{checkpoint}: {type(model).__name__} is a task's model; probe one with pre-training heads")
    spec = tokenizer or (None if found.tokenizer is None else str(found.tokenizer))
    if spec is None:
        raise ValueError(f"--tokenizer is missing: {found.source} has none beside it")
    pieces = load_tokenizer(spec)
    if store is not None:
        if vocab is not None or weights is not None or settings:
            raise ValueError(
                "--vocab, --weights and --set are for a detector; with --store the regions and names are its own"
            )
        record, classes = _stored(store, image)
        pixels = None if photo is None else _pixels(photo, record)
    else:
        record, classes, pixels = _detected(image, detector, weights, conventions, selection, settings or [], vocab)
    if isinstance(found, JointCheckpoint):
        assert pixels is not None
        model = PhotoModel(found.joint, pixels)
    names = Names(classes, background_first=background_first)
    result = probe(model, record, text, pieces, names, hide=hide, layer=layer, head=head, top=top, task=task)
    out.write_text(probe_svg(result, record, names, text=text, photo=pixels), "utf-8")
    if as_json:
        typer.echo(json.dumps(_facts(result, out)))
        return
    for note in found.changes:
        typer.echo(f"note: {note}")
    _print(result, record, out)


def _print(result: ProbeResult, record: RegionRecord, out: Path) -> None:
    from roibeam.features.counted import counted

    typer.echo(f"{' '.join(result.pieces)}    with {counted(record.num_regions, 'region')}")
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
    typer.echo(
        "  match: this model has no match head" if result.match is None else f"  match: {100 * result.match:.1f} %"
    )
    typer.echo(f"{out}   the photo, and which word looks at which region")


def _facts(result: ProbeResult, out: Path) -> dict[str, Any]:
    looks = result.attention
    return {
        "pieces": result.pieces,
        "words": [asdict(word) for word in result.words],
        "regions": [asdict(region) for region in result.regions],
        "regions_remark": result.regions_remark,
        "match": result.match,
        "attention": None
        if looks is None
        else {
            "weights": [[round(float(value), 6) for value in row] for row in looks.weights],
            "layer": looks.layer,
            "heads": looks.heads,
        },
        "picture": str(out),
    }


def _stored(store: str, image_id: str) -> tuple[RegionRecord, tuple[str, ...]]:
    from roibeam.features.store import FeatureStore

    with FeatureStore(store) as opened:
        if image_id not in opened:
            raise ValueError(f"--store {store} has no record {image_id!r}; roibeam store show lists ids")
        return opened[image_id], tuple(opened.vocabulary["classes"] or ())


def _detected(
    image: str,
    detector: str,
    weights: str | None,
    conventions: str | None,
    selection: str,
    settings: list[str],
    vocab: str | None,
) -> tuple[RegionRecord, tuple[str, ...], np.ndarray | None]:
    from roibeam.extraction.engine.region_iterator import extract_regions
    from roibeam.extraction.photos.image_ref import Failure, ImageRef
    from roibeam.extraction.selection import SELECTIONS
    from roibeam.extraction.weights.loading import build_detector
    from roibeam.pipelines.foundation.overrides import apply_overrides
    from roibeam.pipelines.model_files.detector_choice import choose_detector, preset
    from roibeam.pipelines.sources.vocabulary import load_vocabulary

    chosen = choose_detector(detector, weights=weights, conventions=conventions)
    parts: dict[str, Any] = {
        "detector": chosen.config,
        "conventions": chosen.conventions,
        "selection": preset("selection", selection, SELECTIONS),
    }
    parts = apply_overrides(parts, settings)
    built = build_detector(
        parts["detector"], weights=chosen.weights, selection=parts["selection"], conventions=parts["conventions"]
    )
    (outcome,) = extract_regions([ImageRef(Path(image).stem, image)], built)
    if isinstance(outcome, Failure):
        raise ValueError(f"{image}: {outcome.reason} ({outcome.stage}): {outcome.detail}")
    names = chosen.vocabulary
    if vocab is not None:
        sizes = parts["detector"]
        names = load_vocabulary(vocab, num_classes=sizes.num_classes, num_attributes=sizes.num_attributes)
    return outcome, tuple(names.classes or ()), _pixels(Path(image), outcome)


def _pixels(photo: Path, record: RegionRecord) -> np.ndarray:
    """Turned as the record's was."""
    from roibeam.extraction.photos.decode import decode_image

    data = photo.read_bytes()
    for orientation in ("applied", "ignored"):
        pixels = decode_image(data, exif_orientation=orientation)
        if pixels.shape[:2] == (record.height, record.width):
            return pixels
    raise ValueError(
        f"{photo}: {pixels.shape[1]} x {pixels.shape[0]} pixels, the record is of a photo of {record.width} x "
        f"{record.height}"
    )
