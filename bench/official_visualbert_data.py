"""The data code of uclanlp/visualbert from a checkout (visualbert/dataloaders); nothing of theirs is copied here.

Its data sets, collates and fields of whole numbers (bert_field.py) are theirs. Of AllenNLP, which does not install
beside today's Python, a stand-in has what AllenNLP 0.8.0 does for any data: a batch takes the longest of each dimension
of a field, has every field pad to it, and stacks. What reads photos and draws masks is a stand-in too.
"""

from __future__ import annotations

import importlib
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from official_training import import_from, stand_in
from torch import Tensor

Value = TypeVar("Value")
PHOTO_HW = (384, 768)  # of what stands in for a photo


class Field(Generic[Value]):
    """One named part of a sample."""

    def batch_tensors(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(tensors))


class ArrayField(Field[np.ndarray]):
    """Real numbers, float32 in a batch, with `padding_value` behind them in each dimension."""

    def __init__(self, array: np.ndarray, padding_value: float = 0) -> None:
        self.array, self.padding_value = array, padding_value

    def get_padding_lengths(self) -> dict[str, int]:
        return {f"dimension_{axis}": length for axis, length in enumerate(self.array.shape)}

    def as_tensor(self, lengths: Mapping[str, int]) -> Tensor:
        shape = [lengths[f"dimension_{axis}"] for axis in range(len(lengths))]
        padded = np.full(shape, self.padding_value, np.float32)
        padded[tuple(slice(length) for length in self.array.shape)] = self.array
        return torch.from_numpy(padded)


class ListField(Field[Value]):
    """Read as it is; never part of a batch here."""

    def __init__(self, fields: Sequence[Any]) -> None:
        self.field_list = fields


class LabelField(Field[int]):
    def __init__(self, label: int, skip_indexing: bool = False) -> None:
        self.label = label


class MetadataField(Field[Any]):
    def __init__(self, metadata: Any) -> None:
        self.metadata = metadata


class Instance:
    """One sample."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = fields

    def index_fields(self, vocabulary: object) -> None:
        """Nothing here has words that would need it."""


class Batch:
    def __init__(self, instances: Sequence[Instance]) -> None:
        self._instances = instances

    def as_tensor_dict(self) -> dict[str, Tensor]:
        batch = {}
        for name, field in self._instances[0].fields.items():
            lengths: defaultdict[str, int] = defaultdict(int)
            for each in self._instances:
                for key, length in each.fields[name].get_padding_lengths().items():
                    lengths[key] = max(lengths[key], length)
            batch[name] = field.batch_tensors([each.fields[name].as_tensor(lengths) for each in self._instances])
        return batch


def official_data(checkout: Path, name: str) -> Any:
    """The module visualbert/dataloaders/`name`.py; to be called again for another."""
    stand_in("overrides", overrides=lambda function: function)
    stand_in("spacy.tokens")
    for package in ("allennlp.common.checks", "allennlp.data.token_indexers.token_indexer", "allennlp.data.vocabulary"):
        stand_in(package)
    stand_in("allennlp.data.tokenizers.token")
    stand_in("allennlp.nn.util")
    containers = {"ArrayField": ArrayField, "ListField": ListField, "LabelField": LabelField}
    stand_in("allennlp.data.fields", MetadataField=MetadataField, **containers)
    stand_in("allennlp.data.fields.field", Field=Field)
    stand_in("allennlp.data.fields.sequence_field", SequenceField=Field)
    stand_in("allennlp.data.instance", Instance=Instance)
    stand_in("allennlp.data.dataset", Batch=Batch)
    stand_in("torch._six", string_classes=str)
    paths = [str(checkout), str(checkout / "visualbert")]
    sys.path[:0] = paths
    try:
        importlib.import_module("dataloaders")  # theirs, before a stand-in of that name would be made for its parts
        stand_in(
            "dataloaders.box_utils",
            load_image=lambda path: None,
            resize_image=lambda image, random_pad: (image, [0, 0, PHOTO_HW[1], PHOTO_HW[0]], 1.0, (0, 0, 0, 0)),
            to_tensor_and_normalize=lambda image: torch.zeros(3, *PHOTO_HW),
        )
        stand_in(
            "dataloaders.mask_utils",
            make_mask=lambda mask_size, box, polygons_list: np.zeros((mask_size, mask_size), np.float32),
        )
        return import_from(checkout / "visualbert", f"dataloaders.{name}")
    finally:
        for path in paths:
            sys.path.remove(path)


def arrays_of(instance: Instance) -> dict[str, Any]:
    """The numbers in each field, a list of them where the field is one; of fields without numbers nothing."""
    return {name: array for name, field in instance.fields.items() if (array := _array(field)) is not None}


def _array(field: Any) -> Any:
    if isinstance(field, ListField):
        return [_array(each) for each in field.field_list]
    return getattr(field, "array", None)
