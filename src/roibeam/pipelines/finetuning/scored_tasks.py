"""Tasks that can be scored: their official files, the join of a result file with them, and tasks of a user's own file.

A file of Python in place of a task, `--task gqa.py`, sets `TASK`, an `OwnTask`; `label_task` of tasks/labels.py makes
one from a few lines. It is run, as any program that its user starts, so only when it is named: a run's folder keeps its
digest, and never a copy that `roibeam predict` would run by itself.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from roibeam.messages import name_hint, plural, printable
from roibeam.pipelines.data.datasets import vqa
from roibeam.pipelines.data.datasets.entities import EntityCounts, read_entities, split_names
from roibeam.pipelines.data.datasets.karpathy import KARPATHY, read_captioned
from roibeam.pipelines.data.datasets.nlvr2 import read_nlvr2
from roibeam.pipelines.data.datasets.refer import ReferringSentence, read_refer, read_refer_detections
from roibeam.pipelines.data.datasets.rows import MissingFileError, find_file
from roibeam.pipelines.data.datasets.tables import TableRow, read_answer_table, read_table, table_of, tables_in
from roibeam.pipelines.data.datasets.text_sets import GLUE_TASKS
from roibeam.pipelines.data.datasets.vcr import IMAGES_FOLDER, metadata_path, read_vcr_labels
from roibeam.pipelines.finetuning.metrics.glue import SUBMISSION, open_glue, open_submission
from roibeam.pipelines.finetuning.metrics.grounding import GROUNDING_RULES, open_entities_labels
from roibeam.pipelines.finetuning.metrics.measure import (
    OFFICIAL,
    STRICT,
    Measures,
    OpenTask,
    ScoredTask,
    check_labelled,
    check_row_ids,
    rows_by_id,
)
from roibeam.pipelines.finetuning.metrics.nlvr2 import judged_statements, nlvr2_measures, read_nlvr2_predictions
from roibeam.pipelines.finetuning.metrics.own_labels import own_label_measures, read_label_results
from roibeam.pipelines.finetuning.metrics.referring import (
    BOX_RULES,
    detected_bound,
    read_referring_results,
    referring_measures,
)
from roibeam.pipelines.finetuning.metrics.retrieval import checked_scores, retrieval_measures, retrieval_numbers
from roibeam.pipelines.finetuning.metrics.vcr import VcrScores, chosen_rows, read_vcr_results, vcr_measures
from roibeam.pipelines.finetuning.metrics.vqa import (
    answered_questions,
    few_measures,
    read_own_answers,
    read_vqa_results,
    vqa_measures,
)
from roibeam.pipelines.finetuning.task import NamedTask

# Names of the files of referring expressions. Instances are those of the data set, or all of COCO's.
REFS: Mapping[str, str] = MappingProxyType(
    {"refcoco": "refs(unc).p", "refcoco+": "refs(unc).p", "refcocog": "refs(umd).p"}
)
INSTANCES_NAMES = ("instances.json", "instances_train2014.json")
DETECTIONS_NAME = "res101_coco_minus_refer_notime_dets.json"  # of MAttNet


MINIVAL = "minival"  # of VQA, see `minival_ids`
VQA_YEARS = {"train": "train2014", "val": "val2014", MINIVAL: "val2014", "test": "test2015", "test-dev": "test-dev2015"}
_STRICT = "an id that is missing, doubled or unknown is an error"
_ROW_RULES = "of several lines of one id the last counts; missing and unknown ids are errors"
OWN_SPLITS = ("val", "train", "test")  # of tables of one's own


def has_own_tables(folder: Path) -> bool:
    """Whether a folder has tables of the user's own questions, and none of VQA's files."""
    if not tables_in(folder):
        return False
    official = (*(f"*{year}_questions.json" for year in VQA_YEARS.values()), "imdb_*.npy")
    return not any(path for name in official for path in (*folder.glob(name), *folder.glob(f"*/{name}")))


def _by_id(
    path: Path,
    ids: Sequence[Any],
    unit: str,
    rules: str,
    metric: str,
    read: Callable[[str], Iterable[tuple[Any, Any]]],
    score: Callable[[Any], Measures],
    *,
    official: str = _ROW_RULES,
    **more: Any,
) -> OpenTask:
    """A task whose result file has a row for each id of a label file; of several rows of one id the official rules take
    the last.

    Args:
        read: a result file -> (id, prediction) of each of its rows.
        official: what the official rules do, for the card.
    """
    check_row_ids(repr(str(path)), ids, unit=unit)

    def joined(results: str) -> dict[Any, Any]:
        return rows_by_id(repr(results), read(results), ids, unit=unit, rules=rules)

    return OpenTask(
        metric, official if rules == OFFICIAL else _STRICT, (path,), len(ids), joined, score, ids=ids, **more
    )


def _open_vqa_table(folder: Path, split: str, rules: str) -> OpenTask:
    if split not in OWN_SPLITS:
        raise ValueError(f"tables of your own have no split {split!r}; choose one of {', '.join(OWN_SPLITS)}")
    path = table_of(folder, split)
    rows = list(read_answer_table(path))

    def score(answers: Mapping[str, str]) -> Measures:
        check_labelled((row.where for row in rows if not row.answers), "answers")
        return few_measures((answers[row.id], row.answers, row.image) for row in rows)

    metric = "VQA accuracy, each person left out in turn; with three people or fewer, the share with the same answer"
    ids = [row.id for row in rows]
    return _by_id(path, ids, "question", rules, metric, read_own_answers, score, is_own=True)


def _open_vqa(folder: Path, split: str, rules: str) -> OpenTask:
    if has_own_tables(folder):
        return _open_vqa_table(folder, split, rules)
    year, part = VQA_YEARS[split], vqa.QUESTIONS if split.startswith("test") else vqa.ANNOTATIONS
    path = find_file(folder, f"v2_{'OpenEnded_' * (part == vqa.QUESTIONS)}mscoco_{year}_{part}.json")
    questions = list(vqa.read_vqa_question_ids(str(path), part))
    chosen = vqa.minival_ids(questions) if split == MINIVAL else frozenset(questions)
    questions = [each for each in questions if each in chosen]

    @cache
    def labels() -> list[vqa.VqaLabels]:  # which takes ten times as long as their ids
        return [each for each in vqa.read_vqa_labels(str(path)) if each.question_id in chosen]

    def score(answers: dict[int, str]) -> Measures:
        if split in ("test", "test-dev"):
            raise ValueError(f"VQA's {split} split has no labels here; --check checks a submission")
        return vqa_measures(answered_questions(labels(), answers))

    metric = "VQA accuracy (vqaEval.py with Python 2): mean of min(1, matches among the other people / 3)"
    official = "as vqa.py: the last of several answers counts; missing and unknown ids are errors"
    return _by_id(path, questions, "question", rules, metric, read_vqa_results, score, official=official)


def _open_vcr(folder: Path, split: str, _rules: str) -> OpenTask:
    path = find_file(folder, f"{split}.jsonl")
    labels = list(read_vcr_labels(str(path)))
    questions = [each.annot_id for each in labels]
    check_row_ids(repr(str(path)), questions, unit="question")

    def read(results: str, *, whole: bool = False) -> dict[str, VcrScores]:
        return rows_by_id(repr(results), read_vcr_results(results, whole=whole), questions, unit="question")

    metric = (
        "share of right choices (eval_q2ar.py); QA->R is given the right answer; the first of equal scores is taken"
    )
    rules_words = (
        f"{_STRICT}; there is no public scorer of this file, so official rules are the same; a file of answers or of "
        "rationales alone is scored too, the leaderboard's has both"
    )
    return OpenTask(
        metric,
        rules_words,
        (path,),
        len(labels),
        read,
        lambda scores: vcr_measures(chosen_rows(labels, scores)),
        read_whole=partial(read, whole=True),
        ids=questions,
    )


def _open_nlvr2(folder: Path, split: str, rules: str) -> OpenTask:
    path = find_file(folder, f"{split}.json")
    statements = list(read_nlvr2(str(path)))
    identifiers = [each.identifier for each in statements]
    check_row_ids(repr(str(path)), identifiers, unit="statement")
    metric = "accuracy; consistency by identifier without its third field (nlvr2/eval/metrics.py)"
    rules_words = (
        "as metrics.py: the last of several lines counts, unknown ids are ignored, other words than True and False miss"
    )
    strict = f"{_STRICT}, as is a word other than True and False"
    return OpenTask(
        metric,
        rules_words if rules == OFFICIAL else strict,
        (path,),
        len(statements),
        lambda results: read_nlvr2_predictions(results, identifiers, rules),
        lambda predictions: nlvr2_measures(judged_statements(statements, predictions)),
        ids=identifiers,
    )


def _open_refer(name: str) -> Callable[[Path, str, str], OpenTask]:
    def open_task(folder: Path, split: str, rules: str) -> OpenTask:
        path, instances = find_file(folder, REFS[name]), find_file(folder, *INSTANCES_NAMES)
        every = list(read_refer(str(path), str(instances)))
        check_data_set(name, path, every)
        sentences = [each for each in every if each.split == split]
        if not sentences:
            raise ValueError(f"{str(path)!r}: no sentence of the split {split}")
        rule = BOX_RULES["refer" if rules in (STRICT, OFFICIAL) else rules]
        metric, files = f"share of sentences whose box hits: {rule.words}", [path, instances]
        detections: Path | None = None
        with suppress(MissingFileError):
            detections = find_file(folder, DETECTIONS_NAME)
        if detections is not None:
            metric += "; upper bound: share of those that any of MAttNet's boxes hits, whatever boxes the file is of"
            files.append(detections)

        @cache
        def bound() -> Measures:
            if detections is None:
                return {}
            found = detected_bound(sentences, read_refer_detections(str(detections)), rule)
            return {found.name: found}

        return OpenTask(
            metric,
            _STRICT,
            tuple(files),
            len(sentences),
            lambda results: referring_measures(sentences, read_referring_results(results), repr(results), rule),
            lambda measures: {**measures, **bound()},
            ids=[each.sent_id for each in sentences],
        )

    return open_task


def check_data_set(name: str, refs: Path, sentences: Iterable[ReferringSentence]) -> None:
    """Checks that a file of references is that of the data set: two of them have files of one name.

    Args:
        name: one of `REFS`.
    Raises:
        ValueError: when its folder has the name of another one, or a split as many sentences as that of another one.
    """
    others = [each for each, file in REFS.items() if file == REFS[name] and each != name]
    counts, own = Counter(each.split for each in sentences), SCORED_TASKS[name].splits
    for other in others:
        what = ""
        if refs.resolve().parent.name.lower() == other:
            what = f"lies in a folder called {other}"
        for split, count in counts.items():
            if count == SCORED_TASKS[other].splits.get(split) != own.get(split):
                what = f"has {count:,} sentences of {split}, as {other} has and {name} has not"
        if what:
            raise ValueError(
                f"{str(refs)!r} {what}; both call their file so: give --data the folder of {name}, or take the task "
                f"{other}"
            )


def opened_rows(
    path: Path, rows: Sequence[TableRow], read: Callable[[str], Iterable[tuple[str, str]]], rules: str
) -> OpenTask:
    """Opens a task of one label for each row of a file.

    Args:
        read: a result file -> (id, label) of each of its lines.
    """

    def score(predicted: Mapping[str, str]) -> Measures:
        check_labelled(row.where for row in rows if row.label is None)
        right = [row.label for row in rows if row.label is not None]
        return own_label_measures([predicted[row.id] for row in rows], right, [row.image for row in rows])

    return _by_id(path, [row.id for row in rows], "row", rules, "share of rows whose label is predicted", read, score)


def _open_labels(folder: Path, split: str, rules: str) -> OpenTask:
    path = table_of(folder, split)
    return opened_rows(path, list(read_table(path)), read_label_results, rules)


def _open_retrieval(folder: Path, split: str, rules: str) -> OpenTask:
    pictures, path = read_captioned(folder, split)
    images = [each.image for each in pictures]
    captions = [each.caption_id(number) for each in pictures for number in range(len(each.captions))]
    folds = COCO_FOLDS if rules == FIVE_FOLDS else None
    metric = (
        "share of queries whose right image, or best right caption, is among the first K; equal scores count against it"
    )
    rules_words = {
        FIVE_FOLDS: f"{_STRICT}; images in {COCO_FOLDS} parts of their order, each searched by itself, and their mean",
        SUBSET: "some of the images, each with all of its captions",
    }
    return OpenTask(
        metric,
        rules_words.get(rules, _STRICT),
        (path,),
        len(captions),
        lambda results: checked_scores(Path(results), captions, images, subset=rules == SUBSET),
        partial(retrieval_measures, folds=folds),
        numbers=partial(retrieval_numbers, folds=folds),
        ids=captions,
    )


FIVE_FOLDS, SUBSET, COCO_FOLDS = "five-folds", "subset", 5  # of retrieval
_ENTITIES = "flickr30k-entities"
_BOX_RULES = (STRICT, OFFICIAL, "uniter", "vl-bert", "vilbert")
BOTH_RULES = (STRICT, OFFICIAL)
# Numbers of rows: of the data sets' own pages and papers; of RefCOCO, RefCOCO+ and RefCOCOg, sentences.
SCORED_TASKS: Mapping[str, ScoredTask] = MappingProxyType(
    {
        "vqa": ScoredTask(
            {"val": 214_354, "train": 443_757, "test": 447_793, "test-dev": 107_394, MINIVAL: 3_000},
            BOTH_RULES,
            _open_vqa,
        ),
        "vcr": ScoredTask({"val": 26_534, "train": 212_923, "test": 25_263}, BOTH_RULES, _open_vcr),
        "nlvr2": ScoredTask({"dev": 6_982, "train": 86_373, "test1": 6_967, "test2": 6_970}, BOTH_RULES, _open_nlvr2),
        "refcoco": ScoredTask(
            {"val": 10_834, "testA": 5_657, "testB": 5_095, "train": 120_624}, _BOX_RULES, _open_refer("refcoco")
        ),
        "refcoco+": ScoredTask(
            {"val": 10_758, "testA": 5_726, "testB": 4_889, "train": 120_191}, _BOX_RULES, _open_refer("refcoco+")
        ),
        "refcocog": ScoredTask({"val": 4_896, "test": 9_602, "train": 80_512}, _BOX_RULES, _open_refer("refcocog")),
        "retrieval": ScoredTask(
            {"test": None, "val": None, "train": None}, (*BOTH_RULES, FIVE_FOLDS, SUBSET), _open_retrieval
        ),
        "labels": ScoredTask(dict.fromkeys(OWN_SPLITS), BOTH_RULES, _open_labels),
        **{
            name: ScoredTask({task.validation: 0, **task.rows}, BOTH_RULES, open_glue(name))
            for name, task in GLUE_TASKS.items()
        },
        _ENTITIES: ScoredTask(
            dict.fromkeys(("val", "test", "train")), (*BOTH_RULES, *GROUNDING_RULES), open_entities_labels
        ),
        SUBMISSION: ScoredTask({"dev": None, "test": None}, BOTH_RULES, open_submission),
    }
)  # fmt: skip


# Captions of Karpathy's splits, by the name of the file.
_CAPTIONS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "dataset_flickr30k.json": {"train": 145_000, "val": 5_070, "test": 5_000},
        "dataset_coco.json": {"train": 566_747, "val": 25_010, "test": 25_010},
    }
)
# Photos of Flickr30k Entities, of which not all captions have phrases with boxes.
_PHOTOS: Mapping[str, int] = MappingProxyType({"train": 29_783, "val": 1_000, "test": 1_000})
_VCR_PHOTOS: Mapping[str, int] = MappingProxyType({"train": 80_418, "val": 9_929, "test": 9_557})


class SplitCheck(NamedTuple):
    """Findings of `check_data` in a split, or in its photos.

    Attributes:
        rows: those that are scored; photos of Flickr30k Entities; None where the split cannot be read.
        published: None where no count is known.
        first, last: ids of rows.
        fault: what is wrong; "" for nothing.
        is_missing: whether its file is not there.
    """

    split: str
    rows: int | None
    published: int | None
    files: tuple[str, ...]
    first: str = ""
    last: str = ""
    fault: str = ""
    is_missing: bool = False


def check_data(task: str, folder: Path) -> list[SplitCheck]:
    """Reads all splits of a task. Raises ValueError for an unknown task."""
    if task not in SCORED_TASKS:
        raise ValueError(f"no task {task!r}: {name_hint(task, SCORED_TASKS)}")
    is_own = task == "vqa" and has_own_tables(folder)
    splits = dict.fromkeys(OWN_SPLITS) if is_own else SCORED_TASKS[task].splits
    found = [_checked(task, folder, split, published) for split, published in splits.items()]
    photos = [_photos(task, folder, each.split) for each in found if task in ("vcr", "nlvr2") and each.rows]
    return found + [each._replace(is_missing=False) for each in photos]  # rows are there, and name them


def _failed(split: str, published: int | None, error: Exception, rows: int | None = None) -> SplitCheck:
    words = re.sub(r"--(data|entities) ", "DATA ", re.sub(r"^--split '\w+': ", "", str(error)))
    is_missing = rows is None and isinstance(error, MissingFileError | FileNotFoundError)
    return SplitCheck(split, rows, published, (), fault=words, is_missing=is_missing)


def _checked(task: str, folder: Path, split: str, published: int | None) -> SplitCheck:
    published = _PHOTOS[split] if task == _ENTITIES else published
    for name in KARPATHY if task == "retrieval" else ():
        with suppress(ValueError):
            published = _CAPTIONS.get(find_file(folder, name).name, {}).get(split)
    rows: int | None = None
    counts = EntityCounts()
    try:
        opened = partial(_open_images, counts) if task == _ENTITIES else SCORED_TASKS[task].open
        found = opened(folder, split, STRICT)
        published, rows = None if found.is_own else published, found.rows
        if task == "vqa" and not found.is_own:  # answers are scored without the questions
            path = str(find_file(folder, f"v2_OpenEnded_mscoco_{VQA_YEARS[split]}_questions.json"))
            asked = list(vqa.read_vqa_question_ids(path))
            check_row_ids(repr(path), asked, asked if split == MINIVAL else found.ids, unit="question")
        if task in REFS:
            with suppress(MissingFileError):  # only expressions on detected boxes need it
                _check_detections(find_file(folder, DETECTIONS_NAME), found.files, split)
    except (ValueError, OSError) as error:
        return _failed(split, published, error, rows)
    fault = "; ".join(filter(None, (_fewer(rows, published), _too_few(counts, rows) if task == _ENTITIES else "")))
    first, last = (str(found.ids[0]), str(found.ids[-1])) if len(found.ids) else ("", "")
    return SplitCheck(split, rows, published, tuple(map(str, found.files)), first, last, fault)


def _fewer(rows: int, published: int | None) -> str:
    if published is None or rows == published:
        return ""
    less = plural(abs(rows - published), "row")
    return f"{f'{less} fewer: cut' if rows < published else f'{less} more'}, or another version"


def _check_detections(path: Path, files: Sequence[Path], split: str) -> None:
    """ValueError where more than a tenth of the split's images have none."""
    have = {number for number, _ in read_refer_detections(str(path))}
    images = {each.image_id for each in read_refer(str(files[0]), str(files[1])) if each.split == split}
    if 10 * len(images - have) > len(images):
        counts = f"{len(images - have):,} of {plural(len(images), 'image')} of {split}"
        raise ValueError(f"{path}: {counts} have no detection in it: cut, or of another data set")


def _too_few(counts: EntityCounts, images: int) -> str:
    """Note on boxes and captions, if more than a tenth of the images lack some."""
    found = {"images without a box": counts.left_out["xml files without a box"]}
    found["captions fewer than five an image"] = 5 * images - counts.sentences
    return "; ".join(f"{count:,} {what}" for what, count in found.items() if 10 * count > images)


def _open_images(counts: EntityCounts, folder: Path, split: str, rules: str) -> OpenTask:
    """The images of Flickr30k Entities as rows. Raises ValueError naming one that cannot be read."""
    names, path = split_names(str(folder), split), folder / f"{split}.txt"
    unread = names - {each.name for each in read_entities(str(folder), counts, names=names) if each.sentences}
    reasons = f" ({'; '.join(counts.lines()[1:])})" if counts.left_out else ""
    if unread:
        raise ValueError(f"{path}: {plural(len(unread), 'image')} cannot be read, such as {min(unread)}{reasons}")
    return _by_id(path, sorted(names), "image", rules, "", read_label_results, dict)


def _photos(task: str, folder: Path, split: str) -> SplitCheck:
    """Looks for the photos that rows name, and for VCR's files beside them, by their names."""
    part, published = f"photos of {split}", _VCR_PHOTOS.get(split) if task == "vcr" else None
    try:
        if task == "vcr":
            place, path = find_file(folder, IMAGES_FOLDER), str(find_file(folder, f"{split}.jsonl"))
            photos = {each.image for each in read_vcr_labels(path)}
        else:
            place, path = find_file(folder, "images"), str(find_file(folder, f"{split}.json"))
            photos = {name for each in read_nlvr2(path) for name in each.images}
    except (ValueError, OSError) as error:
        return _failed(part, published, error)
    there = {name for _, _, names in os.walk(place, followlinks=True) for name in names}
    beside = map(metadata_path, photos if task == "vcr" else ())
    gone = sorted(name for name in (*photos, *beside) if os.path.basename(name) not in there)
    fault = f"{plural(len(gone), 'file')} not below {place}, such as {gone[0]}" if gone else ""
    fault = fault or _fewer(len(photos), published)
    return SplitCheck(part, len(photos.difference(gone)), published, (str(place),), fault=fault)


logger = logging.getLogger(__name__)

SUFFIX = ".py"


class OwnTask(NamedTuple):
    """Attributes:
    task: for training and predictions.
    scored: for `roibeam score`; None without scores.
    """

    task: NamedTask
    scored: ScoredTask | None = None


def is_own(name: str) -> bool:
    """Whether a task is named by its file."""
    return name.endswith(SUFFIX)


def task_name(name: str) -> str:
    """Name of a task in settings and cards: "gqa" of "tasks/gqa.py"."""
    return Path(name).stem if is_own(name) else name


def digest_of_task(name: str) -> str:
    """SHA-256 (hex) of the file; "" for a task of roibeam itself."""
    return hashlib.sha256(Path(name).expanduser().read_bytes()).hexdigest() if is_own(name) else ""


def own_task(name: str, option: str = "--task") -> OwnTask:
    """Runs the file and takes its `TASK`. Raises ValueError when there is no such file, it does not run, or it sets no
    `TASK`."""
    path = Path(name).expanduser()
    if not path.is_file():
        raise ValueError(f"{option} {name!r}: no such file")
    if not path.stem.isidentifier():
        raise ValueError(f"{option} {name!r}: the name is that of the task in --set; use letters, digits and _ alone")
    spec = importlib.util.spec_from_file_location(f"roibeam_own_task_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        words = printable(f"{type(error).__name__}: {error}", 300)
        raise ValueError(f"{option} {name!r} does not run: {words}") from error
    found = getattr(module, "TASK", None)
    if not isinstance(found, OwnTask):
        what = "sets no TASK" if found is None else f"sets TASK to a {type(found).__name__}"
        raise ValueError(f"{option} {name!r} {what}; expected an OwnTask, such as label_task makes")
    return found


def resolve_task(described: Mapping[str, Any], task_file: str | None) -> str:
    """The name or the file of the task that a run learned.

    Args:
        described: the task, in the run's configuration.
    Raises:
        ValueError: when the task is one of the user's own and its file is not named, or the named one is another.
    """
    name, digest = str(described["task"]), described.get("task_file")
    if digest is None:
        if task_file is not None and task_file != name:
            raise ValueError(f"--task {task_file!r}: the run learned {name}; leave --task out")
        return name
    if task_file is None:
        raise ValueError(f"--task is missing: the run learned a task of your own; name its file, such as {name}.py")
    if not is_own(task_file) or task_name(task_file) != name:
        raise ValueError(f"--task {task_file!r}: the run learned {name}, of a file {name}.py")
    if not Path(task_file).expanduser().is_file():
        raise ValueError(f"--task {task_file!r}: no such file")
    if digest_of_task(task_file) != digest:
        logger.warning("%s has changed since the run learned it", task_file)
    return task_file
