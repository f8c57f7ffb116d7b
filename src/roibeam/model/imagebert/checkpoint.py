"""Starting ImageBERT from BERT (arXiv:2001.07966, section 5.1). No checkpoint of ImageBERT itself was published."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from roibeam.model.common.checkpoint import BERT_LAYER, BERT_WORD_HEAD, KeyTable, tidy_bert

TABLE = KeyTable(
    "BERT",
    (
        ("bert.embeddings.word_embeddings.", "imagebert.embeddings.words."),
        ("bert.embeddings.position_embeddings.", "imagebert.embeddings.positions."),
        ("bert.embeddings.token_type_embeddings.", "imagebert.embeddings.segments."),
        ("bert.embeddings.LayerNorm.", "imagebert.embeddings.text_norm."),
        *((f"bert.encoder.layer.{{}}.{a}", f"imagebert.encoder.layers.{{}}.{b}") for a, b in BERT_LAYER),
        ("bert.pooler.dense.", "imagebert.pooler.dense."),
        *BERT_WORD_HEAD,
    ),
)
# BERT's next-sentence head tells two sentences apart, by two logits; the matching head, with one, is new.
_LEFT_OUT = ("cls.seq_relationship.weight", "cls.seq_relationship.bias")


def state_from_bert(bert: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All that BERT has, for `load_start`: text embeddings, encoder, pooler, masked-word head.

    Its two segment rows become those of text and image. The projections of regions, their LayerNorm and the other three
    heads stay as drawn. For a model without a masked-word head leave `masked_word_head.*` out.

    Raises:
        ValueError: for a parameter that is none of BERT's.
    """
    return {TABLE.ours(name): tensor for name, tensor in tidy_bert(bert).items() if name not in _LEFT_OUT}
