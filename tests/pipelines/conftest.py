"""Lets the tests here import their neighbours and the example models of tests/model (pytest's importlib mode adds no
folder by itself); fixtures of the fault tests."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from photo_store import PhotoStore
    from tiny_commands import Pictures

TESTS = Path(__file__).parents[1]
OF_TESTS = (TESTS / name for name in ("pipelines", "features", "model", "conformance"))
FOLDERS = (*OF_TESTS, TESTS.parent / "bench")
sys.path += map(str, FOLDERS)
pytest.register_assert_rewrite("disturbed_runs", "tiny_commands")


@pytest.fixture
def conformance(capfd: pytest.CaptureFixture[str]) -> Callable[..., SimpleNamespace]:
    """Runs `python tests/conformance` in this process: conformance(folder, ...) -> exit code, stdout, stderr."""
    from harness.command import main
    from in_process import signals_kept

    from roibeam.pipelines.cli.command_exit import run_to_the_end

    def run(*arguments: object) -> SimpleNamespace:
        capfd.readouterr()
        with signals_kept(), pytest.raises(SystemExit) as ended:
            run_to_the_end(lambda standalone_mode: main([*map(str, arguments)]))
        captured = capfd.readouterr()
        return SimpleNamespace(code=int(ended.value.code or 0), out=captured.out, err=captured.err)

    return run


@pytest.fixture
def extract(roibeam: Callable[..., Any], tiny_network: tuple[str, ...]) -> Callable[..., Any]:
    """extract(source, store, *options): the command with a network of milliseconds."""
    return lambda source, store, *options: roibeam("extract", source, store, *tiny_network, *options)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory, tiny_network: tuple[str, ...]) -> "Pictures":
    """Eight of them; nothing may be written there."""
    from tiny_commands import draw_pictures

    return draw_pictures(tmp_path_factory.mktemp("pictures"), tiny_network, count=8)


@pytest.fixture(scope="session")
def store(pictures: "Pictures") -> tuple[Path, Path]:
    """The store of `pictures`, and their captions."""
    return pictures.store, pictures.captions


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> "PhotoStore":
    """Eight photos of noise with captions and a store of width 128; nothing may be written there."""
    from photo_store import write_photo_store

    return write_photo_store(tmp_path_factory.mktemp("made"), feature_dim=128)


@pytest.fixture(scope="module")
def faulty_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six photos and an empty file among them, sample_00003_bad.jpg."""
    from roibeam.pipelines.toyworld.rendering import draw_samples

    folder = tmp_path_factory.mktemp("faults")
    draw_samples(folder, count=6)
    (folder / "images" / "sample_00003_bad.jpg").touch()
    return folder / "images"


@pytest.fixture(scope="module")
def undisturbed(faulty_photos: Path) -> Path:
    """The store that `disturbed_runs.Extraction` makes of them when nothing happens."""
    from disturbed_runs import Extraction

    extraction = Extraction(faulty_photos, faulty_photos.parent / "undisturbed", faulty_photos.parent / "runs")
    ended = extraction.run()
    assert ended.code == 0, ended.said
    return extraction.store


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder behind `objects://`, in which stores are made."""
    from object_store import ObjectStore, register

    from roibeam.features.folders import object_folder

    register()
    monkeypatch.setattr(object_folder, "WAIT_SECONDS", (0.0, 0.0, 0.0))
    (tmp_path / "bucket").mkdir()
    yield tmp_path / "bucket"
    ObjectStore.mend()


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """mount("-t", "tmpfs", ..., "name") mounts something on a new folder of that name; skips where it may not."""
    mounted: list[Path] = []

    def mount_on(*options: str) -> Path:
        folder = tmp_path / options[-1]
        folder.mkdir(exist_ok=True)
        done = subprocess.run(["mount", *options[:-1], folder], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"may not mount: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount_on
    for folder in reversed(mounted):
        subprocess.run(["umount", "--lazy", folder], capture_output=True, check=False)
