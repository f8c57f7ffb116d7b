"""What VL-BERT's fine-tuning starts from: which weight goes where, and those that are computed (cases init_*)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from roibeam.model.vlbert.checkpoint import kind_of, name_from_official
from roibeam.model.vlbert.start import task_start
from roibeam.pipelines.conformance.checks import Check, failed, within
from roibeam.pipelines.conformance.finetuning.trajectory import absolute
from roibeam.pipelines.conformance.model_case import ModelArrays
from roibeam.pipelines.conformance.tolerances import FINETUNING

COMPUTED = "computed"
_IMAGE = ("image_feature_extractor.backbone.", "image_feature_extractor.roi_head", "image_feature_extractor.head.")


def start_checks(arrays: ModelArrays) -> Iterator[Check]:
    options = arrays.options
    task = str(options["official"]).split()[1].partition("/")[0]
    checkpoint = {
        name_from_official(name, "pretrain"): arrays.floats(f"checkpoint/{name}")
        for name in arrays.names("checkpoint/")
    }
    asked = [name for name in options["source_of"] if not name.startswith(_IMAGE)]
    kind = kind_of(dict.fromkeys(asked, torch.empty(0)))
    yield _source_check(options["source_of"], task, kind)
    own = {name: arrays.floats(f"param/{name}") for name in arrays.names("param/")}
    names = {official: name_from_official(official, kind) for official in own}
    found = task_start(task, checkpoint, names.values())
    for official in arrays.names("out/"):
        ours: Tensor | None = found.get(names.get(official, ""))
        if task == "vqa" and ours is None:
            ours = _answer_words(checkpoint["vlbert.embeddings.words.weight"], options["answer_token_ids"])
        if ours is None:
            yield failed(f"out/{official}", "nothing of ours is computed for it")
            continue
        yield absolute(f"out/{official}", ours.numpy(), arrays.arrays.take(f"out/{official}"), FINETUNING.items)


def _answer_words(words: Tensor, pieces: list[list[int]]) -> Tensor:
    """As `VLBertForVqa.start_from_words`."""
    return torch.stack([words[each].mean(dim=0) for each in pieces])


def _source_check(source_of: dict[str, Any], task: str, kind: str) -> Check:
    """Every weight but the image network's, which is one file there and here, comes from where the case says."""
    wrong = []
    asked = {name: source for name, source in source_of.items() if not name.startswith(_IMAGE)}
    first = {name: source[0] if isinstance(source, list) else source for name, source in asked.items()}
    sources = {source for source in first.values() if source not in (None, COMPUTED)}
    numbered = {name_from_official(source, "pretrain"): number for number, source in enumerate(sorted(sources), 1)}
    state = {name: torch.full((3, 1), float(number)) for name, number in numbered.items()}
    names = {name: name_from_official(name, kind) for name in first}
    found = task_start(task, state, names.values())
    for name, source in first.items():
        got = found.get(names[name])
        if source == COMPUTED:
            continue
        want = None if source is None else numbered[name_from_official(source, "pretrain")]
        if (got is None) != (want is None) or (got is not None and float(got[0, 0]) != want):
            wrong.append(name)
    return within("config.source_of", len(wrong), 0, "weights from elsewhere", ", ".join(wrong[:3]))
