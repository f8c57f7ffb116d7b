"""Identity of photos in two data sets: by COCO's number, by Flickr's, or by one id, never by a bare number alone.

The meaning of a bare number in an id ("2415417") depends on the kind of the source, or the folder of its images:

    kind karpathy or flickr30k, folder or archive flickr30k-images          Flickr's number
    kind visual-genome(-split), folder or archive VG_100K or VG_100K_2      Visual Genome's number
    anything else                                                           nothing: such an id is compared as a whole

Names that leave no doubt count whatever the kind: "COCO_train2014_000000000042" and "000000000042" are COCO's 42,
"4385058960_b0f291553e_z" is Flickr's 4385058960, "VG_100K_2/2415417" is Visual Genome's 2415417. So do the files of two
tasks, whatever folders stand before them: "dev-850-0-img1" of NLVR2, and "lsmdc_1/scene@3" of VCR with its movie.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable

from roibeam.extraction.photos.image_ref import without_image_extension
from roibeam.features.shard.manifest import StoreManifest
from roibeam.messages import plural
from roibeam.pipelines.common.image_ids import in_nfc
from roibeam.pipelines.data.image_table import image_numbers
from roibeam.pipelines.data.source_kinds import Source

COCO, FLICKR, VISUAL_GENOME, WHOLE_ID = "coco", "flickr30k", "visual-genome", "id"
DATA_SETS = (COCO, FLICKR, VISUAL_GENOME)  # that a bare number may belong to

# One of DATA_SETS and a number; or WHOLE_ID, or the task, and the id or its end without image extension.
Key = tuple[str, int | str]
_FILES_OF_TASKS = {
    "nlvr2": re.compile(r"(?<![^/])(?:train|dev|test1|test2)-\d+-\d+-img[01]\Z"),
    "vcr": re.compile(r"(?<![^/])(?:lsmdc|movieclips)_[^/]+/[^/]+@\d+\Z"),
}
_KINDS = {
    "karpathy": FLICKR,  # of its files, COCO's have names with all digits
    FLICKR: FLICKR, VISUAL_GENOME: VISUAL_GENOME, "visual-genome-split": VISUAL_GENOME,
}  # fmt: skip
_FOLDERS = {
    "flickr30k-images": FLICKR, "flickr30k_images": FLICKR, "VG_100K": VISUAL_GENOME, "VG_100K_2": VISUAL_GENOME,
}  # fmt: skip
# COCO_val2014_000000000042, val2017/000000000042; dev-850-0-img1 of NLVR2.
_OF_A_SPLIT = re.compile(
    r"(?:^|/)(?:(?:COCO_)?(val2014|test2014|test2015|val2017|test2017)[_/]\d{12}|(dev|test1|test2)-\d+-\d+-img[01])(?!\d)"
)
_REPORTED_ON = {
    "val2014": "COCO's val2014 (VQA v2's val; Karpathy's val and test are a part)",
    "test2014": "COCO's test2014", "test2015": "COCO's test2015 (VQA v2's test)",
    "val2017": "COCO's val2017", "test2017": "COCO's test2017",
    "dev": "NLVR2's dev", "test1": "NLVR2's test1", "test2": "NLVR2's test2",
}  # fmt: skip


def image_keys(image_id: str, data_set: str | None) -> list[Key]:
    """Keys of an image; two images that share a key are one photo.

    Args:
        data_set: that bare numbers belong to, one of `DATA_SETS`, or None.
    """
    plain, coco, flickr, visual_genome, _ = image_numbers(image_id)
    spelled = ((COCO, coco), (FLICKR, flickr), (VISUAL_GENOME, visual_genome))
    keys: list[Key] = [(name, number) for name, number in spelled if number is not None]
    if keys or plain is None or data_set is None:
        keys.append(whole_id(image_id))
    else:
        keys.append((data_set, plain))
    keys += _of_tasks(keys[-1])
    if not image_id.isascii() and (written := _whole_name(image_id)) != in_nfc(written):
        keys.append((WHOLE_ID, written))  # as runs recorded it before names met in NFC
    return keys


def _of_tasks(key: Key) -> list[Key]:
    """Keys by the end of a whole id, where it is named as a task names its files."""
    called = str(key[1]) if key[0] == WHOLE_ID else ""
    if "@" not in called and "-img" not in called:
        return []  # most names
    called = "/".join(called.rsplit("/", 2)[-2:])
    return [(task, found[0]) for task, names in _FILES_OF_TASKS.items() if (found := names.search(called)) is not None]


def whole_id(image_id: str) -> Key:
    return (WHOLE_ID, in_nfc(_whole_name(image_id)))


def _whole_name(image_id: str) -> str:
    return without_image_extension(image_id.replace("\\", "/"))


def is_bare_number(image_id: str) -> bool:
    """Whether an id has a meaning only within its data set."""
    return image_numbers(image_id).plain is not None


def reported_by_name(image_ids: Iterable[str]) -> str | None:
    """A line on images whose own names are of a validation or test split, as a whole; None for none.

    Splits of other data sets are known from files alone: `held_out.py` reads those.
    """
    found = Counter(match[1] or match[2] for match in map(_OF_A_SPLIT.search, image_ids) if match)
    if not found:
        return None
    counts = "; ".join(f"{count:,} of {_REPORTED_ON[name]}" for name, count in found.most_common())
    names = "their names say" if found.total() > 1 else "its name says"
    return (
        f"{plural(found.total(), 'image')} of validation and test splits, as {names}: {counts}. Results on these "
        "splits are not held-out results"
    )


def data_set_of_source(source: Source) -> str | None:
    return _data_set(source.kind, source.location, source.image_root)


def data_set_of_store(manifest: StoreManifest) -> str | None:
    """Data set that all sources of a store have in common; None where they differ, or the store was imported."""
    configs = [manifest.config]
    copied = manifest.config.get("copy")
    if isinstance(copied, dict) and isinstance(copied.get("sources"), list):
        parts = [each.get("config") for each in copied["sources"] if isinstance(each, dict)]
        configs = [{**manifest.config, **part} for part in parts if isinstance(part, dict)] or configs
    found = set()
    for config in configs:
        source = config.get("source")
        facts = source if isinstance(source, dict) else {}
        found.add(_data_set(*(str(facts.get(name, "")) for name in ("kind", "location", "image_root"))))
    return found.pop() if len(found) == 1 else None


def checked_data_set(images_of: str | None, known: str | None) -> str | None:
    """The data set that bare numbers belong to: `images_of` of the user, else that of the source or store."""
    if images_of is not None and images_of not in DATA_SETS:
        raise ValueError(f"--numbers-of {images_of!r}: choose one of {', '.join(DATA_SETS)}")
    return images_of or known


def _data_set(kind: str, *places: str) -> str | None:
    if kind in _KINDS:
        return _KINDS[kind]
    parts = (part.split(".")[0] for place in places for part in place.replace(os.sep, "/").split("/"))
    return next((_FOLDERS[part] for part in parts if part in _FOLDERS), None)
