"""A JSON object read field by field, for manifests: nothing in it is believed before it is checked."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import Any

from roibeam.features.record.fingerprint import Fingerprint


def parse_json(data: bytes, path: str | os.PathLike[str]) -> Any:
    """Raises ValueError naming `path` for what is no JSON; NaN and infinity are none."""
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: is not JSON ({error}); restore it or run the command that wrote it again") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


class JsonFields:
    """A JSON object being read: each method takes one field, and a complaint names file, field, want and got."""

    def __init__(self, value: Any, where: str) -> None:
        self._where = where
        if not isinstance(value, dict):
            raise self.wrong("content", "an object", value)
        self._value = value

    def wrong(self, name: str, want: str, got: object) -> ValueError:
        shown = repr(got)
        shown = shown if len(shown) <= 200 else shown[:200] + "..."
        return ValueError(
            f"{self._where}: {name} must be {want}, got {shown}; "
            f"restore the file from a copy or run the command that wrote it again"
        )

    def format(self, want: str, want_version: int) -> None:
        found, version = self.text("format"), self.count("version")
        if found != want:
            raise ValueError(f"{self._where}: format is {found!r}, expected {want!r}; is this the right file?")
        if version != want_version:
            raise ValueError(
                f"{self._where}: {want} version {version}, this roibeam reads {want_version}; "
                f"read it with the version that wrote it"
            )

    def or_none(self, take: Callable[[str], str], name: str) -> str | None:
        """As `take`, one of the methods below, for a field that may be null."""
        value = self._take(name, "there (null when it has no value)", lambda value: True)
        return None if value is None else take(name)

    def text(self, name: str) -> str:
        return self._take(name, "a string", lambda value: isinstance(value, str))

    def count(self, name: str) -> int:
        return self._take(name, "an integer from 0", lambda value: type(value) is int and 0 <= value < 2**63)

    def digest(self, name: str) -> str:
        def is_digest(value: object) -> bool:
            return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None

        return self._take(name, "64 hex digits", is_digest)

    def mapping(self, name: str) -> dict[str, Any]:
        return self._take(name, "an object", lambda value: isinstance(value, dict))

    def items(self, name: str) -> list[Any]:
        return self._take(name, "a list", lambda value: isinstance(value, list))

    def names(self, name: str) -> tuple[str, ...] | None:
        def is_names(value: object) -> bool:
            return value is None or (isinstance(value, list) and all(isinstance(one, str) for one in value))

        value = self._take(name, "null or a list of strings", is_names)
        return None if value is None else tuple(value)

    def file_name(self, name: str) -> str:
        """A name that cannot leave the folder of the manifest."""

        def is_plain(value: object) -> bool:
            return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}", value) is not None

        return self._take(name, "a plain file name in the same folder (no separator, no '..')", is_plain)

    def fingerprint(self, name: str) -> Fingerprint:
        inner = JsonFields(self.mapping(name), f"{self._where}: {name}")
        details = inner.mapping("details") if "details" in inner._value else {}
        try:
            return Fingerprint(inner.text("feature_space"), inner.mapping("numerics"), details)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self._where}: {error}") from None

    def _take(self, name: str, want: str, fits: Callable[[Any], bool]) -> Any:
        if name not in self._value:
            raise self.wrong(name, want, "nothing: the field is missing")
        value = self._value[name]
        if not fits(value):
            raise self.wrong(name, want, value)
        return value
