"""Faults of the detector and of the engine around it: photos, proposals, regions, the choice among them, weights."""

from __future__ import annotations

from fault import Fault


def _test(name: str) -> str:
    return f"tests/extraction/test_{name}"


def _convention(value: str) -> str:
    return _test(f"conventions.py::test_each_value_gives_what_its_rule_says[{value}]")


def _policy(value: str) -> str:
    return _test(f"policies.py::test_each_value_keeps_what_its_rule_says[{value}]")


FAULTS = (
    # Photos.
    Fault(
        "a thumbnail's end is the photo's",
        "_check_jpeg_scans",
        'if data.find(b"\\xff\\xd9", first) < 0:',
        'if data.find(b"\\xff\\xd9") < 0:',
        _test("decode.py::test_end_marker_of_an_embedded_thumbnail_does_not_hide_a_truncation"),
    ),
    Fault(
        "a photo of just as many pixels as allowed is refused",
        "_check_num_pixels",
        "if width * height > max_pixels:",
        "if width * height >= max_pixels:",
        _test("decode.py::test_pixel_limit_is_checked_on_the_header"),
    ),
    Fault(
        "every photo is turned as its EXIF tag says",
        "PhotoLoad.__init__",
        "exif_orientation=exif_orientation(detector)",
        'exif_orientation="applied"',
        _test("engine.py::test_exif_orientation_of_a_drawn_photo[ignored-hw1]"),
    ),
    Fault(
        "boxes go back to the photo by the other side's scale",
        "_photo_scale",
        "scale_yx[[1, 0, 1, 0]]",
        "scale_yx[[0, 1, 0, 1]]",
        _convention("box_scale-per-axis"),
    ),
    Fault(
        "half pixels are rounded to even ones",
        "input_size",
        '"half-up": lambda v: int(v + 0.5)',
        '"half-up": lambda v: round(v)',
        _convention("resized_edge_rounding-half-up"),
    ),
    Fault(
        "a photo is padded below as it should be at the right",
        "network_input",
        "(0, right, 0, below)",
        "(0, below, 0, right)",
        _convention("padding_multiple-32"),
    ),
    # Proposals.
    Fault(
        "anchors stand in columns, not in rows",
        "grid_anchors",
        "torch.stack([grid_x, grid_y, grid_x, grid_y], dim=-1)",
        "torch.stack([grid_y, grid_x, grid_y, grid_x], dim=-1)",
        _test("boxes.py::test_anchors_stand_row_by_row_and_at_each_cell_one_after_the_other"),
    ),
    Fault(
        "anchors are a pixel too high",
        "cell_anchors",
        "center + y2 - last",
        "center + y2",
        _convention("box_sides-x2-x1+1"),
    ),
    Fault(
        "a box's height has no limit",
        "decode_deltas",
        "dh.clamp(max=delta_cap)",
        "dh",
        _test("boxes.py::test_a_wild_delta_makes_a_box_as_wide_or_high_as_the_cap_allows[3]"),
    ),
    Fault(
        "a box may end behind the last column",
        "clip_boxes",
        "height, width = height - 1, width - 1",
        "height, width = height - 1, width",
        _convention("box_clip-last-pixel"),
    ),
    Fault(
        "the smallest side of a proposal is in pixels of the network's input",
        "smallest_side",
        "conventions.min_proposal_side * factor",
        "conventions.min_proposal_side",
        _convention("min_proposal_side-16.0"),
    ),
    Fault(
        "objectness is that of the background",
        "ProposalGenerator.score_anchors",
        ".softmax(dim=0)[1:]",
        ".softmax(dim=0)[:1]",
        _convention("objectness-pair-softmax"),
    ),
    Fault(
        "boxes that just reach the threshold stay",
        "_as_the_kernel_compares",
        "threshold = np.nextafter(threshold, np.float32(0))",
        "threshold = np.float32(iou)",
        _convention("nms_comparison->="),
    ),
    Fault(
        "of equal scores the later box suppresses",
        "_by_score",
        "return torch.argsort(scores, descending=True, stable=True)",
        "return len(scores) - 1 - torch.argsort(scores.flip(0), descending=True, stable=True)",
        _test("selection.py::test_equal_scores_go_to_the_lower_index"),
    ),
    Fault(
        "a box suppresses those of the class that stands beside its own",
        "suppress_within",
        "order = order[torch.argsort(groups[order], stable=True)]",
        "order = order[torch.argsort(groups[order] // 2, stable=True)]; groups = groups // 2",
        _test("selection.py::test_classwise_max_keeps_what_the_tool_keeps[limits0-0]"),
    ),
    # Regions.
    Fault(
        "the background is moved to the wrong end",
        "BoxPredictor.forward",
        "class_logits.roll(-1, dims=1) if self",
        "class_logits.roll(1, dims=1) if self",
        _convention("background-first"),
    ),
    Fault(
        "heads see as many rows as there are regions",
        "RoIHeads.judge",
        "features.split(head_rows)",
        "features.split(max(count, 1))",
        _test("detector.py::test_a_region_is_bit_identical_whatever_else_is_there[1]"),
    ),
    Fault(
        "given boxes come back to front",
        "kept_regions",
        "Selected(torch.arange(len(scored.given_boxes)), scored.given_boxes)",
        "Selected(torch.arange(len(scored.given_boxes)).flip(0), scored.given_boxes)",
        _test("given_boxes.py::test_given_boxes_come_back_as_they_are_with_the_features_of_their_place"),
    ),
    Fault(
        "a given box needs one sound side",
        "checked_boxes",
        "(boxes[:, 2:] < boxes[:, :2]).any(axis=1)",
        "(boxes[:, 2:] < boxes[:, :2]).all(axis=1)",
        _test("given_boxes.py::test_impossible_boxes_are_refused"),
    ),
    Fault(
        "a score that just reaches the limit is too low",
        "select_classwise_max",
        "torch.nonzero(scores >= policy.min_score)",
        "torch.nonzero(scores > policy.min_score)",
        _policy("min_score-0.5"),
    ),
    Fault(
        "a threshold that leaves just enough is passed over",
        "select_single_nms",
        "if min(len(keep), policy.max_regions) >= policy.min_regions:",
        "if min(len(keep), policy.max_regions) > policy.min_regions:",
        _test("selection.py::test_ladder_takes_the_first_threshold_that_leaves_enough"),
    ),
    Fault(
        "too few regions stay too few",
        "select_classwise_max",
        "min(max(len(keep), policy.min_regions), policy.max_regions, len(boxes))",
        "min(len(keep), policy.max_regions, len(boxes))",
        _policy("min_regions-3"),
    ),
    # The engine.
    Fault(
        "a slow caller is a photo's timeout",
        "_Watchdog.__call__",
        "seconds = min(now - self._last, 2 * POLL_SECONDS)",
        "seconds = now - self._last",
        _test("engine_faults.py::TestWatchdog::test_a_read_that_begins_after_a_slow_caller_has_its_own_time"),
    ),
    Fault(
        "too many open files are the image's fault",
        "PhotoLoad.__call__",
        "if error.errno in _NOT_ABOUT_ONE_FILE:",
        "if error.errno is None:",
        _test("engine_faults.py::test_too_many_open_files_or_a_file_system_that_went_stop_the_run"),
    ),
    Fault(
        "one huge photo makes all later groups smaller",
        "DetectorCalls.detect",
        "and not needs_too_much:",
        "and self._most:",
        _test("engine_faults.py::test_memory_that_runs_out_splits_the_group_and_warns_once"),
    ),
    Fault(
        "a rare size waits for ever",
        "PhotoWindow._form_groups",
        ">= self._horizon:",
        ">= self._horizon + 1:",
        _test("engine_faults.py::TestGroups::test_a_rare_size_is_not_put_off_for_ever"),
    ),
    Fault(
        "of equally probable classes the later one is listed",
        "_most_probable",
        "(0x7FFFFFFF - np.arange(probabilities.shape[1]))",
        "np.arange(probabilities.shape[1])",
        _test("engine.py::test_the_most_probable_classes_are_those_of_a_stable_sort"),
    ),
    # Weights.
    Fault(
        "a pair of logits becomes background minus foreground",
        "_objectness",
        "value = foreground - background",
        "value = background - foreground",
        _test("head_layout.py::test_rows_of_anchors"),
    ),
    Fault(
        "box deltas are scaled the wrong way",
        "_region_deltas",
        "[new / old for new, old in weights]",
        "[old / new for new, old in weights]",
        _test("head_layout.py::test_rows_of_classes[bbox_pred.weight-caffe6-hf6]"),
    ),
    Fault(
        "anchors of the file are not looked at",
        "_anchors",
        "    if not torch.equal(anchors, computed):\n",
        "    anchors = computed\n    if not torch.equal(anchors, computed):\n",
        _test("weight_families.py::test_anchors_of_the_file_win_and_are_announced"),
    ),
)
