"""One row from URL to image, with as many attempts as it is worth."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import Executor

from roibeam.pipelines.data.download.failures import DownloadError
from roibeam.pipelines.data.download.fetcher import Fetcher
from roibeam.pipelines.data.download.image_files import ImageFiles, StoredImage
from roibeam.pipelines.data.download.journal import FailedRow, Outcome
from roibeam.pipelines.data.download.limits import DownloadLimits

LONGEST_BACKOFF_SECONDS = 60.0


class RowDownload:
    """
    Args:
        checks: threads in which images are checked and moved to their place.
        seed: of the waits between attempts; a row waits equally long in every run of one seed.
    """

    def __init__(
        self, fetcher: Fetcher, files: ImageFiles, limits: DownloadLimits, *, checks: Executor, seed: int
    ) -> None:
        self._fetcher, self._files, self._limits = fetcher, files, limits
        self._checks, self._seed = checks, seed

    async def run(self, row: int, url: str) -> Outcome:
        """
        Raises:
            LocalFaultError: if this machine is to blame.
        """
        attempt = 1
        while True:
            try:
                return await self._attempt(row, url)
            except DownloadError as error:
                if not error.may_pass or attempt == self._limits.attempts:
                    again = f" ({attempt} attempts)" if attempt > 1 else ""
                    return FailedRow(error.stage, error.reason, error.detail + again)
                wait = self._backoff_seconds(row, attempt) if error.wait_seconds is None else error.wait_seconds
            await asyncio.sleep(wait)
            attempt += 1

    async def _attempt(self, row: int, url: str) -> StoredImage:
        try:
            await self._fetcher.fetch(url, lambda: self._files.open_scratch(row))
            return await asyncio.get_running_loop().run_in_executor(self._checks, self._files.keep, row)
        finally:
            self._files.scratch(row).unlink(missing_ok=True)

    def _backoff_seconds(self, row: int, attempt: int) -> float:
        """Twice as long each time, and at random, so that rows which failed together do not come back together."""
        generator = random.Random(f"{self._seed} {row} {attempt}")
        seconds = self._limits.backoff_seconds * 2 ** (attempt - 1) * generator.uniform(0.5, 1.5)
        return min(seconds, LONGEST_BACKOFF_SECONDS)
