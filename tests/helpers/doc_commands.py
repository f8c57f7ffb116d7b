"""Commands as pages show them, held against those that exist. Nothing is run, and no torch is imported."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer
from house import PACKAGE, exported

from roibeam.pipelines.cli.commands import app

REPOSITORY = PACKAGE.parents[1]
HELP = {"--help", "-h", "--help-all"}
_USAGE_ERROR: Any = typer.BadParameter.__bases__[0]  # click's, which typer brings along
_BETWEEN = ";&|()\n"
_NOT_OURS = {"git", "cd", "pip", "mkdir", "rm", "apt-get", "apptainer"}
# Of launchers and Docker, which pages name between words; those of a script stand with it (`python bench/x.py --y`).
# What has an underscore is not looked at: it is of another code base, or Beam's.
OPTIONS_OF_OTHERS = {"--nproc-per-node", "--nnodes", "--no-python", "--gpus", "--require-hashes", "--build-arg"}


@cache
def commands() -> Any:
    return typer.main.get_command(app)


def simple_commands(shell: str) -> Iterator[list[str]]:
    """The words of each command of a script, without redirections and comments.

    Raises:
        ValueError: for a quotation that does not end.
    """
    text = re.sub(r"\\\n\s*", " ", shell)
    text = re.sub(r"(^|\s)#\s[^\n]*", r"\1", text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=f"{_BETWEEN}<>")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    skip = False
    for word in lexer:
        if skip:
            skip = False
        elif word and set(word) <= set("<>&") and set(word) & set("<>"):
            skip = True
            if words and words[-1].isdigit():
                words.pop()  # 2>
        elif word and set(word) <= set(_BETWEEN):
            yield words
            words = []
        else:
            words.append(word)
    yield words


def roibeam_calls(shell: str) -> Iterator[list[str]]:
    """The words after `roibeam` of each of its calls, also those in a container and under a launcher."""
    for words in simple_commands(shell):
        if not words or words[0] in _NOT_OURS or words[:2] == ["docker", "build"]:
            continue
        for place, word in enumerate(words):
            if word == "roibeam" or word.endswith("/bin/roibeam") or word.startswith("roibeam/worker"):
                yield words[place + 1 :]
                break


def problem_of_call(words: list[str], *, whole: bool = True) -> str:
    """What is wrong with a call; "" where nothing is.

    Args:
        whole: False for a mention, whose arguments may be left out.
    """
    shown = f"roibeam {' '.join(words)}"
    command, rest, name = commands(), list(words), "roibeam"
    while hasattr(command, "commands"):
        while rest and rest[0].startswith("-"):
            if rest[0] not in HELP | _flags(command):
                return f"{shown}: `{name}` has no option {rest[0]}"
            rest.pop(0)
        if not rest:
            return ""
        if rest[0] not in command.commands:
            return f"{shown}: `{name}` has no command {rest[0]!r}"
        name = f"{name} {rest[0]}"
        command = command.commands[rest.pop(0)]
    ours = rest[: rest.index("--")] if "--" in rest else rest
    options = [word.partition("=")[0] for word in ours if re.match(r"--?[a-z]", word)]
    if unknown := [option for option in options if option not in HELP | _flags(command)]:
        return f"{shown}: `{name}` has no option {unknown[0]}"
    if whole and not HELP & set(ours):
        try:
            command.make_context(name, list(rest))
        except (_USAGE_ERROR, ValueError) as error:
            return f"{shown}: {error.format_message() if isinstance(error, _USAGE_ERROR) else error}"
    foreign = [option for option in rest[len(ours) + 1 :] if not is_beam_option(option)]  # what follows --
    return f"{shown}: Beam has no option {foreign[0]}" if foreign else ""


def is_beam_option(option: str) -> bool:
    return option.partition("=")[0].removeprefix("--") in _beam_names()


@cache
def _beam_names() -> frozenset[str]:
    from apache_beam.options.pipeline_options import PipelineOptions

    return frozenset(PipelineOptions([]).get_all_options())


def _flags(command: Any) -> set[str]:
    return {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}


@cache
def all_options() -> frozenset[str]:
    """Of all commands."""
    found, todo = set(HELP), [commands()]
    while todo:
        command = todo.pop()
        found |= _flags(command)
        todo += getattr(command, "commands", {}).values()
    return frozenset(found)


def problem_of_target(words: list[str]) -> str:
    """Of `make TARGET`, and of `python FILE` where the file is one of the clone; "" where nothing is."""
    if words[:1] == ["make"]:
        targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), flags=re.MULTILINE))
        missing = [word for word in words[1:] if re.fullmatch(r"[a-z][a-z-]*", word) and word not in targets]
        return f"make has no target {missing[0]}" if missing else ""
    files = [word for word in words if re.match(r"(bench|tests|docker)/\S+\.(py|sh)$", word)]
    missing = [file for file in files if not any(REPOSITORY.glob(file))]
    return f"there is no {missing[0]}" if missing else ""


def problems_of_imports(code: str) -> list[str]:
    """Names of ours that a snippet takes from where they are not; read from the files, nothing is imported."""
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        return [f"line {error.lineno}: {error.msg}"]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            ours = [alias.name for alias in node.names if alias.name.split(".")[0] == "roibeam"]
            found += [name for name in ours if _names_of(name) is None]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "roibeam":
            there = _names_of(node.module or "")
            found += [f"{node.module}.{alias.name}" for alias in node.names if there is None or alias.name not in there]
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "roibeam":
            found += [f"roibeam.{node.attr}"] if node.attr not in (_names_of("roibeam") or ()) else []
    return [f"there is no {name}" for name in found]


def _names_of(module: str) -> set[str] | None:
    """What can be taken from a file or room; None where there is none."""
    path = PACKAGE.parent.joinpath(*module.split("."))
    if path.is_dir():
        beside = {entry.stem for entry in path.iterdir() if entry.suffix == ".py" or entry.is_dir()}
        return beside | set(exported(path / "__init__.py"))
    path = path.with_suffix(".py")
    if not path.is_file():
        return None
    names = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def pages_named_in_source() -> dict[str, set[str]]:
    """docs/PAGE.md -> files of the package that name it."""
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for page in re.findall(r"\bdocs/[\w-]+\.(?:md|ipynb)", path.read_text("utf-8")):
            found.setdefault(page, set()).add(str(Path(path).relative_to(PACKAGE)))
    return found
