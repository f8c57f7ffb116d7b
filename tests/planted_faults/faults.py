"""The planted faults; each was once missed, or is the mistake that the part invites."""

from typing import NamedTuple


class Fault(NamedTuple):
    """Attributes:
    name: of the fault, in words.
    function: where it is planted, as "Class.method"; "beside NAME" is the top of the file that defines NAME. "" is the
        top of whatever file has the text.
    found, planted: the text there, which stands there once, and what takes its place.
    test: the node that must fail.
    """

    name: str
    function: str
    found: str
    planted: str
    test: str


FAULTS = (
    Fault(
        "regions begin one place later",
        "words_at_regions",
        "first : first + num_regions",
        "first + 1 : first + 1 + num_regions",
        "tests/pipelines/test_attention.py::test_a_head_that_looks_at_the_right_region_finds_all_that_any_region_covers",
    ),
    Fault(
        "a head is judged on the half that it was chosen on",
        "_halves",
        "layer, head = _best(hit[rows].mean(axis=0), mass[rows].mean(axis=0) > ACTIVE)",
        "layer, head = _best(hit[~rows].mean(axis=0), mass[~rows].mean(axis=0) > ACTIVE)",
        "tests/pipelines/test_attention.py::test_verdicts_need_images_enough_and_the_best_of_many_by_chance_is_none",
    ),
    Fault(
        "an image has its name before it is on the disk",
        "ImageFiles.keep",
        "os.fsync(file.fileno())",
        "file.tell()",
        "tests/pipelines/test_download.py::test_an_image_is_on_the_disk_before_the_journal_says_so",
    ),
    Fault(
        "an image that was cut or changed since is taken for whole",
        "_match",
        "if outcome == StoredImage(path, num_bytes, sha256):",
        "if isinstance(outcome, StoredImage) and (outcome.path, outcome.num_bytes) == (path, num_bytes):",
        "tests/pipelines/test_download.py::test_images_that_were_lost_cut_or_changed_since_are_fetched_again",
    ),
    Fault(
        "an address inside is reached through 6to4",
        "is_public",
        "inner = address.ipv4_mapped or address.sixtofour or",
        "inner = address.ipv4_mapped or",
        "tests/pipelines/test_download_parts.py::test_addresses_that_are_not_public[2002:7f00:1::1]",
    ),
    Fault(
        "a bomb is unpacked",
        "Body._write",
        "if self.num_bytes > self._max_bytes:",
        "if self._num_received > self._max_bytes:",
        "tests/pipelines/test_download_parts.py::test_a_bomb_is_never_unpacked_beyond_the_limit",
    ),
    Fault(
        "RefCOCO's validation images may be trained on",
        "_read_refer",
        'if split != "train":',
        'if split.startswith("test"):',
        "tests/pipelines/test_held_out.py::test_refcoco_holds_out_validation_and_tests",
    ),
    Fault(
        "a thumbnail's end is the photo's",
        "_check_jpeg_scans",
        'if data.find(b"\\xff\\xd9", first) < 0:',
        'if data.find(b"\\xff\\xd9") < 0:',
        "tests/extraction/test_decode.py::test_end_marker_of_an_embedded_thumbnail_does_not_hide_a_truncation",
    ),
    Fault(
        "anchors stand in columns, not in rows",
        "grid_anchors",
        "torch.stack([grid_x, grid_y, grid_x, grid_y], dim=-1)",
        "torch.stack([grid_y, grid_x, grid_y, grid_x], dim=-1)",
        "tests/extraction/test_boxes.py::test_anchors_stand_row_by_row_and_at_each_cell_one_after_the_other",
    ),
    Fault(
        "of equal scores the later box suppresses",
        "_by_score",
        "return torch.argsort(scores, descending=True, stable=True)",
        "return len(scores) - 1 - torch.argsort(scores.flip(0), descending=True, stable=True)",
        "tests/extraction/test_selection.py::test_equal_scores_go_to_the_lower_index",
    ),
    Fault(
        "the background is moved to the wrong end",
        "BoxPredictor.forward",
        "class_logits.roll(-1, dims=1) if self",
        "class_logits.roll(1, dims=1) if self",
        "tests/extraction/test_conventions.py::test_each_value_gives_what_its_rule_says[background-first]",
    ),
    Fault(
        "heads see as many rows as there are regions",
        "_head_rows",
        "padding = -len(tensors[0]) % at_once if len(tensors[0]) else at_once",
        "at_once = max(len(tensors[0]) // 16, 1)\n    padding = -len(tensors[0]) % at_once",
        "tests/extraction/test_detector.py::test_a_region_is_bit_identical_whatever_else_is_there[1]",
    ),
    Fault(
        "box deltas are scaled the wrong way",
        "_region_deltas",
        "[new / old for new, old in weights]",
        "[old / new for new, old in weights]",
        "tests/extraction/test_head_layout.py::test_rows_of_classes[bbox_pred.weight-caffe6-hf6]",
    ),
    Fault(
        "the width is not in the digest",
        "_canonical_fields",
        '_integer("width", record.width)',
        '_integer("width", record.height)',
        "tests/features/test_record.py::test_every_field_counts",
    ),
    Fault(
        "the weights are no part of what features mean",
        "Fingerprint.meaning_details",
        'if name != "cell_anchors"}',
        'if name not in ("cell_anchors", "weights")}',
        "tests/pipelines/test_other_boxes.py::test_a_run_that_recorded_digests_alone_is_held_against_its_store",
    ),
    Fault(
        "equal hashes are one image",
        "OffsetIndex.find",
        "if self.key(row) == key:",
        "if self.key(row):",
        "tests/features/test_offset_index.py::test_equal_hashes_are_told_apart_by_their_keys",
    ),
    Fault(
        "a shard is published before it is on the disk",
        "ShardWriter.finish",
        "os.fsync(file.fileno())",
        "file.flush()",
        "tests/features/test_disk_steps.py::test_the_data_file_of_a_shard",
    ),
    Fault(
        "the last image of a shard is not found",
        "FeatureStore._find",
        "if last_ids[at] >= image_id:",
        "if last_ids[at] > image_id:",
        "tests/features/test_store.py::test_lookups",
    ),
    Fault(
        "padding shows the batch before",
        "_spread",
        "as_bytes[first + count : first + padded_to].fill(0)",
        "as_bytes[first + count : first].fill(0)",
        "tests/features/test_batch.py::test_memory_is_used_again_and_nothing_stays_in_it[False]",
    ),
    Fault(
        "windows are shuffled alike in every epoch",
        "EpochOrder.places",
        "[_WINDOW, self._seed, epoch, window]",
        "[_WINDOW, self._seed, 0, window]",
        "tests/features/test_epoch_order.py::test_the_records_of_one_shard_come_in_another_order_in_each_epoch",
    ),
    Fault(
        "a deep check believes the index",
        "record_problem",
        "if record_digest(record) == digest else",
        "if digest else",
        "tests/features/test_verify.py::test_deep_finds_what_fast_cannot",
    ),
    Fault(
        "a pickle may copy without end",
        "_Machine.spend",
        "if self.copied > _COPIES_FREE + _COPIES_PER_BYTE * len(self.data):",
        "if self.copied < 0:",
        "tests/features/test_safe_pickle.py::test_small_pickles_make_little_memory[encodings]",
    ),
    Fault(
        "another image of the same number is planned",
        "_members_of",
        "_require(members_digest(members) == shard.members_digest,",
        "_require(len(members) == shard.num_images,",
        "tests/pipelines/test_plan.py::test_changed_members_are_noticed",
    ),
    Fault(
        "of two attempts at once the last one counts",
        "_publish",
        "publish_shard(folder, manifest, first=True)",
        "publish_shard(folder, manifest)",
        "tests/pipelines/test_shard_job.py::test_an_attempt_that_comes_second_gives_way_and_leaves_nothing",
    ),
    Fault(
        "finished shards are done again",
        "_extract_shard",
        "    if done is not None:",
        "    if done is not None and not done.dead_letters:",
        "tests/pipelines/test_shard_job.py::test_a_finished_shard_is_not_done_again",
    ),
    Fault(
        "a store is published without its last shards",
        "publish_run",
        "if len(done) < len(plan.shards):",
        "if not done:",
        "tests/pipelines/test_shard_job.py::test_a_store_with_an_open_shard_is_not_published",
    ),
    Fault(
        "a repair mixes features of two networks",
        "_recorded_jobs",
        "if fingerprint.feature_space != manifest.fingerprint.feature_space:",
        "if not fingerprint.feature_space:",
        "tests/pipelines/test_store_repair.py::test_features_of_another_network_are_refused_before_anything_is_written",
    ),
    Fault(
        "VL-BERT's whole image shows masked regions",
        "average_visible_regions",
        "visible = (region_mask & ~masked_regions).unsqueeze(-1)",
        "visible = region_mask.unsqueeze(-1)",
        "tests/pipelines/test_trajectories.py::test_the_first_steps_are_the_official_ones[vl-bert]",
    ),
    Fault(
        "masked regions keep their features",
        "elements_with_whole_image",
        'kept = batch.region_mask if masked_appearance == "pixels" else visible',
        "kept = batch.region_mask",
        "tests/pipelines/test_trajectories.py::test_the_first_steps_are_the_official_ones[interbert]",
    ),
    Fault(
        "ViLBERT takes a match for a mismatch",
        "beside ViLbertStyleModel",
        "MATCH_LOGIT = 0",
        "MATCH_LOGIT = 1",
        "tests/pipelines/test_trajectories.py::test_the_first_steps_are_the_official_ones[vilbert]",
    ),
    Fault(
        "masks stay where they are in a mirrored photo",
        "prepare_input",
        "masks.flip(-1) if masks is not None and flip else masks",
        "masks",
        "tests/pipelines/test_finetune_end_to_end.py::test_photos_of_vcr_are_those_of_its_conformance_cases",
    ),
    Fault(
        "padding is predicted",
        "collate",
        "text, np.int64, IGNORE_INDEX)",
        "text, np.int64, pad_id)",
        "tests/pipelines/test_trajectories.py::test_the_first_steps_are_the_official_ones[visualbert]",
    ),
    Fault(
        "background is the first class",
        "class_targets",
        "torch.from_numpy(record.class_ids[chosen].astype(np.int64))] = 1.0",
        "torch.from_numpy(record.class_ids[chosen].astype(np.int64)) + 1] = 1.0",
        "tests/pipelines/test_vlbert_samples.py::test_regions_come_by_score_with_their_targets",
    ),
    Fault(
        "all processes take the first one's share of a step",
        "BudgetedTask.steps.parts",
        "self._planned(places, num_ranks)[rank]",
        "self._planned(places, num_ranks)[0]",
        "tests/pipelines/test_budgeted_task.py::test_steps_have_their_samples_whatever_processes_and_workers",
    ),
    Fault(
        "an evaluation shows masked regions",
        "PhotoFeatures._row",
        "hides = bool(batch.masked_regions[row].any())",
        "hides = False",
        "tests/pipelines/test_evaluation_end_to_end.py::test_batches_and_what_was_kept_change_no_feature",
    ),
    Fault(
        "nothing decays",
        "build_optimizer",
        '"weight_decay": group.get("weight_decay", config.weight_decay)',
        '"weight_decay": 0.5',
        "tests/pipelines/test_runs_are_recipes.py::test_a_published_run_is_its_recipe[vilbert]",
    ),
    Fault(
        "the whole encoder trains",
        "RegionEncoder.__init__",
        "for stage in self.frozen_stages:",
        "for stage in ():",
        "tests/pipelines/test_runs_are_recipes.py::test_a_published_run_is_its_recipe[vlbert-base-e2e]",
    ),
    Fault(
        "targets of validation are those of training",
        "ReferringOptions.target_of",
        "return self.target if split == TRAIN else self.judged_target",
        "return self.target",
        "tests/pipelines/test_conformance_goldens.py::test_the_reference_arrays[finetune_vilbert/data_refer_first]",
    ),
    Fault(
        "the right box is not mirrored",
        "prepare_candidates",
        "return PreparedCandidates(kept, photo.boxes[-1])",
        "return PreparedCandidates(kept, torch.as_tensor(right, dtype=torch.float32) * photo.scale_xy.repeat(2))",
        "tests/pipelines/test_conformance_goldens.py::test_the_reference_arrays[finetune_vlbert/data_refcoco]",
    ),
    Fault(
        "each micro-batch has a denominator of its own",
        "share_of_step",
        "return term.over(denominator)",
        "return term.total / term.count.clamp(min=1) / config.accumulation",
        "tests/pipelines/test_training.py::test_accumulation_is_one_mean_over_all_labels[3]",
    ),
    Fault(
        "nothing is clipped",
        "TrainStep.take",
        "config.clip_norm if all_together else math.inf",
        "math.inf",
        "tests/pipelines/test_trajectories.py::test_the_first_steps_are_the_official_ones[vl-bert]",
    ),
    Fault(
        "a resumed run draws its samples from the first on",
        "_train",
        "        task,\n        position.next_sample,\n",
        "        task,\n        0,\n",
        "tests/pipelines/test_training.py::test_resumed_runs_end_in_the_same_bits[stops0]",
    ),
    Fault(
        "a resumed run has another dropout",
        "_load",
        "_restore_random_state(load_file(own))",
        "load_file(own)",
        "tests/pipelines/test_training.py::test_resumed_runs_end_in_the_same_bits[stops0]",
    ),
    Fault(
        "AdamW's bias is not corrected",
        "TransformersAdamW.step",
        "if self.correct_bias:",
        "if not self.correct_bias:",
        "tests/pipelines/test_trajectories.py::test_the_first_steps_are_the_official_ones[vl-bert]",
    ),
    Fault(
        "each process has a denominator of its own",
        "TrainStep._denominators",
        "self._add_counts({name",
        "dict({name",
        "tests/pipelines/test_training_processes.py::test_losses_that_only_some_processes_have",
    ),
    Fault(
        "the choice loses its end where it should lose its front",
        "cut_rows",
        "at_front = rule == CHOICE_FRONT",
        "at_front = False",
        "tests/pipelines/test_conformance_goldens.py::test_the_reference_arrays[finetune_visualbert/data_vcr]",
    ),
    Fault(
        "minival has the lowest ids",
        "minival_ids",
        "sorted(question_ids)[-count:]",
        "sorted(question_ids)[:count]",
        "tests/pipelines/test_vqa_task.py::test_minival_is_the_last_questions_by_their_ids",
    ),
)
