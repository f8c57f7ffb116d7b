"""Records as named arrays that lose nothing, for the formats of other people's tools: parquet and WebDataset.

    boxes (K, 4) float32, pixels           class_ids (K,) uint16, class_scores (K,) float32
    features (K, D)                        attribute_ids (K,) uint16, attribute_scores (K,) float32
    image_feature (D,)                     class_distribution (K, C + 1) float16, background last
    of a store with top-k probabilities: top_k_class_ids (K, k) uint16, top_k_probabilities (K, k) float16,
    top_k_rest (K,) float16

bfloat16, which these tools lack, stands there as its bits in uint16. Each file also has the facts of its store as JSON:
names of classes and attributes, dtype, fingerprint, content digest, and which of how many shards it is. A file whose
facts were taken away by another tool is read like any stranger's. An export is one file, or a folder of such shards.
"""

import json
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import Any, Self

import numpy as np

from roibeam.features.annotations import Annotation
from roibeam.features.exchange.entry_file import FeatureFile
from roibeam.features.exchange.entry_record import (
    EntryError,
    RegionClasses,
    float32_array,
    float_array,
    id_array,
    image_size,
    score_array,
    without_classes,
)
from roibeam.features.exchange.formats import FeatureFormat
from roibeam.features.exchange.reading import Reading
from roibeam.features.folders.durable_files import open_regular_file
from roibeam.features.record.fingerprint import ABSENT, Fingerprint, has_classes, num_classes_of
from roibeam.features.record.region_drawing import name_of
from roibeam.features.record.region_record import FEATURE_DTYPES, RegionRecord, TopKDistribution
from roibeam.messages import plural

ARRAYS = (
    "boxes", "features", "class_ids", "class_scores", "attribute_ids", "attribute_scores", "class_distribution",
    "top_k_class_ids", "top_k_probabilities", "top_k_rest", "image_feature",
)  # fmt: skip
log = logging.getLogger(__name__)
_BFLOAT16 = FEATURE_DTYPES["bfloat16"]
MOST_FACTS = 2**24  # bytes
SIDES, TEXTS = ("height", "width"), ("captions", "labels")
_MOST_CLASSES = 2**16 - 1  # ids are uint16, and background has one


def arrays_of(record: RegionRecord, dtype: str | None = None) -> dict[str, np.ndarray]:
    """The arrays that a record has, by name.

    Args:
        dtype: of `features` and `image_feature`, key of `FEATURE_DTYPES`; None for the record's own.
    """
    found: dict[str, np.ndarray | None] = {name: getattr(record, name) for name in ARRAYS if "top_k" not in name}
    if isinstance(record.class_distribution, TopKDistribution):
        top = record.class_distribution
        found["class_distribution"] = None
        found |= {
            "top_k_class_ids": top.class_ids, "top_k_probabilities": top.probabilities, "top_k_rest": top.rest
        }  # fmt: skip
    for name in ("features", "image_feature"):
        values = found[name]
        if values is not None:
            values = values if dtype is None else values.astype(FEATURE_DTYPES[dtype], copy=False)
            found[name] = values.view(np.uint16) if values.dtype == _BFLOAT16 else values
    return {name: values for name, values in found.items() if values is not None}


class ExactFile(FeatureFile):
    """A file of records, or a folder of shards; see `FeatureFile`.

    Attributes:
        suffix: of the files.
    """

    layout = "regions"
    takes_empty = True
    suffix: str
    _facts: Mapping[str, Any] = {}
    _written: str | None = None  # dtype of the features in the file

    def __init__(self, path: Any, reading: Reading | None = None) -> None:
        self._paths = shard_files(Path(path), self.suffix)
        super().__init__(path, reading)

    def use_names(self, classes: Sequence[str] | None, attributes: Sequence[str] | None) -> None:
        for own, given in zip(self.names, (classes, attributes), strict=True):
            if own is not None and given is not None and tuple(given) != own:
                raise ValueError(f"{self.path}: has names of its own, the first {own[0]!r}; leave other ones out")

    def _take_facts(self, every: Sequence[tuple[Path, bytes | None]]) -> None:
        """Takes the facts of all files; ValueError when they do not go together, or shards are missing."""
        seen: set[int | None] = set()
        for path, data in every:
            facts = {} if data is None else json_object(data, MOST_FACTS)
            if facts is None or not all(type(facts.get(name, 0)) is int for name in ("shard", "shards")):
                raise ValueError(f"{path}: its facts of a store are damaged; export it again")
            shard = facts.pop("shard", None)
            if seen and (facts != self._facts or (shard is None) != (None in seen)):
                raise ValueError(f"{path}: is of another store than {every[0][0]}; give the shards of one export")
            self._facts = facts
            seen.add(shard)
        missing = self._facts.get("shards", 0) - len(seen)
        if missing > 0 and self.path.is_dir():
            first = next(number for number in count() if number not in seen)
            raise ValueError(
                f"{self.path}: {plural(missing, 'shard')} of {self._facts['shards']} missing, the first is number "
                f"{first}; the same export command writes what is missing"
            )
        try:
            given = self._facts.get("fingerprint")
            self.fingerprint = None if given is None else Fingerprint(**given)
            names = [self._facts.get(name) for name in ("classes", "attributes")]
            classes, attributes = (None if each is None else tuple(map(str, each)) for each in names)
            "".join([*(classes or ()), *(attributes or ())]).encode("utf-8")  # half a surrogate pair is no text
            self.names, self.dtype = (classes, attributes), self._facts.get("feature_dtype")
            if self.dtype is not None and self.dtype not in FEATURE_DTYPES:
                raise ValueError(f"no feature dtype {self.dtype!r}")
            self._written = self._facts.get("dtype") or self.dtype
            if self._written not in (self.dtype, "float32"):
                self.fingerprint = None  # rounded
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{every[0][0]}: its facts of a store cannot be used: {error}") from None

    def _look_around(self, first: RegionRecord, others: Sequence[int]) -> None:
        """The facts say what the numbers are; another entry costs a row group."""
        super()._look_around(first, () if self._facts else others)

    def _describe(self) -> None:
        """Fills `details` by the first record and the names of what the file has."""
        if self._facts and self._reading.background is not None:
            raise ValueError(f"{self.path}: records that background is last; leave --background out")
        self._seen: set[str] = set()  # arrays that some record has
        record = self._first_record("a record with boxes and features")
        known = self.fingerprint is None or has_classes(self.fingerprint)
        named = next((name for name in ("class_ids", "class_distribution") if name in self._seen and known), ABSENT)
        self.details["classes"] = named
        self.details["attributes"] = "attribute_ids" if known and "attribute_ids" in self._seen else ABSENT
        top = record.class_distribution
        if top is not None and not self._facts:
            self.details |= self._reading.details(record)
        elif top is not None:
            number = top.num_classes if isinstance(top, TopKDistribution) else top.shape[1] - 1
            self.details |= {"background": "last", "num_classes": number}
        elif self.fingerprint is not None:
            self.details["num_classes"] = num_classes_of(self.fingerprint)
        if "top_k_rest" in self._seen and top is None:
            log.warning("%s: does not record the number of classes, so top-k probabilities are left out", self.path)

    def _record(
        self, entry: int, told: Mapping[str, Any], arrays: Mapping[str, np.ndarray], dtype: str
    ) -> RegionRecord:  # fmt: skip
        """Args: told: has `SIDES`; arrays: see `arrays_of`; EntryError for what they lack or hold wrongly."""
        missing = next((name for name in ("boxes", "features") if name not in arrays), None)
        if missing:
            raise EntryError("decode", "missing array", f"has no {missing}")
        if flat := next((name for name, values in arrays.items() if not np.ndim(values)), None):
            raise EntryError("decode", "wrong shape", f"{flat} is one number, an array is expected")
        self._seen |= arrays.keys()
        boxes = float32_array(arrays["boxes"], "boxes", columns=4)
        rows = len(boxes)
        features = self._features(arrays["features"], "features", rows)
        whole = arrays.get("image_feature")
        if whole is not None:
            whole = self._features(whole.reshape(1, -1), "image_feature", 1)[0]
        classes = self._classes(arrays, rows)
        if "class_ids" in arrays:
            ids, has_rows = id_array(arrays["class_ids"], "class_ids", rows), classes.class_distribution is not None
            by = self._reading
            ids = ids if self._facts else by.stated_ids(ids, classes) if has_rows else by.class_ids(ids, "class_ids")
            classes = classes._replace(class_ids=ids)
            if "class_scores" in arrays:
                classes = classes._replace(class_scores=score_array(arrays["class_scores"], "class_scores", rows))
        if "attribute_ids" in arrays:
            scores = score_array(arrays.get("attribute_scores"), "attribute_scores", rows)
            ids = id_array(arrays["attribute_ids"], "attribute_ids", rows)
            classes = classes._replace(attribute_ids=ids, attribute_scores=scores)
        return self._made(entry, image_size(told.get, SIDES), boxes, features, classes, dtype, whole)

    def _features(self, values: np.ndarray, name: str, rows: int) -> np.ndarray:
        if self._written == "bfloat16" and values.dtype == np.uint16:
            values = values.view(_BFLOAT16).astype(np.float32)
        else:
            values = self._reading.typed(values, name)
        columns = self._dim if name == "features" and self._dim else values.shape[-1]
        return float_array(values, name, rows=rows, columns=columns)

    @staticmethod
    def _annotations_of(image_id: str, told: Mapping[str, Any]) -> Iterator[Annotation]:
        """Captions and labels among what the file says of an image, where it has any."""
        given = (told.get(name) for name in TEXTS)
        lists = ([each] if isinstance(each, str) else each if isinstance(each, list) else [] for each in given)
        # Half a surrogate pair, which JSON can hold, is no text.
        captions, labels = (
            tuple(each.encode("utf-8", "replace").decode() for each in texts if isinstance(each, str))
            for texts in lists
        )
        if captions or labels:
            yield Annotation(image_id, captions, labels)

    def _classes(self, arrays: Mapping[str, np.ndarray], rows: int) -> RegionClasses:
        """By rows of probabilities, where there are some; the record checks the shapes."""
        none, full = without_classes(rows), arrays.get("class_distribution")
        if full is not None and not self._facts:
            full = float32_array(full, "class_distribution", rows=rows, columns=self._columns or full.shape[-1])
            return self._reading.classes(full, "class_distribution", background="last")
        if full is not None:
            full = float_array(full, "class_distribution", rows=rows, columns=full.shape[-1])
            return none._replace(class_distribution=full.astype(np.float16))
        names = ("top_k_class_ids", "top_k_probabilities", "top_k_rest")
        top, number = [arrays[name] for name in names if name in arrays], self._facts.get("num_classes")
        if not top or number is None:
            return none
        if [each.dtype.kind for each in top] != ["u", "f", "f"] or type(number) is not int or number > _MOST_CLASSES:
            raise EntryError("decode", "missing array", "its top-k probabilities are not whole")
        ids, probabilities, rest = top
        if ids.max(initial=0) > number:
            raise EntryError("record", "bad value", f"top_k_class_ids has {ids.max()}, of {number} classes")
        halves = probabilities.astype(np.float16), rest.astype(np.float16)
        kept: Any = TopKDistribution(ids.astype(np.uint16), *halves, number)
        return none._replace(class_distribution=kept)


def shard_files(path: Path, suffix: str) -> list[Path]:
    """The file, or the shards in a folder, by name; ValueError where there is none."""
    if not path.is_dir():
        return [path]
    found = sorted(each for each in path.iterdir() if each.suffix == suffix and not each.name.startswith("."))
    if not found:
        raise ValueError(f"{path}: holds no {suffix} file")
    outside = next((each for each in found if each.is_symlink() and each.resolve().parent != path.resolve()), None)
    if outside is not None:
        raise ValueError(f"{outside}: is a link to a file outside the folder; not followed")
    return found


def json_object(data: bytes, most: int) -> dict[str, Any] | None:
    """None for what is none, or has more bytes."""
    try:
        found = json.loads(data) if len(data) <= most else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


class ExactFormat(FeatureFormat):
    """See `FeatureFormat`.

    Attributes:
        facts: of the store, written into each file.
        texts: captions and labels of an image id.
        dtype: of the features in the file; None for that of the records.
    """

    layouts = ("regions",)
    facts: Mapping[str, Any] = {}
    texts: Callable[[str], Annotation] | None = None
    dtype: str | None = None

    def looks_like(self, path: Path) -> bool:
        try:
            first = shard_files(path, self.suffixes[0])[0]
            with open_regular_file(first) as file:
                return self._begins(file, first)
        except (OSError, ValueError):
            return False

    @abstractmethod
    def _begins(self, file: BufferedReader, path: Path) -> bool:
        """Whether a file is one of these; OSError or ValueError where it is none."""

    def of_store(
        self, facts: Mapping[str, Any], texts: Callable[[str], Annotation] | None, dtype: str | None
    ) -> Self:  # fmt: skip
        """The same, for the records of a store."""
        found = self.with_names(facts.get("classes"), facts.get("attributes"))
        found.facts, found.texts, found.dtype = facts, texts, dtype
        return found

    def _facts_by(self, first: RegionRecord) -> bytes:
        """JSON for a file whose first record this is."""
        names = {"classes": self.classes, "attributes": self.attributes}
        facts: dict[str, Any] = {"feature_dtype": first.feature_dtype, **names}
        if isinstance(first.class_distribution, TopKDistribution):
            facts["num_classes"] = first.class_distribution.num_classes
        return json.dumps(facts | dict(self.facts), sort_keys=True).encode("ascii")

    def _arrays_of(self, record: RegionRecord) -> dict[str, np.ndarray]:
        found, given = arrays_of(record, self.dtype), self.facts.get("fingerprint")
        if given is not None and not has_classes(Fingerprint(**given)):
            del found["class_ids"], found["class_scores"]  # zeros
        return found

    def _words_of(self, record: RegionRecord) -> dict[str, Any]:
        """Fields outside the arrays: id, size, and names and texts, None where there are none."""
        found: dict[str, Any] = {"image_id": record.image_id, "width": record.width, "height": record.height}
        kinds = ("class", record.class_ids, self.classes), ("attribute", record.attribute_ids, self.attributes)
        for (kind, ids, names), name in zip(kinds, ("classes", "attributes"), strict=True):
            found[name] = (
                None if ids is None or names is None else [name_of(each, names, kind) for each in ids.tolist()]
            )
        texts = Annotation(record.image_id, (), ()) if self.texts is None else self.texts(record.image_id)
        return found | {name: list(getattr(texts, name)) for name in TEXTS}
