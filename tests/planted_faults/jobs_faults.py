"""Faults of extraction jobs, of Beam and its workers, of copies, repairs, imports and exports of stores."""

from __future__ import annotations

from fault import Fault


def _test(name: str) -> str:
    return f"tests/pipelines/test_{name}"


def _remote(test: str) -> str:
    return f"tests/pipelines/test_remote_store.py::{test}"


FAULTS = (
    # Plans.
    Fault(
        "a plan does not know where its images are",
        "members_digest",
        "add(member.image_id, member.location)",
        "add(member.image_id)",
        _test("plan.py::test_the_digest_of_members_covers_their_boxes"),
    ),
    Fault(
        "a plan does not know the sizes that its boxes are of",
        "members_digest",
        "*(member.boxes_hw or (0, 0))",
        "0, 0",
        _test("plan.py::test_the_digest_of_members_covers_their_boxes"),
    ),
    Fault(
        "another image of the same number is planned",
        "_members_of",
        "_require(members_digest(members) == shard.members_digest,",
        "_require(len(members) == shard.num_images,",
        _test("plan.py::test_changed_members_are_noticed"),
    ),
    Fault(
        "another run takes the place of one that was stopped",
        "is_unused_plan",
        "return not any((path / shard_manifest_name(shard.number)).exists() for shard in plan.shards)",
        "return True",
        _test("extract_command.py::test_a_plan_under_which_nothing_was_extracted_binds_nobody"),
    ),
    Fault(
        "a store goes on with the default of today",
        "_as_recorded",
        "if recorded is None or given.preset is not None or",
        "if recorded is None or given.preset is None or",
        _test("extract_command.py::test_a_store_goes_on_with_what_it_recorded_where_nothing_is_named"),
    ),
    # Shards.
    Fault(
        "a manifest names data that are not there yet",
        "_publish",
        '        folder.put_file(scratch / "data.lmdb", manifest.data_file)\n'
        "    if publish_shard(folder, manifest, first=True):\n",
        "        folder.num_bytes(manifest.data_file)\n"
        "    if publish_shard(folder, manifest, first=True):\n"
        '        folder.put_file(scratch / "data.lmdb", manifest.data_file or "")\n',
        _remote("test_a_killed_run_is_finished_by_the_same_command[part-00001.json-before]"),
    ),
    Fault(
        "of two attempts at once the last one counts",
        "_publish",
        "publish_shard(folder, manifest, first=True)",
        "publish_shard(folder, manifest)",
        _test("shard_job.py::test_an_attempt_that_comes_second_gives_way_and_leaves_nothing"),
    ),
    Fault(
        "an attempt that gave way leaves its data",
        "_publish",
        "        folder.delete(manifest.data_file)\n",
        "        folder.num_bytes(manifest.data_file)\n",
        _test("shard_job.py::test_an_attempt_that_comes_second_gives_way_and_leaves_nothing"),
    ),
    Fault(
        "finished shards are done again",
        "_extract_shard",
        "    if done is not None:",
        "    if done is not None and not done.dead_letters:",
        _test("shard_job.py::test_a_finished_shard_is_not_done_again"),
    ),
    Fault(
        "a worker with other weights goes on",
        "_extract_shard",
        "if fingerprint.feature_space != job.feature_space:",
        "if not fingerprint.feature_space:",
        _test("shard_job.py::test_a_worker_with_other_weights_stops"),
    ),
    Fault(
        "a shard of other images counts as finished",
        "_counting_manifest",
        "is_of_plan = may_differ or manifest.members_digest == shard.members_digest",
        "is_of_plan = True",
        _test("shard_job.py::test_a_shard_of_other_images_is_done_again"),
    ),
    Fault(
        "an object that was cut counts as finished",
        "_counting_manifest",
        "num_bytes(manifest.data_file) != manifest.data_bytes",
        "num_bytes(manifest.data_file) is None",
        _remote("test_damaged_objects_are_extracted_again_and_dead_letters_retried"),
    ),
    Fault(
        "data that no manifest names stay",
        "_tidy_disk",
        'path.match("part-*.lmdb") and path.name not in named',
        'path.match("part-*.lmdb") and not named',
        _test("faults.py::test_left_over_temporary_files_stop_nothing_and_files_of_others_stay"),
    ),
    Fault(
        "data that an attempt has just put are taken away",
        "tidy_objects",
        "0 < facts.written_at < now - ABANDONED_SECONDS",
        "0 < facts.written_at < now",
        _remote("test_a_run_that_ends_takes_nothing_from_one_that_still_uploads"),
    ),
    # The store's manifest and what lies beside it.
    Fault(
        "a store is published without its last shards",
        "publish_run",
        "if len(done) < len(plan.shards):",
        "if not done:",
        _test("shard_job.py::test_a_store_with_an_open_shard_is_not_published"),
    ),
    Fault(
        "a run that did nothing restates the store",
        "publish_run",
        "if keep and (published",
        "if not keep and (published",
        _test("faults.py::test_a_rerun_with_nothing_to_do_restates_nothing"),
    ),
    Fault(
        "captions of images without a record stay",
        "planned_annotations",
        " and member.image_id not in failed\n",
        "\n",
        _test("annotations.py::test_a_store_keeps_captions_of_images_with_a_record"),
    ),
    Fault(
        "captions of a later store come first",
        "merged_annotations",
        "ORDER BY rowid",
        "ORDER BY rowid DESC",
        _test("annotations.py::test_copies_carry_what_is_said_of_their_images"),
    ),
    # Beam and its workers.
    Fault(
        "Beam counts records as dead",
        "report_metrics",
        ".inc(result.num_failures)",
        ".inc(result.num_records)",
        _test("runners.py::test_beam_counts_what_the_manifests_say"),
    ),
    Fault(
        "our options win over the user's",
        "runner_flags",
        "if _name(flag) in _REPEATABLE or _name(flag) not in given]",
        "if _name(flag)]",
        _test("runner_options.py::test_options_of_the_user_count"),
    ),
    Fault(
        "options that Beam does not know are passed over",
        "check_known",
        "    if not unknown:\n        return",
        "    if known:\n        return",
        _test("runner_options.py::test_what_is_missing_is_said[local-beam_args4-does not know --no_such]"),
    ),
    Fault(
        "a pool ends the worker of another runner",
        "WorkerPool.StopWorker",
        "worker = self._workers.pop((context.peer(), request.worker_id), None)",
        "worker = next((self._workers.pop(key) for key in list(self._workers) if key[1] == request.worker_id), None)",
        _test("worker_pool.py::test_runners_that_share_a_pool_end_their_own_workers_only"),
    ),
    Fault(
        "a runner waits for ever for a worker that died while it started",
        "WorkerPool._watch",
        "            hang_up_for(key[1], control)\n",
        "",
        _test("worker_pool.py::test_a_runner_is_told_of_a_worker_that_died_before_it_connected"),
    ),
    Fault(
        "a runner waits for minutes for the data connection of a worker that died while it started",
        "hang_up_for",
        'if first is not None and first.HasField("process_bundle"):',
        "if False:",
        _test("worker_pool.py::test_a_runner_is_told_of_a_worker_that_died_before_it_connected"),
    ),
    # Copies, repairs, imports, exports.
    Fault(
        "a copy with other options goes on with what is there",
        "_plan_digest",
        "*(store.manifest.to_json() for store in stores), options.change.to_json()",
        "*(store.manifest.to_json() for store in stores),",
        _test("store_copy.py::test_other_folders_are_refused"),
    ),
    Fault(
        "a copy believes the records that it read",
        "_Outcomes.check",
        "if expected is not None and content_digest(expected) != summary.content_digest:",
        "if expected is not None and len(expected) != summary.num_records:",
        _test("store_copy.py::test_a_record_that_is_not_the_one_of_the_index_is_found"),
    ),
    Fault(
        "a merge takes the first of two unequal records",
        "StoreMerge._of_one_image",
        "if digest != first[1]:",
        "if not digest:",
        _test("store_copy.py::test_unequal_content_under_one_id_is_an_error_that_names_it"),
    ),
    Fault(
        "an image is record and dead letter",
        "StoreMerge._of_one_image",
        "(not records or source in holders)",
        "source >= 0",
        _test("store_copy.py::test_dead_letters_travel_unless_another_store_has_the_image"),
    ),
    Fault(
        "a damaged shard of a killed copy is kept",
        "finished_shards",
        'writing its records again", error)\n            break\n',
        'writing its records again", error)\n',
        _test("store_copy.py::test_finished_shards_are_kept_and_a_damaged_one_is_copied_again"),
    ),
    Fault(
        "a repair mixes features of two networks",
        "_recorded_jobs",
        "if fingerprint.feature_space != manifest.fingerprint.feature_space:",
        "if not fingerprint.feature_space:",
        _test("store_repair.py::test_features_of_another_network_are_refused_before_anything_is_written"),
    ),
    Fault(
        "reading a photo's bytes imports the detector",
        "beside read_local_file",
        "import stat\n",
        "import stat\n\nimport roibeam.extraction.detector\n",
        _test("light_commands.py::test_no_command_imports_torch_before_it_needs_it"),
    ),
    Fault(
        "a failure says nothing as JSON",
        "_complain",
        "    print_error(line, code)\n",
        "",
        _test("light_commands.py::test_a_failure_is_a_line_of_json_and_a_line_of_words"),
    ),
    Fault(
        "dead letters that failed again count as mended",
        "_NewAttempt._finished",
        "counts.retried += len(tried_again - failed)",
        "counts.retried += len(tried_again)",
        _test("store_repair.py::test_a_photo_that_is_gone_becomes_a_dead_letter_and_the_exit_code_says_so"),
    ),
    Fault(
        "an import goes on with a file that changed",
        "_plan_digest",
        "files.num_bytes, files.changed_ns, fingerprint",
        "files.num_bytes, fingerprint",
        _test("store_import_diff.py::test_a_killed_import_of_a_file_that_changed_is_refused"),
    ),
    Fault(
        "a command gives an option a meaning of its own",
        "option",
        'help=f"{meaning} {here}".strip(),',
        "help=here or meaning,",
        _test("help.py::test_an_option_means_the_same_in_every_command"),
    ),
    Fault(
        "an example of the help has a name that an option had before",
        "extract_command",
        "roibeam extract instances_val2017.json store/ --photos val2017/",
        "roibeam extract instances_val2017.json store/ --image-root val2017/",
        _test("help.py::test_examples_are_of_the_command_and_parse"),
    ),
)
