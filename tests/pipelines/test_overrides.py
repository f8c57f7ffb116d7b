"""`--set section.field=value`: what a text becomes, and what is refused."""

import json
from dataclasses import asdict

import pytest

from roibeam.extraction.network.conventions import CONVENTIONS, SELECTIONS
from roibeam.pipelines.common.console.overrides import apply_overrides

SECTIONS = {"conventions": CONVENTIONS["hf"], "selection": SELECTIONS["butd-10-100"]}


def changed(*settings):
    return apply_overrides(SECTIONS, settings)


def test_settings_of_a_section_are_checked_together():
    for settings in [
        ("selection.max_regions=5", "selection.min_regions=5"),
        ("selection.min_regions=5", "selection.max_regions=5"),
    ]:
        selection = changed(*settings)["selection"]
        assert (selection.min_regions, selection.max_regions) == (5, 5)


def test_one_number_has_one_form():
    for text in ("[10,10,5,5]", "[10.0, 10, 5.0, 5]"):
        got = changed(f"conventions.region_delta_weights={text}")["conventions"]
        assert json.dumps(asdict(got)) == json.dumps(asdict(CONVENTIONS["hf"]))
    assert json.dumps(changed("conventions.anchor_offset=0")["conventions"].anchor_offset) == "0.0"


@pytest.mark.parametrize("text", ["none", "None", "null"])
def test_a_field_that_may_be_empty_takes_none(text):
    assert changed(f"conventions.delta_cap={text}")["conventions"].delta_cap is None


@pytest.mark.parametrize(
    "setting, words",
    [
        ("selection.min_regions=200", "keeps 200..100 regions"),
        ("selection.nms_thresholds=0.5", r"expected a list, such as \[0.3\], got '0.5'"),
        ("selection.max_regions=none", "expected a whole number, got 'none'"),
        ("conventions.exif_orientation=false", "expected a text, got 'false'"),
        ("selection.max_region=5", "no field 'max_region'; did you mean max_regions"),
        ("anchors.size=5", "no section 'anchors'; choose one of conventions, selection"),
        ("selection", "expected section.field=value"),
    ],
)
def test_what_cannot_be_is_refused_in_its_own_words(setting, words):
    with pytest.raises(ValueError, match=words):
        changed(setting)
