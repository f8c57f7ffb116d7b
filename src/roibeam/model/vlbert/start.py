"""What a VL-BERT starts from: a published BERT before pre-training, a pre-trained VL-BERT before a task.

All states are by our names, for `load_start`, which says what stays as drawn.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from torch import Tensor

from roibeam.model.common.checkpoint import BERT_LAYER, BERT_WORD_HEAD, KeyTable, tidy_bert

_FROM_BERT = KeyTable(
    "BERT",
    (
        ("bert.embeddings.word_embeddings.", "vlbert.embeddings.words."),
        ("bert.embeddings.position_embeddings.", "vlbert.embeddings.positions."),
        ("bert.embeddings.token_type_embeddings.", "vlbert.embeddings.segments."),
        ("bert.embeddings.LayerNorm.", "vlbert.embeddings.norm."),
        *((f"bert.encoder.layer.{{}}.{a}", f"vlbert.encoder.layers.{{}}.{b}") for a, b in BERT_LAYER),
        ("bert.pooler.", "vlbert.pooler."),
        *BERT_WORD_HEAD,
        ("cls.seq_relationship.", "relationship_head."),
    ),
)
# Which pre-training head's transform a task's head starts from (PARTIAL_PRETRAIN_PREFIX_CHANGES in cfgs/).
_HEADS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "vqa": {"masked_word_head.dense.": "answer_head.dense.", "masked_word_head.norm.": "answer_head.norm."},
        "vcr": {"masked_region_head.dense.": "object_head.dense."},
        "refcoco": {"masked_region_head.dense.": "region_head.dense."},
    }
)
_SEGMENTS = "vlbert.embeddings.segments.weight"
_RELATIONSHIP = "relationship_head."


def state_from_bert(
    bert: Mapping[str, Tensor], *, with_pooler: bool = False, with_relationship_head: bool = False
) -> dict[str, Tensor]:
    """The text's embeddings, the encoder and the masked-word head (section 4.1).

    BERT has two segments; the third, of image elements, stays as drawn.

    Args:
        with_pooler, with_relationship_head: whether the model has these parts, the latter with two logits. The release
            copies BERT's next-sentence head as it is, although there the first logit says "belongs together".
    Raises:
        ValueError: for a parameter that is none of BERT's.
    """
    unused = [
        prefix
        for prefix, used in (("bert.pooler.", with_pooler), ("cls.seq_relationship.", with_relationship_head))
        if not used
    ]
    return {_FROM_BERT.ours(n): t for n, t in tidy_bert(bert).items() if not n.startswith(tuple(unused))}


def task_start(
    task: str, pretrained: Mapping[str, Tensor], names: Collection[str], *, copy_segment: bool = True
) -> dict[str, Tensor]:
    """What a task model takes from a pre-trained VL-BERT (vqa/, vcr/, refcoco/function/train.py).

    Args:
        task: "vqa" (with the "mlm" classifier), "vcr" (with "1fc") or "refcoco".
        pretrained: state of a `VLBertForPreTraining`, or `state_from_bert` for a task without pre-training.
        names: of the task model's parameters; what it does not have is left out.
        copy_segment: VCR's answers are segment 1, which captions never trained: it starts as segment 0.
    Returns:
        State for `load_start`. VCR's score starts as the difference of the two relationship logits, where there is such
        a head.
    Raises:
        ValueError: for another task.
    """
    if task not in _HEADS:
        raise ValueError(f"no VL-BERT task {task!r}; there are {', '.join(_HEADS)}")
    state: dict[str, Tensor] = {}
    for name, tensor in pretrained.items():
        if name.startswith("vlbert."):
            state[name] = tensor
        for theirs, ours in _HEADS[task].items():
            if name.startswith(theirs):
                state[ours + name.removeprefix(theirs)] = tensor
        if task == "vcr" and name.startswith(_RELATIONSHIP):
            score = tensor if len(tensor) == 1 else tensor[1:2].float() - tensor[0:1].float()
            state["choice_head.decoder." + name.removeprefix(_RELATIONSHIP)] = score
    if task == "vcr" and copy_segment and _SEGMENTS in state:
        segments = state[_SEGMENTS].clone()
        segments[1] = segments[0]
        state[_SEGMENTS] = segments
    return {name: tensor for name, tensor in state.items() if name in names}
