"""Small ViLBERTs, and batches for tests of every model, with weights that are not at their start values."""

import dataclasses

import torch
import transformers

from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.model.vilbert.encoder import ViLbertConfig

VOCAB_SIZE, FEATURES, LABELS, POSITIONS = 90, 12, 7, 24


def tiny(**overrides):
    sizes = {
        "vocab_size": VOCAB_SIZE, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 32, "max_position_embeddings": POSITIONS, "region_feature_size": FEATURES,
        "image_hidden_size": 20, "image_num_hidden_layers": 2, "image_num_attention_heads": 5,
        "image_intermediate_size": 28, "co_attention_size": 16, "co_attention_num_heads": 2,
        "text_co_attention": (1, 2), "image_co_attention": (0, 1), "region_target_size": LABELS, "num_answers": 11,
        "num_gqa_answers": 5,
    }  # fmt: skip
    return ViLbertConfig(**(sizes | overrides))


def randomised(model, seed=0):
    """In evaluation mode, every parameter drawn: LayerNorms and biases too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm_weight = "norm" in name.lower() and name.endswith(".weight")
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + (1.0 if norm_weight else 0.0))
    return model.eval()


def make_batch(lengths=(9, 4, 7), regions=(5, 6, 1), *, text_pad=0, region_pad=0, seed=0, target_size=LABELS):
    """Rows of the given sizes; padding is filled with numbers that must not matter."""
    generator = torch.Generator().manual_seed(seed)
    rows, text, most = len(lengths), max(lengths) + text_pad, max(regions) + region_pad
    text_ids = torch.full((rows, text), 7)
    labels = torch.full((rows, text), IGNORE_INDEX)
    features = torch.full((rows, most, FEATURES), 1e3)
    boxes = torch.full((rows, most, 4), -50.0)
    targets = torch.zeros(rows, most, target_size)
    predicted, masked = torch.zeros(rows, most, dtype=torch.bool), torch.zeros(rows, most, dtype=torch.bool)
    for row, (length, count) in enumerate(zip(lengths, regions, strict=True)):
        text_ids[row, :length] = torch.randint(1, VOCAB_SIZE, (length,), generator=generator)
        labels[row, 1:3] = text_ids[row, 1:3]
        features[row, :count] = torch.randn(count, FEATURES, generator=generator)
        corner = torch.rand(count, 2, generator=generator) * 100
        boxes[row, :count] = torch.cat([corner, corner + 20 + 30 * torch.rand(count, 2, generator=generator)], dim=1)
        targets[row, :count] = torch.softmax(torch.randn(count, target_size, generator=generator), dim=1)
        predicted[row, : min(count, 2)] = True
        masked[row, : min(count, 1)] = True  # the second predicted region stays visible
    return VLBatch(
        text_ids=text_ids,
        text_mask=torch.arange(text) < torch.tensor(lengths)[:, None],
        text_segments=(torch.arange(text) > 2).long().expand(rows, -1),
        region_features=features,
        region_boxes=boxes,
        region_mask=torch.arange(most) < torch.tensor(regions)[:, None],
        image_hw=torch.tensor([[150.0, 200.0]]).expand(rows, 2),
        masked_regions=masked,
        text_labels=labels,
        region_targets=targets,
        region_target_mask=predicted,
        match_labels=(torch.arange(rows) + 1) % 2,
    )


def take_rows(batch, order):
    rows = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return VLBatch(**{name: value[order] for name, value in rows.items() if isinstance(value, torch.Tensor)})


BERT_SIZES = {"vocab_size": VOCAB_SIZE, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
BERT_SIZES |= {"intermediate_size": 32, "max_position_embeddings": POSITIONS}


def make_bert(**sizes):
    """transformers' own, of the sizes of `tiny` unless told otherwise."""
    model = randomised(transformers.BertForPreTraining(transformers.BertConfig(**(BERT_SIZES | sizes))))
    model.tie_weights()
    return model


def with_old_norms(state, prefix=""):
    """LayerNorms named as TensorFlow's BERT had them, all names behind a prefix."""
    old = {}
    for name, tensor in state.items():
        if "LayerNorm" in name:
            name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
        old[prefix + name] = tensor
    return old
