"""The house as its source files tell it: modules and their imports, entries of rooms, functions, exported names."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[2] / "src"
PACKAGE = SOURCE / "roibeam"


class Module(NamedTuple):
    """Attributes:
    imports: modules of ours that it imports when it runs, at its top or later.
    rooms: names that it takes from a room in place of a file.
    outside: first parts of the names of what else it imports.
    at_import: those of them that are imported as soon as the module is, not first when they are used.
    """

    imports: frozenset[str]
    rooms: frozenset[str]
    outside: frozenset[str]
    at_import: frozenset[str]


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def modules() -> dict[str, Module]:
    """Every file of the package but the `__init__` of rooms, by its dotted name."""
    files = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    rooms = {name.removesuffix(".__init__") for name in files if name.endswith(".__init__")}
    known = {name for name in files if not name.endswith(".__init__")}
    return {name: _module(name, files[name], known, rooms) for name in known}


def _module(name: str, path: Path, known: set[str], rooms: set[str]) -> Module:
    imports: set[str] = set()
    taken: set[str] = set()
    outside: set[str] = set()
    for node in _walk_run(_tree(path)):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names if alias.name in known}
            taken |= {alias.name for alias in node.names if alias.name in rooms}
            outside |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}: relative import"
            outside.add(node.module.split(".")[0])
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in known or node.module in known:
                    imports.add(full if full in known else node.module)
                elif node.module in rooms:
                    taken.add(full)
    at_import = {first for node in _run_at_import(_tree(path).body) for first in _first_parts(node)}
    ours = {"roibeam"}
    return Module(frozenset(imports - {name}), frozenset(taken), frozenset(outside - ours), frozenset(at_import - ours))


def _walk_run(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below, but those that only a type checker reads."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield child
            yield from _walk_run(child)


_DOES_WITHOUT = {"ImportError", "ModuleNotFoundError"}


def _run_at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module that run when it is imported, those of `if` and `try` among them; not what a module tries
    to import and does without."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            yield from _run_at_import([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            does_without = any(ast.unparse(each.type) in _DOES_WITHOUT for each in node.handlers if each.type)
            yield from _run_at_import([*([] if does_without else node.body), *node.orelse, *node.finalbody])
        else:
            yield node


def _first_parts(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[0] for alias in node.names]
    return [(node.module or "").split(".")[0]] if isinstance(node, ast.ImportFrom) else []


def circles(house: Mapping[str, Module]) -> list[str]:
    """Circles between the entries of any folder, each as "room: a -> b -> a"."""
    arrows: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name, module in house.items():
        for other in module.imports:
            here, there, depth = name.split("."), other.split("."), 0
            while depth < min(len(here), len(there)) - 1 and here[depth] == there[depth]:
                depth += 1
            if here[depth] != there[depth]:
                arrows[".".join(here[:depth])][here[depth]].add(there[depth])
    found = []
    for room, graph in arrows.items():
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            found.append(f"{room}: {' -> '.join(error.args[1])}")
    return found


def entries() -> dict[str, set[str]]:
    """Room, as a path below the package -> names of the files and rooms in it."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        room = path.parent.relative_to(PACKAGE)
        if path.name != "__init__.py":
            found["" if room == Path() else str(room)].add(path.stem)
        elif room != Path():
            found["" if room.parent == Path() else str(room.parent)].add(room.name)
    return found


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """(path below the package, its definition) of every function and method."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield str(path.relative_to(PACKAGE)), node


def exported(init: Path) -> list[str]:
    """The names that a room offers: those that the `.pyi` beside its `__init__` imports."""
    body = ast.parse(init.with_suffix(".pyi").read_text("utf-8")).body
    return [alias.asname or "" for node in body if isinstance(node, ast.ImportFrom) for alias in node.names]
