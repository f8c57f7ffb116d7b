"""Pictures of one photo: equal bytes, or perceptual hashes that differ in few bits; and images of evaluation sets.

The hash (pHash) is 64 bits of the low frequencies of a DCT, which a smaller or recompressed copy shares. Images of
evaluation sets are recognised by id, bytes or hash, and must not be collected.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import combinations, pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import cv2
import numpy as np

from roibeam.extraction.photos.decode import DecodeError, decode_image
from roibeam.messages import plural
from roibeam.pipelines.collection.pairs import FetchedPicture
from roibeam.pipelines.common.console.progress import Progress
from roibeam.pipelines.common.image_ids import short_name
from roibeam.pipelines.data.held_out import HeldOut

NUM_BITS = 64
_SIDE, _LOW = 32, 8
_LEAST_BITS = 16  # half of the bits lie above the median, unless most frequencies are 0


def perceptual_hash(pixels_bgr: np.ndarray) -> str:
    """Computes the perceptual hash of a picture.

    Args:
        pixels_bgr: (H, W, 3) uint8.
    Returns:
        16 hex digits: which of the 8x8 lowest frequencies of 32x32 grey pixels lie above their median.
    """
    grey = cv2.resize(cv2.cvtColor(pixels_bgr, cv2.COLOR_BGR2GRAY), (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
    low = cv2.dct(grey.astype(np.float32))[:_LOW, :_LOW].ravel()
    # The first is the mean brightness, which tells nothing of the content.
    bits = low > np.median(low[1:])
    return np.packbits(bits).tobytes().hex()


def is_distinctive(phashes_N: np.ndarray) -> np.ndarray:
    """(N,) bool: whether a hash, (N,) uint64, distinguishes its picture. That of an even or smooth one does not:
    pictures of one colour have one hash, whatever the colour."""
    return np.bitwise_count(phashes_N) >= _LEAST_BITS


_AGREEING_BANDS = 2


def groups_of_same(phashes_N: np.ndarray, digests_N2: np.ndarray, *, max_bits: int) -> np.ndarray:
    """Returns for each picture the smallest index of a picture of its group; "same" is transitive.

    Args:
        phashes_N: (N,) uint64, perceptual hashes.
        digests_N2: (N, 2) uint64, of the pictures' bytes.
        max_bits: hashes that differ in at most so many of 64 bits are one photo's; hashes that do not distinguish
            pictures are not compared.
    Returns:
        (N,) int64.
    """
    leaders = np.arange(len(phashes_N))
    if not len(leaders):
        return leaders

    def find(index: int) -> int:
        while leaders[index] != index:
            leaders[index] = leaders[leaders[index]]
            index = int(leaders[index])
        return index

    def join(one: int, other: int) -> None:
        first, second = sorted((find(one), find(other)))
        leaders[second] = first

    usable = np.flatnonzero(is_distinctive(phashes_N))
    for values, axis, places in ((digests_N2, 0, leaders.copy()), (phashes_N[usable], None, usable)):
        _, first, which = np.unique(values, axis=axis, return_index=True, return_inverse=True)
        firsts = first[which.ravel()]
        for index in np.flatnonzero(firsts != np.arange(len(firsts))):
            join(int(places[index]), int(places[firsts[index]]))
    hashes, first = np.unique(phashes_N[usable], return_index=True)
    first = usable[first]
    for ones, others in _near_pairs(hashes, max_bits):
        for one, other in zip(first[ones].tolist(), first[others].tolist(), strict=True):
            join(one, other)
    return np.fromiter((find(index) for index in range(len(leaders))), np.int64, len(leaders))


def _near_pairs(hashes: np.ndarray, max_bits: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields places of different hashes at most so many bits apart, some at a time; a pair may come again.

    Hashes at most `max_bits` apart agree in two of `max_bits` + 2 bands of bits (pigeonhole). So only those that agree
    in two bands are compared, some five of ten million each time; the memory is that of a few copies of `hashes`.
    """
    if not max_bits:
        return
    num_bands = max_bits + _AGREEING_BANDS
    edges = [band * NUM_BITS // num_bands for band in range(num_bands + 1)]
    masks = [((1 << high) - 1) ^ ((1 << low) - 1) for low, high in pairwise(edges)]
    for bands in combinations(masks, _AGREEING_BANDS):
        keys = hashes & np.uint64(sum(bands))
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        places = np.arange(len(keys))
        for step in range(1, len(keys)):  # each with the one so many places behind it, while their keys are equal
            places = places[places + step < len(keys)]
            places = places[keys[places] == keys[places + step]]
            if not len(places):
                break
            ones, others = order[places], order[places + step]
            near = np.bitwise_count(hashes[ones] ^ hashes[others]) <= max_bits
            yield ones[near], others[near]


_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp"})


class EvaluationImages:
    """
    Args:
        rules: RULE=FILE each, as of `HeldOut`: images by the numbers in their names.
        folders: of images (COCO's or Flickr30k's test folder): by bytes and by perceptual hash.
        max_bits: hashes that differ in at most so many of 64 bits are one image. Even pictures, whose hash tells
            nothing, are known by their bytes alone.
    """

    def __init__(self, rules: Sequence[str], folders: Sequence[str], *, max_bits: int) -> None:
        self._rules = HeldOut(rules) if rules else None
        self._digests: set[str] = set()
        self._max_bits = max_bits
        hashes = [value for folder in folders for value in self._hashes(folder)]
        phashes = np.array(hashes, np.uint64)
        self._phashes = phashes[is_distinctive(phashes)]

    def names(self, picture: FetchedPicture) -> str | None:
        """Reason why this is an evaluation image, for people; None where it is none."""
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
        """Yields perceptual hashes of the images; keeps the digests of their bytes."""
        paths = sorted(
            str(path) for path in Path(folder).rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file()
        )
        if not paths:
            raise ValueError(f"--held-out-images {folder}: no image in it")
        with Progress(f"looking at {plural(len(paths), 'evaluation image')}", len(paths)) as progress:
            for number, path in enumerate(paths, start=1):
                data = Path(path).read_bytes()
                self._digests.add(hashlib.sha256(data).hexdigest())
                with suppress(DecodeError):  # its bytes are known all the same
                    yield int(perceptual_hash(decode_image(data)), 16)
                progress.to(number)
