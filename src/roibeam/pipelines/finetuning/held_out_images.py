"""Images that a fine-tuning run may train on, and images of a split that its model has seen before.

Results are reported on the task's own validation and test splits, by the rules that `--held-out` has for each task;
their images stop a run. Images of other tasks, by their names or by files beside the task's, give a note. All other
files are named with `--held-out`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roibeam.features.store import FeatureStore
from roibeam.messages import plural, printable
from roibeam.pipelines.common.console.command_files import read_json_object
from roibeam.pipelines.data.compatibility import HeldOutOptions
from roibeam.pipelines.data.held_out import RULES, HeldOut, LeakReport, reported_files
from roibeam.pipelines.data.image_identity import (
    DATA_SETS,
    Key,
    checked_data_set,
    data_set_of_store,
    reported_by_name,
    whole_id,
)
from roibeam.pipelines.finetuning.requests import FINETUNING
from roibeam.pipelines.training.run_folder.training_data import OWN_IMAGES, known_keys, trained_among


def check_held_out(request: HeldOutOptions) -> None:
    """Raises ValueError for options without effect."""
    if request.drop_held_out and not request.held_out:
        raise ValueError("--drop-held-out: name what is held out with --held-out")
    checked_data_set(request.numbers_of, None)


@dataclass(frozen=True, eq=False)
class PhotoNames:
    """Names of a task's images.

    Attributes:
        data_set: of bare numbers among the store's ids; None if unknown.
        rules: of the user; they also know which of Visual Genome's images are COCO's.
        called: the task's own names of images, by their ids in the store.
    """

    data_set: str | None = None
    rules: HeldOut = field(default_factory=lambda: HeldOut([]))
    called: Mapping[str, str] = field(default_factory=dict)

    def keys(self, image_id: str) -> list[Key]:
        name = self.called.get(image_id, image_id)
        keys = [*known_keys(image_id, self.data_set), *self.rules.keys_of(image_id, self.data_set)]
        return list(dict.fromkeys([*keys, *self.rules.keys_of(name, None)]))

    def bare_keys(self, image_id: str) -> list[Key]:
        """Keys as runs have them that knew an image by its bare number, of an unknown data set."""
        return [whole_id(str(value)) for name, value in self.keys(image_id) if name in DATA_SETS]


def photo_names(request: HeldOutOptions, store: FeatureStore, called: Mapping[str, str]) -> PhotoNames:
    """Names of the images of a store. Raises ValueError for unknown rules and missing files."""
    data_set = checked_data_set(request.numbers_of, data_set_of_store(store.manifest))
    return PhotoNames(data_set, HeldOut(request.held_out), called)


def check_own_splits(
    task: str,
    folder: Path,
    trained_files: Sequence[Path],
    image_ids: Sequence[str],
    names: PhotoNames,
    *,
    allowed: bool,
) -> list[str]:
    """Notes on images of the task's own validation and test files that a run would train on.

    Args:
        trained_files: sources of the whole training split.
    """
    trained, files, notes = {path.resolve() for path in trained_files}, [], []
    for path in reported_files(task, str(folder)):
        if Path(path).resolve() in trained:
            notes.append(f"{Path(path).name} is trained on: nothing that is measured on it is held out")
        else:
            files.append((task, path))
    try:
        report = HeldOut([], files).scan(image_ids, names.data_set, names.called) if files else None
    except ValueError as error:
        return [*notes, f"held-out images of {task} cannot be looked for: {error}"]
    if report is None or not report.leaked:
        return notes
    if not allowed:
        raise ValueError(
            f"{plural(len(report.leaked), 'image')} of the training split lie in files that results are reported on: "
            f"{report.leaks()}; take them out of one, or give --set data.shared_images=true"
        )
    return [*notes, f"{report.leaks()}: results on them are not held-out results"]


def other_tasks_leaks(
    task: str, folder: Path, trained_files: Sequence[Path], image_ids: Sequence[str], names: PhotoNames
) -> list[str]:
    """Notes on training images that results of other tasks are reported on, by their own names and by files beside
    those of the task; only `--held-out` can name the rest.

    Args:
        task, trained_files, image_ids: of `check_own_splits`.
    """
    by_name = reported_by_name(names.called.get(image_id, image_id) for image_id in image_ids)
    notes = [] if by_name is None else [by_name]
    known = {path.resolve() for path in trained_files} | {
        Path(path).resolve() for path in reported_files(task, str(folder))
    }
    for rule in [each for each in RULES if each != "labels"]:  # those tables are of one task alone
        files = [(rule, path) for path in reported_files(rule, str(folder)) if Path(path).resolve() not in known]
        known |= {Path(path).resolve() for _, path in files}
        try:
            report = HeldOut([], files).scan(image_ids, names.data_set, names.called) if files else None
        except ValueError:  # a file of that name, and of another task or of one's own
            continue
        leaks = "; ".join(
            f"{Path(each.location).relative_to(folder)}, {each.line()}"
            for each in (() if report is None else report.rules)
            if each.found
        )
        notes += [f"{leaks}: results on them are not held-out results"] if leaks else []
    return notes


def check_read_splits(
    splits: Mapping[str, Sequence[str]], image_ids: Sequence[str], names: PhotoNames, *, allowed: bool
) -> list[str]:
    """`check_own_splits` for a task that reads its other splits itself.

    Args:
        splits: split -> the task's names of its images.
    """
    trained = {key for image_id in image_ids for key in names.keys(image_id)}
    notes = []
    for split, images in splits.items():
        shared = [image for image in dict.fromkeys(images) if trained & set(names.keys(image))]
        if shared:
            leaks = f"{plural(len(shared), 'image')} of the split {split}"
            refuse_shared(leaks, shared, allowed=allowed)
            notes.append(f"{leaks} are trained on: results on them are not held-out results")
    return notes


def refuse_shared(leaks: str, images: Sequence[str], *, allowed: bool) -> None:
    """Raises ValueError, unless they are allowed, for images of another split that are trained on, in words `leaks`."""
    if not allowed:
        raise ValueError(
            f"{leaks} are in the training split too, such as {printable(images[0], 80)}: results on them are not "
            "held-out results; take them out of one split, or give --set data.shared_images=true"
        )


def check_given_rules(
    request: HeldOutOptions, image_ids: Sequence[str], names: PhotoNames, where: str
) -> LeakReport | None:
    """Report on training images that the user's rules hold out; None without a rule. Raises ValueError for such images
    unless they are left out, or if no other is left."""
    if not request.held_out:
        return None
    return names.rules.scan_kept(image_ids, names.data_set, where, leave_out=request.drop_held_out, called=names.called)


@dataclass(frozen=True)
class SeenBefore:
    """Images of a split that the run behind a model was trained on.

    Attributes:
        trained: ids of those that it was trained on; None if unknown.
        perhaps: ids of those whose bare number it was trained on, of an unknown data set.
        number_own: of `trained`, those that the run itself was trained on, not only the runs that it started from.
        learns_task: whether the run is one of fine-tuning.
    """

    images: int
    trained: tuple[str, ...] | None
    perhaps: tuple[str, ...] = ()
    number_own: int = 0
    learns_task: bool = True

    def words(self) -> str:
        """Words to follow their number, on what was learned of them; "" where the run learned its task on all."""
        before = "in pre-training, with captions and not with the task's questions"
        count = 0 if self.trained is None else len(self.trained)
        if not count or (self.learns_task and self.number_own == count):
            return ""
        if not self.learns_task:
            return f" ({before})"
        return f" ({self.number_own:,} of them in fine-tuning; the others {before})"

    def notes(self, model: object, what: str) -> list[str]:
        """Notes for people.

        Args:
            what: kind of the images, such as "validation".
        """
        of = f"of {plural(self.images, f'{what} image')}"
        notes = []
        if self.trained:
            such = f"such as {printable(self.trained[0], 80)}"
            notes.append(f"{model} was trained on {len(self.trained):,} {of}, {such}{self.words()}")
        if self.perhaps:
            notes.append(
                f"{model} may have been trained on {len(self.perhaps):,} {of}, such as "
                f"{printable(self.perhaps[0], 80)}: it knew images by bare numbers"
            )
        return notes

    def to_json(self) -> dict[str, Any]:
        return {
            "images": self.images,
            "trained_on": None if self.trained is None else len(self.trained),
            "perhaps_trained_on": len(self.perhaps),
            "examples": list((self.trained or ())[:3]),
            "how": self.words(),
        }


def seen_before(run: Path | None, image_ids: Sequence[str], names: PhotoNames) -> SeenBefore:
    """Compares images with those that a run was trained on.

    Args:
        run: folder of the run; None for a model without one.
    """
    trained = None if run is None else trained_among(run, image_ids, names.keys)
    if run is None or trained is None:
        return SeenBefore(len(image_ids), None)
    own, config = trained_among(run, trained, names.keys, OWN_IMAGES), run / "config.json"
    described = read_json_object(config).get("task") if config.is_file() else None
    learns_task = not isinstance(described, dict) or described.get("kind") == FINETUNING
    known = set(trained)
    others = [image_id for image_id in image_ids if image_id not in known]
    perhaps = tuple(trained_among(run, others, names.bare_keys) or ())
    number_own = len(trained if own is None else own)
    return SeenBefore(len(image_ids), tuple(trained), perhaps, number_own, learns_task)
