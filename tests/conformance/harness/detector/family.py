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

import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from harness.case_files import Arrays, read_case_json
from harness.checks import Case, Check, Family, OpenFolder, unread
from harness.detector.end_to_end import END_TO_END_FILE, end_to_end_checks
from harness.detector.options import TRUE_SIZE, CaseOptions, DetectorSet, read_case_options, read_detector_set
from harness.detector.photos import photo_checks
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
    place = photo_folder(folder, options.photos)
    pngs = {photo: (place or folder) / f"{photo}.png" for photo in options.photos}
    batch = [pngs[photo] for photo in options.batch_order]
    # File -> its set, what compares it, and what this takes besides. Set by set, so that each network is built once.
    known: dict[str, tuple[Any, ...]] = {}
    for name in options.sets:
        known |= {f"{name}_{photo}.npz": (name, photo_checks, [png]) for photo, png in pngs.items()}
        known |= {f"{name}_{BATCH}.npz": (name, photo_checks, batch)}
        known |= {f"weight_sums_{name}.json": (name, weight_sum_checks)}
        known |= {f"{kind}_{name}.json": (name, key_list_checks, kind, f"{kind}_{name}.json") for kind in KEY_LISTS}
    # What has no set's name belongs to the true size.
    known |= {f"{kind}.json": (TRUE_SIZE, key_list_checks, kind, f"{kind}.json") for kind in KEY_LISTS}
    known |= {END_TO_END_FILE: (TRUE_SIZE, end_to_end_checks, batch)}
    cases = [
        Case(
            file,
            functools.partial(_run, folder / file, functools.partial(_set, folder, options, name), *given),
            "photo missing" if place is None and file.endswith(".npz") else "",
        )
        for file, (name, *given) in known.items()
        if (folder / file).is_file()
    ]
    inputs = {OPTIONS_FILE, *options.sets.values(), *(png.name for png in pngs.values())}
    return OpenFolder(tuple(cases), frozenset(inputs))


DETECTOR_FAMILY = Family("detector", _recognises, _open_folder)


def _run(
    path: Path, network: Callable[[], DetectorSet], checks: Callable[..., Iterable[Check]], *given: Any
) -> Iterator[Check]:
    content = Arrays(path) if path.suffix == ".npz" else read_case_json(path)
    yield from checks(network(), content, *given)
    if isinstance(content, Arrays):
        yield from unread(content)


def _set(folder: Path, options: CaseOptions, name: str) -> DetectorSet:
    if name == TRUE_SIZE and name not in options.sets:  # the published sizes
        selection = SELECTIONS["hf-100"]
        return DetectorSet(name, options.salt, DetectorConfig(), CONVENTIONS["hf"], selection, options.values)
    return read_detector_set(name, folder / options.sets[name], options.salt, options.values)
