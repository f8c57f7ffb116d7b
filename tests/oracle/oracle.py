# ruff: noqa: E501
"""Records what a checkout answers to some three hundred commands, and compares it with the answers of another checkout.

For changes of structure that must change nothing else. The checkouts lie beside each other (`git worktree add ../old`):

    python tests/oracle/oracle.py record ../old old/      # answers, files and digests of all commands, by the code of ../old
    python tests/oracle/oracle.py record . new/
    python tests/oracle/oracle.py compare old/ new/       # exit code 1 where an answer differs
    python tests/oracle/oracle.py begin ../old half/      # kills a job of each kind after its first checkpoint or shard
    python tests/oracle/oracle.py end ../old half/ a/     # each code goes on from a copy; `compare a/ b/`
    python tests/oracle/oracle.py end . half/ b/
"""

import contextlib
import hashlib
import importlib
import json
import os
import pkgutil
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

Command = list[str]
TINY = "--steps 20 --batch-size 4 --threads 1 --seed 3"
SYSTEMS = ("vlbert", "vilbert", "vilbert-single-stream", "visualbert", "imagebert", "interbert")
FORMATS = {
    "lxmert-h5": "h5", "butd-tsv": "tsv", "milvlg-npz": "npz", "mmf-npy": "npy", "vilbert-lmdb": "vil",
    "mmf-lmdb": "lmdb", "uniter-lmdb": "uni", "vlbert-zip": "zip",
}  # fmt: skip
TASKS = {
    "vqa": ("tasks/vqa", ""), "vcr": ("tasks/vcr", ""), "nlvr2": ("tasks/nlvr2", ""),
    "refcoco+": ("tasks/refcoco+", "--set refcoco+.boxes=stored"), "mrpc": ("tasks/mrpc", ""), "rte": ("tasks/rte", ""),
    "retrieval": ("world/flickr30k", ""), "flickr30k-entities": ("entities", ""),
}  # fmt: skip
# What differs between two runs of one code: times, sizes that depend on them, names drawn by chance.
_NOISE = (
    (re.compile(r"\d\d\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?([+-]\d\d:?\d\d|Z| UTC)?"), "TIME"),
    (re.compile(r"\b\d[\d,.]* ?(s|ms|min|h|images/s|MB|kB|GB|samples/s)\b"), "N"),
    (re.compile(r"\.[0-9a-f]{8}\.(lmdb|bin|data)"), ".HEX.lmdb"),
    (re.compile(r'"(seconds|began|ended|time|images_per_second|duration|created|finished|pid|host|eta)[^"]*": [^,}]+'), "N"),
    (re.compile(r'"(manifest_sha256|sha256)": "[0-9a-f]{64}"'), "SUM"),
    (re.compile(r'"[a-z]+_(ms|seconds)": \{[^}]*\}'), "N"),
    (re.compile(r"127\.0\.0\.1:\d+|\bpid \d+"), "ADDRESS"),
)  # fmt: skip


_PROGRESS = re.compile(
    r'^(roibeam: [\w, -]+: [\d,]+ of [\d,]+ .*|roibeam: [\w ]+: step .*|\{"event": "(progress|step)".*)\n', re.MULTILINE
)


def commands() -> Iterator[tuple[str, str]]:
    """Name and words of each command, in the order in which they run in one folder."""
    for name in _command_names():
        yield f"help {name}", f"{name} --help"
        yield f"help-all {name}", f"{name} --help-all"
    yield "recipes", "recipes"
    for name in _recipe_names():
        yield f"recipe {name}", f"recipes {name} --json"
    yield (
        "world",
        "toyworld world --num-images 160 --seed 7711 --tasks tasks --entities entities --perfect-store perfect --json",
    )
    yield "web", "toyworld other --num-images 40 --web web --web-port 18781 --pages 60 --json"
    captions = "world/coco/annotations/captions_train2014.json"
    photos = "world/coco/train2014"
    small = "--detector small --weights random:1 --set detector.short_edge=48 --set detector.long_edge=80"
    yield "extract", f"extract {photos} store --detector toy --captions {captions} --shard-size 16 --threads 1 --json"
    yield "extract small", f"extract {photos} small --shard-size 40 {small} --threads 1 --json"
    yield "extract workers", f"extract {photos} two --shard-size 40 {small} --threads 1 --workers 2 --json"
    yield "dry run", f"extract {photos} dry {small} --dry-run --json"
    yield "detectors", f"extract {photos} dry --detector wrong"
    for store in ("store", "small", "two", "perfect"):
        for words in ("info", "verify", "verify --deep", "ids", "dead-letters", "plan --ranks 2"):
            verb, _, options = words.partition(" ")
            yield f"{words} {store}", f"store {verb} {store} {options} --json"
        yield f"progress {store}", f"progress {store} --json"
    yield "show", "store show store"
    yield "copy", "store copy store copied --shard-size 5 --json"
    yield "copied", "store info copied --json"
    yield "diff", "store diff store copied --json"
    yield "repair", "store repair store --json"
    for name, end in FORMATS.items():
        yield f"export {name}", f"store export perfect out.{end} --format {name} --json"
        yield f"import {name}", f"store import out.{end} back-{end} --format {name} --json"
        yield f"imported {name}", f"store info back-{end} --json"
    for system in SYSTEMS:
        run = f"pre-{system}"
        yield (
            run,
            f"pretrain {run} --store store --captions {captions} --system {system} --model small --tokenizer world/vocab.txt {TINY} --json",
        )
        yield f"evaluate {system}", f"evaluate {run} --store store --captions {captions} --out eval-{system} --json"
        yield f"convert {system}", f"convert {run} official-{system}.bin --to official --json"
        for task, (data, more) in TASKS.items():
            out = f"{task}-{system}"
            options = (
                f"--from none --system {system} --model small --tokenizer world/vocab.txt --data {data}{_store(task)}"
            )
            yield out, f"finetune {out} --task {task} {options} {TINY.replace('20', '4')} {more} --json"
    for task, (data, _) in TASKS.items():
        yield (
            f"predict {task}",
            f"predict {task}-visualbert{_store(task)} --data {data} --out said-{task} --split {_split(task)} --json",
        )
        yield f"score {task}", f"score {task} said-{task} --data {data} --split {_split(task)} --json"
    yield (
        "end to end",
        (
            f"pretrain e2e --end-to-end {small} --photos {photos} --captions {captions} --store small --system vlbert --model small "
            f"--tokenizer world/vocab.txt --steps 3 --batch-size 4 --threads 1 --json"
        ),
    )
    yield "probe", f"probe pre-visualbert {photos}/COCO_train2014_000000000002.jpg a+red+[MASK] --detector toy --json"
    yield (
        "pretrain perfect",
        f"pretrain seen --store perfect --captions {captions} --system visualbert --model small --tokenizer world/vocab.txt {TINY}",
    )
    yield "attention", "attention seen --store perfect --entities entities --json"
    yield "leaks", "leaks pre-visualbert --held-out vqa=tasks/vqa --json"
    yield (
        "detector train",
        (
            "detector train det --labels world/visual_genome/train.txt --photos world/visual_genome --detector toy --steps 3 "
            "--batch-size 2 --json"
        ),
    )
    yield "detector evaluate", "detector evaluate toy --labels world/visual_genome/test.txt --json"
    yield "look", f"look {photos}/COCO_train2014_000000000002.jpg --detector toy --json"
    yield "collect", "collect run web/warc pairs --workers 1 --allow-private 127.0.0.0/8 --json"
    yield "wrong option", "pretrain x --store store --captons y"


def _store(task: str) -> str:
    """The option of a task of images; one of texts alone has none."""
    return "" if task in ("mrpc", "rte") else " --store perfect"


def _split(task: str) -> str:
    return "dev" if task in ("nlvr2", "mrpc", "rte") else "val"


# A job of each kind: what it writes first, and when it is killed.
JOBS = {
    "extract": ("extract {photos} job-extract --detector toy --captions {captions} --shard-size 3 --threads 1", "job-extract/part-00002.json"),
    "copy": ("store copy store job-copy --shard-size 2", "job-copy/part-00003.json"),
    **{
        f"pretrain {system}": (
            f"pretrain job-{system} --store store --captions {{captions}} --system {system} --model small --tokenizer "
            f"world/vocab.txt {TINY} --set train.checkpoint_every=5", f"job-{system}/checkpoints/step-00000005/SHA256SUMS",
        )
        for system in SYSTEMS
    },
    **{
        f"finetune {task}": (
            f"finetune job-{task} --task {task} --from none --system visualbert --model small --tokenizer world/vocab.txt "
            f"--data {data}{_store(task)} {TINY} --set train.checkpoint_every=5",
            f"job-{task}/checkpoints/step-00000005/SHA256SUMS",
        )
        for task, (data, _) in TASKS.items()
    },
}  # fmt: skip


def main(verb: str, *places: str) -> int:
    if verb == "compare":
        return _compare(*(Path(place) for place in places))
    code, folders = Path(places[0]).absolute(), [Path(place).absolute() for place in places[1:]]
    _load(code)
    if verb == "record":
        (out,) = folders
        out.mkdir(parents=True)
        os.chdir(out)
        _write(out, {name: _answer(words.split(), out) for name, words in commands()})
    elif verb == "begin":
        _begin(*folders)
    elif verb == "end":
        half, out = folders
        shutil.copytree(half, out, symlinks=True)
        os.chdir(out)
        _write(out, {name: _answer(_filled(words), out) for name, (words, _) in JOBS.items()})
    else:
        raise SystemExit(__doc__)
    return 0


def _load(code: Path) -> None:
    sys.path.insert(0, str(code / "src"))
    os.environ.update(PYTHONPATH=str(code / "src"), PYTHONSAFEPATH="1", OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive")
    for name in ("torch", "transformers", "roibeam.pipelines.cli.commands"):
        importlib.import_module(name)
    import roibeam.pipelines as package

    assert str(code) in str(package.__file__), package.__file__
    for module in pkgutil.walk_packages(package.__path__, "roibeam.pipelines."):
        if ".cli." not in module.name and "__main__" not in module.name:
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)


def _answer(words: Command, folder: Path) -> dict[str, object]:
    begin = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    streams = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    child = _started(words, [stream.fileno() for stream in streams])
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    texts = []
    for stream in streams:
        stream.seek(0)
        texts.append(_quiet(stream.read().decode("utf-8", "replace"), folder))
    made = [path for path in folder.rglob("*") if path.is_file() and begin.get(path) != path.stat().st_mtime_ns]
    files = {_quiet(str(path.relative_to(folder)), folder): _digest(path, folder) for path in sorted(made)}
    print(f"{code:4d} {len(files):4d} files  {' '.join(words)[:110]}", flush=True)
    return {"code": code, "out": texts[0], "err": texts[1], "files": files}


def _started(words: Command, streams: Sequence[int]) -> int:
    """The process of `roibeam WORDS`, a fork of this one."""
    child = os.fork()
    if child:
        return child
    from roibeam.pipelines.cli.main import main as command

    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
    sys.stdout, sys.stderr = open(1, "w"), open(2, "w", buffering=1)
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    sys.argv, code = ["roibeam", *words], 99
    try:
        command()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        os._exit(code)


def _quiet(text: str, folder: Path) -> str:
    text = _PROGRESS.sub("", text.replace(str(folder), "FOLDER"))
    for pattern, word in _NOISE:
        text = pattern.sub(word, text)
    return text


def _digest(path: Path, folder: Path) -> str:
    """SHA-256 of a file; of text, without what differs from run to run; "" for files that always do."""
    data = path.read_bytes()
    if path.suffix in (".lmdb", ".parquet", ".png", ".h5", ".zip", ".npz") or path.name in (
        "SHA256SUMS",
        "report.html",
        "run_summary.json",
        "plan.json",
    ):
        return ""  # what is in a store stands in its digest; times stand in the others
    if path.suffix in (".json", ".jsonl", ".html", ".md", ".txt", ".csv", ".svg"):
        text = _quiet(data.decode("utf-8", "replace"), folder)
        if path.name == "log.jsonl":
            kept = [
                {key: row.get(key) for key in ("step", "loss", "losses", "event")}
                for row in map(json.loads, data.decode().splitlines())
            ]
            text = json.dumps(
                [kept, sorted({key for row in map(json.loads, data.decode().splitlines()) for key in row})]
            )
        data = text.encode()
    return hashlib.sha256(data).hexdigest()[:16]


def _write(out: Path, answers: dict[str, dict[str, object]]) -> None:
    (out / "answers.json").write_text(json.dumps(answers, indent=1))


def _compare(first: Path, second: Path) -> int:
    left, right = (json.loads((folder / "answers.json").read_text()) for folder in (first, second))
    different = 0
    for name in dict.fromkeys([*left, *right]):
        a, b = left.get(name, {}), right.get(name, {})
        for part in ("code", "out", "err"):
            if a.get(part) != b.get(part):
                different += 1
                print(f"== {name}: {part}\n< {a.get(part)!s:.1500}\n> {b.get(part)!s:.1500}")
        files, others = a.get("files", {}), b.get("files", {})
        changed = [file for file in dict.fromkeys([*files, *others]) if files.get(file) != others.get(file)]
        if changed:
            different += 1
            print(f"== {name}: files {changed[:12]} ({len(changed)})")
    print(f"{len(left)} and {len(right)} answers, {different} differences")
    return int(bool(different))


def _begin(half: Path) -> None:
    half.mkdir(parents=True)
    os.chdir(half)
    for name, words in commands():
        if name in ("world", "extract"):
            _answer(words.split(), half)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for name, (words, sign) in JOBS.items():
        child = _started(_filled(words), [nowhere, nowhere])
        until = time.monotonic() + 120
        while not Path(sign).exists() and time.monotonic() < until and not os.waitpid(child, os.WNOHANG)[0]:
            time.sleep(0.002)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        print(f"{name}: killed, {sign} {'is there' if Path(sign).exists() else 'IS NOT THERE'}", flush=True)


def _filled(words: str) -> Command:
    return words.format(
        photos="world/coco/train2014", captions="world/coco/annotations/captions_train2014.json"
    ).split()


def _command_names() -> list[str]:
    text = subprocess.run(
        [sys.executable, "-m", "roibeam", "--help"], capture_output=True, text=True, check=True
    ).stdout
    return [match[1] for match in re.finditer(r"^  ((?:[a-z-]+ )?[a-z-]+)  ", text, re.MULTILINE)]


def _recipe_names() -> list[str]:
    text = subprocess.run(
        [sys.executable, "-m", "roibeam", "recipes"], capture_output=True, text=True, check=True
    ).stdout
    return [match[1] for match in re.finditer(r"^([a-z0-9][\w.+-]*)  ", text, re.MULTILINE)]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
