"""Faults in the files of downstream tasks: which boxes are candidates, what is right, what is written."""

from fault import Fault

FAULTS = (
    Fault(
        "annotated boxes are cut before detected ones",
        "src/roibeam/pipelines/finetuning/tasks/candidate_boxes.py",
        "for kind in (DETECTED, ANNOTATED) if rules.too_many",
        "for kind in (ANNOTATED, DETECTED) if rules.too_many",
        "tests/pipelines/test_referring_task.py::test_candidates",
    ),
    Fault(
        "crowds are always candidates",
        "src/roibeam/pipelines/finetuning/tasks/referring.py",
        "if options.crowds or not each.is_crowd:",
        "if True:",
        "tests/pipelines/test_referring_task.py::test_candidates",
    ),
    Fault(
        "the whole photo ends one pixel too far",
        "src/roibeam/pipelines/finetuning/tasks/candidate_boxes.py",
        "less = 1 if rules.whole_image == LAST_PIXEL else 0",
        "less = 0",
        "tests/pipelines/test_conformance_task_items.py::test_the_reference_arrays[finetune_vlbert/data_refcoco]",
    ),
    Fault(
        "left and right stay in the text of a mirrored photo",
        "src/roibeam/pipelines/finetuning/tasks/referring.py",
        "if not options.swap_sides:",
        "if True:",
        "tests/pipelines/test_conformance_task_items.py::test_the_reference_arrays[finetune_vlbert/data_refcoco]",
    ),
    Fault(
        "the right box is not mirrored",
        "src/roibeam/pipelines/finetuning/tasks/referring_rules/targets.py",
        "return PreparedCandidates(kept, photo.boxes[-1])",
        "return PreparedCandidates(kept, torch.as_tensor(right, dtype=torch.float32) * photo.scale_xy.repeat(2))",
        "tests/pipelines/test_conformance_task_items.py::test_the_reference_arrays[finetune_vlbert/data_refcoco]",
    ),
    Fault(
        "targets of validation are those of training",
        "src/roibeam/pipelines/finetuning/tasks/referring.py",
        "return self.target if split == TRAIN else self.judged_target",
        "return self.target",
        "tests/pipelines/test_conformance_task_items.py::test_the_reference_arrays[finetune_vilbert/data_refer_first]",
    ),
    Fault(
        "annotated boxes are candidates in validation too",
        "src/roibeam/pipelines/finetuning/tasks/referring.py",
        "(options.annotated_in_training and split == TRAIN)",
        "options.annotated_in_training",
        "tests/pipelines/test_referring_task.py::test_candidates",
    ),
    Fault(
        "what is too much is cut where a release fails",
        "src/roibeam/pipelines/finetuning/tasks/candidate_boxes.py",
        "if rules.too_many == REFUSE:",
        "if False:",
        "tests/pipelines/test_conformance_task_items.py::test_the_reference_arrays[finetune_vilbert/data_refer_first]",
    ),
    Fault(
        "the best regions of NLVR2 are shown, not the first",
        "src/roibeam/pipelines/finetuning/tasks/nlvr2.py",
        "if options.region_order == FILE_ORDER:",
        "if options.region_order == BEST:",
        "tests/pipelines/test_nlvr2_task.py::test_which_regions_are_shown",
    ),
    Fault(
        "a box chosen in the order of scores is another than that of the best",
        "src/roibeam/pipelines/finetuning/tasks/referring.py",
        "sides(boxes[best_choice(each.scores.tolist())])",
        "sides(boxes[best_choice((-each.scores).tolist())])",
        "tests/pipelines/test_referring_task.py::test_scores_count_sentences_and_stand_beside_their_upper_bound",
    ),
    Fault(
        "VL-BERT's regions start from the transform of masked words",
        "src/roibeam/pipelines/finetuning/systems/vlbert.py",
        'return task_start("refcoco", state, names)',
        'return task_start("vqa", state, names)',
        "tests/pipelines/test_finetuning_task.py::"
        "test_regions_of_vl_bert_go_through_the_transform_that_masked_ones_had",
    ),
    Fault(
        "statements are read beside the images of others",
        "src/roibeam/model/vilbert/tasks.py",
        "join_row_pairs(self.pair_dropout(output.pooled))",
        "join_row_pairs(self.pair_dropout(output.pooled.flip(0)))",
        "tests/pipelines/test_finetuning_task.py::test_labels_of_the_multi_task_release_go_through_its_classifiers",
    ),
    Fault(
        "the right box of a mirrored photo is placed as in the photo as it is",
        "src/roibeam/pipelines/finetuning/end_to_end/group_photos.py",
        "flip=group.mirrored,",
        "flip=False,",
        "tests/pipelines/test_finetune_end_to_end.py::test_overlaps_may_be_measured_in_the_input_of_the_network[True]",
    ),
    Fault(
        "overlaps are measured in the photo whatever is asked",
        "src/roibeam/pipelines/finetuning/tasks/referring_task.py",
        "measured_in_input=options.overlap_in == INPUT,",
        "measured_in_input=False,",
        "tests/pipelines/test_referring_task.py::test_what_is_measured_in_the_input_is_said_to_the_frame",
    ),
    Fault(
        "whatever MAttNet detected reaches every object",
        "src/roibeam/pipelines/finetuning/results/referring_results.py",
        "hits[each.image_id, each.box] = float(found)",
        "hits[each.image_id, each.box] = 1.0",
        "tests/pipelines/test_referring_task.py::test_anybody_s_boxes_stand_beside_what_mattnet_s_can_reach",
    ),
    Fault(
        "new weight-normed layers hold what lay in memory",
        "src/roibeam/model/common/bert.py",
        "init.copy_(module.scale, module.direction.norm())",
        "init.zeros_(module.scale)",
        "tests/model/test_vilbert_single_stream.py::test_new_heads_of_tasks_start_as_those_of_the_first_release",
    ),
)
