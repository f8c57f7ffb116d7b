"""Judge of pictures: whether one is a natural photo, by statistics of its file and, if trained so, of its regions.

`roibeam collect train-images` trains it on labelled pictures. Regions are those of a store, or those that a detector
finds now. Statistics of file and pixels tell photos from logos, charts and screenshots; all of them are roibeam's.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import cv2
import numpy as np
from PIL import Image

from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.pipelines.analysis.analysis_settings import check_new
from roibeam.pipelines.collection.judging.boosted_model import (
    BoostedModel,
    BoostingSettings,
    LabelledRows,
    check_extra,
    is_held_out,
    read_boosted_model,
    train_boosted,
)
from roibeam.pipelines.collection.judging.requests import TrainImagesRequest
from roibeam.pipelines.collection.judging.training_rows import read_labelled_images
from roibeam.pipelines.collection.pairs import FetchedPicture
from roibeam.pipelines.common.console.progress import Progress, Unit
from roibeam.pipelines.data.image_table import ImageFinder
from roibeam.pipelines.data.vocabulary import Vocabulary


class RegionSource(Protocol):
    """Attributes:
    names: of the detector's classes and attributes.
    """

    names: Vocabulary

    def records(self, paths: Sequence[str]) -> list[RegionRecord | None]:
        """Returns one for each picture in order; None for a picture without."""


class StoredRegions:
    """Regions of a store whose images are named by path, by the rules of `ImageFinder`. Raises ValueError for a store
    without names of its classes."""

    def __init__(self, store: FeatureStore, *, named: str) -> None:
        classes, attributes = store.vocabulary["classes"], store.vocabulary["attributes"]
        if not classes:
            raise ValueError(f"{named}: this store has no names of its classes; extract it with --vocab")
        self.names = Vocabulary(tuple(classes), tuple(attributes or ()))
        self._store, self._finder = store, ImageFinder(store.ids())

    def find(self, name: str) -> str | None:
        return self._finder.find(name)

    def records(self, paths: Sequence[str]) -> list[RegionRecord | None]:
        found = [self._finder.find(path) for path in paths]
        return [None if image_id is None else self._store.get(image_id) for image_id in found]


class FoundRegions:
    """Regions of a detector that is built at the first picture, in exact mode: they do not depend on other pictures.

    Args:
        detector: "toy", or a folder of `roibeam detector train`.
    Raises:
        ValueError: for a detector that is not known, or has no names.
    """

    def __init__(self, detector: str, *, device: str = "auto") -> None:
        from roibeam.pipelines.extract.one_photo import requested_parts
        from roibeam.pipelines.extract.request import RequestedDetector

        self._requested = RequestedDetector(detector=detector, device=device)
        self._chosen, self._parts, self.names = requested_parts(self._requested)
        if not self.names.classes:
            raise ValueError(f"--detector {detector!r} has no names of its classes")
        self._built: Any = None

    def records(self, paths: Sequence[str]) -> list[RegionRecord | None]:
        from roibeam.extraction.engine.region_iterator import extract_regions
        from roibeam.extraction.photos.image_ref import ImageRef

        if self._built is None:
            self._built = self._build()
        refs = [ImageRef(f"{number}-{Path(path).stem}"[:200], path) for number, path in enumerate(paths)]
        outcomes = list(extract_regions(refs, self._built))
        return [outcome if isinstance(outcome, RegionRecord) else None for outcome in outcomes]

    def _build(self) -> Any:
        from roibeam.extraction.weights.loading import build_detector
        from roibeam.pipelines.common.compute import choose_device

        device = choose_device(self._requested.device, threads=self._requested.threads)
        return build_detector(
            self._parts["detector"], weights=self._chosen.weights, selection=self._parts["selection"],
            conventions=self._parts["conventions"], mode=self._requested.mode, device=device.name,
        )  # fmt: skip


_EDGE = 192  # pixels are looked at in this size at most
_FLAT = 4  # grey levels within 3x3 pixels
NAMES = (
    "log bytes a pixel", "aspect", "log pixels", "is jpeg", "is png", "jpeg table", "has alpha", "colours",
    "commonest colour", "four commonest colours", "flat area", "edges", "strong edges", "straight edges", "saturation",
    "bright area", "brightness spread", "entropy", "noise", "even border", "two-toned blocks",
)  # fmt: skip
_UNDECODABLE = "cannot be decoded"


def picture_statistics(data: bytes) -> np.ndarray:
    """(21,) float64, in the order of `NAMES`. Raises ValueError if it is no picture, or has more pixels than PIL opens
    without a warning."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
            if width * height > (Image.MAX_IMAGE_PIXELS or 0):
                raise ValueError(f"{_UNDECODABLE}: {width:,} x {height:,} pixels")
            kind, tables = image.format, getattr(image, "quantization", None)
            alpha = image.mode in ("RGBA", "LA") or "transparency" in image.info
            if kind == "JPEG":
                image.draft("RGB", (2 * _EDGE, 2 * _EDGE))
            scale = min(1.0, _EDGE / max(image.size))
            size = (max(round(image.size[0] * scale), 8), max(round(image.size[1] * scale), 8))
            # Nearest pixels: a mean of neighbours would make every flat picture look like a photo.
            pixels = np.asarray(image.convert("RGB").resize(size, Image.Resampling.NEAREST))
    except (OSError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise ValueError(f"{_UNDECODABLE}: {error}") from None
    table = float(np.mean(next(iter(tables.values())))) if tables else 0.0
    head = [
        np.log(len(data) / (width * height)), max(width, height) / min(width, height), np.log(width * height),
        kind == "JPEG", kind == "PNG", table, alpha,
    ]  # fmt: skip
    return np.array([*head, *_of_pixels(pixels)], np.float64)


def _of_pixels(pixels: np.ndarray) -> list[float]:
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    coarse = (pixels >> 4).astype(np.int64)
    counts = np.sort(np.bincount(((coarse[..., 0] << 8) | (coarse[..., 1] << 4) | coarse[..., 2]).ravel()))[::-1]
    kernel = np.ones((3, 3), np.uint8)
    reach = cv2.dilate(grey, kernel).astype(np.int16) - cv2.erode(grey, kernel)
    across, down = cv2.Sobel(grey, cv2.CV_32F, 1, 0), cv2.Sobel(grey, cv2.CV_32F, 0, 1)
    strength = np.hypot(across, down)
    edges = strength > 80
    straight = edges & (np.minimum(abs(across), abs(down)) < 0.1 * np.maximum(abs(across), abs(down)))
    saturation = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV)[..., 1]
    levels = np.bincount(grey.ravel(), minlength=256) / grey.size
    border = np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])
    return [
        float((counts > 0).sum()), counts[0] / grey.size, counts[:4].sum() / grey.size, float((reach <= _FLAT).mean()),
        float(edges.mean()), float((strength > 400).mean()), straight.sum() / max(edges.sum(), 1),
        float(saturation.mean()), float((grey > 225).mean()), float(grey.std()),
        float(-(levels[levels > 0] * np.log2(levels[levels > 0])).sum()),
        float(np.median(np.abs(cv2.Laplacian(grey, cv2.CV_32F)))),
        float((abs(border.astype(np.int16) - int(np.median(border))) <= _FLAT).mean()), _two_toned(grey),
    ]  # fmt: skip


def _two_toned(grey: np.ndarray) -> float:
    """Share of blocks of 8x8 pixels that are nearly all dark or light, and both: letters on a ground."""
    height, width = (edge // 8 * 8 for edge in grey.shape)
    blocks = (
        grey[:height, :width].reshape(height // 8, 8, width // 8, 8).swapaxes(1, 2).reshape(-1, 64).astype(np.int16)
    )
    low, high = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
    near = np.minimum(blocks - low, high - blocks) <= (high - low) // 8
    return float(((near.mean(axis=1) > 0.8) & ((high - low)[:, 0] > 90)).mean())


REGION_NAMES = ("regions", "sure regions", "best score", "mean of five scores", "pooled feature")
NAMES_WITH_REGIONS = (*NAMES, *REGION_NAMES)


def picture_features(data: bytes, record: RegionRecord | None, pooled: np.ndarray | None) -> np.ndarray:
    """(21,) or (26,) float64: statistics of the file, and with `pooled` of its regions."""
    statistics = picture_statistics(data)
    if pooled is None:
        return statistics
    value = float(pooled_feature(record, len(pooled) - 1) @ pooled[:-1] + pooled[-1])
    return np.append(statistics, [*region_facts(record), value])


def region_facts(record: RegionRecord | None) -> tuple[float, float, float, float]:
    """Returns the numbers of regions and of sure ones, the best score, and the mean of the five best."""
    if record is None or not record.num_regions:
        return 0.0, 0.0, 0.0, 0.0
    best = np.sort(record.class_scores)[::-1]
    return float(len(best)), float((best >= 0.5).sum()), float(best[0]), float(best[:5].mean())


def pooled_feature(record: RegionRecord | None, width: int) -> np.ndarray:
    """(width,) float64: the mean of all regions; zeros without any. Raises ValueError if the features have another
    width."""
    if record is None or not record.num_regions:
        return np.zeros(width)
    if record.features.shape[1] != width:
        raise ValueError(f"features of width {record.features.shape[1]}, the model was trained on {width}")
    return record.features.astype(np.float64).mean(axis=0)


KIND = "pictures"


class TrainedPictureJudge:
    """Judge of natural photos (step 5); `roibeam collect train-images` makes one.

    Attributes:
        threshold: a picture with a lower score is dropped as "not natural".

    Args:
        model: of `roibeam collect train-images`.
        regions: finds the regions of a picture, for a model that was trained with a store.
    Raises:
        ValueError: if the model needs regions and has none, or those of another detector.
    """

    def __init__(self, model: BoostedModel, regions: RegionSource | None = None) -> None:
        self._model = model
        self._regions = regions if model.pooled is not None else None
        self.threshold = model.threshold
        if model.pooled is not None:
            if regions is None:
                raise ValueError("this model of pictures was trained with regions: name the detector with --detector")
            check_names(model, regions)

    def score(self, pictures: Sequence[FetchedPicture]) -> list[float]:
        """Scores each picture 0..1, in order, whatever stands beside it; 0 for one that cannot be decoded."""
        paths = [picture.path for picture in pictures]
        records = [None] * len(paths) if self._regions is None else self._regions.records(paths)
        scores = []
        for path, record in zip(paths, records, strict=True):
            try:
                features = picture_features(Path(path).read_bytes(), record, self._model.pooled)
            except ValueError:  # the caller has decoded it; a file that no longer can be is no photo to keep
                scores.append(0.0)
                continue
            scores.append(float(self._model.score(features[None])[0]))
        return scores


def open_picture_judge(path: Path, regions: RegionSource | None = None) -> TrainedPictureJudge:
    model = read_boosted_model(path, kind=KIND, features=(NAMES, NAMES_WITH_REGIONS))
    try:
        return TrainedPictureJudge(model, regions)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def check_names(model: BoostedModel, regions: RegionSource) -> None:
    """Raises ValueError if the regions' classes are others than in training."""
    if model.needs.get("names") != regions.names.digest:
        raise ValueError("this model was trained on regions of another detector; name the same one, or train it anew")


_PICTURES = Unit("picture", "pictures")
_FOLDS = 5
_NO_FILE, _BROKEN, _NOT_STORED = "no such file", "cannot be decoded", "not in the store"  # why a picture is left out


@dataclass(frozen=True, eq=False)
class TrainedJudge:
    """The model that was written, and rows that could not be used, by reason."""

    model: BoostedModel
    left_out: dict[str, int]


def train_images(request: TrainImagesRequest) -> TrainedJudge:
    """Trains a judge of pictures and writes it; ValueError if something cannot be read, or too little is labelled."""
    check_new(request.out)
    check_extra()
    rows = read_labelled_images(request.labels)
    if request.store is None:
        return _train(request, rows, None)
    with FeatureStore(request.store) as store:
        return _train(request, rows, StoredRegions(store, named=request.store), store.feature_dim)


def _train(
    request: TrainImagesRequest, rows: list[tuple[Path, bool]], regions: StoredRegions | None, width: int = 0
) -> TrainedJudge:
    found, pooled_NF, left_out = [], [], dict.fromkeys((_NO_FILE, _BROKEN, _NOT_STORED), 0)
    kept: list[tuple[str, bool]] = []
    nothing = None if regions is None else np.zeros(width + 1)
    with Progress("reading pictures", len(rows), _PICTURES) as progress:
        for path, label in progress.counting(rows):
            record = None if regions is None else regions.records([str(path)])[0]
            if regions is not None and record is None:
                left_out[_NOT_STORED] += 1
                continue
            try:
                found.append(picture_features(path.read_bytes(), record, nothing))
            except (ValueError, OSError) as error:
                left_out[_NO_FILE if isinstance(error, FileNotFoundError) else _BROKEN] += 1
                continue
            kept.append((str(path), label))
            pooled_NF.append(pooled_feature(record, width))
    if not kept:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items() if count)
        raise ValueError(f"{request.labels}: none of its pictures can be used: {reasons}; the first is {rows[0][0]}")
    features, labels = np.array(found), np.array([label for _, label in kept])
    groups = [path for path, _ in kept]
    held = np.array([is_held_out(group) for group in groups])
    pooled = None
    if regions is not None:
        pooled, features[:, -1] = _pooled_direction(np.array(pooled_NF), labels, held)
    whole = LabelledRows(features, labels, groups, ["labelled"] * len(kept), np.ones(len(kept), bool))
    model = train_boosted(
        KIND, NAMES if regions is None else NAMES_WITH_REGIONS, whole, precision=request.precision,
        settings=BoostingSettings(trees=100, depth=3, seed=request.seed),
        needs={} if regions is None else {"names": regions.names.digest}, pooled=pooled,
    )  # fmt: skip
    model.write(request.out)
    return TrainedJudge(model, left_out)


def _pooled_direction(pooled_NF: np.ndarray, labels: np.ndarray, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(D + 1,) weights and offset of a logistic regression on the mean feature, and its (N,) log-odds.

    Training rows get those of a regression that was not trained on them: else the trees would trust them too much.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    mean, spread = pooled_NF[~held].mean(axis=0), pooled_NF[~held].std(axis=0) + 1e-6
    scaled = (pooled_NF - mean) / spread
    regression = LogisticRegression(C=0.01, max_iter=500)
    least = int(np.bincount(labels[~held].astype(int), minlength=2).min())
    if least < _FOLDS:
        raise ValueError(f"{least} pictures of one answer to train on, expected {_FOLDS} or more; label more pictures")
    values = np.empty(len(labels))
    values[~held] = cross_val_predict(regression, scaled[~held], labels[~held], cv=_FOLDS, method="decision_function")
    fitted = regression.fit(scaled[~held], labels[~held])
    weights = fitted.coef_[0] / spread
    direction = np.append(weights, fitted.intercept_[0] - mean @ weights)
    values[held] = pooled_NF[held] @ direction[:-1] + direction[-1]
    return direction, values
