"""Images that a fine-tuning run may train on, and images of a split that its model has seen before.

The task's own files tell what results are reported on: its validation and test splits, by the rules that `--held-out`
has for each task. Images of them stop a run. Of other tasks images' own names and files beside the task's may tell;
that is a note. All other files are named with `--held-out`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roibeam.features.store import FeatureStore
from roibeam.messages import counted, printable
from roibeam.pipelines.data.held_out import RULES, HeldOut, LeakReport, refuse_leaks, reported_files
from roibeam.pipelines.data.image_identity import Key, checked_data_set, data_set_of_store, reported_by_name
from roibeam.pipelines.training.run_folder.training_data import known_keys, perhaps_trained_among, trained_among


@dataclass(frozen=True)
class HeldOutWords:
    """What the user says of held-out images.

    Attributes:
        rules: RULE=FILE or RULE=FOLDER, see `HeldOut`.
        leave_out: drop such images instead of stopping.
        images_of: data set that bare numbers belong to; None for what the store tells.
    """

    rules: Sequence[str] = ()
    leave_out: bool = False
    images_of: str | None = None

    def check(self) -> None:
        """Raises ValueError for what goes together with nothing."""
        if self.leave_out and not self.rules:
            raise ValueError("--drop-held-out: name what is held out with --held-out")
        checked_data_set(self.images_of, None)


@dataclass(frozen=True, eq=False)
class PhotoNames:
    """What the images of a task are known by.

    Attributes:
        data_set: that bare numbers among the store's ids belong to; None where nobody knows.
        rules: that the user named, which also tell which of Visual Genome's images are COCO's.
        called: the task's own names of images, by their ids in the store.
    """

    data_set: str | None = None
    rules: HeldOut = field(default_factory=lambda: HeldOut([]))
    called: Mapping[str, str] = field(default_factory=dict)

    def keys(self, image_id: str) -> list[Key]:
        name = self.called.get(image_id, image_id)
        keys = [*known_keys(image_id, self.data_set), *self.rules.keys_of(image_id, self.data_set)]
        return list(dict.fromkeys([*keys, *self.rules.keys_of(name, None)]))


def photo_names(words: HeldOutWords, store: FeatureStore, called: Mapping[str, str]) -> PhotoNames:
    """Raises ValueError for rules and files that are none."""
    data_set = checked_data_set(words.images_of, data_set_of_store(store.manifest))
    return PhotoNames(data_set, HeldOut(words.rules), called)


def check_own_splits(
    task: str,
    folder: Path,
    trained_files: Sequence[Path],
    image_ids: Sequence[str],
    names: PhotoNames,
    *,
    allowed: bool,
) -> list[str]:
    """Whether a run would train on images of the task's own validation and test files; a note where that is allowed.

    Args:
        trained_files: that the training split was read from, whole.
        image_ids: that are trained on.
    Raises:
        ValueError: naming the file, where it is not allowed.
    """
    trained = {path.resolve() for path in trained_files}
    there = reported_files(task, str(folder))
    files = [(task, path) for path in there if Path(path).resolve() not in trained]
    notes = [
        f"{Path(path).name} is trained on: nothing that is measured on it is held out"
        for path in there
        if Path(path).resolve() in trained
    ]
    try:
        report = HeldOut([], files).scan(image_ids, names.data_set, names.called) if files else None
    except ValueError as error:
        return [*notes, f"held-out images of {task} cannot be looked for: {error}"]
    if report is None or not report.leaked:
        return notes
    told = "; ".join(rule.line() for rule in report.rules if rule.found)
    if not allowed:
        raise ValueError(
            f"{counted(len(report.leaked), 'image')} of the training split lie in files that results are reported on: "
            f"{told}; take them out of one, or say --set data.shared_images=true"
        )
    return [*notes, f"{told}: what is measured on them is not held out"]


def other_tasks_leaks(
    task: str, folder: Path, trained_files: Sequence[Path], image_ids: Sequence[str], names: PhotoNames
) -> list[str]:
    """Notes on images that are trained on and that results of other tasks are reported on, as far as their own names
    or files beside those of the task tell; the rest only `--held-out` can name.

    Args:
        task, trained_files, image_ids: as of `check_own_splits`.
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
        told = "; ".join(
            f"{Path(each.location).relative_to(folder)}, {each.line()}"
            for each in (() if report is None else report.rules)
            if each.found
        )
        notes += [f"{told}: what is measured on them is not held out"] if told else []
    return notes


def check_read_splits(
    splits: Mapping[str, Sequence[str]], image_ids: Sequence[str], names: PhotoNames, *, allowed: bool
) -> list[str]:
    """As `check_own_splits`, of a task whose other splits are read as it reads them itself.

    Args:
        splits: split -> what the task calls its images.
    """
    trained = {key for image_id in image_ids for key in names.keys(image_id)}
    notes = []
    for split, images in splits.items():
        shared = [image for image in dict.fromkeys(images) if trained & set(names.keys(image))]
        told = f"{counted(len(shared), 'image')} of the split {split}" if shared else ""
        if shared and not allowed:
            raise ValueError(
                f"{told} are in the training split too, such as {printable(shared[0], 80)}: what is measured on them "
                f"is not held out; take them out of one split, or say --set data.shared_images=true"
            )
        notes += [f"{told} are trained on: what is measured on them is not held out"] if shared else []
    return notes


def check_given_rules(
    words: HeldOutWords, image_ids: Sequence[str], names: PhotoNames, where: str
) -> LeakReport | None:
    """What of the images that are trained on the user's rules hold out; None without a rule.

    Raises:
        ValueError: where there are any that are not to be left out, or nothing else is left.
    """
    if not words.rules:
        return None
    report = names.rules.scan(image_ids, names.data_set, names.called)
    if not words.leave_out:
        refuse_leaks(report, where)
    if report.leaked and len(report.leaked) == report.images:
        raise ValueError(f"{where}: all of its {report.images:,} images are held out; nothing is left to train on")
    return report


@dataclass(frozen=True)
class SeenBefore:
    """What of some images the run behind a model was trained on.

    Attributes:
        images: that were looked for.
        trained: ids of those that it was trained on; None where nobody knows.
        perhaps: ids of those whose bare number it was trained on, of an unknown data set.
    """

    images: int
    trained: tuple[str, ...] | None
    perhaps: tuple[str, ...] = ()

    def notes(self, model: object, what: str) -> list[str]:
        """For people.

        Args:
            model: what was trained.
            what: the images are of, such as "validation".
        """
        of = f"of {counted(self.images, f'{what} image')}"
        notes = []
        if self.trained:
            notes.append(f"{model} was trained on {len(self.trained):,} {of}, such as {printable(self.trained[0], 80)}")
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
        }


def seen_before(run: Path | None, image_ids: Sequence[str], names: PhotoNames) -> SeenBefore:
    """
    Args:
        run: folder of the run; None where the model is of none.
    Raises:
        ValueError: when its list of images is damaged.
    """
    trained = None if run is None else trained_among(run, image_ids, names.keys)
    if run is None or trained is None:
        return SeenBefore(len(image_ids), None)
    known = set(trained)
    others = [image_id for image_id in image_ids if image_id not in known]
    return SeenBefore(len(image_ids), tuple(trained), tuple(perhaps_trained_among(run, others, names.keys)))
