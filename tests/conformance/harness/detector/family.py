"""The family "detector": which files of its folder are cases, and what each is compared with.

| file | case |
|---|---|
| `<set>_<photo>.npz` | one photo through the set's network |
| `<set>_batch.npz` | the photos of `batch_order` as one zero-padded batch |
| `weight_sums_<set>.json` | checksums of the random weights |
| `hf_frcnn_keys[_<set>].json`, `detectron2_keys[_<set>].json`, `resnet101_vgbua_keys[_<set>].json` | names and shapes |
| `e2e_batch.npz` | VL-BERT's end-to-end extractor |

Options: `case.json` and the config files it names (options.py). Photos: `<photo>.png`, here or where
conformance/places.py says; without any of them their cases are not run.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

from harness.case_files import Arrays, read_case_json
from harness.checks import Case, Check, Family, OpenFolder, unread
from harness.detector.end_to_end import END_TO_END_FILE, end_to_end_checks
from harness.detector.options import (
    TRUE_SIZE,
    CaseOptions,
    DetectorSet,
    read_case_options,
    read_detector_set,
)
from harness.detector.photos import PhotoCase, photo_checks
from harness.detector.weights import KEY_LISTS, key_list_checks, weight_sum_checks
from harness.places import photo_folder
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS, SELECTIONS

OPTIONS_FILE = "case.json"
BATCH = "batch"


def _recognises(folder: Path) -> bool:
    return (folder / OPTIONS_FILE).is_file() and any(folder.glob("config_*.json"))


def _open_folder(folder: Path) -> OpenFolder:
    options = read_case_options(folder / OPTIONS_FILE)
    files = {path.name for path in folder.iterdir() if path.is_file()}
    place = photo_folder(folder, options.photos)
    pngs = {photo: (place or folder) / f"{photo}.png" for photo in options.photos}
    lacks = "" if place else "photo missing"
    cases: list[Case] = []
    # Set by set, so that each network is built once.
    for name in options.sets:
        kinds: dict[str, tuple[str, ...]] = {f"{name}_{photo}.npz": (photo,) for photo in options.photos}
        kinds[f"{name}_{BATCH}.npz"] = options.batch_order
        cases += [
            Case(
                file,
                functools.partial(_photo_case, folder, options, name, file, [pngs[photo] for photo in photos]),
                lacks,
            )
            for file, photos in kinds.items()
            if file in files
        ]
        file = f"weight_sums_{name}.json"
        if file in files:
            cases.append(Case(file, functools.partial(_weight_sums, folder, options, name, file)))
        for kind in KEY_LISTS:
            file = f"{kind}_{name}.json"
            if file in files:
                cases.append(Case(file, functools.partial(_key_list, folder, options, name, kind, file)))
    # What has no set's name belongs to the true size.
    for kind in KEY_LISTS:
        file = f"{kind}.json"
        if file in files:
            cases.append(Case(file, functools.partial(_key_list, folder, options, TRUE_SIZE, kind, file)))
    if END_TO_END_FILE in files:
        batch = [pngs[photo] for photo in options.batch_order]
        cases.append(Case(END_TO_END_FILE, functools.partial(_end_to_end, folder, options, batch), lacks))
    return OpenFolder(
        tuple(cases), frozenset({OPTIONS_FILE, *options.sets.values(), *(png.name for png in pngs.values())})
    )


DETECTOR_FAMILY = Family("detector", _recognises, _open_folder)


@functools.lru_cache(maxsize=4)
def _read_set(folder: Path, file: str, name: str, salt: int) -> DetectorSet:
    return read_detector_set(name, folder / file, salt)


def _set(folder: Path, options: CaseOptions, name: str) -> DetectorSet:
    if name == TRUE_SIZE and name not in options.sets:  # the published sizes
        return DetectorSet(name, options.salt, DetectorConfig(), CONVENTIONS["hf"], SELECTIONS["hf-100"])
    return _read_set(folder, options.sets[name], name, options.salt)


def _photo_case(folder: Path, options: CaseOptions, set_name: str, file: str, photos: list[Path]) -> Iterator[Check]:
    arrays = Arrays(folder / file)
    case = PhotoCase(_set(folder, options, set_name), arrays, photos, options.tolerances)
    yield from photo_checks(case)
    yield from unread(arrays)


def _weight_sums(folder: Path, options: CaseOptions, set_name: str, file: str) -> Iterable[Check]:
    sums = read_case_json(folder / file)
    return weight_sum_checks(_set(folder, options, set_name), sums, options.tolerances)


def _key_list(folder: Path, options: CaseOptions, set_name: str, kind: str, file: str) -> Iterable[Check]:
    return key_list_checks(_set(folder, options, set_name), kind, read_case_json(folder / file), file)


def _end_to_end(folder: Path, options: CaseOptions, photos: list[Path]) -> Iterator[Check]:
    arrays = Arrays(folder / END_TO_END_FILE)
    network = _set(folder, options, TRUE_SIZE)
    yield from end_to_end_checks(network, arrays, photos, options.tolerances)
    yield from unread(arrays)
