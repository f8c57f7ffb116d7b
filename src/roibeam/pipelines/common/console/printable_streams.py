"""Standard output and error that write plain text only: all that is printed, logged or raised passes here.

Names and messages of a foreign store, file or server could move the cursor, set the title of the window or reorder a
line; here control characters are spelled as escapes. Only newlines, tabs and `Unchanged` pass.
"""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO, cast

from roibeam.features.folders.durable_files import naming_file
from roibeam.messages import on_a_line


class Unchanged(str):
    """Text that passes as it is: roibeam's own codes for the terminal, and ids that go into a file exactly."""

    __slots__ = ()

    def __add__(self, after: str) -> Unchanged:  # as typer's echo adds the newline
        return Unchanged(str(self) + after)


class PrintableStream:
    """A text stream with a safe `write`. All other attributes are those of the stream below."""

    # Typer's echo would take the file below, where this is not UTF-8.
    encoding, errors = "utf-8", "strict"

    def __init__(self, below: TextIO, name: str) -> None:
        """Args: name: for errors of a full disk that it goes to, such as <stdout>."""
        self.below, self._name = below, Path(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)

    def write(self, text: str) -> int:
        with naming_file(self._name):
            self.below.write(text if isinstance(text, Unchanged) else self._escaped(text))
        return len(text)

    def flush(self) -> None:
        with naming_file(self._name):
            self.below.flush()

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def _escaped(self, text: str) -> str:
        text = "\n".join("\t".join(map(on_a_line, line.split("\t"))) for line in text.split("\n"))
        if text.isascii():
            return text
        known = self.below.encoding or "utf-8"
        return text.encode(known, "backslashreplace").decode(known)


def terminal_below(stream: TextIO) -> TextIO:
    """Returns the stream that takes codes, for code that draws on a terminal and escapes its text itself."""
    return stream.below if isinstance(stream, PrintableStream) else stream


@contextmanager
def printable_streams() -> Iterator[None]:
    """While the block runs, standard output and error are printable; a stream that a shell has closed stays so."""
    before = sys.stdout, sys.stderr
    for each in before:
        if isinstance(each, TextIOWrapper) and codecs.lookup(each.encoding).name == "ascii":  # of a bare environment
            each.reconfigure(encoding="utf-8")
    sys.stdout, sys.stderr = (
        cast("TextIO", each and PrintableStream(each, name))
        for each, name in zip(before, ("<stdout>", "<stderr>"), strict=True)
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
