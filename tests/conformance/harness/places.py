"""Where the project's own reference arrays and their photos lie: in a clone and beside it, in no wheel or image."""

import fnmatch
from collections.abc import Iterable
from pathlib import Path

CLONE = Path(__file__).resolve().parents[3]


def default_folder() -> Path:
    """tests/goldens of the clone. Raises ValueError where this is none, one line that says where the arrays are."""
    folder = CLONE / "tests" / "goldens"
    if not folder.is_dir():
        raise ValueError(
            "the reference arrays are not part of the package or the image: they are the folder tests/goldens of "
            "roibeam's repository; clone it and name that folder as DIR (docs/fidelity.md)"
        )
    return folder


def matches(family: str, file: str, pattern: str) -> bool:
    """Whether a shell pattern fits a case: its family, its name, its file, or <family>/ before either."""
    stem = Path(file).stem
    names = (family, f"{family}/{stem}", stem, f"{family}/{file}", file)
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)


def check_some_file_matches(folder: Path, pattern: str) -> None:
    """Raises ValueError where no file can be a case that fits a shell pattern, by their names alone."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    if not any(matches(path.parent.resolve().name, path.name, pattern) for path in files):
        raise ValueError(f"no case below {folder} matches --only {pattern!r}; cases are named as <family>/<file>")


def photo_folder(folder: Path, photos: Iterable[str]) -> Path | None:
    """Where `<photo>.png` of a folder of arrays lie: beside the arrays or in ../shared/goldens/detector of the clone.

    None where not one of them is in either place: photos are other people's, and arrays may come without them. Where
    some are, one that is missing was lost, and its case will say so.
    """
    files = [f"{photo}.png" for photo in photos]
    places = (folder, CLONE.parent / "shared" / "goldens" / "detector")
    return next((place for place in places if any((place / file).is_file() for file in files)), None)
