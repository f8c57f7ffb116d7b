"""Faults in VCR's files: who is called what, what is cut, which regions are shown, what is written."""

from fault import Fault

_TESTS = "tests/pipelines/test_vcr_task.py"
_TRAINING = "tests/pipelines/test_vcr_training.py"
_COMMAND = "tests/pipelines/test_vcr_command.py"
_ITEMS = "tests/pipelines/test_conformance_vcr_items.py::test_the_reference_arrays"

FAULTS = (
    Fault(
        "a person first named in a choice has another one's name",
        "NamesByMention.entry",
        "people = 0 if self._restart else None",
        "people = 0",
        f"{_TESTS}::test_a_question_is_a_group_of_four_rows",
    ),
    Fault(
        "names begin anew at each question of a file",
        "NamesInTurn.question",
        "        self._given = {}\n        for number",
        "        self._given, self._next = {}, 0\n        for number",
        f"{_ITEMS}[finetune_vlbert/data_vcr]",
    ),
    Fault(
        "a test file's rationales are asked for one answer",
        "_given",
        "return range(NUM_CHOICES) if answer is None else (answer,)",
        "return (answer or 0,)",
        f"{_TESTS}::test_where_the_answer_is_not_told_rationales_are_asked_for_each",
    ),
    Fault(
        "a long choice does not shorten the question of the others",
        "_shared",
        "return [KeptPieces(tuple(context), (0, choice)) for choice in kept]",
        "return [KeptPieces((max(5, context[0]), *context[1:]), (0, choice)) for choice in kept]",
        f"{_TESTS}::test_cutting",
    ),
    Fault(
        "the choice loses its end where it should lose its front",
        "cut_rows",
        "at_front = rule == CHOICE_FRONT",
        "at_front = False",
        f"{_ITEMS}[finetune_visualbert/data_vcr]",
    ),
    Fault(
        "the whole image is not counted in the weights of both means",
        "join_regions",
        "weights.append(len(features) + 1)",
        "weights.append(len(features))",
        f"{_ITEMS}[finetune_vilbert/data_vcr_first]",
    ),
    Fault(
        "annotated regions are cut before detected ones",
        "join_regions",
        "kept = min(len(annotated[0]), room)",
        "kept = max(0, min(len(annotated[0]), room - len(detected[0])))",
        f"{_TESTS}::test_regions_of_two_stores",
    ),
    Fault(
        "outlines are not mirrored",
        "prepare_vcr_photo",
        "masks.flip(-1) if flip else masks",
        "masks",
        f"{_TESTS}::test_outlines_and_boxes_are_mirrored_and_padded_alike",
    ),
    Fault(
        "points on the line of an outline are outside",
        "_cells_inside",
        "vertex | (right != left) | (right == 1)",
        "(right == 1) & (right == left) & ~vertex",
        f"{_TESTS}::test_a_point_on_the_line_is_inside",
    ),
    Fault(
        "rationales of the leaderboard's file are one distribution over all answers",
        "vcr_scores",
        "probabilities(_by_answer(name, scores))",
        "_by_answer(name, probabilities(scores))",
        f"{_TESTS}::test_the_result_file_of_two_models",
    ),
    Fault(
        "words name a detected region by the number of an annotated box",
        "joined_image.joined",
        "named = {number: first + number for number in range(kept)}",
        "named = {number: number for number in range(kept)}",
        f"{_TRAINING}::test_words_name_the_box_behind_the_detected_regions",
    ),
    Fault(
        "the whole image of two stores is that of the regions that are shown",
        "GroupBatches._whole_image",
        "if self._options.whole_image == ALL and image.whole is not None:",
        "if self._options.whole_image == STORED and image.whole is not None:",
        f"{_TRAINING}::test_both_releases_of_vilbert_are_fed_so",
    ),
    Fault(
        "no [SEP] between a question and its answer",
        "GroupBatches._context_separator",
        "return None if self._system.joins_context else self._separator",
        "return None",
        f"{_TRAINING}::test_both_releases_of_vilbert_are_fed_so",
    ),
    Fault(
        "long questions are looked at without the pieces between their parts",
        "row_lengths",
        "context += [1] * (len(parts) - 1)",
        "context += [0] * (len(parts) - 1)",
        "tests/pipelines/test_vcr_task.py::test_lengths_are_those_of_the_pieces",
    ),
    Fault(
        "boxes of the first image alone are looked for in the store",
        "RegionChoice.check",
        "place = (image, id(group.boxes[number]) if len(group.boxes) else 0)",
        "place = ('', 0)",
        "tests/pipelines/test_referring_command.py::test_a_box_that_the_store_lacks_is_told_before_anything_is_written",
    ),
    Fault(
        "classes of hidden boxes are asked, and the boxes are seen",
        "auxiliary_targets",
        "predicted=hidden, hidden=hidden)",
        "predicted=hidden)",
        f"{_TRAINING}::test_hidden_boxes_are_not_seen_and_follow_from_seed_epoch_and_question",
    ),
    Fault(
        "words are hidden in predictions too",
        "GroupBatches._add",
        "if beside is not None and group.draws:",
        "if beside is not None:",
        f"{_TRAINING}::test_hidden_words_are_whole_and_only_hidden_in_training",
    ),
    Fault(
        "both problems are learned in one order",
        "GroupTask.__init__",
        "SampleOrder(len(train), (_ORDER, *self._seed), likeness)",
        "SampleOrder(len(train), (_ORDER, self._seed[0]), likeness)",
        f"{_TRAINING}::test_both_problems_in_turn_have_orders_of_their_own",
    ),
    Fault(
        "of two models' files the second takes the place of the first",
        "write_vcr_entries",
        "        if own:\n            answers[name] = tuple(own)",
        "        answers[name] = tuple(own)",
        f"{_COMMAND}::test_two_models_make_one_file_for_the_leaderboard",
    ),
    Fault(
        "the losses of both problems weigh alike whatever is asked",
        "TurnsTask.__init__",
        "super().__init__(tasks, loss_scales=loss_scales, updates=updates)",
        "super().__init__(tasks, updates=updates)",
        f"{_COMMAND}::test_the_losses_of_both_problems_have_scales_of_their_own",
    ),
    Fault(
        "both problems make one update by a release's rule",
        "TaskRecipe.options_by",
        "return replace(own, **apart.fields)",
        "return own",
        "tests/pipelines/test_step_rules.py::test_a_release_makes_an_update_of_each_problem[vilbert-vcr]",
    ),
)
