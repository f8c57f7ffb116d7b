"""Match scores of texts and pictures by a model that `roibeam pretrain` trained: log-odds, one pair at a time."""

import hashlib
from typing import Any

import torch

from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.analysis.load_for_evaluation import NO_MATCH_HEAD, pretraining_model, tokenizer_of
from roibeam.pipelines.analysis.probe import check_fit, pair_batch
from roibeam.pipelines.training.model_files.model_checkpoint import load_model


class MatchScores:
    """Match scores, one pair at a time: other pairs of a batch cannot change the last digits.

    Args:
        model: run, model folder or official checkpoint with a match head.
        tokenizer: as `load_tokenizer`; None for the model's own.
    Raises:
        ValueError: for a model that was fine-tuned, or has no match head.
    """

    def __init__(self, model: str, *, tokenizer: str | None = None, device: str = "cpu") -> None:
        found = load_model(model)
        self._as_read = found.as_read
        self._model: Any = pretraining_model(found, named=model, verb="use")
        self._model.to(device)
        self._device, self._named = device, model
        self._tokenizer = tokenizer_of(found, tokenizer)
        self._longest = self._model.config.max_position_embeddings - 2

    def fingerprint(self) -> str:
        """Digest of the model's weights and its tokenizer."""
        digest = hashlib.sha256(self._tokenizer.digest.encode("ascii"))
        for name, tensor in sorted(self._model.state_dict().items()):
            digest.update(name.encode("utf-8"))
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    @torch.inference_mode()
    def log_odds(self, record: RegionRecord, text: str) -> float:
        """Log-odds of a match; ValueError if the record does not fit the model, or the model has no match head."""
        ids = self._tokenizer.encode(text).ids
        if len(ids) > self._longest:
            ids = ids[: self._longest].copy()
            ids[-1] = self._tokenizer.encode("").ids[-1]  # [SEP], as at every text's end
        record = self._as_read(record)
        check_fit(self._model.config, record, self._tokenizer, len(ids))
        batch = pair_batch(record, torch.from_numpy(ids)).to(self._device)
        found = self._model.match_log_odds(self._model.encode(batch))
        if found is None:
            raise ValueError(f"{self._named}: {NO_MATCH_HEAD}")
        return float(found[0])
