"""The photos that a store's records were made of: where they lie, and their pixels as the records' boxes mean them."""

from __future__ import annotations

import io
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from roibeam.extraction.photos.decode import DecodeError, decode_image
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.shard.manifest import LOCATIONS_NAME
from roibeam.features.store import FeatureStore
from roibeam.messages import plural
from roibeam.pipelines.common.image_ids import ID_RULES
from roibeam.pipelines.common.locations import location_exists, parse_location, read_image
from roibeam.pipelines.common.remote_files import is_url
from roibeam.pipelines.common.scratch_database import ScratchDatabase
from roibeam.pipelines.data.datasets.photo_folders import Listing, list_folder
from roibeam.pipelines.data.image_table import Ambiguous, ImageFinder
from roibeam.pipelines.data.shard_plan import planned_members, read_plan
from roibeam.pipelines.data.source_images import archive_images, look_into

_ORIENTATIONS = ("applied", "ignored")
logger = logging.getLogger(__name__)


class PhotoError(ValueError):
    """A photo that is missing, cannot be decoded, or is not the one that its record was made of. One line."""


@dataclass(frozen=True)
class PhotoLocation:
    """Location of a record's photo; sent to the thread that reads it.

    Attributes:
        location: as `roibeam.pipelines.common.locations` takes it.
        image_hw: height and width of the decoded photo as the record has them, pixels.
    """

    image_id: str
    location: str
    image_hw: tuple[int, int]


class RecordPhotos:
    """Finds photos by image id and reads them. The places are in a scratch database, not in memory.

    Args:
        store: of their records; its settings have how photos were turned (EXIF orientation).
        image_ids: of the photos, each once.
        folder: where photos lie, in files or in tars and zips, found by the rules of `ImageFinder` (id, path, COCO or
            Flickr number); None takes the locations that the store's plan recorded, or those of the stores that it was
            copied from, or the folder that was named when the store was written.
    Raises:
        ValueError: when the folder is none, or the store has none and none is given.
    """

    def __init__(self, store: FeatureStore, image_ids: Iterable[str], folder: str | None = None) -> None:
        recorded_photos = recorded_locations(store) if folder is None else None
        if folder is None and recorded_photos is None and (recorded := _folder_of_written_store(store)) is not None:
            if not os.path.isdir(recorded):
                raise ValueError(
                    f"{recorded}: the photos of {store.path} were here when it was written; name where they are now"
                )
            folder = recorded
        if folder is None:
            if recorded_photos is None:
                raise ValueError(
                    f"{store.path} does not record where its photos are (an imported or staged store, or a copy of "
                    "one); name their folder with --photos"
                )
            requested = set(image_ids)
            rows: Iterator[tuple[str, str | None, str]] = (
                (image_id, location, f"no file {location}; name the folder of the photos with --photos")
                for image_id, location in recorded_photos
                if image_id in requested
            )
        else:
            listing = list_folder(folder)
            source = store.manifest.config.get("source")
            rule = source.get("id_rule") if isinstance(source, dict) else None
            rows = _found_in(listing, image_ids, rule if rule in ID_RULES else ID_RULES[0])
        conventions = store.manifest.config.get("detector", {}).get("conventions", {})
        self._orientation: str | None = conventions.get("exif_orientation")
        self._table = ScratchDatabase("CREATE TABLE photos (id TEXT PRIMARY KEY, location TEXT, why TEXT)")
        self._table.add("INSERT OR IGNORE INTO photos VALUES (?, ?, ?)", map(_checked, rows))

    def missing(self) -> dict[str, str]:
        """Image ids without a photo, each with why: what can be known without reading photos."""
        return dict(self._table.rows("SELECT id, why FROM photos WHERE location IS NULL ORDER BY rowid"))

    @classmethod
    def of_all(cls, store: FeatureStore, image_ids: Iterable[str], folder: str | None) -> RecordPhotos:
        """The photos of all these images. Raises ValueError when one is missing."""
        ids = list(image_ids)
        photos = cls(store, ids, folder)
        if missing := photos.missing():
            raise ValueError(f"{lack_of_photos(missing, len(ids))}; name their folder with --photos")
        return photos

    def place(self, image_id: str, image_hw: tuple[int, int]) -> PhotoLocation:
        """The photo of a record; PhotoError when there is none."""
        found = self._table.rows("SELECT location, why FROM photos WHERE id = ?", (image_id,))
        location, why = found[0] if found else (None, "it is in no plan")
        if location is None:
            raise PhotoError(f"image {image_id!r}: {why}")
        return PhotoLocation(image_id, location, image_hw)

    def read(self, place: PhotoLocation) -> np.ndarray:
        """The photo in the size of its record, turned as it was there; any thread may call it.

        Returns:
            (height, width, 3) uint8, channel order B, G, R.
        Raises:
            PhotoError: naming the file, when it is missing, broken, or of another size than in the record.
            SourceGoneError: when the whole folder has gone.
        """
        try:
            data = read_image(os.path.dirname(_file_of(place.location)), place.location)
            for orientation in _ORIENTATIONS if self._orientation is None else (self._orientation,):
                pixels = decode_image(data, exif_orientation=orientation)
                if pixels.shape[:2] == place.image_hw:
                    return pixels
        except OSError as error:
            raise PhotoError(f"{place.location}: {error.strerror or error}, the photo of {place.image_id!r}") from None
        except DecodeError as error:
            raise PhotoError(f"{place.location}: {error.reason}: {error}, the photo of {place.image_id!r}") from None
        got, want = (f"{width} x {height}" for height, width in (pixels.shape[:2], place.image_hw))
        raise PhotoError(
            f"{place.location}: {got} pixels, the record {place.image_id!r} is of a photo of {want}; its boxes would "
            f"cut out other things"
        )


def lack_of_photos(missing: Mapping[str, str], num_images: int, what: str = "image") -> str:
    """Number of images without a photo, for errors, with the first of them (id -> why)."""
    image_id, why = next(iter(missing.items()))
    return f"{plural(len(missing), what)} of {num_images:,} without a photo, such as {image_id!r}: {why}"


def has_photo_locations(store: FeatureStore) -> bool:
    """Whether a store records where its photos lie, or lay when it was made."""
    return recorded_locations(store) is not None or _folder_of_written_store(store) is not None


def recorded_locations(store: FeatureStore) -> Iterator[tuple[str, str]] | None:
    """Image ids and locations by the store's plan, or by the plans of the stores that it was copied from; an id may
    come twice. None where there are none; ValueError, once they are taken, for a damaged file."""
    folder = store.folder
    if (plan := read_plan(folder)) is not None:
        return ((one.image_id, one.location) for one in planned_members(folder, plan))
    return None if folder.num_bytes(LOCATIONS_NAME) is None else _copied_locations(folder)


def _copied_locations(folder: OutputFolder) -> Iterator[tuple[str, str]]:
    path = folder.local_path
    with io.BytesIO(folder.read_bytes(LOCATIONS_NAME)) if path is None else open(path / LOCATIONS_NAME, "rb") as file:
        try:
            yield from ((row["image_id"], row["location"]) for row in map(json.loads, file))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{folder.where(LOCATIONS_NAME)}: damaged ({error}); copy the store again, or name the folder of the "
                "photos with --photos"
            ) from None


def write_locations(folder: OutputFolder, stores: Sequence[FeatureStore], selected: Callable[[str], bool]) -> None:
    """Writes the locations of the selected photos into a copy of the stores, or nothing where one has none, or damaged
    ones."""
    found = list(filter(None, map(recorded_locations, stores)))
    if len(found) < len(stores):
        return
    try:
        with folder.atomic_path(LOCATIONS_NAME) as aside, open(aside, "w", encoding="utf-8") as file:
            for image_id, location in itertools.chain.from_iterable(found):
                if selected(image_id):
                    file.write(json.dumps({"image_id": image_id, "location": location}, ensure_ascii=False) + "\n")
    except ValueError as error:
        logger.warning("the copy does not record where its photos are: %s", error)


def _folder_of_written_store(store: FeatureStore) -> str | None:
    """The folder of photos given to `StoreWriter`; None for a store that was made in another way."""
    config = store.manifest.config
    source = config.get("source")
    root = source.get("image_root") if "write" in config and isinstance(source, dict) else None
    return root if isinstance(root, str) else None


def _found_in(listing: Listing, image_ids: Iterable[str], id_rule: str) -> Iterator[tuple[str, str | None, str]]:
    """Location of each image, or None and why there is none."""
    listed = ScratchDatabase("CREATE TABLE listed (place INTEGER PRIMARY KEY, id TEXT, location TEXT)")
    packed = archive_images(look_into(listing).archives, id_rule, [])
    photos = enumerate(itertools.chain(listing.images(id_rule=id_rule), packed))
    listed.add("INSERT INTO listed VALUES (?, ?, ?)", ((place, one.image_id, one.location) for place, one in photos))
    finder = ImageFinder(image_id for (image_id,) in listed.stream("SELECT id FROM listed ORDER BY place"))
    for image_id in image_ids:
        found = finder.look_up(image_id)
        if isinstance(found, Ambiguous):
            names = " and ".join(map(repr, found.image_ids[:2]))
            yield image_id, None, f"{names} in {listing.root} may both be its photo"
        elif found is None:
            yield image_id, None, f"no photo of this name in {listing.root}"
        else:
            ((location,),) = listed.rows("SELECT location FROM listed WHERE place = ?", (found.place,))
            yield image_id, location, f"no file {location}"


def _checked(row: tuple[str, str | None, str]) -> tuple[str, str | None, str]:
    """Marks files of this machine that are not there as missing; files at URLs are checked when they are read."""
    image_id, location, why = row
    if location is not None:
        file = _file_of(location)
        if not is_url(file) and not os.path.exists(file) and not location_exists(location):
            return image_id, None, why
    return image_id, location, why


def _file_of(location: str) -> str:
    """The file that holds a photo: itself, or its archive."""
    place = parse_location(location)
    return location if place is None else place.archive
