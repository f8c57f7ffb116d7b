"""Faults that pre-training could have, each planted in a copy of the code and run against the test that must notice it.

    python tests/planted_faults.py [NAME ...]

A fault is one text of one file, put in the place of another. Exit code 1 when a test passes over its fault, or fails
without it. Every test runs in a process of its own, forked where the libraries are imported and our packages are not.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
COPIED = ("src", "bench", "tests", "pyproject.toml")


class Fault(NamedTuple):
    """Attributes:
    name: of the fault, in words.
    file: where it is planted.
    found, planted: the text there, which stands in the file once, and what takes its place.
    test: the node that must fail.
    """

    name: str
    file: str
    found: str
    planted: str
    test: str


def _first_steps(run: str) -> str:
    return f"tests/pipelines/test_trajectories.py::test_the_first_steps_are_the_official_ones[{run}]"


def _loop(test: str) -> str:
    return f"tests/pipelines/test_training.py::{test}"


def _processes(test: str) -> str:
    return f"tests/pipelines/test_training_processes.py::{test}"


TRAINING = "src/roibeam/pipelines/training"
LOOP, STEP, RULES = f"{TRAINING}/loop.py", f"{TRAINING}/train_step.py", f"{TRAINING}/parameter_groups.py"
SCHEDULE, STEPS = f"{TRAINING}/optimizer/build.py", f"{TRAINING}/optimizer/release_optimizers.py"
COLLATE = "src/roibeam/pipelines/pretraining/samples/sample.py"
TERMS = "src/roibeam/model/pretraining.py"
ANY_BATCH = (
    "tests/pipelines/test_pretraining_vilbert.py::test_contrastive_negatives_do_not_depend_on_the_size_of_batches"
)
FAULTS = (
    # The loop.
    Fault(
        "each micro-batch has a denominator of its own",
        STEP,
        "term.over(denominators[name]) for",
        "term.total / term.count.clamp(min=1) / self._config.accumulation for",
        _loop("test_accumulation_is_one_mean_over_all_labels[3]"),
    ),
    Fault(
        "micro-batches are added, not averaged",
        STEP,
        "term.over(denominators[name]) for",
        "term.total / term.count.clamp(min=1) for",
        _first_steps("vl-bert-accumulated"),
    ),
    Fault(
        "the rate is that of the step before",
        LOOP,
        "learning_rate_at(position.step, config)",
        "learning_rate_at(position.step - 1, config)",
        _first_steps("vl-bert"),
    ),
    Fault(
        "groups have no rate of their own",
        LOOP,
        'group["lr"] = rate * group["learning_rate_scale"]',
        'group["lr"] = rate',
        _first_steps("vilbert"),
    ),
    Fault(
        "nothing is clipped",
        STEP,
        "config.clip_norm if all_together else math.inf",
        "math.inf",
        _first_steps("vl-bert"),
    ),
    Fault(
        "single tensors are not clipped",
        STEP,
        "clip_each(self._trained, config.clip_norm)",
        "clip_each(self._trained[:0], config.clip_norm)",
        _first_steps("vilbert"),
    ),
    Fault(
        "gradients are never set to zero",
        STEP,
        "self._model.zero_grad()",
        "self._model.modules()",
        _first_steps("vl-bert"),
    ),
    Fault(
        "gradients of parameters outside the optimizer pile up",
        STEP,
        "self._model.zero_grad()",
        "self._optimizer.zero_grad()",
        _loop("test_a_parameter_in_no_group_is_as_if_it_were_frozen[all]"),
    ),
    Fault(
        "parameters outside the optimizer count in the norm",
        STEP,
        "if id(parameter) in grouped]",
        "if grouped]",
        _first_steps("visualbert"),
    ),
    Fault(
        "accumulated samples are counted once",
        LOOP,
        "global_batch = task.batch_size * config.accumulation * accelerator.num_processes",
        "global_batch = task.batch_size * accelerator.num_processes",
        _loop("test_resumed_runs_end_in_the_same_bits[stops0]"),
    ),
    Fault(
        "a resumed run draws its samples from the first on",
        LOOP,
        "        task,\n        position.next_sample,\n",
        "        task,\n        0,\n",
        _loop("test_resumed_runs_end_in_the_same_bits[stops0]"),
    ),
    Fault(
        "a resumed run has another dropout",
        "src/roibeam/pipelines/training/checkpoint.py",
        "_restore_random_state(load_file(own))",
        "load_file(own)",
        _loop("test_resumed_runs_end_in_the_same_bits[stops0]"),
    ),
    # Several processes.
    Fault(
        "each process has a denominator of its own",
        STEP,
        "self._add_counts({name",
        "dict({name",
        _processes("test_losses_that_only_some_processes_have"),
    ),
    Fault(
        "gradients are means of processes, not sums",
        STEP,
        "accelerator.backward(loss * accelerator.num_processes)",
        "accelerator.backward(loss)",
        _processes("test_losses_that_only_some_processes_have"),
    ),
    Fault(
        "every worker makes the first one's batches",
        "src/roibeam/pipelines/pretraining/data/batch_workers.py",
        "islice(self._places(), worker.id, None,",
        "islice(self._places(), 0, None,",
        _processes("test_samples_from_workers_are_those_of_one_process"),
    ),
    Fault(
        "one row's seed draws the negatives of all",
        TERMS,
        "manual_seed(draws[row])",
        "manual_seed(draws[0])",
        ANY_BATCH,
    ),
    Fault(
        "negatives come from all of a batch",
        TERMS,
        "real[first : first + group_rows].flatten().nonzero().squeeze(1) + first * num_regions",
        "real.flatten().nonzero().squeeze(1)",
        ANY_BATCH,
    ),
    Fault(
        "each micro-batch adds an epsilon",
        "src/roibeam/model/common/losses.py",
        "self.count + other.count, self.epsilon)",
        "self.count + other.count, self.epsilon + other.epsilon)",
        "tests/model/test_vlbert_options.py::test_float64_goes_all_the_way",
    ),
    Fault(
        "the log leaves the release's epsilon out",
        STEP,
        "term.count.double() * term.epsilon",
        "term.count.double() * 0.0",
        _first_steps("vl-bert-rows"),
    ),
    Fault(
        "a sample that is not finite is named by its own process alone",
        "src/roibeam/pipelines/training/not_finite.py",
        "gather_object(names), gather_object(guilty)",
        "gather_object(names), guilty",
        _processes("test_what_is_not_finite_in_one_process_stops_all_and_is_named_by_all[poisoned0-1-sample-4-1]"),
    ),
    # Schedules.
    Fault(
        "a schedule that starts at zero starts one step later",
        SCHEDULE,
        "    if config.starts_at_zero:\n        step -= 1",
        "    if config.starts_at_zero:\n        step -= 0",
        _first_steps("vilbert"),
    ),
    Fault(
        "the rate does not end at zero",
        SCHEDULE,
        "config.learning_rate * (config.steps - step) /",
        "config.learning_rate * (config.steps - step + 1) /",
        _loop("test_schedule_is_the_release_triangle"),
    ),
    Fault(
        "the rate falls in the step that is named, not behind it",
        SCHEDULE,
        "sum(step > last for last in config.decay_steps)",
        "sum(step >= last for last in config.decay_steps)",
        _loop("test_the_rate_rises_then_falls_in_steps"),
    ),
    # Optimizers and groups.
    Fault(
        "groups do not say whether they decay",
        SCHEDULE,
        'group.get("weight_decay", config.weight_decay)',
        "config.weight_decay",
        _first_steps("vilbert"),
    ),
    Fault(
        "BertAdam does not decay",
        STEPS,
        'update.add_(parameter, alpha=group["weight_decay"])',
        "update.add_(parameter, alpha=0.0)",
        _first_steps("vilbert"),
    ),
    Fault(
        "AdamW does not decay",
        STEPS,
        'parameter.add_(parameter, alpha=-rate * group["weight_decay"])',
        "parameter.add_(parameter, alpha=0.0)",
        _first_steps("vl-bert"),
    ),
    Fault(
        "AdamW's bias is not corrected",
        STEPS,
        "if self.correct_bias:",
        "if not self.correct_bias:",
        _first_steps("vl-bert"),
    ),
    Fault(
        "decay on the wrong group: ViLBERT's accident is put right",
        RULES,
        'official = _vilbert_name(name, "release")\n    return Treatment(decays=_named',
        'official = _vilbert_name(name, "release")\n    return Treatment(decays=not _named',
        _first_steps("vilbert"),
    ),
    Fault(
        "what BERT brought has the full rate",
        RULES,
        "BERT_SCALE = 0.1",
        "BERT_SCALE = 1.0",
        _first_steps("interbert"),
    ),
    Fault(
        "UCLA's pooler is trained",
        RULES,
        'return None if "pooler" in official else Treatment',
        "return Treatment",
        _first_steps("visualbert"),
    ),
    # Batches.
    Fault(
        "labels stand one piece further",
        COLLATE,
        "[sample.text_labels for",
        "[np.roll(sample.text_labels, 1) for",
        _first_steps("vilbert"),
    ),
    Fault(
        "padding is predicted",
        COLLATE,
        "text, np.int64, IGNORE_INDEX)",
        "text, np.int64, pad_id)",
        _first_steps("visualbert"),
    ),
    Fault(
        "padded regions are attended to",
        COLLATE,
        "region_mask=_lengths_mask(regions, most)",
        "region_mask=_lengths_mask([most[1]] * rows, most)",
        _first_steps("interbert"),
    ),
    Fault(
        "background is the first class",
        "src/roibeam/pipelines/pretraining/samples/class_targets.py",
        "torch.from_numpy(record.class_ids[chosen].astype(np.int64))] = 1.0",
        "torch.from_numpy(record.class_ids[chosen].astype(np.int64)) + 1] = 1.0",
        "tests/pipelines/test_pretraining.py::test_regions_come_by_score_with_their_targets",
    ),
    Fault(
        "words are aligned with regions one piece too early",
        "src/roibeam/pipelines/pretraining/samples/visualbert.py",
        "text, start = corpus.text(row), 1",
        "text, start = corpus.text(row), 0",
        "tests/pipelines/test_aligned_words.py::"
        "test_boxes_are_aligned_with_the_first_piece_of_each_word_that_names_them",
    ),
    Fault(
        "padding of aligned words is taken for the first piece",
        COLLATE,
        "padded: np.ndarray = np.full((*shape, max(widths)), -1, np.int64)",
        "padded: np.ndarray = np.full((*shape, max(widths)), 0, np.int64)",
        "tests/pipelines/test_aligned_words.py::test_alignment_is_padded_in_a_batch",
    ),
    # Several stores, and steps under a token budget.
    Fault(
        "partners come from all stores",
        "src/roibeam/pipelines/pretraining/data/corpus.py",
        "drawn = row - place + int(random.integers(others))",
        "drawn = int(random.integers(len(self) - (end - first)))",
        "tests/pipelines/test_pretraining_sources.py::test_partners_are_drawn_inside_a_source_as_if_there_were_no_other",
    ),
    Fault(
        "each epoch begins a store anew",
        "src/roibeam/pipelines/training/source_mixture.py",
        "numbers = np.arange(epoch * count, (epoch + 1) * count)",
        "numbers = np.arange(count)",
        "tests/pipelines/test_source_mixture.py::test_each_source_gives_its_share_and_is_read_in_rounds_of_its_own[alone]",
    ),
    Fault(
        "all processes take the first one's share of a step",
        "src/roibeam/pipelines/pretraining/budgeted_task.py",
        "self._planned(places, num_ranks)[rank]",
        "self._planned(places, num_ranks)[0]",
        "tests/pipelines/test_budgeted_task.py::test_steps_have_their_samples_whatever_processes_and_workers",
    ),
    Fault(
        "lengths are those of the row's own caption",
        "src/roibeam/pipelines/pretraining/samples/vlbert.py",
        "lengths.pieces(pair.caption_row),",
        "lengths.pieces(row),",
        "tests/pipelines/test_budgeted_task.py::"
        "test_lengths_that_are_planned_with_are_those_of_the_samples[vlbert, pairs, uncut]",
    ),
    Fault(
        "validation asks about the test split",
        "src/roibeam/pipelines/pretraining/data/given_stores.py",
        'split="val"',
        'split="test"',
        "tests/pipelines/test_validation.py::test_of_a_karpathy_file_the_split_val_is_asked_about",
    ),
    Fault(
        "the next stage starts from the weights that the average is of",
        "src/roibeam/pipelines/model_files/model_checkpoint.py",
        "_as_float32(read_tensors(folder / WEIGHTS))",
        '_as_float32(read_tensors(folder.parent / "trained.safetensors"))',
        "tests/pipelines/test_stages.py::test_the_average_goes_on_to_the_next_stage_where_a_new_one_starts_from_it",
    ),
    Fault(
        "random pieces of a group of words are one piece",
        "src/roibeam/model/interbert/group_masking.py",
        "generator.integers(vocab_size, size=len(places))",
        "generator.integers(vocab_size)",
        "tests/model/test_group_masking.py::test_every_share_of_what_becomes_of_it[mask_segments-20000]",
    ),
    Fault(
        "labelled photos are mirrored alike in every epoch",
        "src/roibeam/pipelines/detector/labelled_batches.py",
        "[_PHOTO, self._seed, epoch, place]",
        "[_PHOTO, self._seed, 0, place]",
        "tests/pipelines/test_draw_frequencies.py::"
        "test_half_of_the_labelled_photos_are_mirrored_and_short_edges_come_alike[20000]",
    ),
    Fault(
        "the last region of other images is no negative",
        "src/roibeam/model/pretraining.py",
        "others[torch.randint(len(others), ",
        "others[torch.randint(len(others) - 1, ",
        "tests/pipelines/test_draw_frequencies.py::test_negatives_of_a_run_s_rows_come_alike[4000]",
    ),
    # Models.
    Fault(
        "the decoder of words is not the word embedding",
        "src/roibeam/model/common/heads.py",
        "F.linear(self.norm(self.activation(self.dense(states))), word_embeddings_VH, self.bias)",
        "F.linear(self.norm(self.activation(self.dense(states))), word_embeddings_VH.detach(), self.bias)",
        _first_steps("vl-bert"),
    ),
    Fault(
        "ViLBERT takes a match for a mismatch",
        "src/roibeam/model/vilbert/model.py",
        "MATCH_LOGIT = 0",
        "MATCH_LOGIT = 1",
        _first_steps("vilbert"),
    ),
    Fault(
        "VisualBERT takes a match for a mismatch",
        "src/roibeam/model/visualbert/model.py",
        "MATCH_LOGIT = 1",
        "MATCH_LOGIT = 0",
        _first_steps("visualbert"),
    ),
    Fault(
        "IMG is predicted and the last region is not",
        "src/roibeam/model/vilbert/model.py",
        "region_states=elements[:, 1:]",
        "region_states=elements[:, :-1]",
        _first_steps("vilbert"),
    ),
    Fault(
        "IMG shows masked regions",
        "src/roibeam/model/common/regions.py",
        "whole = mean_feature(features, visible,",
        "whole = mean_feature(features, batch.region_mask,",
        _first_steps("vilbert"),
    ),
    Fault(
        "masked regions keep their features",
        "src/roibeam/model/common/regions.py",
        'shown = batch.region_mask if masked_appearance == "pixels" else visible',
        "shown = batch.region_mask",
        _first_steps("interbert"),
    ),
    Fault(
        "regions of mismatched pairs are predicted",
        "src/roibeam/model/interbert/model.py",
        "matched = predicted & match.eq(1)[:, None]\n        chosen",
        "matched = predicted\n        chosen",
        _first_steps("interbert"),
    ),
    Fault(
        "positions of regions start again at 0",
        "src/roibeam/model/vlbert/embeddings.py",
        "first_free = text_mask.sum(dim=1)",
        "first_free = text_mask.sum(dim=1) * 0",
        _first_steps("vl-bert"),
    ),
    Fault(
        "VL-BERT's whole image shows masked regions",
        "src/roibeam/model/vlbert/embeddings.py",
        "visible = (region_mask & ~masked_regions).unsqueeze(-1)",
        "visible = region_mask.unsqueeze(-1)",
        _first_steps("vl-bert"),
    ),
    Fault(
        "the mask stands in after the projection, and hides the box",
        "src/roibeam/model/vlbert/model.py",
        """
            features = torch.where(masked, self.masked_region_feature.weight.to(features.dtype), features)
        # A row without an image may bring no size.
        hw, real = image_hw.clamp(min=1), Packing(elements.mask)
        features, boxes = real.pack(features)[:, None], real.pack(elements.boxes)[:, None]
        visuals = real.pad(self.region_projection(features, boxes, hw[real.rows]).squeeze(1))
""",
        """
            features = features
        hw, real = image_hw.clamp(min=1), Packing(elements.mask)
        features, boxes = real.pack(features)[:, None], real.pack(elements.boxes)[:, None]
        visuals = real.pad(self.region_projection(features, boxes, hw[real.rows]).squeeze(1))
        if self.masked_region_feature is not None:
            width, vector = visuals.shape[-1], self.masked_region_feature.weight.to(visuals.dtype)
            visuals = torch.where(masked, vector.repeat(1, width)[:, :width], visuals)
""",
        _first_steps("vl-bert"),
    ),
    Fault(
        "words of text alone share the mean of the captions'",
        "src/roibeam/model/vlbert/model.py",
        'terms.losses["text_only_words"] = own.losses["masked_words"]',
        'terms.losses["text_only_words"] = own.losses["masked_words"] + terms.losses["masked_words"]',
        _first_steps("vl-bert"),
    ),
    # A detector trained beside, and evaluation end to end.
    Fault(
        "the detector's losses lose their weights",
        "src/roibeam/pipelines/model_files/joint_detector.py",
        "getattr(self.weights, name) * term.total",
        "term.total",
        "tests/pipelines/test_joint_detector.py::test_losses_are_those_of_model_and_detector_apart",
    ),
    Fault(
        "labelled photos of the other processes are not passed over",
        "src/roibeam/pipelines/pretraining/data/labelled_photos.py",
        "range(begin - number)",
        "range(0)",
        "tests/pipelines/test_joint_detector.py::test_labelled_photos_do_not_depend_on_batch_size_or_processes[0.5]",
    ),
    Fault(
        "an evaluation shows masked regions",
        "src/roibeam/pipelines/pretraining/evaluation/photo_features.py",
        "hides = bool(batch.masked_regions[row].any())",
        "hides = False",
        "tests/pipelines/test_evaluation_end_to_end.py::test_batches_and_what_was_kept_change_no_feature",
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="faults, or parts of their names; all by default")
    wanted = parser.parse_args().names
    faults = [fault for fault in FAULTS if not wanted or any(part in fault.name for part in wanted)]
    if not faults:
        parser.error(f"no fault is called {' or '.join(wanted)}")
    os.environ["OMP_NUM_THREADS"] = "1"
    _import_libraries()
    started = time.monotonic()
    bad = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        _copy_code(copy)
        for test in dict.fromkeys(fault.test for fault in faults):
            if _exit_code(copy, test) != 0:
                bad.append(f"{test} does not pass without any fault")
        for fault in faults:
            path = copy / fault.file
            before = path.read_text("utf-8")
            path.write_text(planted_in(fault, before), "utf-8")
            code = _exit_code(copy, fault.test)
            path.write_text(before, "utf-8")
            noticed = code == 1  # pytest: a test failed; 0 none did, 2 and above nothing was tested
            print(
                f"{'noticed' if noticed else f'MISSED ({code})':12} {fault.name}: {fault.test.partition('::')[2]}",
                flush=True,
            )
            if not noticed:
                bad.append(f"{fault.name}: {fault.test} ended with exit code {code}")
    print(f"{len(faults)} faults in {time.monotonic() - started:.0f} s; {len(bad)} problems", *bad, sep="\n")
    return 1 if bad else 0


def planted_in(fault: Fault, text: str) -> str:
    """The file's text with the fault.

    Raises:
        ValueError: when what it takes the place of does not stand there once.
    """
    if (times := text.count(fault.found)) != 1:
        raise ValueError(f"{fault.name}: {fault.found!r} stands {times} times in {fault.file}; expected once")
    return text.replace(fault.found, fault.planted)


def _import_libraries() -> None:
    import accelerate
    import pytest
    import torch
    import transformers.modeling_utils

    assert all(module.__name__ for module in (accelerate, pytest, torch, transformers))
    torch.set_num_threads(1)


def _copy_code(copy: Path) -> None:
    copy.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, copy / name)


def _exit_code(copy: Path, test: str) -> int:
    """Of pytest on one test of the copy."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            os.chdir(copy)
            sys.path.insert(0, str(copy / "src"))
            os.environ["PYTHONPATH"] = str(copy / "src")  # of the processes that a test starts
            sys.dont_write_bytecode = True
            import pytest

            code = int(pytest.main(["-x", "-n", "0", "-p", "no:cacheprovider", "--rootdir", str(copy), test]))
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    raise SystemExit(main())
