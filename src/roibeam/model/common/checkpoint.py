"""Published checkpoints: their names of parameters and options, internal names, and the start of a model from BERT."""

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

# A layer of BERT in every published code that derives from it, and `TransformerLayer`.
BERT_LAYER = (
    ("attention.self.query.", "attention.query."),
    ("attention.self.key.", "attention.key."),
    ("attention.self.value.", "attention.value."),
    ("attention.output.dense.", "attention.output."),
    ("attention.output.LayerNorm.", "attention_norm."),
    ("intermediate.dense.", "feed_forward.expand."),
    ("output.dense.", "feed_forward.contract."),
    ("output.LayerNorm.", "feed_forward_norm."),
)

Rules = tuple[tuple[str, str], ...]


def layer_rules(official: str, internal: str) -> Rules:
    """`BERT_LAYER` below two prefixes, with "{}" for the number of a layer."""
    return tuple((official + name, internal + own) for name, own in BERT_LAYER)


def embedding_rules(official: str, internal: str, *, norm: str = "norm") -> Rules:
    """BERT's embeddings of text below two prefixes; `norm` is the internal name of their LayerNorm."""
    return (
        (f"{official}word_embeddings.", f"{internal}words."),
        (f"{official}position_embeddings.", f"{internal}positions."),
        (f"{official}token_type_embeddings.", f"{internal}segments."),
        (f"{official}LayerNorm.", f"{internal}{norm}."),
    )


# BERT's masked-word head in these codes, and `MaskedWordHead`; the decoder is the word embedding.
BERT_WORD_HEAD = (
    ("cls.predictions.bias", "masked_word_head.bias"),
    ("cls.predictions.transform.dense.", "masked_word_head.dense."),
    ("cls.predictions.transform.LayerNorm.", "masked_word_head.norm."),
)


def two_stream_rules(model: str) -> Rules:
    """Names that ViLBERT's releases and InterBERT's share; `model` is the internal name of the encoder."""
    return (
        *embedding_rules("bert.embeddings.", f"{model}.text_embeddings."),
        ("bert.v_embeddings.image_embeddings.", f"{model}.region_embeddings.features."),
        ("bert.v_embeddings.image_location_embeddings.", f"{model}.region_embeddings.locations."),
        ("bert.v_embeddings.LayerNorm.", f"{model}.region_embeddings.norm."),
        ("bert.t_pooler.dense.", f"{model}.pooler.text."),
        ("bert.v_pooler.dense.", f"{model}.pooler.image."),
        *BERT_WORD_HEAD,
        ("cls.imagePredictions.transform.dense.", "masked_region_head.dense."),
        ("cls.imagePredictions.transform.LayerNorm.", "masked_region_head.norm."),
        ("cls.imagePredictions.decoder.", "masked_region_head.decoder."),
        ("cls.bi_seq_relationship.", "match_head."),
        ("vil_logit.", "pair_score."),
        ("vision_logit.", "region_score."),
        ("linguisic_logit.", "word_score."),  # sic
    )


# Tensors that files of ViLBERT and InterBERT hold twice: the decoder of masked words is the word embedding.
WORD_DECODER_COPY = MappingProxyType({"cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight"})

# BERT's options in every published configuration that derives from it, and the fields of `BertSizes`.
_ALIKE = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("max_position_embeddings", "initializer_range"),
)
BERT_OPTIONS = MappingProxyType(
    {name: name for name in _ALIKE}
    | {
        "hidden_act": "hidden_activation",
        "hidden_dropout_prob": "hidden_dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "type_vocab_size": "num_segments",
    }
)
# Those of ViLBERT and InterBERT beside them.
TWO_STREAM_OPTIONS = MappingProxyType(
    {
        **BERT_OPTIONS,
        "v_feature_size": "region_feature_size",
        "v_target_size": "region_target_size",
        "v_num_hidden_layers": "image_num_hidden_layers",
        "v_num_attention_heads": "image_num_attention_heads",
        "v_intermediate_size": "image_intermediate_size",
        "v_hidden_act": "image_hidden_activation",
        "v_hidden_dropout_prob": "image_hidden_dropout",
        "v_attention_probs_dropout_prob": "image_attention_dropout",
        "num_labels": "num_answers",
    }
)
# An option -> the fields that its value stands for.
Readers = Mapping[str, Callable[[Any], dict[str, Any]]]
TWO_STREAM_READERS: Readers = MappingProxyType(
    {
        # BertImageEmbeddings reads hidden_dropout_prob
        "hidden_dropout_prob": lambda rate: {"hidden_dropout": rate, "region_embedding_dropout": rate},
        "fusion_method": lambda word: {"fusion": "product" if word == "mul" else word},
        "predict_feature": lambda value: {"region_loss": "regression" if value else "kl"},
    }
)


def read_options(
    model: str, options: Mapping[str, Any], names: Mapping[str, str], readers: Readers, without_effect: Collection[str]
) -> dict[str, Any]:
    """Fields of a configuration for official options. Raises ValueError for an option that is in none of the three.

    Args:
        names: option -> field of the same value; `readers` go before.
    """
    fields: dict[str, Any] = {}
    for name, value in options.items():
        if name in readers:
            fields |= readers[name](value)
        elif name in names:
            fields[names[name]] = value
        elif name not in without_effect:
            raise ValueError(f"{model} has no option {name!r}; known are {', '.join(sorted(names))}")
    return fields


class KeyTable:
    """Rules "official prefix", "internal prefix"; the rest of a name (weight, bias) is the same on both sides.

    A prefix ends with "." or is a whole name. "{}" in both stands for one number, that of a layer.
    """

    def __init__(self, what: str, rules: Iterable[tuple[str, str]]) -> None:
        self.what = what
        rules = list(rules)
        self._to_internal = _reader(rules)
        self._to_official = _reader([(internal, official) for official, internal in rules])

    def internal(self, official: str) -> str:
        """Raises ValueError for a name that no rule covers, as `official` does."""
        name = self._to_internal(official)
        if name is None:
            raise ValueError(f"parameter {official!r} is not one of {self.what}")
        return name

    def official(self, internal: str) -> str:
        name = self._to_official(internal)
        if name is None:
            raise ValueError(f"parameter {internal!r} has no name in a checkpoint of {self.what}")
        return name


# Keys of the weights in files of training programs: the multi-task ViLBERT's files to resume from, UCLA's VisualBERT,
# VL-BERT and most others.
_INNER = ("model_state_dict", "model", "state_dict")


def inner_parameters(checkpoint: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """The parameters of a checkpoint, alone or stored beside an optimizer and other things; all must be tensors."""
    inner = next((checkpoint[name] for name in _INNER if isinstance(checkpoint.get(name), Mapping)), checkpoint)
    for name, tensor in inner.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name!r} of the checkpoint is a {type(tensor).__name__}, not a parameter")
    return inner


def tidy_names(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """The `inner_parameters` with "module." taken off, and the gamma and beta of old LayerNorms as weight and bias;
    raises ValueError if two get one name."""
    tidy: dict[str, Tensor] = {}
    for name, tensor in inner_parameters(checkpoint).items():
        new = name.removeprefix("module.")
        for old_end, new_end in ((".gamma", ".weight"), (".beta", ".bias")):
            if new.endswith(old_end):
                new = new.removesuffix(old_end) + new_end
        if new in tidy:
            raise ValueError(f"the checkpoint has two parameters {new!r}, one of them as {name!r}")
        tidy[new] = tensor
    return tidy


def without_copies(official: Mapping[str, Tensor], copies: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors without second copies in a file (name -> that of its equal), such as the decoder of masked words,
    which is the word embedding; raises ValueError if two differ."""
    for copy, first in copies.items():
        if copy in official and (first not in official or not official[copy].equal(official[first])):
            raise ValueError(f"{copy} differs from {first}; in such a checkpoint the two are one tensor")
    return {name: tensor for name, tensor in official.items() if name not in copies}


def with_copies(
    official: dict[str, Tensor], copies: Mapping[str, str], *, head: str = "cls.predictions.bias"
) -> dict[str, Tensor]:
    """Inverse of `without_copies`, for a state with the parameter `head`: without masked words there is no decoder."""
    return official | {copy: official[first] for copy, first in copies.items()} if head in official else official


def names_with_bert(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """`tidy_names`, with "bert." before those of a checkpoint of two streams alone (ViLBERT, InterBERT)."""
    tidy = tidy_names(checkpoint)
    if any(name.startswith("bert.") for name in tidy):
        return tidy
    parts = ("embeddings.", "v_embeddings.", "encoder.", "t_pooler.", "v_pooler.")
    return {f"bert.{name}" if name.startswith(parts) else name: tensor for name, tensor in tidy.items()}


_STREAM = ("embeddings.", "encoder.", "pooler.")
_SEGMENTS = "segments.weight"
# Second copies in files, and the buffer of position numbers in older ones.
_LEFT_OUT = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias", "bert.embeddings.position_ids")


def tidy_bert(bert: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """BERT's parameters as `bert.*` and `cls.*`, each once.

    Args:
        bert: state dict of a pre-training model or of the encoder alone, with the LayerNorm names of any time.
    Raises:
        ValueError: if two parameters get one name, or the file holds no BERT.
    """
    named = {f"bert.{name}" if name.startswith(_STREAM) else name: tensor for name, tensor in bert.items()}
    tidy = {name: t for name, t in tidy_names(named).items() if name not in _LEFT_OUT}
    if "bert.embeddings.word_embeddings.weight" not in tidy:
        raise ValueError("the checkpoint is no BERT: it has no bert.embeddings.word_embeddings.weight")
    return tidy


def bert_table(model: str, *, norm: str = "norm", others: Rules = ()) -> KeyTable:
    """BERT's names, and those of a model of one stream; its embeddings, encoder and pooler have the prefix `model`."""
    return KeyTable(
        "BERT",
        (
            *embedding_rules("bert.embeddings.", f"{model}embeddings.", norm=norm),
            *layer_rules("bert.encoder.layer.{}.", f"{model}encoder.layers.{{}}."),
            ("bert.pooler.dense.", f"{model}pooler.dense."),
            *BERT_WORD_HEAD,
            *others,
        ),
    )


# BERT's head of two sentences; one of pairs of text and image is drawn anew.
SENTENCE_PAIRS = "cls.seq_relationship."


def start_from_bert(table: KeyTable, bert: Mapping[str, Tensor], *unused: str) -> dict[str, Tensor]:
    """BERT's parameters by the names of `table`, for `load_start`, without those below the `unused` prefixes. Raises
    ValueError for a parameter that is none of BERT's."""
    return {table.internal(name): t for name, t in tidy_bert(bert).items() if not name.startswith(unused)}


def load_start(model: nn.Module, state: Mapping[str, Tensor]) -> list[str]:
    """Fills part of `model`; everything else stays unchanged.

    A table of segments may have more rows than `state` has: the first ones are filled.

    Args:
        state: by internal names, from `start_from_bert`.
    Returns:
        Names of the parameters that were not filled.
    Raises:
        ValueError: naming a parameter that the model does not have, or has in another shape.
    """
    own = model.state_dict()
    filled = dict(state)
    for name, tensor in state.items():
        if name in own and name.endswith(_SEGMENTS) and tensor.shape[1:] == own[name].shape[1:]:
            filled[name] = torch.cat([tensor.to(own[name]), own[name][len(tensor) :]])
        if name not in own or own[name].shape != filled[name].shape:
            wanted = tuple(own[name].shape) if name in own else "no such parameter"
            raise ValueError(
                f"{name}: BERT has {tuple(tensor.shape)}, this model {wanted}; do its sizes and vocabulary fit?"
            )
    model.load_state_dict(filled, strict=False)
    return [name for name in own if name not in state]


def _reader(rules: list[tuple[str, str]]) -> Callable[[str], str | None]:
    """Looks a name up by its longest known prefix, with the numbers in it set aside."""
    table: dict[str, str] = {}
    for source, target in rules:
        if source in table:
            raise ValueError(f"two rules for {source!r}: {table[source]!r} and {target!r}")
        table[source] = target

    def read(name: str) -> str | None:
        parts = name.split(".")
        numbers = [part for part in parts if part.isdigit()]
        # Numbers beyond the first belong to the rule's own words ("logit_fc.0"), so try with one set aside, then none.
        for number in [*dict.fromkeys(numbers), None]:
            words = ["{}" if part == number else part for part in parts]
            for end in range(len(words), 0, -1):
                prefix, rest = ".".join(words[:end]), words[end:]
                target = table.get(prefix + "." if rest else prefix)
                if target is not None:
                    found = target + ".".join(rest)
                    return found if number is None else found.replace("{}", number)
        return None

    return read
