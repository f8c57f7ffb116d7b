"""VL-BERT's text of a question with an answer: [CLS] question [SEP] answer [SEP] (arXiv:1908.08530, figure 2).

jackroos/VL-BERT vqa/modules and vcr/modules, `prepare_text_from_qa`, whose options for VCR are `order` here.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

ORDERS = ("question_answer", "answer_question", "one_sentence")


class JoinedText(NamedTuple):
    """Rows of text, padded with zeros at the end; tags are numbers that pieces brought with them."""

    ids: Tensor  # (B, T) long
    segments: Tensor  # (B, T) long
    mask: Tensor  # (B, T) bool
    tags: Tensor  # (B, T) long, 0 at special pieces

    @property
    def before_last(self) -> Tensor:
        """(B,) position of the last piece before the closing [SEP]: where VQA's [MASK] stands."""
        return self.mask.sum(dim=1) - 2


def join_question_answer(
    question: Tensor,
    answer: Tensor,
    *,
    cls_id: int,
    sep_id: int,
    question_tags: Tensor | None = None,
    answer_tags: Tensor | None = None,
    order: str = "question_answer",
) -> JoinedText:
    """
    Args:
        question, answer: (B, Q) and (B, A) long; a piece is real where its id is above 0, padding comes last.
        question_tags, answer_tags: the same shapes; None for zeros.
        order: "question_answer"; "answer_question", where the question is the second segment; "one_sentence", without
            [SEP] and segment between.
    Raises:
        ValueError: for another order.
    """
    if order not in ORDERS:
        raise ValueError(f"order {order!r} of a question and its answer is unknown; there are {', '.join(ORDERS)}")
    first, second = (question, question_tags), (answer, answer_tags)
    if order == "answer_question":
        first, second = second, first
    rows = question.shape[0]

    def constant(value: int) -> Tensor:
        return question.new_full((rows, 1), value)

    first_tags, second_tags = (torch.zeros_like(ids) if tags is None else tags for ids, tags in (first, second))
    parts = [(constant(cls_id), constant(0), 0), (first[0], first_tags, 0)]
    if order != "one_sentence":
        parts.append((constant(sep_id), constant(0), 0))
    late = int(order != "one_sentence")
    parts += [(second[0], second_tags, late), (constant(sep_id), constant(0), late)]
    ids = torch.cat([ids for ids, _, _ in parts], dim=1)
    tags = torch.cat([tags for _, tags, _ in parts], dim=1)
    segments = torch.cat([torch.full_like(ids, segment) for ids, _, segment in parts], dim=1)
    real = ids > 0
    # Real pieces move to the front in their order.
    places = (~real).long().argsort(dim=1, stable=True)[:, : int(real.sum(dim=1).max())]
    mask = real.gather(1, places)
    ids, segments, tags = (part.gather(1, places) * mask for part in (ids, segments, tags))
    return JoinedText(ids, segments, mask, tags)
