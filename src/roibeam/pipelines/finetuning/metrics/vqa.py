"""VQA accuracy: an answer is as right as other people agree with it; and the result file, joined with the annotations.

Source: Antol et al. (arXiv:1505.00468, section 5.1), as GT-Vision-Lab/VQA vqaEval.py computes it, with its rules for
the text of an answer: signs, number words, articles, contractions. Its published numbers are those of Python 2, whose
digits are only 0-9, and whose lower case and white space are those of older Unicode tables; so are these.

The file is a json list of {"question_id": 42, "answer": "yes"}. Training targets of published codes stand here too: all
of them look annotators' answers up as they were written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache, partial
from typing import Any, NamedTuple

from roibeam.pipelines.data.datasets.image_boxes import excerpt
from roibeam.pipelines.data.datasets.rows import read_json_list
from roibeam.pipelines.data.datasets.vqa import VqaLabels
from roibeam.pipelines.finetuning.metrics.measure import Measure, is_csv
from roibeam.pipelines.finetuning.metrics.own_labels import read_csv_results

_SIGNS = ';/[]"{}()=+\\_-><@`,?!'
_COMMA_IN_NUMBER = re.compile("[0-9],[0-9]")
_PERIOD = re.compile("[.](?![0-9])")
MOST_PERIODS = 32  # the official code passes re.UNICODE, which is 32, where the count belongs
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBER_OF_WORD = {"none": "0"} | {word: str(number) for number, word in enumerate(_NUMBERS)}
_ARTICLES = ("a", "an", "the")
_SPACES = "".join(letter for letter in map(chr, range(0x3001)) if letter.isspace()) + "\u180e"  # the last in Python 2
_WORDS = re.compile(f"[^{re.escape(_SPACES)}]+")

# Words that are restored from a spelling without any apostrophe. Not every contraction is in the official list.
_FROM_PLAIN = """
ain't aren't can't could've couldn't didn't doesn't don't hadn't hasn't haven't he'd he's how'd how'll how's
isn't it'd it'll ma'am mightn't might've mustn't must've needn't not've o'clock oughtn't shan't should've
shouldn't somebody'll somebody's someone'd someone'll someone's something'd something'll that's there'd there're
there's they'd they'll they're they've 'twas wasn't we've weren't what'll what're what's what've when's where'd
where's where've who'd who'll who's who've why'll why're why's won't would've wouldn't y'all you'd you'll you're
you've
"""
# Those with other wrong spellings, and "somebodyd", where the official list has the pair the wrong way round.
_FROM_OTHERS = {
    "couldn't've": "couldn'tve couldnt've", "hadn't've": "hadnt've hadn'tve", "he'd've": "hed've he'dve",
    "it'd've": "itd've it'dve", "mightn't've": "mightnt've mightn'tve", "'ow's'at": "ow's'at 'ows'at 'ow'sat",
    "she'd've": "shed've she'dve", "shouldn't've": "shouldnt've shouldn'tve", "somebodyd": "somebody'd",
    "somebody'd've": "somebodyd've somebody'dve", "someone'd've": "someoned've someone'dve",
    "something'd've": "somethingd've something'dve", "there'd've": "thered've there'dve",
    "they'd've": "theyd've they'dve", "we'd've": "wed've we'dve", "who'd've": "whod've who'dve",
    "wouldn't've": "wouldnt've wouldn'tve", "y'all'll": "yall'll y'allll",
    "y'all'd've": "yall'd've y'alld've y'all'dve", "you'd've": "youd've you'dve",
}  # fmt: skip
_CONTRACTIONS = {word.replace("'", ""): word for word in _FROM_PLAIN.split()} | {
    wrong: right for right, wrongs in _FROM_OTHERS.items() for wrong in wrongs.split()
}


def without_line_ends(text: str) -> str:
    """Line ends and tabs as spaces, none at the ends: done to every answer, before answers are compared."""
    return text.replace("\n", " ").replace("\t", " ").strip(_SPACES)


def without_signs(text: str) -> str:
    """Each sign dropped where a space is beside one of its kind in `text`, or a comma between digits anywhere in it;
    else a space. Periods dropped, unless a digit follows."""
    has_comma_in_number = _COMMA_IN_NUMBER.search(text) is not None
    found = text
    for sign in _SIGNS:
        is_dropped = has_comma_in_number or f"{sign} " in text or f" {sign}" in text
        found = found.replace(sign, "" if is_dropped else " ")
    return _PERIOD.sub("", found, count=MOST_PERIODS)


def plain_words(text: str) -> str:
    """Lower case, number words as digits, no articles, contractions with their apostrophes, single spaces."""
    words = [_NUMBER_OF_WORD.get(word, word) for word in _WORDS.findall(_lower(text))]
    return " ".join(_CONTRACTIONS.get(word, word) for word in words if word not in _ARTICLES)


@lru_cache(maxsize=2**16)  # people of one data set give the same answer some hundred times
def plain_answer(text: str) -> str:
    """`without_signs`, then `plain_words`: the form in which answers are compared when annotators disagree."""
    return plain_words(without_signs(text))


def _lower(text: str) -> str:
    """Lower case letter by letter: a last sigma stays a sigma, a dotted capital I becomes a plain i."""
    return text.lower() if text.isascii() else "".join(letter.lower()[0] for letter in text)


ENOUGH = 3  # people with the same answer make it wholly right


class HumanAnswer(NamedTuple):
    """One record of a question's answers. Records that are equal in all three count as one person."""

    answer: str
    confidence: str
    answer_id: int


class AnsweredQuestion(NamedTuple):
    """A question with its prediction and people's answers."""

    predicted: str
    answers: Sequence[HumanAnswer]
    question_type: str
    answer_type: str
    image: str


def answer_accuracy(predicted: str, answers: Sequence[HumanAnswer]) -> float:
    """Mean over the people of min(1, matches among the others / 3).

    Texts are compared as they are where all people wrote the same, else as `plain_answer`. With ten records that
    differ, 0, 1, 2, 3 and more matches give 0, .3, .6, .9 and 1. The answers are not changed (the official object
    changes its own, so that a second file scored with it gets another number). Raises ValueError without answers.
    """
    if not answers:
        raise ValueError("a question without any answer of a person has no accuracy")
    people = [each._replace(answer=without_line_ends(each.answer)) for each in answers]
    own = without_line_ends(predicted)
    if len({each.answer for each in people}) > 1:
        people = [each._replace(answer=plain_answer(each.answer)) for each in people]
        own = plain_answer(own)
    matching = [each for each in people if each.answer == own]
    total = 0.0
    for each in people:
        total += min(1.0, sum(other != each for other in matching) / ENOUGH)
    return total / len(people)


def few_accuracy(predicted: str, answers: Sequence[str]) -> float:
    """`answer_accuracy` for any number of people.

    For more than three people it is the same; for fewer, the share of those who gave the answer. Raises ValueError
    without answers.
    """
    if len(answers) > ENOUGH or not answers:
        return answer_accuracy(predicted, [HumanAnswer(each, "", number) for number, each in enumerate(answers)])
    people = [without_line_ends(each) for each in answers]
    own = without_line_ends(predicted)
    if len(set(people)) > 1:
        people, own = list(map(plain_answer, people)), plain_answer(own)
    return people.count(own) / len(people)


def vqa_measures(questions: Iterable[AnsweredQuestion]) -> dict[str, Measure]:
    """ "overall", then "answer type ..." and "question type ..." by name."""
    rows: dict[str, tuple[list[float], list[AnsweredQuestion]]] = {"overall": ([], [])}
    by_kind: dict[str, tuple[list[float], list[AnsweredQuestion]]] = {}
    for each in questions:
        accuracy = answer_accuracy(each.predicted, each.answers)
        for values, group in (
            rows["overall"],
            by_kind.setdefault(f"answer type {each.answer_type}", ([], [])),
            by_kind.setdefault(f"question type {each.question_type}", ([], [])),
        ):
            values.append(accuracy)
            group.append(each)
    found = rows | dict(sorted(by_kind.items()))
    return {
        name: Measure(name, values, [each.image for each in group], guess=partial(_commonest, group))
        for name, (values, group) in found.items()
    }


def _commonest(questions: Sequence[AnsweredQuestion]) -> float:
    """Accuracy of always the answer that most people gave, or the second one if it is right more often."""
    return _best_of_commonest(
        [[each.answer for each in row.answers] for row in questions],
        [partial(answer_accuracy, answers=row.answers) for row in questions],
    )


def _best_of_commonest(answers: Sequence[Sequence[str]], accuracies: Sequence[Callable[[str], float]]) -> float:
    """Best accuracy of the two commonest answers; `accuracies` has for each question that of an answer."""
    counts = Counter(answer for own in answers for answer in own)
    return max(sum(of(answer) for of in accuracies) / len(accuracies) for answer, _ in counts.most_common(2))


def few_measures(questions: Iterable[tuple[str, Sequence[str], str]]) -> dict[str, Measure]:
    """ "overall", by `few_accuracy`, of (prediction, people's answers, image)."""
    rows = list(questions)
    values = [few_accuracy(predicted, answers) for predicted, answers, _ in rows]
    people = [answers for _, answers, _ in rows]
    guess = partial(_best_of_commonest, people, [partial(few_accuracy, answers=each) for each in people])
    return {"overall": Measure("overall", values, [image for _, _, image in rows], guess=guess)}


def printed_percent(percent: float, decimals: int = 2) -> float:
    """Percent as the official code prints it: exact halves away from zero, as Python 2 rounds."""
    return float(Decimal(percent).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP))


def read_vqa_results(path: str) -> Iterator[tuple[int, str]]:
    """(question id, answer) of each entry, as `vqa_result_rows`."""
    return vqa_result_rows(read_json_list(path, expected="VQA's result file, a json list of answers"), repr(path))


def vqa_result_rows(entries: Iterable[Any], source: str) -> Iterator[tuple[int, str]]:
    """(question id, answer) of each entry; other fields are ignored. Raises ValueError naming the entry whose id is no
    whole number or whose answer is no text."""
    for index, entry in enumerate(entries):
        number, answer = (entry.get("question_id"), entry.get("answer")) if isinstance(entry, dict) else (None, None)
        if isinstance(number, str) and number.isdecimal():
            raise ValueError(
                f"{source}, entry {index}: question_id is the text {excerpt(number)}, and VQA's ids are whole numbers; "
                f"take the quotes away, as int(...) does in Python"
            )
        if type(number) is not int or not isinstance(answer, str):
            raise ValueError(
                f"{source}, entry {index}: expected a whole number as question_id and a text as answer, "
                f"got {excerpt(number)} and {excerpt(answer)}"
            )
        yield number, answer


def read_own_answers(path: str) -> Iterator[tuple[str, str]]:
    """(question id, answer) of each entry, with ids that are texts; a whole number counts as its digits."""
    if is_csv(path):
        yield from read_csv_results(path, "question_id", "answer")
        return
    for index, entry in enumerate(read_json_list(path, expected="a json list of answers")):
        name, answer = (entry.get("question_id"), entry.get("answer")) if isinstance(entry, dict) else (None, None)
        if type(name) not in (str, int) or not isinstance(answer, str):
            raise ValueError(
                f"{path!r}, entry {index}: expected texts as question_id and answer, got {excerpt(name)} and "
                f"{excerpt(answer)}"
            )
        yield str(name), answer


def answered_questions(labels: Iterable[VqaLabels], answers: dict[int, str]) -> Iterator[AnsweredQuestion]:
    """The rows of the metric, in the order of the annotations. Raises ValueError for one without an answer."""
    for each in labels:
        if not each.answers:
            raise ValueError(f"{each.where}: no answer of a person, so that no accuracy can be computed")
        people = [HumanAnswer(*record) for record in each.answers]
        yield AnsweredQuestion(
            answers[each.question_id], people, each.question_type, each.answer_type, str(each.image_id)
        )


UNKNOWN = "<unk>"
_SCORES = (0.0, 0.3, 0.6, 0.9, 1.0)  # of 0, 1, 2, 3, more people


def label_of(majority_answer: str) -> str:
    """Label of a `multiple_choice_answer` by compute_softscore.py: `plain_answer` without the commas left in it."""
    return plain_answer(majority_answer).replace(",", "")


def soft_score(people: int) -> float:
    """Score of an answer that `people` of ten people gave."""
    return _SCORES[min(people, len(_SCORES) - 1)]


def answer_labels(majority_answers: Iterable[tuple[int, str]], min_occurrence: int) -> dict[str, int]:
    """The labels, in the order of their first question, with the number of different questions of each.

    Source: hengyuan-hu/bottom-up-attention-vqa and jnhwkim/ban-vqa, tools/compute_softscore.py.

    Args:
        majority_answers: (question id, multiple_choice_answer) of all splits together.
        min_occurrence: questions that a label needs; 9 in the releases.
    """
    questions: dict[str, set[int]] = {}
    for question, answer in majority_answers:
        questions.setdefault(label_of(answer), set()).add(question)
    return {label: len(each) for label, each in questions.items() if len(each) >= min_occurrence}


def soft_target(answers: Iterable[str], labels: Iterable[str]) -> dict[str, float]:
    """Label -> how right it is; answers as they were written, without those that are no label."""
    known = set(labels)
    return {answer: soft_score(people) for answer, people in Counter(answers).items() if answer in known}


def few_target(answers: Sequence[str], labels: Iterable[str]) -> dict[str, float]:
    """`soft_target` for any number of people: each left out in turn; for three and fewer, the share who gave it."""
    known, of = set(labels), len(answers)
    return {
        answer: _left_out(people, of) if of > ENOUGH else people / of
        for answer, people in Counter(answers).items()
        if answer in known
    }


def vlbert_vocabulary(lines: Iterable[str]) -> list[str]:
    """Labels of jackroos/VL-BERT, vqa/data/datasets/vqa.py: lower case, no signs; `UNKNOWN` stays as it is."""
    stripped = (line.lower().strip() for line in lines)
    return [line if line == UNKNOWN else without_signs(line) for line in stripped if line]


def vlbert_soft_target(answers: Sequence[str], vocabulary: Sequence[str]) -> dict[int, float]:
    """Place in the vocabulary (the first of equal labels) -> how right; nothing for answers that are no label.

    Each person is left out in turn, as in the metric, so that other numbers of people than ten count too.
    """
    places: dict[str, int] = {}
    for place, label in enumerate(vocabulary):
        places.setdefault(label, place)
    counts = Counter(places[answer] for answer in answers if answer in places and answer != UNKNOWN)
    return {place: _left_out(people, len(answers)) for place, people in counts.items()}


def _left_out(people: int, of: int) -> float:
    """Mean over all people of min(1, others who gave the answer / 3)."""
    return (people * min(1.0, (people - 1) / ENOUGH) + (of - people) * min(1.0, people / ENOUGH)) / of
