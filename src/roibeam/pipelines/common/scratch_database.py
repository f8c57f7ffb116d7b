"""Temporary database for tables too large for memory: a file that only its connection sees, gone with it."""

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any


class ScratchDatabase:
    """A private SQLite database in the folder for temporary files (SQLITE_TMPDIR, TMPDIR), in memory while it is small.

    One thread and one process at a time may use it. Errors are OSErrors that name the folder to look at.
    """

    def __init__(self, *statements: str) -> None:
        self._connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        pragmas = ("cache_size = -32768", "temp_store = FILE", "journal_mode = OFF", "synchronous = OFF")
        for statement in (*(f"PRAGMA {pragma}" for pragma in pragmas), *statements):
            self._connection.execute(statement)

    def rows(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """Returns all rows of a query that has few; none for any other statement."""
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.OperationalError as error:
            raise _trouble(error) from None

    def stream(self, statement: str, values: tuple[Any, ...] = ()) -> Iterator[Any]:
        """Yields the rows of a query one at a time; several queries may run at once."""
        try:
            yield from self._connection.execute(statement, values)
        except sqlite3.OperationalError as error:
            raise _trouble(error) from None

    def add(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Runs one statement for each row, as one transaction; the rows come one at a time.

        Rows before an error of `rows` are kept: without a journal there is no way back.
        """
        try:
            self._connection.execute("BEGIN")
            try:
                self._connection.executemany(statement, rows)
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise _trouble(error) from None


def _trouble(error: sqlite3.OperationalError) -> OSError:
    return OSError(f"a scratch database for temporary data: {error}; is there room in TMPDIR (default /var/tmp, /tmp)?")
