"""How a command ends: whatever is raised becomes one line and an exit code, and a traceback is seen with --debug alone.

The exceptions are those that the libraries themselves raise.
"""

import gzip
import json
import logging
import os
import resource
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import h5py
import lmdb
import numpy as np
import pyarrow.parquet
import pytest
import typer
from safetensors import safe_open

from roibeam.features.store import FeatureStore
from roibeam.pipelines.cli.bug_report import bug_report
from roibeam.pipelines.cli.command_exit import BUG, FAILED, INTERRUPTED, NO_READER, run_to_the_end
from roibeam.pipelines.common.compute import OF_THIS_PROCESS
from roibeam.pipelines.common.console.progress import configure_logging
from roibeam.pipelines.common.console.termination import StoppedBySignalError, failure_of

TEXT = "these are words, no file of this kind\n"


def ended(command: Callable[[], object], *words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of a command that does this."""
    app = typer.Typer()
    app.command()(lambda: command())
    monkeypatch.setattr(sys, "argv", ["roibeam", *words])
    with pytest.raises(SystemExit) as stopped:
        run_to_the_end(lambda standalone_mode: app([], standalone_mode=standalone_mode))
    return int(stopped.value.code or 0)


def raise_(error: BaseException) -> NoReturn:
    raise error


def of_files(path: Path) -> list[tuple[Callable[[], object], str]]:
    """What a library says of a file of another kind, by the library's name."""
    return [
        (lambda: safe_open(path, "np").keys(), "another kind (SafetensorError: "),  # type: ignore[no-untyped-call]
        (lambda: zipfile.ZipFile(path), "another kind (BadZipFile: File is not a zip file); write or fetch it again"),
        (lambda: tarfile.open(path), "another kind (ReadError: "),
        (lambda: lmdb.open(str(path), subdir=False, readonly=True), "another kind (InvalidError: "),
        (lambda: h5py.File(path), "file signature not found"),
        (lambda: pyarrow.parquet.read_table(path), "Parquet magic bytes not found"),
        (lambda: json.loads(path.read_text()), "a file of JSON is damaged or of another kind (Expecting value"),
        (lambda: b"caf\xe9".decode(), "a file is no UTF-8 text ('utf-8' codec can't decode byte 0xe9"),
        (lambda: path.parent.read_bytes(), f"Is a directory: {path.parent}; name a file in it"),
        (lambda: (path / "below").read_bytes(), f"Not a directory: {path / 'below'}; a part of this path is a file"),
        (lambda: np.empty(2**45), "not enough memory: Unable to allocate 256. TiB"),
        (lambda: raise_(MemoryError()), "not enough memory; use a smaller --batch-size, fewer --workers"),
        (lambda: __import__("no_such_package"), "No module named 'no_such_package'; install the package that has it"),
    ]


@pytest.mark.parametrize("number", range(13))
def test_what_a_user_can_cause_is_a_line_with_the_cure(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text(TEXT)
    assert len(of_files(tmp_path / "file")) == 13
    command, words = of_files(tmp_path / "file")[number]
    assert ended(command, monkeypatch=monkeypatch) == FAILED
    said = capsys.readouterr().err
    assert words in said and said.startswith("roibeam: ") and said.count("\n") == 1, said


def test_too_little_memory_under_a_limit_names_the_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (5_000_000_000, resource.RLIM_INFINITY))
    for error in (MemoryError(), RuntimeError("can't start new thread")):
        assert ended(lambda error=error: raise_(error), monkeypatch=monkeypatch) == FAILED  # type: ignore[misc]
        assert capsys.readouterr().err.startswith("roibeam: not enough memory")
    assert "raise the limit of 5.0 GB on it (ulimit -v)" in failure_of(MemoryError()).line


@pytest.mark.parametrize("way", ["open", "Path", "os.open", "zipfile", "numpy", "/dev/zero"])
def test_a_pipe_or_device_is_refused_before_it_is_opened(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    (tmp_path / "link").symlink_to(path)
    commands: dict[str, Callable[[], object]] = {
        "open": lambda: open(path, "rb"), "Path": (tmp_path / "link").read_text, "numpy": lambda: np.load(path),
        "os.open": lambda: os.open(path, os.O_RDONLY), "zipfile": lambda: zipfile.ZipFile(path),
        "/dev/zero": Path("/dev/zero").read_bytes,
    }  # fmt: skip
    assert ended(commands[way], monkeypatch=monkeypatch) == FAILED
    assert "is not a regular file but a " in capsys.readouterr().err
    Path(os.devnull).read_bytes()  # is no danger


def test_a_full_disk_says_what_to_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(lambda: Path("/dev/full").write_text(TEXT), monkeypatch=monkeypatch) == FAILED
    assert capsys.readouterr().err.startswith("roibeam: No space left on device; the disk is full: free some space")


def test_a_packed_file_that_ends_early_is_no_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Typer takes every EOFError for the end of a keyboard's input."""
    (tmp_path / "a.gz").write_bytes(gzip.compress(TEXT.encode())[:-9])
    assert ended(lambda: gzip.open(tmp_path / "a.gz").read(), monkeypatch=monkeypatch) == FAILED
    said = capsys.readouterr().err.strip()
    assert said.startswith("roibeam: a file ends too early (Compressed file ended before the end-of-stream marker")


def test_a_store_without_the_image_is_no_bug(pictures: Any) -> None:
    with FeatureStore(pictures.store) as store, pytest.raises(KeyError) as missed:
        store["nobody"]
    told = failure_of(missed.value)
    assert told.is_expected and told.line.startswith("image id 'nobody' is not in the store ")


def test_a_bug_has_a_line_with_its_place_an_exit_code_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for command, words in (
        (lambda: failure_of(None), "AttributeError: 'NoneType' object has no attribute"),  # type: ignore[arg-type]
        (lambda: {}["x"], "unexpected error: KeyError: 'x'"),
        (lambda: raise_(AssertionError()), "unexpected error: AssertionError"),
        (lambda: raise_(NotImplementedError("later")), "unexpected error: NotImplementedError: later"),
    ):
        assert ended(command, "--json", monkeypatch=monkeypatch) == BUG
        said = capsys.readouterr()
        assert words in said.err and said.err.count("\n") == 1 and "`roibeam --report`" in said.err, said.err
        assert json.loads(said.out)["exit_code"] == BUG
    assert ended(lambda: failure_of(None), "--debug", monkeypatch=monkeypatch) == BUG  # type: ignore[arg-type]
    traceback, line = capsys.readouterr().err.rsplit("\n", 2)[:2]
    assert "Traceback" in traceback and "(in roibeam/pipelines/common/console/termination.py:" in line


# The report of it

SECRETS = {
    "hf:https://ann:pass-word@host.org/w.pth": "pass-word",
    "https://bucket.s3.org/a.tar?X-Amz-Signature=abcdef0123": "abcdef0123",
    "https://hub.org/w.pth#access=qwertz": "qwertz",
    "token hf_abcDEF123456789": "hf_abcDEF123456789",
    "Authorization: Bearer abcdefghijklmnop.qrs": "abcdefghijklmnop",
    "{'api_key': 'my key'}": "my key",
    "aws_secret_access_key=hunter2": "hunter2",
    "roibeam x --pool-token hunter3": "hunter3",
    "the value of a variable, sesame-open": "sesame-open",
    "/home/ann/photos/a.jpg": "/home/ann",
    "/srv/ann/photos of ann_b": "ann",
    "/home/other/photos": "other",
    "worker at gpu-7.lab.org": "gpu-7",
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of a user ann on the machine gpu-7."""
    environment = {"XDG_CACHE_HOME": str(tmp_path), "HOME": "/home/ann", "USER": "ann", "MY_TOKEN": "sesame-open"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-7")
    return tmp_path / "roibeam"


def test_a_report_has_versions_and_the_last_bug_and_no_secret_home_user_or_host(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is pasted into a page that all can read."""
    assert ended(lambda: raise_(ValueError("no bug")), monkeypatch=monkeypatch) == FAILED
    assert "no unexpected error of a command is recorded" in bug_report() and not cache.exists()
    error = LookupError("\n".join(SECRETS) + "\nhttps://hub.org/w.pth#sha256=12ab, tokenizer=toy/vocab.txt")
    assert ended(lambda: raise_(error), "extract", *SECRETS, monkeypatch=monkeypatch) == BUG
    kept = cache / "last_error.txt"
    assert kept.stat().st_mode & 0o777 == 0o600
    report = bug_report()
    for text in (report, kept.read_text("utf-8")):
        assert [secret for secret in SECRETS.values() if secret in text] == [], text
    for words in (
        f"roibeam {version('roibeam')}, Python 3.", "torch 2.", f"lmdb {version('lmdb')}", "numpy 2.", "of memory",
        "~/photos/a.jpg", "in raise_", "LookupError: ", ": roibeam extract ",
        "w.pth#sha256=12ab", "tokenizer=toy/vocab.txt",
    ):  # fmt: skip
        assert words in report, (words, report)
    assert "pytest" not in report.partition("last unexpected error")[0]
    assert ended(lambda: raise_(LookupError("x" * 10**6)), monkeypatch=monkeypatch) == BUG
    assert len(bug_report()) < 25_000


def test_a_report_names_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no GPU: nvidia-smi is not there" in bug_report()
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA H200, 143771 MiB, 570.1\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert "\nGPU NVIDIA H200, 143771 MiB, 570.1\n" in bug_report()


@pytest.mark.parametrize("hurdle", ["a file in its place", "a pipe", "no home"])
def test_a_bug_that_cannot_be_recorded_ends_as_any_other(
    hurdle: str, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if hurdle == "a pipe":
        cache.mkdir()
        os.mkfifo(cache / "last_error.txt")
        assert "no unexpected error of a command is recorded" in bug_report()
        return
    if hurdle == "a file in its place":
        cache.write_text("")
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", lambda: raise_(RuntimeError("Could not determine home directory.")))
    assert ended(lambda: raise_(LookupError("mine")), monkeypatch=monkeypatch) == BUG
    assert "LookupError: mine" in (said := capsys.readouterr().err) and said.count("\n") == 1
    assert "no unexpected error of a command is recorded" in bug_report()


def test_ctrl_c_says_what_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(lambda: raise_(KeyboardInterrupt()), monkeypatch=monkeypatch) == INTERRUPTED
    assert capsys.readouterr().err == "roibeam: interrupted; nothing is kept; to begin again: roibeam\n"


@pytest.mark.parametrize(
    "message, line, is_expected",
    [
        (
            "Pipeline job failed: bundle inst002 failed:Traceback (most recent call last):\n"
            '  File "apache_beam/runners/common.py", line 1501, in process\n'
            "ValueError: photos/a.jpg: no image; take it out [while running 'Extract/ParDo-ptransform-12']\n\n",
            "photos/a.jpg: no image; take it out",
            True,
        ),
        ("worker 1: Traceback (most recent call last):\n  File x\nOSError: [Errno 28] No space left on device: '/s/a'",
         "No space left on device: '/s/a'; the disk is full: free some space", True),
        ("Traceback (most recent call last):\n  File x\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
         "2.00 GiB. GPU 0 has a total capacity of 79 GiB", "not enough memory on the GPU: tried to allocate 2.00 GiB; "
         "use a smaller --batch-size", True),
        ("Traceback (most recent call last):\n  File x\nImportError: libtorch.so: failed to map segment from shared "
         "object", "not enough memory: libtorch.so: failed to map segment from shared object; raise the limit", True),
        ("Traceback (most recent call last):\n  File x\ncv2.error: OpenCV(5.0.0) alloc.cpp:73: error: (-4:Insufficient "
         "memory) Failed to allocate 9 bytes", "not enough memory: OpenCV got less than it requested; use", True),
        ("Traceback (most recent call last):\n  File x\nTypeError: f() takes 1 argument [while running 'Extract']",
         "unexpected error: TypeError: f() takes 1 argument (in a worker)", False),
        ("Traceback (most recent call last):\n  File x\nlmdb.MapFullError: mdb_put: MDB_MAP_FULL",
         "a file is damaged or of another kind (MapFullError: mdb_put", True),
    ],
)  # fmt: skip
def test_a_workers_error_is_its_last_line_without_the_noise(message: str, line: str, is_expected: bool) -> None:
    told = failure_of(RuntimeError(message))
    assert told.line.startswith(line) and told.is_expected == is_expected, told
    assert "while running" not in told.line and "Traceback" not in told.line


def test_of_several_processes_the_first_speaks_and_errors_come_from_any(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of eight processes under torchrun said everything."""
    log, stopped = logging.getLogger("roibeam.x"), StoppedBySignalError("stopped by SIGTERM", 15)
    root = logging.getLogger()
    before, level = list(root.handlers), root.level

    def said(rank: int) -> str:
        monkeypatch.setenv("RANK", str(rank))
        log.info("note")
        log.warning("my photo", extra=OF_THIS_PROCESS)
        log.error("error")
        assert ended(lambda: raise_(stopped), monkeypatch=monkeypatch) == 143
        assert ended(lambda: raise_(ValueError("mine")), monkeypatch=monkeypatch) == FAILED
        return capsys.readouterr().err.replace("roibeam: ", "")

    try:
        configure_logging()
        assert said(1) == "my photo\nerror\nmine\n"
        assert said(0) == "note\nmy photo\nerror\nstopped by SIGTERM; to go on: roibeam\nmine\n"
    finally:
        root.handlers, root.level = before, level


def test_nobody_who_reads_is_no_error() -> None:
    """`roibeam recipes | head`, also where all of the output fits into the pipe."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "roibeam", "recipes", "vlbert-paper"],
        stdout=writing, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writing)
    assert done.returncode == NO_READER and done.stderr == "", done
