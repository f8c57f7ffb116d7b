"""docs/train.md and docs/models.md: their code runs, and all that the table of masked regions allows can be built."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from end_to_end_examples import encoder, imagebert, interbert, single_stream, vilbert, visualbert, vlbert

from roibeam.model.common.fields import EndToEndChoices
from roibeam.model.end_to_end import EndToEndModel

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "train.md").read_text(encoding="utf-8")
BUILDERS = {
    "VL-BERT": (vlbert,),
    "ViLBERT": (vilbert, single_stream),
    "InterBERT": (interbert,),
    "ImageBERT": (imagebert,),
    "VisualBERT": (visualbert,),
}


def combinations() -> list[Any]:
    """A row of the table for each model it names and each whole image it allows."""
    table = TEXT.partition("| system | `masked_appearance`")[2].partition("\n\n")[0]
    found = []
    for line in table.splitlines()[2:]:
        system, appearance, pixels, whole, _ = (cell.strip() for cell in line.strip("|").split("|"))
        for name, makers in BUILDERS.items():
            if name in system:
                for place in re.findall("`(.*?)`", whole):
                    found += [pytest.param(make, appearance, pixels, place, id=line[:40]) for make in makers]
    return found


def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    (code,) = (code for code in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL) if "save_joint" in code)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/train.md", "exec"), names)
    assert (tmp_path / "joint-model" / "config.json").is_file()
    assert set(names["losses"]) == {"masked_words", "masked_regions"}


def test_the_code_of_the_heads_of_tasks_runs() -> None:
    torch.manual_seed(0)
    code = re.findall(r"```python\n(.*?)```", (DOCS / "models.md").read_text(encoding="utf-8"), flags=re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(compile(code, "docs/models.md", "exec"), names)
    assert names["logits"].shape == (1, 3129) and names["loss"] > 0


@pytest.mark.parametrize(("make", "appearance", "pixels", "whole"), combinations())
def test_every_row_of_the_table_is_a_model(make: Any, appearance: str, pixels: str, whole: str) -> None:
    overrides = {} if appearance == "none" else {"masked_appearance": appearance.strip("`")}
    EndToEndModel(make(**overrides), encoder(), EndToEndChoices(masked_pixels=pixels.strip("`"), whole_image=whole))


def test_the_table_names_every_system() -> None:
    assert {make for found in combinations() for make in found.values[:1]} == {
        make for makers in BUILDERS.values() for make in makers
    }
