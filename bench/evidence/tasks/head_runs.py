"""What attention heads find of the phrases of captions: of kept weights, and of untrained ones; nothing is trained.

The best head of many is lucky on the pictures that it was chosen on. So each half of the pictures is judged by the head
that is best on the other one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from evidence.run_answers import rounded_tallies
from evidence.tasks.own_arms import ANY_WORD, BEST_HEAD, COVERED, LAYER, PHRASES, STRONGEST, HeadArm
from evidence.tasks.own_pictures import ENTITIES, OwnPictures
from evidence.weights import write_untrained

SPLIT = "test"
_LEAST = 100  # questions of a relation that is told


class HeadRuns:
    """
    Args:
        weights: folder of the kept weights.
        device: where models are asked, as `--device`.
    """

    def __init__(self, own: OwnPictures, *, weights: Path, device: str = "cpu") -> None:
        self.own, self.weights, self.device = own, weights, device

    def command(self, arm: HeadArm) -> str:
        """What shows the same figures, and pictures beside them."""
        start = f"{'weights' if arm.is_trained else 'untrained'}/{arm.shape}"
        files = f"--store again/stores/{arm.store} --entities again/{ENTITIES} --parses again/{ENTITIES}/parses.conll"
        return f"roibeam attention {start} {files} --split {SPLIT}"

    def answers(self, arm: HeadArm, seed: int) -> dict[str, Any]:
        """
        Returns:
            "curve", which is empty, and "tallies".
        """
        weights = self.weights / arm.shape
        if not arm.is_trained:
            untrained = self.own.world.work / "untrained" / f"{arm.shape}-{seed}"
            weights = write_untrained(weights, untrained, seed)
        return {"curve": {}, "tallies": rounded_tallies(self._tallies(weights, arm.store))}

    def _tallies(self, weights: Path, store: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        from roibeam.pipelines.analysis.attention_questions import ENTITY
        from roibeam.pipelines.analysis.head_accuracy import relations_of

        looks = self._looks(weights, store)
        found = dict(self._asked(looks, ENTITY, PHRASES))
        for relation in relations_of(looks, ENTITY):
            if (looks.population == relation).sum() >= _LEAST:
                found |= {
                    name: tally
                    for name, tally in self._asked(looks, relation, relation)
                    if name.endswith((BEST_HEAD, STRONGEST))
                }
        return found

    def _looks(self, weights: Path, store: str) -> Any:
        """As `roibeam attention` has them."""
        import torch

        from roibeam.features.store import FeatureStore
        from roibeam.pipelines.analysis.analysis_settings import RULES
        from roibeam.pipelines.analysis.attention_run import read_questions
        from roibeam.pipelines.analysis.evaluation.evaluation_samples import EvaluationSamples
        from roibeam.pipelines.analysis.head_accuracy import head_looks
        from roibeam.pipelines.analysis.requests import AttentionRequest
        from roibeam.pipelines.finetuning.metrics.grounding import GROUNDING_RULES
        from roibeam.pipelines.training.model_files.model_checkpoint import load_model
        from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer

        checkpoint = load_model(str(weights))
        model: Any = checkpoint.model.to(self.device)
        model.eval()
        entities, records = self.own.files(ENTITIES), self.own.store(ENTITIES, store)
        request = AttentionRequest(
            checkpoint=str(weights), store=str(records), entities=str(entities), split=SPLIT,
            parses=entities / "parses.conll",
        )  # fmt: skip
        samples = EvaluationSamples(
            model.config, load_tokenizer(str(checkpoint.tokenizer)), num_classes=None, as_read=checkpoint.as_read
        )
        with FeatureStore(records) as opened:
            asked = read_questions(opened, samples, request)
            rule = GROUNDING_RULES[RULES[request.rules][1]]
            device = torch.device(self.device)
            return head_looks(model, samples, asked.captions, asked.record_of, rule, batch_size=16, device=device)

    def _asked(self, looks: Any, population: str, name: str) -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray]]]:
        """By name, such as "phrases best head": (pictures,) hits and counts, in the order of the pictures' names."""
        here = looks.population == population
        hit, blind = looks.hit[here], looks.blind_hit[here]
        place_of = {image: place for place, image in enumerate(sorted(self.own.images(ENTITIES, SPLIT)))}
        pictures = np.array([place_of[image] for image in looks.images])[looks.image[here]]
        counts = np.bincount(pictures, minlength=len(place_of))

        def tally(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return np.bincount(pictures, weights=values.astype(float), minlength=len(place_of)), counts

        best, any_word = of_other_half(hit, blind, pictures % 2 == 0)
        yield f"{name} {BEST_HEAD}", tally(best)
        yield f"{name} {ANY_WORD}", tally(any_word)
        yield f"{name} {STRONGEST}", tally(looks.strongest[here])
        yield f"{name} {COVERED}", tally(looks.covered[here])
        for layer in range(hit.shape[1]):
            one = slice(layer, layer + 1)
            yield f"{name} {LAYER} {layer + 1}", tally(of_other_half(hit[:, one], blind[:, one], pictures % 2 == 0)[0])


def of_other_half(hit: np.ndarray, blind: np.ndarray, is_first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the head that is best on one half reaches on the other, both ways; of equally good ones the first.

    Args:
        hit, blind: (N, L, H) bool, see `Looks`.
        is_first: (N,) bool, whether a question's picture is in the first half.
    Returns:
        (N,) bool each, of the chosen head: its hits, and those of one look for all words of a caption.
    """
    chosen_hit, chosen_blind = np.zeros(len(hit), bool), np.zeros(len(hit), bool)
    for half in (is_first, ~is_first):
        rows = half if half.any() else ~half
        layer, head = np.unravel_index(int(hit[rows].mean(axis=0).argmax()), hit.shape[1:])
        chosen_hit[~half], chosen_blind[~half] = hit[~half, layer, head], blind[~half, layer, head]
    return chosen_hit, chosen_blind
