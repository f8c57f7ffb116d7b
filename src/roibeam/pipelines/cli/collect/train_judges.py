"""`roibeam collect train-images` and `train-pairs`: the judges of pictures and of pairs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roibeam.pipelines.cli.options import CAPTION_COLUMN, JSON
from roibeam.pipelines.cli.surface.json_output import json_line
from roibeam.pipelines.cli.surface.option import argument, option

if TYPE_CHECKING:
    from roibeam.pipelines.collection.judging.train_images import TrainedJudge

_OUT = argument("OUT", "File to write, .json.")
_PRECISION = option("wanted-precision")
_FEW_ROWS = 100  # a precision of 0.95 among 100 has an interval of 0.89 to 0.98
_SEED = option("seed", is_advanced=True)


def train_images_command(
    labels: Annotated[Path, argument("LABELS", "CSV with the columns image (its file) and label: natural or not.")],
    out: Annotated[Path, _OUT],
    store: Annotated[str | None, option("store", "Of these images; their regions are looked at too.")] = None,
    wanted_precision: Annotated[float, _PRECISION] = 0.99,
    seed: Annotated[int, _SEED] = 0,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Trains a judge that tells natural photos from logos, charts and screenshots.

    It looks at cheap statistics of the file and, with --store, at its regions. A quarter of the images is held out, and
    sets the threshold. What it writes is numbers: nothing in it is executed.

    Examples:
        roibeam collect train-images labels.csv images.json
        roibeam collect train-images labels.csv images.json --store store/
    """
    from roibeam.pipelines.collection.judging.train_images import TrainImagesRequest, train_images

    done = train_images(TrainImagesRequest(labels, out, store, wanted_precision, seed))
    _print(out, done, as_json=as_json)


def train_pairs_command(
    out: Annotated[Path, _OUT],
    captions: Annotated[
        list[str] | None, option("captions", "Curated ones, which are right; may be given again.")
    ] = None,
    caption_column: Annotated[str, CAPTION_COLUMN] = "",
    store: Annotated[list[str] | None, option("store", "Of the images of --captions, in the same order.")] = None,
    pairs: Annotated[Path | None, option("pairs")] = None,
    pairs_store: Annotated[str | None, option("pairs-store")] = None,
    match_model: Annotated[str | None, option("match-model")] = None,
    max_captions: Annotated[int, option("max-captions")] = 5000,
    wanted_precision: Annotated[float, _PRECISION] = 0.95,
    seed: Annotated[int, _SEED] = 0,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Trains a judge that tells whether a text describes an image.

    It learns from curated captions, from labelled texts, and from wrong pairs made of right ones in four ways. A
    quarter of the images is held out, and sets the threshold: the labelled texts of them, where there are any.

    Examples:
        roibeam collect train-pairs pairs.json --captions captions.json --store store/
        roibeam collect train-pairs pairs.json --pairs rows.csv --pairs-store rows/
    """
    from roibeam.pipelines.collection.judging.train_pairs import TrainPairsRequest, train_pairs

    request = TrainPairsRequest(
        out, tuple(captions or ()), tuple(store or ()), pairs, pairs_store, match_model, max_captions,
        wanted_precision, seed, caption_column,
    )  # fmt: skip
    _print(out, train_pairs(request), as_json=as_json)


def _print(out: Path, done: TrainedJudge, *, as_json: bool) -> None:
    if as_json:
        model = done.model
        summary = {"out": str(out), "threshold": model.threshold, "fingerprint": model.fingerprint}
        typer.echo(json_line(summary | {"left_out": done.left_out} | dict(model.facts)))
        return
    typer.echo("\n".join(_lines(out, done)))


def _lines(out: Path, done: TrainedJudge) -> Iterator[str]:
    facts = done.model.facts
    rows, held = facts["rows"], facts["held_out"]
    for reason, count in done.left_out.items():
        if count:
            yield f"left out: {count:,} ({reason})"
    yield f"trained on {rows['trained']:,} rows, {rows['held_out']:,} held out"
    yield (
        f"  threshold {done.model.threshold:.3f}: precision {held['precision']:.3f}, recall {held['recall']:.3f} "
        f"(area under ROC {held['auc']:.3f}) on {held['rows']:,.0f} held-out rows"
    )
    if held["rows"] < _FEW_ROWS:
        yield (
            f"  {held['rows']:,.0f} rows set the threshold and give these figures, which are too few to trust; label "
            f"more, until {_FEW_ROWS:,} or more of them are held out"
        )
    if rows["threshold_from"] < rows["held_out"]:
        yield "  they are the best text of each image, as a collection keeps it; next come all held-out rows"
    for kind, found in facts["kinds"].items():
        yield f"  {kind:<24}{found['rows']:>7,} rows, {100 * found['passed']:5.1f} % pass"
    yield f"looks most at: {', '.join(facts['importance'])}"
    yield f"Written: {out.absolute()}"
