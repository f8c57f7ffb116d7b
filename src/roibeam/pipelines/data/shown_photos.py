"""Photos of batches as people see them: small JPEGs, from where the store says that photos lie, or from a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import cv2
import numpy as np

from roibeam.extraction.network.conventions import Conventions
from roibeam.features.record.drawing.region_drawing import jpeg_bytes
from roibeam.features.store import FeatureStore
from roibeam.model.end_to_end import ImageBatch
from roibeam.model.inputs import VLBatch
from roibeam.pipelines.data.record_photos import PhotoError, RecordPhotos, tells_photos

SIDE_PX = 420  # of the longer side
_QUALITY = 75
Shown = tuple[bytes | None, str]  # a JPEG, or None and why there is none


def stored_photos(stores: Iterable[FeatureStore], wanted: Iterable[str]) -> dict[str, Shown]:
    """Photos of records by image id; nothing for ids that no store has.

    Args:
        stores: asked in their order.
        wanted: image ids.
    """
    left, found = dict.fromkeys(wanted), dict[str, Shown]()
    for store in stores:
        own = [image_id for image_id in left if image_id in store]
        for image_id in own:
            del left[image_id]
        if own:
            found |= _of_store(store, own)
    return found


def _of_store(store: FeatureStore, image_ids: Sequence[str]) -> dict[str, Shown]:
    if not tells_photos(store):
        return dict.fromkeys(image_ids, (None, f"{store.path} does not say where its photos lie"))
    try:
        photos = RecordPhotos(store, image_ids)
    except ValueError as error:
        return dict.fromkeys(image_ids, (None, str(error)))
    found: dict[str, Shown] = {}
    for image_id in image_ids:
        meta = store.meta(image_id)
        try:
            pixels = photos.read(photos.place(image_id, (meta.height, meta.width)))
        except PhotoError as error:
            found[image_id] = (None, str(error))
        except OSError as error:  # the whole folder has gone
            found[image_id] = (None, " ".join(str(error).split()))
        else:
            found[image_id] = (_small(pixels), "")
    return found


def batch_photos(rows: VLBatch, images: ImageBatch, conventions: Conventions) -> Mapping[int, Shown]:
    """What the region encoder reads, row by row: mirrored, and blank where it may not look, as it is in the batch."""
    shown: dict[int, Shown] = {}
    photo = 0
    for row in range(rows.batch_size):
        if rows.text_only is not None and bool(rows.text_only[row]):
            continue
        if bool(rows.region_mask[row].any()):
            shown[row] = (input_photo(rows, images, row, photo, conventions), "")
        photo += 1
    return shown


def input_photo(rows: VLBatch, images: ImageBatch, place: int, photo: int, conventions: Conventions) -> bytes:
    """One of these as a JPEG.

    Args:
        place: among the images of `rows`; it has a region.
        photo: the same among those of `images`, in which rows of text alone have none.
    """
    height, width = (float(side) for side in rows.image_hw[place])
    there = rows.region_mask[place]
    # The photo fills the upper left of the padded input, as large as its boxes say.
    reach = rows.region_boxes[place][there].amax(dim=0)[2:].clamp(min=1)
    scale_x, scale_y = (images.boxes[photo][there].amax(dim=0)[2:] / reach).tolist()
    pixels = images.pixels[photo, :, : max(round(height * scale_y), 1), : max(round(width * scale_x), 1)]
    return _small(_visible(pixels.float().cpu().numpy(), conventions))


def _visible(pixels: np.ndarray, conventions: Conventions) -> np.ndarray:
    """(3, H, W) network input as (H, W, 3) uint8, B, G, R."""
    grey = pixels.transpose(1, 2, 0) * np.array(conventions.pixel_std) + np.array(conventions.pixel_mean)
    picture = np.rint(grey.clip(0, 255)).astype(np.uint8)
    return picture[:, :, ::-1] if conventions.channel_order == "rgb" else picture


def _small(pixels: np.ndarray) -> bytes:
    height, width = pixels.shape[:2]
    scale = min(SIDE_PX / max(height, width), 1.0)
    size = (max(round(width * scale), 1), max(round(height * scale), 1))
    small = pixels if scale == 1 else cv2.resize(np.ascontiguousarray(pixels), size, interpolation=cv2.INTER_AREA)
    return jpeg_bytes(np.ascontiguousarray(small), quality=_QUALITY)
