"""A worker's side of steps 1 to 4: one unit of pages -> candidates."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from roibeam.features.printable import printable
from roibeam.pipelines.collection.looking.page_process import PageProcess
from roibeam.pipelines.collection.looking.page_steps import PageOutcome
from roibeam.pipelines.collection.page import Page
from roibeam.pipelines.collection.reading.broken import BrokenPage
from roibeam.pipelines.collection.reading.page_units import PageUnit
from roibeam.pipelines.collection.running.part import Counts, PartWriter, is_done
from roibeam.pipelines.collection.thresholds import Thresholds

RULES_VERSION = 1  # of what steps 1 to 4 do; parts of another version are made again


@dataclass(frozen=True)
class PageJob:
    """Plain and picklable; travels to the workers.

    Attributes:
        folder: where parts go; seen by all workers.
    """

    folder: str
    thresholds: Thresholds

    def fingerprint(self, unit: PageUnit) -> str:
        limits = self.thresholds
        settings = [asdict(each) for each in (limits.page, limits.language, limits.image, limits.text)]
        return json.dumps([RULES_VERSION, unit.state, settings], sort_keys=True)

    def is_done(self, unit: PageUnit) -> bool:
        return is_done(Path(self.folder), unit.number, self.fingerprint(unit))

    def do(self, unit: PageUnit) -> None:
        counts = Counts()
        with (
            PartWriter(Path(self.folder), unit.number, self.fingerprint(unit)) as part,
            PageProcess(self.thresholds) as process,
        ):
            for outcome in self._outcomes(unit, process):
                _count(outcome, counts)
                if outcome.candidate is not None:
                    part.write(asdict(outcome.candidate))
            part.finish(counts)

    def _outcomes(self, unit: PageUnit, process: PageProcess) -> Iterator[PageOutcome]:
        """One for each page or broken record; broken ones come before the pages read ahead with them."""
        broken: deque[BrokenPage] = deque()

        def pages() -> Iterator[Page]:
            for found in unit.pages(max_bytes=self.thresholds.page.max_bytes):
                if isinstance(found, BrokenPage):
                    broken.append(found)
                else:
                    yield found

        for outcome in process.outcomes(pages()):
            yield from _told(broken)
            yield outcome
        yield from _told(broken)


def _told(broken: deque[BrokenPage]) -> Iterator[PageOutcome]:
    while broken:
        page = broken.popleft()
        yield PageOutcome(page.place, None, page.reason, page.detail)


def _count(outcome: PageOutcome, counts: Counts) -> None:
    counts.taken += 1
    is_kept = outcome.candidate is not None
    counts.kept += is_kept
    if outcome.reason is not None:
        counts.reasons[outcome.reason.value] += 1
        example = {"page": printable(outcome.page_url, 300), "detail": printable(outcome.detail, 200)}
        counts.add_example(outcome.reason.value, example)
    for text in outcome.dropped_texts:
        counts.text_reasons[text.reason.value] += 1
        said = {
            "page": printable(outcome.page_url, 300),
            "text": printable(text.text, 200),
            "source": text.source.value,
        }
        counts.add_example(text.reason.value, said)
    if outcome.candidate is not None:
        for kept in outcome.candidate.image.texts:
            counts.words[len(kept.text.split())] += 1
    if host := urlsplit(outcome.page_url).hostname:
        counts.count_host(host, is_kept=is_kept)
