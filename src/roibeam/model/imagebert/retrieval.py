"""The three losses that ImageBERT tries for fine-tuning on retrieval (arXiv:2001.07966, section 4.4).

They read the match log-odds of groups of candidates, so they work with every model that has `match_log_odds`
(model/pretraining.py). Which candidates a group has (other captions of an image, other images for a caption) is the
caller's choice.

Shapes: N groups, P candidate pairs in each, one of them true. From a batch whose rows hold one group after the other:
`log_odds_NP = model.match_log_odds(output).view(-1, P)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional as F

from roibeam.model.common.losses import SumCount, binary_cross_entropy, cross_entropy, precise

TRIPLET_MARGIN = 0.2  # not in the paper, whose formula has none


def binary_loss(log_odds_NP: Tensor, true_N: Tensor) -> SumCount:
    """L_BCE: is this pair a match? Every pair by itself; counts N x P. The best alone, table 4."""
    is_true = _is_true(log_odds_NP, true_N)
    return binary_cross_entropy(log_odds_NP, is_true.to(log_odds_NP.dtype), torch.ones_like(is_true))


def multi_class_loss(log_odds_NP: Tensor, true_N: Tensor) -> SumCount:
    """L_CE: which of the P pairs is the match? Softmax over their log-odds; counts N.

    The formula sums a cross-entropy over the P single scores; a cross-entropy needs the scores of all classes at once.
    """
    return cross_entropy(log_odds_NP, true_N)


def triplet_loss(log_odds_NP: Tensor, true_N: Tensor, *, margin: float = TRIPLET_MARGIN) -> SumCount:
    """L_Triplet: max(0, margin - s+ + s-) with the highest s- of the group; counts N.

    The formula prints max[0, s+, s-], without margin and signs, which pulls the right pair down. Scores are the
    probabilities of a match: between 0 and 1 a margin keeps its meaning.
    """
    scores = torch.sigmoid(precise(log_odds_NP))
    is_true = _is_true(log_odds_NP, true_N)
    hardest = scores.masked_fill(is_true, -torch.inf).amax(dim=1)
    total = F.relu(margin - scores.gather(1, true_N[:, None]).squeeze(1) + hardest).sum()
    return SumCount(total, torch.ones_like(true_N).sum())


RETRIEVAL_LOSSES: Mapping[str, Callable[[Tensor, Tensor], SumCount]] = MappingProxyType(
    {"binary": binary_loss, "multi_class": multi_class_loss, "triplet": triplet_loss}
)


def retrieval_losses(log_odds_NP: Tensor, true_N: Tensor, names: Sequence[str] = ("binary",)) -> dict[str, SumCount]:
    """The losses of `names` over the same groups; the total loss is the plain sum of their means.

    Args:
        log_odds_NP: (N, P) float, P at least 2.
        true_N: (N,) long, which of the P candidates is the match.
        names: of `RETRIEVAL_LOSSES`.
    Raises:
        ValueError: for an unknown name, or groups without a wrong candidate.
    """
    unknown = [name for name in names if name not in RETRIEVAL_LOSSES]
    if unknown:
        raise ValueError(f"no retrieval loss {unknown[0]!r}; there are {', '.join(RETRIEVAL_LOSSES)}")
    if log_odds_NP.ndim != 2 or log_odds_NP.shape[1] < 2:
        raise ValueError(
            f"retrieval losses: log-odds must be (groups, candidates) with at least 2 candidates, got shape "
            f"{tuple(log_odds_NP.shape)}"
        )
    return {name: RETRIEVAL_LOSSES[name](log_odds_NP, true_N) for name in names}


def _is_true(log_odds_NP: Tensor, true_N: Tensor) -> Tensor:
    """(N, P) bool."""
    return F.one_hot(true_N, log_odds_NP.shape[1]).bool()
