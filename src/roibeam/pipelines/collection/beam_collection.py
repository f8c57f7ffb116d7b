"""Beam pipelines of a collection, with the job of a worker on a unit of pages (steps 1 to 4).

Create(units) | Reshuffle | DoUnits | count

Units are the elements; each worker does a unit from end to end and writes its part.
"""

from __future__ import annotations

import functools
import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineRunner

from roibeam.messages import printable
from roibeam.pipelines.collection.page_process import PageProcess
from roibeam.pipelines.collection.page_steps import PageOutcome
from roibeam.pipelines.collection.page_units import PageUnit
from roibeam.pipelines.collection.pairs import BrokenPage, Page, PageCandidate
from roibeam.pipelines.collection.part import Counts, FinishedParts, UnitJob
from roibeam.pipelines.collection.thresholds import Thresholds
from roibeam.pipelines.common.console.progress import Progress, Unit
from roibeam.pipelines.extract.request import RunnerChoice
from roibeam.pipelines.extract.runners.pipeline_run import check_runner, run_pipeline
from roibeam.pipelines.extract.shard.process_setup import running_shard, shards_must_stop

RULES_VERSION = 1  # of the rules of steps 1 to 4; parts of another version are made again


@dataclass(frozen=True)
class PageJob(UnitJob):
    """Steps 1 to 4 on a unit."""

    thresholds: Thresholds

    def fingerprint(self, unit: PageUnit) -> str:
        limits = self.thresholds
        settings = [asdict(each) for each in (limits.page, limits.language, limits.image, limits.text)]
        return json.dumps([RULES_VERSION, unit.state, settings], sort_keys=True)

    def rows(self, unit: PageUnit, counts: Counts) -> Iterator[PageCandidate]:
        with PageProcess(self.thresholds) as process:
            for outcome in self._outcomes(unit, process):
                _count(outcome, counts)
                if outcome.candidate is not None:
                    yield outcome.candidate

    def _outcomes(self, unit: PageUnit, process: PageProcess) -> Iterator[PageOutcome]:
        """Yields one for each page or broken record; broken ones come before the pages read ahead with them."""
        broken: deque[BrokenPage] = deque()

        def pages() -> Iterator[Page]:
            for found in unit.pages(max_bytes=self.thresholds.page.max_bytes):
                if isinstance(found, BrokenPage):
                    broken.append(found)
                else:
                    yield found

        for outcome in process.outcomes(pages()):
            yield from _broken_outcomes(broken)
            yield outcome
        yield from _broken_outcomes(broken)


def _broken_outcomes(broken: deque[BrokenPage]) -> Iterator[PageOutcome]:
    while broken:
        page = broken.popleft()
        yield PageOutcome(page.place, None, page.reason, page.detail)


def _count(outcome: PageOutcome, counts: Counts) -> None:
    counts.taken += 1
    is_kept = outcome.candidate is not None
    counts.kept += is_kept
    if outcome.reason is not None:
        example = {"page": printable(outcome.page_url, 300), "detail": printable(outcome.detail, 200)}
        counts.drop(outcome.reason.value, example)
    for text in outcome.dropped_texts:
        counts.text_reasons[text.reason.value] += 1
        example = {
            "page": printable(outcome.page_url, 300),
            "text": printable(text.text, 200),
            "source": text.source.value,
        }
        counts.add_example(text.reason.value, example)
    if outcome.candidate is not None:
        for kept in outcome.candidate.image.texts:
            counts.words[len(kept.text.split())] += 1
    if host := urlsplit(outcome.page_url).hostname:
        counts.count_host(host, 1, is_kept)


PIPELINE = __name__  # for workers to import before they have threads
METRICS = "roibeam-collect"
UNITS = Unit("unit", "units")
_LOOK_SECONDS = 2.0


class DoUnits(beam.DoFn):
    """Does a unit; gives 1 once its part is written."""

    def __init__(self, job: UnitJob) -> None:
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
    """Checks the runner as `check_runner`, before anything is written."""
    check_runner(choice, preload=PIPELINE, device="cpu")


def run_units(job: UnitJob, units: Sequence[Any], choice: RunnerChoice, *, what: str, as_json: bool = False) -> None:
    """Does all units that are not done, on the requested runner."""
    missing = [unit for unit in units if not job.is_done(unit)]
    if not missing:
        return
    view = FinishedParts(Path(job.folder), [unit.number for unit in missing])
    with Progress(what, len(missing), UNITS, view=view.read, least_seconds=_LOOK_SECONDS, as_json=as_json):
        run_pipeline(
            functools.partial(_pipeline, job, missing), choice, preload=PIPELINE, device="cpu", namespace=METRICS,
            num_elements=len(missing),
        )  # fmt: skip


def _pipeline(
    job: UnitJob, units: Sequence[Any], options: PipelineOptions, runner: PipelineRunner | None
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
