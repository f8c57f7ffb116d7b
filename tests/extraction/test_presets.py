"""Presets, and what preset, detector, conventions and selection say together."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.network.conventions import CONVENTIONS, PUBLISHED_EDGES, SELECTIONS
from roibeam.extraction.weights.detector_choice import (
    DEFAULT_PRESET,
    PRESETS,
    SHIPPED,
    choose_detector,
    read_detector_folder,
)
from roibeam.extraction.weights.loading import build_detector

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_used_at_a_size_it_was_published_with_and_stands_in_the_docs(name: str) -> None:
    preset, chosen = PRESETS[name], choose_detector(preset=name, weights="random:1")
    assert (chosen.config.short_edge, chosen.config.long_edge) in PUBLISHED_EDGES[preset.conventions]
    assert chosen.conventions == CONVENTIONS[preset.conventions] and chosen.selection == SELECTIONS[preset.selection]
    assert chosen.preset == preset and chosen.overrides == () and chosen.class_names is None
    (row,) = [line for line in (DOCS / "presets.md").read_text().splitlines() if line.startswith(f"| `{name}` ")]
    assert row.split("|")[3].strip().split(", ") == [preset.conventions, preset.detector, preset.selection]


def test_what_is_named_beside_a_preset_replaces_its_part() -> None:
    plain = choose_detector(weights="random:1")
    assert plain.preset == PRESETS[DEFAULT_PRESET] == PRESETS["butd-10-100"]
    chosen = choose_detector("vg-r101-c4", preset="d2", conventions="hf", selection="d2-36", weights="random:1")
    assert chosen.config == CONFIGS["vg-r101-c4"] and chosen.conventions == CONVENTIONS["hf"]
    assert chosen.overrides == (("detector", "vg-r101-c4"), ("conventions", "hf"))  # its own selection is no change
    mine = replace(SELECTIONS["butd-36"], min_score=0.9)
    assert choose_detector(preset="d2", selection=mine, weights="random:1").selection == mine


def test_detectors_of_their_own_refuse_a_preset(tmp_path: Path) -> None:
    folder = shutil.copytree(SHIPPED["toy"], tmp_path / "mine")
    for detector in ("toy", "small", folder, str(folder)):
        with pytest.raises(ValueError, match=r"preset lxmert does not go with the detector .*(toy|small|mine), which"):
            choose_detector(detector, preset="lxmert", weights="random:1")
    small = choose_detector("small", weights="random:1")
    assert small.preset is None and small.conventions == CONVENTIONS["hf"]
    with pytest.raises(ValueError, match=r"preset 'frcnn' is unknown; there are butd-10-100, butd-36, milvlg,"):
        choose_detector(preset="frcnn", weights="random:1")


def test_a_detector_is_built_from_a_folder_or_a_shipped_name_as_from_the_parts_in_it(tmp_path: Path) -> None:
    told = read_detector_folder("toy")
    wanted = build_detector(told.config, weights=told.weights, conventions=told.conventions).describe()
    folder = shutil.copytree(SHIPPED["toy"], tmp_path / "mine")
    assert build_detector("toy").describe() == build_detector(folder).describe() == wanted
    with pytest.raises(ValueError, match=r"weights are missing: small brings none; give a weight file"):
        build_detector("small")
