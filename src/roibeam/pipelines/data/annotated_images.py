"""From each annotation or caption file to the images it names, with what it says of them, in file order.

An image that a file names several times comes several times: `ImageTable` makes it one. Notes are added once all images
have been taken.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator

from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.features.counted import counted
from roibeam.pipelines.common.files.image_ids import image_id_of
from roibeam.pipelines.common.files.remote_files import is_url, list_url
from roibeam.pipelines.data.datasets import (
    caption_list,
    coco,
    conceptual_captions,
    flickr30k,
    image_list,
    karpathy,
    sbu,
    vcr,
    visual_genome,
)
from roibeam.pipelines.data.datasets.json_pieces import read_json_lines
from roibeam.pipelines.data.datasets.rows import EMPTY_CAPTION, BadRow, BadRows, CaptionRow


def json_lines_kind(path: str) -> str:
    """ "vcr" or "image-list", by the first line.

    Raises:
        ValueError: if it is neither, naming its columns.
    """
    for where, entry in read_json_lines(path):
        if "img_fn" in entry:
            return "vcr"
        if image_list.has_image_column(entry):
            return "image-list"
        raise ValueError(
            f"{where}: expected a VCR row with img_fn, or a list of images with one of "
            f"{', '.join(image_list.IMAGE_COLUMNS)}; got {', '.join(entry)[:300] or 'no column'}"
        )
    return "image-list"


def coco_images(path: str, root: str, id_rule: str, notes: list[str]) -> Iterator[ImageRef]:
    """With the captions of a captions file, or the categories of an instances file."""
    found = coco.read_coco(path, id_rule=id_rule)
    notes += [note for bad in found.bad for note in bad.notes()]
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
    unused, bad = karpathy.bad_entries(path), karpathy.bad_entries(path)
    folders = {os.path.dirname(image.file_name) for image in karpathy.read_karpathy(path, id_rule=id_rule, bad=unused)}
    num_left_out = 0
    has_folders = any(_is_folder(os.path.join(root, folder)) for folder in folders)
    for image in karpathy.read_karpathy(path, id_rule=id_rule, bad=bad):
        below = image.file_name if has_folders else os.path.basename(image.file_name)
        is_for_training = image.split in karpathy.TRAINING_SPLITS
        captions = tuple(image.captions(bad)) if is_for_training else ()
        num_left_out += 0 if is_for_training else len(image.sentences)
        yield ImageRef(image.image_id, os.path.join(root, below), captions=captions)
    notes += [*karpathy.evaluation_note(num_left_out), *bad.notes()]


def sbu_images(path: str, root: str, id_rule: str, notes: list[str]) -> Iterator[ImageRef]:
    return _caption_rows(sbu.read_sbu(path, id_rule=id_rule), root, "entry", notes)


def tsv_images(path: str, root: str, id_rule: str, notes: list[str], caption_column: str = "") -> Iterator[ImageRef]:
    columns = conceptual_captions.columns_of(path, caption_column, root=root)
    rows = conceptual_captions.read_caption_tsv(path, id_rule=id_rule, columns=columns)
    return _caption_rows(rows, root, "line", notes)


def _caption_rows(rows: Iterable[CaptionRow | BadRow], root: str, unit: str, notes: list[str]) -> Iterator[ImageRef]:
    bad = BadRows(unit)
    for row in bad.passed(rows):
        yield ImageRef(row.image_id, os.path.join(root, row.path), captions=(row.caption,))
    notes += bad.notes()


def vcr_images(path: str, root: str, id_rule: str, notes: list[str]) -> Iterator[ImageRef]:
    """With the names of the objects that questions refer to as labels."""
    bad = BadRows("line")
    for image in bad.passed(vcr.read_vcr_images(path, id_rule=id_rule)):
        yield ImageRef(image.image_id, os.path.join(root, image.file_name), labels=image.objects)
    notes += bad.notes()


def flickr_images(path: str, root: str, id_rule: str, notes: list[str]) -> Iterator[ImageRef]:
    return _caption_rows(flickr30k.read_caption_lines(path, id_rule=id_rule), root, "line", notes)


def captioned_images(path: str, root: str, id_rule: str, notes: list[str]) -> Iterator[ImageRef]:
    """Of a json list of images and captions."""
    return _caption_rows(caption_list.read_caption_list(path, id_rule=id_rule), root, "entry", notes)


def sentence_images(folder: str, root: str, id_rule: str) -> Iterator[ImageRef]:
    """Flickr30k's photos with the captions of Flickr30k Entities."""
    for number, captions in flickr30k.read_sentence_folder(folder):
        name = f"{number}.jpg"
        yield ImageRef(image_id_of(name, id_rule=id_rule), os.path.join(root, name), captions=captions)


def genome_images(path: str, root: str, id_rule: str, notes: list[str]) -> Iterator[ImageRef]:
    """All images of Visual Genome, of which its image_data.json says nothing more."""
    bad = BadRows("entry")
    for image_id, below in bad.passed(visual_genome.read_image_data(path, id_rule=id_rule)):
        yield ImageRef(image_id, os.path.join(root, below))
    notes += bad.notes()


def genome_split_images(path: str, root: str, id_rule: str, notes: list[str]) -> Iterator[ImageRef]:
    """The images of bottom-up attention's list, with the names of their objects where the xml files lie beside it."""
    bad, folder = BadRows("line"), os.path.dirname(path)
    has_labels = os.path.isdir(os.path.join(folder, "xml"))
    num_without = 0
    for row in bad.passed(visual_genome.read_split(path, id_rule=id_rule)):
        labels: tuple[str, ...] = ()
        if has_labels:
            try:
                labels = visual_genome.read_object_names(os.path.join(folder, row.annotation))
            except (FileNotFoundError, NotADirectoryError, ValueError):
                num_without += 1
        yield ImageRef(row.image_id, os.path.join(root, row.file_name), labels=labels)
    notes += bad.notes()
    if num_without:
        notes.append(f"{counted(num_without, 'image')} without labels: no xml file, or a damaged one")


def list_images(path: str, root: str, id_rule: str, notes: list[str], caption_column: str = "") -> Iterator[ImageRef]:
    """Images of a .parquet, .csv, .jsonl or .txt."""
    bad, empty = BadRows("line"), BadRows("line", "caption")
    for row in bad.passed(image_list.read_image_list(path, root, id_rule=id_rule, caption_column=caption_column)):
        if row.empty_captions:
            empty.add(BadRow(row.line, EMPTY_CAPTION), row.empty_captions)
        yield ImageRef(row.image_id, os.path.join(root, row.path), captions=row.captions, labels=row.labels)
    notes += [*bad.notes(), *empty.notes()]


def _is_folder(location: str) -> bool:
    return bool(list_url(f"{location.rstrip('/')}/**", limit=1)) if is_url(location) else os.path.isdir(location)
