"""A toy world on disk: pictures drawn by several processes, then the files of all data sets.

    OUT/
      toyworld.json         what is here: version, seed, counts, statistics, digest of all texts; written last
      contact_sheet.jpg     look here first
      scenes.jsonl          the scene graph of every picture, `picture.Picture`
      vocab.txt             word pieces of the captions that may be trained on
      coco/  visual_genome/  conceptual_captions/  sbu/  flickr30k/      as `formats` writes them, with their pictures
      text/corpus.txt       captions of scenes that were never drawn

Pictures are drawn in chunks of 50. A chunk's scene graphs are written after its pictures, aside and renamed, so that a
run that was stopped goes on with the same command. The result does not depend on the number of processes.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from roibeam.features.counted import counted
from roibeam.features.folders.durable_files import TEMPORARY_SUFFIX, write_json_atomically
from roibeam.features.folders.folder_lock import LOCK_NAME, store_lock
from roibeam.pipelines.common.console.progress import Progress, waiting
from roibeam.pipelines.common.console.progress_text import Unit
from roibeam.pipelines.data.datasets.drawn_world import CONTACT_SHEET_NAME, WORLD_FORMAT, WORLD_NAME
from roibeam.pipelines.toyworld.captions import Caption, write_captions
from roibeam.pipelines.toyworld.contact_sheet import write_contact_sheet
from roibeam.pipelines.toyworld.draw import draw_chunk
from roibeam.pipelines.toyworld.files import write_text
from roibeam.pipelines.toyworld.formats import open_writers, write_corpus
from roibeam.pipelines.toyworld.picture import SCENES_NAME, Picture, read_pictures
from roibeam.pipelines.toyworld.randomness import MAX_SEED
from roibeam.pipelines.toyworld.relations import find_relations
from roibeam.pipelines.toyworld.scene import generate
from roibeam.pipelines.toyworld.splits import CYCLE, PLACES, Place
from roibeam.pipelines.toyworld.statistics import Statistics
from roibeam.pipelines.toyworld.world import WORLD_VERSION
from roibeam.pipelines.training.model_files.made_vocabulary import made_vocabulary

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


@dataclass(frozen=True)
class WorldSummary:
    """What a run found or made. `manifest` is the content of toyworld.json, `drawn` the pictures that were missing."""

    manifest: dict[str, Any]
    drawn: int
    seconds: float


def write_world(out: Path, *, seed: int, num_images: int, workers: int) -> WorldSummary:
    """Makes OUT, finishes it, or finds it finished.

    Args:
        workers: processes that draw.
    Raises:
        ValueError: if OUT holds other things or another world, or a number is out of range.
    """
    _check(seed, num_images, workers)
    start = time.monotonic()
    plan = {"format": WORLD_FORMAT, "world_version": WORLD_VERSION, "seed": seed, "images": num_images}
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; name a folder to write into")
    out.mkdir(parents=True, exist_ok=True)
    _is_ours(out, plan)  # Here too: a lock is a file, and another's folder gets none.
    with store_lock(out):
        _claim(out, plan)
        if (out / WORLD_NAME).exists():
            return WorldSummary(_read_json(out / WORLD_NAME), 0, time.monotonic() - start)
        drawn = _draw_all(out, seed, num_images, workers)
        with waiting("writing captions, boxes and the vocabulary"):
            manifest = plan | _assemble(out, seed, num_images)
        _remove_leftovers(out, WORLD_NAME)
        write_json_atomically(out / WORLD_NAME, manifest)
        shutil.rmtree(out / _PARTS_NAME)
    return WorldSummary(manifest, drawn, time.monotonic() - start)


def _check(seed: int, num_images: int, workers: int) -> None:
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed {seed}: expected a whole number from 0 to {MAX_SEED}")
    if not CYCLE <= num_images <= MAX_IMAGES:
        raise ValueError(f"{num_images} images: expected {CYCLE} (so that no split is empty) to {MAX_IMAGES:,}")
    if workers < 1:
        raise ValueError(f"{workers} workers: expected at least one")


def _claim(out: Path, plan: dict[str, Any]) -> None:
    """Makes OUT ours, or sees that it is. For the one run that holds the lock."""
    if not _is_ours(out, plan):
        _remove_leftovers(out, _PLAN_NAME)
        write_json_atomically(out / _PLAN_NAME, plan)


def _leftovers(out: Path, name: str) -> set[Path]:
    """What runs left that were killed within `write_json_atomically`."""
    return set(out.glob(f".{name}.*{TEMPORARY_SUFFIX}"))


def _remove_leftovers(out: Path, name: str) -> None:
    for path in _leftovers(out, name):
        path.unlink()


def _is_ours(out: Path, plan: dict[str, Any]) -> bool:
    """Whether OUT has this plan; False if it has nothing, or only what a run left that was killed before it had one.

    Raises:
        ValueError: if OUT holds another world or other things.
    """
    path = out / _PLAN_NAME
    if path.exists():
        found = _read_json(path)
        different = [
            f"{key} {found.get(key)}, asked for {want}" for key, want in plan.items() if found.get(key) != want
        ]
        if different:
            raise ValueError(
                f"{out}: holds a toy world with {'; '.join(different)}; give another folder, or ask for the same"
            )
        return True
    foreign = sorted(path.name for path in set(out.iterdir()) - {out / LOCK_NAME} - _leftovers(out, _PLAN_NAME))
    if foreign:
        raise ValueError(f"{out}: is not empty and no toy world (it holds {foreign[0]!r}); give a new folder")
    return False


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="ascii"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a json file of ours ({error}); give a new folder") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a json object of a toy world; give a new folder")
    return content


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
        _draw_missing(out, seed, missing, workers, progress)
    return total


def _draw_missing(out: Path, seed: int, missing: list[tuple[int, int]], workers: int, progress: Progress) -> None:
    if min(workers, len(missing)) <= 1:
        for first, last in missing:
            progress.to(progress.done + draw_chunk(_part(out, first), out, seed, first, last))
        return
    # Spawned, not forked: the parent may have threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=cv2.setNumThreads, initargs=(1,)) as pool:
        with _deaf_to_ctrl_c():
            tasks = [pool.submit(draw_chunk, _part(out, first), out, seed, first, last) for first, last in missing]
        try:
            for task in as_completed(tasks):
                progress.to(progress.done + task.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes that are started here never hear of it: this one ends them, they would only print tracebacks."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _assemble(out: Path, seed: int, num_images: int) -> dict[str, Any]:
    """Writes all files but the pictures; returns what toyworld.json says of them."""
    _join_parts(out, num_images)
    writers, statistics, splits = open_writers(out), Statistics(), dict.fromkeys(map(_split_name, PLACES), 0)
    for picture in read_pictures(out / SCENES_NAME):
        writers[picture.place.dataset].add(picture)
        statistics.add(picture)
        splits[_split_name(picture.place)] += 1
    for writer in writers.values():
        writer.close()
    num_documents = num_images // _IMAGES_PER_DOCUMENT
    write_corpus(out / CORPUS_NAME, _documents(seed, num_documents))
    write_text(out / VOCABULARY_NAME, "".join(f"{piece}\n" for piece in _word_pieces(out)))
    first = list(islice(read_pictures(out / SCENES_NAME), _SHEET_PICTURES))
    title = f"Toy world, seed {seed}: the first {len(first)} of {counted(num_images, 'picture')}"
    write_contact_sheet(out / CONTACT_SHEET_NAME, [(picture, _pixels(out, picture)) for picture in first], title=title)
    return {
        "splits": splits,
        "documents": num_documents,
        "statistics": statistics.to_json(),
        "texts_sha256": _texts_digest(out),
    }


def _split_name(place: Place) -> str:
    return f"{place.dataset}/{place.split}"


def _join_parts(out: Path, num_images: int) -> None:
    temporary = out / f".{SCENES_NAME}.tmp"
    with open(temporary, "wb") as file:
        for first in range(0, num_images, CHUNK):
            file.write(_part(out, first).read_bytes())
    os.replace(temporary, out / SCENES_NAME)


def _documents(seed: int, count: int) -> Iterator[tuple[Caption, ...]]:
    for index in range(_FIRST_TEXT_SCENE, _FIRST_TEXT_SCENE + count):
        scene = generate(seed, index).scene
        yield write_captions(scene, find_relations(scene))


def _word_pieces(out: Path) -> list[str]:
    """In the order of their ids. Only of text that may be trained on: no caption of a val or test picture."""
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
