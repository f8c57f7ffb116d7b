"""Options of ViLBERT's multi-task release that no reference array has, run through its own code once.

    python tests/model/vilbert_options.py PATH/TO/vilbert-multi-task

writes vilbert_options.json beside this file: what facebookresearch/vilbert-multi-task computes for `CASES`, with
weights and inputs drawn here. test_vilbert_options.py compares ours with it.
"""

import json
import sys
import types
import zlib
from pathlib import Path

import numpy as np
import torch

NUMBERS = Path(__file__).with_suffix(".json")
ROWS, PIECES, REGIONS = 3, 7, 5
LENGTHS, NUM_REGIONS = (7, 4, 6), (5, 2, 4)

OPTIONS = {
    "vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 5, "num_attention_heads": 4, "intermediate_size": 32,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 16, "type_vocab_size": 2, "initializer_range": 0.02, "v_feature_size": 10,
    "v_target_size": 6, "v_hidden_size": 20, "v_num_hidden_layers": 4, "v_num_attention_heads": 5,
    "v_intermediate_size": 28, "v_hidden_dropout_prob": 0.1, "v_attention_probs_dropout_prob": 0.1,
    "bi_hidden_size": 16, "bi_num_attention_heads": 2, "t_biattention_id": [2, 4], "v_biattention_id": [1, 3],
}  # fmt: skip
CASES = {
    "plain": {},
    "dynamic attention": {"dynamic_attention": True},
    "dynamic attention, other plan": {
        "dynamic_attention": True,
        "fusion_method": "sum",
        "t_biattention_id": [0, 3],
        "v_biattention_id": [2, 2],
    },
    "without co-attention": {"with_coattention": False},
    "dynamic attention without co-attention": {"dynamic_attention": True, "with_coattention": False},
    "fixed text layers": {"fixed_t_layer": 2},
    "fixed layers, dynamic attention": {"fixed_t_layer": 1, "fixed_v_layer": 1, "dynamic_attention": True},
    "roberta": {"model": "roberta", "type_vocab_size": 1, "finetuning_task": None, "layer_norm_eps": 1e-5},
    "pairs in the batch": {"in_batch_pairs": True},
}


def weight(name, shape):
    """The same for a name wherever it is drawn."""
    drawn = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape) * 0.25
    return torch.from_numpy(np.asarray(drawn + ("LayerNorm" in name and name.endswith("weight")), dtype=np.float32))


def inputs():
    """By the official names; IMG comes first."""
    draw = np.random.RandomState(7)
    image_mask = np.arange(REGIONS + 1) < np.array(NUM_REGIONS)[:, None] + 1
    corner, size = draw.random_sample((2, ROWS, REGIONS + 1, 2)) * 0.5
    locations = np.concatenate([corner, corner + size, size.prod(axis=-1, keepdims=True)], axis=-1)
    locations[:, 0] = (0, 0, 1, 1, 1)
    targets = draw.random_sample((ROWS, REGIONS, OPTIONS["v_target_size"])) + 0.1
    ids = draw.randint(1, OPTIONS["vocab_size"], (ROWS, PIECES))
    word_labels, region_labels = np.full((ROWS, PIECES), -1), np.full((ROWS, REGIONS), -1)
    word_labels[:, 1], region_labels[:, 0] = ids[:, 1], 1
    arrays = {
        "input_ids": ids,
        "image_feat": (draw.standard_normal((ROWS, REGIONS + 1, 10)) * image_mask[..., None]).astype(np.float32),
        "image_loc": (locations * image_mask[..., None]).astype(np.float32),
        "token_type_ids": np.zeros((ROWS, PIECES), dtype=np.int64),
        "attention_mask": (np.arange(PIECES) < np.array(LENGTHS)[:, None]).astype(np.int64),
        "image_attention_mask": image_mask.astype(np.int64),
        "masked_lm_labels": word_labels,
        "image_label": region_labels,
        "image_target": (targets / targets.sum(axis=-1, keepdims=True)).astype(np.float32),
        "next_sentence_label": np.array([0, 1, 0]),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def official_numbers(official, options):
    """What the release's own classes compute, in lists."""
    model = official.BertForMultiModalPreTraining(official.BertConfig.from_dict(OPTIONS | options)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weight(name, parameter.shape))
    given = inputs()
    first = ("input_ids", "image_feat", "image_loc", "token_type_ids", "attention_mask", "image_attention_mask")
    with torch.no_grad():
        _, _, text, image, _ = model.bert(*(given[name] for name in first))
    numbers = {"pooled_text": text.tolist(), "pooled_image": image.tolist()}
    if options.get("in_batch_pairs"):  # its losses fit no labels
        return numbers
    losses = model(**given)
    sum(loss.sum() for loss in losses).backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return numbers | {
        "losses": [loss.item() for loss in losses],  # words, regions, matching
        "gradient_norm": torch.stack([gradient.norm() for gradient in gradients.values()]).norm().item(),
        "gradient_norms": {name: gradients[name].norm().item() for name in sorted(gradients) if is_compared(name)},
    }


def is_compared(name):
    """One parameter of each block is enough beside the norm of all gradients."""
    return name.endswith((".query.bias", ".query1.bias", "dyLinear_q.weight", "dyLinear_k.weight", "embeddings.weight"))


def load_official(repository):
    """vilbert/vilbert.py without what it imports for downloads."""

    class Base(torch.nn.Module):
        def __init__(self, config, *_, **__):
            super().__init__()
            self.config = config

        def _tie_or_clone_weights(self, first, second):
            first.weight = second.weight

    package, utils = types.ModuleType("vilbert"), types.ModuleType("vilbert.utils")
    package.__path__ = [str(Path(repository) / "vilbert")]
    utils.PreTrainedModel = Base
    sys.modules |= {"vilbert": package, "vilbert.utils": utils}
    from vilbert import vilbert

    return vilbert


if __name__ == "__main__":
    module = load_official(sys.argv[1])
    found = {name: official_numbers(module, options) for name, options in CASES.items()}
    rounded = json.loads(json.dumps(found), parse_float=lambda text: float(f"{float(text):.7g}"))
    NUMBERS.write_text(json.dumps(rounded, indent=None, separators=(",", ":")) + "\n", encoding="utf-8")
