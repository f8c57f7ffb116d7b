"""Images that must not be trained on because results are reported on them; each rule reads the official files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from roibeam.features.safe_pickle import load_pickle
from roibeam.features.shard.manifest import STORE_MANIFEST_NAME
from roibeam.features.store import FeatureStore
from roibeam.messages import plural, printable
from roibeam.pipelines.common.console.command_files import FOLDER, NamedFiles
from roibeam.pipelines.data.datasets.karpathy import TRAINING_SPLITS, read_karpathy
from roibeam.pipelines.data.datasets.known_files import describe_file, kind_of
from roibeam.pipelines.data.datasets.nlvr2 import read_nlvr2
from roibeam.pipelines.data.datasets.photo_folders import is_pattern
from roibeam.pipelines.data.datasets.rows import BadRow, member_entries, read_json_list
from roibeam.pipelines.data.datasets.tables import TASK_TABLE_KINDS, read_table
from roibeam.pipelines.data.datasets.vcr import read_vcr_images
from roibeam.pipelines.data.datasets.vqa import MINIVAL_QUESTIONS
from roibeam.pipelines.data.id_lists import NoIdListError, read_id_list
from roibeam.pipelines.data.image_identity import (
    COCO,
    FLICKR,
    VISUAL_GENOME,
    WHOLE_ID,
    Key,
    checked_data_set,
    data_set_of_source,
    data_set_of_store,
    image_keys,
    is_bare_number,
    whole_id,
)
from roibeam.pipelines.data.source_kinds import Source, open_source

_EXAMPLES = 3
_VQA_EXPECTED = 'a VQA file with a list "questions"'
_REFER_SPLITS = ("train", "val", "test", "testA", "testB", "testC")
_HeldOut = tuple[str, list[Key]]  # what the file calls an image, and what it is known by
Aliases = dict[Key, list[Key]]


@dataclass(frozen=True)
class RuleReport:
    """Images of one rule that are in a source or store.

    Attributes:
        location: the file; of a folder that the user named, one of its files.
        held_out: images that the file holds out.
        found: of those, how many are inside.
        examples: the first few images inside, as (image id, its name in the file).
        is_of_many: whether the rule has other files too, so that this one must be named.
    """

    rule: str
    location: str
    held_out: int
    found: int
    examples: tuple[tuple[str, str], ...]
    is_of_many: bool = False

    def line(self) -> str:
        name = f"{self.rule}, {printable(os.path.basename(self.location), 80)}" if self.is_of_many else self.rule
        what = f"{name}: {self.found:,} of {plural(self.held_out, 'held-out image')} inside"
        examples = ", ".join(
            printable(image_id, 80) if image_id == name else f"{printable(image_id, 80)} ({printable(name, 80)})"
            for image_id, name in self.examples
        )
        return f"{what}: {examples}{', ...' if self.found > len(self.examples) else ''}" if self.found else what


@dataclass(frozen=True)
class LeakReport:
    """Attributes:
    images: looked at.
    rules: one each.
    leaked: ids of the images that any rule holds out, in the order looked at.
    bare_numbers: ids that are no more than a number, of no known data set; compared as whole ids only.
    """

    images: int
    rules: tuple[RuleReport, ...]
    leaked: tuple[str, ...]
    bare_numbers: int

    def to_json(self) -> dict[str, Any]:
        rules = [
            {
                "rule": each.rule, "file": each.location, "held_out": each.held_out, "found": each.found,
                "examples": [list(example) for example in each.examples],
            }
            for each in self.rules
        ]  # fmt: skip
        return {"images": self.images, "leaked": len(self.leaked), "bare_numbers": self.bare_numbers, "rules": rules}

    def leaks(self) -> str:
        """The rules that hold out images inside, in one line."""
        return "; ".join(rule.line() for rule in self.rules if rule.found)

    def lines(self) -> list[str]:
        """Lines for the log: one for each rule, and one on images that could not be decided."""
        lines = [rule.line() for rule in self.rules]
        if self.bare_numbers:
            lines.append(
                f"bare numbers of no known data set: {plural(self.bare_numbers, 'id')}, compared as they stand; "
                "--numbers-of coco, flickr30k or visual-genome names their data set"
            )
        return lines


class HeldOut:
    """All rules of a command line.

    Args:
        specs: RULE=FILE each, RULE one of `RULES` (or visual-genome, which only lists which of Visual Genome's images
            are COCO's and Flickr's); or RULE=FOLDER with a data set's official files, of which those are read that
            results are reported on.
        files: rules and files more, each known to be there.
        id_prefix: that a store puts before ids; a name in a file that begins with it means the image without it, too.
    Raises:
        ValueError: one line: no such rule or file, a damaged file, a file that holds out nothing.
    """

    def __init__(self, specs: Sequence[str], files: Sequence[tuple[str, str]] = (), *, id_prefix: str = "") -> None:
        self._aliases: Aliases = {}
        self._names: list[tuple[str, str]] = []  # rule and file
        self._images: list[list[str]] = []  # of each rule, what the file calls its images
        self._by_key: dict[Key, list[tuple[int, int]]] = {}  # to rule and image
        found: list[tuple[int, int, list[Key]]] = []
        for rule, location in [*(place for spec in specs for place in _parsed(spec)), *files]:
            if rule == VISUAL_GENOME:
                self._aliases |= _read_visual_genome(location)
                continue
            images: dict[str, list[Key]] = {}
            try:
                for name, keys in RULES[rule](location):
                    images.setdefault(name, keys)
            except ValueError as error:
                words = describe_file(location)
                if words in str(error) or rule.startswith(kind_of(location)):  # in it, not known, or the right kind
                    raise
                raise ValueError(f"{error}; {words}") from None
            if not images:
                raise ValueError(f"--held-out {rule}={location}: the file holds out no image; is it the right one?")
            found += [(len(self._names), number, keys) for number, keys in enumerate(images.values())]
            self._names.append((rule, os.path.abspath(location)))
            self._images.append(list(images))
        if specs and not self._names:
            raise ValueError(
                "--held-out visual-genome=FILE lists only which of Visual Genome's images are from COCO and Flickr; "
                f"name a rule that holds out images too: {', '.join(RULES)}"
            )
        for rule_number, image_number, keys in found:
            bare = [
                (kind, str(name)[len(id_prefix) :])
                for kind, name in keys
                if kind == WHOLE_ID and id_prefix and str(name).startswith(id_prefix)
            ]
            for key in self._expanded([*keys, *bare]):
                self._by_key.setdefault(key, []).append((rule_number, image_number))

    def keys_of(self, image_id: str, data_set: str | None) -> list[Key]:
        """Keys of an image, in other data sets too."""
        return self._expanded(image_keys(image_id, data_set))

    def _expanded(self, keys: Iterable[Key]) -> list[Key]:
        """The keys, and those of the same photos in other data sets."""
        return [other for key in keys for other in (key, *self._aliases.get(key, ()))]

    def holds_out(self, image_id: str, data_set: str | None) -> bool:
        return any(key in self._by_key for key in self.keys_of(image_id, data_set))

    def scan(
        self, image_ids: Iterable[str], data_set: str | None, called: Mapping[str, str] = MappingProxyType({})
    ) -> LeakReport:
        """
        Args:
            image_ids: of a source or store, taken one by one.
            data_set: that bare numbers among them belong to, see `image_identity`.
            called: another name of some of the images, by their ids.
        """
        found: list[set[int]] = [set() for _ in self._names]
        examples: list[list[tuple[str, str]]] = [[] for _ in self._names]
        leaked: list[str] = []
        num_images = bare_numbers = 0
        for image_id in image_ids:
            num_images += 1
            other = called.get(image_id, image_id)
            bare_numbers += data_set is None and is_bare_number(image_id) and is_bare_number(other)
            keys = self.keys_of(image_id, data_set)
            keys += [] if other == image_id else self.keys_of(other, None)
            hits = dict(hit for key in keys for hit in self._by_key.get(key, ()))
            for rule, image in hits.items():
                found[rule].add(image)
                if len(examples[rule]) < _EXAMPLES:
                    examples[rule].append((image_id, self._images[rule][image]))
            if hits:
                leaked.append(image_id)
        return LeakReport(num_images, self._reports(list(map(len, found)), examples), tuple(leaked), bare_numbers)

    def scan_kept(
        self,
        image_ids: Iterable[str],
        data_set: str | None,
        where: str,
        *,
        leave_out: bool,
        called: Mapping[str, str] = MappingProxyType({}),
    ) -> LeakReport:
        """`scan` of images of `where` that are to be trained on.

        Args:
            leave_out: whether those that are held out are dropped, instead of an error.
        Raises:
            ValueError: in one line, where any is held out and not to be dropped, or where no other is left.
        """
        report = self.scan(image_ids, data_set, called)
        if not report.leaked:
            return report
        if not leave_out:
            raise ValueError(
                f"{where}: {plural(len(report.leaked), 'image')} of {report.images:,} must not be trained on: "
                f"{report.leaks()}; --drop-held-out drops them"
            )
        if len(report.leaked) == report.images:
            raise ValueError(f"{where}: all of its {report.images:,} images are held out; nothing is left to train on")
        return report

    def images_among(self, is_among: Callable[[Sequence[Key]], bool], num_images: int) -> LeakReport:
        """The other way round, for images known by keys alone: looks up each held-out image with `is_among`."""
        keys: list[list[list[Key]]] = [[[] for _ in images] for images in self._images]
        for key, places in self._by_key.items():
            for rule, image in places:
                keys[rule][image].append(key)
        inside = [
            [name for name, own in zip(names, of_rule, strict=True) if is_among(own)]
            for names, of_rule in zip(self._images, keys, strict=True)
        ]
        examples = [[(name, name) for name in names[:_EXAMPLES]] for names in inside]
        leaked = tuple(dict.fromkeys(name for names in inside for name in names))
        return LeakReport(num_images, self._reports(list(map(len, inside)), examples), leaked, 0)

    def _reports(self, found: Sequence[int], examples: Sequence[Sequence[tuple[str, str]]]) -> tuple[RuleReport, ...]:
        times = Counter(name for name, _ in self._names)
        return tuple(
            RuleReport(
                name, location, len(self._images[rule]), found[rule], tuple(examples[rule]), is_of_many=times[name] > 1
            )
            for rule, (name, location) in enumerate(self._names)
        )


def find_leaks(
    images: str,
    held_out: Sequence[str],
    *,
    image_root: str | None = None,
    id_rule: str = "no-extension",
    images_of: str | None = None,
    caption_column: str = "",
) -> LeakReport:
    """Report on the images of a source, or of a store's folder, that are held out.

    Args:
        images: folder of a store; anything else, with `image_root`, `id_rule` and `caption_column`, is as of
            `open_source`.
        held_out: as of `HeldOut`.
        images_of: as of `checked_data_set`.
    """
    named = NamedFiles()
    named.need("SOURCE_OR_STORE", None if is_pattern(images) else images)
    named.need("--photos", image_root, FOLDER)
    rules = named.look(lambda: HeldOut(held_out))
    named.check()
    assert rules is not None
    if (Path(images) / STORE_MANIFEST_NAME).is_file():
        with FeatureStore(images) as store:
            return rules.scan(store.ids(), checked_data_set(images_of, data_set_of_store(store.manifest)))
    source = open_source(images, image_root=image_root, id_rule=id_rule, caption_column=caption_column)
    data_set = checked_data_set(images_of, data_set_of_source(source))
    return rules.scan((image.image_id for image in source.images), data_set)


def keep_out(held_out: HeldOut, source: Source, data_set: str | None, *, leave_out: bool) -> tuple[Source, LeakReport]:
    """The source without images that are held out, with notes on them; errors as of `HeldOut.scan_kept`."""
    ids = (image.image_id for image in source.images)
    report = held_out.scan_kept(ids, data_set, source.location, leave_out=leave_out)
    notes = [*source.notes, *report.lines()]
    if report.leaked:
        leaked = set(report.leaked)
        source = source.with_images(image for image in source.images if image.image_id not in leaked)
        notes.append(f"{plural(len(leaked), 'image')} left out as held out")
    return replace(source, notes=notes), report


def held_out_hint(image_ids: Iterable[str], data_set: str | None) -> str | None:
    """Hint on rules that would apply to these images, where their names are of a known data set."""
    applying = {
        COCO: "--held-out 'refcoco+=refs(unc).p', --held-out karpathy=dataset_coco.json, --held-out vqa=FOLDER",
        FLICKR: "--held-out flickr30k=test.txt or --held-out karpathy=dataset_flickr30k.json",
        VISUAL_GENOME: "--held-out visual-genome=image_data.json with the rules of COCO and Flickr30k",
    }
    counts = dict.fromkeys(applying, 0)
    for image_id in image_ids:
        for name, _ in image_keys(image_id, data_set):
            if name in counts:
                counts[name] += 1
    titles = {COCO: "COCO", FLICKR: "Flickr30k or Flickr8k", VISUAL_GENOME: "Visual Genome"}
    found = [f"{plural(count, 'image')} of {titles[name]}: {applying[name]}" for name, count in counts.items() if count]
    if not found:
        return None
    return f"to report results on test images of these data sets, leave them out now: {'; '.join(found)}"


def reported_files(rule: str, folder: str) -> list[str]:
    """The official files of a rule that lie in a folder, or in one right below it, and hold images out."""
    found: list[str] = []
    for name in _REPORTED.get(rule, ()):
        own = Path(folder) / name
        found += [str(own)] if own.is_file() else sorted(map(str, Path(folder).glob(f"*/{name}")))
    return found


def _parsed(spec: str) -> list[tuple[str, str]]:
    """The rule with each of its files."""
    rule, equals, location = spec.partition("=")
    if not equals or rule not in (*RULES, VISUAL_GENOME):
        names = ", ".join([*RULES, VISUAL_GENOME])
        raise ValueError(f"--held-out {spec!r}: expected RULE=FILE with one of the rules {names}")
    if os.path.isdir(location):
        found = reported_files(rule, location)
        if not found:
            expected = " or ".join(_REPORTED.get(rule, ())) or "a file, which this rule needs"
            raise ValueError(f"--held-out {spec!r}: the folder holds no {expected}")
        return [(rule, each) for each in found]
    if not os.path.isfile(location):
        raise ValueError(f"--held-out {spec!r}: no such file: {location!r}")
    return [(rule, location)]


def _read_refer(path: str) -> Iterator[_HeldOut]:
    """refs(*).p of RefCOCO, RefCOCO+ and RefCOCOg: all splits but train. file_name names no file, image_id does."""
    refs = load_pickle(path)
    expected = 'a list of references with "image_id" and "split"'
    if not isinstance(refs, list):
        raise ValueError(f"{path!r}: expected {expected}, got {type(refs).__name__}")
    for index, ref in enumerate(refs):
        number, split = (ref.get("image_id"), ref.get("split")) if isinstance(ref, dict) else (None, None)
        if type(number) is not int or split not in _REFER_SPLITS:
            raise ValueError(
                f"{path!r}, reference {index}: expected {expected}, a whole number and one of "
                f"{', '.join(_REFER_SPLITS)}; got {printable(repr(number))} and {printable(repr(split))}"
            )
        if split != "train":
            yield f"COCO {number}", [(COCO, number)]


def _read_karpathy(path: str) -> Iterator[_HeldOut]:
    """dataset_coco.json and dataset_flickr30k.json: val and test."""
    for image in read_karpathy(path):
        if image.split in TRAINING_SPLITS:
            continue
        keys = [(COCO, image.coco_id)] if image.coco_id is not None else image_keys(image.image_id, FLICKR)
        yield image.image_id, [*keys, whole_id(image.image_id)]


def _read_flickr30k(path: str) -> Iterator[_HeldOut]:
    """test.txt or val.txt of Flickr30k Entities: all of its ids."""
    for image_id in _ids_of(path):
        yield image_id, [*image_keys(image_id, FLICKR), whole_id(image_id)]


def _read_list(path: str) -> Iterator[_HeldOut]:
    try:
        ids = _ids_of(path)
    except NoIdListError as error:
        others = "--held-out coco=FILE reads a file of COCO, karpathy=FILE a Karpathy split, labels=FILE a table"
        raise ValueError(f"{error}; {others}") from None
    for image_id in ids:
        yield image_id, image_keys(image_id, None)


def _ids_of(path: str) -> list[str]:
    return sorted(read_id_list(Path(path)).ids)


def _numbers_of(path: str, member: str, *names: str, expected: str) -> Iterator[list[int]]:
    """Whole numbers of each entry of a file's list, by their names."""
    for where, entry in member_entries(path, member, expected=expected):
        found: list[Any] = [entry.get(name) if isinstance(entry, dict) else None for name in names]
        if any(type(number) is not int for number in found):
            kind = "a whole number" if len(names) == 1 else "whole numbers"
            got = ", ".join(map(repr, found))
            raise ValueError(f"{where}: {' and '.join(names)} must be {kind}, got {got:.80}")
        yield found


def _read_vqa(path: str) -> Iterator[_HeldOut]:
    """A questions file of VQA: the images of all of its questions."""
    for (number,) in _numbers_of(path, "questions", "image_id", expected=_VQA_EXPECTED):
        yield f"COCO {number}", [(COCO, number)]


def _read_minival(path: str) -> Iterator[_HeldOut]:
    """VQA's validation questions: the images of the highest ids, on which ViLBERT's releases are judged."""
    found = sorted(_numbers_of(path, "questions", "question_id", "image_id", expected=_VQA_EXPECTED))
    for _, number in found[-MINIVAL_QUESTIONS:]:
        yield f"COCO {number}", [(COCO, number)]


def _read_coco(path: str) -> Iterator[_HeldOut]:
    """An annotation file of COCO, such as instances_minival2014.json: all of its images."""
    for (number,) in _numbers_of(path, "images", "id", expected='a file of COCO with a list "images"'):
        yield f"COCO {number}", [(COCO, number)]


def _read_labels(path: str) -> Iterator[_HeldOut]:
    """Images of a user's own table, such as val.csv."""
    if Path(path).suffix not in TASK_TABLE_KINDS:
        raise ValueError(f"{path!r}: expected a table, one of {', '.join(TASK_TABLE_KINDS)}")
    for row in read_table(Path(path)):
        yield row.image, image_keys(row.image, None)


def _read_vcr(path: str) -> Iterator[_HeldOut]:
    """val.jsonl or test.jsonl of VCR: the image of each question."""
    for image in read_vcr_images(path):
        if isinstance(image, BadRow):  # an image that is not named cannot be kept out
            raise ValueError(f"{path!r}, line {image.line}: expected a VCR row with img_fn: {image.reason}")
        yield image.file_name, image_keys(image.file_name, None)


def _read_nlvr2(path: str) -> Iterator[_HeldOut]:
    """dev.json, test1.json or test2.json of NLVR2: both images of each statement."""
    for statement in read_nlvr2(path):
        for image in statement.images:
            yield image, image_keys(image, None)


def _read_visual_genome(path: str) -> Aliases:
    """image_data.json of Visual Genome: which of its images are COCO's ("coco_id") and Flickr's ("flickr_id")."""
    expected = 'Visual Genome\'s image_data.json, a list of images with "image_id" and "coco_id"'
    aliases: Aliases = {}
    for index, entry in enumerate(read_json_list(path, expected=expected)):
        number = entry.get("image_id", entry.get("id")) if isinstance(entry, dict) else None
        others = {COCO: entry.get("coco_id"), FLICKR: entry.get("flickr_id")} if isinstance(entry, dict) else {}
        if type(number) is not int or any(type(other) not in (int, type(None)) for other in others.values()):
            raise ValueError(f"{path!r}, entry {index}: expected {expected}, whole numbers or null")
        same: list[Key] = [(name, other) for name, other in others.items() if other is not None]
        for other in same:
            aliases.setdefault((VISUAL_GENOME, number), []).append(other)
            aliases.setdefault(other, []).append((VISUAL_GENOME, number))
    return aliases


RULES: dict[str, Callable[[str], Iterator[_HeldOut]]] = {
    "refcoco": _read_refer, "refcoco+": _read_refer, "refcocog": _read_refer, "karpathy": _read_karpathy,
    "flickr30k": _read_flickr30k, "coco": _read_coco, "vqa": _read_vqa, "vqa-minival": _read_minival, "vcr": _read_vcr,
    "nlvr2": _read_nlvr2, "labels": _read_labels, "list": _read_list,
}  # fmt: skip
_VQA_QUESTIONS = "v2_OpenEnded_mscoco_{}_questions.json"
# Files of a folder that results are reported on, by their official names.
_REPORTED: dict[str, tuple[str, ...]] = {
    "refcoco": ("refs(unc).p", "refs(google).p"),
    "refcoco+": ("refs(unc).p",),
    "refcocog": ("refs(umd).p", "refs(google).p"),
    "karpathy": ("dataset_coco.json", "dataset_flickr30k.json", "dataset_flickr8k.json"),
    "flickr30k": ("val.txt", "test.txt"),
    "vqa": tuple(map(_VQA_QUESTIONS.format, ("val2014", "test2015", "test-dev2015"))),
    "vqa-minival": (_VQA_QUESTIONS.format("val2014"),),
    "vcr": ("val.jsonl", "test.jsonl"),
    "nlvr2": ("dev.json", "test1.json", "test2.json"),
    "labels": tuple(f"{split}{kind}" for split in ("val", "test") for kind in TASK_TABLE_KINDS),
    VISUAL_GENOME: ("image_data.json",),
}
