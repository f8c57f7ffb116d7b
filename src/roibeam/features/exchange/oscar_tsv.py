"""Oscar's and VinVL's TSV files: one image per line, joined with the files that lie beside them.

    layout       features                              classes, boxes    read by (microsoft/Oscar), written by
    oscar        features.tsv: key, number of boxes,   predictions.tsv   oscar/datasets/oscar_tsv.py, run_retrieval.py
                 base64 of (n, 2054)
    captioning   feature.tsv: key, JSON of num_boxes   label.tsv         run_captioning.py
                 and features
    vqa          img_frcnn_feats.tsv: as features.tsv  label.tsv         run_vqa.py
    predictions  predictions.tsv: key, JSON            the same          microsoft/scene_graph_benchmark inference.py

Objects have rect (x1 y1 x2 y2 in pixels), class, conf, and in predictions.tsv feature, attributes and attr_scores, of
which the best is kept. Sizes are image_h and image_w there, or in hw.tsv. Names may have words in front, the same ones:
train.feature.tsv, train.label.tsv. 2054 values are 2048 and x1/W y1/H x2/W y2/H (x2-x1)/W (y2-y1)/H, without +1: they
become boxes, and features without them; where no size is known, in a photo of 1 x 1 pixels. Numbers that were computed
from the features in place of the boxes (michelecafagna26/vinvl-visualbackbone 03801c57) are refused.

Ids of classes are their places in the names that `use_names` is given, else in the sorted names of the file. Where all
names are numbers, as those of a store without names, they are the ids.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roibeam.features.exchange.butd_tsv import TsvFile, check_key, line_key
from roibeam.features.exchange.check_report import count_losses
from roibeam.features.exchange.entry_record import (
    EntryError,
    RegionClasses,
    base64_text,
    described,
    image_size,
    region_record,
    score_array,
    whole_number,
    without_classes,
)
from roibeam.features.exchange.export_output import ContinuedFile, remove_others
from roibeam.features.exchange.flat_json import FlatJsonError, flat_items, nested_objects
from roibeam.features.exchange.formats import FeatureFormat
from roibeam.features.folders.durable_files import sha256_of
from roibeam.features.record.fingerprint import ABSENT
from roibeam.features.record.region_record import BOX_NUMBERS, MAX_REGIONS, RegionRecord
from roibeam.messages import plural, printable

_FEATURES = {"oscar": "features.tsv", "captioning": "feature.tsv", "vqa": "img_frcnn_feats.tsv"}
_PREDICTIONS, _LABELS, _SIZES = "predictions.tsv", "label.tsv", "hw.tsv"
_PLACES = {"oscar": "imageid2idx.json", "vqa": "img_frcnn_feats_offset_map.json"}  # numbers, or places, of lines
_FIELDS = ("rect", "class", "conf", "attributes")
_SIDES, _HW = ("image_h", "image_w"), ("height", "width")
_VINVL_WIDTH = 2054
_SHARE_SLACK, _SUM_SLACK = 0.01, 1e-4
_SAME_PX = 1.0  # between a box and its six numbers
_OF_ANOTHER = "labels of another detector cannot be joined, so take that file away"
_MAX_NAMES, _LONGEST_NAME = 2**16 - 1, 200
_SNIFFED_BYTES = 4096
_BASE64 = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/='")


class _Objects(NamedTuple):
    """Objects of a line: each field with one value for all of them, or empty; and image_h and image_w."""

    number: int
    fields: dict[str, list[Any]]
    sides: dict[str, Any]


def _objects(data: bytes, *names: str) -> _Objects:
    """Values are checked and reduced one by one: a line of 64 MiB may hold lists of millions of numbers."""
    found, count = _Objects(0, {name: [] for name in names}, {}), 0
    try:
        for each in nested_objects(data, "objects", (*names, "attr_scores"), _SIDES):
            if isinstance(each, tuple):
                found.sides[each[0]] = each[1]
                continue
            count += 1
            if count > MAX_REGIONS:
                raise EntryError("decode", "too many objects", f"has over {MAX_REGIONS:,} objects")
            scores = each.pop("attr_scores", None)
            for name, value in each.items():
                if value is not None:
                    found.fields[name].append(_checked(name, value, scores))
    except FlatJsonError as error:
        raise EntryError("decode", "bad json", str(error)) from None
    for name, values in found.fields.items():
        if len(values) not in (0, count):
            raise EntryError("decode", "missing field", f"{len(values)} of {count} objects have {name}")
    return found._replace(number=count)


def _checked(name: str, value: Any, scores: Any) -> Any:
    """The value of a field; of attributes name and score of the best, "" and 0 where all scores are 0: names are
    arbitrary then."""
    if name == "attributes":
        if not isinstance(value, list) or not _are_numbers(scores) or len(value) != len(scores):
            raise EntryError("decode", "wrong type", "attributes must be names, and attr_scores as many numbers")
        pairs = [(score, each) for score, each in zip(scores, value, strict=True) if each != "__no_attribute__"]
        score, best = max(pairs, key=lambda pair: pair[0], default=(0, ""))
        return (_checked("class", best, None), score) if score > 0 else ("", 0)
    if name == "class":
        with suppress(UnicodeDecodeError):
            value = bytes(value[:1000]).decode("utf-8") if isinstance(value, memoryview) else value
        if not isinstance(value, str) or not 0 < len(value.strip()) <= _LONGEST_NAME or not value.isprintable():
            raise EntryError("decode", "bad name", f"class and attributes must be names, got {described(value)}")
        return value.strip()
    count = {"rect": 4, "conf": 1}.get(name)
    if count and not (_are_numbers(numbers := value if name == "rect" else [value]) and len(numbers) == count):
        what = f"{name} must be {'a list of 4 numbers' if count == 4 else 'a number'} in every object"
        raise EntryError("decode", "wrong type", f"{what}, got {str(value)[:40]}")
    return value


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(type(each) in (int, float) and abs(each) < 1e30 for each in values)


class _JoinedTsv(TsvFile):
    """A TSV whose .lineidx, where there is one, says where its lines begin; of labels and sizes beside features."""

    kind = "TSV of Oscar or VinVL"

    def _scan(self) -> None:
        self._index()
        path, count = self.path.with_suffix(".lineidx"), 0
        if not path.is_file() or not _is_inside(path):
            return
        begins = iter(zip(self._numbers, self._offsets, strict=True))
        line, offset = next(begins, (0, 0))
        with open(path, "rb") as index:
            while stated := index.readline(100):
                count += 1
                if count == line:
                    if stated.strip() != b"%d" % offset:
                        break
                    line, offset = next(begins, (0, 0))
        if count != self.num_lines or line:
            raise ValueError(
                f"{path}: does not fit {self.path.name}, whose line {line or self.num_lines:,} of {self.num_lines:,} "
                f"begins elsewhere or is not in it; is one of them cut? Copy both again, or delete the .lineidx"
            )

    def _parse(self, line: bytes, dtype: str) -> RegionRecord:
        raise AssertionError("lines of labels and sizes are no records")

    @contextmanager
    def line_of(self, image_id: bytes) -> Iterator[bytes]:
        """Text after the image's id in its only line, or equal ones; an EntryError meanwhile names this file."""
        entries = list(self._entries_of(image_id))
        lines = {self._bytes_of(entry).partition(b"\t")[2].strip() for entry in entries}
        try:
            if len(lines) != 1:
                found = f"{len(lines)} different lines" if lines else "no line"
                raise EntryError("read", "no line beside it", f"has {found}")
            if self._torn_line in entries and not next(iter(lines)).endswith((b"]", b"}")):
                raise EntryError("read", "torn line", "ends inside its line: no line end")
            yield lines.pop()
        except EntryError as error:
            raise EntryError(error.stage, error.reason, f"in {self.path.name} beside it: {error}") from None


class OscarTsv(_JoinedTsv):
    """A file, or the folder that it is in, opened; see `FeatureFile`."""

    _labels: _JoinedTsv | None = None
    _sizes: _JoinedTsv | None = None
    _width: int | None = None
    _numbered = _in_shares = False

    def _open(self) -> None:
        self.path = _main_file(self.path)
        super()._open()
        self._known: list[dict[str, int]] = [{}, {}]

    def _close(self) -> None:
        for file in filter(None, (self._labels, self._sizes)):
            file._close()
        super()._close()

    def _scan(self) -> None:
        super()._scan()
        labels = None if self.path.name.endswith(_PREDICTIONS) else _beside(self.path, _PREDICTIONS, _LABELS)
        sizes = _beside(self.path, _SIZES)
        self._labels = _JoinedTsv(labels) if labels else None
        self._sizes = _JoinedTsv(sizes) if sizes else None
        self._gather_names()
        record = self._first_record(
            "Oscar's or VinVL's (key, number of boxes, features; or key and JSON of features or objects)"
            + self._other_format()
        )
        self.details |= {
            "boxes": "normalised" if self._in_shares else "pixels",
            "classes": "class" if self._labels or self.layout == "predictions" else ABSENT,
            "attributes": ABSENT if record.attribute_ids is None else "attributes",
            # Other ones beside the same features make another store.
            "beside": {path.name: sha256_of(path) for path in (labels, sizes) if path},
        } | ({"image_size": ABSENT} if self._in_shares else {})

    def _gather_names(self) -> None:
        """All names of the file, so that ids do not depend on the order in which images are read."""
        file, names = self._labels or self, (set[str](), set[str]())
        for entry in range(len(file._ids)):
            with suppress(EntryError):  # becomes a dead letter when its turn comes
                fields = _objects(file._bytes_of(entry).partition(b"\t")[2], *_FIELDS).fields
                names[0].update(fields["class"])
                names[1].update(name for name, _ in fields["attributes"] if name)
            if max(map(len, names)) > _MAX_NAMES:
                raise ValueError(f"{file.path}: over {_MAX_NAMES:,} names of classes or attributes; another file?")
        for kind, each in enumerate(map(sorted, names)):
            if all(name.isascii() and name.isdigit() and int(name[:6]) <= _MAX_NAMES for name in each):
                self._known[kind] = {name: int(name) for name in each}
            else:
                self._use(kind, {name: place for place, name in enumerate(each)}, each)

    def _use(self, kind: int, known: dict[str, int], names: Sequence[str]) -> None:
        self._known[kind] = known
        self.names = (tuple(names), self.names[1]) if kind == 0 else (self.names[0], tuple(names))

    def use_names(self, classes: Sequence[str] | None, attributes: Sequence[str] | None) -> None:
        for kind, (given, what) in enumerate(((classes, "class"), (attributes, "attribute"))):
            if given is None or self.names[kind] is None:
                continue
            places = {name.partition(",")[0].strip(): place for place, name in enumerate(given)}
            here = {name: name.partition(",")[0].strip() for name in self._known[kind]}
            strange = [name for name in here if here[name] not in places]
            if strange:
                raise ValueError(
                    f"{self.path}: {len(strange):,} of its {len(here):,} names of {what} are not among the "
                    f"{len(given):,} that were given, such as {printable(strange[0], 60)!r}; give the list of the "
                    f"detector that it is of"
                )
            self._use(kind, {name: places[first] for name, first in here.items()}, given)

    def _parse(self, line: bytes, dtype: str) -> RegionRecord:
        key, rest = line_key(line), line.partition(b"\t")[2]
        layout, values, objects = self._values(rest)
        if self.layout not in ("", layout):
            raise EntryError("decode", "another layout", f"is of layout {layout}, the first line is of {self.layout}")
        num_regions = len(values)
        if objects is None and self._labels is not None:
            with self._labels.line_of(key) as text:
                objects = _objects(text, *_FIELDS)
                if objects.number != num_regions:
                    detail = f"has {objects.number} boxes, its features are of {num_regions}; {_OF_ANOTHER}"
                    raise EntryError("record", "other regions", detail)
        numbered = self._numbered if self._width_known else _has_box_numbers(values)
        if values.shape[1] == _VINVL_WIDTH and not numbered:
            raise _no_boxes("are not x1/W y1/H x2/W y2/H (x2-x1)/W (y2-y1)/H")
        features, shares = (values[:, :-BOX_NUMBERS], values[:, -BOX_NUMBERS:]) if numbered else (values, None)
        if shares is not None and num_regions:
            _check_shares(features, shares)
        size = self._size(key, objects)
        boxes = self._boxes(objects, shares, size, num_regions)
        classes = without_classes(num_regions) if objects is None else self._classes(objects)
        record = region_record(key.decode("utf-8"), *(size or (1, 1)), boxes, features, classes, dtype=dtype)
        if not self._width_known and num_regions:
            self._width_known, self.layout, self._numbered = True, layout, numbered
            self._width, self._in_shares = values.shape[1], size is None
        return record

    def _values(self, rest: bytes) -> tuple[str, np.ndarray, _Objects | None]:
        """Layout and (K, D) values of a line, numbers of boxes included, and the objects that it has itself."""
        fields: dict[str, Any] = {}
        if not rest.lstrip().startswith((b"{", b"[")):
            number, tab, text = rest.partition(b"\t")
            if not tab or b"\t" in text:
                raise EntryError("read", "wrong columns", "has other columns than key, number of boxes and features")
            layout = "vqa" if self.path.name.endswith(_FEATURES["vqa"][4:]) else "oscar"
            fields = {"num_boxes": number, "features": text.strip()}
        else:
            layout = "captioning"
            with suppress(FlatJsonError):
                fields.update(pair for pair in flat_items(rest) if pair[0] in ("num_boxes", "features"))
        if isinstance(fields.get("features"), (str, bytes, memoryview)):
            count = whole_number(fields.get("num_boxes"), "number of boxes", 0, MAX_REGIONS)
            return layout, self._reading.features(fields["features"], "features", rows=count, columns=self._width), None
        objects = _objects(rest, *_FIELDS, "feature")
        if objects.number and not objects.fields["feature"]:
            detail = "has no features in base64, or objects without feature (TEST.OUTPUT_FEATURE was not set)"
            raise EntryError("read", "missing field", detail)
        if not objects.number:
            return "predictions", np.zeros((0, self._width or 1), np.float32), objects
        rows, width = [], self._width
        for each in objects.fields["feature"]:
            rows.append(self._reading.features(each, "feature", rows=1, columns=width)[0])
            width = len(rows[0])
        return "predictions", np.stack(rows), objects

    def _size(self, key: bytes, objects: _Objects | None) -> tuple[int, int] | None:
        """Height and width of the photo; None for a file that has none."""
        if objects is not None and objects.sides:
            found = {name: each[0] if isinstance(each, list) and each else each for name, each in objects.sides.items()}
            size = image_size(found.get, _SIDES)
        elif self._sizes is not None:
            with self._sizes.line_of(key) as text:
                found = dict(zip(_HW, text[:100].decode("latin1").split(), strict=False))
                if text.startswith((b"[", b"{")):
                    fields = _objects(text if text.startswith(b"[") else b"[%s]" % text, *_HW).fields
                    found = {name: next(iter(values), None) for name, values in fields.items()}
                size = image_size(found.get, _HW)
        elif self._width_known and not self._in_shares:
            raise EntryError("read", "no size", "has no image_h and image_w, unlike the first image")
        else:
            return None
        if self._in_shares:
            raise EntryError("read", "other fields", "has height and width, unlike the first image")
        return size

    def _boxes(
        self, objects: _Objects | None, shares: np.ndarray | None, size: tuple[int, int] | None, count: int
    ) -> np.ndarray:
        rects = objects.fields["rect"] if objects is not None else []
        if not rects and shares is None and count:
            detail = "has no boxes: no six numbers behind its features, no rects beside them"
            raise EntryError("read", "no boxes", detail)
        if size is None and shares is None:
            how = "write hw.tsv beside it, lines of key and [{'height': 480, 'width': 640}]"
            raise EntryError("read", "no size", f"has rects in pixels, but height and width are not known; {how}")
        boxes = np.array(rects, np.float32).reshape(-1, 4)
        if shares is None:
            return boxes
        scale = np.array([1, 1] if size is None else size[::-1], np.float32)
        by_shares = (shares[:, :4].astype(np.float32).reshape(-1, 2) * scale).reshape(-1, 4)
        if not rects:
            return by_shares
        corners, shown = by_shares.reshape(-1, 2).astype(np.float64), boxes.reshape(-1, 2)
        if size is None:  # the one that fits best
            corners *= (corners * shown).sum(axis=0) / np.maximum((corners**2).sum(axis=0), 1e-9)
        if not (apart := float(np.abs(corners - shown).max())) <= _SAME_PX:
            detail = f"boxes by its features are up to {apart:.1f} pixels from its rects; are both, and sizes, of one"
            raise EntryError("record", "other boxes", f"{detail} detector, in one order? If not, {_OF_ANOTHER}")
        return by_shares if size is None else boxes

    def _classes(self, objects: _Objects) -> RegionClasses:
        classes, scores = without_classes(objects.number), objects.fields["conf"]
        if scores:
            classes = classes._replace(class_scores=score_array(np.array(scores, np.float64), "conf", objects.number))
        if objects.fields["class"]:
            classes = classes._replace(class_ids=self._ids_of(objects.fields["class"], 0))
        if objects.fields["attributes"]:
            names, values = zip(*objects.fields["attributes"], strict=True)
            found = score_array(np.array(values, np.float64), "attr_scores", objects.number)
            classes = classes._replace(attribute_ids=self._ids_of(names, 1), attribute_scores=found)
        return classes

    def _ids_of(self, names: Sequence[str], kind: int) -> np.ndarray:
        strange = next((name for name in names if name and name not in self._known[kind]), None)
        if strange is not None:
            detail = f"{strange[:60]!r} was no name of the file before; run the command again"
            raise EntryError("read", "changed", detail)
        return np.array([self._known[kind].get(name, 0) for name in names], np.uint16)


def _no_boxes(why: str) -> EntryError:
    what = "make the file again, or give features without them and label.tsv beside"
    return EntryError("record", "numbers of no boxes", f"the last six numbers of its features {why}; {what}")


def _has_box_numbers(values: np.ndarray) -> bool:
    """Whether the last six values of every row can be numbers of a box: width and height are those of the corners."""
    last = values[:, -BOX_NUMBERS:].astype(np.float64)
    if values.shape[1] <= BOX_NUMBERS or not np.isfinite(last).all() or not last[:, 4:].any():
        return False
    return bool(np.abs(last[:, 4:] - (last[:, 2:4] - last[:, :2])).max() <= _SUM_SLACK * max(1.0, np.abs(last).max()))


def _check_shares(features: np.ndarray, shares: np.ndarray) -> None:
    """Refuses numbers that are no shares, and those of wrappers that took the features for the boxes."""
    with np.errstate(invalid="ignore"):  # NaN, which the record refuses
        first, last = features[:, :4].astype(np.float64), shares[:, :4].astype(np.float64)
    for x, y in ((first[:, ::2], last[:, ::2]), (first[:, 1::2], last[:, 1::2])):
        factor = (x * y).sum() / max((x * x).sum(), 1e-300)
        if not factor > 0 or np.abs(y - factor * x).max() > 1e-3 * np.abs(y).max():
            break
    else:
        raise _no_boxes("were computed from the features in place of the boxes, as some wrappers of VinVL do")
    if not (last.min() >= -_SHARE_SLACK and last.max() <= 1 + _SHARE_SLACK and (last[:, 2:] >= last[:, :2]).all()):
        raise _no_boxes(f"reach from {last.min():.3g} to {last.max():.3g}, and are no boxes in shares of a photo")


def _is_inside(path: Path) -> bool:
    """Whether a file, links followed, is in its own folder."""
    return path.resolve().parent == path.parent.resolve()


def _front(name: str) -> str | None:
    """The words before a usual name of a file of features; None for another name."""
    endings = (*_FEATURES.values(), "frcnn_feats.tsv", _PREDICTIONS)
    return next((name.removesuffix(each) for each in endings if name.endswith(each)), None)


def _main_file(path: Path) -> Path:
    """The file of features: `path`, or the one in that folder; ValueError where there is none, or several."""
    if not path.is_dir():
        return path
    names = sorted(name for name in os.listdir(path) if _front(name) is not None)
    found = [name for name in names if not name.endswith(_PREDICTIONS)] or names
    if len(found) != 1 or not _is_inside(path / found[0]):
        got = f"{plural(len(found), 'file')} or links {', '.join(found[:3])}".rstrip()
        raise ValueError(f"{path}: expected one features.tsv or the like in it, got {got}; name the file itself")
    return path / found[0]


def _beside(path: Path, *names: str) -> Path | None:
    """The first of these files that lies beside one of features."""
    front = _front(path.name)
    front = f"{path.stem}." if front is None else front
    found = next((path.with_name(front + name) for name in names if path.with_name(front + name).exists()), None)
    if found is not None and not _is_inside(found):
        raise ValueError(f"{found}: is a link to a file outside the folder; put the file itself there")
    return found


class OscarTsvFormat(FeatureFormat):
    """See `FeatureFormat`. Written is a folder."""

    name = "oscar-tsv"
    title = "folder with a TSV of features and one of labels (Oscar, VinVL, scene_graph_benchmark)"
    layouts = ("oscar", "captioning", "vqa", "predictions")
    file = OscarTsv
    is_file = False

    def looks_like(self, path: Path) -> bool:
        """By the first line: key and a JSON object, or key, number of boxes and features."""
        cells: list[bytes] = []
        with suppress(OSError, ValueError):
            if (path := _main_file(path)).is_file():
                with open(path, "rb") as file:
                    cells = file.read(_SNIFFED_BYTES).partition(b"\n")[0].split(b"\t")
        if len(cells) == 2:
            return cells[1].lstrip().startswith(b"{")
        return len(cells) == 3 and cells[1].strip().isdigit() and _BASE64.issuperset(cells[2].strip())

    def _write(self, records: Iterable[RegionRecord], path: Path, layout: str, losses: Counter[str]) -> None:
        """Features are float32, lossless from float16 and bfloat16; boxes and scores are exact."""
        labels = _LABELS if layout in ("captioning", "vqa") else _PREDICTIONS
        held = ("classes", "attributes") if labels == _PREDICTIONS else ("classes",)
        lines = [*filter(None, [_FEATURES.get(layout)]), labels, _SIZES]
        names = [*lines, *map(_index_name, lines), *filter(None, [_PLACES.get(layout)])]
        remove_others(path, names)
        with ExitStack() as opened:
            for name in names:
                (path / name).touch()
            files = {name: opened.enter_context(ContinuedFile(path / name)) for name in names}
            offsets, number = dict.fromkeys(lines, 0), -1
            for number, record in enumerate(records):
                check_key(record.image_id)
                count_losses(losses, record, None, held=held)
                if layout in _PLACES:
                    place = offsets[lines[0]] if layout == "vqa" else number
                    entry = f"{', ' if number else '{'}{json.dumps(record.image_id)}: {place}"
                    files[_PLACES[layout]].write(entry.encode("ascii"))
                # Readers take one mark off a file's first bytes: an id that begins with one needs another before it.
                mark = "\ufeff" if not number and record.image_id.startswith("\ufeff") else ""
                for name in lines:
                    data = f"{mark}{record.image_id}\t{self._line(layout, name, record)}\n".encode()
                    files[name].write(data)
                    files[_index_name(name)].write(b"%d\n" % offsets[name])
                    offsets[name] += len(data)
            if layout in _PLACES:
                files[_PLACES[layout]].write(b"{}" if number < 0 else b"}")

    def _line(self, layout: str, name: str, record: RegionRecord) -> str:
        """Text after the key in a file."""
        if name == _SIZES:
            return json.dumps([{"height": record.height, "width": record.width}])
        if name == _FEATURES.get(layout):
            features = base64_text(record.with_box_numbers().features)
            if layout == "captioning":
                return json.dumps({"num_boxes": record.num_regions, "features": features})
            return f"{record.num_regions}\t{features}"
        objects = []
        for place, (rect, score) in enumerate(zip(record.boxes.tolist(), record.class_scores.tolist(), strict=True)):
            name_of_class = _named(self.classes, record.class_ids[place])
            each = {"rect": rect, "bbox_id": place, "class": name_of_class, "conf": score}
            if layout == "predictions":
                each["feature"] = base64_text(record.features[place])
            if name == _PREDICTIONS and record.attribute_ids is not None and record.attribute_scores is not None:
                each["attributes"] = [_named(self.attributes, record.attribute_ids[place])]
                each["attr_scores"] = [float(record.attribute_scores[place])]
            objects.append(each)
        sides = {"image_h": record.height, "image_w": record.width}
        more = {"relations": None} if layout == "predictions" else sides
        return json.dumps({"objects": objects} | more if name == _PREDICTIONS else objects)


def _index_name(name: str) -> str:
    return Path(name).with_suffix(".lineidx").name


def _named(names: Sequence[str] | None, number: Any) -> str:
    return str(number) if names is None or number >= len(names) else names[number]


FORMAT = OscarTsvFormat()
