"""Faults of pre-training: samples and batches, several stores, detectors trained beside, evaluations."""

from __future__ import annotations

from fault import Fault, first_steps


def _processes(test: str) -> str:
    return f"tests/pipelines/test_training_processes.py::{test}"


FAULTS = (
    Fault(
        "every worker makes the first one's batches",
        "_Share.__iter__",
        "islice(self._places(), worker.id, None,",
        "islice(self._places(), 0, None,",
        _processes("test_samples_from_workers_are_those_of_one_process"),
    ),
    Fault(
        "what a recipe changes of another one cannot be printed as JSON",
        "_plain",
        "dict(recipe.changes)",
        "recipe.changes",
        "tests/pipelines/test_light_commands.py::test_right_calls_are_right",
    ),
    Fault(
        "labels stand one piece further",
        "collate",
        "[sample.text_labels for",
        "[np.roll(sample.text_labels, 1) for",
        first_steps("vilbert"),
    ),
    Fault(
        "padding is predicted",
        "collate",
        "text, np.int64, IGNORE_INDEX)",
        "text, np.int64, pad_id)",
        first_steps("visualbert"),
    ),
    Fault(
        "padded regions are attended to",
        "image_fields",
        '"region_mask": _lengths_mask(regions, shape)',
        '"region_mask": _lengths_mask([shape[1]] * len(images), shape)',
        first_steps("interbert"),
    ),
    Fault(
        "background is the first class",
        "class_targets",
        "torch.from_numpy(record.class_ids[chosen].astype(np.int64))] = 1.0",
        "torch.from_numpy(record.class_ids[chosen].astype(np.int64)) + 1] = 1.0",
        "tests/pipelines/test_vlbert_samples.py::test_regions_come_by_score_with_their_targets",
    ),
    Fault(
        "class ids that only fill their place are learned",
        "StoreClasses.of",
        "if not has_classes(store.fingerprint):",
        "if store is None:",
        "tests/pipelines/test_region_classes.py::test_what_stores_and_user_tell_of_classes",
    ),
    Fault(
        "an imported class one beyond the last is let in",
        "ImportedClasses._check",
        "largest >= number",
        "largest > number",
        "tests/pipelines/test_import_classes.py::test_a_number_stays_with_the_store_and_its_copies",
    ),
    Fault(
        "words are aligned with regions one piece too early",
        "VisualBertSampler._naming_pieces",
        "        start = 1\n        for each in named:",
        "        start = 0\n        for each in named:",
        "tests/pipelines/test_aligned_words.py::"
        "test_boxes_are_aligned_with_the_first_piece_of_each_word_that_names_them",
    ),
    Fault(
        "padding of aligned words is taken for the first piece",
        "aligned_words",
        "padded: np.ndarray = np.full((len(given), most_regions, max(widths)), -1, np.int64)",
        "padded: np.ndarray = np.full((len(given), most_regions, max(widths)), 0, np.int64)",
        "tests/pipelines/test_aligned_words.py::test_alignment_is_padded_in_a_batch",
    ),
    Fault(
        "partners come from all stores",
        "Corpus.draw_row_of_another_image",
        "drawn = row - place + int(random.integers(others))",
        "drawn = int(random.integers(len(self) - (end - first)))",
        "tests/pipelines/test_pretraining_sources.py::test_partners_are_drawn_inside_a_source_as_if_there_were_no_other",
    ),
    Fault(
        "all processes take the first one's share of a step",
        "BudgetedTask.steps.parts",
        "self._planned(places, num_ranks)[rank]",
        "self._planned(places, num_ranks)[0]",
        "tests/pipelines/test_budgeted_task.py::test_steps_have_their_samples_whatever_processes_and_workers",
    ),
    Fault(
        "lengths are those of the row's own caption",
        "VLBertSampler.sizes",
        "lengths.pieces(pair.caption_row),",
        "lengths.pieces(row),",
        "tests/pipelines/test_budgeted_task.py::"
        "test_lengths_that_are_planned_with_are_those_of_the_samples[vlbert, pairs, uncut]",
    ),
    Fault(
        "validation asks about the test split",
        "GivenValidation.__init__",
        'split="val"',
        'split="test"',
        "tests/pipelines/test_validation.py::test_of_a_karpathy_file_the_split_val_is_asked_about",
    ),
    Fault(
        "the next stage starts from the weights that the average is of",
        "_from_folder",
        "= read_tensors(folder / WEIGHTS)\n",
        '= read_tensors(folder.parent / "trained.safetensors")\n',
        "tests/pipelines/test_stages.py::test_the_average_goes_on_to_the_next_stage_where_a_new_one_starts_from_it",
    ),
    Fault(
        "labelled photos are mirrored alike in every epoch",
        "LabelledBatches.coming",
        "[_PHOTO, self._seed, epoch, place]",
        "[_PHOTO, self._seed, 0, place]",
        "tests/pipelines/test_draw_frequencies.py::"
        "test_half_of_the_labelled_photos_are_mirrored_and_short_edges_come_alike[20000]",
    ),
    Fault(
        "the detector's losses lose their weights",
        "JointDetector.detect",
        "getattr(self.weights, name) * term.total",
        "term.total",
        "tests/pipelines/test_joint_detector.py::test_losses_are_those_of_model_and_detector_apart",
    ),
    Fault(
        "labelled photos of the other processes are not passed over",
        "LabelledStream.beside",
        "range(begin - number)",
        "range(0)",
        "tests/pipelines/test_joint_detector.py::test_labelled_photos_do_not_depend_on_batch_size_or_processes[0.5]",
    ),
    Fault(
        "an evaluation shows masked regions",
        "PhotoFeatures._row",
        "hides = bool(batch.masked_regions[row].any())",
        "hides = False",
        "tests/pipelines/test_evaluation_end_to_end.py::test_batches_and_what_was_kept_change_no_feature",
    ),
    Fault(
        "a fine-tuned model is asked by the heads of its pre-training",
        "pretraining_model",
        "if kind not in PRETRAINING_MODELS:",
        "if not issubclass(kind, PRETRAINING_MODELS):",
        "tests/pipelines/test_load_for_evaluation.py::test_no_task_model_is_asked[ViLBERT for tasks]",
    ),
    Fault(
        "an evaluation takes the place of an older one",
        "default_output_path",
        "        if not _is_there(place):",
        "        if number:",
        "tests/pipelines/test_load_for_evaluation.py::test_an_answer_never_takes_the_place_of_anything",
    ),
)
