"""The locks against pyproject.toml, the papers beside it, and a wheel that runs away from the checkout."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from house import PACKAGE
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
LOCKS = {"requirements.lock": ("dev", "bench", "remote", "tensorboard"), "docker/requirements.lock": ()}
SITE_LOCK = "tools/docs_site/requirements.lock"
MACHINES = [
    {
        "python_version": python, "python_full_version": f"{python}.1", "sys_platform": system, "os_name": "posix",
        "platform_machine": machine, "platform_system": system.capitalize(), "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    for python in ("3.11", "3.12", "3.13")
    for system, machine in (("linux", "x86_64"), ("darwin", "arm64"))
]  # fmt: skip


class Locked(NamedTuple):
    requirement: Requirement
    sums: tuple[str, ...]


def locked(name: str) -> dict[str, list[Locked]]:
    """The lines of a lock by package. A package has one line for each set of machines that has a version of its own."""
    text = re.sub(r"^ *#.*\n", "", (REPOSITORY / name).read_text("utf-8"), flags=re.MULTILINE)
    found: dict[str, list[Locked]] = {}
    for line in text.replace("\\\n", "").splitlines():
        requirement, *sums = line.split("--hash=")
        one = Locked(Requirement(requirement.strip()), tuple(each.strip() for each in sums))
        found.setdefault(canonicalize_name(one.requirement.name), []).append(one)
    return found


@pytest.mark.parametrize("name", [*LOCKS, SITE_LOCK])
def test_a_lock_names_one_version_the_sums_of_its_files_and_no_place(name: str) -> None:
    """pip would take what no sum stands for, and every clone would ask the host that a lock names."""
    for one in (one for lines in locked(name).values() for one in lines):
        (exactly,) = one.requirement.specifier
        assert exactly.operator == "==" and not exactly.version.endswith("*"), one
        assert one.sums and all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in one.sums), one
    text = (REPOSITORY / name).read_text("utf-8")
    assert "://" not in text
    assert not re.search(r"^-", text, flags=re.MULTILINE)  # no option, such as --index-url


@pytest.mark.parametrize("name", [*LOCKS, SITE_LOCK])
@pytest.mark.parametrize("machine", MACHINES, ids=lambda each: f"{each['python_version']}-{each['sys_platform']}")
def test_a_lock_has_what_the_project_asks_for(name: str, machine: dict[str, Any]) -> None:
    """Seen: a dependency added, or asked for anew, without `make lock`. setuptools is one: it builds the project."""
    lock, extras = locked(name), PROJECT["project"]["optional-dependencies"]
    asked = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
    asked += [each for extra in LOCKS.get(name, ()) for each in extras[extra]]
    for requirement in map(Requirement, PROJECT["dependency-groups"]["docs"] if name == SITE_LOCK else asked):
        lines = [one.requirement for one in lock.get(canonicalize_name(requirement.name), [])]
        here = [one for one in lines if one.marker is None or one.marker.evaluate(machine)]
        assert len(here) == 1, f"{name} has {len(here)} lines for {requirement}; try: make lock UPGRADE="
        (exactly,) = here[0].specifier
        assert exactly.version in requirement.specifier, f"{name} has {here[0]} for {requirement}; try: make lock"


def test_the_image_has_a_part_of_the_same_files() -> None:
    """What was tested is what runs on workers; the tools of developers are not there."""
    whole, image = locked("requirements.lock"), locked("docker/requirements.lock")
    for package, lines in image.items():
        tested = {(str(one.requirement.specifier), one.sums) for one in whole[package]}
        assert {(str(one.requirement.specifier), one.sums) for one in lines} <= tested
    assert not {"pytest", "moto", "mypy", "fvcore"} & set(image)


def test_the_papers_of_the_project_say_what_is_there() -> None:
    """CITATION.cff is not read by any tool of ours, and tests that SECURITY.md and docs/upgrade.md name may move."""
    cited = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text("utf-8"))
    assert cited["version"] == PROJECT["project"]["version"] and cited["license"] == PROJECT["project"]["license"]
    named = re.findall(r"`(tests/[^`]+)`", (REPOSITORY / "SECURITY.md").read_text("utf-8"))
    named += re.findall(r"`(tests/[^`]+)`", (REPOSITORY / "docs" / "upgrade.md").read_text("utf-8"))
    assert len(named) > 40
    newest = re.search(r"^## (.*) \((.*)\)$", (REPOSITORY / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)
    assert newest and newest.groups() == (cited["version"], str(cited["date-released"]))
    for name in named:
        file, _, test = name.partition("::")
        found = list(REPOSITORY.glob(file))
        assert found and (not test or f"def {test}(" in found[0].read_text("utf-8")), name


@pytest.fixture(scope="module")
def source_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a copy: building writes beside what it builds, and takes what earlier builds left there."""
    made = tmp_path_factory.mktemp("source")
    checkout, built = made / "checkout", ("__pycache__", "*.egg-info")
    for name, arrays in (("src", ()), ("docs", ()), ("tests", ("goldens", "data"))):
        shutil.copytree(REPOSITORY / name, checkout / name, ignore=shutil.ignore_patterns(*built, *arrays))
    for path in REPOSITORY.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, checkout)
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(made)], cwd=checkout, capture_output=True, check=True)
    (archive,) = made.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def wheel(source_archive: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--wheel-dir", source_archive.parent, source_archive], capture_output=True, check=True)
    (made,) = source_archive.parent.glob("*.whl")
    return made


@pytest.mark.slow
def test_archives_have_the_package_whole_and_no_tests(source_archive: Path, wheel: Path) -> None:
    """A data file that pyproject.toml does not name, or a room without __init__.py, is missing once installed."""
    wanted = {str(Path("roibeam") / path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*") if path.is_file()}
    wanted = {name for name in wanted if "__pycache__" not in name}
    with zipfile.ZipFile(wheel) as files:
        assert {name for name in files.namelist() if ".dist-info/" not in name} == wanted
    with tarfile.open(source_archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert {f"src/{name}" for name in wanted} <= names
    beside = "README.md LICENSE CHANGELOG.md CITATION.cff SECURITY.md requirements.lock pyproject.toml"
    assert {*beside.split(), "docs/architecture.md"} <= names
    assert not [name for name in names if name.startswith(("tests/", "bench/"))]


@pytest.mark.slow
def test_a_wheel_runs_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own that sees the dependencies installed here, and no file of the checkout."""
    environment, work = tmp_path / "environment", tmp_path / "work"
    work.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    python, roibeam = environment / "bin" / "python", environment / "bin" / "roibeam"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, wheel], check=True)

    def run(*command: object) -> str:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run([*map(str, command)], cwd=work, env=inherited, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    every_name = "import roibeam; [getattr(roibeam, name) for name in dir(roibeam)]; print(roibeam.__file__)"
    assert Path(run(python, "-c", every_name).strip()).is_relative_to(packages)
    assert run(roibeam, "--version") == f"roibeam {PROJECT['project']['version']}\n"
    assert "extract" in run(python, "-m", "roibeam", "--help")
    run(roibeam, "toyworld", "toy", "--num-images", 40)
    shutil.copytree(next((work / "toy" / "coco").glob("val*")), work / "photos")
    run(roibeam, "extract", "photos", "store", "--detector", "toy", "--threads", 1)
    run(roibeam, "store", "verify", "store", "--deep")
    assert (work / "store" / "report.html").is_file()
