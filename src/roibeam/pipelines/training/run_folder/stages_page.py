"""The report of a run in stages: the curves of each stage on one page, with the way to its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from roibeam.features.printable import escaped
from roibeam.pipelines.foundation.pages.page import PAGE_HEAD, PAGE_STYLE
from roibeam.pipelines.training.run_folder.curves import curves_svg
from roibeam.pipelines.training.run_folder.folder import CONFIG_NAME
from roibeam.pipelines.training.run_folder.names import PAGE_NAME
from roibeam.pipelines.training.run_folder.stages import stage_folder
from roibeam.pipelines.training.run_folder.train_log import LOG_NAME, read_lines
from roibeam.pipelines.training.run_folder.training_page import CURVES_STYLE


def write_stages_page(run_dir: Path, names: Sequence[str]) -> Path:
    """Writes RUN/report.html of the stages that have a log.

    Args:
        names: of all stages, for people.
    Returns:
        The path of the page.
    """
    path = run_dir / PAGE_NAME
    path.write_text("".join(_page(run_dir, names)), encoding="utf-8")
    return path


def _page(run_dir: Path, names: Sequence[str]) -> Iterator[str]:
    title = run_dir.absolute().name
    yield PAGE_HEAD.format(title=escaped(title, 120), style=PAGE_STYLE + CURVES_STYLE)
    yield f"<header><h1>{escaped(title, 200)}</h1></header>\n<main>\n"
    for number, name in enumerate(names, start=1):
        folder = stage_folder(run_dir, number)
        head = f"Stage {number} of {len(names)} <small>{escaped(name, 200)}</small>"
        lines = read_lines(folder / LOG_NAME)
        if not lines:
            yield f"<section><h2>{head}</h2><p>Not begun.</p></section>\n"
            continue
        config = json.loads((folder / CONFIG_NAME).read_text("utf-8"))
        train, recorded, last = config["train"], config["recorded"], lines[-1]
        origin = f"the weights of stage {number - 1}, with a new optimizer and schedule"
        if number == 1:
            origin = recorded["start"] or recorded["bert"] or "new weights"
        yield f"<section><h2>{head}</h2>\n"
        yield (
            f"<p>{last['step']:,} of {train['steps']:,} steps of {config['global_batch']:,} samples, "
            f"{last['epoch']:,.4g} epochs, rate {train['learning_rate']:g}, last loss {last['loss']:.4g}. "
            f"From {escaped(origin, 200)}. "
            f'<a href="{folder.name}/{PAGE_NAME}">All about it</a></p>\n'
        )
        yield f'<div class="curves">{curves_svg(lines)}</div></section>\n'
    yield "</main>\n</body>\n</html>\n"
