"""Commands that few users need: `roibeam conformance`, `roibeam leaks`, `roibeam worker-pool`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roibeam.messages import counted
from roibeam.pipelines.cli.command_end import json_line
from roibeam.pipelines.cli.option_names import argument, option
from roibeam.pipelines.cli.options import CAPTION_COLUMN, HELD_OUT_NEEDED, ID_RULE, JSON, NUMBERS_OF
from roibeam.pipelines.common.console.progress import waiting

if TYPE_CHECKING:
    from roibeam.pipelines.conformance.checks import Check
    from roibeam.pipelines.conformance.runner import CaseResult


def conformance_command(
    folder: Annotated[
        Path | None,
        argument("DIR", "Reference arrays, as FAMILY/CASE.npz, or the folder of one family [default: tests/goldens]."),
    ] = None,
    only: Annotated[str | None, option("only")] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Compares our code with reference arrays of the published codes.

    Prints for each array its largest error, what is allowed, and whether it fits. A case of true size takes up to a
    minute. A case whose photos are missing is listed as not run. The exit code is 1 if an array does not fit or a case
    is not known. See docs/fidelity.md.

    Examples:
        roibeam conformance
        roibeam conformance tests/goldens --only "vilbert/*"
    """
    from roibeam.pipelines.common.console.command_files import check_named_files
    from roibeam.pipelines.conformance.places import check_some_file_matches, default_folder

    folder = folder or default_folder()
    check_named_files([("DIR", folder)])
    if only is not None:
        check_some_file_matches(folder, only)
    with waiting("loading torch"):
        from roibeam.pipelines.conformance.runner import run_conformance  # torch: after the folder was looked at

    results = []
    for result in run_conformance(folder, only):
        results.append(result)
        if not as_json:
            for check in result.checks if result.known else ():
                typer.echo(_line(result.name, check))
            typer.echo(f"{result.name}: {_verdict(result)}")
    passed = all(result.passed or result.not_run for result in results)
    if as_json:
        typer.echo(json_line({"folder": str(folder), "passed": passed, "cases": [_plain(r) for r in results]}))
    else:
        typer.echo(_summary(folder, results))
    if not passed:
        raise typer.Exit(1)


def _line(case: str, check: Check) -> str:
    verdict = "ok" if check.passed else "MISS"
    note = f"; {check.note}" if check.note else ""
    return f"{case}  {check.array:<22} {check.error:>9.2e}  <= {check.tolerance:<7.1e} {verdict:<4}  {check.rule}{note}"


def _verdict(result: CaseResult) -> str:
    if result.not_run:
        return f"not run: {result.not_run}"
    count = len(result.checks)
    missed = sum(not check.passed for check in result.checks)
    said = f"{missed} of {count} comparisons MISS" if missed else f"{count} comparisons ok"
    if not result.known:
        said = "; ".join(check.note.replace("unknown case", "UNKNOWN CASE") for check in result.checks)
    return f"{said}, {result.seconds:.1f} s"


def _summary(folder: Path, results: list[CaseResult]) -> str:
    checks = [check for result in results if result.known for check in result.checks]
    missed, unknown = sum(not check.passed for check in checks), sum(not result.known for result in results)
    not_run = sum(bool(result.not_run) for result in results)
    line = f"{folder}: {len(results) - unknown - not_run} cases, {len(checks)} comparisons"
    line += ", all within tolerance" if not missed and not unknown else f", {missed} MISS, {unknown} unknown cases"
    return f"{line}; {not_run} not run" if not_run else line


def _plain(result: CaseResult) -> dict[str, Any]:
    return {
        "case": result.name,
        "known": result.known,
        "passed": result.passed,
        "seconds": round(result.seconds, 3),
        "not_run": result.not_run,
        "checks": [
            {
                "array": check.array,
                # JSON knows no infinity; null means that nothing could be compared.
                "error": check.error if math.isfinite(check.error) else None,
                "tolerance": check.tolerance,
                "rule": check.rule,
                "passed": check.passed,
                "note": check.note,
            }
            for check in result.checks
        ],
    }


def leaks_command(
    images: Annotated[
        str, argument("SOURCE_OR_STORE", "What extract takes, a store's folder, or that of a training run.")
    ],
    held_out: Annotated[list[str], HELD_OUT_NEEDED],
    photos: Annotated[
        str | None,
        option("photos", "Or a URL. For a list or annotation file.", default="found near that file"),
    ] = None,
    numbers_of: Annotated[str | None, NUMBERS_OF] = None,
    id_rule: Annotated[str, ID_RULE] = "no-extension",
    caption_column: Annotated[str, CAPTION_COLUMN] = "",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Tells which images are test images of a benchmark.

    Of a training run it tells which of them its model was trained on, runs that it started from included. The exit
    code is 1 if there are any.

    Examples:
        roibeam leaks store/ --held-out karpathy=dataset_coco.json
        roibeam leaks run/ --held-out vqa=vqa/ --held-out 'refcoco+=refs(unc).p'
    """
    from roibeam.pipelines.data.held_out import find_leaks
    from roibeam.pipelines.training.run_folder.files import CHECKPOINTS
    from roibeam.pipelines.training.run_folder.training_data import is_told, trained_report

    if is_told(Path(images)) or (Path(images) / CHECKPOINTS).is_dir():
        report = trained_report(Path(images), held_out)
    else:
        report = find_leaks(
            images, held_out, image_root=photos, id_rule=id_rule, images_of=numbers_of, caption_column=caption_column
        )
    if as_json:
        typer.echo(json_line({"source": images, **report.to_json()}))
    else:
        typer.echo("\n".join(report.lines()))
        typer.echo(f"{images}: {len(report.leaked):,} of {counted(report.images, 'image')} held out")
    if report.leaked:
        raise typer.Exit(1)


PIPELINE = "roibeam.pipelines.extract.beam_extraction"  # by its name: the pool does not need torch, its workers do


def worker_pool_command(
    port: Annotated[int, option("port")] = 50000,
    host: Annotated[
        str, option("host", "One that other machines reach needs a token; one pool on each machine needs none such.")
    ] = "localhost",
    pool_token_file: Annotated[
        Path | None, option("pool-token-file", "Without one, every user of this machine can run code as you.")
    ] = None,
) -> None:
    """Starts Beam workers on this machine, for Flink or Spark.

    Start one beside each TaskManager, with the same Python and the same roibeam. It runs until Ctrl-C.

    Examples:
        roibeam worker-pool --pool-token-file token
    """
    from roibeam.pipelines.extract.runners.pool_token import read_token
    from roibeam.pipelines.extract.runners.worker_pool import serve_worker_pool

    token = None if pool_token_file is None else read_token(pool_token_file)
    serve_worker_pool(PIPELINE, host, port, token)
