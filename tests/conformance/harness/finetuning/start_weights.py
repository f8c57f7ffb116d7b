"""What VL-BERT's fine-tuning takes from a pre-trained model (init_* of goldens/finetune_vlbert).

The file names the checkpoint's parameters and says for each of the task model where it came from. Every parameter of
the checkpoint gets a number of its own here, so that what arrives tells what was taken.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from harness.case_files import ArrayError
from harness.checks import Check, near, within
from harness.model_case import ModelArrays
from harness.tolerances import FINETUNING
from roibeam.model.vlbert.checkpoint import (
    LAST_STAGE,
    LAST_STAGE_AGAIN,
    kind_of,
    name_from_official,
    split_official,
    state_from_official,
    task_start,
)
from roibeam.model.vlbert.config import VLBertTaskConfig
from roibeam.model.vlbert.tasks import VLBertForVqa

COMPUTED = "computed"
_WORDS = "vlbert.word_embeddings.weight"
_WORDS_AGAIN = "vlbert.mlm_head.predictions.decoder.weight"  # tied
_ANSWERS = "final_mlp.2.weight"
# Sizes of what the answer classifier does not read.
_UNUSED = (
    "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings", "region_feature_size",
)  # fmt: skip


def start_weight_checks(arrays: ModelArrays) -> Iterator[Check]:
    """Where every parameter of the task model comes from, and what is computed."""
    sources = arrays.options.get("source_of")
    keys = arrays.options.get("checkpoint_keys")
    if not isinstance(sources, dict) or not isinstance(keys, list):
        raise ValueError("config: source_of must be an object and checkpoint_keys a list")
    checkpoint = _checkpoint(arrays, [str(key).removeprefix("module.") for key in keys])
    task_keys, encoder_keys = split_official({name: torch.zeros(()) for name in sources})
    kind = kind_of(task_keys)
    ours = {name: name_from_official(name, kind) for name in task_keys}
    model_part, encoder_part = split_official(checkpoint)
    start = task_start(kind.split("-")[0], state_from_official(model_part), set(ours.values()))
    found = {name: start.get(ours[name]) for name in task_keys}
    found |= {name: encoder_part.get(name) for name in encoder_keys}
    found |= {name: found[_once(name)] for name in sources if name not in found}
    wrong = [name for name, source in sources.items() if not _is_from(found[name], source, checkpoint)]
    note = f"{wrong[0]} is not from {sources[wrong[0]]}" if wrong else ""
    yield within("source_of", len(wrong), 0, "parameters from elsewhere", note)
    for name in arrays.below("out/"):
        own = arrays.floats(f"param/{name}")  # before; what is computed does not depend on it
        got = _answer_rows(arrays, checkpoint[_WORDS], own) if name == _ANSWERS else found.get(name)
        if got is None or sources.get(name) != COMPUTED:
            raise ArrayError(f"out/{name}", "is a parameter that nothing is computed for")
        yield near(f"out/{name}", got, arrays.take(f"out/{name}"), FINETUNING.start)


def _checkpoint(arrays: ModelArrays, names: list[str]) -> dict[str, Tensor]:
    """Numbers of the file where it has them, else one for each name; what is one tensor there is one here."""
    given = {name: arrays.floats(f"checkpoint/{name}") for name in arrays.below("checkpoint/")}
    checkpoint: dict[str, Tensor] = {}
    for number, name in enumerate(names):
        first = _WORDS if name == _WORDS_AGAIN else _once(name)
        checkpoint[name] = given.get(first, checkpoint.get(first, torch.full((1,), float(number + 1))))
    return checkpoint


def _once(name: str) -> str:
    """The last stage of the image network stands twice in a file."""
    return LAST_STAGE + name.removeprefix(LAST_STAGE_AGAIN) if name.startswith(LAST_STAGE_AGAIN) else name


def _is_from(got: Tensor | None, source: Any, checkpoint: Mapping[str, Tensor]) -> bool:
    if source == COMPUTED:
        return True
    if source is None:  # it keeps its own value
        return got is None
    named = source if isinstance(source, list) else [source]
    return got is not None and all(name in checkpoint and got.equal(checkpoint[name]) for name in named)


def _answer_rows(arrays: ModelArrays, words: Tensor, own: Tensor) -> Tensor:
    """The answer classifier's last layer, which starts from the words of the answers."""
    pieces = arrays.options.get("answer_token_ids")
    if not isinstance(pieces, list) or not all(
        isinstance(piece, int) and 0 <= piece < len(words) for answer in pieces for piece in answer
    ):
        raise ValueError(f"config: answer_token_ids must be lists of numbers below {len(words)}")
    sizes: dict[str, Any] = dict.fromkeys(_UNUSED, 1) | {"vocab_size": len(words), "num_answers": len(own)}
    model = VLBertForVqa(VLBertTaskConfig(hidden_size=words.shape[1], answer_head="mlm", **sizes))
    with torch.no_grad():
        model.vlbert.embeddings.words.weight.copy_(words)
        model.answer_head.decoder.weight.copy_(own)
    model.start_from_words(pieces)
    return model.answer_head.decoder.weight.detach()
