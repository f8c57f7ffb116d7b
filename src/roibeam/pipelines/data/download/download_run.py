"""A whole download and its options: missing images are fetched, journaled, and made into captions and a summary.

`RowDownload` makes as many attempts at a row as it is worth. `OutageWatch` distinguishes dead links from a dead
network: the former are data, the latter would make dead letters of everything.
"""

from __future__ import annotations

import asyncio
import logging
import random
import resource
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp.abc import AbstractResolver

from roibeam.features.folders.durable_files import fsync_folder
from roibeam.features.folders.folder_protocol import store_lock
from roibeam.features.folders.kept_work import remove_unfinished
from roibeam.messages import plural
from roibeam.pipelines.common.console.progress import Progress, ProgressState, waiting
from roibeam.pipelines.data.datasets.photo_folders import DOWNLOAD_NAME
from roibeam.pipelines.data.datasets.rows import UrlRow
from roibeam.pipelines.data.datasets.tables import UrlColumns
from roibeam.pipelines.data.download.download_folder import (
    JOURNAL_NAME,
    Coverage,
    FailedRow,
    ImageFiles,
    Journal,
    RowOutcome,
    StoredImage,
    write_outputs,
)
from roibeam.pipelines.data.download.fetcher import Fetcher, open_fetcher
from roibeam.pipelines.data.download.limits import AddressRule, DownloadLimits
from roibeam.pipelines.data.download.response import DownloadError, LocalFaultError
from roibeam.pipelines.data.download.url_list import UrlList


@dataclass(frozen=True)
class DownloadOptions:
    """Options of a download. Raises ValueError for a network that is none, or a name that no header can hold.

    Attributes:
        limits: see there.
        allow_private: networks that may be connected to although they are not public.
        retry_dead_letters: try the URLs again that failed in earlier runs.
        seed: of the waits between attempts.
        user_agent: name in requests; None means roibeam and its version.
        as_json: progress as JSON lines on standard output.
        reads_robots_txt: whether each host's robots.txt is read before its images.
    """

    limits: DownloadLimits = field(default_factory=DownloadLimits)
    allow_private: tuple[str, ...] = ()
    retry_dead_letters: bool = False
    seed: int = 0
    user_agent: str | None = None
    as_json: bool = False
    reads_robots_txt: bool = False
    columns: UrlColumns = field(default_factory=UrlColumns)

    def __post_init__(self) -> None:
        self.address_rule()
        if self.user_agent is not None and not (self.user_agent.isascii() and self.user_agent.isprintable()):
            raise ValueError(f"--user-agent {self.user_agent!r}: expected letters, digits and signs of ASCII")

    def address_rule(self) -> AddressRule:
        """Rule for the addresses that may be connected to."""
        return AddressRule(self.allow_private)


_LONGEST_SILENCE = 400  # rows one after another of which no host answered
_FEWEST_HOSTS = 100  # of them; a list may have many rows of one dead host
_SILENT = frozenset({"host not found", "no connection", "timeout"})


class OutageWatch:
    """Takes outcomes as they come, and gives back those that are sure.

    An outcome without an answer is held back until a host has answered after it: if none does, these rows have no
    outcome, and the next run does them again.
    """

    def __init__(self) -> None:
        self._held: deque[tuple[int, RowOutcome]] = deque()
        self._hosts = set[str]()

    def note(self, row: int, url: str, outcome: RowOutcome) -> list[tuple[int, RowOutcome]]:
        """The outcomes to be written down now, of this row or earlier ones. Raises LocalFaultError if so many rows of
        so many hosts got no answer that it cannot be the hosts' fault."""
        if isinstance(outcome, FailedRow) and outcome.stage == "url":
            return [(row, outcome)]  # without a request
        self._held.append((row, outcome))
        if not (isinstance(outcome, FailedRow) and outcome.reason in _SILENT):
            self._hosts.clear()
            return self.release()
        if len(self._hosts) < _FEWEST_HOSTS:
            self._hosts.add(_host(url))
        if len(self._held) < _LONGEST_SILENCE:
            return []
        if len(self._hosts) >= _FEWEST_HOSTS:
            raise LocalFaultError(
                f"none of the last {len(self._held)} URLs, on {_FEWEST_HOSTS} hosts or more, got an answer: is the "
                f"network up? Nothing is lost, run again"
            )
        return [self._held.popleft()]

    def release(self) -> list[tuple[int, RowOutcome]]:
        """Gives back all that is held back: the list is at its end."""
        held = list(self._held)
        self._held.clear()
        return held


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


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

    async def run(self, row: int, url: str) -> RowOutcome:
        """Final outcome of a row; LocalFaultError if this machine is to blame."""
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


log = logging.getLogger(__name__)
_ROWS_PER_CONNECTION = 16  # rows that wait for a turn or the next attempt keep no connection
_CHECK_THREADS = 2
_READ_THREADS, _FILES_AT_ONCE = 8, 1000  # for a disk that answers late
_NAME_THREADS = 32  # a name server that does not answer holds a thread for half a minute
_FLUSH_SECONDS = 1.0


def run_download(
    rows: str, out: Path, options: DownloadOptions, *, resolver: AbstractResolver | None = None
) -> Coverage:
    """Downloads the images of the list `rows` into `out`. A rerun does what is missing.

    Args:
        resolver: of host names; None means the system's.
    Raises:
        ValueError: if `rows` is no list, or `out` holds something else.
        LocalFaultError: a fault of this machine; what is done is kept.
    """
    rule = options.address_rule()
    url_list = UrlList(rows, options.columns)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out}: is a file; name a folder to download into")
    if out.is_dir() and not (out / JOURNAL_NAME).exists() and any(path.name != ".lock" for path in out.iterdir()):
        raise ValueError(f"{out}: is not empty and holds no download; name a new folder")
    out.mkdir(parents=True, exist_ok=True)
    _allow_open_files(options.limits)
    with store_lock(out):
        journal = Journal(
            out / JOURNAL_NAME, list_sha256=url_list.state, num_rows=url_list.last_row + 1,
            min_side=options.limits.min_side,
        )  # fmt: skip
        try:
            files = ImageFiles(out, max_pixels=options.limits.max_pixels, min_side=options.limits.min_side)
            files.start()
            remove_unfinished(out, ".+")
            _match(files, journal, url_list.last_row + 1)
            if options.retry_dead_letters:
                for row in journal.rows(stored=False):
                    journal.forget(row)
            (out / DOWNLOAD_NAME).unlink(missing_ok=True)  # it stands for a finished run
            fsync_folder(out)
            run = _Run(url_list, files, journal, rule, options, resolver)
            if run.read().images == url_list.num_urls:
                log.info("every URL has its image or its reason already; nothing to do")
            with Progress("downloading", url_list.num_urls, view=run.read, as_json=options.as_json):
                asyncio.run(run.download())
            files.finish()
            return write_outputs(out, url_list, journal)
        finally:
            journal.close()


class _Run:
    """The event loop's side: rows in, outcomes into the journal."""

    def __init__(
        self,
        url_list: UrlList,
        files: ImageFiles,
        journal: Journal,
        rule: AddressRule,
        options: DownloadOptions,
        resolver: AbstractResolver | None,
    ) -> None:
        self._url_list, self._files, self._journal = url_list, files, journal
        self._rule, self._options, self._resolver = rule, options, resolver
        self._num_stored, self._failures = journal.num_stored, Counter(journal.failures)
        self._unwritten: list[tuple[int, RowOutcome]] = []
        self._outage = OutageWatch()

    def read(self) -> ProgressState:
        """State for the progress line, from its own thread."""
        return ProgressState(self._num_stored, Counter(dict(self._failures)))

    async def download(self) -> None:
        """Fetches every row that has no outcome; what was done is in the journal also when it raises."""
        limits = self._options.limits
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_NAME_THREADS, "names"))
        agent = self._options.user_agent or f"Mozilla/5.0 (compatible; roibeam/{version('roibeam')})"
        rows = self._open_rows()
        try:
            with ThreadPoolExecutor(_CHECK_THREADS, "check") as checks, ThreadPoolExecutor(1, "journal") as writer:
                async with open_fetcher(
                    limits, self._rule, user_agent=agent, reads_robots_txt=self._options.reads_robots_txt,
                    resolver=self._resolver,
                ) as fetcher:  # fmt: skip
                    download = RowDownload(fetcher, self._files, limits, checks=checks, seed=self._options.seed)
                    async with asyncio.TaskGroup() as group:
                        flusher = group.create_task(self._flush_now_and_then(writer))
                        num_workers = limits.connections * _ROWS_PER_CONNECTION
                        await asyncio.wait([group.create_task(self._work(rows, download)) for _ in range(num_workers)])
                        flusher.cancel()
            self._unwritten += self._outage.release()
        except BaseExceptionGroup as group_of_errors:
            raise _first(group_of_errors) from None
        finally:
            self._flush()

    async def _work(self, rows: Iterator[tuple[int, str]], download: RowDownload) -> None:
        for row, url in rows:
            outcome = await download.run(row, url)
            if isinstance(outcome, FailedRow):
                self._failures[outcome.reason] += 1
            else:
                self._num_stored += 1
            self._unwritten += self._outage.note(row, url, outcome)

    def _open_rows(self) -> Iterator[tuple[int, str]]:
        for row, entry in self._url_list.rows():
            if isinstance(entry, UrlRow) and self._url_list.first_row(row) == row and not self._journal.is_known(row):
                yield row, entry.url

    async def _flush_now_and_then(self, writer: Executor) -> None:
        while True:
            await asyncio.sleep(_FLUSH_SECONDS)
            await asyncio.get_running_loop().run_in_executor(writer, self._flush)

    def _flush(self) -> None:
        """Writes images first, then their lines."""
        outcomes, self._unwritten = self._unwritten, []
        if not outcomes:
            return
        try:
            self._files.sync()
            self._journal.append(outcomes)
        except OSError as error:
            raise LocalFaultError(f"the journal cannot be written: {error.strerror}; run again") from error


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to report: tasks fail together when a disk is full."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def _allow_open_files(limits: DownloadLimits) -> None:
    """Raises the limit of open files to what the connections take, as far as the system allows."""
    needed = 256 + 2 * limits.connections  # a socket and a file each
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(f"--connections {limits.connections} takes {needed} open files, the system allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _match(files: ImageFiles, journal: Journal, num_rows: int) -> None:
    """Makes journal and files agree: files that it does not name go, rows whose file is not there, or has other bytes
    than were fetched, are open again."""
    is_there = bytearray(num_rows)
    damaged, found = [], files.files()
    with ThreadPoolExecutor(_READ_THREADS, "sums") as pool, waiting("comparing images with their sums"):
        while some := list(islice(found, _FILES_AT_ONCE)):
            sums = pool.map(files.sha256, [path for _, path, _ in some])
            for (row, path, num_bytes), sha256 in zip(some, sums, strict=True):
                outcome = journal.outcome(row)
                if outcome == StoredImage(path, num_bytes, sha256):
                    is_there[row] = True
                    continue
                if isinstance(outcome, FailedRow):
                    journal.forget(row)  # it came later, and its line is lost
                elif outcome is not None and outcome.path == path:
                    damaged.append(path)
                files.remove(path)
    if damaged:
        log.warning(
            "%s: %s other bytes than were fetched, such as %s; fetching again", files.folder,
            plural(len(damaged), "image has", "images have"), damaged[0],
        )  # fmt: skip
    for row in journal.rows(stored=True):
        if not is_there[row]:
            journal.forget(row)
