"""`roibeam progress` of one store or several, such as those of the jobs of an array."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from roibeam.features.counted import counted
from roibeam.features.folders.folder_choice import output_folder
from roibeam.pipelines.common.console.duration import duration
from roibeam.pipelines.common.console.progress import IMAGES
from roibeam.pipelines.common.console.progress_text import failed
from roibeam.pipelines.extract.report.store_status import (
    FINISHED,
    RUNNING,
    NotPlannedError,
    Status,
    StatusView,
    status_json,
    status_text,
)

NOT_BEGUN = "not begun"
_LISTED = 40


@dataclass(frozen=True)
class SeveralStatus:
    """One look at each store; None for one in which no run has planned anything yet."""

    looks: dict[str, Status | None]

    @property
    def is_well(self) -> bool:
        """Whether each run is at work, or ended as it should."""
        return all(status is not None and status.is_well for status in self.looks.values())

    @property
    def is_over(self) -> bool:
        """Whether no later look can be another, unless somebody starts a run."""
        return all(status is not None and status.is_over for status in self.looks.values())

    @property
    def has_work(self) -> bool:
        """Whether a run is at work."""
        return any(status.state == RUNNING for status in self._planned())

    def json_lines(self) -> Iterator[dict[str, Any]]:
        """An object for each store."""
        for store, status in self.looks.items():
            if status is None:
                yield {"event": "progress", "store": store, "state": NOT_BEGUN}
            else:
                yield status_json(status, store)

    def text(self) -> str:
        """One store as `status_text` has it. Of several the sums, how many are in each state, and a line for each that
        neither works nor has finished."""
        planned = self._planned()
        if len(self.looks) == 1:
            return status_text(planned[0])
        states = {store: NOT_BEGUN if status is None else status.state for store, status in self.looks.items()}
        counts = ", ".join(f"{count:,} {state}" for state, count in Counter(states.values()).most_common())
        lines = [_sums(planned), f"{counted(len(self.looks), 'store')}: {counts}"]
        others = [store for store, state in states.items() if state not in (RUNNING, FINISHED)]
        lines += [f"  {states[store]:<9}  {store}{_detail(self.looks[store])}" for store in others[:_LISTED]]
        if len(others) > _LISTED:
            lines.append(f"  and {len(others) - _LISTED:,} more; --json tells all")
        return "\n".join(lines)

    def _planned(self) -> list[Status]:
        return [status for status in self.looks.values() if status is not None]


class SeveralView:
    """Reads how far the runs of stores are, again and again.

    Raises:
        NotPlannedError: when a look at one store alone finds no run; of several it may come later.
    """

    def __init__(self, stores: Sequence[str]) -> None:
        self._views: dict[str, StatusView | None] = dict.fromkeys(stores)

    def read(self) -> SeveralStatus:
        return SeveralStatus({store: self._read(store) for store in self._views})

    def _read(self, store: str) -> Status | None:
        view = self._views[store]
        if view is None:
            try:
                view = self._views[store] = StatusView(output_folder(store))
            except NotPlannedError:
                if len(self._views) == 1:
                    raise
                return None
        return view.read()


def _sums(planned: Sequence[Status]) -> str:
    """Done and total of all; rate, and time left of the run that ends last; failures by reason."""
    done, total = sum(status.standing.images for status in planned), sum(status.plan.num_images for status in planned)
    at_work = [status for status in planned if status.state == RUNNING]
    parts = [f"{done:,} of {IMAGES.counted(total)}"]
    rate = sum(status.images_per_second for status in at_work)
    if rate > 0:
        longest = max(status.eta_seconds for status in at_work if status.eta_seconds is not None)
        parts += [IMAGES.rate(rate), f"{duration(longest)} left of what is at work"]
    failures = sum((status.standing.failures for status in planned), Counter[str]())
    return ", ".join([*parts, failed(failures)] if failures else parts)


def _detail(status: Status | None) -> str:
    if status is None:
        return ": no run has planned a store there yet"
    found = f": {status.standing.images:,} of {IMAGES.counted(status.plan.num_images)}"
    return found if status.error is None else f"{found}; {status.error}"
