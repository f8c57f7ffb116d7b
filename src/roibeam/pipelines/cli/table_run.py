"""The runs of a paper's table, and the table with printed and measured figures side by side.

    OUT/runs/<recipe>                runs, predictions
    OUT/made/<what>.json             a command that is done: its words, a digest of its recipe and of what it needs
    OUT/logs/<what>.log              open, and locked, while the command runs
    OUT/<table>.md  <table>.csv  <table>.html
    OUT/<table>.scored.json          figures of test servers, each with the digest of the submission that it is for

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
import os
import re
import secrets
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path
from typing import IO, Any, cast

from roibeam.features.folders.durable_files import sha256_of, write_bytes_atomically, write_json_atomically
from roibeam.features.folders.folder_protocol import lock_file
from roibeam.messages import name_hint, plural
from roibeam.pipelines.cli.recipe_commands import Command, chain_of, commands_of, filled, missing_of, source_of
from roibeam.pipelines.common.console.command_files import FOLDER, NamedFiles, read_json_object
from roibeam.pipelines.common.page_layout import Banner, rendered
from roibeam.pipelines.common.statistics.paper_figures import PaperFigure, PaperTable, paper_table
from roibeam.pipelines.common.statistics.verdict import mean_interval
from roibeam.pipelines.finetuning.prediction_card import card_path
from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES
from roibeam.pipelines.pretraining.recipes.published import RECIPES
from roibeam.pipelines.toyworld.paper_files import TOY_WIDTH

RUN_HERE = ("pretrain", "finetune", "predict", "score", "evaluate", "attention")
_TRAINED = ("pretrain", "finetune", "predict")  # which torchrun can start on several processes
_SEED = re.compile(r"run-.*-seed-(\d+)\.json")
_TOY_STEPS = {
    "pretrain": ("--steps", "20", "--batch-size", "8"),
    "finetune": ("--steps", "3", "--batch-size", "8", "--set", "train.evaluate_every=3"),
}
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
        part: of `parts` calls that share a folder, from 1, and their number: where in the commands this one begins.
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
        made = [_SEED.fullmatch(path.name) for path in (request.out / "made").glob("run-*.json")]
        self.seeds = max([request.seeds, *(int(found[1]) + 1 for found in made if found)])  # earlier calls' too
        self.commands = _run_here(table_commands(self.table, (), self.seeds))
        chosen = list(_run_here(table_commands(self.table, request.only, request.seeds)).values())
        part, parts = request.part
        first = len(chosen) * (part - 1) // parts
        self.in_turn = chosen[first:] + chosen[:first]
        self._scored_file = request.out / f"{self.table.name}.scored.json"
        keys = (
            (f"{each.row}: {each.column}{f', seed {seed}' if seed else ''}", source_of(each, seed)[0])
            for each in self.table.own if each.recipe for seed in range(self.seeds)
        )  # fmt: skip
        self._served = {name: key for name, key in keys if key and "--check" in self.commands[key].words}
        self._given = {} if request.scored is None else _scored(request.scored, list(self._served))
        self._running: list[subprocess.Popen[bytes]] = []
        self._is_stopping = False

    def check(self) -> None:
        """Raises ValueError naming what is missing, was made by another request, or was told of another submission."""
        request, named = self.request, NamedFiles()
        named.need_output_folder(request.out)
        named.need("--data", request.data, FOLDER)
        named.need("--stores", request.stores, FOLDER)
        done = {key: named.look(partial(self._has, key)) for key in self.commands}
        left = [replace(each, words=self._words(each)) for each in self.in_turn if done[each.key] is False]
        if missing := missing_of(left, request.data, request.stores, named):
            typed = f"roibeam tables {request.name} --dry-run --data {request.data} --stores {request.stores}"
            named.refuse(f"{plural(len(missing), 'need')} missing: {', '.join(missing)}; {typed} says where from")
        named.check()
        self._keep_scored()

    def run(self) -> list[Path]:
        """Runs what is missing, and returns the logs of what failed. Calls on one folder share the commands: each takes
        the next that is free, its own part first."""
        going: dict[Future[int | None], Command] = {}
        failed: dict[str, Path] = {}
        busy = dict[str, float]()  # when another process was last seen to make it
        with ThreadPoolExecutor(self.request.jobs) as pool:
            try:
                while True:
                    taken = failed.keys() | {each.key for each in going.values()}
                    ready = [each for each in self.in_turn if each.key not in taken and self._is_ready(each)]
                    if not going and not ready:
                        return [log for key, log in failed.items() if not self._has(key)]
                    ready.sort(key=lambda each: busy.get(each.key, 0.0))
                    for each in ready[: self.request.jobs - len(going)]:
                        going[pool.submit(self._make, each)] = each
                    ended = {going.pop(each): each.result() for each in wait(going, _WAIT, FIRST_COMPLETED).done}
                    bad = [each for each, code in ended.items() if code or (code == 0 and not self._has(each.key))]
                    failed |= {each.key: self._log(each) for each in bad}
                    for each in (each for each, code in ended.items() if code is None):
                        if each.key not in busy:
                            self.tell(f"{each.key}: another process is making it")
                        busy[each.key] = time.monotonic()
                    if ended:
                        self.write()
                    if None in ended.values():
                        time.sleep(_WAIT)
            except BaseException:
                self._is_stopping = True
                for process in list(self._running):
                    process.terminate()
                raise

    def _is_ready(self, command: Command) -> bool:
        return not self._has(command.key) and all(map(self._has, command.needs))

    def _has(self, key: str) -> bool:
        """Whether a command is done. Raises ValueError for one that was made by other words, of other files, or by an
        older recipe."""
        if key not in self.commands or not self._made(key).exists():
            return key not in self.commands
        command, made = self.commands[key], self._made(key)
        if key.startswith("run ") and not Path(self._filled(command.words[1])).exists():
            return False
        found, now = read_json_object(made), self._recorded(command)
        if not {"words", "recipes", "answer"} <= found.keys():
            raise ValueError(f"{made} is no record of a command that was run; remove it, and the command runs again")
        found.setdefault("toy", found.get("data") is None)
        for name, what in (
            ("words", "by other words"), ("toy", f"{'' if found['toy'] else 'not '}in a drill"),
            ("data", f"of the files of {found.get('data')}"), ("recipes", "a recipe that it needs has changed"),
            ("stores", "a store has changed"),
        ):  # fmt: skip
            if found.get(name) != now[name] and None not in (found.get(name), now[name]):
                raise ValueError(
                    f"{self.request.out} has {key!r}, but {what}; choose a new --out, or remove {made} and what it made"
                )
        if found.get("needs", now["needs"]) != now["needs"]:  # one of them was made anew
            return False
        if command.words[0] == "score":  # not of predictions that were made or changed after it
            predictions = Path(self._filled(command.words[2]))
            return predictions.is_file() and predictions.stat().st_mtime_ns <= made.stat().st_mtime_ns
        return not key.startswith("RUNS/") or Path(self._filled(key)).exists()

    @cache  # noqa: B019
    def _digests(self, key: str) -> Mapping[str, str | None]:
        """Digest of the settings of all recipes that a command needs, and of the stores; None where one is gone."""
        needed = [self.commands[each] for each in sorted(self._needs(key))]
        recipes = {each.words[each.words.index("--recipe") + 1] for each in needed if "--recipe" in each.words}
        names = {need.removeprefix("store ") for each in needed for need in each.needs if need.startswith("store ")}
        manifests = [self.request.stores / name / "manifest.json" for name in sorted(names)]
        found = [sha256_of(path) for path in manifests if path.is_file()]
        stores = _digest(*found) if len(found) == len(manifests) else None
        return {"recipes": _digest(*map(_settings, sorted(recipes))), "stores": stores}

    def _make(self, command: Command) -> int | None:
        """Runs a command; returns its exit code, or None if another process is making the same: it may also be one
        that outlived a killed call, and still has its log open."""
        log, words = self._log(command), [*map(self._filled, self._words(command))]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as out:
            try:
                lock_file(out.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, log.parent)
            except BlockingIOError:
                return None
            if self._is_stopping or self._has(command.key):
                return int(self._is_stopping)
            made = Path(words[words.index("--out") + 1]) if "--out" in words else log
            if command.words[0] in ("evaluate", "attention"):  # what was begun is not gone on with
                shutil.rmtree(made, ignore_errors=True)
            elif command.words[0] == "predict" and (self._made(command.key).exists() or not card_path(made).exists()):
                for stale in (made, card_path(made)):
                    stale.unlink(missing_ok=True)
            out.write(f"{shlex.join(('roibeam', *words))}\n")
            out.flush()
            recorded = self._recorded(command)  # of the stores as they are now
            code, answer = self._ran(words, out)
            if not code:
                answered = json.loads(answer) if answer else None
                self._made(command.key).parent.mkdir(parents=True, exist_ok=True)
                recorded |= {"answer": answered, "token": secrets.token_hex(8)}
                write_json_atomically(self._made(command.key), recorded)
        if not self._is_stopping:
            self.tell(f"{command.key}: {f'failed, see {log}' if code else 'done'}")
        return code

    def _ran(self, words: Sequence[str], log: IO[str]) -> tuple[int, bytes | None]:
        """Exit code of a command, and what a score tells."""
        start, is_score = [sys.executable, "-m", "roibeam"], words[0] == "score"
        if self.request.processes > 1 and words[0] in _TRAINED:
            processes = str(self.request.processes)
            launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes)
            start = [sys.executable, *launcher, "-m", "roibeam"]
        begun = time.monotonic()
        process = subprocess.Popen(
            [*start, *words, *(["--json"] * is_score)], stdout=subprocess.PIPE if is_score else log, stderr=log
        )
        self._running.append(process)
        if self._is_stopping:
            process.terminate()
        try:
            answer, _ = process.communicate()
        finally:
            self._running.remove(process)
            with Path(log.name).with_suffix(".seconds").open("a", encoding="utf-8") as spent:
                spent.write(f"{time.monotonic() - begun:.1f}\n")
        return process.returncode, answer

    def _words(self, command: Command) -> tuple[str, ...]:
        """A command as it is run, with DATA, STORES and RUNS in place of the folders."""
        return _toy(command) if self.request.toy else command.words

    def _recorded(self, command: Command) -> dict[str, Any]:
        """By what a command is known again; a drill's files lie in its own folder, which may be moved."""
        data = None if self.request.toy else os.path.realpath(self.request.data)
        words = list(self._words(command))
        needs = {each: self._token(each) for each in command.needs if each in self.commands}
        return {"words": words, "data": data, "toy": self.request.toy, "needs": needs, **self._digests(command.key)}

    def _token(self, key: str) -> str | None:
        """Drawn when a command is done; None where it is not, or was done by an earlier version."""
        made = self._made(key)
        return read_json_object(made).get("token") if made.exists() else None

    def _filled(self, word: str) -> str:
        request = self.request
        return filled(word, {"DATA": request.data, "STORES": request.stores, "RUNS": request.out / "runs"})

    def _log(self, command: Command) -> Path:
        return self.request.out / "logs" / f"{_file_name(command.key)}.log"

    def _made(self, key: str) -> Path:
        return self.request.out / "made" / f"{_file_name(key)}.json"

    def write(self) -> None:
        write_table(self.request.out, self.table, self.cells(), is_toy=self.request.toy)

    def cells(self) -> list[Cell]:
        """Cells of the table's own figures, in order. Figures of test servers are kept in the folder."""
        known = list(map(partial(self._cell, self._kept()), self.table.own))
        return list(map(partial(_averaged, known), known))

    def _submission(self, name: str) -> str:
        """Digest of a cell's submission as it was checked; "" where that is still to be done."""
        key = self._served[name]
        answer = read_json_object(self._made(key))["answer"] if self._has(key) else {"card": {"results": {}}}
        with self._as_written(key, self._made(key)):
            return str(next(iter(answer["card"]["results"].values()), ""))

    def _kept(self) -> dict[str, Any]:
        """Figures of test servers by cell, each with the digest of its submission."""
        found = read_json_object(self._scored_file) if self._scored_file.exists() else {}
        for name, each in found.items():
            if not (isinstance(each, dict) and isinstance(each.get("percent"), float | int) and each.get("submission")):
                words = "expected percent and the digest of its submission; remove the file, and give --scored again"
                raise ValueError(f"{self._scored_file}: {name!r} has {each!r}: {words}")
        return found

    def _keep_scored(self) -> None:
        """Keeps the figures of --scored, each for the submission that is there, and names those of other ones."""
        kept, file = self._kept(), self.request.scored
        for name, percent in self._given.items():
            digest, before = self._submission(name), kept.get(name)
            if not digest:
                raise ValueError(f"{file}: {name!r} has no submission yet that was checked; first run without --scored")
            if before is not None and before["percent"] == percent and before["submission"] != digest:
                words = f"told of an earlier submission; submit the new one, or remove it from {self._scored_file}"
                raise ValueError(f"{file}: {name!r} has {percent}, which was {words}")
            kept[name] = {"percent": percent, "submission": digest}
        if self._given:
            write_json_atomically(self._scored_file, kept)
        for name in kept.keys() & self._served.keys():
            if kept[name]["submission"] != self._submission(name):
                self.tell(f"{name}: {kept[name]['percent']} is left out, it was told of another submission")

    def _cell(self, kept: Mapping[str, Any], figure: PaperFigure) -> Cell:
        key, measure = source_of(figure) if figure.recipe else ("", "")
        if key not in self.commands:
            return Cell(figure)
        sources = [source_of(figure, seed) for seed in range(self.seeds if figure.recipe in TASK_RECIPES else 1)]
        needed = sorted(set[str]().union(*(self._needs(each) for each, _ in sources)))
        facts: dict[str, Any] = {"seconds": sum(map(self._seconds, needed))}
        facts["noted"] = {each[4:]: self._notes(each) for each in needed if each.startswith("run ")}
        own = f"{figure.row}: {figure.column}"
        if own in self._served:
            checked = {each: self._submission(each) for each in self._served if each.partition(", seed ")[0] == own}
            told = {name: each["percent"] for name, each in kept.items() if checked.get(name) == each["submission"]}
            left = [self._served[name] for name, digest in checked.items() if digest and name not in told]
            facts["submission"] = ", ".join(self.commands[each].words[2].replace("RUNS/", "runs/") for each in left)
            return Cell(figure, tuple(told.values()), is_served=True, **facts)
        known = [found for found in (self._measured(*each) for each in sources) if found is not None]
        if known and measure.endswith(HEADS):
            return Cell(figure, words="{layer}-{head}".format(**known[0]), **facts)
        values = tuple(100 * found["value"] for found in known)
        if len(known) == 1 and known[0]["low"] is not None:
            facts |= {name: 100 * known[0][name] for name in ("low", "high")}
        return Cell(figure, values, **facts)

    def _notes(self, key: str) -> Sequence[str]:
        """Notes of a run on how it differs from the published one."""
        config = Path(self._filled(self.commands[key].words[1])) / "config.json"
        return read_json_object(config).get("recorded", {}).get("notes", ()) if config.exists() else ()

    def _measured(self, key: str, measure: str) -> Mapping[str, Any] | None:
        """Value, low and high, 0..1; None for what is not known."""
        if key not in self.commands or not self._has(key):
            return None
        kind, folder = self.commands[key].words[0], Path(self._filled(key))
        file = folder / {"evaluate": "results.json"}.get(kind, "attention.json") if kind != "score" else self._made(key)
        told = read_json_object(file)
        with self._as_written(key, file):
            if kind == "score":
                found = next((each for each in told["answer"]["figures"] if each["name"] == measure), None)
            else:
                found = told["figures"].get(measure) if kind == "evaluate" else _of_heads(told, measure)
            return None if found is None or found["value"] is None else {**found, "value": float(found["value"])}

    @contextmanager
    def _as_written(self, key: str, file: Path) -> Iterator[None]:
        """Makes one line of what goes wrong where a file of a command is not what the command writes."""
        try:
            yield
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            made = " and ".join(map(str, dict.fromkeys((file, self._made(key)))))
            kind = self.commands[key].words[0]
            raise ValueError(f"{file} is damaged; remove {made}, and {kind} runs again") from None

    def _needs(self, key: str) -> set[str]:
        """Keys of a command and all that it needs."""
        if key not in self.commands:
            return set()
        return {key}.union(*map(self._needs, self.commands[key].needs))

    def _seconds(self, key: str) -> float:
        spent = self.request.out / "logs" / f"{_file_name(key)}.seconds"
        return sum(map(float, spent.read_text("utf-8").split())) if spent.exists() else 0.0


def _run_here(commands: Mapping[str, Command]) -> dict[str, Command]:
    return {key: each for key, each in commands.items() if each.words[0] in RUN_HERE}


def _digest(*words: str) -> str:
    return hashlib.sha256(repr(words).encode()).hexdigest()[:16]


def _settings(name: str) -> str:
    """Settings of a recipe, and of the one whose model it trains."""
    recipe: Any = TASK_RECIPES.get(name) or RECIPES[name]
    own = repr(replace(recipe, summary="", source="", left_open=(), figures=()))
    return own + _settings(recipe.model) if name in TASK_RECIPES else own


def _scored(file: Path, names: Sequence[str]) -> dict[str, float]:
    """Figures of test servers from a file, by the name of their cell."""
    found = read_json_object(file)
    for name, percent in found.items():
        if name not in names:
            raise ValueError(f"{file}: no cell {name!r} is for a test server: {name_hint(name, names)}")
        if isinstance(percent, bool) or not isinstance(percent, int | float) or not 1 <= percent <= 100:
            raise ValueError(f"{file}: {name!r} has {percent!r}; expected a figure in percent, 1 to 100")
    return found


def _toy(command: Command) -> tuple[str, ...]:
    """The words of a command on a toy world: small models, the world's vocabulary, no weights to start from."""
    words, kind = command.words, command.words[0]
    run = re.sub(r"-seed-\d+$", "", words[1].removeprefix("RUNS/"))
    recipe = TASK_RECIPES.get(run) or RECIPES.get(run) or TASK_RECIPES.get(run.removesuffix("-coco"))
    for option, others in (
        ("--weights", ()), ("--from-bert", ()), ("--parses", ("--parses", "DATA/flickr30k-entities/parses.conll")),
    ):  # fmt: skip
        if option in words:
            place = words.index(option)
            words = (*words[:place], *others, *words[place + 2 :])
    if kind in _TRAINED and recipe is not None and recipe.end_to_end:
        of_vcr = any(word.startswith(("DATA/vcr", "STORES/vcr")) for word in words)
        words = (*words, "--photos", "DATA/vcr/vcr1images" if of_vcr else "DATA/photos")
    if kind not in ("pretrain", "finetune"):
        return words
    vocabulary = () if "--from-run" in words else ("--tokenizer", "DATA/vocab.txt")
    words = (*words, "--toy", *_TOY_STEPS[kind], *vocabulary)
    names, settings = "object_names=DATA/vcr/object_names.txt", list[str]()
    if "--objects" in words:  # the perfect store does not say that its boxes were given
        settings += [f"sampling.{each}" for each in (names, "aligned_words=none", "shown_boxes=all")]
    if kind == "finetune" and "vcr" in words:
        settings.append(f"vcr.{names}")
    if kind == "pretrain" and any(word.endswith("-resnet152-of-photo") for word in words):
        settings.append(f"model.global_feature_size={TOY_WIDTH}")
    return (*words, *(word for each in settings for word in ("--set", each)))


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
        submission: files below the folder of the table whose figures a test server has still to tell.
        is_served: whether a test server tells it.
        seconds: of the commands that it needs, shared ones too.
        noted: by run, what it noted itself.
    """

    figure: PaperFigure
    values: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None
    words: str = ""
    submission: str = ""
    is_served: bool = False
    seconds: float = 0.0
    noted: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def mean(self) -> float | None:
        return sum(self.values) / len(self.values) if self.values else None

    def line(self) -> list[str]:
        """Texts below `HEAD`."""
        figure, mean = self.figure, self.mean
        recipes = " > ".join(chain_of(figure.recipe)) if figure.recipe else f"none: {figure.why}"
        hours = f"{self.seconds / 3600:.2f}" if self.seconds else ""
        start = [figure.row, figure.column, figure.printed]
        submit = f"to submit: {self.submission}" if self.submission else ""
        if mean is None:
            missing = submit or ("for a test server" if self.is_served else "" if figure.recipe else "no command")
            return [*start, self.words or missing, "", "", "", hours, recipes]
        interval, inside, seeds = "", "", len(self.values)
        low, high = mean_interval(self.values) if seeds > 1 else (self.low, self.high)
        if low is not None and high is not None:
            interval = f"{low:.2f} .. {high:.2f}{f' of {seeds} seeds' * (seeds > 1)}"
            inside = "inside" if low <= figure.value <= high else "outside"
        ours = f"{mean:.2f}{submit and f'; {submit}'}"
        return [*start, ours, interval, f"{mean - figure.value:+.2f}", inside, hours, recipes]


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
    served = sum(each.is_served and not each.values for each in cells)
    return (
        f"{known} of {plural(len(cells), 'figure')} measured" + (f", {served} for a test server" * bool(served)) + "."
    )


def _markdown(of: PaperTable, lines: Sequence[Sequence[str]], cells: Sequence[Cell], *, is_toy: bool) -> str:
    parts = [f"# {of.name}: {of.title}: {of.caption}", f"{DRILL.line}." if is_toy else "", _summary(cells)]
    rows = [HEAD, ["---"] * len(HEAD), *([cell.replace("|", "\\|") for cell in line] for line in lines)]
    parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    for title, points in _differences(cells):
        parts += [f"## {title}", "\n".join(f"- {point}" for point in points)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _page(of: PaperTable, lines: Sequence[Sequence[str]], cells: Sequence[Cell], *, is_toy: bool) -> str:
    counts = [("figures", str(len(cells))), ("measured", str(sum(bool(each.values or each.words) for each in cells)))]
    return rendered(
        "paper_table.html", title=f"{of.name}: {of.title}",
        summary=[f"{of.caption[0].upper()}{of.caption[1:]}. {_summary(cells)}"], warning=DRILL if is_toy else None,
        counts=counts, head=HEAD, rows=lines, differences=list(_differences(cells)),
    )  # fmt: skip


def _differences(cells: Sequence[Cell]) -> Iterator[tuple[str, Sequence[str]]]:
    """In what a run of each recipe that a cell is made by may differ from the paper's, and what the runs noted."""
    made_by = dict.fromkeys(name for each in cells if each.figure.recipe for name in chain_of(each.figure.recipe))
    for name in made_by:
        recipe = TASK_RECIPES.get(name) or RECIPES[name]
        if recipe.left_open:
            yield f"What {name} leaves open", recipe.left_open
    noted = {run: notes for each in cells for run, notes in each.noted.items() if notes}
    yield from ((f"What the run {run} noted", notes) for run, notes in noted.items())
