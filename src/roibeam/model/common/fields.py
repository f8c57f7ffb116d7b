"""Settings of models that are read without torch: fields of configurations, shared sizes, end-to-end choices.

A command checks settings before it loads torch, and `roibeam recipes` prints a published run without its model. bert.py
makes Hugging Face configurations of the fields. `EndToEndChoices` has the masking of photos in a run through the region
encoder.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

ACTIVATION_NAMES = ("gelu", "relu", "swish")  # transformer.py computes them
FUSIONS = ("product", "sum")
MASKED_APPEARANCES = ("zero", "pixels")
# name of `end_to_end.masking` -> masked_appearance; "paper" is the published zero vector, on blank pixels too
MASKING = MappingProxyType({"paper": "zero", "release": "pixels", "feature": "zero"})
MASKED_LOSS_PAIRS = ("all", "matched")  # pairs whose masked words and regions are predicted
WHOLE_IMAGE_COUNTS = ("all", "visible")
WIDTH_REDUCTIONS = ("mean", "sum")

# Types by annotation; a whole number is a number, but True is none.
_TYPES: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}
)


class ConfigFields:
    """The base of all fields; subclasses are dataclasses of keywords.

    Attributes:
        choices: field -> its allowed words. A subclass names those of its own fields.

    Raises:
        ValueError: for a value of another type or another word, or a fault found by `check`.
    """

    choices: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})

    def __post_init__(self) -> None:
        self.check_values({name: getattr(self, name) for name in self.own_fields()})
        self.check()

    @classmethod
    def own_fields(cls) -> list[str]:
        """The names that a user may set."""
        return [field.name for field in cls._fields()]

    @classmethod
    def check_values(cls, given: Mapping[str, Any]) -> None:
        """Raises ValueError for a value of `own_fields` that its field cannot hold, for any values of the others."""
        kinds = {
            field.name: field.type if isinstance(field.type, str) else inspect.formatannotation(field.type)
            for field in cls._fields()
        }
        words = {name: found for each in cls.__mro__ for name, found in vars(each).get("choices", {}).items()}
        for name, value in given.items():
            if not _is_a(kinds[name], value):
                got = reprlib.repr(value)
                raise ValueError(f"{cls._config_name()}: {name} must be of type {kinds[name]}, got {got}")
            if name in words and value not in words[name]:
                got, allowed = reprlib.repr(value), ", ".join(map(repr, words[name]))
                raise ValueError(f"{cls._config_name()}: {name} is {got}; it must be one of {allowed}")

    def check(self) -> None:
        """Raises ValueError if fields do not fit each other; subclasses add to it."""

    def check_multiple(self, size: str, heads: str) -> None:
        """Raises ValueError if the field `size` is no multiple of the field `heads`."""
        if getattr(self, heads) < 1:
            raise ValueError(f"{self._config_name()}: {heads} must be at least 1, got {getattr(self, heads)}")
        if getattr(self, size) % getattr(self, heads):
            raise ValueError(
                f"{self._config_name()}: {size} {getattr(self, size)} is not a multiple of {heads} "
                f"{getattr(self, heads)}"
            )

    @classmethod
    def _fields(cls) -> list[dataclasses.Field[Any]]:
        return list(dataclasses.fields(cls))  # type: ignore[arg-type]  # of a subclass, which is a dataclass

    @classmethod
    def _config_name(cls) -> str:
        """Name of the configuration with these fields, as users know it."""
        return cls.__name__.replace("Fields", "Config")


@dataclass(kw_only=True, repr=False, eq=False)
class BertFields(ConfigFields):
    """Fields of every model: BERT's, with the defaults of BERT-base, and the width of regions.

    Fields:
        vocab_size: word pieces of the tokenizer.
        hidden_size, num_hidden_layers, num_attention_heads, intermediate_size, hidden_activation: of the encoder.
        max_position_embeddings: rows of the position table.
        num_segments: rows of the segment table.
        hidden_dropout, attention_dropout: rates, on states and on attention weights.
        initializer_range: standard deviation of new weights.
        region_feature_size: D, width of a stored region feature.
    """

    choices = MappingProxyType({"hidden_activation": ACTIVATION_NAMES})

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_activation: str = "gelu"
    max_position_embeddings: int = 512
    num_segments: int = 2
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    initializer_range: float = 0.02
    region_feature_size: int = 2048

    def check_batch_size(self, rows: int) -> None:
        """Raises ValueError if a loss of this model does not work on batches of so many rows."""

    def check(self) -> None:
        super().check()
        self.check_multiple("hidden_size", "num_attention_heads")


@dataclass(kw_only=True, repr=False, eq=False)
class ViLbertStyleFields(BertFields):
    """Fields of a model with ViLBERT's heads; defaults are those of ViLBERT's first release.

    Fields, beside those of `BertFields`:
        masked_appearance: "zero": a masked region's feature is 0. "pixels": it is the feature that the batch brings,
            made end to end of blanked pixels.
        region_loss: "kl" predicts the detector's class distribution, "regression" the region's feature, "contrastive"
            picks that feature among those of other regions, "none" predicts no regions: the model has no such head. A
            model names those that it has.
        region_target_size: width of the region head: number of classes with background (first in the published stores),
            or D.
        num_answers: labels of the answer classifier of the task model; 0 leaves one out of ViLBERT.
    """

    choices = MappingProxyType({"masked_appearance": MASKED_APPEARANCES})

    masked_appearance: str = "zero"
    region_loss: str = "kl"
    region_target_size: int = 1601
    num_answers: int = 3129

    def check(self) -> None:
        super().check()
        predicts_features = self.region_loss in ("regression", "contrastive")
        if predicts_features and self.region_target_size != self.region_feature_size:
            raise ValueError(
                f"{self._config_name()}: region_loss {self.region_loss!r} predicts features of width "
                f"{self.region_feature_size}, region_target_size is {self.region_target_size}"
            )


@dataclass(kw_only=True, repr=False, eq=False)
class TwoStreamFields(ViLbertStyleFields):
    """Fields of ViLBERT and InterBERT; those of `BertFields` are of the text's stream.

    Fields, beside those of `ViLbertStyleFields`:
        image_num_hidden_layers, image_num_attention_heads, image_intermediate_size, image_hidden_activation,
            image_hidden_dropout, image_attention_dropout: of the image's own layers.
        region_embedding_dropout: on embedded regions; the releases use the rate of the text there.
        fusion: how the pooled vectors become the pair, "product" or "sum".
        pair_dropout: on the pair, before every head that reads it, and on states before the score heads.
    """

    choices = MappingProxyType({"image_hidden_activation": ACTIVATION_NAMES, "fusion": FUSIONS})

    image_num_hidden_layers: int = 6
    image_num_attention_heads: int = 8
    image_intermediate_size: int = 1024
    image_hidden_activation: str = "gelu"
    image_hidden_dropout: float = 0.1
    image_attention_dropout: float = 0.1
    region_embedding_dropout: float = 0.1
    fusion: str = "product"
    pair_dropout: float = 0.1


def _is_a(kind: str, value: Any) -> bool:
    if kind.startswith("tuple"):
        return isinstance(value, (tuple, list)) and all(_is_a("int", each) for each in value)
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, _TYPES[kind]) and (kind == "bool" or not isinstance(value, bool))


# Sizes of the unpublished models that train on a laptop.
SMALL_SIZES: Mapping[str, Any] = MappingProxyType(
    {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
)
# Learns from a thousand pictures in minutes on two cores; without dropout, with which that takes many times longer.
TINY_SIZES: Mapping[str, Any] = MappingProxyType(
    {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }
)
TINY_STREAMS: Mapping[str, Any] = MappingProxyType(  # of a model with layers for the image alone
    {
        **TINY_SIZES,
        "image_num_hidden_layers": 1,
        "image_num_attention_heads": 4,
        "image_intermediate_size": 128,
        "image_hidden_dropout": 0.0,
        "image_attention_dropout": 0.0,
        "region_embedding_dropout": 0.0,
        "pair_dropout": 0.0,
    }
)


def named_fields(what: str, name: str, table: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """The fields of a name in a table; `what` describes the table, such as "VL-BERT preset"."""
    if name not in table:
        raise ValueError(f"no {what} {name!r}; there are {', '.join(table)}")
    return table[name]


MASKED_PIXELS = ("blank", "whole", "shown")
# Names of `end_to_end.masking`. Each stands for a pair of settings: these `masked_pixels`, and the system's
# `masked_appearance`, which its fields.py names (MASKING).
#   paper    the paper's vector stands in place of the region, and its pixels are blank (VL-BERT, section 3.3)
#   release  the model reads the feature of the blank region (VL-BERT's MASK_RAW_PIXELS)
#   feature  the vector stands in place of the feature, and the photo is whole (VL-BERT's multi-task class with
#            MASK_RAW_PIXELS off)
DEFAULT_MASKING = "release"
MASKINGS: Mapping[str, str] = MappingProxyType({"paper": "blank", "release": "blank", "feature": "whole"})
BLANK_PIXELS = ("after_resize", "before_resize")
WHOLE_IMAGES = ("box", "model")


@dataclass(frozen=True)
class EndToEndChoices(ConfigFields):
    """Choices of an end-to-end run beside the model's config.

    Attributes:
        masked_pixels: "blank": every masked region is blank in the network input, for all regions that overlap it too
            (VL-BERT's MASK_RAW_PIXELS). "whole": photos are whole, as those that stored features were measured on; then
            regions that overlap a masked one still see it. "shown": photos are whole, and a masked region keeps its own
            feature too, so that its token alone marks it as masked: VL-BERT's release on captions alone,
            MASK_RAW_PIXELS off, which gives the answer away.
        blank_pixels: when they are blanked. "after_resize", in the network's input, as in the release: the resize has
            mixed what stands at the edge of a box into the pixels beside it. "before_resize": in the photo first, so
            that no pixel outside a box knows what was in it.
        whole_image: source of `VLBatch.whole_image_features`. "box": the encoder's feature of the whole photo's box, as
            VL-BERT has it end to end. "model": the model takes the mean of the regions, or knows no whole image.
    """

    choices = MappingProxyType(
        {"masked_pixels": MASKED_PIXELS, "blank_pixels": BLANK_PIXELS, "whole_image": WHOLE_IMAGES}
    )

    masked_pixels: str = "blank"
    blank_pixels: str = "after_resize"
    whole_image: str = "model"
