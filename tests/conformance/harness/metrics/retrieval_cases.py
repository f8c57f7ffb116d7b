"""The family "metrics_retrieval": ranks and recalls of given scores, as three codes count them."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from harness.metrics.metric_case import MetricCase, Ours, caught, metric_family
from harness.tolerances import METRICS
from roibeam.pipelines.common.statistics.retrieval_ranks import CUTS, CaptionedImages, Ranks, retrieval_ranks
from roibeam.pipelines.finetuning.metrics.retrieval import RankFigures, mean_figures, rank_figures, rsum

_CAPTIONS = 5  # of an image, where a case does not say whose each caption is
_VSEPP_PRINTS = 6  # times the mean of rsum, over five folds
_UNITER_LIST = 10  # candidates that it keeps of a query


def _read(case: MetricCase) -> tuple[np.ndarray, np.ndarray]:
    """Scores (captions, images) float64, NaN for null; image of each caption."""
    scores = np.array(case.content("scores"), np.float64)
    if "ids" in case.inputs:
        ids = case.content("ids")
        number = {name: place for place, name in enumerate(ids["image_ids"])}
        return scores, np.array([number[name.rpartition("#")[0]] for name in ids["text_ids"]])
    return np.ascontiguousarray(scores.T), np.repeat(np.arange(len(scores)), _CAPTIONS)


def _ranks(scores_CI: np.ndarray, image_of_caption: np.ndarray, *, ties_count: bool = True) -> Ranks:
    captions, images = scores_CI.shape
    captioned = CaptionedImages(np.arange(captions), image_of_caption, captions, images)
    return retrieval_ranks(scores_CI, captioned, ties_count=ties_count)


def _both(ranks: Ranks) -> dict[str, Any]:
    return {
        "image_to_text": asdict(rank_figures(ranks.image_to_text)),
        "text_to_image": asdict(rank_figures(ranks.text_to_image)),
    }


def _plain(scores_CI: np.ndarray, image_of_caption: np.ndarray) -> Ours:
    ranks = _ranks(scores_CI, image_of_caption)
    figures = rank_figures(ranks.image_to_text), rank_figures(ranks.text_to_image)
    return {
        **_both(ranks),
        "rsum": rsum(*figures),
        "image_to_text_ranks": (ranks.image_to_text - 1).tolist(),
        "text_to_image_ranks": (ranks.text_to_image - 1).tolist(),
        "rank_base": 0,
        "uniter_reported_fractions": _uniter(ranks),
        "uniter_without_its_indexing_fault": _fractions(*figures),
    }


def _fractions(text: RankFigures, image: RankFigures) -> dict[str, float]:
    found = {f"txt_r{cut}": getattr(text, f"r{cut}") / 100 for cut in CUTS}
    return found | {f"img_r{cut}": getattr(image, f"r{cut}") / 100 for cut in CUTS}


def _uniter(ranks: Ranks) -> dict[str, float]:
    """With its fault: of the (caption, rank) pairs of its hits both numbers are compared with K."""
    found = _fractions(rank_figures(ranks.image_to_text), rank_figures(ranks.text_to_image))
    places = np.flatnonzero(ranks.text_to_image <= _UNITER_LIST)
    for cut in CUTS:
        found[f"img_r{cut}"] += int(np.count_nonzero(places < cut)) / len(ranks.text_to_image)
    for side in ("txt", "img"):
        found[f"{side}_r_mean"] = sum(found[f"{side}_r{cut}"] for cut in CUTS) / len(CUTS)
    found["r_mean"] = (found["txt_r_mean"] + found["img_r_mean"]) / 2
    return found


def _ties(scores_CI: np.ndarray, image_of_caption: np.ndarray) -> Ours:
    found: dict[str, Any] = {}
    for name, ties_count in (("best", False), ("worst", True)):
        ranks = _ranks(scores_CI, image_of_caption, ties_count=ties_count)
        found[name] = _both(ranks)
        found[f"ranks_{name}"] = {
            "image_to_text": (ranks.image_to_text - 1).tolist(),
            "text_to_image": (ranks.text_to_image - 1).tolist(),
        }
    return found


def _half_precision(scores_CI: np.ndarray, image_of_caption: np.ndarray) -> Ours:
    rounded = scores_CI.astype(np.float16)
    return {
        "float64": _both(_ranks(scores_CI, image_of_caption)),
        "float16_worst": _both(_ranks(rounded, image_of_caption)),
        "float16_best": _both(_ranks(rounded, image_of_caption, ties_count=False)),
    }


def _folds(scores_CI: np.ndarray, image_of_caption: np.ndarray, folds: int) -> Ours:
    to_text, to_image = [], []
    for images in np.array_split(np.arange(scores_CI.shape[1]), folds):
        captions = np.flatnonzero(np.isin(image_of_caption, images))
        ranks = _ranks(scores_CI[np.ix_(captions, images)], image_of_caption[captions] - images[0])
        to_text.append(rank_figures(ranks.image_to_text))
        to_image.append(rank_figures(ranks.text_to_image))
    mean = rsum(mean_figures(to_text), mean_figures(to_image))
    every = _both(_ranks(scores_CI, image_of_caption))
    return {
        "fold_image_to_text": [asdict(each) for each in to_text],
        "fold_text_to_image": [asdict(each) for each in to_image],
        "mean_image_to_text": asdict(mean_figures(to_text)),
        "mean_text_to_image": asdict(mean_figures(to_image)),
        "mean_rsum": mean,
        "rsum_as_printed_by_vsepp": _VSEPP_PRINTS * mean,
        **{f"all_images_{name}": figures for name, figures in every.items()},
    }


def _not_a_number(scores_CI: np.ndarray, image_of_caption: np.ndarray) -> Ours:
    """Ours refuses; what the two codes make of it is their sort: numpy's puts NaN behind all numbers."""
    refused = caught(lambda: _ranks(scores_CI, image_of_caption))
    if not isinstance(refused, ValueError):
        raise ValueError("ours takes scores that are no numbers")
    rules = {
        "vsepp": np.argsort(scores_CI, axis=1, kind="stable")[:, ::-1],
        "vilbert": np.argsort(-scores_CI, axis=1, kind="stable"),
    }
    found: dict[str, Any] = {"pairs_with_nan": np.argwhere(np.isnan(scores_CI.T)).tolist()}
    for name, order in rules.items():
        ranks = (order == image_of_caption[:, None]).argmax(axis=1)
        found[f"text_to_image_ranks_{name}_rule"] = ranks.tolist()
        found[f"text_to_image_{name}_rule"] = asdict(rank_figures(ranks + 1))
    return found


def _ours(case: MetricCase) -> Ours:
    scores, image_of_caption = _read(case)
    expected: Sequence[str] = list(case.expected)
    if "folds" in case.options:
        return _folds(scores, image_of_caption, int(case.options["folds"]))
    if "pairs_with_nan" in expected:
        return _not_a_number(scores, image_of_caption)
    if "float64" in expected:
        return _half_precision(scores, image_of_caption)
    return _ties(scores, image_of_caption) if "worst" in expected else _plain(scores, image_of_caption)


RETRIEVAL_METRICS = metric_family(
    "metrics_retrieval", {"scores": _ours}, lambda name: METRICS.exact, marks=frozenset({"scores", "ids"})
)
