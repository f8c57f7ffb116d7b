"""Outlines of VCR's objects, which lie beside its photos. No torch."""

from __future__ import annotations

import numpy as np

from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.data.datasets.vcr import metadata_path, read_vcr_metadata
from roibeam.pipelines.data.objects.outlines import masks_of_regions


def region_masks(photo: str, record: RegionRecord, side: int) -> np.ndarray:
    """See `masks_of_regions`.

    Args:
        photo: path of the photo; its metadata lies beside it.
    Raises:
        ValueError: when the metadata cannot be read, or its boxes are not among the record's.
    """
    path = metadata_path(photo)
    try:
        metadata = read_vcr_metadata(path)
    except OSError as error:
        raise ValueError(
            f"{path}: {error.strerror or error}; VCR's outlines lie beside its photos: name the folder vcr1images with "
            f"--photos, or show whole boxes with --set photos.outlines=false"
        ) from None
    return masks_of_regions(record, metadata.boxes[:, :4], metadata.outlines, side)
