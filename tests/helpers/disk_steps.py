"""What a piece of code asks of the disk, in order: a power cut cannot be tried, what would survive it can be told."""

import os
import stat

import pytest


def noted_disk_steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows with each step from now on: "file" and "folder" where one is made durable, "replace", "rename"
    and "link" where a file gets a name. Each is done as well as noted."""
    steps: list[str] = []

    def note(name: str) -> None:
        real = getattr(os, name)

        def noted(*arguments: object, **options: object) -> object:
            if name == "fsync":
                steps.append("folder" if stat.S_ISDIR(os.fstat(arguments[0]).st_mode) else "file")  # type: ignore[arg-type]
            else:
                steps.append(name)
            return real(*arguments, **options)

        monkeypatch.setattr(os, name, noted)

    for name in ("fsync", "replace", "rename", "link"):
        note(name)
    return steps
