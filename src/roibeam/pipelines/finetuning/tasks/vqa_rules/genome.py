"""Questions of Visual Genome beside those of VQA in training, as bottom-up attention's authors and others take them.

One person has answered each, so that an answer which is a label is right, and a question with another one is left out.
Source: jnhwkim/ban-vqa dataset.py, which takes the photos that COCO has too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from roibeam.features.counted import counted
from roibeam.pipelines.data.datasets.visual_genome_questions import read_genome_questions
from roibeam.pipelines.finetuning.metrics.vqa_targets import label_of
from roibeam.pipelines.finetuning.rows import TaskGroup, TaskRow, TaskText
from roibeam.pipelines.finetuning.scored_tasks import find_file
from roibeam.pipelines.finetuning.tasks.vqa_rules.answers import places_of
from roibeam.pipelines.finetuning.tasks.vqa_rules.wording import mirrored, worded

NONE, OF_COCO, ALL = "none", "coco", "all"
GENOME_QUESTIONS = (NONE, OF_COCO, ALL)
GENOME_ANSWER = "genome_answer"  # of a group's facts


def genome_groups(
    folder: Path, labels: Sequence[str], *, which: str, wording: str, judged: Collection[str]
) -> tuple[list[TaskGroup], str]:
    """The questions whose answer is a label, and a note on those that were left out.

    Args:
        which: `OF_COCO`, photos that COCO has too; or `ALL`.
        wording: of `QUESTION_FORMS`.
        judged: names of the images that the run is judged on, as VQA has them; no question about one of them is taken.
    Raises:
        ValueError: for files that are missing or not as Visual Genome writes them, or no question that is left.
    """
    questions = str(find_file(folder, "question_answers.json"))
    places, unseen = places_of(labels), {int(name[-12:]) for name in judged}
    groups: list[TaskGroup] = []
    unknown = on_judged = 0
    for each in read_genome_questions(questions, str(find_file(folder, "image_data.json"))):
        if each.coco is None and which == OF_COCO:
            continue
        if each.coco in unseen:
            on_judged += 1
            continue
        answer = label_of(each.answer)
        if answer not in places:
            unknown += 1
            continue
        row = TaskRow((TaskText((worded(each.question, wording),)),))
        groups.append(
            TaskGroup(f"vg-{each.number}", (each.image,), (row,), {places[answer]: 1.0}, facts={GENOME_ANSWER: answer})
        )
    if not groups:
        raise ValueError(f"{questions!r}: no question is left whose answer is a label; leave vqa.visual_genome at none")
    note = f"Visual Genome: {counted(len(groups), 'question')}; left out are {unknown:,} whose answer is no label"
    return groups, f"{note}, and {on_judged:,} about images that the run is judged on"


def mirrored_target(group: TaskGroup, labels: Sequence[str]) -> dict[int, float]:
    """What is right beside the mirrored photo."""
    answer, places = mirrored(group.facts[GENOME_ANSWER]), places_of(labels)
    return {places[answer]: 1.0} if answer in places else {}
