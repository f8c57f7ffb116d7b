"""`roibeam leaks`: does a source or store hold images that results are reported on?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from roibeam.features.counted import counted
from roibeam.pipelines.cli.options.caption import HELD_OUT, IMAGES_OF


def leaks_command(
    images: Annotated[str, typer.Argument(metavar="SOURCE_OR_STORE", help="What extract takes, or a store's folder.")],
    held_out: Annotated[list[str], HELD_OUT],
    images_of: Annotated[str | None, IMAGES_OF] = None,
    image_root: Annotated[str | None, typer.Option(help="As in extract.")] = None,
    id_rule: Annotated[str, typer.Option(help="As in extract: no-extension or with-extension.")] = "no-extension",
    as_json: Annotated[bool, typer.Option("--json/--no-json", help="JSON on standard output.")] = False,
) -> None:
    """Which images of a source or store are held out: those that results are reported on. Exit 1 if there are any."""
    from roibeam.features.shard.manifest import STORE_MANIFEST_NAME
    from roibeam.features.store import FeatureStore
    from roibeam.pipelines.sources.held_out import HeldOut
    from roibeam.pipelines.sources.image_identity import checked_data_set, data_set_of_source, data_set_of_store
    from roibeam.pipelines.sources.source_kinds import open_source

    rules = HeldOut(held_out)
    if (Path(images) / STORE_MANIFEST_NAME).is_file():
        with FeatureStore(images) as store:
            report = rules.scan(store.ids(), checked_data_set(images_of, data_set_of_store(store.manifest)))
    else:
        source = open_source(images, image_root=image_root, id_rule=id_rule)
        data_set = checked_data_set(images_of, data_set_of_source(source))
        report = rules.scan((image.image_id for image in source.images), data_set)
    if as_json:
        typer.echo(json.dumps({"source": images, **report.to_json()}))
    else:
        typer.echo("\n".join(report.lines()))
        typer.echo(f"{images}: {len(report.leaked):,} of {counted(report.images, 'image')} held out")
    if report.leaked:
        raise typer.Exit(1)
