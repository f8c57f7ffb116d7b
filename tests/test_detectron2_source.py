"""Unpacking of what `make detectron2-source` downloads: checked first, plain files only, none outside the folder."""

import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from detectron2_source import RELEASE, RENAMED, pinned_sum, source_folder, unpack

(RENAMED_FILE,) = RENAMED


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "release.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in (
            (f"{RELEASE}/detectron2/__init__.py", "__version__ = '0.6'\n"),
            (f"{RELEASE}/{RENAMED_FILE}", "interp = Image.LINEAR\n"),
            (f"{RELEASE}/setup.py", "raise SystemExit\n"),
            (f"{RELEASE}/detectron2/../../../outside.py", ""),
            ("/detectron2/rooted.py", ""),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
        link = tarfile.TarInfo(f"{RELEASE}/detectron2/link.py")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return path


def test_the_package_alone_is_unpacked_and_mended(archive: Path, tmp_path: Path) -> None:
    unpack(archive, tmp_path / "made", hashlib.sha256(archive.read_bytes()).hexdigest())
    made = source_folder(tmp_path / "made")
    files = {str(path.relative_to(made)) for path in made.rglob("*") if not path.is_dir()}
    assert files == {"detectron2/__init__.py", RENAMED_FILE, "detectron2/_C.py"}
    assert (made / RENAMED_FILE).read_text() == "interp = Image.BILINEAR\n"
    assert {path.name for path in tmp_path.iterdir()} == {"made", "release.tar.gz"}


def test_another_archive_is_refused_before_anything_of_it_is_unpacked(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"expected {pinned_sum()}"):
        unpack(archive, tmp_path / "made", pinned_sum())
    assert not (tmp_path / "made").exists()
