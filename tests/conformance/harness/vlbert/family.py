"""The family "vlbert": VL-BERT on stored features and from pixels, its tasks and its data (goldens/vlbert/README.md).

`config_json` says by "class" which model a file is of, so that a case may have any name.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.nn.functional import pad

from harness.case_files import ArrayError
from harness.checks import Check
from harness.model_case import ModelArrays, batch_of, model_family
from harness.vlbert.case import VLBertCase, open_case
from harness.vlbert.data import data_checks
from harness.vlbert.pixels import photo_checks
from harness.vlbert.task_cases import TASKS, task_checks
from roibeam.model.inputs import IGNORE_INDEX
from roibeam.model.vlbert.checkpoint import state_from_official
from roibeam.model.vlbert.embeddings import VLBertImageElements, embed_coordinates
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.pipelines.training.model_files.model_checkpoint import build_model

LOSSES = {
    "relationship_loss": "matching",
    "mlm_loss": "masked_words",
    "mlm_loss_wvc": "masked_words",
    "mlm_loss_aux": "text_only_words",
    "mvrc_loss": "masked_regions",
}


def _core_checks(arrays: ModelArrays) -> Iterator[Check]:
    """Embedded text and objects through the encoder and the heads."""
    case = open_case(arrays, "core")
    config = case.config
    state = state_from_official(case.official)
    with torch.device("meta"):
        wanted = VLBertForPreTraining(config).state_dict()
    # What embeds regions is not in such a file, and not run.
    outside = ("vlbert.region_projection.", "vlbert.region_token.", "vlbert.masked_region_")
    state |= {n: torch.zeros(t.shape) for n, t in wanted.items() if n not in state and n.startswith(outside)}
    model = build_model(lambda: VLBertForPreTraining(config), state)
    case.watch(model.vlbert)
    ids = arrays.whole("in/text_input_ids", 0, config.vocab_size, None, None)
    rows, length = ids.shape
    text_mask = arrays.mask("in/text_mask", rows, length)
    objects = arrays.floats("in/object_vl_embeddings", rows, None, config.visual_width + config.hidden_size)
    object_mask = arrays.mask("in/object_mask", rows, objects.shape[1])
    visuals, tokens = objects.split([config.visual_width, config.hidden_size], dim=-1)
    with torch.no_grad():
        states = model.vlbert.embeddings(
            ids,
            arrays.whole("in/text_token_type_ids", 0, config.num_segments, rows, length),
            text_mask,
            arrays.floats("in/text_visual_embeddings", rows, length, config.visual_width),
            tokens,
            visuals,
        )
        mask = torch.cat([text_mask, object_mask, torch.ones(rows, 1, dtype=torch.bool)], dim=1)
        states = model.vlbert.encoder(states, mask)
        text, regions = states[:, :length], states[:, length:-1]
        pooled = None if model.vlbert.pooler is None else model.vlbert.pooler(states[:, 0])
        head = model.relationship_head
        yield from case.state_checks(text_mask, object_mask)
        yield from case.real("text_out", text, text_mask)
        yield from case.real("object_out", regions, object_mask)
        yield from case.real("pooled", pooled)
        yield from case.real("relationship_logits", None if head is None or pooled is None else head(pooled))
        if config.with_word_head:
            yield from case.real("mlm_logits", model.word_logits(text), text_mask)
        if config.with_region_head:
            yield from case.real("mvrc_logits", model.region_logits(regions), object_mask)


def _pretraining_checks(arrays: ModelArrays, kind: str) -> Iterator[Check]:
    case = open_case(arrays, kind)
    config = case.config
    if case.encoder is not None:
        yield from photo_checks(arrays, case.network, kind)
    model: VLBertForPreTraining = case.build(VLBertForPreTraining)
    shown = case.elements()
    images, count = shown.mask.shape
    elements = shown._replace(masked=arrays.mask("in/mvrc_ops", images, count))
    hw = case.image_hw(images)
    text = arrays.whole("in/text", 0, config.vocab_size, images, None)
    labels = arrays.whole("in/mlm_labels", -1, config.vocab_size, *text.shape)
    if kind == "pretrain-multitask":
        aux = arrays.whole("in/aux_text", 0, config.vocab_size, None, None)
        aux_labels = arrays.whole("in/aux_mlm_labels", -1, config.vocab_size, *aux.shape)
        longest = max(text.shape[1], aux.shape[1])
        text = torch.cat([pad(part, (0, longest - part.shape[1])) for part in (text, aux)])
        labels = torch.cat([pad(part, (0, longest - part.shape[1]), value=-1) for part in (labels, aux_labels)])
        elements = VLBertImageElements(*(_with_rows(part, len(text)) for part in elements))
        hw = torch.cat([hw, torch.ones(len(aux), 2)])
    rows = len(text)
    targets = _with_rows(arrays.floats("in/mvrc_labels", images, count, config.num_region_labels), rows)
    predicted = (targets.sum(dim=-1) - 1).abs() < 0.1  # common/utils/misc.py, soft_cross_entropy
    if bool(predicted[:, 0].any()):
        raise ArrayError("in/mvrc_labels", "has a target for the whole image; here only regions are predicted")
    matching = arrays.whole("in/relationship_label", 0, 2, images)
    batch = batch_of(
        (text, text > 0, torch.zeros_like(text)),
        elements[:3],
        hw,
        masked_regions=elements.masked[:, 1:],
        text_labels=labels.masked_fill(labels == -1, IGNORE_INDEX),
        region_targets=targets[:, 1:],
        region_target_mask=predicted[:, 1:],
        match_labels=torch.cat([matching, matching.new_full((rows - images,), IGNORE_INDEX)]),
        text_only=torch.arange(rows) >= images if kind == "pretrain-multitask" else None,
    )
    output = model.vlbert.encode(batch, elements)
    yield from case.state_checks(batch.text_mask, elements.mask)
    yield from _visual_checks(case, model, elements, batch.image_hw, images)
    with torch.no_grad():
        if config.with_word_head:
            words = model.word_logits(output.text_states)
            if kind == "pretrain-multitask":
                yield from case.real("mlm_logits_wvc", words[:images], batch.text_mask[:images])
                yield from case.real("mlm_logits_aux", words[images:], batch.text_mask[images:])
            else:
                yield from case.real("mlm_logits", words, batch.text_mask)
        if config.with_region_head:
            assert output.whole_image_state is not None
            states = torch.cat([output.whole_image_state[:, None], output.region_states], dim=1)
            regions = model.region_logits(states[:images])
            yield from case.real("mvrc_logits", regions, elements.mask[:images])
        if model.relationship_head is not None:
            yield from case.real("relationship_logits", model.relationship_head(output.pooled)[:images])
    losses = {name: term.mean for name, term in model.score(batch, output).losses.items()}
    total = torch.stack(list(losses.values())).sum()
    for name, ours in LOSSES.items():
        # A task that is switched off has loss 0 there.
        yield from case.loss(name, losses.get(ours, torch.zeros(())))
    yield from case.loss("loss", total)
    yield from case.gradient_checks(model, total)


def _visual_checks(
    case: VLBertCase, model: VLBertForPreTraining, elements: VLBertImageElements, hw: torch.Tensor, images: int
) -> Iterator[Check]:
    """Features, projected features, the embedded boxes of the first row and the map, where the file has them."""
    longest = int(elements.mask.sum(dim=1).max())
    real = elements.mask[:images, :longest]
    with torch.no_grad():
        _, visuals = model.vlbert.embed_elements(elements, hw)
        yield from case.real("obj_reps", visuals[:images, :longest], real)
        features = model.vlbert.with_masked_features(elements)
        # The release writes its vector into the features that it gives out (common/fast_rcnn.py).
        yield from case.real("obj_reps_raw", features[:images, :longest].detach(), real)
        embedded = embed_coordinates(elements.boxes[:1, :4], hw[:1], case.config.coordinate_embedding_size)[0]
        yield from case.real("coord_embed_row0_first4", embedded)
        if case.encoder is not None and "out/body4" in case.arrays:
            maps = case.encoder.backbone(case.arrays.floats("in/image"))
            yield from case.real("body4", maps[:, :64])


def _with_rows(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    return torch.cat([tensor, tensor.new_zeros(rows - len(tensor), *tensor.shape[1:])])


CLASSES: dict[str, Callable[[ModelArrays], Iterator[Check]]] = {
    "VisualLinguisticBertForPretraining": _core_checks,
    "ResNetVLBERTForPretraining": partial(_pretraining_checks, kind="pretrain"),
    "ResNetVLBERTForPretrainingMultitask": partial(_pretraining_checks, kind="pretrain-multitask"),
    **{f"{kind} ResNetVLBERT": partial(task_checks, kind=kind) for kind in TASKS},
}


def _run(arrays: ModelArrays) -> Iterator[Check]:
    name = arrays.options.get("class")
    if name is None:
        yield from data_checks(arrays)
    elif name in CLASSES:
        yield from CLASSES[name](arrays)
    else:
        raise ValueError(f"config: class is {name!r}; known are {', '.join(CLASSES)}")


VLBERT_FAMILY = model_family(
    "vlbert",
    ("param/vlbert.", "param/visual_ln_text.", "out/long_boxes_and_features", "out/soft_ce_mean"),
    _run,
    config="config_json",
)
