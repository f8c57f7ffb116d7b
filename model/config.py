"""The base of every model's configuration: a Hugging Face config that refuses names it does not know."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

from transformers import PretrainedConfig

# What Hugging Face itself hands to a config when it reads one from a file or a checkpoint. Its other common names
# (id2label, output_attentions, ...) would be ignored by our models, so they are refused like any unknown name.
_LOADING_NAMES = frozenset(
    {
        "_attn_implementation",
        "_commit_hash",
        "_name_or_path",
        "architectures",
        "attn_implementation",
        "dtype",
        "model_type",
        "name_or_path",
        "torch_dtype",
        "transformers_version",
    }
)


class StrictConfig(PretrainedConfig):
    """Subclasses list every field as a keyword of `__init__` and pass `**unknown` on to this one.

    Raises:
        ValueError: naming every unknown field and the known ones that look like it.
    """

    def __init__(self, **unknown: Any) -> None:
        known = [
            name
            for name, parameter in inspect.signature(type(self).__init__).parameters.items()
            if name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        refused = sorted(set(unknown) - _LOADING_NAMES)
        if refused:
            raise ValueError(f"{type(self).__name__}: " + "; ".join(_describe(name, known) for name in refused))
        # model_type is a constant of the class; files carry it, and setting it again would shadow the constant.
        unknown.pop("model_type", None)
        super().__init__(**unknown)


def _describe(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"known fields: {', '.join(sorted(known))}"
    return f"unknown field {name!r}; {hint}"
