"""Faults of the training loop: steps, rates, optimizers, several processes."""

from __future__ import annotations

from fault import Fault, first_steps


def _loop(test: str) -> str:
    return f"tests/pipelines/test_training.py::{test}"


def _processes(test: str) -> str:
    return f"tests/pipelines/test_training_processes.py::{test}"


FAULTS = (
    Fault(
        "each micro-batch has a denominator of its own",
        "share_of_step",
        "return term.over(denominator)",
        "return term.total / term.count.clamp(min=1) / config.accumulation",
        _loop("test_accumulation_is_one_mean_over_all_labels[3]"),
    ),
    Fault(
        "micro-batches are added, not averaged",
        "share_of_step",
        "return term.over(denominator)",
        "return term.total / term.count.clamp(min=1)",
        first_steps("vl-bert-accumulated"),
    ),
    Fault(
        "the rate is that of the step before",
        "RunHooks.set_learning_rate",
        "learning_rate_at(position.step, config, ",
        "learning_rate_at(position.step - 1, config, ",
        first_steps("vl-bert"),
    ),
    Fault(
        "groups have no rate of their own",
        "RunHooks.set_learning_rate",
        'group["lr"] = rate * group["learning_rate_scale"]',
        'group["lr"] = rate',
        first_steps("vilbert"),
    ),
    Fault(
        "nothing is clipped",
        "TrainStep.take",
        "config.clip_norm if all_together else math.inf",
        "math.inf",
        first_steps("vl-bert"),
    ),
    Fault(
        "single tensors are not clipped",
        "TrainStep.take",
        "clip_each(self._trained, config.clip_norm)",
        "clip_each(self._trained[:0], config.clip_norm)",
        first_steps("vilbert"),
    ),
    Fault(
        "gradients are never set to zero",
        "TrainStep.take",
        "self._model.zero_grad()  # the",
        "self._model.modules()  # the",
        first_steps("vl-bert"),
    ),
    Fault(
        "gradients of parameters outside the optimizer pile up",
        "TrainStep.take",
        "self._model.zero_grad()  # the",
        "self._optimizer.zero_grad()  # the",
        _loop("test_a_parameter_in_no_group_is_as_if_it_were_frozen[all]"),
    ),
    Fault(
        "parameters outside the optimizer count in the norm",
        "TrainStep.__init__",
        "if id(parameter) in grouped]",
        "if grouped]",
        first_steps("visualbert"),
    ),
    Fault(
        "accumulated samples are counted once",
        "_train",
        "global_batch = task.batch_size * config.accumulation * accelerator.num_processes",
        "global_batch = task.batch_size * accelerator.num_processes",
        _loop("test_resumed_runs_end_in_the_same_bits[stops0]"),
    ),
    Fault(
        "a resumed run draws its samples from the first on",
        "_train",
        "        task,\n        position.next_sample,\n",
        "        task,\n        0,\n",
        _loop("test_resumed_runs_end_in_the_same_bits[stops0]"),
    ),
    Fault(
        "a resumed run has another dropout",
        "_load",
        "_restore_random_state(load_file(own))",
        "load_file(own)",
        _loop("test_resumed_runs_end_in_the_same_bits[stops0]"),
    ),
    Fault(
        "each process has a denominator of its own",
        "TrainStep._denominators",
        "self._add_counts({name",
        "dict({name",
        _processes("test_losses_that_only_some_processes_have"),
    ),
    Fault(
        "gradients are means of processes, not sums",
        "TrainStep.take",
        "accelerator.backward(loss * accelerator.num_processes)",
        "accelerator.backward(loss)",
        _processes("test_losses_that_only_some_processes_have"),
    ),
    Fault(
        "the log leaves the release's epsilon out",
        "TrainStep._means",
        "term.count.double() * term.epsilon",
        "term.count.double() * 0.0",
        first_steps("vl-bert-rows"),
    ),
    Fault(
        "a sample that is not finite is named by its own process alone",
        "blame",
        "gather_object(names), gather_object(guilty)",
        "gather_object(names), guilty",
        _processes("test_what_is_not_finite_in_one_process_stops_all_and_is_named_by_all[poisoned0-1-sample-4-1]"),
    ),
    Fault(
        "a schedule that starts at zero starts one step later",
        "learning_rate_at",
        "    if config.starts_at_zero:\n        step -= 1",
        "    if config.starts_at_zero:\n        step -= 0",
        first_steps("vilbert"),
    ),
    Fault(
        "the rate does not end at zero",
        "learning_rate_at",
        "config.learning_rate * (steps - step) /",
        "config.learning_rate * (steps - step + 1) /",
        _loop("test_schedule_is_the_release_triangle"),
    ),
    Fault(
        "the rate falls in the step that is named, not behind it",
        "_decay",
        "sum(step > last for last in config.decay_steps)",
        "sum(step >= last for last in config.decay_steps)",
        _loop("test_the_rate_rises_then_falls_in_steps"),
    ),
    Fault(
        "groups do not say whether they decay",
        "build_optimizer",
        'group.get("weight_decay", config.weight_decay)',
        "config.weight_decay",
        first_steps("vilbert"),
    ),
    Fault(
        "BertAdam does not decay",
        "BertAdam.step",
        'update.add_(parameter, alpha=group["weight_decay"])',
        "update.add_(parameter, alpha=0.0)",
        first_steps("vilbert"),
    ),
    Fault(
        "AdamW does not decay",
        "TransformersAdamW.step",
        'parameter.add_(parameter, alpha=-rate * group["weight_decay"])',
        "parameter.add_(parameter, alpha=0.0)",
        first_steps("vl-bert"),
    ),
    Fault(
        "AdamW's bias is not corrected",
        "TransformersAdamW.step",
        "if self.correct_bias:",
        "if not self.correct_bias:",
        first_steps("vl-bert"),
    ),
    Fault(
        "decay on the wrong group: ViLBERT's accident is put right",
        "_vilbert_release",
        'official = _vilbert_name(name, "release")\n    return Treatment(decays=_named',
        'official = _vilbert_name(name, "release")\n    return Treatment(decays=not _named',
        first_steps("vilbert"),
    ),
    Fault(
        "what BERT brought has the full rate",
        "",
        "BERT_SCALE = 0.1",
        "BERT_SCALE = 1.0",
        first_steps("interbert"),
    ),
    Fault(
        "UCLA's pooler is trained",
        "_visualbert_ucla",
        'return None if "pooler" in official else Treatment',
        "return Treatment",
        first_steps("visualbert"),
    ),
    Fault(
        "each epoch begins a store anew",
        "SourceMixture.epoch",
        "numbers = np.arange(epoch * count, (epoch + 1) * count)",
        "numbers = np.arange(count)",
        "tests/pipelines/test_source_mixture.py::test_each_source_gives_its_share_and_is_read_in_rounds_of_its_own[alone]",
    ),
    Fault(
        "an average has a share of the weights from before training",
        "ExponentialAverage._share",
        "if self.start == INITIAL or self.rate == 0:",
        "if True:",
        "tests/model/test_exponential_average.py::test_it_is_the_sum_that_the_rule_unrolls_to[first_update]",
    ),
    Fault(
        "a run from before averages had a start goes on by another rule",
        "with_recorded_rules",
        'saved.get("average_start", "initial") == "initial"',
        'saved.get("average_start", "first_update") == "initial"',
        "tests/pipelines/test_training_evaluations.py::"
        "test_an_average_from_before_there_was_a_start_goes_on_as_it_began",
    ),
    Fault(
        "a release's warm-up is rounded",
        "schedule_fields",
        '"warmup_steps": min(rise, counted, *falls)',
        '"warmup_steps": min(round(rise), counted, *falls)',
        "tests/pipelines/test_step_rules.py::test_a_release_does_not_round_its_warm_up",
    ),
    Fault(
        "epochs end with the first of several tasks",
        "learning_rate_at",
        "_overwritten_scale(step, rounds, config)\n    rise",
        "_overwritten_scale(step, step, config)\n    rise",
        "tests/pipelines/test_step_policies.py::test_schedules_that_overwrite_each_other_when_tasks_take_turns[2]",
    ),
)
