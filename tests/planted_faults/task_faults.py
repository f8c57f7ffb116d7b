"""Faults in the files of downstream tasks: which boxes are candidates, what is right, what is written."""

from fault import Fault

FAULTS = (
    Fault(
        "annotated boxes are cut before detected ones",
        "candidates_of",
        "for kind in (DETECTED, ANNOTATED) if rules.too_many",
        "for kind in (ANNOTATED, DETECTED) if rules.too_many",
        "tests/pipelines/test_referring_task.py::test_candidates",
    ),
    Fault(
        "crowds are always candidates",
        "_Photos.__init__",
        "if options.crowds or not each.is_crowd:",
        "if True:",
        "tests/pipelines/test_referring_task.py::test_candidates",
    ),
    Fault(
        "the whole photo ends one pixel too far",
        "whole_image_box",
        "less = 1 if rules.whole_image == LAST_PIXEL else 0",
        "less = 0",
        "tests/pipelines/test_conformance_task_items.py::test_the_reference_arrays[finetune_vlbert/data_refcoco]",
    ),
    Fault(
        "left and right stay in the text of a mirrored photo",
        "mirrored_group",
        "if not options.swap_sides:",
        "if True:",
        "tests/pipelines/test_conformance_task_items.py::test_the_reference_arrays[finetune_vlbert/data_refcoco]",
    ),
    Fault(
        "the right box is not mirrored",
        "prepare_candidates",
        "return PreparedCandidates(kept, photo.boxes[-1])",
        "return PreparedCandidates(kept, torch.as_tensor(right, dtype=torch.float32) * photo.scale_xy.repeat(2))",
        "tests/pipelines/test_conformance_task_items.py::test_the_reference_arrays[finetune_vlbert/data_refcoco]",
    ),
    Fault(
        "targets of validation are those of training",
        "ReferringOptions.target_of",
        "return self.target if split == TRAIN else self.judged_target",
        "return self.target",
        "tests/pipelines/test_conformance_task_items.py::test_the_reference_arrays[finetune_vilbert/data_refer_first]",
    ),
    Fault(
        "annotated boxes are candidates in validation too",
        "_Photos.__init__",
        "(options.annotated_in_training and split == TRAIN)",
        "options.annotated_in_training",
        "tests/pipelines/test_referring_task.py::test_candidates",
    ),
    Fault(
        "what is too much is cut where a release fails",
        "candidates_of",
        "if rules.too_many == REFUSE:",
        "if False:",
        "tests/pipelines/test_conformance_task_items.py::test_the_reference_arrays[finetune_vilbert/data_refer_first]",
    ),
    Fault(
        "the best regions of NLVR2 are shown, not the first",
        "input_regions",
        "if options.region_order == FILE_ORDER:",
        "if options.region_order == BEST:",
        "tests/pipelines/test_nlvr2_task.py::test_which_regions_are_shown",
    ),
    Fault(
        "a box chosen in the order of scores is another than that of the best",
        "chosen_boxes",
        "sides(boxes[best_choice(each.scores.tolist())])",
        "sides(boxes[best_choice((-each.scores).tolist())])",
        "tests/pipelines/test_referring_task.py::test_scores_count_sentences_and_stand_beside_their_upper_bound",
    ),
    Fault(
        "VL-BERT's regions start from the transform of masked words",
        "_regions_start",
        'return task_start("refcoco", state, names)',
        'return task_start("vqa", state, names)',
        "tests/pipelines/test_finetuning_task.py::"
        "test_regions_of_vl_bert_go_through_the_transform_that_masked_ones_had",
    ),
    Fault(
        "statements are read beside the images of others",
        "ViLbertForMultiTask.image_pairs",
        "join_row_pairs(self.pair_dropout(output.pooled))",
        "join_row_pairs(self.pair_dropout(output.pooled.flip(0)))",
        "tests/pipelines/test_finetuning_task.py::test_labels_of_the_multi_task_release_go_through_its_classifiers",
    ),
    Fault(
        "the right box of a mirrored photo is placed as in the photo as it is",
        "GroupPhotos.in_input",
        "flip=group.mirrored,",
        "flip=False,",
        "tests/pipelines/test_finetune_end_to_end.py::test_overlaps_may_be_measured_in_the_input_of_the_network[True]",
    ),
    Fault(
        "overlaps are measured in the photo whatever is asked",
        "open_referring.open_task",
        "measured_in_input=options.overlap_in == INPUT,",
        "measured_in_input=False,",
        "tests/pipelines/test_referring_task.py::test_what_is_measured_in_the_input_is_said_to_the_frame",
    ),
    Fault(
        "whatever MAttNet detected reaches every object",
        "detected_bound",
        "hits[each.image_id, each.box] = float(found)",
        "hits[each.image_id, each.box] = 1.0",
        "tests/pipelines/test_referring_task.py::test_anybody_s_boxes_stand_beside_what_mattnet_s_can_reach",
    ),
    Fault(
        "new weight-normed layers hold what lay in memory",
        "draw_as_bert",
        "init.copy_(module.scale, module.direction.norm())",
        "init.zeros_(module.scale)",
        "tests/model/test_vilbert_single_stream.py::test_new_heads_of_tasks_start_as_those_of_the_first_release",
    ),
)
