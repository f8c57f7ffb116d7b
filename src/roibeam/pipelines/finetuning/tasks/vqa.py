"""VQA v2 as a task: questions with soft targets, VQA accuracy, the test server's result file; or a user's own table.

Labels are the majority answers of the training questions, or a file, kept with the model. Sources: Antol et al.
(arXiv:1505.00468); hengyuan-hu/bottom-up-attention-vqa tools/compute_softscore.py.

A user's own table for each split can stand in place of official files, with any number of people: of more than three
each is left out in turn, as VQA does; of fewer an answer is as right as the share of those who gave it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from roibeam.messages import plural
from roibeam.pipelines.data.compatibility import check_choices, check_least
from roibeam.pipelines.data.datasets.rows import MissingFileError
from roibeam.pipelines.data.datasets.tables import AnswerRow, read_answer_table, table_of
from roibeam.pipelines.data.datasets.vqa import (
    MINIVAL_QUESTIONS,
    VqaInput,
    VqaLabels,
    minival_ids,
    read_imdb,
    read_stored_targets,
    read_vqa_inputs,
    read_vqa_labels,
)
from roibeam.pipelines.data.record_regions import swap_left_right
from roibeam.pipelines.finetuning.metrics.measure import Measure, write_entries
from roibeam.pipelines.finetuning.metrics.vqa import (
    AnsweredQuestion,
    HumanAnswer,
    answer_labels,
    few_measures,
    few_target,
    plain_answer,
    vqa_measures,
)
from roibeam.pipelines.finetuning.rows import LABEL, TaskGroup, TaskRow, mirrored_rows, text_row
from roibeam.pipelines.finetuning.scored_tasks import VQA_YEARS, find_file, has_own_tables
from roibeam.pipelines.finetuning.task import (
    DownstreamTask,
    Kept,
    Prediction,
    QuestionRows,
    TaskSplit,
    labelled_answers,
)
from roibeam.pipelines.finetuning.tasks.vqa_rules import (
    AS_WRITTEN,
    COUNT,
    GENOME_ANSWER,
    GENOME_QUESTIONS,
    IMDB,
    LABEL_FORMS,
    NONE,
    NORMALISED,
    ONLY_MINIVAL,
    PARTS,
    PYTHIA,
    QUESTION_FORMS,
    RAW,
    SCORE_RULES,
    STORED,
    TARGETS,
    TRAINED,
    WHOLE,
    check_same_labels,
    check_some_answers,
    enough_labels,
    genome_groups,
    judged_split,
    labels_of_file,
    mirrored_target,
    overlap_note,
    places_of,
    predicted_labels,
    scores_of,
    worded,
)

MAJORITY, MAJORITY_OF_BOTH = "majority", "majority-train+val"
MAJORITIES = (MAJORITY, MAJORITY_OF_BOTH)
VQA_LOSSES = ("bce", "kl", "ce")
_WITH_GENOME = "+visual-genome"  # of the name of a training split


@dataclass(frozen=True)
class VqaOptions:
    """
    Attributes:
        answers: "majority", the majority answers of the questions that are trained on; "majority-train+val", those of
            both parts whatever is trained on, as the releases count their 3,129; or a file with one label a line, or
            a list or dict of numbers as JSON (LXMERT) or pickled (compute_softscore.py).
        label_form: of a file's labels: "as_written", or in lower case and "without_signs" (VL-BERT).
        min_occurrence: questions that a majority answer needs; 9 in the releases.
        targets: whether people's answers are compared with the labels as they were written ("raw", as all releases do)
            or without articles, signs and number words ("normalised", as the metric does); or targets are "stored", in
            <split>_target.pkl beside the questions (ViLBERT), with the labels of the same making.
        score_rule: of a label: by the "count" of people who gave it, or with each of them "left_out" (VL-BERT).
        question: "raw"; or as "pythia" prepared it (VisualBERT): lower case, no commas, no question mark; or questions
            and answers are those of Pythia's own files, imdb_<split>.npy ("imdb").
        says_unknown: whether "<unk>" may be answered, where it is a label; it is never right (the releases).
        loss: "bce" of each answer, summed (ViLBERT, VL-BERT); "kl" (VisualBERT); "ce", cross-entropy of the targets
            made a distribution (VL-BERT's paper).
        train: "train"; "train+val", as VL-BERT and VisualBERT do, when no validation data are left; or
            "train+val-minival" (ViLBERT), which is judged on the minival questions.
        mirror: whether every other question of training stands beside the mirrored photo (VL-BERT): boxes are mirrored,
            left and right change places in question and answers, stored features stay as they are. From photos
            `photos.flip` decides.
        minival_questions: validation questions of the highest ids that are the minival.
        validation: of tables of one's own, the split that a run is judged on; "" for none.
        visual_genome: questions of Visual Genome that are trained on too, from its question_answers.json and
            image_data.json in the same folder: "none"; those about photos that COCO has too ("coco"); or "all". None is
            about an image that the run is evaluated on.
    """

    answers: str = MAJORITY
    label_form: str = AS_WRITTEN
    min_occurrence: int = 9
    targets: str = RAW
    score_rule: str = COUNT
    question: str = "raw"
    says_unknown: bool = False
    loss: str = "bce"
    train: str = "train"
    mirror: bool = False
    minival_questions: int = MINIVAL_QUESTIONS
    visual_genome: str = NONE
    validation: str = "val"

    def __post_init__(self) -> None:
        if self.validation not in ("", "val", "test"):
            raise ValueError(f"VqaOptions: validation must be val, test or nothing, got {self.validation!r}")
        check_choices(self, label_form=LABEL_FORMS, targets=TARGETS, score_rule=SCORE_RULES)
        check_choices(self, question=QUESTION_FORMS, loss=VQA_LOSSES, train=TRAINED)
        check_choices(self, visual_genome=GENOME_QUESTIONS)
        check_least(self, min_occurrence=1, minival_questions=1)
        if self.targets == STORED and (self.answers in MAJORITIES or self.question == IMDB):
            raise ValueError("VqaOptions: targets 'stored' need the labels they were made with: answers=FILE, no imdb")


class VqaFiles(NamedTuple):
    """The files of a part of VQA.

    Attributes:
        questions: the official file, or Pythia's.
        annotations: the official file; None without labels, or where Pythia's questions have their answers.
        targets: pickled ones, in place of those made from the answers.
    """

    questions: str
    annotations: str | None = None
    targets: str | None = None

    @property
    def paths(self) -> list[Path]:
        return [Path(path) for path in self if path is not None]


def open_vqa(folder: Path, options: VqaOptions, labels: Sequence[str] | None) -> DownstreamTask:
    """VQA v2 with its official files in `folder`, found by their names.

    Args:
        labels: of a trained model; None for those of the options.
    Raises:
        ValueError: also when the options name a file with other labels than the model learned.
    """
    if labels is None and options.validation != "val":
        raise ValueError(
            f"vqa.validation {options.validation!r} is of tables of your own, and --data has VQA's official files; "
            "there vqa.train=train+val leaves nothing to validate on"
        )
    train = options.train if options.visual_genome == NONE else f"{options.train}{_WITH_GENOME}"
    chosen = _chosen_labels(labels, options, MAJORITIES, lambda: _labels(folder, options))
    if labels is not None and options.targets == STORED:
        options = replace(options, targets=RAW)  # only training needs the stored ones

    def judge(groups: Sequence[TaskGroup], predicted: Sequence[str]) -> Mapping[str, Measure]:
        measures = vqa_measures(
            AnsweredQuestion(
                word, group.facts["answers"], group.facts["question_type"], group.facts["answer_type"], group.images[0]
            )
            for group, word in zip(groups, predicted, strict=True)
        )
        # `roibeam score` has the 65 types of questions; a run's log is read step by step.
        return {name: measure for name, measure in measures.items() if not name.startswith("question type ")}

    return _answer_task(
        options,
        chosen,
        lambda split: _read(folder, split, chosen, options),
        judge,
        is_new=labels is None,
        question_id=int,
        train=train,
        validation=judged_split(options.train),
        mirrored=lambda group: mirrored_group(group, chosen, options),
        splits=tuple(PARTS),
        has_label=lambda group: "answers" in group.facts,
        right_words=_people,
    )


def _chosen_labels(
    learned: Sequence[str] | None,
    options: VqaOptions,
    majorities: Sequence[str],
    majority_labels: Callable[[], tuple[str, ...]],
) -> tuple[str, ...]:
    """The labels of a trained model, else those that the options name: a file's, or majority answers.

    Args:
        majorities: names of majority answers that may stand in place of a file.
    """
    path = Path(options.answers).expanduser()
    if options.answers in majorities:
        return majority_labels() if learned is None else tuple(learned)
    if not path.is_file() and learned is not None:
        return tuple(learned)
    if not path.is_file():
        known = " or ".join(majorities)
        raise ValueError(f"vqa.answers {options.answers!r}: expected {known}, or a file with one label a line")
    found = labels_of_file(str(path), options.label_form)
    if learned is not None:
        check_same_labels(learned, found, f"vqa.answers {options.answers!r}")
    return found


def _answer_task(
    options: VqaOptions,
    labels: tuple[str, ...],
    read: Callable[[str], TaskSplit],
    judge: Callable[[Sequence[TaskGroup], Sequence[str]], Mapping[str, Measure]],
    *,
    is_new: bool,
    question_id: Callable[[str], Any],
    train: str,
    own_table: bool = False,
    **fields: Any,
) -> DownstreamTask:
    """The task of questions that are answered by a label.

    Args:
        judge: groups and their answers -> measures.
        is_new: whether a new model learns; then most questions must have an answer among the labels.
        question_id: id of a group -> that of the result file.
        fields: of `DownstreamTask`.
    """

    def words(predictions: Iterable[Prediction]) -> list[str]:
        return predicted_labels((each.scores for each in predictions), labels, says_unknown=options.says_unknown)

    def entry(group: TaskGroup, word: str) -> dict[str, Any]:
        asked = {"image": group.images[0], "question": group.rows[0].parts[0].text} if own_table else {}
        return {"question_id": question_id(group.id), **asked, "answer": word}

    def read_checked(split: str) -> TaskSplit:
        found = read(split)
        if is_new and split == train:
            check_some_answers(found.groups, labels, split, options.answers)
        return found

    return DownstreamTask(
        name="vqa",
        form=LABEL,
        loss=options.loss,
        read=read_checked,
        train=train,
        judge=lambda groups, predictions: judge(groups, words(predictions)),
        kept=Kept(words, judge),
        answers=labelled_answers(words, entry),
        own_table=own_table,
        write=write_entries,
        labels=labels,
        mirrors=options.mirror,
        directly=QuestionRows(lambda texts: question_row(texts[0], options), words),
        **fields,
    )


def vqa_groups(files: VqaFiles, labels: Sequence[str], options: VqaOptions) -> list[TaskGroup]:
    """The questions of the files in their order. A target is a label's number -> how right it is, or None."""
    stored = None if files.targets is None else _stored_targets(files.targets, len(labels))
    groups = []
    for question, known in _questions(files, options):
        target = None
        if known is not None:
            texts = [answer for answer, _, _ in known.answers]
            target = scores_of(texts, labels, text=options.targets, rule=options.score_rule)
        if stored is not None:
            target = stored.get(question.question_id)
            if target is None:
                raise ValueError(
                    f"{question.where}: question {question.question_id} has no target in {files.targets!r}"
                )
        groups.append(
            TaskGroup(
                id=str(question.question_id),
                images=(question.image,),
                rows=(text_row(worded(question.question, options.question)),),
                target=target,
                facts={} if known is None else _facts(known),
            )
        )
    return groups


def question_row(question: str, options: VqaOptions) -> TaskRow:
    """A question of one's own as a model reads it, which may have learned from the questions of Pythia's files."""
    form = PYTHIA if options.question == IMDB else options.question
    return text_row(worded(question, form))


def mirrored_group(group: TaskGroup, labels: Sequence[str], options: VqaOptions) -> TaskGroup:
    """The group beside its mirrored photo, as VL-BERT trains on half of the questions: left and right change places in
    the question and in people's answers. Raises ValueError when it has a target and no answers, as with stored targets
    alone.
    """
    rows = mirrored_rows(group.rows)
    if group.target is None:
        return replace(group, rows=rows, mirrored=True)
    if GENOME_ANSWER in group.facts:
        return replace(group, rows=rows, target=mirrored_target(group, labels), mirrored=True)
    if "answers" not in group.facts:
        raise ValueError(f"question {group.id}: its answers are not known, and left and right cannot change places")
    answers = [swap_left_right(each.answer) for each in group.facts["answers"]]
    target = scores_of(answers, labels, text=options.targets, rule=options.score_rule)
    return replace(group, rows=rows, target=target, mirrored=True)


def _people(group: TaskGroup) -> str:
    """People's answers, the most common one first."""
    return _counted(each.answer for each in group.facts["answers"])


def _counted(answers: Iterable[str]) -> str:
    """Answers with how many people gave each; of a single one the answer alone."""
    counts = Counter(answers)
    of = f" of {counts.total()} people"
    return (
        ", ".join(f"{answer} ({times}{of})" for answer, times in counts.most_common())
        if len(counts) > 1
        else "".join(counts)
    )


def _annotations(folder: Path, split: str) -> Path:
    return find_file(folder, f"v2_mscoco_{VQA_YEARS[split]}_annotations.json")


def _labels(folder: Path, options: VqaOptions) -> tuple[str, ...]:
    """Majority answers of the training questions. Raises ValueError where none occurs often enough."""
    counted_on = options.train if options.answers == MAJORITY else "train+val"
    files = [_annotations(folder, part) for part, _ in PARTS[counted_on]]
    majority = (
        (each.question_id, each.multiple_choice_answer) for path in files for each in read_vqa_labels(str(path))
    )
    return enough_labels(list(answer_labels(majority, options.min_occurrence)), files[0], options.min_occurrence)


def _files(folder: Path, part: str, options: VqaOptions) -> VqaFiles:
    year = VQA_YEARS[part]
    if options.question == IMDB:
        return VqaFiles(str(find_file(folder, f"imdb_{year}.npy")))
    questions = str(find_file(folder, f"v2_OpenEnded_mscoco_{year}_questions.json"))
    if part not in ("train", "val"):
        return VqaFiles(questions)
    targets = str(find_file(folder, f"{part}_target.pkl")) if options.targets == STORED else None
    return VqaFiles(questions, str(_annotations(folder, part)), targets)


def _read(folder: Path, split: str, labels: Sequence[str], options: VqaOptions) -> TaskSplit:
    if split.endswith(_WITH_GENOME):
        split = split.removesuffix(_WITH_GENOME)
        own, judged = _read(folder, split, labels, options), judged_split(split)
        images = {group.images[0] for group in _read(folder, judged, labels, options).groups} if judged else set()
        wording = RAW if options.question == IMDB else options.question
        added, note = genome_groups(folder, labels, which=options.visual_genome, wording=wording, judged=images)
        return TaskSplit([*own.groups, *added], own.files, (*own.notes, note))
    groups: list[TaskGroup] = []
    paths: list[Path] = []
    for part, which in PARTS[split]:
        files = _files(folder, part, options)
        paths += files.paths
        found = vqa_groups(files, labels, options)
        if which != WHOLE:
            minival = minival_ids([int(group.id) for group in found], options.minival_questions)
            found = [group for group in found if (int(group.id) in minival) == (which == ONLY_MINIVAL)]
        groups += found
    if not groups:
        raise ValueError(f"{split}: no question is left; {options.minival_questions} are the minival")
    overlap = overlap_note(split, options.train)
    return TaskSplit(groups, tuple(paths), (*_unanswerable(split, groups, options), *([overlap] if overlap else [])))


def _unanswerable(split: str, groups: Sequence[TaskGroup], options: VqaOptions) -> list[str]:
    """Note on questions without an answer among the labels, if there are any."""
    without = sum(group.target == {} for group in groups)
    if not without:
        return []
    share = without / len(groups)
    least = options.min_occurrence
    why = f": answers of at least {least} training questions; --set vqa.min_occurrence=1 takes all" if least > 1 else ""
    return [f"{split}: {plural(without, 'question')} ({share:.1%}) have no answer among the labels{why}"]


def _questions(files: VqaFiles, options: VqaOptions) -> Iterator[tuple[VqaInput, VqaLabels | None]]:
    """Questions with people's answers; None without labels."""
    if options.question == IMDB:
        for each in read_imdb(files.questions):
            question = VqaInput(each.where, each.question_id, each.image, " ".join(each.tokens))
            records = tuple((answer, "", number) for number, answer in enumerate(each.answers or ()))
            unknown = "not told"  # Pythia's files leave the types of questions and answers out
            known = VqaLabels(each.where, each.question_id, 0, unknown, unknown, "", records)
            yield question, None if each.answers is None else known
        return
    by_id = {} if files.annotations is None else {each.question_id: each for each in read_vqa_labels(files.annotations)}
    for question in read_vqa_inputs(files.questions):
        own = by_id.get(question.question_id)
        if by_id and (own is None or not own.answers):
            raise ValueError(
                f"{question.where}: question {question.question_id} has no answers in {files.annotations!r}; are both "
                f"of one split?"
            )
        yield question, own


def _stored_targets(path: str, num_labels: int) -> dict[int, dict[int, float]]:
    targets = {}
    for each in read_stored_targets(path):
        if any(number >= num_labels for number in each.scores):
            raise ValueError(f"{each.where}: a label of number {max(each.scores)}; there are {num_labels} labels")
        targets[each.question_id] = dict(each.scores)
    return targets


def _facts(known: VqaLabels) -> dict[str, Any]:
    """Facts for the metric; equal words are kept once for all questions."""
    answers = [
        HumanAnswer(sys.intern(answer), sys.intern(confidence), number) for answer, confidence, number in known.answers
    ]
    return {"answers": answers, "question_type": known.question_type, "answer_type": known.answer_type}


_SPLITS = ("train", "val", "test")
_OF_VQA_ALONE = ("train", "score_rule", "visual_genome", "minival_questions")  # settings that no table has


def open_vqa_or_table(folder: Path, options: VqaOptions, labels: Sequence[str] | None) -> DownstreamTask:
    """VQA v2 by its official files, or the tables of one's own that lie in the folder instead."""
    return open_vqa_table(folder, options, labels) if has_own_tables(folder) else open_vqa(folder, options, labels)


def check_vqa_folder(folder: Path, options: VqaOptions) -> None:
    """Raises ValueError, with the names of both kinds of files, where official files to train on are missing."""
    try:
        for part, _ in PARTS[options.train]:
            _files(folder, part, options)
    except MissingFileError as error:
        raise ValueError(
            f"{error}; or tables of your own, train.csv (.jsonl, .parquet) with the columns image, text and answers"
        ) from None


def open_vqa_table(folder: Path, options: VqaOptions, labels: Sequence[str] | None) -> DownstreamTask:
    """VQA with the user's own tables in `folder`.

    Args:
        labels: of a trained model; None for those of the options. Training settings of a model that learned from the
            official files do not matter here.
    """
    if labels is None:
        _check(options)
    chosen = _chosen_labels(labels, options, (MAJORITY,), lambda: _table_labels(folder, options))

    def judge(groups: Sequence[TaskGroup], predicted: Sequence[str]) -> Mapping[str, Measure]:
        facts = [(group.facts["answers"], group.images[0]) for group in groups]
        return few_measures((word, *each) for word, each in zip(predicted, facts, strict=True))

    return _answer_task(
        options,
        chosen,
        lambda split: _read_table(table_of(folder, split), split, chosen, options),
        judge,
        is_new=labels is None,
        question_id=str,
        train="train",
        own_table=True,
        validation=options.validation or None,
        mirrored=lambda group: _mirrored(group, chosen, options),
        splits=_SPLITS,
        has_label=lambda group: bool(group.facts["answers"]),
        right_words=lambda group: _counted(group.facts["answers"]),
        reported_by="labels",
    )


def _check(options: VqaOptions) -> None:
    """Raises ValueError for a setting that tables of one's own do not have."""
    known = VqaOptions()
    changed = [name for name in _OF_VQA_ALONE if getattr(options, name) != getattr(known, name)]
    changed += ["question"] if options.question == IMDB else []
    changed += ["targets"] if options.targets == STORED else []
    changed += ["answers"] if options.answers == MAJORITY_OF_BOTH else []
    if changed:
        raise ValueError(
            f"vqa.{changed[0]} {getattr(options, changed[0])!r} is of VQA's official files, and --data has tables of "
            f"your own; leave it out"
        )


def _table_labels(folder: Path, options: VqaOptions) -> tuple[str, ...]:
    """Majority answers of the training table: as they were written, or without articles and signs if answers are
    compared so."""
    path = table_of(folder, "train")
    majority = (max(Counter(row.answers).items(), key=lambda each: each[1])[0] for row in _answered_rows(path))
    if options.targets == NORMALISED:
        found = list(answer_labels(enumerate(majority), options.min_occurrence))
    else:
        found = [label for label, times in Counter(majority).items() if times >= options.min_occurrence]
    return enough_labels(found, path, options.min_occurrence)


def _answered_rows(path: Path) -> Iterator[AnswerRow]:
    """Rows of the training table. Raises ValueError for one without an answer."""
    for row in read_answer_table(path):
        if not row.answers:
            raise ValueError(
                f"{row.where}: no answers, and this is trained on; vqa needs the columns image, text and answers"
            )
        yield row


def _read_table(path: Path, split: str, labels: Sequence[str], options: VqaOptions) -> TaskSplit:
    groups = [
        TaskGroup(
            id=row.id,
            images=(row.image,),
            rows=(question_row(row.text, options),),
            target=_target(row.answers, labels, options) if row.answers else None,
            facts={"answers": row.answers},
        )
        for row in (_answered_rows(path) if split == "train" else read_answer_table(path))
    ]
    return TaskSplit(groups, (path,), tuple(_unanswerable(split, groups, options)))


def _target(answers: Sequence[str], labels: Sequence[str], options: VqaOptions) -> dict[int, float]:
    texts = list(map(plain_answer, answers)) if options.targets == NORMALISED else answers
    places = places_of(labels)
    return {places[label]: score for label, score in few_target(texts, places).items()}


def _mirrored(group: TaskGroup, labels: Sequence[str], options: VqaOptions) -> TaskGroup:
    """The group with left and right exchanged in the question and in people's answers."""
    turned = replace(group, rows=mirrored_rows(group.rows), mirrored=True)
    mirrored_answers = list(map(swap_left_right, group.facts["answers"]))
    return replace(turned, target=_target(mirrored_answers, labels, options)) if mirrored_answers else turned
