"""The reference: all commands with their options, all recipes, and the public names of Python, from the code itself."""

from __future__ import annotations

import ast
import dataclasses
import html
import importlib
import inspect
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer
from typer.models import ParameterInfo

from roibeam.pipelines.cli.commands import app
from roibeam.pipelines.cli.help_pages import COMMAND_GROUPS, argument_names, commands_of, parts_of, sections_of
from roibeam.pipelines.cli.recipes import recipe_lines
from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES
from roibeam.pipelines.pretraining.recipes.named_systems import named_system
from roibeam.pipelines.pretraining.recipes.published import RECIPES

# Packages whose names are public (docs/upgrade.md).
PACKAGES = ("roibeam", "roibeam.features", "roibeam.extraction", "roibeam.model", "roibeam.pipelines")
_SOURCE = Path(__file__).parents[2] / "src"
_FIELDS_ONLY = "{show_signature: false, separate_signature: false, members: false}"
_MARKUP = re.compile(r"([\\*_|{}\[\]])")


def reference_pages() -> dict[str, str]:
    """Texts of all pages of the reference, by name."""
    return {**command_pages(), **recipe_pages(), **api_pages()}


def command_pages() -> dict[str, str]:
    """A page for each group of commands."""
    texts = {group: [f"# {group}: commands and all their options\n"] for group in COMMAND_GROUPS}
    for words, command, group in commands_of(typer.main.get_command(app)):
        prose, examples = parts_of(command.help)
        usage = " ".join(["roibeam", words, "[OPTIONS]", *argument_names(command)])
        texts[group] += [f"## roibeam {words}\n", f"```text\n{usage}\n```\n", f"{_prose(prose)}\n"]
        texts[group] += ["```bash\n" + "\n".join(examples) + "\n```\n"] if examples else []
        for title, rows in sections_of(command, everything=True):
            texts[group].append(_table((title, ""), ((_name(name), _prose(text)) for name, text in rows)))
    return {f"commands-{group.lower().replace(' ', '-')}.md": "\n".join(lines) for group, lines in texts.items()}


def recipe_pages() -> dict[str, str]:
    """A page for each system: its recipes of pre-training, then those of tasks."""
    systems = {name: recipe.system for name, recipe in {**RECIPES, **TASK_RECIPES}.items()}
    pages = {}
    for system in dict.fromkeys(systems.values()):
        lines = [f"# {named_system(system).title}: recipes of published runs\n", _RECIPES_INTRODUCTION]
        for name in (name for name in systems if systems[name] == system):
            first, *rest = recipe_lines(name)
            lines += [f"## {name}\n", f"{_prose(first.removeprefix(f'{name}: '))}\n"]
            lines.append(_table(("", ""), _recipe_rows(rest)))
        pages[f"recipes-{system}.md"] = "\n".join(lines)
    return pages


_RECIPES_INTRODUCTION = """\
`roibeam recipes NAME` prints a recipe, and with `--commands` the commands to type. [train.md](train.md) and
[finetuning.md](finetuning.md) explain how a recipe is run.
"""


def _recipe_rows(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Rows of a table from the printed lines: a key at column 2, its text at 13; points begin at 4 and go on at 6."""
    rows: list[tuple[str, list[str]]] = []
    for line in lines:
        depth, text = len(line) - len(line.lstrip()), line.strip()
        if depth == 2:
            key = text if line[12:13].strip() else line[:12].strip()
            rows.append((key, [text.removeprefix(key).strip()]))
        elif depth == 4:
            rows[-1][1].append(text)
        else:
            rows[-1][1][-1] += f" {text}"
    for key, (value, *points) in rows:
        marked = [f"`{each}`" if each.startswith("roibeam ") else _prose(each) for each in points]
        yield key, _prose(value) + (f"<ul><li>{'<li>'.join(marked)}</ul>" if points else "")


def api_pages() -> dict[str, str]:
    """A page for each package. What a page before it has is a link there."""
    pages: dict[str, str] = {}
    known: dict[str, str] = {}
    for package in PACKAGES:
        names = {name: place for name, place in _public_names(package).items() if name != "__version__"}
        again = [name for name, place in names.items() if place in known]
        lines = [f"# {package}: classes and functions\n"]
        if again:
            lines.append("Also here: " + ", ".join(f"[`{name}`][{known[names[name]]}]" for name in again) + ".\n")
        for name, place in names.items():
            if known.setdefault(place, f"{package}.{name}") == f"{package}.{name}":
                lines += [f"::: {package}.{name}", *_fields(place), ""]
        pages[f"api-{package.rpartition('.')[2]}.md"] = "\n".join(lines)
    return pages


def _fields(place: str) -> list[str]:
    """Lines below a class whose fields are options of a command: a table of them, in place of its signature."""
    module, _, name = place.rpartition(".")
    if "Annotated[" not in _SOURCE.joinpath(*module.split(".")).with_suffix(".py").read_text("utf-8"):
        return []  # before an import, which may be that of torch
    value: Any = getattr(importlib.import_module(module), name)
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    if not any("Annotated[" in str(field.type) for field in fields):
        return []
    hints, rows = get_type_hints(value, include_extras=True), []
    for field in fields:
        kind = hints[field.name]
        option = next((each for each in getattr(kind, "__metadata__", ()) if isinstance(each, ParameterInfo)), None)
        words = _prose(option.help or "") if option else ""
        if option and isinstance(option.show_default, str):
            words += rf" \[default: {_prose(option.show_default)}\]"
        elif isinstance(kind, type) and dataclasses.is_dataclass(kind):
            words = f"See [`{kind.__name__}`][{kind.__module__}.{kind.__name__}]."
        shown = re.sub(r"\b(\w+\.)+", "", inspect.formatannotation(get_args(kind)[0] if option else kind))
        plain = field.default is not dataclasses.MISSING and not dataclasses.is_dataclass(field.default)
        shown += f" = {field.default!r}" if plain else ""
        rows.append((_name(field.name), f"<code>{html.escape(shown).replace('|', '&#124;')}</code>", words))
    return [f"    options: {_FIELDS_ONLY}\n", _table(("Field", "Type", "Meaning"), rows)]


def _public_names(package: str) -> dict[str, str]:
    """Names of a package, in order, and where each is defined, by its stub."""
    found: dict[str, str] = {}
    stub = _SOURCE.joinpath(*package.split("."), "__init__.pyi").read_text("utf-8")
    for node in ast.parse(stub).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {alias.name: f"{package}.{node.module}.{alias.name}" for alias in node.names}
    return dict(sorted(found.items()))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)) + "\n"


def _name(words: str) -> str:
    """Names as code, none of which is broken into lines."""
    return re.sub(r"[^\s,]+", lambda name: f'<code class="name">{html.escape(name[0])}</code>', words)


def _prose(text: str) -> str:
    """Plain text as Markdown; `code` stays, and docs/PAGE.md becomes a link."""
    parts = re.split(r"(`[^`]+`)", html.escape(text, quote=False))
    marked = "".join(part if part.startswith("`") else _MARKUP.sub(r"\\\1", part) for part in parts)
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", marked)
