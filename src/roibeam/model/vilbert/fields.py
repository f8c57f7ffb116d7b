"""Fields of ViLBERT's configurations (arXiv:1908.02265), published settings, depths and sizes, without torch.

`SingleStreamFields` are those of its single-stream baseline (section 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from roibeam.model.common.fields import (
    MASKED_LOSS_PAIRS,
    SMALL_SIZES,
    TINY_STREAMS,
    WHOLE_IMAGE_COUNTS,
    TwoStreamFields,
    ViLbertStyleFields,
    named_fields,
)

REGION_LOSSES = ("kl", "regression", "contrastive", "none")


@dataclass(kw_only=True, repr=False, eq=False)
class ViLbertFields(TwoStreamFields):
    """Sizes and choices of a ViLBERT; defaults are those of the first release, six co-attentions deep.

    The paper prints hidden size 762: a misprint. With `num_segments` 1 there are no segments, as in RoBERTa.

    Fields, beside those of `TwoStreamFields`:
        padding_piece: the row of the word table that gets no gradient as an input; -1 for none.
        first_position: row of the position table of the first piece; RoBERTa's is 2.
        num_task_tokens: rows of the table of task tokens; above 0, every batch needs `task_ids`, and the token stands
            after [CLS].
        image_hidden_size: width of the image stream.
        co_attention_size, co_attention_num_heads: of queries, keys and values between the streams, and of the pooled
            vectors.
        text_co_attention, image_co_attention: co-attention k runs right before text layer text_co_attention[k] and
            image layer image_co_attention[k]; in rising order.
        with_co_attention: False leaves the co-attentions out: the streams first meet in the pair.
        dynamic_attention: the text's mean state gates queries and keys of the image layers. What these layers read is
            the text at that place of the plan, so images cannot be read before the text.
        fixed_text_layers, fixed_image_layers: the first layers that are not trained, nor what lies below them; at most
            those before the first co-attention.
        num_negatives: other regions, with "contrastive".
        negatives_from_other_images: share of them that come from other images of the same group of rows.
        negative_rows: rows of a batch that make such a group: the first so many, the next so many. A batch must hold
            whole groups, so that negatives do not depend on its size or on the number of processes.
        whole_image_count: by what the IMG token divides the sum of the features that are not masked: "all" regions of
            the image, masked ones too, or the "visible" ones.
        masked_loss_pairs: whether masked words and regions are predicted in "all" pairs or only in "matched" ones.
        with_match_head: adds the alignment loss; without it pairs need no `match_labels`.
        num_gqa_answers: labels of the second answer classifier of the multi-task model; 0 leaves it out.
    """

    choices = MappingProxyType(
        {"region_loss": REGION_LOSSES, "whole_image_count": WHOLE_IMAGE_COUNTS, "masked_loss_pairs": MASKED_LOSS_PAIRS}
    )

    padding_piece: int = 0
    first_position: int = 0
    num_task_tokens: int = 0
    image_hidden_size: int = 1024
    co_attention_size: int = 1024
    co_attention_num_heads: int = 8
    text_co_attention: tuple[int, ...] = (6, 7, 8, 9, 10, 11)
    image_co_attention: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    with_co_attention: bool = True
    dynamic_attention: bool = False
    fixed_text_layers: int = 0
    fixed_image_layers: int = 0
    num_negatives: int = 128
    negatives_from_other_images: float = 0.7
    negative_rows: int = 64
    whole_image_count: str = "all"
    masked_loss_pairs: str = "all"
    with_match_head: bool = True
    num_gqa_answers: int = 1533

    def check_batch_size(self, rows: int) -> None:
        if self.region_loss == "contrastive" and rows % self.negative_rows:
            raise ValueError(
                f"ViLbertConfig: region_loss 'contrastive' draws negatives within groups of {self.negative_rows} rows, "
                f"and batches of {rows} would cut such a group; set data.batch_size to a multiple of it, or "
                f"model.negative_rows to a divisor of {rows}"
            )

    def check(self) -> None:
        super().check()
        self.check_multiple("image_hidden_size", "image_num_attention_heads")
        self.check_multiple("co_attention_size", "co_attention_num_heads")
        text, image = self.text_co_attention, self.image_co_attention
        if len(text) != len(image):
            raise ValueError(
                f"ViLbertConfig: text_co_attention names {len(text)} layers, image_co_attention {len(image)}; each "
                f"co-attention needs one of both"
            )
        for name, ids, count in (
            ("text_co_attention", text, self.num_hidden_layers),
            ("image_co_attention", image, self.image_num_hidden_layers),
        ):
            if list(ids) != sorted(ids) or any(not 0 <= layer < count for layer in ids):
                raise ValueError(f"ViLbertConfig: {name} {ids} must rise and name layers 0 to {count - 1}")
        for name, fixed, ids, count in (
            ("fixed_text_layers", self.fixed_text_layers, text, self.num_hidden_layers),
            ("fixed_image_layers", self.fixed_image_layers, image, self.image_num_hidden_layers),
        ):
            most = ids[0] if ids else count
            if not 0 <= fixed <= most:
                raise ValueError(f"ViLbertConfig: {name} {fixed} must be 0 to {most}, the layers before co-attention")
        if not 0 <= self.first_position < self.max_position_embeddings:
            raise ValueError(
                f"ViLbertConfig: first_position {self.first_position} is none of {self.max_position_embeddings} rows"
            )
        if min(self.num_negatives, self.negative_rows) < 1 or not 0 <= self.negatives_from_other_images <= 1:
            raise ValueError(
                f"ViLbertConfig: num_negatives {self.num_negatives} and negative_rows {self.negative_rows} must be at "
                f"least 1, negatives_from_other_images {self.negatives_from_other_images} from 0 to 1"
            )
        if not self.with_match_head and self.masked_loss_pairs == "matched":
            raise ValueError(
                "ViLbertConfig: masked_loss_pairs 'matched' with with_match_head=False: without an alignment loss all "
                "pairs should match; set masked_loss_pairs='all'"
            )


# Published settings beyond the sizes; docs/models.md has the source of each value. Paper and first release differ in
# nothing that a model computes: their differences lie in inputs and training.
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "paper": {},
        "release": {},
        # arXiv:1912.02315: overlapping regions are masked together (model/common/masking.py), which leaves the
        # visible ones to average, and mismatched pairs have no masked losses (the README's --objective 1).
        "release-mt": {"whole_image_count": "visible", "masked_loss_pairs": "matched"},
        # config/roberta_base_6layer_6connect.json. Its code computes RoBERTa's positions, from 2 on, and then drops
        # them; and the row without gradient is BERT's padding, which is <s> here.
        "release-mt-roberta": {
            "whole_image_count": "visible",
            "masked_loss_pairs": "matched",
            "vocab_size": 50265,
            "max_position_embeddings": 514,
            "num_segments": 1,
        },
        # The multi-task model itself: vilbert.py has a table of 20 task tokens.
        "release-mt-tasks": {"whole_image_count": "visible", "masked_loss_pairs": "matched", "num_task_tokens": 20},
    }
)
DEPTHS = (2, 4, 6, 8)  # table 2 of the paper
# 4 layers of width 256, co-attention before the last two: trains on a laptop; unpublished.
SMALL: Mapping[str, Any] = MappingProxyType(
    {
        **SMALL_SIZES,
        "image_hidden_size": 256,
        "image_num_hidden_layers": 2,
        "image_num_attention_heads": 4,
        "image_intermediate_size": 256,
        "co_attention_size": 256,
        "co_attention_num_heads": 4,
        "text_co_attention": (2, 3),
        "image_co_attention": (0, 1),
    }
)
TINY: Mapping[str, Any] = MappingProxyType(
    {
        **TINY_STREAMS,
        "image_hidden_size": 64,
        "co_attention_size": 64,
        "co_attention_num_heads": 4,
        "text_co_attention": (1,),
        "image_co_attention": (0,),
    }
)


def vilbert_fields(preset: str = "release", *, depth: int = 6) -> dict[str, Any]:
    """Fields of `ViLbertConfig`; arguments and errors as of `vilbert_config`."""
    fields = named_fields("ViLBERT preset", preset, PRESETS)
    if depth not in DEPTHS:
        raise ValueError(f"no published ViLBERT has depth {depth}; there are {', '.join(map(str, DEPTHS))}")
    layers = {
        "image_num_hidden_layers": depth,
        "text_co_attention": tuple(range(12 - depth, 12)),
        "image_co_attention": tuple(range(depth)),
    }
    return {**layers, **fields}


REGION_SEGMENT = 1
SINGLE_STREAM_REGION_LOSSES = ("kl", "none")


@dataclass(kw_only=True, repr=False, eq=False)
class SingleStreamFields(ViLbertStyleFields):
    """Sizes of the baseline; defaults are those of the release (config/bert_base_baseline.json)."""

    choices = MappingProxyType({"region_loss": SINGLE_STREAM_REGION_LOSSES})

    def check(self) -> None:
        super().check()
        if self.num_segments <= REGION_SEGMENT:
            raise ValueError(f"SingleStreamConfig: num_segments must be at least 2, got {self.num_segments}")
