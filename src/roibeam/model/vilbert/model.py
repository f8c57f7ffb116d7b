"""ViLBERT (arXiv:1908.02265) and its task heads, as its two releases build them.

They are jiasenlu/vilbert_beta and facebookresearch/vilbert-multi-task. Two streams: text through BERT, regions through
a narrower stack. Before each of the last text layers they look at each other (co-attention, section 2.2 and figure 2b).
The region stream begins with IMG, the whole image.

The first release (VILBertForVLTasks) has one answer classifier; the multi-task release (arXiv:1912.02315) has several,
of another kind, and a head for pairs of images. All heads stand in every checkpoint; a task uses one or two.

Shapes: B rows, T text pieces, R regions, E = R + 1 image elements (IMG first), D feature width, H text width, I image
width, P pooled width.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from roibeam.model.common.bert import VLPreTrainedModel, bert_word_head
from roibeam.model.common.heads import (
    DroppedLinear,
    NormedClassifier,
    ScoreHeads,
    TwoStreamPooler,
    WeightNormedClassifier,
)
from roibeam.model.common.losses import PreTrainingOutput
from roibeam.model.common.regions import LOCATION_SIZE, elements_with_whole_image
from roibeam.model.common.transformer import BERT_NORM_EPS, Packing
from roibeam.model.inputs import AttentionMaps, VLBatch, VLOutput, check_features, check_text_alone, check_texts
from roibeam.model.layer_states import LayerStates
from roibeam.model.pretraining import (
    PreTrainingTerms,
    ViLbertStyleModel,
    draw_negatives,
    in_pairs,
    reading_labels,
    region_head,
)
from roibeam.model.task_heads import join_row_pairs
from roibeam.model.vilbert.encoder import PassedStreams, Stream, TwoStreamEncoder, ViLbertConfig


class ViLbertTextEmbeddings(nn.Module):
    """BERT's: word + segment + position, LayerNorm, dropout. A task token joins after [CLS], before the LayerNorm.

    A table of one segment has none (RoBERTa): all pieces take it, for any `VLBatch.text_segments`.
    """

    def __init__(self, config: ViLbertConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        padding = config.padding_piece if config.padding_piece >= 0 else None
        self.first_position = config.first_position
        self.words = nn.Embedding(config.vocab_size, hidden, padding_idx=padding)
        self.positions = nn.Embedding(config.max_position_embeddings, hidden)
        self.segments = nn.Embedding(config.num_segments, hidden)
        self.tasks = nn.Embedding(config.num_task_tokens, hidden) if config.num_task_tokens else None
        self.norm = nn.LayerNorm(hidden, eps=BERT_NORM_EPS)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, batch: VLBatch) -> Stream:
        length, first = batch.text_ids.shape[1], self.first_position
        check_texts("ViLBERT", batch.text_ids, self.words, self.positions.num_embeddings - first)
        if (self.tasks is None) != (batch.task_ids is None):
            needs = "has no task tokens, but the batch has" if self.tasks is None else "needs"
            raise ValueError(f"ViLBERT: this model {needs} VLBatch.task_ids (config field num_task_tokens)")
        has_segments = self.segments.num_embeddings > 1
        segments = self.segments(batch.text_segments) if has_segments else self.segments.weight[0]
        states = self.words(batch.text_ids) + segments + self.positions.weight[first : first + length]
        mask = batch.text_mask
        if self.tasks is not None:
            # Neither position nor segment; words keep the positions they have without it (vilbert-multi-task).
            task = self.tasks(batch.task_ids)[:, None]
            states = torch.cat([states[:, :1], task, states[:, 1:]], dim=1)
            mask = torch.cat([mask[:, :1], mask.new_ones(len(mask), 1), mask[:, 1:]], dim=1)
        packing = Packing(mask)
        return Stream(self.dropout(self.norm(packing.pack(states))), packing)


class ViLbertRegionEmbeddings(nn.Module):
    """Linear(feature) + Linear(location), LayerNorm, dropout (section 2.2, "Image Representations"); IMG comes first.

    A masked region's location stays, its feature is zero ("image features zeroed out") or that of blanked pixels.
    """

    def __init__(self, config: ViLbertConfig) -> None:
        super().__init__()
        self.whole_image_count, self.masked_appearance = config.whole_image_count, config.masked_appearance
        self.features = nn.Linear(config.region_feature_size, config.image_hidden_size)
        self.locations = nn.Linear(LOCATION_SIZE, config.image_hidden_size)
        self.norm = nn.LayerNorm(config.image_hidden_size, eps=BERT_NORM_EPS)
        self.dropout = nn.Dropout(config.region_embedding_dropout)

    def forward(self, batch: VLBatch) -> Stream:
        check_features("ViLBERT", batch.region_features, self.features.in_features, self.features.weight)
        elements = elements_with_whole_image(
            batch, count=self.whole_image_count, masked_appearance=self.masked_appearance
        )
        packing = Packing(elements.mask)
        features, locations = packing.pack(elements.features), packing.pack(elements.locations)
        states = self.features(features) + self.locations(locations)
        return Stream(self.dropout(self.norm(states)), packing)


class ViLbertPreTrainedModel(VLPreTrainedModel):
    """Initialisation and file handling shared by the bare model and the models with heads."""

    config_class = ViLbertConfig
    config: ViLbertConfig
    base_model_prefix = "vilbert"

    @classmethod
    def from_pretrained(cls, *args: Any, **options: Any) -> Any:
        """Calls transformers' method, which makes all parameters require gradients; fixed layers still require none."""
        loaded = super().from_pretrained(*args, **options)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        for module in model.modules():
            if isinstance(module, ViLbertModel):
                module.freeze_fixed_layers()
        return loaded


class ViLbertModel(ViLbertPreTrainedModel):
    """The two streams: a `VLBatch` in, a `VLOutput` out. Labels and targets in the batch are not read.

    `forward` is `fuse(read_text(batch), read_images(batch))`. Up to the first co-attention neither stream depends on
    the other, so to score one caption against many images (section 3.2, "we cache the linguistic stream
    representation"), read it once and fuse it with each batch of images; the result is the same. `fuse_all_pairs` does
    it for every caption and image of a batch.
    """

    def __init__(self, config: ViLbertConfig) -> None:
        super().__init__(config)
        self.text_embeddings = ViLbertTextEmbeddings(config)
        self.region_embeddings = ViLbertRegionEmbeddings(config)
        self.encoder = TwoStreamEncoder(config)
        self.pooler = TwoStreamPooler(
            config.hidden_size, config.image_hidden_size, config.co_attention_size, fusion=config.fusion
        )
        self.post_init()
        self.freeze_fixed_layers()

    def freeze_fixed_layers(self) -> None:
        """Turns off gradients of parameters that never get one, by `fixed_text_layers` and `fixed_image_layers`.

        Word embeddings still do: they are the decoder of masked words too.
        """
        below: list[nn.Module] = []
        if self.config.fixed_text_layers:
            embeddings = self.text_embeddings
            below += [part for part in embeddings.children() if part is not embeddings.words]
        if self.config.fixed_image_layers:
            below.append(self.region_embeddings)
        below += [*self.encoder.text_layers[: self.config.fixed_text_layers]]
        below += [*self.encoder.image_layers[: self.config.fixed_image_layers]]
        for part in below:
            part.requires_grad_(False)

    def forward(self, batch: VLBatch, *, with_attention: bool = False, with_states: bool = False) -> VLOutput:
        maps = AttentionMaps() if with_attention else None
        passed = PassedStreams([], []) if with_states else None
        # Each row has maps and states of its own.
        batch = batch.without_sharing() if with_attention or with_states else batch
        text, image = self.read_text(batch, maps, passed), self.read_images(batch, maps, passed)
        if batch.row_texts is not None:
            text = text.take(batch.row_texts)
        if batch.row_images is not None:
            image = image.take(batch.row_images)
        read = None
        is_whole = with_attention or with_states or self.drops
        if batch.read_pieces is not None and batch.read_regions is not None and not is_whole:
            pieces = batch.read_pieces
            if self.config.num_task_tokens:
                pieces = torch.cat([pieces[:, :1], torch.zeros_like(pieces[:, :1]), pieces[:, 1:]], dim=1)
            read = {"text": pieces, "image": functional.pad(batch.read_regions, (1, 0), value=True)}
        return self.fuse(text, image, maps, passed, read)

    def read_text(
        self, batch: VLBatch, maps: AttentionMaps | None = None, passed: PassedStreams | None = None
    ) -> Stream:
        """The captions of `batch` up to the first co-attention; its images are not read."""
        return self.encoder.read("text", self.text_embeddings(batch), None if maps is None else maps.text, passed)

    def read_images(
        self, batch: VLBatch, maps: AttentionMaps | None = None, passed: PassedStreams | None = None
    ) -> Stream:
        """The images of `batch` up to the first co-attention; its captions are not read."""
        return self.encoder.read("image", self.region_embeddings(batch), None if maps is None else maps.image, passed)

    def fuse_all_pairs(self, text: Stream, image: Stream) -> VLOutput:
        """Every caption with every image: of C captions and I images, row c * I + i is caption c with image i.

        The multi-task release's `in_batch_pairs`.
        """
        captions, images = len(text.packing), len(image.packing)
        device = text.states.device
        of_text = torch.arange(captions, device=device).repeat_interleave(images)
        of_image = torch.arange(images, device=device).repeat(captions)
        return self.fuse(text.take(of_text), image.take(of_image))

    def fuse(
        self,
        text: Stream,
        image: Stream,
        maps: AttentionMaps | None = None,
        passed: PassedStreams | None = None,
        read: Mapping[str, Tensor] | None = None,
    ) -> VLOutput:
        """Both streams from the first co-attention on. One caption goes with all images, one image with all captions.
        `read` as in `TwoStreamEncoder.forward`. Raises ValueError if neither side has one row and their numbers
        differ."""
        captions, images = len(text.packing), len(image.packing)
        if captions != images and 1 not in (captions, images):
            raise ValueError(f"ViLBERT: {captions} captions and {images} images do not pair; one of them may be 1")
        text = text.rows(images) if captions == 1 else text
        image = image.rows(captions) if images == 1 else image
        text, image = self.encoder(text, image, maps, passed, read)
        words, elements = text.packing.pad(text.states), image.packing.pad(image.states)
        pooled_text, pooled_image, pair = self.pooler(words[:, 0], elements[:, 0])
        words, task = self._without_task(words)
        return VLOutput(
            text_states=words,
            region_states=elements[:, 1:],
            whole_image_state=elements[:, 0],
            task_state=task,
            pooled=pair,
            pooled_text=pooled_text,
            pooled_image=pooled_image,
            attention=maps,
            layer_states=None if passed is None else self._layer_states(passed),
        )

    def _without_task(self, words: Tensor) -> tuple[Tensor, Tensor | None]:
        """(B, T, H) of the batch's pieces, and (B, H) of the task token, if the model has one."""
        if not self.config.num_task_tokens:
            return words, None
        return torch.cat([words[:, :1], words[:, 2:]], dim=1), words[:, 1]

    def _layer_states(self, passed: PassedStreams) -> LayerStates:
        made = LayerStates()
        for layer, text in passed.text:
            made.add_text(layer, self._without_task(text.packing.pad(text.states))[0])
        for layer, image in passed.image:
            made.add_regions(layer, image.packing.pad(image.states)[:, 1:])
        return made

    def fuse_firsts(self, text: Stream, image: Stream) -> VLOutput:
        """Result of `fuse` for the first elements, [CLS] and IMG, and their pooled vectors: for scores of pairs."""
        read = {}
        for kind, stream in (("text", text), ("image", image)):
            read[kind] = torch.zeros_like(stream.packing.mask)
            read[kind][:, 0] = True
        return self.fuse(text, image, read=read)

    def encode_text(self, batch: VLBatch, *, with_attention: bool = False) -> VLOutput:
        """A text without any image, not even IMG: the text's stream.

        In a co-attention without an image, its states go on through their LayerNorm and feed-forward. `pooled`
        and `pooled_text` are both [CLS], pooled.
        """
        check_text_alone("ViLBERT", batch)
        maps = AttentionMaps() if with_attention else None
        text = self.text_embeddings(batch.with_texts_of_rows())
        text = self.encoder.text_alone(text, None if maps is None else maps.text)
        words, task = self._without_task(text.packing.pad(text.states))
        pooled = self.pooler.pool_text(words[:, 0])
        return VLOutput(
            text_states=words, region_states=words[:, :0], task_state=task, pooled=pooled, pooled_text=pooled,
            attention=maps,
        )  # fmt: skip


class ViLbertForPreTraining(ViLbertPreTrainedModel, ViLbertStyleModel):
    """ViLBERT with its pre-training heads (section 2.2, "Training Tasks and Objectives"); losses weigh the same."""

    def __init__(self, config: ViLbertConfig) -> None:
        super().__init__(config)
        self.vilbert = ViLbertModel(config)
        self.masked_word_head = bert_word_head(config)
        self.masked_region_head = region_head(config, config.image_hidden_size)
        self.match_head = (
            DroppedLinear(config.co_attention_size, 2, dropout=config.pair_dropout) if config.with_match_head else None
        )
        self.post_init()

    def forward(self, batch: VLBatch, generator: torch.Generator | None = None) -> PreTrainingOutput:
        """See `score`."""
        return self.score(batch, self.encode(batch if self.drops else reading_labels(batch)), generator)

    def loss_counts(self, batch: VLBatch) -> dict[str, int]:
        return super().loss_counts(in_pairs(batch, self.config.masked_loss_pairs))

    def word_logits(self, states: Tensor) -> Tensor:
        return self.masked_word_head(states, self.vilbert.text_embeddings.words.weight)

    def score(self, batch: VLBatch, output: VLOutput, generator: torch.Generator | None = None) -> PreTrainingOutput:
        """Losses and accuracies of the states in `output`.

        Args:
            generator: on the CPU; draws the negatives of the region loss "contrastive", and nothing else. None takes a
                new one for each row, seeded by `VLBatch.draw_seeds`.
        """
        batch = in_pairs(batch, self.config.masked_loss_pairs)
        if self.masked_region_head is None or self.config.region_loss != "contrastive":
            return super().score(batch, output)
        terms = PreTrainingTerms()
        terms.masked_words(self.word_logits, output.text_states, self.needed(batch, "text_labels"))
        negatives = self._negatives(batch, generator)
        targets, predicted = self.needed(batch, "region_targets"), self.needed(batch, "region_target_mask")
        terms.contrasted_regions(self.masked_region_head, output.region_states, targets, predicted, negatives)
        self.add_match_loss(terms, batch, output)
        return terms.output()

    def _negatives(self, batch: VLBatch, generator: torch.Generator | None) -> Tensor:
        if generator is None and not batch.draw_seeds:
            raise ValueError(
                "ViLbertForPreTraining: region_loss 'contrastive' draws negatives; hand in a generator, or a "
                "batch with draw_seeds"
            )
        return draw_negatives(
            batch.region_mask,
            self.needed(batch, "region_target_mask"),
            self.config.num_negatives,
            batch.draw_seeds if generator is None else generator,
            from_other_images=self.config.negatives_from_other_images,
            group_rows=self.config.negative_rows,
        )


IMAGE_PAIR_LABELS = 2  # of NLVR2: false, true


class ViLbertWithScores(ScoreHeads, ViLbertForPreTraining):
    """The pre-training heads, and one score for the pair, each region and each piece (section 3.2): both releases."""

    def __init__(self, config: ViLbertConfig) -> None:
        super().__init__(config)
        dropout = config.pair_dropout
        self.pair_dropout = nn.Dropout(dropout)
        self.pair_score = DroppedLinear(config.co_attention_size, 1, dropout=dropout)
        self.region_score = DroppedLinear(config.image_hidden_size, 1, dropout=dropout)
        self.word_score = DroppedLinear(config.hidden_size, 1, dropout=dropout)


class ViLbertForTasks(ViLbertWithScores):
    """The first release: one classifier of answers."""

    def __init__(self, config: ViLbertConfig) -> None:
        super().__init__(config)
        pooled = config.co_attention_size
        self.answer_head = WeightNormedClassifier(pooled, 2 * pooled, config.num_answers)
        self.post_init()

    def answers(self, output: VLOutput) -> Tensor:
        """(B, num_answers) logits of VQA's answers (section 3.2, "a two layer MLP")."""
        return self.answer_head(self.pair_dropout(output.pooled))


class ViLbertForMultiTask(ViLbertWithScores):
    """The multi-task release: answers of two data sets, statements about two images, entailment."""

    def __init__(self, config: ViLbertConfig) -> None:
        super().__init__(config)
        pooled = config.co_attention_size
        self.answer_head = NormedClassifier(pooled, 2 * pooled, config.num_answers) if config.num_answers else None
        self.gqa_answer_head = (
            NormedClassifier(pooled, 2 * pooled, config.num_gqa_answers) if config.num_gqa_answers else None
        )
        self.image_pair_head = NormedClassifier(2 * pooled, 2 * pooled, IMAGE_PAIR_LABELS)
        self.entailment_head = DroppedLinear(pooled, 3, dropout=config.pair_dropout)
        self.post_init()

    def answers(self, output: VLOutput) -> Tensor:
        """(B, num_answers) logits of VQA's answers."""
        return self._classify(self.answer_head, "num_answers", output)

    def gqa_answers(self, output: VLOutput) -> Tensor:
        """(B, num_gqa_answers) logits of GQA's answers."""
        return self._classify(self.gqa_answer_head, "num_gqa_answers", output)

    def image_pairs(self, output: VLOutput) -> Tensor:
        """(B / 2, 2) logits of NLVR2: rows 2i and 2i + 1 of the batch are one statement with its two images."""
        assert output.pooled is not None
        return self.image_pair_head(join_row_pairs(self.pair_dropout(output.pooled)))

    def entailment(self, output: VLOutput) -> Tensor:
        """(B, 3) logits of visual entailment."""
        return self.entailment_head(output.pooled)

    def _classify(self, head: NormedClassifier | None, field: str, output: VLOutput) -> Tensor:
        if head is None:
            raise ValueError(f"ViLBERT: this model was made with {field}=0 and has no such head")
        return head(self.pair_dropout(output.pooled))
