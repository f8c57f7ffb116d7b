"""The documentation site: names, links and navigation of its pages, and the reference that is made from the code."""

import dataclasses
import html
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from docs_site.pages import (
    navigation,
    notebook_page,
    site_names,
    with_links_of_the_site,
    with_pages_there,
    write_settings,
)
from docs_site.reference import PACKAGES, api_pages, command_pages, recipe_pages

from roibeam.pipelines import RequestedImages
from roibeam.pipelines.cli.commands import app
from roibeam.pipelines.cli.help_pages import commands_of
from roibeam.pipelines.cli.recipes import recipe_lines

REPOSITORY = Path(__file__).parents[1]
MKDOCS = REPOSITORY / "build" / "docs-env" / "bin" / "mkdocs"


def pages_of(nav: list[object]) -> Iterator[str]:
    for entry in nav:
        if isinstance(entry, dict):
            (below,) = entry.values()
            yield from pages_of(below if isinstance(below, list) else [below])
        else:
            yield str(entry)


def test_the_navigation_has_every_page_once() -> None:
    listed = list(pages_of(navigation()))
    packages = {f"api-{package.rpartition('.')[2]}.md" for package in PACKAGES}
    missing = {*site_names().values(), *command_pages(), *recipe_pages(), *packages} - set(listed)
    assert not missing, f"mkdocs.yml: nav lacks {missing}"
    assert len(listed) == len(set(listed))


def test_pages_that_are_not_there_are_left_out_of_the_navigation() -> None:
    nav = ["a.md", "b.md", {"C": "c.md"}, {"D": "d.md"}, {"E": ["b.md", {"F": ["c.md"]}]}, {"G": ["b.md"]}]
    assert with_pages_there(nav, {"a.md": "", "c.md": ""}) == ["a.md", {"C": "c.md"}, {"E": [{"F": ["c.md"]}]}]


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("README.md", "[a](docs/train.md#x) [b](SECURITY.md)", "[a](train.md#x) [b](SECURITY.md)"),
        ("docs/train.md", "[a](../README.md) [b](stores.md) [c](#x)", "[a](index.md) [b](stores.md) [c](#x)"),
        ("docs/train.md", "[a](first_hour.ipynb)", "[a](first_hour.md)"),
        ("docs/train.md", "[what that\ncosts](../BENCHMARKS.md#x)", "[what that\ncosts](BENCHMARKS.md#x)"),
        ("examples/README.md", "[`b`](../docs/train.md)", "[`b`](train.md)"),
        ("README.md", "[to cite](CITATION.cff), [LICENSE](LICENSE)", "to cite (`CITATION.cff`), LICENSE"),
        ("docs/train.md", "[bench/toyworld.py](../bench/toyworld.py)", "bench/toyworld.py"),
        ("README.md", "[a](https://x.org/y.md)\n```text\n[b](LICENSE)\n```\n", None),
    ],
)
def test_links_hold_on_the_site_and_lead_to_no_file_that_is_no_page(path: str, text: str, expected: str | None) -> None:
    assert with_links_of_the_site(text, path) == (expected or text, [])


def test_pictures_come_along() -> None:
    text, files = with_links_of_the_site("![A\nb](docs/regions.png)".replace("\n", " "), "README.md")
    assert (text, files) == ("![A b](regions.png)", ["docs/regions.png"])


def test_a_notebook_is_a_page_with_its_outputs(tmp_path: Path) -> None:
    outputs = [
        {"output_type": "stream", "text": ["2\n", "3\n"]},
        {"output_type": "execute_result", "data": {"text/plain": ["<photo>"], "image/png": "UE5H"}},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# One\n", "[two](../README.md)"]},
        {"cell_type": "code", "source": ["print(2)"], "outputs": outputs},
    ]
    page = notebook_page(json.dumps({"cells": cells}), tmp_path)
    assert page.split("\n\n")[:3] == ["# One\n[two](index.md)", "```python\nprint(2)\n```", "```text\n2\n3\n```"]
    (picture,) = tmp_path.iterdir()
    assert f"]({picture.name})" in page and picture.read_bytes() == b"PNG"


def plain_words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", html.unescape(re.sub(r"</?(?:code|ul|li)\b[^>]*>|\]\([\w-]+\.md\)", " ", text)))


def test_the_reference_has_all_options_of_all_commands_and_their_help() -> None:
    text = "\n".join(command_pages().values())
    known = " ".join(plain_words(text))
    commands = list(commands_of(typer.main.get_command(app)))
    assert len(commands) > 30
    for words, command, _ in commands:
        section = text.split(f"\n## roibeam {words}\n")[1].split("\n## ")[0]
        assert not [name for each in command.params if each.param_type_name == "option"
                    for name in each.opts if f">{name}<" not in section], words  # fmt: skip
        for each in command.params:
            assert " ".join(plain_words((each.help or "").replace("docs/", ""))) in known


def test_the_reference_has_all_recipes_word_by_word() -> None:
    sections = [each for page in recipe_pages().values() for each in page.split("\n## ")[1:]]
    assert len(sections) > 200
    for section in sections:
        name = section.partition("\n")[0]
        printed = "\n".join(recipe_lines(name)).replace("docs/", "")
        assert plain_words(re.sub(r"\|  \| +\|\n\|---\|---\|", "", section)) == plain_words(printed), name


def test_public_names_stand_once_and_options_are_fields_with_their_help() -> None:
    pages = api_pages()
    names = [line for page in pages.values() for line in page.splitlines() if line.startswith("::: ")]
    assert len(names) == len(set(names)) > 100
    assert "::: roibeam.FeatureStore" in names and "[`FeatureStore`][roibeam.FeatureStore]" in pages["api-features.md"]
    section = pages["api-pipelines.md"].split("::: roibeam.pipelines.RequestedImages\n")[1].split(":::")[0]
    assert not [field.name for field in dataclasses.fields(RequestedImages) if f">{field.name}<" not in section]
    assert "Folder of the photos" in section and "Annotated" not in section


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# One\n\n[a](#one) [b](train.md#two--three)\n\n::: roibeam.FeatureStore\n", ""),
        ("[a](none.md)\n", "'none.md'"),
        ("[a](train.md#none)\n", "'train.md#none'"),
        ("::: roibeam.no_such_name\n", "roibeam.no_such_name"),
    ],
)
def test_a_broken_link_or_anchor_fails_the_site(tmp_path: Path, text: str, said: str) -> None:
    if not MKDOCS.is_file():
        pytest.skip("needs the environment of the site: make docs")
    pages = tmp_path / "made" / "pages"
    pages.mkdir(parents=True)
    for name, page in {"index.md": text, "train.md": "## Two & three\n"}.items():
        (pages / name).write_text(page)
    write_settings(pages.parent, ["index.md", "train.md"])
    command = [MKDOCS, "build", "--strict", "--config-file", pages.parent / "mkdocs.yml"]
    paths = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, env=paths, capture_output=True, text=True)
    assert said in done.stdout + done.stderr and bool(done.returncode) == bool(said), done.stdout + done.stderr
    assert (tmp_path / "site" / "index.html").is_file() or said
