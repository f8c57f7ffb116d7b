"""Parts of a model by name: what of it a run does not train, and what it trains at a rate of its own.

A part is the beginning of parameters' names, up to a dot: "embeddings", "encoder.layers.0", "head". What wraps a model
and the name of its system may be left out: "model.vlbert.encoder" is "encoder". "model" is all of a pre-trained model
but its heads.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from torch import nn

from roibeam.near_names import name_hint
from roibeam.pipelines.common.console.progress_text import folded
from roibeam.pipelines.training.parameter_groups import ParameterGroup, with_scaled_part

logger = logging.getLogger(__name__)

_MODEL = "model."
_BESIDE = ("head", "_score", "region_encoder", "detection")  # how first parts of names end that "model" leaves out


def freeze_parts(model: nn.Module, parts: Sequence[str]) -> None:
    """Takes the gradients of these parts away, so that no step changes them.

    Raises:
        ValueError: for a part of which nothing is trained, or when nothing is left.
    """
    if not parts:
        return
    names = _spellings(model)
    for part in parts:
        _check_part("train.frozen", part, names)
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    for name, parameter in trained.items():
        parameter.requires_grad_(not any(_rest(part, names[name]) is not None for part in parts))
    left = sum(each.numel() for each in trained.values() if each.requires_grad)
    if not left:
        raise ValueError(f"train.frozen {list(parts)} leaves nothing to train; name fewer parts")
    whole = sum(each.numel() for each in trained.values())
    logger.info("%s", folded(f"train.frozen leaves {left:,} of {whole:,} numbers to train"))


def rated_groups(
    groups: Iterable[ParameterGroup], model: nn.Module, rates: Mapping[str, float]
) -> Sequence[ParameterGroup]:
    """The groups; parameters of a part have their rate times its factor, those of several the most exact one's.

    Raises:
        ValueError: for a part of which nothing is trained.
    """
    names, groups = _spellings(model), list(groups)
    for part in rates:
        _check_part("train.rates", part, names)
    by_factor: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        rests = {part: _rest(part, names.get(name, ())) for part in rates}
        fitting = sorted((len(rest), part) for part, rest in rests.items() if rest is not None)
        if fitting:
            by_factor.setdefault(rates[fitting[0][1]], []).append(parameter)
    for factor, parameters in by_factor.items():
        groups = with_scaled_part(groups, parameters, factor)
    return groups


def _check_part(field: str, part: str, names: Mapping[str, Collection[str]]) -> None:
    if any(_rest(part, spelled) is not None for spelled in names.values()):
        return
    shortest = [min(spelled, key=len) for spelled in names.values()]
    parts = sorted({each.partition(".")[0] for each in shortest})
    if any(_rest("model", spelled) is not None for spelled in names.values()):
        parts.append("model")
    exact = max(shortest, key=lambda each: each.count(".")).rpartition(".")[0]
    raise ValueError(
        f"{field}: {part!r} names nothing that is trained; {name_hint(part, parts)}, or what is in one, such as {exact}"
    )


def _rest(part: str, spelled: Collection[str]) -> str | None:
    """What of a parameter's name follows that of a part; None where it is not of it."""
    found = [name[len(part) :] for name in spelled if name == part or name.startswith(f"{part}.")]
    return min(found, key=len) if found else None


def _spellings(model: nn.Module) -> dict[str, set[str]]:
    """Each parameter that is trained -> the names that it may be called by."""
    inner: object = model
    while inner is not None and not getattr(inner, "base_model_prefix", ""):
        inner = getattr(inner, "model", None)
    base = f"{getattr(inner, 'base_model_prefix', '')}."
    trained = [name for name, each in model.named_parameters() if each.requires_grad]
    has_base = base != "." and any(base in name for name in trained)
    found = {}
    for name in trained:
        plain = name
        while plain.startswith(_MODEL):
            plain = plain.removeprefix(_MODEL)
        own = plain.removeprefix(base)
        first = own.partition(".")[0]
        is_model = plain.startswith(base) if has_base else inner is not None and not first.endswith(_BESIDE)
        found[name] = {plain, own} | ({_MODEL + plain, _MODEL + own} if is_model else set())
    return found
