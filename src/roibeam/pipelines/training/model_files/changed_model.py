"""A model with other fields in its configuration, which keeps the weights that still fit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from roibeam.features.counted import counted
from roibeam.model.common.bert import BertSizes

logger = logging.getLogger(__name__)


def changed_model(
    model: Any, overrides: Mapping[str, Any], *, source: object, state: Mapping[str, Tensor] | None = None
) -> nn.Module:
    """A new model of the same class: parameters that come with the changed fields are as drawn, those that go with them
    are dropped.

    Args:
        overrides: fields of its configuration.
        source: where the model came from, for people.
        state: its parameters, where they are to be others.
    Raises:
        ValueError: when a field is none, or a parameter that stays would have another shape.
    """
    config: Any = type(model.config)
    fields = {**model.config.to_diff_dict(), **overrides}
    fields = {name: value for name, value in fields.items() if name not in ("model_type", "transformers_version")}
    changed: nn.Module = type(model)(built_config(config, fields, overrides))
    kept, wanted = dict(model.state_dict() if state is None else state), changed.state_dict()
    for name in sorted(kept.keys() & wanted.keys()):
        if kept[name].shape != wanted[name].shape:
            raise ValueError(
                f"{source}: {name} is {tuple(kept[name].shape)}, these settings make it "
                f"{tuple(wanted[name].shape)}: {dict(overrides)}"
            )
    new, dropped = sorted(wanted.keys() - kept.keys()), sorted(kept.keys() - wanted.keys())
    changed.load_state_dict({name: tensor for name, tensor in kept.items() if name in wanted}, strict=False)
    for names, what in ((new, "drawn anew"), (dropped, "dropped")):
        if names:
            logger.info("%s: %s %s: %s", source, counted(len(names), "parameter"), what, ", ".join(names))
    return changed


def built_config(build: Callable[..., BertSizes], fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> BertSizes:
    """A model's configuration from all of its fields; errors name those that a user set.

    Raises:
        ValueError: for a field that the configuration does not have, or a value that it refuses.
    """
    try:
        return build(**fields)
    except Exception as error:  # transformers checks types with exceptions of its own
        raise ValueError(f"model settings {dict(overrides)}: {' '.join(str(error).split())}") from None
