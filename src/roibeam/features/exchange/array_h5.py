"""HDF5 with one array for all images, and which row is whose.

    layout     image_features   image_bb, pixels   spatial_features   pos_boxes: first row and last + 1 of each image
    adaptive   (M, D)           (M, 4)             (M, 6)             (N, 2)
    fixed      (N, K, D)        (N, K, 4)          (N, K, 6)          none

Written by jnhwkim/ban-vqa tools/adaptive_detection_features_converter.py and hengyuan-hu/bottom-up-attention-vqa
tools/detection_features_converter.py (read only here), read by their dataset.py. Beside train36.hdf5 lies
train36_imgid2idx.pkl, a pickled dict from the number of an image to its row. spatial_features are x1 y1 x2 y2 w h in
shares of the photo, whose size follows from them and the boxes.

"visdial", read only, is features (N, K, D), boxes (N, K, 4), image_ids or image_id (N,). Its photos are as large as the
far edges of their boxes (batra-mlp-lab/visdial-challenge-starter-pytorch data/extract_features_detectron.py).
Not held: classes, attributes, a feature of the whole image.
"""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import h5py
import numpy as np

from roibeam.features.exchange.check_report import count_losses
from roibeam.features.exchange.entry_file import usable_id
from roibeam.features.exchange.entry_record import FAR_EDGES, EntryError, float32_array, image_size, whole_number
from roibeam.features.exchange.formats import FeatureFormat
from roibeam.features.exchange.h5_files import H5File, h5_kind, h5_output, is_dataset, read_dataset
from roibeam.features.exchange.npy_files import plain_pickle, read_file
from roibeam.features.record.region_record import RegionRecord, box_numbers
from roibeam.features.safe_pickle import loads_pickle

_INDEX = "_imgid2idx.pkl"
_SAME_PX = 0.5  # between a box and its shares
_LARGEST_ROW = 2**40
_SMALLEST_ROW_BYTES, _ROWS_FREE = 16, 1000  # an image has more bytes than this, boxes alone
_ROWS = 64  # of a chunk: half a megabyte of features
_AHEAD_BYTES = 2**23  # what HDF5 may hold back of the arrays, and a chunk of each


class ArrayH5(H5File):
    """A file, opened by its name or by the folder that it lies in with its index; see `FeatureFile`."""

    def _open(self) -> None:
        found = _array_files(self.path)
        if len(found) != 1:
            raise ValueError(f"{self.path}: holds {len(found)} HDF5 files that have an {_INDEX}; name one, if any")
        self.path = found[0]
        super()._open()

    def _scan(self) -> None:
        root = self._file.id
        self._names = ("features", "boxes")
        if is_dataset(root, b"image_features"):
            self._names = ("image_features", "image_bb")
        for name in self._names:
            if not is_dataset(root, name.encode()):
                raise ValueError(f"{self.path}: has no {name}; features without boxes are no regions")
        try:
            self._ranges = read_dataset(root, b"pos_boxes")
            listed = [read_dataset(root, name) for name in (b"image_ids", b"image_id") if is_dataset(root, name)]
        except EntryError as error:
            raise ValueError(f"{self.path}: {error}") from None
        ids = listed[0] if listed else None
        most = _ROWS_FREE + self.path.stat().st_size // _SMALLEST_ROW_BYTES  # image_ids may inflate to 64 MiB
        is_list = ids is None or (ids.dtype.kind in "iu" and ids.size <= most)
        if not is_list or (self._ranges is not None and self._ranges.shape[1:] != (2,)):
            raise ValueError(f"{self.path}: image_ids must be integers (N,), pos_boxes first and last rows (N, 2)")
        self.layout = "adaptive" if self._ranges is not None else "fixed" if self._names[1] == "image_bb" else "visdial"
        rows = self._index() if ids is None else {row: b"%d" % each for row, each in enumerate(ids.flat)}
        self._numbers = self._take_ids(rows.items(), usable_id)
        self._first_record("an HDF5 file with one array for all images")
        self.details |= {} if is_dataset(root, b"spatial_features") else {"image_size": FAR_EDGES}

    def _index(self) -> dict[int, bytes]:
        """Row -> image id, of the file beside this one."""
        path = self.path.with_name(f"{self.path.stem}{_INDEX}")
        try:
            index = loads_pickle(read_file(path), source="its content")
        except ValueError as error:
            raise ValueError(f"{path}: {error}; {self.path.name} is read with this dict of ids and rows") from None
        rows = list(index.items() if isinstance(index, dict) else [(None, None)])
        usable = all(
            type(row) is int and 0 <= row < _LARGEST_ROW and type(key) in (int, str, bytes) for key, row in rows
        )
        if not usable or len({row for _, row in rows}) < len(rows):
            raise ValueError(f"{path}: is no dict from image ids to rows, each the row of one image")
        return {row: key if isinstance(key, bytes) else str(key).encode("utf-8", "surrogatepass") for key, row in rows}

    def _part(self, name: str, row: int) -> np.ndarray | None:
        """The rows of an image of an array."""
        if self._ranges is None:
            found = read_dataset(self._file.id, name.encode(), (row, row + 1))
            return None if found is None else found[0]
        if row >= len(self._ranges):
            raise EntryError("read", "missing row", f"is row {row} of the {len(self._ranges)} of pos_boxes")
        first, last = (whole_number(each, "pos_boxes", 0, _LARGEST_ROW) for each in self._ranges[row])
        return read_dataset(self._file.id, name.encode(), (first, last))

    def _read(self, entry: int, dtype: str) -> RegionRecord:
        row = self._numbers[entry]
        features = self._reading.features(self._part(self._names[0], row), self._names[0], columns=self._dim)
        boxes = float32_array(self._part(self._names[1], row), self._names[1], rows=len(features), columns=4)
        if features.size and not (features.any() or boxes.any()):
            raise EntryError("read", "never written", f"row {row} has zeros only: was its image never extracted?")
        sides = _size(self._part("spatial_features", row), boxes)
        return self._made(entry, sides, boxes, features, None, dtype)


def _size(spatial: np.ndarray | None, boxes: np.ndarray) -> tuple[int, int] | None:
    """Height and width of a photo by its boxes in pixels and in shares of it."""
    if spatial is None or not len(boxes):
        return None
    shares = float32_array(spatial, "spatial_features", rows=len(boxes), columns=6)[:, 2:4]
    with np.errstate(all="ignore"):
        sides = np.rint(boxes[:, 2:].max(axis=0) / shares.max(axis=0))  # by the far edge, where rounding matters least
        apart = float(np.abs(shares * sides - boxes[:, 2:]).max())
    if not apart <= _SAME_PX:
        raise EntryError("record", "bad value", f"spatial_features are {apart:.3g} px from image_bb in any photo")
    return image_size(dict(zip("wh", sides.tolist(), strict=True)).get, ("h", "w"))


def _array_files(path: Path) -> list[Path]:
    """The file itself, or those of a folder that have their index beside them."""
    if not path.is_dir():
        return [path]
    files = (index.with_name(index.name.removesuffix(_INDEX) + ".hdf5") for index in path.glob(f"*{_INDEX}"))
    return [file for file in files if file.is_file()]


class ArrayH5Format(FeatureFormat):
    name = "array-h5"
    title = "folder with one HDF5 array of all images and its index (ban-vqa; bua-vqa and VisDial are read)"
    layouts = ("adaptive",)
    file = ArrayH5
    is_file = goes_on = takes_empty = False
    numbered = True

    def looks_like(self, path: Path) -> bool:
        return any(h5_kind(each) == self.name for each in _array_files(path))

    def _write(self, records: Iterable[RegionRecord], path: Path, layout: str, losses: Counter[str]) -> None:
        """`train.hdf5` with its index. Features are float32."""
        index: dict[int | str, int] = {}
        made: dict[str, h5py.Dataset] = {}
        regions = 0
        with h5_output(path / "train.hdf5") as (file, reserve):
            for record in records:
                count_losses(losses, record, None)
                number = re.fullmatch("[0-9]{1,18}", record.image_id)
                index[int(number[0]) if number else record.image_id] = len(index)
                arrays = {
                    "image_features": record.features.astype(np.float32),
                    "image_bb": record.boxes,
                    "spatial_features": box_numbers(record.boxes, height=record.height, width=record.width),
                    "pos_boxes": np.array([[regions, regions := regions + record.num_regions]], np.int32),
                }
                reserve(sum(each.nbytes for each in arrays.values()) + _AHEAD_BYTES)
                for part, array in arrays.items():
                    if part not in made:
                        one = array.shape[1:]
                        made[part] = file.create_dataset(
                            part, (0, *one), array.dtype, chunks=(_ROWS, *one), maxshape=(None, *one)
                        )
                    made[part].resize(len(made[part]) + len(array), axis=0)
                    made[part][-len(array) :] = array
        # Python 2, in which the readers are written, knows pickles up to protocol 2.
        (path / f"train{_INDEX}").write_bytes(b"\x80\x02" + plain_pickle(index)[2:])


FORMAT = ArrayH5Format()
