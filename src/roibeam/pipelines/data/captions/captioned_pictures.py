"""The captioned pictures of a split: from Karpathy's json, or from the .jsonline files of ViLBERT and volta."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from roibeam.features.printable import printable
from roibeam.pipelines.data.datasets.karpathy import TRAINING_SPLITS, read_karpathy
from roibeam.pipelines.data.datasets.retrieval_lines import FILES, read_retrieval_lines
from roibeam.pipelines.data.task_files import MissingFileError, find_file

KARPATHY = ("dataset_flickr30k.json", "dataset_coco.json", "dataset_flickr8k.json")
SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class CaptionedPicture:
    """An image by the name that the file has for it, with its captions in their order."""

    image: str
    captions: tuple[str, ...]

    def caption_id(self, number: int) -> str:
        """As Flickr30k writes it."""
        return f"{self.image}#{number}"


def read_captioned(folder: Path, split: str, *, most_captions: int = 0) -> tuple[list[CaptionedPicture], Path]:
    """The pictures of a split in the order of their file, and the file. COCO's "restval" is trained on.

    Args:
        folder: with files of one data set, found by their names.
        most_captions: of an image, the first ones; 0 for all. fartashf/vsepp takes 5.
    Raises:
        ValueError: for files that are not there, twice, or not what they should be; for an image without a caption, or
            one that comes twice.
    """
    path = _file(folder, split)
    pictures = [
        CaptionedPicture(image, tuple(captions)[: most_captions or None]) for image, captions in _rows(path, split)
    ]
    if not pictures:
        raise ValueError(f"{str(path)!r}: no image of the split {split}")
    seen: set[str] = set()
    for picture in pictures:
        if not picture.captions or not all(picture.captions):
            raise ValueError(f"{str(path)!r}: the image {printable(picture.image, 80)} has an empty caption, or none")
        if picture.image in seen:
            raise ValueError(f"{str(path)!r}: the image {printable(picture.image, 80)} comes twice")
        seen.add(picture.image)
    return pictures, path


def _file(folder: Path, split: str) -> Path:
    found = []
    for names in (*((name,) for name in KARPATHY), FILES[split]):
        try:
            found.append(find_file(folder, *names))
        except MissingFileError:
            continue
    if not found:
        raise MissingFileError(
            f"--data {str(folder)!r} holds none of {', '.join((*KARPATHY, *FILES[split]))}, in itself or in a folder "
            f"of it"
        )
    if len(found) > 1:
        raise ValueError(f"--data {str(folder)!r} holds {found[0]} and {found[1]}; name a folder with one data set")
    return found[0]


def _rows(path: Path, split: str) -> Iterable[tuple[str, Sequence[str]]]:
    if path.suffix == ".json":
        wanted = TRAINING_SPLITS if split == "train" else (split,)
        for image in read_karpathy(str(path)):
            if image.split in wanted:
                yield image.image_id, [sentence.text for sentence in image.sentences]
    else:
        for line in read_retrieval_lines(str(path)):
            yield line.image_id, line.captions
