"""Settings of training by the names that others have for them, Hugging Face's `TrainingArguments` above all."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_STEPS = "--epochs of finetune, else --steps: epochs x captions / global batch"
_KEEPS_BEST = "train.best_by, whose best checkpoint stays"
_DROPOUT = "model.dropout of finetune, model.hidden_dropout and model.attention_dropout of pretrain"
_LOG = "nothing to set: log.jsonl has every step"
TRAIN_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "max_steps": "--steps", "num_train_epochs": _STEPS, "epochs": _STEPS,
        "per_device_train_batch_size": "--batch-size", "train_batch_size": "--batch-size", "batch_size": "--batch-size",
        "gradient_accumulation_steps": "train.accumulation", "accumulate_grad_batches": "train.accumulation",
        "lr": "--learning-rate", "warmup_ratio": "--warmup-steps", "lr_scheduler_type": "train.schedule",
        "optim": "train.optimizer", "adam_beta1": "train.betas", "adam_beta2": "train.betas",
        "adam_epsilon": "train.epsilon", "max_grad_norm": "train.clip_norm", "gradient_clip_val": "train.clip_norm",
        "bf16": "--precision bf16", "fp16": "--precision fp16", "use_cpu": "--device cpu",
        "gradient_checkpointing": "train.activation_checkpointing", "save_steps": "train.checkpoint_every",
        "save_total_limit": "train.keep", "eval_steps": "train.evaluate_every",
        "metric_for_best_model": _KEEPS_BEST, "load_best_model_at_end": _KEEPS_BEST,
        "greater_is_better": "train.best_is", "early_stopping_patience": "train.patience",
        "report_to": "train.tensorboard", "logging_steps": _LOG, "log_every": _LOG, "ema_decay": "train.average_rate",
        "dataloader_num_workers": "data.workers", "num_workers": "data.workers",
        "resume_from_checkpoint": "--resume-from",
        "freeze": "train.frozen", "freeze_layers": "train.frozen", "freeze_encoder": "train.frozen",
        "freeze_backbone": "train.frozen", "frozen_layers": "train.frozen", "trainable": "train.frozen",
        "lr_mult": "train.rates", "layerwise_lr_decay": "train.rates", "head_lr": "train.rates",
        "head_learning_rate": "train.rates", "encoder_lr": "train.rates", "param_groups": "train.rates",
        "dropout": _DROPOUT, "hidden_dropout": _DROPOUT, "hidden_dropout_prob": _DROPOUT,
        "attention_dropout": _DROPOUT, "attention_probs_dropout_prob": _DROPOUT,
        "class_weights": "labels.weights, of the task labels", "class_weight": "labels.weights, of the task labels",
    }
)  # fmt: skip
