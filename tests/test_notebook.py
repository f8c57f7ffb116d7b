"""The notebook of docs/: as committed it was run from its first cell to its last, and it runs."""

import ast
import importlib
from pathlib import Path

import nbformat
import pytest
from notebook_run import executed

REPOSITORY = Path(__file__).parents[1]
NOTEBOOK = REPOSITORY / "docs" / "first_hour.ipynb"
MOST_BYTES = 400_000


def texts_of(notebook: nbformat.NotebookNode) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "\n".join(output["text"] for output in outputs if output.output_type == "stream")


def test_what_is_committed_was_run_in_order_and_holds_no_place_of_a_machine() -> None:
    content = NOTEBOOK.read_text("utf-8")
    notebook = nbformat.reads(content, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert len(content) < MOST_BYTES
    places = ("/tmp/", "/home/", "/root/", "/Users/", "site-packages", str(REPOSITORY))
    assert not any(place in content for place in places)
    assert all(output.output_type != "error" for cell in code for output in cell.outputs)


def test_the_names_that_it_imports_are_there() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    source = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    ours = [(node.module, name.name) for node in imports for name in node.names if node.module.startswith("roibeam")]
    assert len(ours) > 10
    assert [name for module, name in ours if name not in importlib.import_module(module).__all__] == []


@pytest.mark.slow
@pytest.mark.long
def test_it_runs_and_its_model_has_learned(tmp_path: Path) -> None:
    done = executed(NOTEBOOK, tmp_path)
    lines = dict(line.split("   chance ") for line in texts_of(done).splitlines() if "chance" in line)
    measured = {words.split()[0]: (percent(words.split()[1]), percent(chance)) for words, chance in lines.items()}
    for name in ("masked_word_accuracy", "matching_accuracy"):
        right, chance = measured[name]
        assert right > chance + 10, name
    kinds = [set(output.get("data", ())) for cell in done.cells for output in cell.get("outputs", [])]
    assert sum("image/jpeg" in kind or "image/png" in kind for kind in kinds) >= 4  # photo, record, two pictures
    assert (tmp_path / "run" / "probe.svg").is_file()


def percent(text: str) -> float:
    return float(text.strip().rstrip("%"))
