"""The rules of the house: who imports whom, how large rooms, files and functions are, what imports without Beam, and
that no decoy is ever imported (docs/architecture.md)."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from house import PACKAGE, Module, circles, entries, exported, functions, modules

REPOSITORY = Path(__file__).parents[1]
FLOORS = ("features", "model", "extraction", "pipelines")
MAY_IMPORT = {"features": set(), "model": set(), "extraction": {"features"}, "pipelines": set(FLOORS[:3])}
MOST_ENTRIES, MOST_LINES, MOST_PARAMETERS = 24, 80, 10
# Ceilings: of files, of those under 60 lines, of the lines of one, of folders, of class names that two files use.
MOST_FILES, MOST_SMALL, MOST_FILE_LINES, MOST_FOLDERS, MOST_TWICE = 451, 40, 650, 55, 2
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def house() -> dict[str, Module]:
    found = modules()
    assert len(found) > 400
    return found


@pytest.mark.parametrize("floor", FLOORS)
def test_floors_import_only_what_the_design_allows(floor: str, house: dict[str, Module]) -> None:
    for name, module in house.items():
        if name.split(".")[1:2] == [floor]:
            floors = {other.split(".")[1] for other in module.imports if other.count(".")} & set(FLOORS)
            assert floors <= MAY_IMPORT[floor] | {floor}, f"{name} imports {floors}"
            assert not module.outside & {"tests", "bench", *FLOORS}, name


def test_commands_are_imported_by_nothing_and_alone_use_typer(house: dict[str, Module]) -> None:
    """What they call can then be called without them; what requests are declared with is apart."""
    cli = "roibeam.pipelines.cli."
    others = {name: module for name, module in house.items() if not name.startswith(cli)}
    assert len(house) > len(others) + 10
    users = {name for name, module in others.items() if any(other.startswith(cli) for other in module.imports)}
    assert users == {"roibeam.__main__"}
    typer = {name for name, module in others.items() if "typer" in module.outside}
    assert typer == {"roibeam.pipelines.common.console.request_options"}


def test_a_room_of_pipelines_imports_only_rooms_below_it_in_the_architecture(house: dict[str, Module]) -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text("utf-8")
    listed = page[page.index("\npipelines/   ") :].partition("\nextraction/")[0].replace("\npipelines/", "\n          ")
    rooms = re.findall(r"^ {13}(\w+)(?:/|\.py) ", listed, flags=re.MULTILINE)
    assert set(rooms) == entries()["pipelines"] and len(rooms) == len(set(rooms))
    above = []
    for name, module in house.items():
        for other in module.imports:
            if name.startswith("roibeam.pipelines.") and other.startswith("roibeam.pipelines."):
                user, used = name.split(".")[2], other.split(".")[2]
                above += [f"{name} imports {other}"] * (rooms.index(used) < rooms.index(user))
    assert not above


def test_what_asks_and_measures_a_model_imports_nothing_that_pre_trains_one(house: dict[str, Module]) -> None:
    pipelines = "roibeam.pipelines"
    for room in ("analysis", "data"):  # whatever trains a model uses both
        inside = [module for name, module in house.items() if name.startswith(f"{pipelines}.{room}.")]
        assert inside
        assert not [other for module in inside for other in module.imports if other.startswith(f"{pipelines}.pretr")]


def test_prose_uses_the_words_of_the_field() -> None:
    """docs/style.md; the toy world's web pages are data."""
    own = re.compile(
        r"\b(whoever|nobody)\b|Given again,|may be given again|Number that every|\b(is|are) not (said|told)\b"
        r"|; say (it|which|where|how many|what)\b|(tells|says) (each|all|more|why)\b",
        re.IGNORECASE,
    )
    files = [path for path in PACKAGE.rglob("*.py") if path.name != "web_texts.py"]
    assert {str(path): found[0] for path in files if (found := own.search(path.read_text("utf-8")))} == {}


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                wrong += [f"{path}: {text}" for text in [ast.get_docstring(node) or ""] if re.match("(Of|What) ", text)]
    assert not wrong


def test_there_are_few_files_and_folders_and_none_is_crowded_tiny_long_or_deep() -> None:
    assert not {room: len(names) for room, names in entries().items() if len(names) > MOST_ENTRIES}
    files = {path: path.read_text("utf-8") for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"}
    lines = {path: len(text.splitlines()) for path, text in files.items()}
    classes = Counter(
        node.name for text in files.values() for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )  # fmt: skip
    folders = [path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("*/__init__.py")]
    assert len(files) <= MOST_FILES
    assert sum(number < 60 for number in lines.values()) <= MOST_SMALL
    assert not {path: number for path, number in lines.items() if number > MOST_FILE_LINES}
    assert len(folders) <= MOST_FOLDERS
    assert not [folder for folder in folders if len(folder.parts) > 3]
    assert sum(number > 1 for number in classes.values()) <= MOST_TWICE


def test_folders_keep_to_their_lines() -> None:
    """A number is raised only with a reason in the message of the same commit."""
    budget = tomllib.loads((REPOSITORY / "tests" / "line_budget.toml").read_text("utf-8"))["lines"]
    assert {f"src/roibeam/pipelines/{room}" for room in entries()["pipelines"]} <= set(budget)
    for folder, most in budget.items():
        lines = sum(len(path.read_text("utf-8").splitlines()) for path in (REPOSITORY / folder).rglob("*.py"))
        assert lines <= most, folder


def test_functions_are_short_and_take_few_things() -> None:
    """A command's options are its parameters: in cli/ only the body counts."""
    long, wide = [], []
    for place, node in functions():
        in_cli = place.startswith("pipelines/cli/")
        first = node.body[0].lineno if in_cli else node.lineno
        if (node.end_lineno or 0) - first + 1 > MOST_LINES:
            long.append(f"{place}:{node.name}")
        given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        if len(given) > MOST_PARAMETERS and not in_cli:
            wide.append(f"{place}:{node.name}")
    assert not long and not wide


def test_every_room_says_what_belongs_to_it_and_which_file_to_read_first_and_imports_nothing() -> None:
    for init in PACKAGE.rglob("__init__.py"):
        tree = ast.parse(init.read_text("utf-8"))
        words = ast.get_docstring(tree)
        assert words, init
        if init.parent != PACKAGE:  # that one is for users
            assert 2 <= len(words.splitlines()) <= 6, init
            advice = " ".join(words.split()).rpartition("Read ")[2]  # "Read x.py first, then y.py."
            named = re.findall(r"[\w./]+\.py", advice)
            assert " first" in advice and named, init
            assert all((init.parent / file).is_file() for file in named), init
        run = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {node.module for node in run if isinstance(node, ast.ImportFrom)}
        assert len(names) == len(run) and names <= {"roibeam.lazy_names"}, init


def test_product_code_imports_files_not_rooms_and_in_no_circle(house: dict[str, Module]) -> None:
    assert not {name: sorted(module.rooms) for name, module in house.items() if module.rooms}
    assert not circles(house)


@pytest.mark.parametrize("room", ["", *FLOORS])
def test_no_exported_name_is_that_of_a_file_of_its_room(room: str) -> None:
    """`from room import name` would give the file once somebody has imported it."""
    names = exported(PACKAGE / room / "__init__.py")
    assert len(names) > 10
    assert not set(names) & entries()[room] - set(FLOORS)


def test_the_four_folders_at_the_top_are_links() -> None:
    for floor in FLOORS:
        assert (REPOSITORY / floor).is_symlink() and (REPOSITORY / floor).resolve() == PACKAGE / floor


BLOCK_AND_IMPORT = """
import importlib, sys
sys.modules.update(dict.fromkeys(["apache_beam", "pyarrow", "torch"]))  # to import one is an error then
for floor in FLOORS:
    for name in floor:
        importlib.import_module(name)
    sys.modules.pop("torch", None)
"""


@pytest.mark.parametrize("floor", FLOORS[:3])
def test_no_file_below_pipelines_starts_by_importing_beam_or_pyarrow(floor: str, house: dict[str, Module]) -> None:
    """Nor, in features, torch."""
    forbidden = {"apache_beam", "pyarrow", *(["torch"] if floor == "features" else [])}
    inside = {name: module for name, module in house.items() if name.split(".")[1] == floor}
    assert any("numpy" in module.at_import for module in inside.values()) or floor == "model"
    assert not {name: both for name, module in inside.items() if (both := module.at_import & forbidden)}


@pytest.mark.slow  # the test above reads what this one does; this one also sees what libraries import
def test_floors_import_without_beam_and_pyarrow(house: dict[str, Module]) -> None:
    """features without torch too."""
    below = {floor: [name for name in house if name.startswith(f"roibeam.{floor}.")] for floor in FLOORS[:3]}
    floors = [below["features"], below["extraction"] + below["model"]]
    code = BLOCK_AND_IMPORT.replace("FLOORS", repr(floors))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture
def decoys(tmp_path: Path) -> Path:
    """A working directory whose files and folders have the names of our package and its floors."""
    for floor in FLOORS:
        (tmp_path / f"{floor}.py").write_text("raise SystemExit('a decoy was imported')\n")
    for folder in ("features", "roibeam"):
        (tmp_path / folder).mkdir()
    return tmp_path


def run_outside(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)


TORCHRUN = (BIN / "torchrun", "--no-python", "--nproc-per-node=1")  # starts the script


@pytest.mark.parametrize("launcher", [(), pytest.param(TORCHRUN, marks=pytest.mark.slow)], ids=["", "torchrun"])
def test_the_console_script_ignores_decoys_in_the_working_directory(decoys: Path, launcher: tuple[object, ...]) -> None:
    done = run_outside([*map(str, launcher), str(BIN / "roibeam"), "pretrain", "--help"], decoys)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("where", ["among decoys", "beside the clone"])
def test_a_script_finds_our_package(where: str, decoys: Path) -> None:
    """With the working directory first on the import path, as in a notebook."""
    folder = decoys if where == "among decoys" else REPOSITORY.parent
    code = "import sys; sys.path.insert(0, ''); from roibeam import FeatureStore; print(FeatureStore.__module__)"
    done = run_outside([sys.executable, "-c", code], folder)
    assert (done.stdout, done.returncode) == ("roibeam.features.store\n", 0), done.stderr


@pytest.mark.parametrize("floor", FLOORS)
def test_a_link_is_not_imported_under_another_name(floor: str) -> None:
    """A second copy of every class would pass no isinstance. -S: in a clone without an installation too."""
    done = run_outside([sys.executable, "-S", "-c", f"import {floor}"], REPOSITORY)
    assert done.returncode == 1 and f"'{floor}' is a link to roibeam.{floor}" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_beam_workers_ignore_decoys_and_write_what_one_process_writes(
    decoys: Path, tiny_network: tuple[str, ...], roibeam: Callable[..., Any]
) -> None:
    from roibeam.features.store import FeatureStore
    from roibeam.pipelines.toyworld.rendering import draw_samples

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
    assert "PYTHONSAFEPATH=1" in text and 'ENTRYPOINT ["/opt/roibeam/entrypoint.sh"]' in text
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
