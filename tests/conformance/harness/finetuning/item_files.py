"""Cases of data-set items: annotation files that they hold as text, and the leaves that an item is compared by."""

import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from harness.case_files import ArrayError
from harness.checks import Check, apart, close, equal, failed, guarded, within
from harness.model_case import ModelArrays
from harness.tolerances import VLBERT, Allclose
from roibeam.extraction.network.config import DetectorConfig
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.model.common.regions import elements_with_whole_image
from roibeam.model.inputs import VLBatch
from roibeam.model.vilbert.encoder import vilbert_small
from roibeam.model.visualbert.model import visualbert_small
from roibeam.model.vlbert.config import vlbert_small
from roibeam.pipelines.finetuning.run.group_batches import GroupBatches
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.systems.options import LONGEST, RELEASE_CUT, LayoutOptions
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer, load_tokenizer

FILES = "file/"
MAX_SIZE = 1 << 12  # pieces and regions that a case may ask for
BATCH = "batch"  # in the place of an item's number
ITEM_TOLERANCE = Allclose(1e-5)  # of boxes, features and targets (README, "One data-set file")
Item = Mapping[str, Any]  # leaf -> ours

_LEAF = re.compile(r"out/(?:([A-Za-z0-9_]+)\.)?(\d+(?:\.\d)?|batch)\.([a-z][a-z0-9_]*(?:\.\d)?)")
_SCALES = re.compile(r"SCALES (\d+)/(\d+)")
_SMALL: Mapping[str, Callable[..., Any]] = {
    "vlbert": vlbert_small, "vilbert": vilbert_small, "visualbert": visualbert_small
}  # fmt: skip


class ItemCase(ModelArrays):
    """The arrays of a case, and a folder in which its files stand as a user's would."""

    def __init__(self, path: Path, folder: Path) -> None:
        super().__init__(path)
        self.folder = folder

    @cached_property
    def tokenizer(self) -> CaptionTokenizer:
        return load_tokenizer(self.written("vocab.txt"))

    @property
    def is_first(self) -> bool:
        """Whether a case of ViLBERT's, or InterBERT's, is of the first release."""
        return "multitask" not in self.path.stem

    def one(self, end: str, start: str = FILES) -> str:
        """The array of a file whose name ends so; ValueError when there is not one."""
        found = [name for name in self.names if name.startswith(start) and name.endswith(end)]
        if len(found) != 1:
            raise ValueError(f"{self.path.name}: {len(found)} files {start}*{end}, expected one")
        return found[0]

    def written(self, end: str, start: str = FILES) -> str:
        """Path of such a file, under its own name."""
        name = self.one(end, start)
        return self.write(name, name.rpartition("/")[2])

    def write(self, name: str, file: str) -> str:
        """Path of a file with the text of an array, as it is."""
        path = self.folder / file
        path.write_bytes(self.text(name).encode("utf-8"))
        return str(path)

    def pickled(self, end: str, file: str = "") -> str:
        """Path of the pickle that such a file shows as json."""
        name = self.one(end)
        path = self.folder / (file or name.rpartition("/")[2].removesuffix(".as.json"))
        path.write_bytes(pickle.dumps(self.json(name), protocol=2))
        return str(path)

    def size(self, name: str, least: int = 2, options: Mapping[str, Any] | None = None) -> int:
        """A number of pieces or regions. Raises ArrayError for what is none, or beyond `MAX_SIZE`."""
        value = (self.options if options is None else options).get(name)
        if type(value) is not int or not least <= value <= MAX_SIZE:
            raise ArrayError("config", f"{name} must be a whole number from {least} to {MAX_SIZE}, got {value!r}")
        return value

    @property
    def edges(self) -> DetectorConfig:
        """The edges that photos are resized to. Raises ArrayError where the case says none."""
        scales = _SCALES.search(str(self.options.get("official")))
        if scales is None:
            raise ArrayError("config", 'says no "SCALES a/b", the edges that photos are resized to')
        return DetectorConfig(short_edge=int(scales[1]), long_edge=int(scales[2]))

    def pixels(self, image: str, *shape: int | None) -> np.ndarray:
        """(height, width, 3) uint8, B, G, R; R, G, B in the file."""
        pixels = self.take(f"image/{image}.rgb", *(shape or (None, None)), 3)
        if pixels.dtype != np.uint8:
            raise ArrayError(f"image/{image}.rgb", f"holds {pixels.dtype}, expected bytes")
        return np.ascontiguousarray(pixels[..., ::-1])

    def record(self, image: str, image_id: str) -> RegionRecord:
        """What a store would hold of an image, whose features, boxes and size the case has."""
        boxes = self.take_finite(f"image/{image}.boxes", None, 4).astype(np.float32)
        features = self.take_finite(f"image/{image}.features", len(boxes), None).astype(np.float32)
        width, height = (int(each) for each in self.take(f"image/{image}.size_wh", 2))
        whole = f"image/{image}.image_box_feature"
        image_feature = self.take_finite(whole, 1, features.shape[1])[0].astype(np.float32) if whole in self else None
        return RegionRecord(
            image_id=image_id,
            height=height,
            width=width,
            boxes=boxes,
            features=features,
            class_ids=np.zeros(len(boxes), np.uint16),
            class_scores=np.zeros(len(boxes), np.float32),
            image_feature=image_feature,
        )

    def batches(
        self, system: str, records: Mapping[str, RegionRecord], layout: LayoutOptions, asked: OutputSpec
    ) -> GroupBatches:
        """As a run of fine-tuning makes them; the store is `records`, by image."""
        config = _SMALL[system](
            vocab_size=self.tokenizer.vocab_size,
            region_feature_size=next(iter(records.values())).features.shape[1],
            max_position_embeddings=MAX_SIZE,
        )
        store = cast(FeatureStore, records)
        return GroupBatches(SYSTEMS[system], config, self.tokenizer, layout, asked, store, loss=None)

    def vilbert_batches(self, records: Mapping[str, RegionRecord], asked: OutputSpec) -> GroupBatches:
        """The same in the layout of both ViLBERT releases, the first of which cuts off the [SEP] of a long text."""
        layout = LayoutOptions(
            max_pieces=self.size("max_seq_length"),
            cut=RELEASE_CUT if self.is_first else LONGEST,
            max_regions=self.size("max_region_num") - 1,  # one slot is the whole image's
            region_order="file",
            whole_image="all",
        )
        return self.batches("vilbert", records, layout, asked)

    def vilbert_leaves(self, inputs: VLBatch) -> dict[str, np.ndarray]:
        """(rows, ...) of the image, whole image first, and of the text, as `vilbert_batches` gives them."""
        pieces, regions = self.size("max_seq_length"), self.size("max_region_num")
        image = elements_with_whole_image(inputs, count="all")
        found = region_leaves(image.features.numpy(), image.locations.numpy(), regions)
        texts = {"text": inputs.text_ids, "input_mask": inputs.text_mask.long(), "segment_ids": inputs.text_segments}
        found["image_mask"] = filled(image.mask.long().numpy(), regions, axis=1)
        return found | {leaf: filled(part.numpy(), pieces, axis=1) for leaf, part in texts.items()}

    # --- comparing ---

    def same_json(self, name: str, ours: Any) -> Check:
        """Whether a json text holds our value; numbers are equal to the last digit."""
        theirs = self.json(name)
        note = "" if ours == theirs else f"ours is {ours!r:.200}"
        return within(name, float(ours != theirs), 0, "must be equal", note)

    def leaves(self) -> dict[str, dict[str, dict[str, str]]]:
        """Mode, or "" where a case has none -> number of the item, or `BATCH` -> leaf -> the array's name."""
        found: dict[str, dict[str, dict[str, str]]] = {}
        for name in self.names:
            if match := _LEAF.fullmatch(name):
                found.setdefault(match[1] or "", {}).setdefault(match[2], {})[match[3]] = name
        return found

    def item_checks(self, named: Mapping[str, str], made: Item) -> Iterator[Check]:
        """Every leaf of an item: whole numbers and masks are equal, pixels a grey level apart, the rest within the
        README's tolerance.

        Args:
            named: leaf -> the array's name.
        """
        for leaf, name in named.items():
            want = self.take(name)
            if leaf not in made:
                yield failed(name, "no such output of ours")
            elif want.dtype.kind in "biu" or leaf == "masks":
                yield equal(name, made[leaf], want)
            elif leaf == "image":
                yield apart(name, made[leaf], want, VLBERT.grey_levels)
            else:
                yield close(name, made[leaf], want, ITEM_TOLERANCE)

    def mode_checks(self, mode: str, made: Callable[[], Callable[[str], Item]]) -> Iterator[Check]:
        """All items of a way to read the data set; what cannot be read is one miss.

        Args:
            made: gives what makes an item, by its number or `BATCH`.
        """

        def checks() -> Iterator[Check]:
            make = made()
            for number, named in self.leaves().get(mode, {}).items():
                yield from self.item_checks(named, make(number))

        yield from guarded(f"out/{mode}", checks)

    def list_checks(self, items: Sequence[Item]) -> Iterator[Check]:
        """The items of a case that reads its data set in one way."""
        for number, named in self.leaves().get("", {}).items():
            yield from self.item_checks(named, items[int(number)] if int(number) < len(items) else {})


def at(rows: Sequence[Any], number: int) -> Any:
    """Raises ValueError for an item that is not there."""
    if number >= len(rows):
        raise ValueError(f"item {number} of {len(rows)}")
    return rows[number]


def filled(values: np.ndarray, count: int, axis: int = 0) -> np.ndarray:
    """The values with zeros behind them, so that there are `count` in all."""
    width = [(0, 0)] * values.ndim
    width[axis] = (0, count - values.shape[axis])
    return np.pad(values, width)


def padded(rows: Sequence[np.ndarray], fill: float) -> np.ndarray:
    """(B, longest row, ...)."""
    found: np.ndarray = np.full((len(rows), max(map(len, rows), default=0), *rows[0].shape[1:]), fill, rows[0].dtype)
    for own, row in zip(found, rows, strict=True):
        own[: len(row)] = row
    return found


def cut_text(ids: np.ndarray, most: int) -> np.ndarray:
    """The first pieces, and [SEP] where some are lost: `most` of them."""
    return np.append(ids[: most - 1], ids[-1]) if len(ids) > most else ids


def bert_leaves(ids: np.ndarray, segments: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """A text as VisualBERT's release names it; one segment where none are given."""
    return {
        "bert_input_ids": ids,
        "bert_input_mask": np.ones(len(ids), np.int64),
        "bert_input_type_ids": np.zeros(len(ids), np.int64) if segments is None else segments,
    }


def region_leaves(features: np.ndarray, locations: np.ndarray, slots: int) -> dict[str, np.ndarray]:
    """(..., R, D) features and (..., R, 5) locations, all real, as both ViLBERT releases pad and these cases show
    them."""
    axis = features.ndim - 2
    return {
        "features_first8": filled(features[..., :8], slots, axis),
        "features_row_sum": filled(features.astype(np.float64).sum(axis=-1), slots, axis),
        "spatials": filled(locations, slots, axis),
        "image_mask": filled(np.ones(features.shape[:-1], np.int64), slots, axis),
    }
