"""Writer of a store from Python: features of any detector, as arrays or as records. docs/python.md is its page.

Captions are given with an image and kept beside its shard; at the end they become the table that an extraction writes
too (../annotations.py), so that training finds them. All of this stands in `features`: a machine that makes features
needs neither torch nor Beam to store them.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, Unpack, overload

from roibeam.features.folders.folder_protocol import store_lock
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.manifest import StoreManifest
from roibeam.features.writing.partial_store import PartialStore
from roibeam.features.writing.writer_input import RegionArrays, WriterSettings, caption_texts, checked_names
from roibeam.messages import plural

log = logging.getLogger(__name__)
DEFAULT_SHARD_BYTES = 256 * 2**20


class StoreWriter:
    """Writes a store shard by shard; use it in a `with` block.

        with StoreWriter("store", feature_space="my-detector", classes=["cat", "dog"]) as writer:
            writer.write("a", height=480, width=640, boxes=boxes, features=features, class_ids=ids, class_scores=scores)

    A shard is published when it is full, manifest.json when the block ends. After an exception in the block what was
    written is kept, in a shard of its own, and there is no (new) manifest.json; after a kill only the shard that was
    being written is lost. Open the folder with the same settings to go on: `image_id in writer` checks for an image. A
    finished store grows in the same way.

    Args:
        path: a folder on a disk: new, empty, or left by a writer with the same settings.
        feature_space: your name for what made the features; stores of one name and width can be trained on together.
            Lower-case letters, digits, `.`, `_` and `-`.
        classes, attributes: names in id order, background not among them; None when unknown. With names every image
            needs ids and scores.
        num_classes: foreground classes, where they have no names.
        dtype: features are stored in it, "float16" or "float32"; None: as they are given. A value beyond float16 is an
            error.
        shard_bytes: a shard ends with the image that brings it to so many bytes of arrays.
        photos: folder of the photos, where each image id is the path of its photo below it, without the extension. It
            is recorded, so that the photos are found and displayed; None when unknown.

    Attributes:
        manifest: of the finished store; None before the block has ended.

    Memory: about 120 bytes for each image of the store, and two LMDB transactions.

    Raises:
        ValueError: for settings that cannot be; by `with`, when the folder holds anything else, another process writes
            it, or a shard in it is damaged.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        feature_space: str,
        classes: Iterable[str] | None = None,
        num_classes: int | None = None,
        attributes: Iterable[str] | None = None,
        dtype: str | None = None,
        shard_bytes: int = DEFAULT_SHARD_BYTES,
        photos: str | os.PathLike[str] | None = None,
    ) -> None:
        if "://" in os.fspath(path):
            raise ValueError(f"{os.fspath(path)}: a store is written to a folder on a disk; copy it from there")
        self.path = Path(path)
        self.manifest: StoreManifest | None = None
        self._settings = WriterSettings(
            feature_space=feature_space,
            classes=checked_names(classes, "classes"),
            attributes=checked_names(attributes, "attributes"),
            num_classes=num_classes,
            dtype=dtype,
            shard_bytes=shard_bytes,
            photos=None if photos is None else os.path.abspath(photos),
        )
        self._open: PartialStore | None = None
        self._held = ExitStack()

    def __enter__(self) -> Self:
        if self._open is not None:
            raise ValueError(f"{self.path}: this writer is open already; make another one for another folder")
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; give a folder to write the store into")
        self.path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            stack.enter_context(store_lock(self.path))
            self._open = PartialStore(self.path, self._settings)
            self._held = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        assert self._open is not None
        opened, self._open = self._open, None
        with self._held:
            try:
                if kind is None:
                    self.manifest = opened.finish()
                else:
                    opened.keep()
            finally:
                opened.discard()

    @overload
    def write(self, record: RegionRecord, /, *, captions: str | Iterable[str] = ()) -> None: ...

    @overload
    def write(self, image_id: str, *, captions: str | Iterable[str] = (), **arrays: Unpack[RegionArrays]) -> None: ...

    def write(self, image_id: str | RegionRecord, *, captions: str | Iterable[str] = (), **arrays: Any) -> None:
        """Adds one image.

        Args:
            image_id: 1 to 511 bytes of UTF-8, beside its `arrays`; or a whole record in its place.
            captions: of the image; `roibeam pretrain` trains on them.
            arrays: see `RegionArrays`: height, width, boxes, features, and what else there is.
        Raises:
            ValueError: naming image and array, when one is not as it must be, or the image is there already. Nothing
                of it is written, and the writer can go on.
            OSError: when the folder cannot be written.
        """
        opened = self._opened()
        texts = caption_texts(_checked_id(image_id), captions)
        opened.put(opened.record(image_id, arrays), texts)

    def ids(self) -> Iterator[str]:
        """The images that are there, those of earlier writers first."""
        return self._opened().ids()

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._opened()

    def __len__(self) -> int:
        return len(self._opened())

    def __repr__(self) -> str:
        state = "finished" if self.manifest is not None else "not open" if self._open is None else f"{len(self)} images"
        return f"StoreWriter({str(self.path)!r}, {state})"

    def _opened(self) -> PartialStore:
        if self._open is None:
            raise ValueError(f"{self.path}: this writer is not open; use it in a with block")
        return self._open


def write_store(
    path: str | os.PathLike[str],
    records: Iterable[RegionRecord | Mapping[str, Any]],
    *,
    feature_space: str,
    classes: Iterable[str] | None = None,
    num_classes: int | None = None,
    attributes: Iterable[str] | None = None,
    captions: Mapping[str, str | Iterable[str]] | None = None,
    dtype: str | None = None,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    photos: str | os.PathLike[str] | None = None,
) -> StoreManifest:
    """Writes records, in any order, as a store; see `StoreWriter` for the other arguments.

    The same call goes on where it was stopped: images that are there with the same content are skipped.

    Args:
        records: each a `RegionRecord`, or a mapping of what `StoreWriter.write` takes, {"image_id": "a", ...}.
        captions: image id -> captions; those of a mapping in `records` come first.
    Returns:
        The manifest of the finished store.
    Raises:
        ValueError: as `StoreWriter`, and when an image is there already with other content.
    """
    left = dict(captions or {})
    with StoreWriter(
        path,
        feature_space=feature_space,
        classes=classes,
        num_classes=num_classes,
        attributes=attributes,
        dtype=dtype,
        shard_bytes=shard_bytes,
        photos=photos,
    ) as writer:
        opened = writer._opened()
        for given in records:
            record, texts = _given(opened, given)
            texts += caption_texts(record.image_id, left.pop(record.image_id, ()))
            if not opened.is_there(record, texts):
                opened.put(record, texts)
        missing = [image_id for image_id in left if image_id not in opened]
    if missing:
        log.warning("captions of %s, the first %r, have no record", plural(len(missing), "image"), missing[0])
    assert writer.manifest is not None
    return writer.manifest


def _given(opened: PartialStore, given: RegionRecord | Mapping[str, Any]) -> tuple[RegionRecord, tuple[str, ...]]:
    if isinstance(given, RegionRecord):
        return opened.record(given, {}), ()
    if not isinstance(given, Mapping) or "image_id" not in given:
        raise ValueError(f"a record must be a RegionRecord, or a mapping with an image_id, got {type(given).__name__}")
    arrays = {name: value for name, value in given.items() if name not in ("image_id", "captions")}
    image_id = _checked_id(given["image_id"])
    return opened.record(image_id, arrays), caption_texts(image_id, given.get("captions") or ())


def _checked_id(image: Any) -> str:
    if isinstance(image, RegionRecord):
        return image.image_id
    if not isinstance(image, str):
        raise ValueError(f"image id {image!r} must be a text, such as '{image}'")
    return image
