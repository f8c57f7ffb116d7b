"""Parameter groups of a run: trained parameters, their rates and decay; and the published codes' rules by name.

A rule reads the names that a parameter has in the official code, translated by the tables that read checkpoints: so a
rule states what the release's own lines do, with their accidents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypedDict

if TYPE_CHECKING:
    from torch import nn

    from roibeam.model.common.checkpoint import KeyTable


class _GroupOptions(TypedDict, total=False):
    learning_rate_scale: float
    weight_decay: float


class ParameterGroup(_GroupOptions):
    """Parameters that share optimizer settings: their rate relative to the run's, and their own weight decay if any."""

    params: Sequence[nn.Parameter]


class Treatment(NamedTuple):
    """Training of one parameter.

    Attributes:
        decays: by the run's weight decay, else not at all.
        scale: its rate relative to the run's.
        rate: its own peak rate; None to use `scale`.
    """

    decays: bool
    scale: float = 1.0
    rate: float | None = None


# From roibeam's name to the treatment of the parameter; None for one that the release does not train.
Rule = Callable[[str], Treatment | None]

BERT_SCALE = 0.1
NEW_HEAD_RATE = 1e-4


def group_parameters(model: nn.Module, rule: str, *, learning_rate: float) -> list[ParameterGroup]:
    """The trainable parameters of `model` by a rule of `PARAMETER_RULES`, those alike in one group."""
    if rule not in PARAMETER_RULES:
        raise ValueError(f"no parameter rule {rule!r}; there are {', '.join(PARAMETER_RULES)}")
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        try:
            treatment = PARAMETER_RULES[rule](_inside(name))
        except ValueError as error:
            raise ValueError(f"parameter rule {rule!r} is not for a {type(model).__name__}: {error}") from None
        if treatment is not None:
            scale = treatment.scale if treatment.rate is None else treatment.rate / learning_rate
            groups.setdefault((scale, treatment.decays), []).append(parameter)
    found: list[ParameterGroup] = []
    for (scale, decays), parameters in groups.items():
        group: ParameterGroup = {"params": parameters, "learning_rate_scale": scale}
        found.append(group if decays else {**group, "weight_decay": 0.0})
    return found


def _inside(name: str) -> str:
    """Name of a parameter inside the model, without the prefixes of a `TaskModel` or a region encoder."""
    while name.startswith(_MODEL):
        name = name.removeprefix(_MODEL)
    return name


def matrices_decay(part: nn.Module) -> list[ParameterGroup]:
    """Trained matrices and tables of a network, or of a part, decay; biases and norms do not (detectron2's
    WEIGHT_DECAY_NORM 0, and Caffe's decay_mult 0 of biases)."""
    trained = [each for each in part.parameters() if each.requires_grad]
    return [
        {"params": [each for each in trained if each.ndim > 1]},
        {"params": [each for each in trained if each.ndim <= 1], "weight_decay": 0.0},
    ]


def with_scaled_part(
    groups: Sequence[ParameterGroup], part: Iterable[nn.Parameter], scale: float
) -> list[ParameterGroup]:
    """The groups, with the rate of the parameters of a part multiplied by `scale`, in groups of their own."""
    if scale == 1:
        return list(groups)
    of_part, split = {id(each) for each in part}, list[ParameterGroup]()
    for group in groups:
        inside = [each for each in group["params"] if id(each) in of_part]
        rest: ParameterGroup = {**group, "params": [each for each in group["params"] if id(each) not in of_part]}
        own: ParameterGroup = {**group, "params": inside}
        own["learning_rate_scale"] = scale * group.get("learning_rate_scale", 1.0)
        split += [each for each in (rest, own) if each["params"]]
    return split


# --- the rules ---

_FIRST_ANSWER_HEAD = ("answer_head.expand.", "answer_head.decoder.scale", "answer_head.decoder.direction")
# Parameters of a `TaskModel`: those of its model, and of a roibeam head that no release names, treated like the
# release's own new heads.
_MODEL, _HEAD = "model.", "head."
# UCLA's "detector" of R2C: the encoder of regions, and the layers that add classes to their features.
_OF_R2C = ("region_encoder.", "visualbert.embeddings.classed.")


def _swapped(rule: Callable[[str], Treatment]) -> Rule:
    """The rule with decay on what it leaves out, and none on the rest: what a release that swapped them means, or what
    it does."""

    def swapped(name: str) -> Treatment:
        treatment = rule(name)
        return treatment._replace(decays=not treatment.decays)

    return swapped


def _vilbert_release(name: str) -> Treatment:
    """jiasenlu/vilbert_beta train_concap.py, when it starts from BERT.

    Biases and LayerNorms decay and matrices do not: swapped. BERT's parameters get a tenth of the rate. (There that
    only acts behind the prefix "module." of a data-parallel run; on one GPU all get the full rate.)
    """
    official = _vilbert_name(name, "release")
    return Treatment(decays=_named_without_decay(official), scale=BERT_SCALE if _from_bert(official) else 1.0)


def _vilbert_release_tasks(name: str) -> Treatment:
    """jiasenlu/vilbert_beta train_tasks.py: swapped too; the answer classifier has a rate of its own."""
    official = _vilbert_name(name, "release")
    rate = NEW_HEAD_RATE if "vil_prediction" in official else None
    return Treatment(decays=_named_without_decay(official), rate=rate)


def _single_stream_tasks(name: str) -> Treatment:
    """Intended rule of train_tasks.py for ViLBERT's single-stream baseline (`--baseline`), by roibeam's names."""
    without_decay = name.endswith((".bias", "norm.weight"))
    return Treatment(decays=not without_decay, rate=NEW_HEAD_RATE if name.startswith("answer_head.") else None)


def _vilbert_release_mt(name: str) -> Treatment:
    """facebookresearch/vilbert-multi-task train_concap.py: matrices decay, and all have one rate.

    The tenth for BERT's parameters stands in the code and never acts: names are looked up by their part after
    "module.bert.", before the model is wrapped.
    """
    return Treatment(decays=not _named_without_decay(_vilbert_name(name, "release-mt")))


def _vilbert_release_mt_tasks(name: str) -> Treatment:
    """facebookresearch/vilbert-multi-task train_tasks.py: heads named "vil_..." have a rate of their own.

    The classifiers' LayerNorms are not named "LayerNorm" there, so their weights decay. The answer classifier may be
    that of the first release, which has another make and the same name.
    """
    official = _vilbert_name(name, "release" if name.startswith(_FIRST_ANSWER_HEAD) else "release-mt")
    rate = NEW_HEAD_RATE if "vil_" in official or official.startswith(_HEAD) else None
    return Treatment(decays=not _named_without_decay(official), rate=rate)


def _vilbert_release_mt_vision_scratch(name: str) -> Treatment:
    """facebookresearch/vilbert-multi-task train_tasks.py, `--vision_scratch`: the heads' rate for everything.

    It was meant for parameters that BERT lacks; names are looked up as in its pre-training, so none is found.
    """
    return _vilbert_release_mt_tasks(name)._replace(rate=NEW_HEAD_RATE)


def _visualbert_ucla(name: str) -> Treatment | None:
    """uclanlp/visualbert models/model_wrapper.py: nothing named "pooler" is trained, though a loss may read it."""
    if name.startswith(_OF_R2C):
        return Treatment(decays=not _named_without_decay(name))
    from roibeam.model.visualbert.checkpoint import TABLE

    official = name if name.startswith(_HEAD) else TABLE.official(name)
    return None if "pooler" in official else Treatment(decays=not _named_without_decay(official))


def _interbert_release(name: str) -> Treatment:
    """black4321/InterBERT train_concap.py, which took ViLBERT's: swapped, and a tenth for what BERT brought."""
    official = _interbert_name(name)
    return Treatment(decays=_named_without_decay(official), scale=BERT_SCALE if _from_bert(official) else 1.0)


# Rules that know the parameters of a region encoder; the other releases have none.
ENCODER_RULES = frozenset(
    {"vl-bert", "visualbert-ucla", "vilbert-single-stream-tasks", "vilbert-single-stream-release-tasks"}
)
PARAMETER_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        # jackroos/VL-BERT pretrain/function/train.py: everything decays, biases and LayerNorms too.
        "vl-bert": lambda _name: Treatment(decays=True),
        "vilbert-release": _vilbert_release,
        "vilbert-release-tasks": _vilbert_release_tasks,
        "vilbert-tasks": _swapped(_vilbert_release_tasks),
        "vilbert-single-stream-tasks": _single_stream_tasks,
        "vilbert-single-stream-release-tasks": _swapped(_single_stream_tasks),
        "vilbert-release-mt": _vilbert_release_mt,
        "vilbert-release-mt-tasks": _vilbert_release_mt_tasks,
        "vilbert-release-mt-vision-scratch": _vilbert_release_mt_vision_scratch,
        "visualbert-ucla": _visualbert_ucla,
        "interbert-release": _interbert_release,
        # black4321/InterBERT train_tasks.py: swapped, one rate.
        "interbert-release-tasks": lambda name: Treatment(decays=_named_without_decay(_interbert_name(name))),
    }
)


def _named_without_decay(official: str) -> bool:
    """Whether the list `no_decay` that all these codes share holds a name.

    The weights of a co-attention's LayerNorm1 and LayerNorm2 escape it, so they are treated as matrices.
    """
    return any(part in official for part in ("bias", "LayerNorm.bias", "LayerNorm.weight"))


def _from_bert(official: str) -> bool:
    """Whether config/bert-base-uncased_weight_name.json names it: BERT's embeddings and layers, no head.

    The text stream's task tokens and the poolers are none of BERT's.
    """
    embeddings = ("word_embeddings.", "position_embeddings.", "token_type_embeddings.", "LayerNorm.")
    return official.startswith(("bert.encoder.layer.", *(f"bert.embeddings.{part}" for part in embeddings)))


def _vilbert_name(name: str, release: str) -> str:
    # Imported here: a detector is trained without transformers, which model configs need.
    from roibeam.model.vilbert.checkpoint import TABLES

    return name if name.startswith(_HEAD) else TABLES[release].official(name)


_MANY_LAYERS = 96  # of each kind; rules read no layer numbers


@cache
def _interbert_table() -> KeyTable:
    from roibeam.model.interbert.checkpoint import key_table

    return key_table(_MANY_LAYERS, _MANY_LAYERS)


def _interbert_name(name: str) -> str:
    return name if name.startswith(_HEAD) else _interbert_table().official(name)
