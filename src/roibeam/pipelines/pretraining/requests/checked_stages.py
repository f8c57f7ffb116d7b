"""Stages of a run looked at before torch is imported: what the last would stop at is said before the first trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from roibeam.name_list import check_lists
from roibeam.pipelines.common.files.named_files import NamedFiles
from roibeam.pipelines.pretraining.recipes.published import recipe_named
from roibeam.pipelines.pretraining.requests.checked_request import check_request
from roibeam.pipelines.pretraining.requests.chosen_system import chosen_system
from roibeam.pipelines.pretraining.requests.request import PretrainRequest
from roibeam.pipelines.training.run_folder.names import STAGES_NAME


@dataclass(frozen=True)
class RequestedStage:
    """Attributes:
    name: for people.
    request: its folder, and from the second stage on what it starts from, are filled in when its turn comes.
    options: what of it decides its result, one text for each; a stage that is done is done for these.
    """

    name: str
    request: PretrainRequest
    options: Sequence[str]

    def __post_init__(self) -> None:
        check_lists(self, "options")

    def told(self, number: int, *, of: int | None = None) -> str:
        """Which stage it is, for people; `of` so many."""
        name, whole = f"stage {number}", "" if of is None else f" of {of}"
        return f"{name}{whole}" if self.name == name else f"{name}{whole} ({self.name})"


def check_stages(out: Path, stages: Sequence[RequestedStage]) -> None:
    """Raises ValueError with what is wrong with any of the stages, named as the command's options.

    A folder that holds a run in stages passes: what stages need that are done may be gone. `run_stages` looks at the
    others.
    """
    if (out / STAGES_NAME).is_file():
        return
    named = NamedFiles()
    named.need_output_folder(out)
    requests = requests_of(stages)
    for number, stage in enumerate(stages, start=1):
        named.look(partial(_check, number, stage, requests[number - 1]))
    named.check()


def requests_of(stages: Sequence[RequestedStage]) -> list[PretrainRequest]:
    """Their requests; one that names no system has that of the stage before, whose weights it goes on from."""
    found: list[PretrainRequest] = []
    for stage in stages:
        request = stage.request
        if found and request.model.system is None and request.model.recipe is None:
            before = found[-1].model
            system = recipe_named(before.recipe).system if before.recipe else chosen_system(found[-1])
            request = replace(request, model=replace(request.model, system=system))
        found.append(request)
    return found


def _check(number: int, stage: RequestedStage, request: PretrainRequest) -> None:
    try:
        check_request(request, goes_on=number > 1)
    except (ValueError, OSError) as error:
        raise ValueError(f"{stage.told(number)}: {error}") from None
