"""The Beam pipelines: units are the elements; each worker does a unit from end to end and writes its part.

Create(units) | Reshuffle | DoUnits | count
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineRunner

from roibeam.pipelines.collection.running import page_job as _page_job  # noqa: F401  workers import it with this file
from roibeam.pipelines.collection.running.part import FinishedParts
from roibeam.pipelines.common.console.progress import Progress, Unit
from roibeam.pipelines.extract.runners.pipeline_run import RunnerChoice, check_runner, run_pipeline
from roibeam.pipelines.extract.shard.running_shards import running_shard, shards_must_stop

PIPELINE = __name__  # for workers to import before they have threads
METRICS = "roibeam-collect"
UNITS = Unit("unit", "units")
_LOOK_SECONDS = 2.0


class WorkUnit(Protocol):
    """A unit of pages or of pictures: a number from 0, which names its part."""

    @property
    def number(self) -> int: ...


U = TypeVar("U", bound=WorkUnit, contravariant=True)
V = TypeVar("V", bound=WorkUnit)


class UnitJob(Protocol[U]):
    """What is done with a unit; picklable. Doing a finished one again costs nothing."""

    @property
    def folder(self) -> str: ...

    def is_done(self, unit: U) -> bool: ...

    def do(self, unit: U) -> None: ...


class DoUnits(beam.DoFn):
    """Unit -> 1, once its part is written."""

    def __init__(self, job: UnitJob[Any]) -> None:
        self._job = job

    def process(self, unit: object) -> Iterator[int]:
        if not self._job.is_done(unit):
            if shards_must_stop():
                raise RuntimeError("stopped with the run")
            with running_shard():
                self._job.do(unit)
            Metrics.counter(METRICS, "units").inc()
        yield 1


def check_units_runner(choice: RunnerChoice) -> None:
    """As `check_runner`, before anything is written."""
    check_runner(choice, preload=PIPELINE, device="cpu")


def run_units(job: UnitJob[V], units: Sequence[V], choice: RunnerChoice, *, what: str, as_json: bool = False) -> None:
    """Does all units that are not done, on the runner that was asked for.

    Args:
        what: is done, for the progress line.
        as_json: that line as JSON on standard output.
    Raises:
        ValueError, OSError, RuntimeError: whatever stopped a worker.
    """
    missing = [unit for unit in units if not job.is_done(unit)]
    if not missing:
        return
    view = FinishedParts(Path(job.folder), [unit.number for unit in missing])
    with Progress(what, len(missing), UNITS, view=view, least_seconds=_LOOK_SECONDS, as_json=as_json):
        run_pipeline(
            functools.partial(_pipeline, job, missing), choice, preload=PIPELINE, device="cpu", namespace=METRICS,
            num_elements=len(missing),
        )  # fmt: skip


def _pipeline(
    job: UnitJob[Any], units: Sequence[object], options: PipelineOptions, runner: PipelineRunner | None
) -> beam.Pipeline:
    pipeline = beam.Pipeline(runner=runner, options=options)
    _ = (
        pipeline
        | "Units" >> beam.Create(list(units), reshuffle=False)  # else they are spread twice
        | "Spread" >> beam.Reshuffle()
        | "Do" >> beam.ParDo(DoUnits(job))
        | "Count" >> beam.CombineGlobally(sum).without_defaults()
    )
    return pipeline
