"""Every model with pre-training heads, small and with weights drawn, for tests of what all of them promise.

Batches of `make_full_batch` fit them all.
"""

import dataclasses
import pickle
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import torch
from soak_share import some
from vilbert_examples import FEATURES, LABELS, POSITIONS, VOCAB_SIZE, make_batch, randomised
from vilbert_examples import tiny as tiny_vilbert

from roibeam.model.imagebert.model import ImageBertConfig, ImageBertForPreTraining
from roibeam.model.inputs import IGNORE_INDEX
from roibeam.model.interbert.model import InterBertForPreTraining, interbert_config
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.model.vilbert.single_stream import SingleStreamConfig, SingleStreamForPreTraining
from roibeam.model.visualbert.model import VisualBertConfig, VisualBertForPreTraining
from roibeam.model.vlbert.config import vlbert_config
from roibeam.model.vlbert.fields import PRESETS as VLBERT_PRESETS
from roibeam.model.vlbert.model import VLBertForPreTraining

GLOBAL_FEATURES = 5
PER_REGION = ("region_features", "region_boxes", "region_mask", "masked_regions", "region_targets")
PER_REGION += ("region_target_mask", "region_feature_targets", "region_images", "aligned_words")
SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
SIZES |= {"vocab_size": VOCAB_SIZE, "max_position_embeddings": POSITIONS, "region_feature_size": FEATURES}


def _vlbert(preset="release", **overrides):
    sizes = SIZES | {"coordinate_embedding_size": 16, "num_region_labels": LABELS, "num_segments": 4}
    return VLBertForPreTraining(vlbert_config(preset, **(sizes | overrides)))


def _vilbert(**overrides):
    return ViLbertForPreTraining(tiny_vilbert(**overrides))


def _single_stream(**overrides):
    return SingleStreamForPreTraining(SingleStreamConfig(**(SIZES | {"region_target_size": LABELS} | overrides)))


def tiny_visualbert(**overrides):
    return VisualBertConfig(**(SIZES | {"num_answers": 9} | overrides))


def _visualbert(**overrides):
    return VisualBertForPreTraining(tiny_visualbert(**overrides))


def tiny_imagebert(**overrides):
    return ImageBertConfig(**(SIZES | {"num_region_labels": LABELS} | overrides))


def _imagebert(**overrides):
    return ImageBertForPreTraining(tiny_imagebert(**overrides))


def make_imagebert(**overrides):
    return randomised(_imagebert(**overrides))


INTERBERT_LAYERS = {"text_num_hidden_layers": 1, "image_num_hidden_layers": 2, "image_num_attention_heads": 3}
INTERBERT_SIZES = SIZES | INTERBERT_LAYERS | {"image_intermediate_size": 28, "region_target_size": LABELS}
INTERBERT_SIZES |= {"pooled_size": 16, "num_answers": 11}


def tiny_interbert(preset="release", **overrides):
    """The preset's choices at small sizes; the baseline keeps its missing layers."""
    layers = {name: 0 for name in ("text_num_hidden_layers", "image_num_hidden_layers") if preset == "single-stream"}
    return interbert_config(preset, **(INTERBERT_SIZES | layers | overrides))


def make_interbert(preset="release", **overrides):
    return randomised(_interbert(preset, **overrides))


def _interbert(preset="release", **overrides):
    return InterBertForPreTraining(tiny_interbert(preset, **overrides))


class Example(NamedTuple):
    """How a model is made, and what the tests must know about it.

    Attributes:
        joint, image: parts of the sequences whose maps are in `AttentionMaps.joint` and on its image axes.
        region_order_counts: a choice of its paper; in all others it does not.
        mismatched: losses beside "matching" that act on mismatched pairs too (docs/models.md has the table).
    """

    make: Callable[..., torch.nn.Module]
    joint: tuple[str, ...] = ()
    image: tuple[str, ...] = ("whole image", "regions")
    masks_regions: bool = True
    region_order_counts: bool = False
    mismatched: tuple[str, ...] = ("masked_words", "masked_regions")


_VLBERT = ("text", "whole image", "regions", "end")
_INTERBERT = ("whole image", "regions", "text")
_INTERBERT_PAPER = ("whole image", "regions", "end", "text")

EXAMPLES = {
    "VL-BERT": Example(_vlbert, _VLBERT),
    "VL-BERT with relationship": Example(partial(_vlbert, with_pooler=True, with_relationship_head=True), _VLBERT),
    "VL-BERT, paper": Example(partial(_vlbert, "paper"), ("text", "regions", "end")),
    "ViLBERT": Example(_vilbert),
    "ViLBERT, multi-task": Example(
        partial(_vilbert, masked_loss_pairs="matched", whole_image_count="visible"), mismatched=()
    ),
    "ViLBERT, dynamic attention": Example(partial(_vilbert, dynamic_attention=True, image_co_attention=(1, 1))),
    "ViLBERT single-stream": Example(_single_stream, ("text", "whole image", "regions")),
    "VisualBERT": Example(_visualbert, ("text", "regions"), masks_regions=False, mismatched=("masked_words",)),
    "VisualBERT, late fusion": Example(
        partial(_visualbert, early_fusion=False), ("text", "regions"), masks_regions=False, mismatched=("masked_words",)
    ),
    "ImageBERT": Example(_imagebert, ("text", "regions"), mismatched=()),
    "ImageBERT, whole image and [SEP]": Example(
        partial(_imagebert, global_feature_size=GLOBAL_FEATURES, final_separator="next"),
        ("text", "regions", "whole image", "end"),
        mismatched=(),
    ),
    "InterBERT": Example(_interbert, _INTERBERT, mismatched=("masked_words",)),
    "InterBERT, paper": Example(
        partial(_interbert, "paper", image_num_attention_heads=4),
        _INTERBERT_PAPER,
        ("whole image", "regions", "end"),
        region_order_counts=True,
        mismatched=("masked_words",),
    ),
    "InterBERT single-stream": Example(
        partial(_interbert, "single-stream"), _INTERBERT_PAPER, region_order_counts=True, mismatched=("masked_words",)
    ),
}

# Every choice of VL-BERT's config, for what holds of all: that padding, order and files change nothing.
CHOICES = {
    f"VL-BERT {choice}": Example(partial(_vlbert, **choice))
    for choice in (
        *({"preset": name} for name in VLBERT_PRESETS),
        {"visual_norm": "scale"},
        {"visual_norm": "none"},
        {"visual_size": 20},
        {"text_visual": "none"},
        {"text_visual": "grounded"},
        {"end_visual": True, "whole_image_element": False},
        {"word_loss_mean": "rows", "region_loss_mean": "rows"},
        {"with_word_head": False},
        {"with_region_head": False},
    )
}

# One network of each kind, the one that can do most. Where every case of a test meets every model, the others meet a
# share of the cases in CI and all of them in `make test-soak`.
ONE_OF_EACH = (
    "VL-BERT with relationship", "ViLBERT", "ViLBERT single-stream", "VisualBERT", "ImageBERT, whole image and [SEP]",
    "InterBERT",
)  # fmt: skip
MOSTLY_ONE_OF_EACH = some(EXAMPLES, ONE_OF_EACH)


@cache
def _pickled(name):
    return pickle.dumps(randomised((EXAMPLES | CHOICES)[name].make()))


def build(name):
    """A model of one's own, in evaluation mode. Pickle copies in a tenth of the time of `deepcopy`."""
    return pickle.loads(_pickled(name))


def make_full_batch(lengths=(9, 4, 7), regions=(5, 6, 1), **options):
    """With the fields that only some models read."""
    batch = make_batch(lengths, regions, **options)
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(-1, 4, (*batch.region_mask.shape, 3), generator=generator)
    images = torch.randint(2, batch.region_mask.shape, generator=generator)
    whole = torch.randn(batch.batch_size, GLOBAL_FEATURES, generator=generator)
    return dataclasses.replace(batch, aligned_words=words, region_images=images, global_features=whole)


def tensors(values):
    """Of a batch or an output, by name."""
    named = {field.name: getattr(values, field.name) for field in dataclasses.fields(values)}
    return {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}


def in_dtype(batch, dtype):
    """All numbers that are fractions, boxes too."""
    floats = {name: value.to(dtype) for name, value in tensors(batch).items() if value.is_floating_point()}
    return dataclasses.replace(batch, **floats)


def padded(batch, text_pad, region_pad):
    """With positions that are not there, full of numbers that must not matter."""
    fillers = {"text_ids": 5, "text_labels": IGNORE_INDEX, "text_segments": 1, "aligned_words": 1, "region_images": 1}
    longer = {}
    for name, value in tensors(batch).items():
        more = text_pad if name.startswith("text_") else region_pad if name in PER_REGION else 0
        if more:
            filler = float("nan") if value.is_floating_point() else fillers.get(name, False)
            extra = torch.full((len(value), more, *value.shape[2:]), filler, dtype=value.dtype)
            longer[name] = torch.cat([value, extra], dim=1)
    return dataclasses.replace(batch, **longer)
