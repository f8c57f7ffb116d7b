"""Faults in fine-tuning through the detector: how often a photo is convolved, what is mirrored, masked and shown."""

from fault import Fault

_FINETUNING = "src/roibeam/pipelines/finetuning"
_TEST = "tests/pipelines/test_finetune_end_to_end.py"

FAULTS = (
    Fault(
        "a photo is convolved once for each row",
        f"{_FINETUNING}/frame/group_batches.py",
        "rows.image((place, *together), partial",
        "rows.image((place, number, *together), partial",
        f"{_TEST}::test_a_photo_is_read_and_convolved_once_for_a_question",
    ),
    Fault(
        "masks stay where they are in a mirrored photo",
        f"{_FINETUNING}/end_to_end/group_photos.py",
        "masks.flip(-1) if mirrored else masks",
        "masks",
        f"{_TEST}::test_photos_of_vcr_are_those_of_its_conformance_cases",
    ),
    Fault(
        "outlines do not reach the encoder",
        f"{_FINETUNING}/end_to_end/group_photos.py",
        "replace(made.images, cell_weights=masks)",
        "made.images",
        f"{_TEST}::test_masks_change_the_loss_when_they_change_places",
    ),
    Fault(
        "targets and predictions are of boxes in the mirrored photo",
        f"{_FINETUNING}/frame/group_batches.py",
        "        if group.mirrored and self._photos is None:",
        "        if group.mirrored:",
        f"{_TEST}::test_a_mirrored_group_is_the_group_beside_a_mirrored_photo",
    ),
    Fault(
        "a blind model is shown photos",
        f"{_FINETUNING}/frame/group_batches.py",
        "if self._photos is None or self._blind:",
        "if self._photos is None:",
        f"{_TEST}::test_a_blind_model_reads_no_photo",
    ),
    Fault(
        "whether photos are mirrored is said by the task's setting for stored features",
        f"{_FINETUNING}/frame/group_task.py",
        "task.mirrors if photos is None else photos.flip",
        "task.mirrors",
        f"{_TEST}::test_batches_of_threads_and_processes_are_alike",
    ),
)
