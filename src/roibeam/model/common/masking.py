"""Masking for pre-training: words, regions and groups of them that are hidden from a model.

numpy only, so that a loader can call it anywhere. The caller seeds the generator by (seed, epoch, sample): then masks
depend neither on batch size nor on worker count.

Masked group modelling (arXiv:2003.13198, section 2.3) hides runs of words and heaps of overlapping regions. It has two
sets of rules: the paper's, and those of the release (black4321/InterBERT concept_cap_dataset.py, `--span_mask`; without
that flag it masks like ViLBERT).
"""

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

    As `mask_words`; special tokens, which are not `maskable` (T,), are never chosen.
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
        hide_overlapping: True hides all regions of the group of a hidden region, as in the paper. False is the
            multi-task release: it hides nothing more, but counts fewer regions for the whole image.
    Returns:
        `masked` (R,) bool, hidden from the model now, and `counted` (R,) bool, outside of every group: the release
        divides the sum of the remaining features by their number. To do the same, pass `mean_feature(features, ~masked,
        counted)` (model/common/regions.py) to the model as `whole_image_features`.
    """
    near = overlaps_with_inclusive_sides(boxes_xyxy_px) > threshold
    counted = ~near[predicted].any(axis=0)
    return masked | near[masked].any(axis=0) if hide_overlapping else masked.copy(), counted


LONGEST_SEGMENT = 3  # words: an anchor and up to two after it
SHORTEST_TEXT_WITH_SPAN = 4  # pieces: the release masks a text of n only where int(0.3 n) is not 0


def mask_segments(
    text_ids: np.ndarray,
    word_ids: np.ndarray,
    generator: np.random.Generator,
    *,
    mask_id: int,
    vocab_size: int,
    probability: float = 0.1,
) -> tuple[np.ndarray, np.ndarray]:
    """The paper's masked segments: each word is an anchor with `probability` and takes 0 to 2 words after it along.

    Each word of a segment, anchor or not, then becomes `mask_id` (80 %), random (10 %) or stays (10 %), all its pieces
    alike, as in `mask_words`. Segments may touch and overlap; they end with the text.

    Args:
        text_ids, word_ids: as in `mask_words`, with rising numbers.
    Returns:
        As `mask_words`.
    """
    words = np.unique(word_ids[word_ids >= 0])
    anchors = np.flatnonzero(generator.random(len(words)) < probability)
    lengths = 1 + generator.integers(LONGEST_SEGMENT, size=len(anchors))
    chosen = np.zeros(len(words), bool)
    for anchor, length in zip(anchors, lengths, strict=True):
        chosen[anchor : anchor + length] = True
    groups = [np.flatnonzero(word_ids == word) for word in words[chosen]]
    return _replace(text_ids, groups, generator, mask_id=mask_id, vocab_size=vocab_size)


def mask_one_span(
    text_ids: np.ndarray, word_ids: np.ndarray, generator: np.random.Generator, *, mask_id: int, vocab_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """The release's masked span: one run of pieces in a text of at least four, none in a shorter one.

    It starts before any of the n pieces or after the last, uniformly, and takes 1 to n of them, uniformly; the end of
    the text cuts it. So it may be empty, or the whole text. Each piece by itself becomes `mask_id` (80 %), random
    (10 %) or stays (10 %).

    Args:
        text_ids, word_ids: as in `mask_words`; special tokens are not counted. The release cuts words into pieces here.
    Returns:
        As `mask_words`.
    """
    places = np.flatnonzero(word_ids >= 0)
    count, span = len(places), places[:0]
    if count >= SHORTEST_TEXT_WITH_SPAN:
        start = int(generator.integers(count + 1))
        span = places[start : start + int(generator.integers(1, count + 1))]
    return _replace(text_ids, list(span[:, None]), generator, mask_id=mask_id, vocab_size=vocab_size)


def _replace(
    text_ids: np.ndarray, groups: list[np.ndarray], generator: np.random.Generator, *, mask_id: int, vocab_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """80/10/10 for each group of positions, which share one draw; all of them are labelled."""
    masked_ids, labels = text_ids.copy(), np.full_like(text_ids, IGNORE_INDEX)
    for places, draw in zip(groups, generator.random(len(groups)), strict=True):
        labels[places] = text_ids[places]
        if draw < 0.8:
            masked_ids[places] = mask_id
        elif draw < 0.9:
            masked_ids[places] = generator.integers(vocab_size, size=len(places))
    return masked_ids, labels


def regions_around(
    boxes_xyxy_px: np.ndarray, anchors: np.ndarray, *, threshold: float = 0.4, at_threshold: bool
) -> np.ndarray:
    """(R,) bool: regions whose overlap with an anchor is large; each anchor is one of them.

    Sides are counted as x2 - x1 + 1 pixels, which is the release's 1/W and 1/H on normalised boxes. (The paper does not
    specify it.)

    Args:
        at_threshold: whether an overlap equal to `threshold` is large; the paper has "larger than 0.4", the release
            >= 0.4.
    """
    overlaps = overlaps_with_inclusive_sides(boxes_xyxy_px)
    near = overlaps >= threshold if at_threshold else overlaps > threshold
    return np.asarray(near[anchors].any(axis=0))


def mask_region_groups(
    boxes_xyxy_px: np.ndarray, generator: np.random.Generator, *, probability: float = 0.1
) -> np.ndarray:
    """The paper's masked regions: every region is an anchor with `probability` and takes those with larger IoU along.

    Returns:
        (R,) bool: hidden from the model and predicted. None is kept visible: "it masks selected objects with zero
        vectors".
    """
    anchors = generator.random(len(boxes_xyxy_px)) < probability
    return regions_around(boxes_xyxy_px, anchors, at_threshold=False)


def mask_region_groups_as_released(
    boxes_xyxy_px: np.ndarray, features: np.ndarray, generator: np.random.Generator, *, probability: float = 0.1
) -> tuple[np.ndarray, np.ndarray]:
    """The release's masked regions: as the paper's, but an IoU equal to the threshold counts.

    The release detects masked regions as those whose features are zero, so a region whose feature was zero
    before is predicted too.

    Returns:
        `masked` (R,) bool, hidden from the model now, and `predicted` (R,) bool, which includes it.
    """
    anchors = generator.random(len(boxes_xyxy_px)) < probability
    masked = regions_around(boxes_xyxy_px, anchors, at_threshold=True)
    return masked, masked | ~features.any(axis=1)
