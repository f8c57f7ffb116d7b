"""Interface of a system on tasks: the order of a row's text, the states that a head reads, and the head.

The text of a row is its parts in pieces, between the special pieces that a system puts there, cut to a length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn
from transformers import PreTrainedModel

from roibeam.model.common.bert import BertSizes
from roibeam.model.task_heads import (
    GroundingHead,
    GroundingHeadConfig,
    ImagePairHead,
    ImagePairHeadConfig,
    LabelHead,
    LabelHeadConfig,
    RegionHead,
    RegionHeadConfig,
    TaskHead,
)
from roibeam.pipelines.finetuning.rows import (
    AUTO,
    CHOICE,
    GROUNDED,
    LABEL,
    PHRASE,
    REGION,
    PartPieces,
    PieceCoder,
    TaskText,
)
from roibeam.pipelines.finetuning.systems.options import BEFORE_SEP, LAST, LONGEST, RELEASE_CUT
from roibeam.pipelines.finetuning.task import AuxiliaryTargets
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer


class Span(NamedTuple):
    """Pieces that stand together.

    Attributes:
        ids: (n,) int64.
        segment: of all of them.
        tags: (n,) int64, number of the box that a piece names, -1 for none.
        words: (n,) int64, word of the span that a piece is of, -1 for a special piece.
        is_text: whether they may be cut; special pieces stay.
    """

    ids: np.ndarray
    segment: int
    tags: np.ndarray
    words: np.ndarray
    is_text: bool

    def kept(self, count: int) -> Span:
        """The first `count` pieces."""
        return self._replace(ids=self.ids[:count], tags=self.tags[:count], words=self.words[:count])


class RowText(NamedTuple):
    """(T,) int64 each: piece ids, segments, the box that a piece names, the word of the row that it is of; -1: none."""

    ids: np.ndarray
    segments: np.ndarray
    tags: np.ndarray
    words: np.ndarray

    def kept(self, count: int) -> RowText:
        """The first `count` pieces."""
        return RowText(*(each[:count] for each in self))


class Pieces:
    """Spans of one tokenizer."""

    def __init__(self, tokenizer: CaptionTokenizer) -> None:
        self._tokenizer = tokenizer
        self.coder = PieceCoder(tokenizer.pieces, tokenizer.piece)  # for tasks that cut texts themselves
        self._single: dict[tuple[int, int], Span] = {}

    def part(self, part: TaskText | PartPieces, segment: int = 0) -> Span:
        """A part of the text; every piece of a word has the tag of the word."""
        if isinstance(part, PartPieces):
            return Span(part.ids, segment, part.tags, part.words, is_text=True)
        words = [self._tokenizer.pieces(word) for word in part.words]
        lengths = [len(word) for word in words]
        ids = words[0] if len(words) == 1 else np.concatenate([np.zeros(0, np.int64), *words])
        tags = np.repeat(np.array(part.tags, np.int64), lengths) if part.tags else np.full(len(ids), -1, np.int64)
        return Span(ids, segment, tags, np.repeat(np.arange(len(words)), lengths), is_text=True)

    def cls(self) -> Span:
        return self._one(self._tokenizer.cls_id, 0)

    def sep(self, segment: int = 0) -> Span:
        return self._one(self._tokenizer.sep_id, segment)

    def mask(self, segment: int = 0) -> Span:
        return self._one(self._tokenizer.mask_id, segment)

    def _one(self, piece: int, segment: int) -> Span:
        """A special piece; all rows share it."""
        found = self._single.get((piece, segment))
        if found is None:
            found = self._single[piece, segment] = _special([piece], segment)
        return found

    def question_mark(self, question: Span) -> Span:
        """A "?" behind a text without one; else no piece."""
        mark = self._tokenizer.pieces("?")
        ends_with_it = len(mark) > 0 and np.array_equal(question.ids[-len(mark) :], mark)
        return _special([] if ends_with_it else mark, question.segment)


def lay_out(spans: Sequence[Span], max_pieces: int, cut: str) -> RowText:
    """The spans one after the other, cut to `max_pieces`. Raises ValueError when the special pieces alone are more.

    Args:
        cut: one of `CUTS` of options.py.
    """
    least = sum(len(span.ids) for span in spans if not span.is_text)
    if least > max_pieces:
        raise ValueError(f"max_pieces {max_pieces}: the special pieces of a row alone are {least}")
    over = sum(len(span.ids) for span in spans) - max_pieces
    if over <= 0:
        return _joined(spans)
    if cut == RELEASE_CUT:
        return _joined(spans).kept(max_pieces)
    if cut == BEFORE_SEP:
        end = spans[-1].ids.size
        before = _joined(spans[:-1]).kept(max_pieces - end)
        return RowText(*(np.concatenate(both) for both in zip(before, _joined(spans[-1:]), strict=True)))
    lengths = {place: len(span.ids) for place, span in enumerate(spans) if span.is_text}
    for _ in range(over):
        filled = [place for place, length in lengths.items() if length]
        if cut == LONGEST:
            loser = max(filled, key=lambda place: (lengths[place], place))
        else:
            loser = filled[-1] if cut == LAST else filled[0]
        lengths[loser] -= 1
    return _joined([span.kept(lengths.get(place, len(span.ids))) for place, span in enumerate(spans)])


def places_of_phrases(words: Sequence[int], text: RowText) -> list[int]:
    """The last piece of each word that stands for a phrase; of one that was cut off, the last piece that is left."""
    found = []
    for word in words:
        before = np.flatnonzero((text.words >= 0) & (text.words <= word))
        found.append(int(before[-1]) if len(before) else 0)
    return found


def places_in_row(words: Sequence[int], whole: RowText, num_pieces: int, num_regions: int) -> list[int]:
    """Places where VisualBERT's release looks for phrases in a row whose text was cut: those in the whole text.

    What follows the pieces that are left, the last of them [SEP], are the regions. Behind the last region the release
    reads padding, or stops, as the batch has it; here that is [SEP].

    Source: uclanlp/visualbert dataloaders/flickr_dataset.py (`e_pos_after_subword`), bert_data_utils.py
    (`perform_truncate`), pytorch_pretrained_bert/modeling.py (`batched_index_select`).

    Args:
        whole: the text before it was cut.
    """
    places = places_of_phrases(words, whole)
    return [place if place < num_pieces + num_regions else num_pieces - 1 for place in places]


def cut_words(words: Sequence[int], whole: RowText, text: RowText) -> int:
    """Number of these words that have lost a piece, in a text of one part."""
    return sum(int((whole.words == word).sum()) > int((text.words == word).sum()) for word in words)


def naming_words(text: RowText) -> int:
    """Number of words that name a box and have a piece."""
    return len(np.unique(text.words[text.tags >= 0]))


def _joined(spans: Sequence[Span]) -> RowText:
    return RowText(
        np.concatenate([span.ids for span in spans]),
        np.repeat([span.segment for span in spans], [len(span.ids) for span in spans]),
        np.concatenate([span.tags for span in spans]),
        numbered([span.words for span in spans]),
    )


def numbered(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Numbers of words of several parts, one after the other; -1 for pieces of no word."""
    found, before = [], 0
    for words in parts:
        last = int(words.max(initial=-1))
        found.append(np.where(words < 0, -1, words + before) if before and last >= 0 else words)
        before += last + 1
    return np.concatenate(found)


def _special(ids: Sequence[int] | np.ndarray, segment: int) -> Span:
    nothing = np.full(len(ids), -1, np.int64)
    return Span(np.asarray(ids, np.int64), segment, nothing, nothing, is_text=False)


# Parts of a text, the form of the output, and the number of images of the row -> the spans of the row.
TextRules = Callable[[Pieces, Sequence[TaskText | PartPieces], str, int], list[Span]]


@dataclass(frozen=True)
class OutputSpec:
    """Output of a task for each row.

    Attributes:
        form: one of `FORMS` in ../rows.py.
        num_labels: of LABEL; else 1.
        num_images: of a row; 0 for a text alone.
        whole_image: of REGION, the image as a whole has a score too, before those of its regions.
        num_heads: of PHRASE, see `DownstreamTask`.
    """

    form: str
    num_labels: int = 1
    num_images: int = 1
    whole_image: bool = False
    num_heads: int = 1

    @property
    def of_head(self) -> str:
        """Key of the output in `TaskSystem.release_heads`; no release has a head for texts alone."""
        return self.form if self.num_images == 1 else f"{self.form} of {self.num_images} images"


@dataclass(frozen=True)
class ReleaseHead:
    """A model with the head that the system's release has for a form.

    Attributes:
        network: class whose call with a batch gives the scores.
        official: name of the class whose checkpoints it has.
        config: configuration of the pre-trained model and number of labels -> that of the network.
        start: state of the pre-trained model and names of the network's parameters -> the state of its start.
        head: prefix of the names of the head's parameters, where the network has heads that are not read; those and the
            model's are trained.
        beside: configuration of the pre-trained model and auxiliary targets -> that of a network with their heads,
            called as `AuxiliaryTaskModel`; None for a release without auxiliary targets.
    """

    network: type[nn.Module]
    official: str
    config: Callable[[Any, int], Any]
    start: Callable[[Mapping[str, Tensor], Sequence[str]], Mapping[str, Tensor]]
    head: str = ""
    beside: Callable[[Any, AuxiliaryTargets], Any] | None = None


@dataclass(frozen=True)
class TaskSystem:
    """
    Attributes:
        name: as `roibeam pretrain --system` has it.
        model_class: with the pre-training heads, as the start of a run is read.
        sizes: name -> function that makes the configuration of a new model.
        positions: configuration -> text pieces that the model takes.
        reads: by form the vector that a head reads, of `READS`, for LABEL and CHOICE.
        pair_reads: the same of a row with two images.
        joins_images: whether two images stand in one row; else each is in a row of its own with the text.
        joins_context: whether the parts before a choice stand together, without a [SEP] between.
        classifies_whole_image: whether its whole image has a class too, where classes of regions are learned.
        grounding: one of `GROUNDINGS` but "auto" -> fields of the configuration that a model of choices must have to
            read which words name a region (`VLBatch.aligned_words`), or not to. Empty for a system without a place for
            them; "auto" is "words" for the others.
        reads_cut_phrases: whether its release reads a phrase whose word "before_sep" cuts where it stood, in the one
            sequence of text and regions, see `places_in_row`.
        classifier: of the head for labels, of `CLASSIFIERS`.
        pair_start: pre-trained model -> fields of the configuration, and the state, of one that reads two images in a
            row; None if they are the same.
        class_input_start: pre-trained model and number of classes -> the same of a model that reads the class of each
            region; None for a system that has no place for them.
        reads_input_classes: configuration -> whether the model reads the class of each region.
        release_heads: by kind of head ("release", "release-mt"), then by `OutputSpec.of_head`.
        parts: prefixes of the names of parameters of model and pooler, without pre-training heads; () for the class's
            `base_model_prefix`.
        photo_whole_image: where a feature of the whole image comes from in a run from photos, see `EndToEndChoices`.
        has_whole_image: configuration -> whether the image as a whole is an element of its own, with a state.
        second_segment: of the second of two texts that stand without an image.
        alone: fields of the configuration that a model must have for texts without an image.
        unread_alone: substrings of the names of parameters that it does not read for them.
    """

    name: str
    model_class: type[PreTrainedModel]
    sizes: Mapping[str, Callable[..., BertSizes]]
    text: TextRules
    positions: Callable[[Any], int]
    reads: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({LABEL: "pooled", CHOICE: "pooled"}))
    pair_reads: str = "pooled"
    joins_images: bool = False
    joins_context: bool = False
    classifies_whole_image: bool = False
    grounding: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reads_cut_phrases: bool = False
    classifier: str = "linear"
    pair_start: Callable[[Any], tuple[Mapping[str, Any], Mapping[str, Tensor]]] | None = None
    class_input_start: Callable[[Any, int], tuple[Mapping[str, Any], Mapping[str, Tensor]]] | None = None
    reads_input_classes: Callable[[Any], bool] = lambda _config: False
    release_heads: Mapping[str, Mapping[str, ReleaseHead]] = field(default_factory=dict)
    photo_whole_image: str = "model"
    has_whole_image: Callable[[Any], bool] = lambda _config: True
    parts: tuple[str, ...] = ()
    second_segment: int = 1
    alone: Mapping[str, Any] = field(default_factory=dict)
    unread_alone: tuple[str, ...] = ()

    @property
    def trained(self) -> tuple[str, ...]:
        """Prefixes of the names of the model's parameters that a task trains."""
        return self.parts or (f"{self.model_class.base_model_prefix}.",)

    def text_alone(self, pieces: Pieces, parts: Sequence[TaskText | PartPieces]) -> list[Span]:
        """The spans of one or two texts without an image, as BERT reads them: [CLS] first [SEP] second [SEP]."""
        return parts_with_separators(pieces, parts, last_segment=self.second_segment)

    def needed_fields(self, output: OutputSpec, grounding: str) -> Mapping[str, Any]:
        """Fields of the configuration that a model must have for an output.

        Args:
            grounding: one of `GROUNDINGS`.
        Raises:
            ValueError: for a grounding other than "auto", where the system has no place for it.
        """
        if grounding != AUTO and not self.grounding:
            raise ValueError(
                f"grounding {grounding!r}: words of {self.name} carry nothing of an image, whatever they name; leave "
                f"it at {AUTO!r}"
            )
        if not output.num_images:
            return self.alone
        return self.grounding.get(GROUNDED if grounding == AUTO else grounding, {}) if output.form == CHOICE else {}

    def release_head(self, kind: str, config: BertSizes, output: OutputSpec) -> ReleaseHead:
        """The head of a release for an output, for a model of this configuration. Raises ValueError where that release
        has none, or its head for regions scores the image as a whole and this is no candidate, or the model has no
        state of it.
        """
        found = self.release_heads.get(kind, {}).get(output.of_head)
        if found is None:
            raise ValueError(
                f"{self.name} has no head of its release for the form {output.of_head} here (head.kind {kind!r}); "
                f"leave out --set head.kind"
            )
        if output.form == REGION:
            self.check_whole_image(config, output)
            if not output.whole_image and self.has_whole_image(config):
                raise ValueError(
                    f"head.kind {kind!r}: the head of {self.name}'s release scores the whole image too, and it is no "
                    f"candidate; set whole_image to size or last_pixel, or head.kind to 'ours'"
                )
        return found

    def written_head(self, official: str, output: OutputSpec) -> ReleaseHead:
        """The head of the release whose checkpoints are of the class `official`. Raises ValueError where no release has
        such a head for the output."""
        for heads in self.release_heads.values():
            found = heads.get(output.of_head)
            if found is not None and found.official == official:
                return found
        raise ValueError(f"{official} has no head of {self.name}'s releases for the form {output.of_head}")

    def check_whole_image(self, config: BertSizes, output: OutputSpec) -> None:
        """Raises ValueError where the image as a whole is a candidate and the model has no state of it."""
        if output.whole_image and not self.has_whole_image(config):
            raise ValueError(
                f"whole_image: this {self.name} has no element for the image as a whole, so it cannot be chosen; "
                f"leave it at none, or take vlbert, vilbert or interbert"
            )

    def new_head(self, config: BertSizes, output: OutputSpec) -> TaskHead:
        """A new head of roibeam's own kind for a model of this configuration. Raises ValueError for more than two
        images, two of them that are to be chosen among, or a whole image that the model has no state of."""
        if output.num_images not in (0, 1, 2) or (output.num_images != 1 and output.form != LABEL):
            raise ValueError(f"{self.name}: no head for {output.num_images} images of a row with form {output.form!r}")
        if output.form == REGION:
            self.check_whole_image(config, output)
            return RegionHead(RegionHeadConfig.for_model(config, with_whole_image=output.whole_image))
        if output.num_images == 0:
            return LabelHead(LabelHeadConfig.for_model(config, num_classes=output.num_labels, reads="pooled_text"))
        if output.form == PHRASE:
            width = config.hidden_size // config.num_attention_heads
            return GroundingHead(GroundingHeadConfig.for_model(config, inner_width=width, num_heads=output.num_heads))
        fields = {"num_classes": output.num_labels, "classifier": self.classifier if output.form == LABEL else "linear"}
        fields["reads"] = self.reads[output.form] if output.num_images == 1 else self.pair_reads
        if output.num_images == 2 and not self.joins_images:
            return ImagePairHead(ImagePairHeadConfig.for_model(config, **fields))
        return LabelHead(LabelHeadConfig.for_model(config, **fields))


def own_fields(config: Any) -> dict[str, Any]:
    """Fields of a model's configuration that are of its class."""
    return {name: value for name, value in config.to_diff_dict().items() if name in config.own_fields()}


def with_labels(config: Any, num_labels: int, **changes: Any) -> Any:
    """A model's configuration with `num_labels` answers."""
    return type(config)(**{**own_fields(config), "num_answers": num_labels, **changes})


def shared_parameters(state: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
    """The parameters that the network has under the same name; its new head is drawn."""
    return {name: tensor for name, tensor in state.items() if name in names}


def parts_with_separators(
    pieces: Pieces, parts: Sequence[TaskText | PartPieces], *, last_segment: int = 0, join_context: bool = False
) -> list[Span]:
    """Spans [CLS] first [SEP] second [SEP] ..., as in most systems.

    Args:
        last_segment: of the last of several parts.
        join_context: no [SEP] between the parts before the last.
    """
    spans, last = [pieces.cls()], len(parts) - 1
    for place, part in enumerate(parts):
        segment = last_segment if place == last and last else 0
        spans.append(pieces.part(part, segment))
        if not (join_context and place < last - 1):
            spans.append(pieces.sep(segment))
    return spans
