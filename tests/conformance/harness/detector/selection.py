"""Which regions are kept, against the reference: detections of the port, proposals of the original tool.

The reference's proposals may stand in another order than ours where their scores tie, so ids are translated first
(`ImagePart`). Two proposals that fall on the same cells of the map are twins: their features and scores are the same,
and which of the two is kept is free (ties.py).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from harness.case_files import ArrayError, Arrays
from harness.checks import Check, failed, guarded, near, near_thinned, numpy_of, within
from harness.detector.options import DetectorSet
from harness.detector.ties import ScoreBounds, best_score_bounds
from harness.tolerances import DETECTOR, DetectorTolerances
from roibeam.extraction.detector import Detector, HeadOutputs
from roibeam.extraction.network.conventions import SELECTIONS, SelectionPolicy
from roibeam.extraction.regions import Regions, classwise_max

TOOL = SELECTIONS["butd-10-100"]
STRICT_SCORE = 0.9999  # of butdmin: so few regions reach it that the minimum decides
_NO_ID = -1


@dataclass(frozen=True, eq=False)
class ImagePart:
    """One photo: what our detector says, and where the reference's proposals are among ours.

    Attributes:
        outputs: ours.
        boxes, logits: (R, 4), (R,): the reference's proposals, network-input pixels, and their objectness.
        index: (R,) row of ours that is nearest.
        distance: (R,) largest coordinate difference to it, pixels.
        found: (R,) bool: near enough to be the same.
    """

    outputs: HeadOutputs
    boxes: np.ndarray
    logits: np.ndarray
    index: np.ndarray
    distance: np.ndarray
    found: np.ndarray

    @classmethod
    def match(
        cls, outputs: HeadOutputs, boxes: np.ndarray, logits: np.ndarray, tolerances: DetectorTolerances
    ) -> ImagePart:
        ours = numpy_of(outputs.proposals.boxes)
        if len(ours) and len(boxes):
            apart = np.abs(ours[None].astype(np.float64) - boxes[:, None]).max(axis=2)
            apart = np.where(np.isfinite(apart), apart, np.inf)
            index, distance = apart.argmin(axis=1), apart.min(axis=1)
        else:
            index, distance = np.zeros(len(boxes), int), np.full(len(boxes), np.inf)
        return cls(outputs, boxes, logits, index, distance, distance <= tolerances.proposal_px)

    @property
    def num_proposals(self) -> int:
        return len(self.outputs.proposals.boxes)

    def order_error(self) -> float:
        """Largest objectness difference, by the reference, of two found proposals that stand the other way round."""
        index, logits = self.index[self.found], self.logits[self.found].astype(np.float64)
        reversed_pairs = (index[:, None] > index[None]) & (np.arange(len(index))[:, None] < np.arange(len(index)))
        gaps = np.abs(logits[:, None] - logits[None])[reversed_pairs]
        return float(gaps.max(initial=0.0))

    @functools.cached_property
    def twins(self) -> np.ndarray:
        """(proposals of ours,) the first of ours with the same class logits, up to noise."""
        logits = numpy_of(self.outputs.regions.class_logits).astype(np.float64)
        noise = 1e-5 * np.abs(logits).max(initial=0)
        first = np.arange(len(logits))
        for row in range(len(logits)):
            first[row] = int((np.abs(logits[: row + 1] - logits[row]).max(axis=1) <= noise).argmax())
        return first

    @functools.cached_property
    def score_bounds(self) -> ScoreBounds:
        """Of our proposals, by the original tool's rule."""
        return best_score_bounds(
            numpy_of(self.outputs.network_input.scale.to_photo(self.outputs.proposals.boxes)),
            numpy_of(_class_scores(self)),
            iou=TOOL.nms_thresholds[0],
            noise=DETECTOR.tied_score,
            floor=DETECTOR.best_class_score,
        )

    def ours(self, ids: np.ndarray, array: str) -> np.ndarray:
        """The reference's proposal ids -> ours; -1 where it was not found.

        Args:
            array: named in the error.
        """
        if ids.size and not 0 <= ids.min() <= ids.max() < len(self.boxes):
            raise ArrayError(array, f"holds proposal ids that are not in 0..{len(self.boxes) - 1}")
        return np.where(self.found[ids], self.index[ids], _NO_ID)

    def groups(self, ids: np.ndarray) -> np.ndarray:
        """Ids of ours -> ids that twins share; -1 stays."""
        return np.where(ids == _NO_ID, _NO_ID, self.twins[ids] if len(self.twins) else ids)


def selection_checks(
    network: DetectorSet, detector: Detector, arrays: Arrays, parts: Sequence[ImagePart], tolerances: DetectorTolerances
) -> Iterator[Check]:
    """Detections (`det<max>_*`), the original tool's choice (`butd<max>_*`, `butdmin_*`), the higher thresholds
    (`ladder_*`)."""
    detections, tools = _numbered(arrays, "det"), _numbered(arrays, "butd")
    for kind, found in (("det", detections), ("butd", tools)):
        if not found:
            yield failed(f"{kind}<max>_count", f"no such array is in {arrays.path.name}; is the file cut?")
    for prefix, maximum in detections:
        checks = functools.partial(_detection_checks, prefix, maximum, network, detector, arrays, parts, tolerances)
        yield from guarded(f"{prefix}_count", checks)
    yield from guarded("butd_max_conf", functools.partial(_best_class_checks, arrays, parts, tolerances))
    for prefix, maximum in tools:
        policy = replace(TOOL, max_regions=maximum)
        chosen = functools.partial(_tool_checks, prefix, policy, detector, arrays, parts, tolerances)
        yield from guarded(f"{prefix}_proposal_ids", chosen)
    # The README: in the reduced sets, single photos.
    if "butdmin_proposal_ids" in arrays or (network.is_reduced and len(parts) == 1):
        policy = replace(TOOL, min_score=STRICT_SCORE)
        least = functools.partial(_tool_checks, "butdmin", policy, detector, arrays, parts, tolerances)
        yield from guarded("butdmin_proposal_ids", least)
    if "ladder_min" in arrays:
        yield from guarded(
            "ladder_min", functools.partial(_ladder_checks, network, detector, arrays, parts, tolerances)
        )


def _numbered(arrays: Arrays, kind: str) -> list[tuple[str, int]]:
    """Prefix and maximum of the selections of a kind, such as ("det36", 36)."""
    found = (re.fullmatch(rf"({kind}([1-9]\d{{0,5}}))_count", name) for name in arrays.names)
    return [(match.group(1), int(match.group(2))) for match in found if match]


def _split(arrays: Arrays, prefix: str, length: int, parts: Sequence[ImagePart]) -> list[slice]:
    """Where each image's rows are in the concatenated arrays of a selection."""
    counts = arrays.take(f"{prefix}_count", len(parts)).astype(int)
    if (counts < 0).any() or counts.sum() != length:
        raise ArrayError(f"{prefix}_count", f"says {counts.tolist()}, but there are {length} rows")
    if any(count > len(part.boxes) for count, part in zip(counts, parts, strict=True)):
        raise ArrayError(f"{prefix}_count", f"says {counts.tolist()}, more than there are proposals")
    ends = np.cumsum(counts)
    return [slice(end - count, end) for end, count in zip(ends.tolist(), counts.tolist(), strict=True)]


@dataclass(frozen=True, eq=False)
class _Matches:
    """The reference's detections of one image among ours.

    For each the one of ours that agrees in most of class, box and score.

    Attributes:
        index: (J,) ours; pixels, scores: (J,) how far box and score are; same_class: (J,) bool.
        found: (J,) bool: all three agree.
    """

    index: np.ndarray
    pixels: np.ndarray
    scores: np.ndarray
    same_class: np.ndarray
    found: np.ndarray


def _match(
    got: Regions, boxes: np.ndarray, scores: np.ndarray, classes: np.ndarray, tolerances: DetectorTolerances
) -> _Matches:
    if not len(got.boxes):
        far = np.full(len(boxes), np.inf)
        nothing = np.zeros(len(boxes), bool)
        return _Matches(np.zeros(len(boxes), int), far, far, nothing, nothing)
    pixels = np.abs(got.boxes[None].astype(np.float64) - boxes[:, None]).max(axis=2)
    apart = np.abs(got.class_scores[None].astype(np.float64) - scores[:, None])
    pixels, apart = (np.where(np.isfinite(v), v, np.inf) for v in (pixels, apart))
    same = got.class_ids[None] == classes[:, None]
    agree = (pixels <= tolerances.detection_px) & (apart <= tolerances.detection_score) & same
    points = same.astype(int) + (pixels <= tolerances.detection_px) + (apart <= tolerances.detection_score)
    # Most points first, then the nearest box.
    index = np.lexsort((pixels, -points), axis=1)[:, 0] if len(boxes) else np.zeros(0, int)
    rows = np.arange(len(boxes))
    return _Matches(index, pixels[rows, index], apart[rows, index], same[rows, index], agree[rows, index])


def _detection_checks(
    prefix: str,
    maximum: int,
    network: DetectorSet,
    detector: Detector,
    arrays: Arrays,
    parts: Sequence[ImagePart],
    tolerances: DetectorTolerances,
) -> Iterator[Check]:
    boxes = arrays.take(f"{prefix}_boxes", None, 4)
    total = len(boxes)
    rows = _split(arrays, prefix, total, parts)
    scores, classes = arrays.take(f"{prefix}_scores", total), arrays.take(f"{prefix}_classes", total)
    stable = arrays.take(f"{prefix}_stable", total).astype(bool)
    policy = replace(network.selection, max_regions=maximum)
    got = [detector.postprocess(part.outputs, policy) for part in parts]
    matches = [
        _match(one, boxes[keep], scores[keep], classes[keep], tolerances) for one, keep in zip(got, rows, strict=True)
    ]
    found = np.concatenate([one.found for one in matches])
    surplus = max(abs(len(one.boxes) - (keep.stop - keep.start)) for one, keep in zip(got, rows, strict=True))
    unstable = int((~stable).sum())
    yield within(f"{prefix}_count", surplus, unstable, "more or fewer; only unstable ones may differ")
    note = f"{int(found.sum())} of {total} found, {unstable} declared unstable"
    missed = 1 - float(found.mean()) if total else 0.0
    yield within(f"{prefix}_stable", missed, tolerances.detections_missed, "share of all not found", note)

    def worst(name: str) -> float:
        values = np.concatenate([getattr(one, name) for one in matches]).astype(np.float64)
        return float(values[stable].max(initial=0.0))

    yield within(f"{prefix}_boxes", worst("pixels"), tolerances.detection_px, "photo pixels, of stable ones")
    yield within(f"{prefix}_scores", worst("scores"), tolerances.detection_score, "of stable ones")
    wrong = int((~np.concatenate([one.same_class for one in matches]) & stable).sum())
    yield within(f"{prefix}_classes", wrong, 0, "stable ones of another class")
    yield from _kept_values(prefix, arrays, got, matches, parts, rows, tolerances)


def _kept_values(
    prefix: str,
    arrays: Arrays,
    got: Sequence[Regions],
    matches: Sequence[_Matches],
    parts: Sequence[ImagePart],
    rows: Sequence[slice],
    tolerances: DetectorTolerances,
) -> Iterator[Check]:
    """Features, attributes and proposal of the detections that were found."""
    found = np.concatenate([one.found for one in matches])
    total = len(found)

    def ours(name: str) -> np.ndarray:
        values = [getattr(one, name)[m.index[m.found]] for one, m in zip(got, matches, strict=True) if m.found.any()]
        return np.concatenate(values) if values else np.empty(0)

    for features in (f"{prefix}_features", f"{prefix}_features_sub"):
        if features in arrays:
            yield near_thinned(features, ours("features"), arrays.take(features, total, None)[found], tolerances.values)
    if not {f"{prefix}_features", f"{prefix}_features_sub"} & set(arrays.names):
        yield failed(f"{prefix}_features", f"absent from {arrays.path.name}, as is {prefix}_features_sub")
    # Where two classes tie, the attribute head may see another embedding; where two attributes tie, either is best.
    sure = [
        _decided(part, one.proposal_ids[m.index], tolerances) for part, one, m in zip(parts, got, matches, strict=True)
    ]
    class_sure = np.concatenate([classes for classes, _ in sure])[found]
    attribute_sure = np.concatenate([attributes for _, attributes in sure])[found]
    scores = arrays.take(f"{prefix}_attr_scores", total)[found]
    yield near(f"{prefix}_attr_scores", ours("attribute_scores")[class_sure], scores[class_sure], tolerances.values)
    ids = arrays.take(f"{prefix}_attr_ids", total)[found]
    wrong = int((ours("attribute_ids") != ids)[class_sure & attribute_sure].sum())
    yield within(f"{prefix}_attr_ids", wrong, 0, "other attributes, where none tie")
    proposals = arrays.take(f"{prefix}_proposal_ids", total).astype(int)
    others = 0
    for part, one, m, keep in zip(parts, got, matches, rows, strict=True):
        theirs = part.groups(part.ours(proposals[keep], f"{prefix}_proposal_ids"))[m.found]
        others += int((part.groups(one.proposal_ids[m.index[m.found]]) != theirs).sum())
    yield within(f"{prefix}_proposal_ids", others, 0, "other proposals, twins apart")


def _decided(part: ImagePart, ids: np.ndarray, tolerances: DetectorTolerances) -> tuple[np.ndarray, np.ndarray]:
    """For each proposal whether its best class, and its best attribute, lead by more than the tolerance."""
    regions, decided = part.outputs.regions, []
    for logits in (numpy_of(regions.class_logits), numpy_of(regions.attribute_logits)[:, :-1]):
        if logits.shape[1] < 2 or not len(ids):
            decided.append(np.ones(len(ids), bool))
            continue
        best_two = np.sort(logits, axis=1)[:, -2:]
        decided.append((best_two[:, 1] - best_two[:, 0] > 2 * tolerances.values.max_rel * np.abs(logits).max())[ids])
    return decided[0], decided[1]


def _ladder_checks(
    network: DetectorSet, detector: Detector, arrays: Arrays, parts: Sequence[ImagePart], tolerances: DetectorTolerances
) -> Iterator[Check]:
    """The port's rule with a minimum that the lowest threshold does not leave; single photos."""
    boxes = arrays.take("ladder_boxes", None, 4)
    scores, classes = arrays.take("ladder_scores", len(boxes)), arrays.take("ladder_classes", len(boxes))
    part = parts[0]
    if len(boxes) > len(part.boxes):
        raise ArrayError("ladder_boxes", f"has {len(boxes)} rows, more than there are proposals")
    minimum = int(arrays.take("ladder_min"))
    policy = replace(network.selection, min_regions=minimum, max_regions=max(part.num_proposals, 1))
    got = detector.postprocess(part.outputs, policy)
    # The count tells which threshold was reached; each leaves another one.
    yield within("ladder_min", abs(len(got.boxes) - len(boxes)), 0, "regions more or fewer")
    kept = _match(got, boxes, scores, classes, tolerances).found
    missed = 1 - float(kept.mean()) if len(kept) else 0.0
    yield within("ladder_boxes", missed, tolerances.detections_missed, "share not among those kept")
    # Whichever of a tie is kept, each region is one of the candidates.
    candidates = detector.postprocess(part.outputs, replace(policy, min_regions=0, nms_thresholds=(1.0,)))
    found = _match(candidates, boxes, scores, classes, tolerances)
    yield within("ladder_boxes", float(found.pixels.max(initial=0)), tolerances.detection_px, "photo pixels")
    yield within("ladder_scores", float(found.scores.max(initial=0)), tolerances.detection_score, "absolute")
    yield within("ladder_classes", int((~found.same_class).sum()), 0, "of another class")


def _best_class_checks(arrays: Arrays, parts: Sequence[ImagePart], tolerances: DetectorTolerances) -> Iterator[Check]:
    """Best class score after NMS inside each class, of every proposal that was found.

    Where ours differs, ties may be the reason: then the reference's score must lie within what ties allow, and be the
    score of one of that proposal's classes.
    """
    want = arrays.take("butd_max_conf", sum(len(part.boxes) for part in parts)).astype(np.float64)
    errors, start = [np.zeros(0)], 0
    differ = 0
    for part in parts:
        theirs = want[start : start + len(part.boxes)][part.found]
        start += len(part.boxes)
        rows = part.index[part.found]
        error = np.abs(best_class_scores(part)[rows] - theirs)
        scores = numpy_of(_class_scores(part))[rows].astype(np.float64)
        of_a_class = np.abs(np.pad(scores, ((0, 0), (0, 1))) - theirs[:, None]).min(axis=1)  # 0: kept in no class
        tied = np.maximum(part.score_bounds.distance(theirs, rows), of_a_class)
        elsewhere = ~(error <= tolerances.best_class_score)
        differ += int(elsewhere.sum())
        errors.append(np.where(elsewhere, tied, error))
    found = np.concatenate(errors)
    largest = float(found.max(initial=0.0)) if np.isfinite(found).all() else np.inf
    yield within("butd_max_conf", largest, tolerances.best_class_score, "absolute, outside of what ties allow")
    share = differ / len(found) if len(found) else 0.0
    yield within("butd_max_conf", share, tolerances.unstable, "share that ties make another score")


def best_class_scores(part: ImagePart) -> np.ndarray:
    """(R,) float32, of ours."""
    boxes = part.outputs.network_input.scale.to_photo(part.outputs.proposals.boxes)
    return numpy_of(classwise_max(boxes, _class_scores(part), TOOL, floor=0.0)[1])


def _class_scores(part: ImagePart) -> Tensor:
    """(R, C) float32 probabilities of the foreground classes."""
    return part.outputs.regions.class_logits.softmax(1)[:, :-1]


def _tool_checks(
    prefix: str,
    policy: SelectionPolicy,
    detector: Detector,
    arrays: Arrays,
    parts: Sequence[ImagePart],
    tolerances: DetectorTolerances,
) -> Iterator[Check]:
    """Proposals that the original tool keeps, in its order."""
    name = f"{prefix}_proposal_ids"
    ids = arrays.take(name, None).astype(int)
    # A minimum is reached in single photos only, and has no count.
    counted = f"{prefix}_count" in arrays
    rows = _split(arrays, prefix, len(ids), parts) if counted or len(parts) > 1 else [slice(0, len(ids))]
    surplus, undecided, worst = 0, 0, 0.0
    for part, keep in zip(parts, rows, strict=True):
        theirs = part.ours(ids[keep], name)
        got = detector.postprocess(part.outputs, policy).proposal_ids
        bounds = part.score_bounds
        surplus = max(surplus, abs(len(got) - len(theirs)))
        undecided = max(undecided, int(((bounds.low < policy.min_score) & (bounds.high >= policy.min_score)).sum()))
        if not np.array_equal(got, theirs):
            worst = max(worst, place_error(bounds, theirs, policy.min_score))
    if counted:
        yield within(f"{prefix}_count", surplus, undecided, "more or fewer; only ties may make them")
    elif surplus > undecided:
        worst = np.inf
    yield within(name, worst, tolerances.tied_score, "score by which a place is wrong, however ties are broken")


def place_error(bounds: ScoreBounds, ids: np.ndarray, min_score: float) -> float:
    """By how much the scores forbid a list of regions; 0 where some way to break ties gives it.

    Args:
        ids: of ours, in the reference's order.
    """
    if (ids == _NO_ID).any() or len(set(ids.tolist())) < len(ids):
        return np.inf
    left_out = np.delete(np.arange(len(bounds.low)), ids)
    if (np.diff(ids) > 0).all():
        # By proposal: all that reach the score, and no other.
        lacking, ignored = min_score - bounds.high[ids], bounds.low[left_out] - min_score
        return max(float(lacking.max(initial=0.0)), float(ignored.max(initial=0.0)))
    # By score: each as high as its own bound and those before it let it be.
    reached = np.minimum.accumulate(bounds.high[ids])
    last = reached[-1] if len(reached) else np.inf
    wrong = (bounds.low[ids] - reached).max(initial=0.0)
    return max(float(wrong), float((bounds.low[left_out] - last).max(initial=0.0)))
