"""The runs of a paper's table, and the table with printed and measured figures side by side.

    OUT/runs/<recipe>                runs, predictions
    OUT/made/<what>.json             a command that is done: its words, a digest of its recipe and of what it needs
    OUT/logs/<what>.log
    OUT/<table>.md  <table>.csv  <table>.html

Each command is a process of its own. One that was ended goes on where it was; one that is done is not repeated, for
another table in the same folder neither.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import io
import json
import math
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path
from typing import IO, Any, cast

from roibeam.features.folders.durable_files import write_bytes_atomically, write_json_atomically
from roibeam.messages import escaped, name_hint, plural
from roibeam.pipelines.cli.recipe_commands import Command, chain_of, commands_of, source_of
from roibeam.pipelines.common.console.command_files import FILE, FOLDER, NamedFiles, read_json_object
from roibeam.pipelines.common.page_layout import PAGE_END, Banner, banner_html, folded, page_start, table, tiles
from roibeam.pipelines.common.statistics.paper_figures import PaperFigure, PaperTable, paper_table
from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES
from roibeam.pipelines.pretraining.recipes.published import RECIPES
from roibeam.pipelines.toyworld.paper_files import TOY_WIDTH

RUN_HERE = ("pretrain", "finetune", "predict", "score", "evaluate", "attention")
_TRAINED = ("pretrain", "finetune", "predict")  # which torchrun can start on several processes
_PLACE = re.compile(r"(.*=|)(DATA|STORES|RUNS)/(.*)")
_WAIT = 5.0  # seconds between two looks for what others make
_AVERAGE, HEADS, ENTITY = "average of the eight", "best head", "entity"


@dataclass(frozen=True)
class TableRequest:
    """
    Attributes:
        data, stores: see recipe_commands.py.
        only: patterns of rows of the table; all where none is given.
        seeds: runs of each recipe of a task.
        jobs: commands at once.
        part: this part, from 1, and the number of parts, each started by itself.
        processes: of each training, by torchrun.
        scored: file of figures of test servers, {"row: column": percent}.
        toy: small models; `data` and `stores` are those of toyworld/paper_files.py.
    """

    name: str
    data: Path
    stores: Path
    out: Path
    only: Sequence[str] = ()
    seeds: int = 1
    jobs: int = 1
    part: tuple[int, int] = (1, 1)
    processes: int = 1
    scored: Path | None = None
    toy: bool = False


def fits(row: str, only: Sequence[str]) -> bool:
    return not only or any(row == pattern or fnmatchcase(row, pattern) for pattern in only)


def table_commands(table: PaperTable, only: Sequence[str] = (), seeds: int = 1) -> dict[str, Command]:
    """Commands of all recipes of a table by key, in order; what rows share once. Raises ValueError for an unknown
    row."""
    rows = list(dict.fromkeys(each.row for each in table.own))
    for pattern in only:
        if not any(fits(row, [pattern]) for row in rows):
            raise ValueError(f"{table.name} has no row {pattern!r}: {name_hint(pattern, rows)}")
    chosen = [each for each in table.own if each.recipe and fits(each.row, only)]
    if not chosen:
        whys = ", ".join(dict.fromkeys(each.why for each in table.own if each.why))
        raise ValueError(f"{table.name}: no command makes its figures: {whys or 'it has no results of its own'}")
    every: dict[str, Command] = {}
    for name in dict.fromkeys(each.recipe for each in chosen):
        for command in (each for seed in range(seeds) for each in commands_of(name, seed)):
            every.setdefault(command.key, command)
    wanted = {key for each in chosen for seed in range(seeds) if (key := source_of(each, seed)[0])}
    while more := {need for key in wanted for need in every[key].needs} - wanted:
        wanted |= more
    return {key: each for key, each in every.items() if key in wanted}


class TableRun:
    """The commands of a request, and their results in its folder."""

    def __init__(self, request: TableRequest, tell: Callable[[str], None]) -> None:
        self.request, self.tell = request, tell
        self.table = paper_table(request.name)
        every = table_commands(self.table, request.only, request.seeds)
        self.commands = {key: each for key, each in every.items() if each.words[0] in RUN_HERE}
        self._running: list[subprocess.Popen[bytes]] = []
        self._is_stopping = False

    def check(self) -> None:
        """Raises ValueError naming folders that are missing, or commands that were made by another request."""
        request, named = self.request, NamedFiles()
        named.need("--data", request.data, FOLDER)
        if named.need("--stores", request.stores, FOLDER):
            for store in sorted({need for each in self.commands.values() for need in each.needs}):
                if store.startswith("store "):
                    named.need("--stores", request.stores / store.removeprefix("store "), FOLDER)
        words = (word for each in self.commands.values() for word in each.words * (not request.toy))
        for word in dict.fromkeys(word for word in words if word.startswith("DATA/weights/")):
            named.need("--data", self._filled(word), FILE)
        named.check()
        self.cells()
        for each in self.commands.values():
            self._has(each.key)

    def run(self) -> list[Path]:
        """Runs what is missing and of this part; returns the logs of those that failed."""
        missing = {each.key: each for each in self.mine() if not self._has(each.key)}
        for key in missing:
            self._made(key, "failed").unlink(missing_ok=True)
        going: dict[Future[int], Command] = {}
        failed: list[Path] = []
        is_waiting = False
        with ThreadPoolExecutor(self.request.jobs) as pool:
            try:
                while missing or going:
                    ready = [each for each in missing.values() if all(map(self._has, each.needs))]
                    for each in ready[: self.request.jobs - len(going)]:
                        going[pool.submit(self._make, missing.pop(each.key))] = each
                    if not going:
                        needed = {need for each in missing.values() for need in each.needs} - missing.keys()
                        if lost := [need for need in sorted(needed) if self._made(need, "failed").exists()]:
                            self.tell(f"{lost[0]} failed in another part; what needs it is left out")
                            missing = _without(missing, lost[0])
                            continue
                        if not is_waiting:
                            self.tell(f"waiting for other parts, which make what {next(iter(missing))} needs")
                        is_waiting = True
                        time.sleep(_WAIT)
                    for future in wait(going, return_when=FIRST_COMPLETED).done:
                        command = going.pop(future)
                        if future.result():
                            failed.append(self._log(command))
                            missing = _without(missing, command.key)
                        self.write()
            except BaseException:
                self._is_stopping = True
                for process in list(self._running):
                    process.send_signal(signal.SIGINT)
                raise
        return failed

    def mine(self) -> Iterator[Command]:
        """Commands of this part: runs in turn, each with what only reads it."""
        part, parts = self.request.part
        owner: dict[str, int] = {}
        runs = 0
        for key, command in self.commands.items():
            if command.words[0] in ("pretrain", "finetune"):
                owner[key], runs = runs % parts, runs + 1
            else:
                owner[key] = next(owner[need] for need in command.needs if need in owner)
            if owner[key] == part - 1:
                yield command

    def _has(self, key: str) -> bool:
        """Whether a command is done. Raises ValueError for one that was made by other words, or an older recipe."""
        if key not in self.commands or not self._made(key).exists():
            return key not in self.commands
        words, found = self._recorded(self.commands[key]), read_json_object(self._made(key))
        if (found.get("words"), found.get("digest")) != (words, self._digest(key)):
            other = (
                "its recipe, a store or what it needs has changed" if found.get("words") == words else "by other words"
            )
            raise ValueError(
                f"{self.request.out} has {key!r}, but {other}; choose a new --out, or remove {self._made(key)} and "
                f"what it made"
            )
        return True

    @cache  # noqa: B019
    def _digest(self, key: str) -> str:
        """Of the settings of a command's recipe, and of all that it needs, stores too."""
        if key not in self.commands:
            manifest = self.request.stores / key.removeprefix("store ") / "manifest.json"
            return hashlib.sha256(manifest.read_bytes() if manifest.is_file() else b"").hexdigest()[:16]
        command, settings = self.commands[key], ""
        if "--recipe" in command.words:
            name = command.words[command.words.index("--recipe") + 1]
            recipe: Any = TASK_RECIPES.get(name) or RECIPES[name]
            settings = repr(replace(recipe, summary="", source="", left_open=(), figures=()))
        return hashlib.sha256(repr([settings, *map(self._digest, command.needs)]).encode()).hexdigest()[:16]

    def _make(self, command: Command) -> int:
        """Runs a command; returns its exit code."""
        if self._is_stopping:
            return 1
        request, log = self.request, self._log(command)
        words = self._words(command)
        start = [sys.executable, "-m", "roibeam"]
        if request.processes > 1 and command.words[0] in _TRAINED:
            launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(request.processes))
            start = [sys.executable, *launcher, "-m", "roibeam"]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as out:
            if not self._locked(out, command.key) or self._has(command.key):
                return int(self._is_stopping)
            begun = time.monotonic()
            if command.words[0] in ("evaluate", "attention"):  # what was begun is not gone on with
                shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)
            out.write(f"{shlex.join(('roibeam', *words))}\n")
            out.flush()
            is_score = command.words[0] == "score"
            words_too = [*words, *(["--json"] * is_score)]
            process = subprocess.Popen([*start, *words_too], stdout=subprocess.PIPE if is_score else out, stderr=out)
            self._running.append(process)
            try:
                answer, _ = process.communicate()
            finally:
                self._running.remove(process)
                with log.with_suffix(".seconds").open("a", encoding="utf-8") as spent:
                    spent.write(f"{time.monotonic() - begun:.1f}\n")
        self._made(command.key).parent.mkdir(parents=True, exist_ok=True)
        if process.returncode:
            self._made(command.key, "failed").touch()
        else:
            answered = json.loads(answer) if answer else None
            made = {"words": self._recorded(command), "digest": self._digest(command.key), "answer": answered}
            write_json_atomically(self._made(command.key), made)
        self.tell(f"{command.key}: {'failed, see ' + str(log) if process.returncode else 'done'}")
        return process.returncode

    def _locked(self, log: IO[str], key: str) -> bool:
        """Locks the log of a command; a process that outlived a killed call has its log open, and is waited for. False
        if this call ends before."""
        is_told = False
        while not self._is_stopping:
            try:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not is_told:
                    self.tell(f"waiting for an earlier call's {key}, which still runs")
                is_told = True
                time.sleep(_WAIT)
            else:
                return True
        return False

    def _words(self, command: Command) -> list[str]:
        """A command as it is run."""
        return list(map(self._filled, _toy(command) if self.request.toy else command.words))

    def _recorded(self, command: Command) -> list[str]:
        """The same with OUT in place of the request's folder, which may be moved."""
        return [word.replace(str(self.request.out), "OUT") for word in self._words(command)]

    def _filled(self, word: str) -> str:
        """A word with the folders of the request in place of DATA, STORES and RUNS."""
        request, found = self.request, _PLACE.fullmatch(word)
        if found is None:
            return word
        folders = {"DATA": request.data, "STORES": request.stores, "RUNS": request.out / "runs"}
        return f"{found[1]}{folders[found[2]] / found[3]}"

    def _log(self, command: Command) -> Path:
        return self.request.out / "logs" / f"{_file_name(command.key)}.log"

    def _made(self, key: str, suffix: str = "json") -> Path:
        return self.request.out / "made" / f"{_file_name(key)}.{suffix}"

    def write(self) -> None:
        write_table(self.request.out, self.table, self.cells(), is_toy=self.request.toy)

    def cells(self) -> list[Cell]:
        """Cells of the table's own figures, in order."""
        scored = {} if self.request.scored is None else read_json_object(self.request.scored)
        names = [Cell(each).name for each in self.table.own if not each.column.endswith(HEADS)]
        for name, percent in scored.items():
            if name not in names:
                raise ValueError(f"{self.request.scored}: no cell {name!r}: {name_hint(name, names)}")
            if not isinstance(percent, int | float) or not math.isfinite(percent):
                raise ValueError(f"{self.request.scored}: {name!r} has {percent!r}; expected a figure in percent")
        found = [self._cell(each) for each in self.table.own if fits(each.row, self.request.only)]
        known = [
            replace(each, values=(scored[each.name],), low=None, high=None) if each.name in scored else each
            for each in found
        ]
        return list(map(partial(_averaged, known), known))

    def _cell(self, figure: PaperFigure) -> Cell:
        key, measure = source_of(figure) if figure.recipe else ("", "")
        if key not in self.commands:
            return Cell(figure)
        of_task = figure.recipe in TASK_RECIPES
        each = [self._measured(*source_of(figure, seed)) for seed in range(self.request.seeds if of_task else 1)]
        known = [found for found in each if found is not None]
        keys = {source_of(figure, seed)[0] for seed in range(self.request.seeds)} if of_task else {key}
        needed = set[str]().union(*map(self._needs, keys))
        facts: dict[str, Any] = {"seconds": sum(map(self._seconds, needed))}
        if "--check" in (words := self.commands[key].words):
            facts["submission"] = words[2].replace("RUNS/", "runs/")
        if known and measure.endswith(HEADS):
            return Cell(figure, words="{layer}-{head}".format(**known[0]), **facts)
        values = tuple(100 * found["value"] for found in known)
        if len(known) == 1 and known[0]["low"] is not None:
            facts |= {name: 100 * known[0][name] for name in ("low", "high")}
        return Cell(figure, values, **facts)

    def _measured(self, key: str, measure: str) -> Mapping[str, Any] | None:
        """Value, low and high, 0..1; None for what is not known."""
        if key not in self.commands or not self._has(key):
            return None
        words = self.commands[key].words
        if words[0] == "score":
            figures = read_json_object(self._made(key))["answer"].get("figures", ())
            found = next((each for each in figures if each["name"] == measure), None)
        elif words[0] == "evaluate":
            found = read_json_object(Path(self._filled(key)) / "results.json")["figures"].get(measure)
        else:
            found = _of_heads(read_json_object(Path(self._filled(key)) / "attention.json"), measure)
        return None if found is None or found["value"] is None else found

    def _needs(self, key: str) -> set[str]:
        """Keys of a command and all that it needs."""
        if key not in self.commands:
            return set()
        return {key}.union(*map(self._needs, self.commands[key].needs))

    def _seconds(self, key: str) -> float:
        spent = self.request.out / "logs" / f"{_file_name(key)}.seconds"
        return sum(map(float, spent.read_text("utf-8").split())) if spent.exists() else 0.0


def _toy(command: Command) -> tuple[str, ...]:
    """The words of a command on a toy world: small models, the world's vocabulary, no weights to start from."""
    words, kind = command.words, command.words[0]
    run = re.sub(r"(-coco)?(-seed-\d+)?$", "", words[1].removeprefix("RUNS/"))
    recipe = TASK_RECIPES.get(run) or RECIPES.get(run)
    for option, others in (
        ("--weights", ()), ("--from-bert", ()), ("--parses", ("--parses", "DATA/flickr30k-entities/parses.conll")),
    ):  # fmt: skip
        if option in words:
            place = words.index(option)
            words = (*words[:place], *others, *words[place + 2 :])
    if kind in _TRAINED and recipe is not None and recipe.end_to_end:
        of_vcr = any("vcr" in word for word in words[2:])
        words = (*words, "--photos", "DATA/vcr/vcr1images" if of_vcr else "DATA/photos")
    if kind not in ("pretrain", "finetune"):
        return words
    words = (*words, "--toy", *(() if "--from-run" in words else ("--tokenizer", "DATA/vocab.txt")))
    names, settings = "object_names=DATA/vcr/object_names.txt", list[str]()
    if "--objects" in words:  # the perfect store does not say that its boxes were given
        settings += [f"sampling.{each}" for each in (names, "aligned_words=none", "shown_boxes=all")]
    if kind == "finetune" and "vcr" in words:
        settings.append(f"vcr.{names}")
    if kind == "pretrain" and any(word.endswith("-resnet152-of-photo") for word in words):
        settings.append(f"model.global_feature_size={TOY_WIDTH}")
    return (*words, *(word for each in settings for word in ("--set", each)))


def _without(missing: Mapping[str, Command], key: str) -> dict[str, Command]:
    """Commands that do not need what failed."""
    lost = {key}
    for each in missing.values():  # in order: what is needed comes first
        if lost & set(each.needs):
            lost.add(each.key)
    return {name: each for name, each in missing.items() if name not in lost}


def _file_name(key: str) -> str:
    return key.replace("/", "-").replace(" ", "-")


def _of_heads(found: Mapping[str, Any], measure: str) -> Mapping[str, Any] | None:
    """A figure of `roibeam attention`: "pobj, accuracy", "entity, baseline"."""
    relation, _, kind = measure.partition(", ")
    names = ("name", "paper_name")
    population = next((each for each in found["populations"] if relation in map(each.get, names)), None)
    if population is None:
        return None
    if relation == ENTITY and kind != "baseline":  # the paper's is the best of all heads, active or not
        best: dict[str, int] = population["best_of_all_heads"]
        value = population["accuracy"][best["layer"] - 1][best["head"] - 1]
        return {**best, "value": value, "low": None, "high": None}
    return cast("Mapping[str, Any]", population["baseline" if kind == "baseline" else "best_head"])


def _averaged(cells: Sequence[Cell], cell: Cell) -> Cell:
    """A cell that is the mean of the tasks of its row: MNLI's two files count as one."""
    if not cell.figure.column.endswith(_AVERAGE):
        return cell
    tasks: dict[str, list[float]] = {}
    for each in cells:
        if each.figure.row == cell.figure.row and each is not cell:
            tasks.setdefault(each.figure.task, []).append(math.nan if each.mean is None else each.mean)
    mean = statistics.fmean(statistics.fmean(values) for values in tasks.values())
    return cell if math.isnan(mean) else replace(cell, values=(mean,))


HEAD = (
    "row", "column", "printed", "ours", "95 % interval", "ours less printed", "printed is", "hours", "recipes",
)  # fmt: skip
DRILL = Banner("A drill.", "Small models on drawn pictures: that all commands run is shown, the figures mean nothing.")


@dataclass(frozen=True)
class Cell:
    """A figure and what came out.

    Attributes:
        values: in percent, by seed; empty where nothing is known yet.
        low, high: 95 % interval over images, of one seed.
        words: what came out, of a figure that is no number.
        submission: of a figure that a test server tells: file below the folder of the table.
        seconds: of the commands that it needs, shared ones too.
    """

    figure: PaperFigure
    values: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None
    words: str = ""
    submission: str = ""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.figure.row}: {self.figure.column}"

    @property
    def mean(self) -> float | None:
        return sum(self.values) / len(self.values) if self.values else None

    def line(self) -> list[str]:
        """Texts below `HEAD`."""
        figure, mean = self.figure, self.mean
        recipes = " > ".join(chain_of(figure.recipe)) if figure.recipe else f"none: {figure.why}"
        hours = f"{self.seconds / 3600:.2f}" if self.seconds else ""
        start = [figure.row, figure.column, figure.printed]
        if mean is None:
            missing = "" if figure.recipe else "no command"
            missing = f"to submit: {self.submission}" if self.submission else missing
            return [*start, self.words or missing, "", "", "", hours, recipes]
        interval, inside = "", ""
        if len(self.values) > 1:
            interval = f"sd {statistics.stdev(self.values):.2f} of {len(self.values)} seeds"
        elif self.low is not None and self.high is not None:
            interval = f"{self.low:.2f} .. {self.high:.2f}"
            inside = "inside" if self.low <= figure.value <= self.high else "outside"
        return [*start, f"{mean:.2f}", interval, f"{mean - figure.value:+.2f}", inside, hours, recipes]


def write_table(folder: Path, of: PaperTable, cells: Sequence[Cell], *, is_toy: bool) -> None:
    """Writes the table three times, each file whole."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [each.line() for each in cells]
    text = io.StringIO()
    csv.writer(text).writerows([HEAD, *lines])
    for suffix, content in (
        (".md", _markdown(of, lines, cells, is_toy=is_toy)),
        (".csv", text.getvalue()),
        (".html", _page(of, lines, cells, is_toy=is_toy)),
    ):
        write_bytes_atomically(folder / f"{of.name}{suffix}", content.encode())


def _summary(cells: Sequence[Cell]) -> str:
    known = sum(bool(each.values or each.words) for each in cells)
    served = sum(bool(each.submission) and not each.values for each in cells)
    return (
        f"{known} of {plural(len(cells), 'figure')} measured" + (f", {served} for a test server" * bool(served)) + "."
    )


def _markdown(of: PaperTable, lines: Sequence[Sequence[str]], cells: Sequence[Cell], *, is_toy: bool) -> str:
    parts = [f"# {of.name}: {of.title}: {of.caption}", f"{DRILL.line}." if is_toy else "", _summary(cells)]
    rows = [HEAD, ["---"] * len(HEAD), *([cell.replace("|", "\\|") for cell in line] for line in lines)]
    parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    for recipe, points in _differences(cells):
        parts += [f"## What {recipe} leaves open", "\n".join(f"- {point}" for point in points)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _page(of: PaperTable, lines: Sequence[Sequence[str]], cells: Sequence[Cell], *, is_toy: bool) -> str:
    counts = [("figures", str(len(cells))), ("measured", str(sum(bool(each.values or each.words) for each in cells)))]
    parts = [
        page_start(f"{of.name}: {of.title}", f"{of.caption[0].upper()}{of.caption[1:]}. {_summary(cells)}"),
        banner_html(DRILL if is_toy else None),
        tiles(counts),
        table(HEAD, [[escaped(cell, 300) for cell in line] for line in lines], numbers=(2, 3, 4, 5, 7)),
    ]
    for recipe, points in _differences(cells):
        listed = "".join(f"<li>{escaped(point, 1000)}</li>" for point in points)
        parts.append(folded(f"What {recipe} leaves open", f"<ul>{listed}</ul>"))
    return "".join((*parts, PAGE_END))


def _differences(cells: Sequence[Cell]) -> Iterator[tuple[str, Sequence[str]]]:
    """Each recipe that a cell is made by, and in what a run of it may differ from the paper's."""
    made_by = dict.fromkeys(name for each in cells if each.figure.recipe for name in chain_of(each.figure.recipe))
    for name in made_by:
        recipe = TASK_RECIPES.get(name) or RECIPES[name]
        if recipe.left_open:
            yield name, recipe.left_open
