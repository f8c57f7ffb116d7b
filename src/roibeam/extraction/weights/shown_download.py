"""How far a download of weights is: shown by a program that has a place for it, else by a bar of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

# Of a name and a length in bytes, None where the far side does not tell; gives what is called with the bytes that came.
ShownBy = Callable[[str, int | None], AbstractContextManager[Callable[[int], None]]]


@contextmanager
def own_bar(name: str, length: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error where that is a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=length)
        yield lambda count: bar.update(task, advance=count)


_shown_by: ShownBy = own_bar


def show_downloads(by: ShownBy) -> None:
    """From now on downloads of this process are shown by `by`."""
    global _shown_by
    _shown_by = by


def shown_download(name: str, length: int | None) -> AbstractContextManager[Callable[[int], None]]:
    """Around a download; call what it gives with the number of each block's bytes."""
    return _shown_by(name, length)
