"""What is hidden from a model in pre-training. numpy only, so that a loader can call it anywhere.

The caller seeds the generator by (seed, epoch, sample): then masks depend neither on batch size nor on worker count.
"""

from __future__ import annotations

import numpy as np

from roibeam.model.inputs import IGNORE_INDEX


def mask_words(
    text_ids: np.ndarray,
    word_ids: np.ndarray,
    generator: np.random.Generator,
    *,
    mask_id: int,
    vocab_size: int,
    probability: float = 0.15,
    masked_share: float = 0.8,
) -> tuple[np.ndarray, np.ndarray]:
    """BERT's 80/10/10 masking by whole words (jackroos/VL-BERT pretrain/data/datasets/conceptual_captions.py).

    Each word is chosen with `probability`. Of a chosen word all pieces become `mask_id` (80 %), or each becomes a
    random vocabulary entry (10 %), or all stay (10 %); all its pieces are labelled. No word has to be chosen.

    Args:
        masked_share: of chosen words, those that become `mask_id`: 1 in VL-BERT's paper (section 3.3). Half of the
            others become random, half stay.
        text_ids: (T,) int64.
        word_ids: (T,) int64, pieces of one word share a number; -1 for special tokens, which are never chosen.
    Returns:
        New text ids (T,) int64 and labels (T,) int64, `IGNORE_INDEX` where nothing is predicted.
    """
    masked_ids = text_ids.copy()
    labels = np.full_like(text_ids, IGNORE_INDEX)
    pieces_of: dict[int, list[int]] = {}
    for place, word in enumerate(word_ids.tolist()):
        if word >= 0:
            pieces_of.setdefault(word, []).append(place)
    for word in sorted(pieces_of):
        draw = generator.random() / probability if probability > 0 else 1.0
        if draw >= 1.0:
            continue
        pieces = pieces_of[word]
        labels[pieces] = text_ids[pieces]
        if draw < masked_share:
            masked_ids[pieces] = mask_id
        elif draw < (1 + masked_share) / 2:
            masked_ids[pieces] = generator.integers(vocab_size, size=len(pieces))
    return masked_ids, labels


def mask_pieces(
    text_ids: np.ndarray,
    maskable: np.ndarray,
    generator: np.random.Generator,
    *,
    mask_id: int,
    vocab_size: int,
    probability: float = 0.15,
    masked_share: float = 0.8,
) -> tuple[np.ndarray, np.ndarray]:
    """BERT's 80/10/10 masking piece by piece (uclanlp/visualbert pytorch_pretrained_bert/fine_tuning.py, random_word).

    Args:
        maskable: (T,) bool, False for special tokens, which are never chosen.
        text_ids, probability, masked_share: as in `mask_words`.
    Returns:
        As `mask_words`.
    """
    draws = np.ones(len(text_ids))
    draws[maskable] = generator.random(int(maskable.sum()))
    chosen = maskable & (draws < probability)
    hidden = chosen & (draws < probability * masked_share)
    replaced = chosen & ~hidden & (draws < probability * (1 + masked_share) / 2)
    masked_ids = np.where(hidden, mask_id, text_ids)
    masked_ids[replaced] = generator.integers(vocab_size, size=int(replaced.sum()))
    return masked_ids, np.where(chosen, text_ids, IGNORE_INDEX)


def mask_regions(
    num_regions: int, generator: np.random.Generator, *, probability: float = 0.15, masked_share: float = 0.9
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses regions to predict, each with `probability`, and hides `masked_share` of those (VL-BERT, same file).

    Returns:
        `masked` (num_regions,) bool, hidden from the model, and `predicted` (num_regions,) bool, which includes it.
    """
    draws = generator.random(num_regions)
    return draws < probability * masked_share, draws < probability


def overlaps_with_inclusive_sides(boxes_xyxy_px: np.ndarray) -> np.ndarray:
    """(R, R) intersection over union of boxes (R, 4) in pixels, sides counted as x2 - x1 + 1.

    Those of facebookresearch/vilbert-multi-task (concept_cap_dataset.py, iou), float64. InterBERT counts the same way.
    `task_losses.overlaps` rounds elsewhere, in float32 on the device: which boxes are over a threshold could change.
    """
    boxes = boxes_xyxy_px.astype(np.float64)
    starts, ends = boxes[:, :2], boxes[:, 2:] + 1
    area = (ends - starts).prod(axis=1)
    shared = np.minimum(ends[:, None], ends[None]) - np.maximum(starts[:, None], starts[None])
    intersection = np.maximum(shared, 0.0).prod(axis=2)
    return np.asarray(intersection / (area[:, None] + area[None] - intersection))


def mask_overlapping_regions(
    boxes_xyxy_px: np.ndarray,
    masked: np.ndarray,
    predicted: np.ndarray,
    *,
    threshold: float = 0.4,
    hide_overlapping: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Masks regions in groups, so that a masked one cannot be read off its neighbour (arXiv:1912.02315).

    A group is a predicted region and all with an IoU strictly above `threshold` to it.

    Args:
        boxes_xyxy_px: (R, 4), pixels of the original image.
        masked, predicted: (R,) bool, from `mask_regions`.
        hide_overlapping: True hides all regions of the group of a hidden region, which is what the paper says. False is
            what the multi-task release does: it hides nothing more, but counts fewer regions for the whole image.
    Returns:
        `masked` (R,) bool, hidden from the model now, and `counted` (R,) bool, outside of every group: the release
        divides the sum of the features that are left by their number. Hand `mean_feature(features, ~masked, counted)`
        (model/common/regions.py) to the model as `whole_image_features` to do the same.
    """
    near = overlaps_with_inclusive_sides(boxes_xyxy_px) > threshold
    counted = ~near[predicted].any(axis=0)
    return masked | near[masked].any(axis=0) if hide_overlapping else masked.copy(), counted
