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
from harness.tolerances import DETECTOR, Closeness
from roibeam.extraction.detector import Detector, HeadOutputs
from roibeam.extraction.network.conventions import SELECTIONS, SelectionPolicy
from roibeam.extraction.regions import Regions, classwise_max

TOOL = SELECTIONS["butd-10-100"]
STRICT_SCORE = 0.9999  # of butdmin: so few regions reach it that the minimum decides
_NO_ID = -1


@dataclass(frozen=True, eq=False)
class ImagePart:
    """One photo: what our detector says, and where the reference's proposals are among ours."""

    outputs: HeadOutputs  # ours
    # boxes, logits: (R, 4), (R,): the reference's proposals, network-input pixels, and their objectness
    boxes: np.ndarray
    logits: np.ndarray
    index: np.ndarray  # (R,) row of ours that is nearest
    distance: np.ndarray  # (R,) largest coordinate difference to it, pixels
    found: np.ndarray  # (R,) bool: near enough to be the same

    @classmethod
    def match(cls, outputs: HeadOutputs, boxes: np.ndarray, logits: np.ndarray) -> ImagePart:
        ours = numpy_of(outputs.proposals.boxes)
        if len(ours) and len(boxes):
            apart = np.abs(ours[None].astype(np.float64) - boxes[:, None]).max(axis=2)
            apart = np.where(np.isfinite(apart), apart, np.inf)
            index, distance = apart.argmin(axis=1), apart.min(axis=1)
        else:
            index, distance = np.zeros(len(boxes), int), np.full(len(boxes), np.inf)
        return cls(outputs, boxes, logits, index, distance, distance <= DETECTOR.proposal_px)

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


@dataclass(frozen=True, eq=False)
class Selections:
    """What is kept of the photos of a file: detections (`det<max>_*`), the original tool's choice (`butd<max>_*`,
    `butdmin_*`), the higher thresholds (`ladder_*`)."""

    network: DetectorSet
    detector: Detector
    arrays: Arrays
    parts: Sequence[ImagePart]

    def checks(self) -> Iterator[Check]:
        detections, tools = self._numbered("det"), self._numbered("butd")
        for kind, found in (("det", detections), ("butd", tools)):
            if not found:
                yield failed(f"{kind}<max>_count", f"no such array is in {self.arrays.path.name}; is the file cut?")
        for prefix, maximum in detections:
            yield from guarded(f"{prefix}_count", self._detection_checks, prefix, maximum)
        yield from guarded("butd_max_conf", self._best_class_checks)
        for prefix, maximum in tools:
            policy = replace(TOOL, max_regions=maximum)
            yield from guarded(f"{prefix}_proposal_ids", self._tool_checks, prefix, policy)
        # The README: in the reduced sets, single photos.
        if "butdmin_proposal_ids" in self.arrays or (self.network.is_reduced and len(self.parts) == 1):
            policy = replace(TOOL, min_score=STRICT_SCORE)
            yield from guarded("butdmin_proposal_ids", self._tool_checks, "butdmin", policy)
        if "ladder_min" in self.arrays:
            yield from guarded("ladder_min", self._ladder_checks)

    def _numbered(self, kind: str) -> list[tuple[str, int]]:
        """Prefix and maximum of the selections of a kind, such as ("det36", 36)."""
        found = (re.fullmatch(rf"({kind}([1-9]\d{{0,5}}))_count", name) for name in self.arrays.names)
        return [(match.group(1), int(match.group(2))) for match in found if match]

    def _split(self, prefix: str, length: int) -> list[slice]:
        """Where each image's rows are in the concatenated arrays of a selection."""
        counts = self.arrays.take(f"{prefix}_count", len(self.parts)).astype(int)
        if (counts < 0).any() or counts.sum() != length:
            raise ArrayError(f"{prefix}_count", f"says {counts.tolist()}, but there are {length} rows")
        if any(count > len(part.boxes) for count, part in zip(counts, self.parts, strict=True)):
            raise ArrayError(f"{prefix}_count", f"says {counts.tolist()}, more than there are proposals")
        ends = np.cumsum(counts)
        return [slice(end - count, end) for end, count in zip(ends.tolist(), counts.tolist(), strict=True)]

    def _detection_checks(self, prefix: str, maximum: int) -> Iterator[Check]:
        boxes = self.arrays.take(f"{prefix}_boxes", None, 4)
        total = len(boxes)
        rows = self._split(prefix, total)
        scores, classes = self.arrays.take(f"{prefix}_scores", total), self.arrays.take(f"{prefix}_classes", total)
        stable = self.arrays.take(f"{prefix}_stable", total).astype(bool)
        policy = replace(self.network.selection, max_regions=maximum)
        got = [self.detector.postprocess(part.outputs, policy) for part in self.parts]
        matches = [_match(one, boxes[keep], scores[keep], classes[keep]) for one, keep in zip(got, rows, strict=True)]
        found = np.concatenate([one.found for one in matches])
        surplus = max(abs(len(one.boxes) - (keep.stop - keep.start)) for one, keep in zip(got, rows, strict=True))
        unstable = int((~stable).sum())
        yield within(f"{prefix}_count", surplus, unstable, "more or fewer; only unstable ones may differ")
        note = f"{int(found.sum())} of {total} found, {unstable} declared unstable"
        missed = 1 - float(found.mean()) if total else 0.0
        yield within(f"{prefix}_stable", missed, DETECTOR.detections_missed, "share of all not found", note)

        def worst(name: str) -> float:
            values = np.concatenate([getattr(one, name) for one in matches]).astype(np.float64)
            return float(values[stable].max(initial=0.0))

        yield within(f"{prefix}_boxes", worst("pixels"), DETECTOR.detection_px, "photo pixels, of stable ones")
        yield within(f"{prefix}_scores", worst("scores"), DETECTOR.detection_score, "of stable ones")
        wrong = int((~np.concatenate([one.same_class for one in matches]) & stable).sum())
        yield within(f"{prefix}_classes", wrong, 0, "stable ones of another class")
        yield from self._kept_values(prefix, got, matches, rows)

    def _kept_values(
        self, prefix: str, got: Sequence[Regions], matches: Sequence[_Matches], rows: Sequence[slice]
    ) -> Iterator[Check]:
        """Features, attributes and proposal of the detections that were found."""
        arrays, values = self.arrays, self.network.values
        found = np.concatenate([one.found for one in matches])
        total, pairs = len(found), [(one, m) for one, m in zip(got, matches, strict=True) if m.found.any()]

        def ours(name: str) -> np.ndarray:
            return np.concatenate([getattr(one, name)[m.index[m.found]] for one, m in pairs] or [np.empty(0)])

        names = [name for name in (f"{prefix}_features", f"{prefix}_features_sub") if name in arrays]
        for name in names:
            yield near_thinned(name, ours("features"), arrays.take(name, total, None)[found], values)
        if not names:
            yield failed(f"{prefix}_features", f"absent from {arrays.path.name}, as is {prefix}_features_sub")
        # Where two classes tie, the attribute head may see another embedding; where two attributes tie, either is best.
        sure: dict[str, list[np.ndarray]] = {"class_logits": [], "attribute_logits": []}
        for part, one, m in zip(self.parts, got, matches, strict=True):
            for name, rows_of in sure.items():
                logits = numpy_of(getattr(part.outputs.regions, name))
                foreground = logits if name == "class_logits" else logits[:, :-1]
                rows_of.append(decided(foreground, values)[one.proposal_ids[m.index]])
        class_sure, attribute_sure = (np.concatenate(rows_of)[found] for rows_of in sure.values())
        scores = arrays.take(f"{prefix}_attr_scores", total)[found]
        yield near(f"{prefix}_attr_scores", ours("attribute_scores")[class_sure], scores[class_sure], values)
        ids = arrays.take(f"{prefix}_attr_ids", total)[found]
        wrong = int((ours("attribute_ids") != ids)[class_sure & attribute_sure].sum())
        yield within(f"{prefix}_attr_ids", wrong, 0, "other attributes, where none tie")
        proposals = arrays.take(f"{prefix}_proposal_ids", total).astype(int)
        others = 0
        for part, one, m, keep in zip(self.parts, got, matches, rows, strict=True):
            theirs = part.groups(part.ours(proposals[keep], f"{prefix}_proposal_ids"))[m.found]
            others += int((part.groups(one.proposal_ids[m.index[m.found]]) != theirs).sum())
        yield within(f"{prefix}_proposal_ids", others, 0, "other proposals, twins apart")

    def _ladder_checks(self) -> Iterator[Check]:
        """The port's rule with a minimum that the lowest threshold does not leave; single photos."""
        boxes = self.arrays.take("ladder_boxes", None, 4)
        scores, classes = self.arrays.take("ladder_scores", len(boxes)), self.arrays.take("ladder_classes", len(boxes))
        part = self.parts[0]
        if len(boxes) > len(part.boxes):
            raise ArrayError("ladder_boxes", f"has {len(boxes)} rows, more than there are proposals")
        minimum = int(self.arrays.take("ladder_min"))
        policy = replace(self.network.selection, min_regions=minimum, max_regions=max(part.num_proposals, 1))
        got = self.detector.postprocess(part.outputs, policy)
        # The count tells which threshold was reached; each leaves another one.
        yield within("ladder_min", abs(len(got.boxes) - len(boxes)), 0, "regions more or fewer")
        kept = _match(got, boxes, scores, classes).found
        missed = 1 - float(kept.mean()) if len(kept) else 0.0
        yield within("ladder_boxes", missed, DETECTOR.detections_missed, "share not among those kept")
        # Whichever of a tie is kept, each region is one of the candidates.
        candidates = self.detector.postprocess(part.outputs, replace(policy, min_regions=0, nms_thresholds=(1.0,)))
        found = _match(candidates, boxes, scores, classes)
        yield within("ladder_boxes", float(found.pixels.max(initial=0)), DETECTOR.detection_px, "photo pixels")
        yield within("ladder_scores", float(found.scores.max(initial=0)), DETECTOR.detection_score, "absolute")
        yield within("ladder_classes", int((~found.same_class).sum()), 0, "of another class")

    def _best_class_checks(self) -> Iterator[Check]:
        """Best class score after NMS inside each class, of every proposal that was found.

        Where ours differs, ties may be the reason: then the reference's score must lie within what ties allow, and be
        the score of one of that proposal's classes.
        """
        want = self.arrays.take("butd_max_conf", sum(len(part.boxes) for part in self.parts)).astype(np.float64)
        errors, start = [np.zeros(0)], 0
        differ = 0
        for part in self.parts:
            theirs = want[start : start + len(part.boxes)][part.found]
            start += len(part.boxes)
            rows = part.index[part.found]
            error = np.abs(best_class_scores(part)[rows] - theirs)
            scores = numpy_of(_class_scores(part))[rows].astype(np.float64)
            of_a_class = np.abs(np.pad(scores, ((0, 0), (0, 1))) - theirs[:, None]).min(axis=1)  # 0: kept in no class
            tied = np.maximum(part.score_bounds.distance(theirs, rows), of_a_class)
            elsewhere = ~(error <= DETECTOR.best_class_score)
            differ += int(elsewhere.sum())
            errors.append(np.where(elsewhere, tied, error))
        found = np.concatenate(errors)
        largest = float(found.max(initial=0.0)) if np.isfinite(found).all() else np.inf
        yield within("butd_max_conf", largest, DETECTOR.best_class_score, "absolute, outside of what ties allow")
        share = differ / len(found) if len(found) else 0.0
        yield within("butd_max_conf", share, DETECTOR.unstable, "share that ties make another score")

    def _tool_checks(self, prefix: str, policy: SelectionPolicy) -> Iterator[Check]:
        """Proposals that the original tool keeps, in its order."""
        name = f"{prefix}_proposal_ids"
        ids = self.arrays.take(name, None).astype(int)
        # A minimum is reached in single photos only, and has no count.
        counted = f"{prefix}_count" in self.arrays
        rows = self._split(prefix, len(ids)) if counted or len(self.parts) > 1 else [slice(0, len(ids))]
        surplus, undecided, worst = 0, 0, 0.0
        for part, keep in zip(self.parts, rows, strict=True):
            theirs = part.ours(ids[keep], name)
            got = self.detector.postprocess(part.outputs, policy).proposal_ids
            bounds = part.score_bounds
            surplus = max(surplus, abs(len(got) - len(theirs)))
            undecided = max(undecided, int(((bounds.low < policy.min_score) & (bounds.high >= policy.min_score)).sum()))
            if not np.array_equal(got, theirs):
                worst = max(worst, place_error(bounds, theirs, policy.min_score))
        if counted:
            yield within(f"{prefix}_count", surplus, undecided, "more or fewer; only ties may make them")
        elif surplus > undecided:
            worst = np.inf
        yield within(name, worst, DETECTOR.tied_score, "score by which a place is wrong, however ties are broken")


@dataclass(frozen=True, eq=False)
class _Matches:
    """The reference's J detections of one image among ours: for each that which agrees in most of class, box and
    score."""

    index: np.ndarray  # (J,) of ours
    pixels: np.ndarray  # (J,) how far the box is
    scores: np.ndarray  # (J,) how far the score is
    same_class: np.ndarray  # (J,) bool
    found: np.ndarray  # (J,) bool: all three agree


def _match(got: Regions, boxes: np.ndarray, scores: np.ndarray, classes: np.ndarray) -> _Matches:
    if not len(got.boxes):
        far = np.full(len(boxes), np.inf)
        nothing = np.zeros(len(boxes), bool)
        return _Matches(np.zeros(len(boxes), int), far, far, nothing, nothing)
    pixels = np.abs(got.boxes[None].astype(np.float64) - boxes[:, None]).max(axis=2)
    apart = np.abs(got.class_scores[None].astype(np.float64) - scores[:, None])
    pixels, apart = (np.where(np.isfinite(v), v, np.inf) for v in (pixels, apart))
    same = got.class_ids[None] == classes[:, None]
    agree = (pixels <= DETECTOR.detection_px) & (apart <= DETECTOR.detection_score) & same
    points = same.astype(int) + (pixels <= DETECTOR.detection_px) + (apart <= DETECTOR.detection_score)
    # Most points first, then the nearest box.
    index = np.lexsort((pixels, -points), axis=1)[:, 0] if len(boxes) else np.zeros(0, int)
    rows = np.arange(len(boxes))
    return _Matches(index, pixels[rows, index], apart[rows, index], same[rows, index], agree[rows, index])


def decided(logits: np.ndarray, values: Closeness) -> np.ndarray:
    """(..., C) logits -> (...,) bool: whether the best leads by more than the tolerance. Where two tie, either is
    right, and the attribute head sees the embedding of the best class."""
    if logits.shape[-1] < 2:
        return np.ones(logits.shape[:-1], bool)
    best_two = np.sort(logits, axis=-1)[..., -2:]
    return np.asarray(best_two[..., 1] - best_two[..., 0] > 2 * values.max_rel * np.abs(logits).max(initial=0))


def best_class_scores(part: ImagePart) -> np.ndarray:
    """(R,) float32, of ours."""
    boxes = part.outputs.network_input.scale.to_photo(part.outputs.proposals.boxes)
    return numpy_of(classwise_max(boxes, _class_scores(part), TOOL, floor=0.0)[1])


def _class_scores(part: ImagePart) -> Tensor:
    """(R, C) float32 probabilities of the foreground classes."""
    return part.outputs.regions.class_logits.softmax(1)[:, :-1]


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
