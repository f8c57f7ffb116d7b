"""Faults in fine-tuning through the detector: how often a photo is convolved, what is mirrored, masked and shown."""

from fault import Fault

_TEST = "tests/pipelines/test_finetune_end_to_end.py"
_R2C = "tests/pipelines/test_r2c_regions.py"

FAULTS = (
    Fault(
        "a photo is convolved once for each row",
        "GroupBatches._add",
        "rows.image((place, *together), partial",
        "rows.image((place, number, *together), partial",
        f"{_TEST}::test_a_photo_is_read_and_convolved_once_for_a_question",
    ),
    Fault(
        "masks stay where they are in a mirrored photo",
        "prepare_input",
        "masks.flip(-1) if masks is not None and flip else masks",
        "masks",
        f"{_TEST}::test_photos_of_vcr_are_those_of_its_conformance_cases",
    ),
    Fault(
        "outlines do not reach the encoder",
        "collate_inputs",
        "cell_weights=_padded([each.outlines for each in photos], count)",
        "cell_weights=None",
        f"{_TEST}::test_masks_change_the_loss_when_they_change_places",
    ),
    Fault(
        "targets and predictions are of boxes in the mirrored photo",
        "GroupBatches._input_image",
        "        if group.mirrored and self._photos is None:",
        "        if group.mirrored:",
        f"{_TEST}::test_a_mirrored_group_is_the_group_beside_a_mirrored_photo",
    ),
    Fault(
        "a blind model is shown photos",
        "GroupBatches._image",
        "if self._photos is None or self._blind:",
        "if self._photos is None:",
        f"{_TEST}::test_a_blind_model_reads_no_photo",
    ),
    Fault(
        "whether photos are mirrored is said by the task's setting for stored features",
        "GroupTask.__init__",
        "task.mirrors if photos is None else photos.flip",
        "task.mirrors",
        f"{_TEST}::test_batches_of_threads_and_processes_are_alike",
    ),
    Fault(
        "words name the region before theirs where the whole image is the first one",
        "with_whole_region",
        "named={number: place + 1 for",
        "named={number: place for",
        f"{_R2C}::test_the_whole_image_is_the_first_region",
    ),
    Fault(
        "what R2C's classes are told by is left as it is drawn",
        "_visualbert_ucla",
        "return Treatment(decays=not _named_without_decay(name))",
        "return None",
        f"{_R2C}::test_the_releases_rule_for_parameters_knows_them",
    ),
    Fault(
        "a recipe's encoder freezes what encoders usually freeze",
        "sections_of",
        'replace(sections["encoder"], **recipe.encoder)',
        'sections["encoder"]',
        "tests/pipelines/test_task_recipes.py::test_visualberts_regions_on_vcr_are_those_of_r2c",
    ),
    Fault(
        "GPU hours are told of models of another size",
        "_fits",
        "- 1) < _SAME_SIZE",
        "- 1) < 9",
        "tests/pipelines/test_gpu_hours.py::test_hours_are_told_where_a_rate_fits",
    ),
)
