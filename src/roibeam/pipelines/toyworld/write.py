"""Toy world on disk: pictures drawn by several processes, then the files of all data sets.

    OUT/
      toyworld.json         contents: version, seed, counts, statistics, digest of all texts; written last
      contact_sheet.jpg     pictures with boxes and captions; look here first
      scenes.jsonl          the scene graph of every picture, `picture.Picture`
      vocab.txt             word pieces of the captions that may be trained on
      coco/  visual_genome/  conceptual_captions/  sbu/  flickr30k/      as `formats` writes them, with their pictures
      text/corpus.txt       captions of scenes that were never drawn

Pictures are drawn in chunks of 50. A chunk's scene graphs are written after its pictures, aside and renamed, so that
the same command resumes a stopped run. The result does not depend on the number of processes.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from textwrap import wrap
from typing import Any

import cv2
import numpy as np

from roibeam.features.folders.durable_files import TEMPORARY_SUFFIX, write_json_atomically
from roibeam.features.folders.folder_protocol import LOCK_NAME, store_lock
from roibeam.features.record.region_drawing import draw_regions
from roibeam.messages import plural
from roibeam.pipelines.common.console.command_files import read_json_object
from roibeam.pipelines.common.console.progress import Progress, Unit, waiting
from roibeam.pipelines.data.datasets.photo_folders import CONTACT_SHEET_NAME, WORLD_FORMAT, WORLD_NAME
from roibeam.pipelines.toyworld.captions import SceneCaption, write_captions
from roibeam.pipelines.toyworld.formats import open_writers, write_corpus
from roibeam.pipelines.toyworld.picture import SCENES_NAME, Picture, Statistics, read_pictures
from roibeam.pipelines.toyworld.randomness import MAX_SEED
from roibeam.pipelines.toyworld.rendering import draw_chunk, encoded
from roibeam.pipelines.toyworld.scene import find_relations, generate
from roibeam.pipelines.toyworld.world import CATEGORIES, CYCLE, PLACES, WORLD_VERSION
from roibeam.pipelines.toyworld.world_files import WrittenFiles, in_processes, write_text
from roibeam.pipelines.training.model_files.vocabulary_training import made_vocabulary

_COLUMNS = 3
_WIDTH, _GAP, _MARGIN = 1280, 20, 24  # pixels, of the sheet, between pictures, and around them
_TALLEST = 440
_FONT, _TITLE_FONT, _LABEL_FONT = 14, 24, 15
_LINE = 19
_LETTERS_PER_PX = 0.145  # of Pillow's own font at `_FONT`
_INK, _QUIET = (31, 27, 36), (112, 100, 91)
_CATEGORIES = list(CATEGORIES)


def write_contact_sheet(path: Path, entries: Sequence[tuple[Picture, np.ndarray]], *, title: str = "Toy world") -> None:
    """Writes a JPEG: three pictures in a row, as high as each other, their boxes with category, and below each its data
    set, split, file and captions.

    Args:
        entries: pictures with their (height, width, 3) uint8 BGR pixels.
        title: over the sheet.
    """
    rows = [_row(entries[start : start + _COLUMNS]) for start in range(0, len(entries), _COLUMNS)]
    strip = np.full((_MARGIN + _TITLE_FONT + 20, _WIDTH, 3), 255, np.uint8)
    sheet = np.vstack([_written(strip, [(_MARGIN, _MARGIN, title, _TITLE_FONT, _INK)]), *rows])
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(encoded(sheet, ".jpg", 80))
    os.replace(temporary, path)


def _row(entries: Sequence[tuple[Picture, np.ndarray]]) -> np.ndarray:
    """Pictures of one height, as wide together as the sheet."""
    room = _WIDTH - 2 * _MARGIN - _GAP * (len(entries) - 1)
    height = min(int(room / sum(pixels.shape[1] / pixels.shape[0] for _, pixels in entries)), _TALLEST)
    texts: list[tuple[int, int, str, int, tuple[int, int, int]]] = []
    left, lowest, drawn = _MARGIN, 0, []
    for picture, pixels in entries:
        width = max(round(pixels.shape[1] * height / pixels.shape[0]), 1)
        drawn.append((left, _with_boxes(picture, pixels, (height, width))))
        y = height + 6
        for line, colour in _caption_lines(picture, width):
            texts.append((left, y, line, _FONT, colour))
            y += _LINE
        left, lowest = left + width + _GAP, max(lowest, y)
    cell = np.full((lowest + _GAP, _WIDTH, 3), 255, np.uint8)
    for x, image in drawn:
        cell[:height, x : x + image.shape[1]] = image
    return _written(cell, texts)


def _caption_lines(picture: Picture, width: int) -> list[tuple[str, tuple[int, int, int]]]:
    letters = max(int(width * _LETTERS_PER_PX), 12)
    place = f"{picture.place.dataset}, {picture.place.split}: {Path(picture.file_name).name}"
    lines = [(line, _QUIET) for line in wrap(place, letters)]
    return lines + [(line, _INK) for each in picture.captions for line in wrap(f"- {each.text}", letters)]


def _written(pixels: np.ndarray, texts: Sequence[tuple[int, int, str, int, tuple[int, int, int]]]) -> np.ndarray:
    """Adds lines of text: left, top, text, size in pixels, colour (B, G, R)."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.fromarray(pixels)  # the order of the three channels does not matter to Pillow
    draw = ImageDraw.Draw(image)
    for x, y, text, size, colour in texts:
        draw.text((x, y), text, font=ImageFont.load_default(size), fill=colour)
    return np.array(image)


def _with_boxes(picture: Picture, pixels: np.ndarray, image_hw: tuple[int, int]) -> np.ndarray:
    things = picture.scene.objects
    height, width = image_hw
    resized = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_CUBIC)
    scale_x, scale_y = width / pixels.shape[1], height / pixels.shape[0]
    corners = [
        (x * scale_x, y * scale_y, (x + across) * scale_x, (y + down) * scale_y)
        for x, y, across, down in (thing.box for thing in things)
    ]
    return draw_regions(
        resized,
        np.array(corners, np.float32).reshape(-1, 4),
        labels=[f"{thing.category}{' (ignored)' if thing.ignored else ''}" for thing in things],
        class_ids=np.array([_CATEGORIES.index(thing.category) for thing in things], np.int64),
        scores=np.zeros(len(things)),
        max_regions=len(things),
        smallest_font_px=_LABEL_FONT,
    )


CORPUS_NAME = "text/corpus.txt"
VOCABULARY_NAME = "vocab.txt"
CHUNK = 50
MAX_IMAGES = 1_000_000
# Scenes for the corpus are numbered from here on: none of them is a picture.
_FIRST_TEXT_SCENE = 1 << 40
_IMAGES_PER_DOCUMENT = 4
_PLAN_NAME = ".plan.json"
_PARTS_NAME = ".parts"
_SHEET_PICTURES = 12
PICTURES = Unit("picture", "pictures")
_TEXT_SUFFIXES = frozenset({".json", ".jsonl", ".txt", ".tsv", ".xml"})


def write_world(out: Path, *, num_images: int, seed: int = 0, workers: int = 1) -> WrittenFiles:
    """Makes OUT, finishes it, or finds it finished. Raises ValueError if OUT holds other things or another world, or a
    number is out of range."""
    _check(seed, num_images, workers)
    start = time.monotonic()
    plan = {"format": WORLD_FORMAT, "world_version": WORLD_VERSION, "seed": seed, "images": num_images}
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; name a folder to write into")
    out.mkdir(parents=True, exist_ok=True)
    _has_plan(out, plan)  # Here too: a lock is a file, and another's folder gets none.
    with store_lock(out):
        _claim(out, plan)
        if (out / WORLD_NAME).exists():
            return WrittenFiles(
                read_json_object(out / WORLD_NAME, hint="give a new folder"), 0, time.monotonic() - start
            )
        drawn = _draw_all(out, seed, num_images, workers)
        with waiting("writing captions, boxes and the vocabulary"):
            manifest = plan | _assemble(out, seed, num_images)
        _remove_leftovers(out, WORLD_NAME)
        write_json_atomically(out / WORLD_NAME, manifest)
        shutil.rmtree(out / _PARTS_NAME)
    return WrittenFiles(manifest, drawn, time.monotonic() - start)


def _check(seed: int, num_images: int, workers: int) -> None:
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed {seed}: expected a whole number from 0 to {MAX_SEED}")
    if not CYCLE <= num_images <= MAX_IMAGES:
        raise ValueError(f"{num_images} images: expected {CYCLE} (so that no split is empty) to {MAX_IMAGES:,}")
    if workers < 1:
        raise ValueError(f"{workers} workers: expected at least one")


def _claim(out: Path, plan: dict[str, Any]) -> None:
    """Writes the plan into OUT, or checks the one that is there. For the one run that holds the lock."""
    if not _has_plan(out, plan):
        _remove_leftovers(out, _PLAN_NAME)
        write_json_atomically(out / _PLAN_NAME, plan)


def _leftovers(out: Path, name: str) -> set[Path]:
    """Files of runs that were killed within `write_json_atomically`."""
    return set(out.glob(f".{name}.*{TEMPORARY_SUFFIX}"))


def _remove_leftovers(out: Path, name: str) -> None:
    for path in _leftovers(out, name):
        path.unlink()


def _has_plan(out: Path, plan: dict[str, Any]) -> bool:
    """Whether OUT has this plan; False if it is empty, or has only leftovers of a run killed before its plan."""
    path = out / _PLAN_NAME
    if path.exists():
        found = read_json_object(path, hint="give a new folder")
        different = [
            f"{key} {found.get(key)}, requested {want}" for key, want in plan.items() if found.get(key) != want
        ]
        if different:
            raise ValueError(
                f"{out}: holds a toy world with {'; '.join(different)}; give another folder, or request the same"
            )
        return True
    foreign = sorted(path.name for path in set(out.iterdir()) - {out / LOCK_NAME} - _leftovers(out, _PLAN_NAME))
    if foreign:
        raise ValueError(f"{out}: is not empty and no toy world (it holds {foreign[0]!r}); give a new folder")
    return False


def _part(out: Path, first: int) -> Path:
    return out / _PARTS_NAME / f"{first:08d}.jsonl"


def _draw_all(out: Path, seed: int, num_images: int, workers: int) -> int:
    """Draws the chunks that are not there yet; returns the number of their pictures."""
    (out / _PARTS_NAME).mkdir(exist_ok=True)
    for place in PLACES:
        (out / place.dataset / place.file_name(1)).parent.mkdir(parents=True, exist_ok=True)
    missing = [
        (first, min(first + CHUNK, num_images))
        for first in range(0, num_images, CHUNK)
        if not _part(out, first).exists()
    ]
    total = sum(last - first for first, last in missing)
    with Progress("drawing", num_images, PICTURES, done=num_images - total) as progress:
        calls = [(_part(out, first), out, seed, first, last) for first, last in missing]
        for count in in_processes(draw_chunk, calls, workers):
            progress.to(progress.done + count)
    return total


def _assemble(out: Path, seed: int, num_images: int) -> dict[str, Any]:
    """Writes all files but the pictures; returns their entries of toyworld.json."""
    _join_parts(out, num_images)
    writers, statistics, splits = open_writers(out), Statistics(), dict.fromkeys((place.name for place in PLACES), 0)
    for picture in read_pictures(out / SCENES_NAME):
        writers[picture.place.dataset].add(picture)
        statistics.add(picture)
        splits[picture.place.name] += 1
    for writer in writers.values():
        writer.close()
    num_documents = num_images // _IMAGES_PER_DOCUMENT
    write_corpus(out / CORPUS_NAME, _documents(seed, num_documents))
    write_text(out / VOCABULARY_NAME, "".join(f"{piece}\n" for piece in _word_pieces(out)))
    first = list(islice(read_pictures(out / SCENES_NAME), _SHEET_PICTURES))
    title = f"Toy world, seed {seed}: the first {len(first)} of {plural(num_images, 'picture')}"
    write_contact_sheet(out / CONTACT_SHEET_NAME, [(picture, _pixels(out, picture)) for picture in first], title=title)
    return {
        "splits": splits,
        "documents": num_documents,
        "statistics": statistics.to_json(),
        "texts_sha256": _texts_digest(out),
    }


def _join_parts(out: Path, num_images: int) -> None:
    temporary = out / f".{SCENES_NAME}.tmp"
    with open(temporary, "wb") as file:
        for first in range(0, num_images, CHUNK):
            file.write(_part(out, first).read_bytes())
    os.replace(temporary, out / SCENES_NAME)


def _documents(seed: int, count: int) -> Iterator[tuple[SceneCaption, ...]]:
    for index in range(_FIRST_TEXT_SCENE, _FIRST_TEXT_SCENE + count):
        scene = generate(seed, index).scene
        yield write_captions(scene, find_relations(scene))


def _word_pieces(out: Path) -> list[str]:
    """Returns word pieces by id, only of text that may be trained on: no caption of a val or test picture."""
    captions = [
        caption.text
        for picture in read_pictures(out / SCENES_NAME)
        if picture.place.split in ("train", "restval")
        for caption in picture.captions
    ]
    captions += (out / CORPUS_NAME).read_text(encoding="utf-8").splitlines()
    ids = made_vocabulary(captions)
    return sorted(ids, key=lambda piece: ids[piece])


def _pixels(out: Path, picture: Picture) -> np.ndarray:
    path = out / picture.place.dataset / picture.file_name
    pixels = cv2.imread(str(path))
    if pixels is None:
        raise ValueError(f"{path}: cannot be read; was it changed while the world was made? Begin in a new folder")
    return pixels


def _texts_digest(out: Path) -> str:
    """SHA-256 over path, length and bytes of every text file in path order; not vocab.txt, which a library makes."""
    digest = hashlib.sha256()
    paths = {path.relative_to(out).as_posix(): path for path in out.rglob("*") if path.suffix in _TEXT_SUFFIXES}
    for name in sorted(paths):
        if name.startswith(".") or name == VOCABULARY_NAME:
            continue
        data = paths[name].read_bytes()
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()
