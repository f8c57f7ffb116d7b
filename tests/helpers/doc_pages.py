"""Pages in Markdown as a reader meets them: blocks of code with their marks, links, headings and sentences.

How code blocks are written is told in CONTRIBUTING.md, "Documentation".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

RUN = ("bash", "console", "python")
SHOWN = ("text", "json", "yaml", "toml")
REASONS = (
    "needs weights", "needs a GPU", "needs a cluster", "needs a bucket", "needs official data", "needs the network",
    "needs the clone", "needs other tools",
)  # fmt: skip
MARKS = ("soak", "fails", *(f"not run: {reason}" for reason in REASONS))
SETUPS = ("toy photos", "toy store", "real photos")
_COMMENT = re.compile(r"<!--\s*(.*?)\s*-->", re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]”]*\s+")
_CODE_OR_WORD = re.compile(r"`[^`]*`|\w[\w'.,/-]*\w|\w")


@dataclass(frozen=True)
class Block:
    """A fenced block. `mark` is one of `MARKS`, or "" for what simply runs; `line` counts from 1."""

    line: int
    language: str
    text: str
    mark: str

    @property
    def shell(self) -> str:
        """Its commands: all of `bash`, of `console` the lines after `$ ` and what goes on from them."""
        if self.language != "console":
            return self.text
        commands, goes_on = [], False
        for line in self.text.splitlines():
            if line.startswith(("$ ", "> ")) or goes_on:
                commands.append(line if goes_on else line[2:])
                goes_on = line.endswith("\\")
        return "\n".join(commands) + "\n"


class Page:
    """One page.

    Attributes:
        blocks: fenced ones, in order.
        setup: of `SETUPS`, or "" for an empty folder.
        problems: what is not written as it should be, each "line N: what".
    """

    def __init__(self, text: str) -> None:
        self._tokens = MarkdownIt("commonmark").enable("table").parse(text)
        self.blocks: list[Block] = []
        self.setup = ""
        self.problems: list[str] = []
        for before, token in zip([None, *self._tokens], self._tokens, strict=False):
            if token.type == "fence":
                self._add(token, before)
            elif token.type == "code_block":
                self._found(token, "a block by four spaces: write ``` and a language")
            elif token.type == "html_block":
                self._look_at_comments(token)
        self._look_at_marks_left_alone()

    @classmethod
    def read(cls, path: Path) -> "Page":
        return _read(path, path.stat().st_mtime_ns)

    def _add(self, token: Token, before: Token | None) -> None:
        assert token.map is not None
        mark = ""
        if before is not None and before.type == "html_block" and before.map and before.map[1] == token.map[0]:
            found = _COMMENT.findall(before.content)
            mark = found[-1] if found else ""
        language = token.info.strip()
        if not language:
            self._found(token, f"a block without a language: one of {', '.join(RUN + SHOWN)}")
        elif language not in RUN + SHOWN:
            self._found(token, f"the language {language!r} is none of {', '.join(RUN + SHOWN)}")
        if mark and mark in SETUPS_WRITTEN:
            mark = ""
        if mark and language in SHOWN:
            self._found(token, f"a mark on a {language} block, which is never run")
        block = Block(token.map[0] + 1, language, token.content, mark if mark in MARKS else "")
        if language == "console" and not block.shell.strip():
            self._found(token, "a console block without a line `$ command`")
        self.blocks.append(block)

    def _look_at_comments(self, token: Token) -> None:
        for comment in _COMMENT.findall(token.content):
            if comment in SETUPS_WRITTEN:
                if self.setup or self.blocks:
                    self._found(token, "the set-up stands above the first block, once")
                self.setup = comment.removeprefix("in: ")
            elif comment not in MARKS:
                known = ", ".join((*MARKS, *SETUPS_WRITTEN))
                self._found(token, f"the comment {comment!r} is no mark; there are: {known}")

    def _look_at_marks_left_alone(self) -> None:
        starts = {block.line for block in self.blocks}
        for token in self._tokens:
            is_mark = token.type == "html_block" and set(_COMMENT.findall(token.content)) & set(MARKS)
            if is_mark and token.map and token.map[1] + 1 not in starts:
                self._found(token, "a mark stands on the line before its block")

    def _found(self, token: Token, what: str) -> None:
        self.problems.append(f"line {_line(token)}: {what}")

    @cached_property
    def anchors(self) -> set[str]:
        """What `#...` may name, as GitHub makes it of headings, and ids in HTML."""
        found: set[str] = set()
        for before, token in zip(self._tokens, self._tokens[1:], strict=False):
            if before.type == "heading_open":
                words = "".join(
                    child.content for child in token.children or () if child.type in ("text", "code_inline")
                )
                slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
                names = (slug, *(f"{slug}-{number}" for number in range(1, len(found) + 1)))
                found.add(next(name for name in names if name not in found))
            elif "html" in token.type:
                found.update(re.findall(r"\b(?:id|name)=\"([^\"]+)\"", token.content))
        return found

    @cached_property
    def links(self) -> list[tuple[int, str]]:
        """(line, target) of links and pictures."""
        found = []
        for token in self._tokens:
            line = _line(token)
            if token.type == "html_block":
                found += [(line, target) for target in re.findall(r"\b(?:href|src)=\"([^\"]+)\"", token.content)]
            for child in token.children or ():
                target = child.attrGet("href") or child.attrGet("src")
                if target:
                    found.append((line, str(target)))
                elif child.type == "html_inline":
                    found += [(line, there) for there in re.findall(r"\b(?:href|src)=\"([^\"]+)\"", child.content)]
        return found

    @cached_property
    def code_spans(self) -> list[tuple[int, str]]:
        """(line, text) of `code` between words."""
        return [
            (_line(token), " ".join(child.content.split()))
            for token in self._tokens
            for child in token.children or ()
            if child.type == "code_inline"
        ]

    @cached_property
    def paragraphs(self) -> list[tuple[int, str]]:
        """(line, text) of paragraphs and items of lists, `code` as one word; no headings, tables and blocks."""
        found, end = [], ""
        for token in self._tokens:
            if token.type in ("heading_open", "table_open"):
                end = token.type.replace("open", "close")
            elif token.type == end:
                end = ""
            elif token.type == "inline" and not end:
                found.append((_line(token), "".join(map(_prose, token.children or ()))))
        return found

    @cached_property
    def sentences(self) -> list[tuple[int, list[str]]]:
        """(line, words) of each sentence of the paragraphs; code does not count."""
        split = [
            (line, [word for word in sentence.split() if re.search(r"\w", word)])
            for line, text in self.paragraphs
            for sentence in _SENTENCE_END.split(re.sub("`[^`]*`", "", text))
        ]
        return [(line, words) for line, words in split if words]

    @property
    def mean_sentence(self) -> float:
        """Words of a sentence in the mean; 0 without sentences."""
        return sum(len(words) for _, words in self.sentences) / max(1, len(self.sentences))

    def long_sentences(self, most_words: int) -> list[str]:
        """Sentences of more words. Each "line N: how many words: how it begins"."""
        return [
            f"line {line}: {len(words)} words: {' '.join(words[:8])} ..."
            for line, words in self.sentences
            if len(words) > most_words
        ]


def repeated_runs(pages: Mapping[str, Page], num_words: int) -> list[str]:
    """Runs of so many words that stand twice in paragraphs of pages. Each "PAGE:LINE and PAGE:LINE: the words"."""
    places: dict[tuple[str, ...], str] = {}
    found: dict[str, str] = {}  # the first run of each pair of places
    for name, page in pages.items():
        for line, text in page.paragraphs:
            words = _CODE_OR_WORD.findall(text.lower())
            for run in zip(*(words[start:] for start in range(num_words)), strict=False):
                place = f"{name}:{line}"
                if run in places:
                    found.setdefault(f"{places[run]} and {place}", " ".join(run))
                places.setdefault(run, place)
    return [f"{both}: {words}" for both, words in found.items()]


SETUPS_WRITTEN = tuple(f"in: {name}" for name in SETUPS)


def _prose(token: Token) -> str:
    if token.type == "code_inline":
        return f"`{'_'.join(token.content.split())}`"
    return {"text": token.content, "softbreak": " ", "hardbreak": ". "}.get(token.type, "")


def _line(token: Token) -> int:
    return token.map[0] + 1 if token.map else 0


@cache
def _read(path: Path, changed_ns: int) -> Page:
    return Page(path.read_text("utf-8"))
