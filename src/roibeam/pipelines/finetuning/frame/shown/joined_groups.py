"""Groups whose images are in a store: which are there, under which id, and which images a run must not share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from roibeam.features.counted import counted
from roibeam.features.printable import printable
from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.image_finder import ImageFinder
from roibeam.pipelines.data.image_identity import Key, image_keys
from roibeam.pipelines.finetuning.results.row_ids import check_row_ids
from roibeam.pipelines.finetuning.rows import TaskGroup
from roibeam.pipelines.finetuning.task import DownstreamTask

_SHOWN = 3


@dataclass(frozen=True)
class JoinedGroups:
    """
    Attributes:
        groups: those whose images are all there, with the ids that the store has.
        missing: different images that are not there, by the names that the task has.
        num_images: different images that the task names.
        left_out: groups without one of their images.
        called: what the task calls images that the store has under other ids, by these.
    """

    groups: Sequence[TaskGroup]
    missing: tuple[str, ...]
    num_images: int
    left_out: int
    called: Mapping[str, str] = field(default_factory=dict)

    def notes(self, what: str) -> list[str]:
        """For people: a line where something is missing."""
        if not self.missing:
            return []
        shown = ", ".join(printable(name, 60) for name in self.missing[:_SHOWN])
        return [
            f"{what}: {counted(self.left_out, 'group')} left out: the store lacks {len(self.missing):,} of "
            f"{counted(self.num_images, 'image')}, such as {shown}"
        ]

    def without(self, image_ids: Iterable[str]) -> JoinedGroups:
        """Without the groups that show one of these images."""
        dropped = set(image_ids)
        return replace(self, groups=[group for group in self.groups if not dropped & set(group.images)])

    def image_ids(self) -> list[str]:
        """Different ones, in the order of the groups."""
        return list(dict.fromkeys(image for group in self.groups for image in group.images))


class StoreImages:
    """Finds the images of tasks in a store, by the rules that captions are joined by (`ImageFinder`)."""

    def __init__(self, store: FeatureStore) -> None:
        self._store = store
        self._finder: ImageFinder | None = None
        self._found: dict[str, str | None] = {}

    def join(self, groups: Sequence[TaskGroup], what: str, *, min_match: float, hint: str = "") -> JoinedGroups:
        """
        Args:
            what: the groups are, for people.
            min_match: least share of the images that the store must have, 0..1.
            hint: what else could be done, for the end of an error.
        Raises:
            ValueError: when it has fewer, or not one of them.
        """
        kept = []
        names = dict.fromkeys(image for group in groups if group.is_open for image in group.images)
        missing = tuple(name for name in names if self.id_of(name) is None)
        for group in groups:
            if not group.is_open:
                kept.append(group)
                continue
            ids = [self.id_of(image) for image in group.images]
            if None not in ids:
                kept.append(replace(group, images=tuple(str(each) for each in ids)))
        called = {own: name for name in names if (own := self.id_of(name)) is not None and own != name}
        joined = JoinedGroups(kept, missing, len(names), len(groups) - len(kept), called)
        found = len(names) - len(missing)
        if not kept or found < min_match * len(names):
            shown = ", ".join(printable(name, 60) for name in missing[:_SHOWN])
            raise ValueError(
                f"{what}: store {self._store.path} has {found:,} of {counted(len(names), 'image')}; missing are "
                f"{shown}; extract them too{hint}"
            )
        return joined

    def id_of(self, name: str) -> str | None:
        """That the store has an image under; None for an image that it has not."""
        if name not in self._found:
            if name in self._store:
                self._found[name] = name
            else:
                self._finder = self._finder or ImageFinder(self._store.ids())
                self._found[name] = self._finder.find(name)
        return self._found[name]


def shared_images(train: Iterable[str], validation: Iterable[str]) -> list[str]:
    """Images of the validation split that are trained on, under whatever name."""
    trained: set[Key] = {key for image in train for key in image_keys(image, None)}
    return [image for image in validation if trained & set(image_keys(image, None))]


def check_ids(task: DownstreamTask, groups: Sequence[TaskGroup], what: str) -> None:
    """Raises ValueError where two groups of a problem have one id: their predictions could not be told apart."""
    ids = [group.id if task.turns is None else f"{group.id}, {task.turns(group)}" for group in groups]
    check_row_ids(what, ids, list(dict.fromkeys(ids)), unit="id")


def check_told(groups: Sequence[TaskGroup], is_told: Callable[[TaskGroup], bool], what: str, use: str) -> None:
    """Raises ValueError where nobody tells what is right for a group that is trained on, or judged.

    Args:
        use: what is done with the groups.
    """
    untold = [group.id for group in groups if not is_told(group)]
    if untold:
        raise ValueError(
            f"{what}: nothing says what is right for {counted(len(untold), 'row')} of {len(groups):,} (first: "
            f"{printable(untold[0], 80)}), and this split is {use}"
        )
