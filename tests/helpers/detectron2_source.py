"""detectron2's Python source for the tests beside it: fetched with pip, checked, unpacked, made to import.

    python tests/helpers/detectron2_source.py build/detectron2

`make test` runs this, `make demo` does not: pip runs the setup.py of what it downloads, after it has checked the sum in
tests/detectron2-source.txt. Where pip cannot get it, one line says so, and the tests beside detectron2 skip.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

PIN = Path(__file__).parents[1] / "detectron2-source.txt"
RELEASE = "pb1-detectron2-0.6"
# The release is of 2021. Pillow has dropped the name since; both always meant the same filter.
RENAMED = {"detectron2/data/transforms/transform.py": ("Image.LINEAR", "Image.BILINEAR")}
COMPILED_PART = '"""Stands for the compiled part, which is not built: it has none of its functions."""\n'


def source_folder(folder: Path) -> Path:
    """What goes on the import path, below the folder that `fetch` was given."""
    return folder / RELEASE


def pinned_sum() -> str:
    """The SHA-256 that the archive must have, as hexadecimal digits."""
    (found,) = re.findall(r"--hash=sha256:([0-9a-f]{64})$", PIN.read_text(), re.MULTILINE)
    return str(found)


def fetch(folder: Path) -> Path:
    """Makes `source_folder(folder)`, unless it is there.

    Raises:
        OSError: pip cannot get the archive.
        ValueError: the archive has another SHA-256 than the pinned one.
    """
    made = source_folder(folder)
    if made.is_dir():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        archive = _download(Path(scratch))
        unpack(archive, Path(scratch) / "unpacked", pinned_sum())
        (Path(scratch) / "unpacked" / RELEASE).replace(made)
    return made


def _download(folder: Path) -> Path:
    """The archive, in `folder`. pip has checked its sum before it ran its setup.py, which needs our torch."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries", "1"]
    command += ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes"]
    command += ["--dest", str(folder), "--requirement", str(PIN)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "DO NOT MATCH THE HASHES" in done.stderr:
        raise ValueError(f"pip found another archive than the one pinned in {PIN}:\n{done.stderr}")
    if done.returncode:
        raise OSError(next(reversed(done.stderr.strip().splitlines()), "pip failed and said nothing"))
    return next(folder.glob("*.tar.gz"))


def unpack(archive: Path, folder: Path, sha256: str) -> None:
    """The release's package `detectron2` into `folder`, mended to import without compiled part and with today's Pillow.

    Only plain files are unpacked, and none outside `folder`.

    Raises:
        ValueError: the archive has another SHA-256.
    """
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != sha256:
        raise ValueError(f"{archive} has SHA-256 {found}; expected {sha256}")
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts
            content = tar.extractfile(member) if member.isfile() else None
            if content is None or ".." in parts or parts[:2] != (RELEASE, "detectron2"):
                continue
            path = folder.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            with content, path.open("wb") as file:
                shutil.copyfileobj(content, file)
    for name, (old, new) in RENAMED.items():
        path = folder / RELEASE / name
        path.write_text(path.read_text().replace(old, new))
    (folder / RELEASE / "detectron2" / "_C.py").write_text(COMPILED_PART)


def main() -> None:
    try:
        fetch(Path(sys.argv[1]))
    except OSError as error:
        print(f"detectron2's source cannot be fetched, the tests beside it will skip: {error}")
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
