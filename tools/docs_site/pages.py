"""Pages of the repository as pages of the site: names, links, the notebook, and the navigation in mkdocs.yml.

All pages of the site lie in one folder, as in docs/.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[2]
_NOTEBOOK = "docs/first_hour.ipynb"
# Pages beside those of docs/, and their names on the site.
_OTHERS = {
    "README.md": "index.md",
    **{name: name for name in ("CONTRIBUTING.md", "BENCHMARKS.md", "CHANGELOG.md", "SECURITY.md")},
    "examples/README.md": "examples.md",
    "examples/real_photos/README.md": "examples-real-photos.md",
    _NOTEBOOK: "first_hour.md",
}
_ASSETS = ("iframe-worker.js", "site.css")
_FENCE = re.compile(r" *(```+|~~~+)")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def site_names() -> dict[str, str]:
    """Names on the site of all pages of the repository, by their paths there."""
    return {f"docs/{path.name}": path.name for path in sorted((REPOSITORY / "docs").glob("*.md"))} | _OTHERS


def write_pages(folder: Path, generated: Mapping[str, str]) -> None:
    """Writes all pages, pictures and settings of mkdocs.

    Args:
        folder: is replaced; the site is written beside it, as `site`.
        generated: texts of further pages, by their names on the site.
    """
    shutil.rmtree(folder, ignore_errors=True)
    pages = folder / "pages"
    pages.mkdir(parents=True)
    texts = dict(generated)
    for path, name in site_names().items():
        source = (REPOSITORY / path).read_text("utf-8")
        if path == _NOTEBOOK:
            texts[name] = notebook_page(source, pages)
            continue
        texts[name], files = with_links_of_the_site(source, path)
        for file in files:
            shutil.copyfile(REPOSITORY / file, pages / Path(file).name)
    for name, text in texts.items():
        (pages / name).write_text(text, "utf-8")
    for name in _ASSETS:
        shutil.copyfile(Path(__file__).with_name(name), pages / name)
    write_settings(folder, texts)


def write_settings(folder: Path, names: Collection[str]) -> None:
    """Writes mkdocs.yml into a folder with `pages` below it: that of the repository, for the pages with these names."""
    settings = {
        "INHERIT": os.path.relpath(REPOSITORY / "mkdocs.yml", folder),
        "docs_dir": "pages",
        "site_dir": "../site",
        "nav": with_pages_there(navigation(), names),
    }
    (folder / "mkdocs.yml").write_text(json.dumps(settings, indent=1), "utf-8")  # JSON is YAML


def with_links_of_the_site(text: str, path: str) -> tuple[str, list[str]]:
    """Replaces links of a page by those that hold on the site.

    A link to a file that is no page becomes its text: where the repository can be seen is not known.

    Args:
        path: of the page in the repository.
    Returns:
        The text, and paths of the files in docs/ that it links to, such as pictures.
    """
    names, files = site_names(), []

    def new_link(link: re.Match[str]) -> str:
        mark, words, target, anchor = link[1], link[2], link[3], link[4] or ""
        there = os.path.normpath(os.path.join(os.path.dirname(path), target))
        if there in names:
            return f"{mark}[{words}]({names[there]}{anchor})"
        if there.startswith("docs/") and (REPOSITORY / there).is_file():
            files.append(there)
            return f"{mark}[{words}]({os.path.basename(there)})"
        return words if target in words or there in words else f"{words} (`{there}`)"

    parts, fence = [""], ""  # prose and blocks of code in turn; the words of a link may be on two lines
    for line in text.splitlines(keepends=True):
        opened = _FENCE.match(line)
        if opened and (not fence or opened[1].startswith(fence)):
            fence = "" if fence else opened[1]
            if fence:
                parts.append(line)
            else:
                parts[-1] += line
                parts.append("")
        else:
            parts[-1] += line
    return "".join(part if place % 2 else _LINK.sub(new_link, part) for place, part in enumerate(parts)), files


def notebook_page(text: str, pictures: Path) -> str:
    """A notebook with its outputs as a page of Markdown; pictures are written beside it."""
    parts: list[str] = []
    for number, cell in enumerate(json.loads(text)["cells"]):
        source = "".join(cell["source"])
        is_text = cell["cell_type"] == "markdown"
        parts.append(with_links_of_the_site(source, _NOTEBOOK)[0] if is_text else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", "")})
            kind = next((kind for kind in ("image/png", "image/jpeg") if kind in data), "")
            if kind:
                name = f"first_hour_{number}.{kind.removeprefix('image/')}"
                (pictures / name).write_bytes(base64.b64decode("".join(data[kind])))
                parts.append(f"![Output of the cell above]({name})")
            else:
                parts.append(f"```text\n{''.join(data['text/plain']).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def navigation() -> list[Any]:
    """The navigation of mkdocs.yml, pages included that are not there yet."""

    class Loader(yaml.SafeLoader):
        """Reads over functions that settings name."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    nav: list[Any] = yaml.load((REPOSITORY / "mkdocs.yml").read_text("utf-8"), Loader)["nav"]
    return nav


def with_pages_there(nav: list[Any], names: Collection[str]) -> list[Any]:
    """A navigation without entries of pages that are not there."""
    found: list[Any] = []
    for entry in nav:
        if isinstance(entry, str):
            found += [entry] if entry in names else []
            continue
        ((title, below),) = entry.items()
        kept = with_pages_there(below, names) if isinstance(below, list) else with_pages_there([below], names)
        if kept:
            found.append({title: kept if isinstance(below, list) else below})
    return found
