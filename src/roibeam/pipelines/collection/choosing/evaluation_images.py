"""Images that results are reported on must not be collected: known by their ids, their bytes, their perceptual hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np

from roibeam.extraction.photos.decode import DecodeError, decode_image
from roibeam.features.counted import counted
from roibeam.pipelines.collection.pair import Picture
from roibeam.pipelines.collection.pictures.perceptual_hash import perceptual_hash, tells_something
from roibeam.pipelines.common.console.progress import Progress
from roibeam.pipelines.common.files.image_ids import short_name
from roibeam.pipelines.data.held_out import HeldOut

_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp"})


class EvaluationImages:
    """
    Args:
        rules: RULE=FILE each, as of `HeldOut`: images by the numbers in their names.
        folders: of images (COCO's or Flickr30k's test folder): by bytes and by perceptual hash.
        max_bits: hashes that differ in at most so many of 64 bits are one image. Even pictures, whose hash tells
            nothing, are known by their bytes alone.
    Raises:
        ValueError: if a file is no such file, or a folder holds no image.
    """

    def __init__(self, rules: Sequence[str], folders: Sequence[str], *, max_bits: int) -> None:
        self._rules = HeldOut(rules) if rules else None
        self._digests: set[str] = set()
        self._max_bits = max_bits
        hashes = [value for folder in folders for value in self._hashes(folder)]
        phashes = np.array(hashes, np.uint64)
        self._phashes = phashes[tells_something(phashes)]

    def names(self, picture: Picture) -> str | None:
        """Why this is an evaluation image, for people; None where it is none."""
        if self._rules is not None:
            name = short_name(unquote(urlsplit(picture.url).path).rpartition("/")[2])
            found = self._rules.scan([name], None).rules if name else ()
            hit = next((rule.rule for rule in found if rule.found), None)
            if hit is not None:
                return f"{name} is held out by {hit}"
        if picture.sha256 in self._digests:
            return "the very file of an evaluation image"
        differing = np.bitwise_count(self._phashes ^ np.uint64(int(picture.phash, 16)))
        return "looks like an evaluation image" if (differing <= self._max_bits).any() else None

    def _hashes(self, folder: str) -> Iterator[int]:
        """Perceptual hashes of the images; their bytes are noted beside."""
        paths = sorted(
            str(path) for path in Path(folder).rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file()
        )
        if not paths:
            raise ValueError(f"--held-out-images {folder}: no image in it")
        with Progress(f"looking at {counted(len(paths), 'evaluation image')}", len(paths)) as progress:
            for number, path in enumerate(paths, start=1):
                data = Path(path).read_bytes()
                self._digests.add(hashlib.sha256(data).hexdigest())
                with suppress(DecodeError):  # its bytes are known all the same
                    yield int(perceptual_hash(decode_image(data)), 16)
                progress.to(number)
