"""Files of data sets, found in a folder by their official names."""

from __future__ import annotations

from pathlib import Path


class MissingFileError(ValueError):
    """A folder does not have a file of a data set."""


def find_file(folder: Path, *names: str) -> Path:
    """The file of one of these names in the folder or in a folder right below it; the first name comes first.

    Raises:
        ValueError: when there is none, or several of one name.
    """
    for name in names:
        found = sorted({*folder.glob(_literal(name)), *folder.glob(f"*/{_literal(name)}")})
        if (folder / name) in found:
            return folder / name
        if len(found) > 1:
            raise ValueError(f"--data {str(folder)!r} holds {name} twice: {found[0]} and {found[1]}; name one's folder")
        if found:
            return found[0]
    raise MissingFileError(f"--data {str(folder)!r} holds no {' or '.join(names)}, in itself or in a folder of it")


def _literal(name: str) -> str:
    return name.replace("[", "[[]")
