"""Faults of records, shards, stores and what reads them, of the folders they lie in and of formats of others."""

from __future__ import annotations

from fault import Fault

FEATURES = "src/roibeam/features"
LAYOUT, INDEX = f"{FEATURES}/shard/layout.py", f"{FEATURES}/shard/offset_index.py"
MANIFEST, PAGES = f"{FEATURES}/shard/manifest.py", f"{FEATURES}/shard/lmdb_pages.py"
STORE, OBJECTS = f"{FEATURES}/store.py", f"{FEATURES}/folders/object_folder.py"
WORK = f"{FEATURES}/writing/store_in_work.py"


def _test(name: str) -> str:
    return f"tests/features/test_{name}"


FAULTS = (
    # Records, and what they are known by.
    Fault(
        "one sound box is enough",
        f"{FEATURES}/record/region_record.py",
        "self.boxes[:, 2:] >= self.boxes[:, :2]).all()",
        "self.boxes[:, 2:] >= self.boxes[:, :2]).any()",
        _test("record.py::test_a_bad_field_is_named[change12-x2 < x1]"),
    ),
    Fault(
        "an infinite bfloat16 is taken for a number",
        f"{FEATURES}/record/region_record.py",
        "np.dtype(np.uint16), 0x7F80, 0xFF80)",
        "np.dtype(np.uint16), 0x7FFF, 0xFFFF)",
        _test("record.py::test_a_bad_field_is_named[change10-features holds NaN or infinity in bfloat16]"),
    ),
    Fault(
        "the width is not in the digest",
        f"{FEATURES}/record/digest.py",
        '_integer("width", record.width)',
        '_integer("width", record.height)',
        _test("digest.py::test_every_field_counts"),
    ),
    Fault(
        "a feature space depends on the order of its details",
        f"{FEATURES}/record/fingerprint.py",
        "sort_keys=True",
        "sort_keys=False",
        _test("manifest.py::test_feature_space_depends_on_content_not_on_spelling"),
    ),
    Fault(
        "what features mean is not compared with what a model was trained on",
        "src/roibeam/pipelines/model_files/trained_with.py",
        "if not known or known[0].meaning != now.meaning:",
        "if not known:",
        "tests/pipelines/test_other_boxes.py::test_a_run_that_recorded_digests_alone_is_held_against_its_store",
    ),
    Fault(
        "the weights are no part of what features mean",
        f"{FEATURES}/record/fingerprint.py",
        'if name != "cell_anchors"}',
        'if name not in ("cell_anchors", "weights")}',
        "tests/pipelines/test_other_boxes.py::test_a_run_that_recorded_digests_alone_is_held_against_its_store",
    ),
    Fault(
        "in a store's digest ids run into digests",
        f"{FEATURES}/record/digest.py",
        'struct.pack("<I", len(key)) + key + digest',
        "key + digest",
        _test("format_stability.py::test_todays_writer_gives_the_same_content"),
    ),
    # Shards.
    Fault(
        "attribute ids are moved to a cache line of their own",
        LAYOUT,
        'start = end if name == "attribute_ids" else align_up(end)',
        "start = align_up(end)",
        _test("format_stability.py::test_a_record_byte_by_byte"),
    ),
    Fault(
        "equal hashes are one image",
        INDEX,
        "if self.key(row) == key:",
        "if self.key(row):",
        _test("offset_index.py::test_equal_hashes_are_told_apart_by_their_keys"),
    ),
    Fault(
        "an index may point behind the file",
        INDEX,
        "if meta_end > self._file_bytes or region_end > self._file_bytes:",
        "if meta_end > self._file_bytes:",
        _test("offset_index.py::test_rows_cannot_point_outside[region_lengths-Q-50000-puts a value of row 0 at]"),
    ),
    Fault(
        "a data file may lie in another folder",
        f"{FEATURES}/shard/json_fields.py",
        "[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}",
        "[A-Za-z0-9._/-]{1,255}",
        _test("manifest.py::test_bad_shard_manifests")
        + "[data_file-../part.lmdb-data_file must be a plain file name in the same folder]",
    ),
    Fault(
        "a store may list a shard twice",
        MANIFEST,
        "left.shard >= right.shard",
        "left.shard > right.shard",
        _test("manifest.py::test_bad_store_manifests[1-shard-0-shards must be ascending shard numbers]"),
    ),
    Fault(
        "shards of two feature spaces make one store",
        f"{FEATURES}/shard/publish.py",
        "if manifest.fingerprint.feature_space != fingerprint.feature_space:",
        "if not fingerprint.feature_space:",
        _test("store.py::test_what_publishing_refuses"),
    ),
    Fault(
        "a shard that became longer is read",
        f"{FEATURES}/shard/reader.py",
        "if got != manifest.data_bytes:",
        "if got < manifest.data_bytes:",
        _test("shard.py::test_a_file_of_another_length[1]"),
    ),
    Fault(
        "a record has more regions than its index says",
        f"{FEATURES}/shard/reader.py",
        "if num_regions != index.num_regions_at(row) or feature_dim",
        "if feature_dim",
        _test("verify.py::test_a_record_of_another_number_of_regions_is_not_read"),
    ),
    Fault(
        "a shard is published before it is on the disk",
        f"{FEATURES}/shard/writer.py",
        "os.fsync(file.fileno())",
        "file.flush()",
        _test("disk_steps.py::test_the_data_file_of_a_shard"),
    ),
    Fault(
        "a value of LMDB may end behind the file",
        PAGES,
        "fits = page + pages <= self.num_pages",
        "fits = page < self.num_pages",
        _test("lmdb_pages.py::test_a_large_value_ends_inside_the_file"),
    ),
    Fault(
        "LMDB may hold a key twice",
        PAGES,
        'key <= previous):\n                    raise self._damaged(f"key',
        'key < previous):\n                    raise self._damaged(f"key',
        _test("lmdb_pages.py::test_two_equal_keys_are_an_error"),
    ),
    # Stores and what reads them.
    Fault(
        "the last image of a shard is not found",
        STORE,
        "self._last_ids[at] >= image_id:",
        "self._last_ids[at] > image_id:",
        _test("store.py::test_lookups"),
    ),
    Fault(
        "of shards whose ranges overlap one is asked",
        STORE,
        "while at >= 0 and self._reach[at] >= image_id:",
        "while at >= 0 and self._last_ids[at] >= image_id:",
        _test("store.py::test_lookups"),
    ),
    Fault(
        "another attempt's manifest is read as the store's",
        STORE,
        "if got != entry.manifest_sha256 or manifest.data_file is None:",
        "if manifest.data_file is None:",
        _test("store.py::test_a_changed_or_missing_shard"),
    ),
    Fault(
        "padding shows the batch before",
        f"{FEATURES}/batch.py",
        "as_bytes[first + count : first + padded_to].fill(0)",
        "as_bytes[first + count : first].fill(0)",
        _test("batch.py::test_memory_is_used_again_and_nothing_stays_in_it[False]"),
    ),
    Fault(
        "the smallest shards are shared out first",
        f"{FEATURES}/reading/rank_plan.py",
        "(-entry.data_bytes, entry.shard)",
        "(entry.data_bytes, entry.shard)",
        _test("rank_plan.py::test_every_shard_goes_to_one_rank_and_loads_are_even[64]"),
    ),
    Fault(
        "windows are shuffled alike in every epoch",
        f"{FEATURES}/reading/epoch_order.py",
        "[_WINDOW, self._seed, epoch, window]",
        "[_WINDOW, self._seed, 0, window]",
        _test("epoch_order.py::test_the_records_of_one_shard_come_in_another_order_in_each_epoch"),
    ),
    Fault(
        "what arrives damaged is staged",
        f"{FEATURES}/reading/staging.py",
        "                return _check_content(arriving, manifest)\n",
        "                return None\n",
        _test("staging.py::test_what_arrives_damaged_is_dropped"),
    ),
    Fault(
        "a broken download goes on with the file's beginning",
        f"{FEATURES}/folders/remote_folder.py",
        "if have and not _seek(source, have):",
        "if have and source is None:",
        _test("staging.py::test_a_broken_line_is_gone_on_with[True]"),
    ),
    Fault(
        "of equal scores the later region is kept",
        f"{FEATURES}/region_filter.py",
        'np.argsort(-class_scores, kind="stable")[:wanted]',
        'np.argsort(class_scores, kind="stable")[::-1][:wanted]',
        _test("batch.py::test_filters_keep_what_they_say[limits2]"),
    ),
    # Folders.
    Fault(
        "a small file has its name before it is on the disk",
        f"{FEATURES}/folders/durable_files.py",
        "            os.fsync(file.fileno())\n        if not first",
        "        if not first",
        _test("disk_steps.py::test_a_small_file[False-replace]"),
    ),
    Fault(
        "a name may be gone after a power cut",
        f"{FEATURES}/folders/durable_files.py",
        "    fsync_folder(path.parent)\n",
        "",
        _test("disk_steps.py::test_a_small_file[True-link]"),
    ),
    Fault(
        "a short upload counts",
        OBJECTS,
        "if got != want:",
        "if got is None:",
        _test("output_folder.py::test_a_short_upload_is_noticed[1234]"),
    ),
    Fault(
        "whoever puts an object second believes to be first",
        OBJECTS,
        "return self.read_bytes(name) == data",
        "return True",
        _test("output_folder.py::test_of_two_attempts_the_first_one_counts[memory]"),
    ),
    Fault(
        "a store of objects is asked once",
        OBJECTS,
        "enumerate([*WAIT_SECONDS[: tries - 1], None], start=1)",
        "enumerate([None], start=1)",
        _test("output_folder.py::test_a_store_that_fails_now_and_then_is_tried_again"),
    ),
    # Verification, comparison, formats of others.
    Fault(
        "a deep check believes the index",
        f"{FEATURES}/verify.py",
        "if record_digest(record) != digest:",
        "if not digest:",
        _test("verify.py::test_deep_finds_what_fast_cannot"),
    ),
    Fault(
        "a store's own digest is not compared",
        f"{FEATURES}/verify.py",
        "if got != store.content_digest:",
        "if not got:",
        _test(f"verify.py::test_totals[content_digest-{'0' * 64}]"),
    ),
    Fault(
        "a member of a zip inflates without a bound",
        f"{FEATURES}/exchange/zip_members.py",
        "unpacker.decompress(packed, size + 1)",
        "unpacker.decompress(packed)",
        _test("exchange_zip.py::test_a_member_inflates_no_further_than_it_says"),
    ),
    Fault(
        "a member of a zip may have another sum",
        f"{FEATURES}/exchange/zip_members.py",
        "or zlib.crc32(data) != self._sums[member]",
        "or not self._sums",
        _test("exchange_zip.py::test_archives_that_cannot_be"),
    ),
    Fault(
        "a pickle may copy without end",
        f"{FEATURES}/safe_pickle/read.py",
        "if self.copied > _COPIES_FREE + _COPIES_PER_BYTE * len(self.data):",
        "if self.copied < 0:",
        _test("safe_pickle.py::test_small_pickles_make_little_memory[encodings]"),
    ),
    Fault(
        "regions pair by nearness before overlap",
        f"{FEATURES}/comparison/region_matching.py",
        "np.lexsort((np.abs(rows - columns), -overlap[nearby]))",
        "np.lexsort((-overlap[nearby], np.abs(rows - columns)))",
        _test("comparison.py::test_match_regions[left9-right9-pairs9]"),
    ),
    Fault(
        "a single image's padding is what the memory held",
        f"{FEATURES}/reading/tensor_batches.py",
        "row[len(value) :] = 0",
        "row[len(value) :] = 1",
        _test("torch_datasets.py::test_samples_are_single_images_for_whoever_asks"),
    ),
    Fault(
        "samples of a ragged batch all begin at its first region",
        f"{FEATURES}/reading/tensor_batches.py",
        'batch["offsets"][place : place + 2].tolist()',
        'batch["offsets"][:2].tolist()',
        _test("torch_datasets.py::test_samples_are_single_images_for_whoever_asks"),
    ),
    # Writing a store from Python.
    Fault(
        "a shard with half a record is published after an error",
        WORK,
        "        if not self._is_whole:\n            log",
        "        if not begun:\n            log",
        _test("store_writer.py::test_a_disk_that_breaks_in_a_record_leaves_no_shard"),
    ),
    Fault(
        "Ctrl-C in a record loses its shard",
        WORK,
        "        with _interrupts_wait():\n",
        "        if True:\n",
        _test("store_writer.py::test_an_interrupt_waits_until_the_image_is_written"),
    ),
    Fault(
        "a store that grows forgets the captions of earlier shards",
        f"{FEATURES}/writing/finished_shards.py",
        "        for manifest in self.manifests:\n            yield [Annotation",
        "        for manifest in self.manifests[self.num_earlier :]:\n            yield [Annotation",
        _test("store_writer.py::test_a_finished_store_grows"),
    ),
    Fault(
        "an image that is there with other content is skipped",
        WORK,
        "if digest != record_digest(record) or said != captions:",
        "if not digest or said != captions:",
        _test("store_writer.py::test_the_same_call_of_write_store_goes_on"),
    ),
    Fault(
        "a writer forgets of what kind the records of earlier shards are",
        WORK,
        "self._shards.kind(), self._shards.has_classes()",
        "None, self._shards.has_classes()",
        _test("store_writer_errors.py::test_all_records_are_of_one_kind_in_every_shard_and_session"),
    ),
    Fault(
        "manifest.json stays though a shard of it was deleted",
        f"{FEATURES}/writing/finished_shards.py",
        "            path.unlink()\n",
        "            pass\n",
        _test("store_writer.py::test_a_damaged_shard_is_named_and_written_again"),
    ),
)
