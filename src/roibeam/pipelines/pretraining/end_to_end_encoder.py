"""Region encoder of an end-to-end run: photos, an encoder, hidden regions, and a detector trained or evaluated beside.

Labelled photos train the rest of the detector beside the captions. The detector is evaluated with its first weights and
its last:

RUN/detector.json    digest and number of the photos, the reports `before` and `after`
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.region_encoder import RegionEncoder, started_encoder
from roibeam.extraction.training.batch_losses import DetectorHeads, load_heads, new_heads
from roibeam.extraction.training.rules import LossRules, SamplingRules
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.messages import plural, printable
from roibeam.model.common.fields import EndToEndChoices
from roibeam.model.end_to_end import EndToEndModel
from roibeam.pipelines.common.console.command_files import read_json_object
from roibeam.pipelines.common.console.progress import PHOTOS, Progress
from roibeam.pipelines.data.captions.corpus import CaptionTable
from roibeam.pipelines.data.labelled_photos import LabelledPhotos, check_same_names
from roibeam.pipelines.data.record_photos import PhotoError, RecordPhotos, lack_of_photos
from roibeam.pipelines.data.vocabulary import Vocabulary
from roibeam.pipelines.pretraining.requested_settings import LabelledRules, PhotoRules
from roibeam.pipelines.training.detector.evaluation import evaluate_photos
from roibeam.pipelines.training.detector.task import LabelledBatches
from roibeam.pipelines.training.model_files.encoder_settings import EncoderOptions, LossWeights
from roibeam.pipelines.training.model_files.joint_checkpoint import JointDetector, region_encoder_of
from roibeam.pipelines.training.run_folder.files import check_run_file, write_run_json
from roibeam.pipelines.training.run_folder.run_summary import DETECTOR_NAME


class LabelledStream:
    """Labelled photos that stand beside each caption: each caption of a run, by its number, brings the next ones.

    So batches of any size, on any number of processes, train on the same photos, and a run goes on with the next one.
    """

    def __init__(self, photos: LabelledBatches, per_caption: float) -> None:
        self.photos = photos
        self._per_caption = Fraction(per_caption).limit_denominator(1000)

    def beside(
        self, start_sample: int, *, batch_size: int, rank: int, num_ranks: int
    ) -> Iterator[list[tuple[int, int]]]:
        """Yields epoch and place of the photos beside each batch of captions, in the order of `SampleOrder.batches`."""
        first = start_sample + rank * batch_size
        number = self._before(first)
        places = self.photos.places(number, batch_size=1, rank=0, num_ranks=1)
        while True:
            begin, end = self._before(first), self._before(first + batch_size)
            for _ in range(begin - number):
                next(places)  # another process's
            yield [next(places)[0] for _ in range(end - begin)]
            number = end
            first += batch_size * num_ranks

    def most(self, batch_size: int) -> int:
        """Most photos beside a batch of so many captions."""
        return math.ceil(batch_size * self._per_caption)

    def _before(self, caption: int) -> int:
        """Photos that captions before number `caption` brought."""
        return math.floor(caption * self._per_caption)


logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class JudgedPhotos:
    """Held-out photos with labelled objects.

    Attributes:
        most: number of photos to take from the start; None for all.
    """

    photos: LabelledPhotos
    most: int | None = None

    @property
    def count(self) -> int:
        return len(self.photos.images[: self.most])


class DetectorChange:
    """Evaluates one detector, the current state of its heads and encoder, twice: before and after training."""

    def __init__(
        self, run_dir: Path, judged: JudgedPhotos, heads: DetectorHeads, encoder: RegionEncoder, *, device: torch.device
    ) -> None:
        self._path, self._judged, self._device = run_dir / DETECTOR_NAME, judged, device
        self._heads, self._encoder = heads, encoder

    def before(self) -> None:
        """Evaluates the first weights, unless a resumed run has done so already."""
        judged = {"labels": self._judged.photos.digest, "photos": self._judged.count}
        if self._path.is_file():
            check_run_file(self._path, "remove it, and the detector is evaluated again")
            found = read_json_object(self._path)
            if {name: found.get(name) for name in judged} == judged:
                return
        write_run_json(self._path, {**judged, "before": self._report("before training")})

    def after(self) -> Mapping[str, Any]:
        """Evaluates the last weights, and returns the content of the file."""
        found = {**read_json_object(self._path), "after": self._report("after training")}
        write_run_json(self._path, found)
        return found

    def _report(self, when: str) -> dict[str, Any]:
        detector = self._heads.to(self._device).detector(self._encoder.to(self._device))
        logger.info("judging the detector %s on %s", when, plural(self._judged.count, "photo"))
        with Progress(f"judging {when}", self._judged.count, PHOTOS) as progress:
            report = evaluate_photos(detector, self._judged.photos, max_images=self._judged.most, progress=progress.to)
        return report.as_json()


@dataclass(frozen=True, eq=False)
class DetectorPart:
    """The detector beside the encoder: its photos, held-out ones for its evaluation, and settings of its training.

    Attributes:
        vocabulary: names of its classes and attributes, if its folder has them.
        start: heads of the run that this one continues, in place of those of a weight file.
    """

    labelled: LabelledPhotos | None
    judged: JudgedPhotos | None = None
    rules: LabelledRules = field(default_factory=LabelledRules)
    weights: LossWeights = field(default_factory=LossWeights)
    sampling: SamplingRules = field(default_factory=SamplingRules)
    loss_rules: LossRules = field(default_factory=LossRules)
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    start: DetectorHeads | None = None

    def __post_init__(self) -> None:
        if self.rules.heads == "new" and self.labelled is None:
            raise ValueError("labelled.heads is 'new': heads that are drawn need photos to learn from; name --labels")
        if self.labelled is None or self.judged is None:
            return
        # By its boxes too: photos of two data sets may have one id.
        trained = {(image.image_id, image.boxes.tobytes()) for image in self.labelled.images}
        judged = self.judged.photos.images
        both = [image.image_id for image in judged if (image.image_id, image.boxes.tobytes()) in trained]
        if both:
            raise ValueError(
                f"{plural(len(both), 'photo')} of --judge-labels are trained on, such as {printable(both[0], 80)}: mAP "
                "on them is no held-out result; name another split"
            )

    def sized(self, config: DetectorConfig) -> DetectorConfig:
        """The config with the detector's number of classes and attributes; new heads take those of the labels."""
        if self.rules.heads != "new":
            return config
        assert self.labelled is not None
        classes, attributes = self.labelled.class_names, self.labelled.attribute_names
        return replace(config, num_classes=len(classes), num_attributes=len(attributes))

    def names(self, config: DetectorConfig) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of classes and attributes, in id order."""
        sets = list(self._sets().values())
        classes, attributes = sets[0].class_names, sets[0].attribute_names
        if self.rules.heads != "new":
            # Weight files carry no class names; use those of the labels unless others are given.
            numbers = tuple(f"attribute {number}" for number in range(config.num_attributes))
            classes = self.vocabulary.classes or classes
            attributes = self.vocabulary.attributes or attributes or numbers
        if (len(classes), len(attributes)) != (config.num_classes, config.num_attributes):
            raise ValueError(
                f"the labels have {len(classes)} classes and {len(attributes)} attributes, the detector "
                f"{config.num_classes} and {config.num_attributes}; --set labelled.heads=new draws heads for the labels"
            )
        for photos in sets:
            check_same_names(photos, classes, attributes, "that the encoder is of")
        return classes, attributes

    def heads(self, config: DetectorConfig, conventions: Conventions, weights: str, *, seed: int) -> DetectorHeads:
        """The heads as the run starts with them, of the file that the encoder starts from; config: of `sized`."""
        if self.rules.heads == "new":
            made = new_heads(config, conventions, seed=seed)
        elif self.start is not None:
            made = self.start
        else:
            try:
                made = load_heads(weights, config, conventions)
            except ValueError as error:
                raise ValueError(f"{error}; --set labelled.heads=new draws heads for the labels") from None
        return made.to(memory_format=torch.channels_last)  # a third less time on a CPU

    def trained_ids(self) -> Iterator[str]:
        return (image.image_id for image in (() if self.labelled is None else self.labelled.images))

    def notes(self) -> list[str]:
        """Notes of labels that are left out, with reasons."""
        return [
            f"left out of {option}: {count:,} x {reason}"
            for option, photos in self._sets().items()
            for reason, count in photos.left_out.items()
        ]

    def _sets(self) -> dict[str, LabelledPhotos]:
        """The photos by the option that names their labels."""
        sets = {"--labels": self.labelled, "--judge-labels": None if self.judged is None else self.judged.photos}
        return {option: photos for option, photos in sets.items() if photos is not None}

    def described(self) -> dict[str, Any]:
        """Settings that must match on resume. Empty if no detector is trained."""
        if self.labelled is None:
            return {}
        parts: dict[str, Any] = {
            "labelled": self.rules,
            "detection": self.weights,
            "detection_sampling": self.sampling,
            "detection_losses": self.loss_rules,
        }
        return {"labels": self.labelled.digest, **{name: asdict(part) for name, part in parts.items()}}


@dataclass(frozen=True)
class EndToEnd:
    """An end-to-end run's own settings.

    Attributes:
        images: folder of the photos; None takes the locations that the store recorded.
        start: encoder of the run that this one continues, in place of `weights`.
        detector: training and evaluation of the rest of the detector; None for neither.
    """

    config: DetectorConfig
    conventions: Conventions
    weights: str
    images: str | None = None
    choices: EndToEndChoices = field(default_factory=EndToEndChoices)
    photos: PhotoRules = field(default_factory=PhotoRules)
    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    start: RegionEncoder | None = None
    detector: DetectorPart | None = None

    def check_width(self, record: RegionRecord) -> None:
        """Raises ValueError if the encoder's features are not as wide as the store's, which rules and targets are made
        for."""
        width = record.features.shape[1]
        if width != self.config.feature_dim:
            raise ValueError(
                f"the region encoder makes features of width {self.config.feature_dim}, those of record "
                f"{record.image_id!r} have {width}; name the --detector that extracted the store, or another store"
            )

    def find_photos(self, store: FeatureStore, rows: CaptionTable) -> tuple[RecordPhotos, CaptionTable, dict[str, str]]:
        """The photos of captioned images, the captions that have one, and reasons for those without."""
        ids = rows.captioned_ids()
        photos = RecordPhotos(store, ids, self.images)
        missing = photos.missing()
        if missing:
            lacks = lack_of_photos(missing, len(ids), "captioned image")
            if len(missing) == len(ids) or not self.photos.skip_broken:
                other = "" if len(missing) == len(ids) else ", or leave them out with --skip-missing-photos"
                raise ValueError(f"{lacks}; name their folder with --photos{other}")
            logger.warning("%s; left out", lacks)
            rows = rows.without(missing)
        return photos, rows, missing

    def broken_photos(self, store: FeatureStore, photos: RecordPhotos, image_ids: Iterable[str]) -> dict[str, str]:
        """Photos that cannot be used, each with the reason; all of them are read."""
        found = {}
        for image_id in image_ids:
            meta = store.meta(image_id)
            try:
                photos.read(photos.place(image_id, (meta.height, meta.width)))
            except PhotoError as error:
                if not self.photos.skip_broken:
                    raise PhotoError(f"{error}; mend it, or leave such out with --skip-missing-photos") from None
                found[image_id] = str(error)
        return found

    def build_encoder(self) -> RegionEncoder:
        config = self.config if self.detector is None else self.detector.sized(self.config)
        return started_encoder(config, self.conventions, self.start or self.weights, **self.encoder.of_network())

    def build_joint(self, model: nn.Module, *, seed: int) -> tuple[EndToEndModel, DetectorHeads | None]:
        """The model with its encoder, and the detector's heads if they are trained or evaluated."""
        encoder, part = self.build_encoder(), self.detector
        if part is None:
            return EndToEndModel(model, encoder, self.choices), None
        classes, attributes = part.names(encoder.config)
        heads = part.heads(encoder.config, encoder.conventions, self.weights, seed=seed)
        if part.labelled is None:
            return EndToEndModel(model, encoder, self.choices), heads
        joint = JointDetector(
            model,
            encoder,
            self.choices,
            heads,
            class_names=classes,
            attribute_names=attributes,
            sampling=part.sampling,
            loss_rules=part.loss_rules,
            weights=part.weights,
        )
        return joint, heads

    def labelled_stream(self, *, seed: int) -> LabelledStream | None:
        """The photos that the detector is trained on; None without any."""
        part = self.detector
        if part is None or part.labelled is None:
            return None
        rules, config = part.rules, part.sized(self.config)
        photos = LabelledBatches(
            part.labelled, config, self.conventions, flip=rules.flip, short_edges=rules.short_edges, seed=seed
        )
        return LabelledStream(photos, rules.photos_per_caption)

    def detector_change(
        self, run_dir: Path, joint: EndToEndModel, heads: DetectorHeads, *, device: str
    ) -> DetectorChange | None:
        """Evaluates the detector before and after; None if no labelled photos are given for it."""
        judged = None if self.detector is None else self.detector.judged
        if judged is None:
            return None
        return DetectorChange(run_dir, judged, heads, region_encoder_of(joint), device=torch.device(device))

    def described(self) -> dict[str, Any]:
        """Settings that must match on resume, except those in the model's own config."""
        of_detector = {} if self.detector is None else self.detector.described()
        return {"photos": asdict(self.photos), **self.encoder.described(), **of_detector}

    def recorded(self, missing: Mapping[str, str]) -> dict[str, Any]:
        """Facts that may differ on resume."""
        labelled = None if self.detector is None else self.detector.labelled
        return {
            "labelled_photos": None if labelled is None else labelled.root,
            "images": self.images,
            "encoder_weights": self.weights,
            "recompute": self.encoder.recompute,
            "missing_photos": len(missing),
        }


def row_sizes(store: FeatureStore, rows: CaptionTable) -> np.ndarray:
    """(N, 3) int64: height and width of each caption's photo in pixels, and its number of regions."""
    found = (store.meta(image_id) for image_id in rows.captioned_ids())
    sizes = np.array([(each.height, each.width, each.num_regions) for each in found], np.int64)
    _, which = np.unique(rows.places, return_inverse=True)
    return sizes[which.reshape(-1)]
