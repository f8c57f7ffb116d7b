"""The report of a training run, RUN/report.html: its curves, evaluations, checkpoints and settings on one page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from roibeam.features.counted import counted
from roibeam.features.printable import escaped
from roibeam.pipelines.foundation.pages.page import PAGE_HEAD, PAGE_STYLE
from roibeam.pipelines.training.run_folder.curves import curves_svg
from roibeam.pipelines.training.run_folder.detector_figures import DETECTOR_NAME, change_rows
from roibeam.pipelines.training.run_folder.names import PAGE_NAME
from roibeam.pipelines.training.run_folder.train_log import EVALUATION_NAME, LOG_NAME, read_lines

_ROWS = 30  # evaluations that the table shows; more are thinned out
CURVES_STYLE = "\n.curves svg { display: block; max-width: 100%; height: auto; }"
_OWN_STYLE = """
.scroll { overflow-x: auto; }
.evaluations td, .evaluations th { padding: 3px 16px 3px 0; text-align: right; white-space: nowrap; }
.evaluations .best { font-weight: 650; }
.settings td, .settings th { padding: 2px 16px 2px 0; vertical-align: top; overflow-wrap: anywhere; }
.settings th { width: 34%; color: var(--quiet); }
"""


def write_training_page(run_dir: Path, *, best_step: int | None) -> Path:
    """Writes RUN/report.html from the run folder.

    Args:
        best_step: of the best evaluation, which has a checkpoint; None where none is told apart.
    Returns:
        The path of the page.
    """
    config = json.loads((run_dir / "config.json").read_text("utf-8"))
    lines, evaluations = read_lines(run_dir / LOG_NAME), read_lines(run_dir / EVALUATION_NAME)
    checkpoints = sorted(path.name for path in (run_dir / "checkpoints").glob("step-*"))
    path, judged = run_dir / PAGE_NAME, run_dir / DETECTOR_NAME
    detector = json.loads(judged.read_text("utf-8")) if judged.is_file() else None
    page = "".join(_page(run_dir.absolute().name, config, lines, evaluations, detector, checkpoints, best_step))
    path.write_text(page, encoding="utf-8")
    return path


def _page(
    name: str,
    config: Mapping[str, Any],
    lines: Sequence[Mapping[str, Any]],
    evaluations: Sequence[Mapping[str, Any]],
    detector: Mapping[str, Any] | None,
    checkpoints: Sequence[str],
    best_step: int | None,
) -> Iterator[str]:
    yield PAGE_HEAD.format(title=escaped(name, 120), style=PAGE_STYLE + CURVES_STYLE + _OWN_STYLE)
    yield f"<header><h1>{escaped(name, 200)}</h1></header>\n<main>\n"
    last = lines[-1]
    if last["step"] < config["train"]["steps"]:
        yield (
            f'<p class="note"><b>Not finished.</b> {last["step"]:,} of {config["train"]["steps"]:,} steps; '
            f"it can be resumed.</p>\n"
        )
    cells = {
        "steps": f"{last['step']:,}",
        "samples": f"{last['samples']:,}",
        "epochs": f"{last['epoch']:,.4g}",
        "samples a step": f"{config['global_batch']:,}",
        "last loss": f"{last['loss']:.4g}",
    }
    pairs = "".join(f"<div><dt>{label}</dt><dd>{value}</dd></div>" for label, value in cells.items())
    yield f'<dl class="counts">{pairs}</dl>\n'
    yield f"<section><h2>Training <small>each step, and their running mean</small></h2>\n{_curves(lines)}</section>\n"
    if evaluations:
        yield _evaluations(evaluations, config, best_step)
    if detector is not None:
        yield _detector(detector)
    yield _checkpoints(checkpoints, best_step)
    yield _settings(config)
    yield "</main>\n</body>\n</html>\n"


def _curves(lines: Sequence[Mapping[str, Any]], *, smooth: bool = True) -> str:
    return f'<div class="curves">{curves_svg(lines, smooth=smooth)}</div>\n'


def _evaluations(lines: Sequence[Mapping[str, Any]], config: Mapping[str, Any], best_step: int | None) -> str:
    train, held_out = config["train"], config["recorded"].get("validation")
    what = "of the weights' exponential average" if train.get("average_rate") else "of the weights as trained"
    what += f", on {counted(held_out['captions'], 'held-out caption')}" if held_out else ""
    names = list(dict.fromkeys(name for line in lines for name in line if name not in ("samples", "seconds")))
    shown = {round(index * (len(lines) - 1) / (_ROWS - 1)) for index in range(_ROWS)}
    rows = ["<tr>" + "".join(f"<th>{escaped(name.replace('_', ' '))}</th>" for name in names) + "</tr>"]
    for index, line in enumerate(lines):
        best = line["step"] == best_step
        if len(lines) <= _ROWS or index in shown or best:
            cells = "".join(f"<td>{_number(line.get(name))}</td>" for name in names)
            rows.append(f'<tr class="best">{cells}</tr>' if best else f"<tr>{cells}</tr>")
    found = "" if best_step is None else f", best by {escaped(train['best_by'])} after step {best_step:,}"
    return (
        f"<section><h2>Evaluations <small>{len(lines):,}, {what}{found}</small></h2>\n"
        f'{_curves(lines, smooth=False)}<div class="scroll"><table class="evaluations">{"".join(rows)}</table></div>'
        f"</section>\n"
    )


def _detector(found: Mapping[str, Any]) -> str:
    """What the run did to the detector that its region encoder is of."""
    rows = [("", "before", "after"), *change_rows(found)]
    cells = "".join(f"<tr>{''.join(f'<td>{escaped(cell, 60)}</td>' for cell in row)}</tr>" for row in rows)
    what = f"{counted(found['photos'], 'held-out photo')}, with the first weights and the last"
    return (
        f"<section><h2>Detector <small>judged on {what}</small></h2>\n"
        f'<table class="evaluations">{cells}</table></section>\n'
    )


def _checkpoints(names: Sequence[str], best_step: int | None) -> str:
    best = "" if best_step is None else f"step-{best_step:08d}"
    rows = "".join(f"<li>checkpoints/{name}{' (best)' if name == best else ''}</li>" for name in names)
    return f"<section><h2>Checkpoints</h2><ul>{rows}</ul></section>\n"


def _settings(config: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escaped(name, 200)}</th><td>{escaped(json.dumps(value), 400)}</td></tr>'
        for name, value in _leaves(config, "")
    )
    return f'<section><h2>Settings</h2><table class="settings">{rows}</table></section>\n'


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _leaves(part, f"{name}.{key}" if name else key)
    else:
        yield name, value


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
