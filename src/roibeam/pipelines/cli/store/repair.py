"""`roibeam store repair`: what is broken or missing in a store, and its repair from the photos."""

from __future__ import annotations

from typing import Annotated

import typer

from roibeam.pipelines.cli.options import JSON, SCRATCH
from roibeam.pipelines.cli.surface.json_output import json_line
from roibeam.pipelines.cli.surface.option import argument, option


def repair_command(
    store: Annotated[str, argument("STORE", "Folder or URL of the store that `roibeam extract` wrote.")],
    photos: Annotated[
        str | None,
        option("photos", "Or a URL: where they are now, or the archives that hold them. Without it: only report."),
    ] = None,
    weights: Annotated[str | None, option("weights", default="where they were")] = None,
    detector: Annotated[
        str | None, option("detector", "Here: toy or a folder, if it has moved.", default="that of the store")
    ] = None,
    device: Annotated[str | None, option("device", default="that of the run that made the store")] = None,
    retry_dead_letters: Annotated[bool, option("retry-dead-letters")] = False,
    scratch: Annotated[str | None, SCRATCH] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Lists broken images of a store, and extracts them again.

    Without --photos it only lists them, and those that are missing. It reads every record. Whole records stay as they
    are. The new features must be made in the same way (detector, conventions, selection, dtype), else nothing is
    written. A photo that is not the one of the broken record stops it. Shards of a store at a URL are copied here one
    after the other. The exit code is 1 if the store needs a repair, if images could not be extracted again, or if a
    record came out otherwise than it should.

    Examples:
        roibeam store repair store/
        roibeam store repair store/ --photos photos/
    """
    from roibeam.pipelines.extract.stores.places import check_scratch

    check_scratch(scratch, (store,))
    if photos is None:
        given = {"--weights": weights, "--detector": detector, "--device": device}
        names = [name for name, value in given.items() if value is not None]
        names += ["--retry-dead-letters"] if retry_dead_letters else []
        if names:
            raise ValueError(f"{names[0]} is for a repair: give --photos DIR too")
        _list_damage(store, scratch, as_json=as_json)
        return
    if weights is not None and detector is not None:
        raise ValueError("--weights and --detector both name weights; give one of them")
    from roibeam.pipelines.extract.stores.damage_text import repair_json, repair_text
    from roibeam.pipelines.extract.stores.store_repair import RepairSource, repair_store

    source = RepairSource(photos, weights, detector, device)
    summary = repair_store(store, source, retry_dead_letters=retry_dead_letters, scratch=scratch)
    typer.echo(json_line(repair_json(store, summary)) if as_json else repair_text(store, summary))
    if summary.lost or summary.compared.doubtful:
        raise typer.Exit(1)


def _list_damage(store: str, scratch: str | None, *, as_json: bool) -> None:
    from roibeam.pipelines.extract.stores.damage import find_damage
    from roibeam.pipelines.extract.stores.damage_text import damage_json, damage_text
    from roibeam.pipelines.extract.stores.places import folder_at

    damage = find_damage(folder_at(store, scratch))
    typer.echo(json_line(damage_json(store, damage)) if as_json else damage_text(store, damage))
    if not damage.is_whole:
        raise typer.Exit(1)
