"""The networks that give a feature of a whole photo, by name; `global_feature.py` runs them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Network -> width of its pooled last feature.
GLOBAL_NETWORKS: Mapping[str, int] = MappingProxyType(
    {
        "densenet121": 1024,
        "densenet161": 2208,
        "densenet169": 1664,
        "densenet201": 1920,
        "resnet18": 512,
        "resnet34": 512,
        "resnet50": 2048,
        "resnet101": 2048,
        "resnet152": 2048,
        "googlenet": 1024,
    }
)
