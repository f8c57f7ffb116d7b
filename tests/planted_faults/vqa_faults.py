"""Faults in the rules of VQA: labels, scores, wording, splits, what is mirrored and shown."""

from fault import Fault

_TEST = "tests/pipelines/test_vqa_task.py"
_ITEMS = "tests/pipelines/test_conformance_vqa_items.py::test_the_reference_arrays"

FAULTS = (
    Fault(
        "labels in another order are taken for the model's",
        "check_same_labels",
        "        if own != other:",
        "        if own not in given:",
        f"{_TEST}::test_labels_in_another_order_are_not_those_of_the_model",
    ),
    Fault(
        "minival has the lowest ids",
        "minival_ids",
        "sorted(question_ids)[-count:]",
        "sorted(question_ids)[:count]",
        f"{_TEST}::test_minival_is_the_last_questions_by_their_ids",
    ),
    Fault(
        "answers stay as they are beside a mirrored photo",
        "mirrored_group",
        'answers = [mirrored(each.answer) for each in group.facts["answers"]]',
        'answers = [each.answer for each in group.facts["answers"]]',
        f"{_TEST}::test_a_mirrored_question",
    ),
    Fault(
        "boxes stay where they are in a mirrored photo",
        "GroupBatches._input_image",
        "        if group.mirrored and self._photos is None:",
        "        if False:",
        f"{_TEST}::test_boxes_are_mirrored_and_features_are_not",
    ),
    Fault(
        "the whole image is the mean of what is shown",
        "GroupBatches._whole_image",
        "if self._options.whole_image == SHOWN or self._blind:",
        "if True:",
        f"{_ITEMS}[finetune_vilbert/data_vqa_first]",
    ),
    Fault(
        "a long question of VisualBERT's release loses its [SEP]",
        "lay_out",
        "before = _joined(spans[:-1]).kept(max_pieces - end)",
        "before = _joined(spans[:-1]).kept(max_pieces)",
        f"{_ITEMS}[finetune_visualbert/data_vqa]",
    ),
)
