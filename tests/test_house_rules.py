"""The rules of DESIGN's house: who imports whom, what imports without Beam, and that no decoy is ever imported."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]
MAY_IMPORT = {
    "features": set(),
    "model": set(),
    "extraction": {"features"},
    "pipelines": {"extraction", "features", "model"},
}
BIN = Path(sys.executable).parent


def modules(package: str) -> list[str]:
    files = sorted((REPOSITORY / package).rglob("*.py"))
    assert files
    return [".".join(f.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__") for f in files]


def imported_packages(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add((node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_packages_import_only_what_the_design_allows(package: str) -> None:
    allowed = MAY_IMPORT[package] | {package}
    for path in (REPOSITORY / package).rglob("*.py"):
        ours = imported_packages(path) & {*MAY_IMPORT, "tests", "bench"}
        assert ours <= allowed, f"{path.relative_to(REPOSITORY)} imports {ours - allowed}"


def test_every_package_is_named_for_installation_and_tests_are_not() -> None:
    named = set(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {
        ".".join(path.parent.relative_to(REPOSITORY).parts)
        for package in MAY_IMPORT
        for path in (REPOSITORY / package).rglob("__init__.py")
    }
    folders = {
        ".".join(path.parent.relative_to(REPOSITORY).parts)
        for package in MAY_IMPORT
        for path in (REPOSITORY / package).rglob("*.py")
    }
    assert named == found == folders


BLOCK_AND_IMPORT = """
import importlib, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError("blocked: " + name)
sys.meta_path.insert(0, Blocker())
for name in {names!r}:
    importlib.import_module(name)
"""


@pytest.mark.parametrize(
    ("package", "blocked"),
    [
        ("features", ["apache_beam", "pyarrow", "torch"]),
        ("extraction", ["apache_beam", "pyarrow"]),
        ("model", ["apache_beam", "pyarrow"]),
    ],
)
def test_packages_import_without_beam_and_pyarrow(package: str, blocked: list[str]) -> None:
    code = BLOCK_AND_IMPORT.format(blocked=set(blocked), names=modules(package))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture
def decoys(tmp_path: Path) -> Path:
    """A working directory whose files have the names of our packages."""
    for package in MAY_IMPORT:
        (tmp_path / f"{package}.py").write_text("raise SystemExit('a decoy was imported')\n")
    return tmp_path


def run_outside(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)


def test_console_script_ignores_decoys_in_the_working_directory(decoys: Path) -> None:
    done = run_outside([str(BIN / "roibeam"), "extract", "--help"], decoys)
    assert done.returncode == 0, done.stdout + done.stderr


def test_torchrun_line_ignores_decoys(decoys: Path) -> None:
    done = run_outside(
        [str(BIN / "torchrun"), "--no-python", "--nproc-per-node=1", str(BIN / "roibeam"), "pretrain", "--help"], decoys
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_beam_workers_ignore_decoys_and_write_what_one_process_writes(
    decoys: Path, tiny_network: tuple[str, ...], roibeam: Callable[..., Any]
) -> None:
    from roibeam.features.store import FeatureStore
    from roibeam.pipelines.toyworld.draw import draw_samples

    draw_samples(decoys / "samples", count=3)
    command = [str(BIN / "roibeam"), "extract", "samples/images", "out", *tiny_network, "--shard-size", "2"]
    done = run_outside([*command, "--workers", "2"], decoys)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 records" in done.stdout
    assert roibeam("extract", decoys / "samples" / "images", decoys / "alone", *tiny_network).code == 0
    with FeatureStore(decoys / "out") as many, FeatureStore(decoys / "alone") as one:
        assert many.manifest.content_digest == one.manifest.content_digest


def test_docker_entry_keeps_the_working_directory_off_the_path() -> None:
    text = (REPOSITORY / "Dockerfile").read_text()
    assert "PYTHONSAFEPATH=1" in text
    assert 'ENTRYPOINT ["/opt/roibeam/entrypoint.sh"]' in text
    assert (REPOSITORY / "docker" / "entrypoint.sh").read_text().endswith('exec roibeam "$@"\n')


@pytest.mark.parametrize("version, said", [((3, 10), "BASE_IMAGE has 3.10"), ((3, 13), ""), ((3, 14), "has 3.14")])
def test_the_image_refuses_a_base_of_another_python_in_one_line(version: tuple[int, int], said: str) -> None:
    (check,) = re.findall(r"^RUN python3 -c '(.*)'$", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE)
    command = [sys.executable, "-c", f"import sys; sys.version_info = {version}; {check.removeprefix('import sys; ')}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (not said) and said in done.stderr and done.stderr.count("\n") == bool(said)


def test_a_beam_worker_without_boot_is_one_line() -> None:
    if Path("/opt/apache/beam/boot").exists():
        pytest.skip("this machine has Beam's boot program")
    entry = REPOSITORY / "docker" / "entrypoint.sh"
    done = subprocess.run(["sh", entry, "--id=1", "--provision_endpoint=localhost:1"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "BASE_IMAGE=apache/beam_python3.11_sdk" in done.stderr
