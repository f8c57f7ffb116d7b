"""Stores whose regions are the cells of a grid, through the commands: no classes, no scores, every cell kept."""

from pathlib import Path
from typing import Any

import pytest
from tiny_commands import Cli, Pictures, command, digest, ok, refused, tiny_sizes

NETWORK = (
    "--weights", "random:1", "--threads", 1, "--set", "detector.base_channels=2", "--set", "detector.short_edge=48",
    "--set", "detector.long_edge=80",
)  # fmt: skip
GRID = ("--detector", "grid-r50", *NETWORK, "--grid", "3x2")


@pytest.fixture(scope="module")
def grid(pictures: Pictures, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the eight pictures, six cells each; read only."""
    store = tmp_path_factory.mktemp("grid") / "store"
    command("extract", pictures.photos, store, *GRID)
    return store


def test_a_grid_goes_on_as_it_was_made_and_calls_itself_so(grid: Path, pictures: Pictures, roibeam: Cli) -> None:
    before = digest(grid)
    again = ok(roibeam("extract", pictures.photos, grid, "--weights", "random:1", "--dry-run"))
    assert "conventions grid-r50, photos at 48/80, cells of a grid" in again.err
    info = ok(roibeam("store", "info", grid)).out
    assert "selection       none: every cell of a grid is a region\n" in info and '"grid"' not in info
    page = (grid / "report.html").read_text(encoding="utf-8")
    assert "every cell of a grid" in page and "ResNet-50, no classes" in page
    assert not [
        words
        for words in ("Class score", "Most frequent classes", "300 proposals", "0.00</text>", ", score 0")
        if words in page
    ]
    assert "nothing to do" in ok(roibeam("extract", pictures.photos, grid, *GRID)).out and digest(grid) == before


def test_a_refused_copy_leaves_no_folder(grid: Path, tmp_path: Path, roibeam: Cli) -> None:
    assert "no class distribution" in refused(roibeam("store", "copy", grid, tmp_path / "x", "--distribution", "top-5"))
    assert not (tmp_path / "x").exists()


OTHERS: list[tuple[tuple[object, ...], str]] = [
    (("--detector", "grid-r50", *NETWORK), "detector.config.grid was 3x2, is now all;"),
    (("--detector", "grid-x101", *NETWORK, "--grid", "3x2"), "config.groups was 1, is now 32,"),
    (("--preset", "vinvl", *NETWORK), "conventions was grid-r50, is now vinvl;"),
    (("--detector", "vg-r101-c4", *NETWORK), "config.grid was 3x2, is now none,"),
]


@pytest.mark.parametrize(("options", "words"), OTHERS)
def test_what_a_record_leaves_out_is_named_by_its_default(
    options: tuple[object, ...], words: str, grid: Path, pictures: Pictures, roibeam: Cli
) -> None:
    line = refused(roibeam("extract", pictures.photos, grid, *options))
    assert words in line and "None, is now 32" not in line and "moved_edge" not in line


WRONG: list[tuple[tuple[object, ...], str]] = [
    (("--detector", "grid-r50", "--grid", "7"), "--grid 7: grid is '7'; it must be 'all' or such as '7x7', at most"),
    (("--detector", "grid-r50", "--vocab", "vg"), "--vocab vg: the cells of a grid have no classes; leave it out"),
    (("--detector", "grid-r50", "--distribution", "top-5"), "gives no probabilities of all classes; leave"),
    (
        ("--detector", "grid-r50", "--set", "detector.grid="),
        "a network without classes proposes no boxes; give --boxes",
    ),
    (("--detector", "grid-r50", "--set", "detector.num_classes=3"), "with grid 'all', whose cells have none; set 0"),
    (("--detector", "vg-r101-c4", "--grid", "7x7"), "the detector gives no grid; take --detector grid-r50"),
]


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
@pytest.mark.parametrize(("options", "words"), WRONG)
def test_what_does_not_fit_a_grid_is_refused_by_a_dry_run_too(
    options: tuple[object, ...], words: str, dry: tuple[str, ...], pictures: Pictures, tmp_path: Path, roibeam: Cli
) -> None:
    assert words in refused(roibeam("extract", pictures.photos, tmp_path / "out", *NETWORK, *options, *dry))
    assert not (tmp_path / "out").exists()


def test_a_dry_run_of_a_grid_does_not_advise_fewer_probabilities(
    pictures: Pictures, tmp_path: Path, roibeam: Cli
) -> None:
    plan = ok(roibeam("extract", pictures.photos, tmp_path / "out", *GRID, "--dry-run")).out
    assert "kB per image; rests on" in plan and "--distribution" not in plan


def pretrained(roibeam: Cli, pictures: Pictures, store: Path, out: Path, system: str, *options: object) -> Any:
    captions = ("--captions", pictures.captions)
    sizes = ("--steps", 1, "--batch-size", 4, *tiny_sizes(system), *options)
    return roibeam("pretrain", out, "--store", store, *captions, "--system", system, *sizes)


SYSTEMS = ["vlbert", "vilbert", "visualbert", "imagebert", "interbert"]


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_model_trains_on_a_grid_without_the_losses_of_classes(
    system: str, grid: Path, pictures: Pictures, tmp_path: Path, roibeam: Cli
) -> None:
    one_text = ("--set", "sampling.text_form=one_caption") if system == "visualbert" else ()
    done = ok(pretrained(roibeam, pictures, grid, tmp_path / "run", system, *one_text))
    words = "has no class ids (its regions are the cells of a grid)"
    assert (words in done.err) == (system != "visualbert")


REFUSED: list[tuple[str, tuple[object, ...], str]] = [
    ("vilbert", ("--set", "model.region_loss=kl"), "=kl is for predicting classes of masked regions, but store"),
    ("imagebert", ("--num-classes", 1600), "has no class ids (its regions are the cells of a grid); leave"),
    ("vilbert", ("--set", "sampling.max_regions=5"), "up to 6 cells of a grid in an image, and sampling.max_regions"),
    ("vlbert", ("--end-to-end", "--detector", "grid-r50", "--weights", "random:1"), "an encoder pools each box by it"),
]


@pytest.mark.parametrize(("system", "options", "words"), REFUSED)
def test_what_cells_do_not_have_is_refused_before_a_run_writes(
    system: str, options: tuple[object, ...], words: str, grid: Path, pictures: Pictures, tmp_path: Path, roibeam: Cli
) -> None:
    assert words in refused(pretrained(roibeam, pictures, grid, tmp_path / "run", system, *options))
    assert not (tmp_path / "run").exists()
