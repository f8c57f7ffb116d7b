"""From each annotation or caption file to the images it names, with what it says of them, in file order.

An image that a file names several times comes several times: `ImageTable` makes it one. Notes are added once all images
have been taken.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator

from extraction.images import ImageRef
from pipelines.datasets import coco, conceptual_captions, karpathy, sbu, vcr
from pipelines.datasets.json_members import read_json_members
from pipelines.datasets.rows import BadRow, BadRows, CaptionRow


def json_kind(path: str) -> str:
    """ "coco", "karpathy" or "sbu", by the first member that tells; what tells nothing is read as COCO's."""
    expected = coco.EXPECTED + ", a Karpathy split or an SBU file"
    for name, _, entry in read_json_members(path, expected=expected):
        if name in ("image_urls", "captions", "user_ids"):
            return "sbu"
        if name == "images" and isinstance(entry, dict):
            return "karpathy" if "sentences" in entry else "coco"
        if name == "annotations":
            break
    return "coco"


def coco_images(path: str, root: str, id_rule: str) -> Iterator[ImageRef]:
    """With the captions of a captions file, or the categories of an instances file."""
    found = coco.read_coco(path, id_rule=id_rule)
    captions, labels = _by_image(found.captions), _by_image(found.labels)
    for image in found.images:
        # A file may repeat an entry; what is said of the image is said once.
        told, shown = captions.pop(image.image_id, ()), labels.pop(image.image_id, ())
        location = os.path.join(root, image.file_name)
        yield ImageRef(image.image_id, location, captions=tuple(told), labels=tuple(dict.fromkeys(shown)))


def _by_image(rows: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    texts = defaultdict(list)
    for image_id, text in rows:
        texts[image_id].append(text)
    return texts


def karpathy_images(path: str, root: str, id_rule: str, notes: list[str]) -> Iterator[ImageRef]:
    """All splits, in the folders that the file names, or in the root where none of them is there.

    Only images of the training splits bring their captions: a store's captions are there to be trained on.
    """
    folders = {os.path.dirname(image.file_name) for image in karpathy.read_karpathy(path, id_rule=id_rule)}
    num_left_out = 0
    has_folders = any(os.path.isdir(os.path.join(root, folder)) for folder in folders)
    for image in karpathy.read_karpathy(path, id_rule=id_rule):
        below = image.file_name if has_folders else os.path.basename(image.file_name)
        is_for_training = image.split in karpathy.TRAINING_SPLITS
        captions = tuple(sentence.text for sentence in image.sentences) if is_for_training else ()
        num_left_out += 0 if is_for_training else len(image.sentences)
        yield ImageRef(image.image_id, os.path.join(root, below), captions=captions)
    notes += karpathy.evaluation_note(num_left_out)


def sbu_images(path: str, root: str, id_rule: str, notes: list[str]) -> Iterator[ImageRef]:
    return _caption_rows(sbu.read_sbu(path, id_rule=id_rule), root, "entry", notes)


def tsv_images(path: str, root: str, id_rule: str, notes: list[str]) -> Iterator[ImageRef]:
    return _caption_rows(conceptual_captions.read_caption_tsv(path, id_rule=id_rule), root, "line", notes)


def _caption_rows(rows: Iterable[CaptionRow | BadRow], root: str, unit: str, notes: list[str]) -> Iterator[ImageRef]:
    bad = BadRows(unit)
    for row in bad.passed(rows):
        yield ImageRef(row.image_id, os.path.join(root, row.path), captions=(row.caption,))
    notes += bad.notes()


def vcr_images(path: str, root: str, id_rule: str) -> Iterator[ImageRef]:
    """With the names of the objects that questions refer to as labels."""
    for image in vcr.read_vcr_images(path, id_rule=id_rule):
        yield ImageRef(image.image_id, os.path.join(root, image.file_name), labels=image.objects)
