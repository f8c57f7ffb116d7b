"""Every model with a region encoder of milliseconds, on two photos of noise; weights are not at their start values."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from model_examples import EXAMPLES
from vilbert_examples import randomised as awake

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.region_encoder import RegionEncoder, load_encoder_weights
from roibeam.model.common.fields import EndToEndChoices
from roibeam.model.end_to_end import EndToEndModel, ImageBatch
from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.pipelines.data.batches.image_batch import photo_inputs

VOCAB_SIZE, LABELS, POSITIONS = 40, 7, 16
# The shape of the published network at a sixteenth of its width, two blocks in each stage.
ENCODER = DetectorConfig(depth=26, base_channels=4, pooled_cells=5, short_edge=48, long_edge=80)
FEATURES = ENCODER.feature_dim
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": POSITIONS, "region_feature_size": FEATURES,
}  # fmt: skip
BLANK = EndToEndChoices(masked_pixels="blank", whole_image="model")
WHOLE = EndToEndChoices(masked_pixels="whole", whole_image="model")
SHOWN = EndToEndChoices(masked_pixels="shown", whole_image="box")  # VL-BERT's with MASK_RAW_PIXELS off, captions alone
RELEASE = EndToEndChoices(masked_pixels="blank", whole_image="box")  # VL-BERT's


def example(name: str, **fields: Any) -> Callable[..., Any]:
    """How the model of `EXAMPLES` is made with the sizes here."""
    return partial(EXAMPLES[name].make, **SIZES | fields)


VLBERT_SIZES = SIZES | {"num_region_labels": LABELS, "coordinate_embedding_size": 16}
vlbert = example(
    "VL-BERT", preset="release-captions", **VLBERT_SIZES, num_segments=3,
    with_pooler=True, with_relationship_head=True, masked_appearance="pixels",
)  # fmt: skip
vilbert = example("ViLBERT", hidden_size=24, num_hidden_layers=3, num_attention_heads=4, region_target_size=LABELS)
single_stream = example("ViLBERT single-stream", region_target_size=LABELS)
visualbert = example("VisualBERT")
interbert = example(
    "InterBERT", text_num_hidden_layers=1, image_num_hidden_layers=1, image_num_attention_heads=2,
    image_intermediate_size=20, pooled_size=12, region_target_size=LABELS,
)  # fmt: skip
imagebert = example("ImageBERT", num_region_labels=LABELS)

# Name -> (model, choices): the systems as docs/train.md has them, then what else their fields allow.
REGRESSION = {"region_target_size": FEATURES}
CASES: dict[str, tuple[Callable[[], Any], EndToEndChoices]] = {
    "vlbert": (vlbert, RELEASE),
    "vlbert-paper": (example("VL-BERT, paper", **VLBERT_SIZES, num_segments=3), RELEASE),
    "vlbert-shown": (vlbert, SHOWN),
    "vlbert-learned": (lambda: vlbert(masked_appearance="learned"), WHOLE),
    "vilbert": (vilbert, BLANK),
    "vilbert-stored-way": (vilbert, WHOLE),
    "vilbert-pixels": (lambda: vilbert(masked_appearance="pixels"), RELEASE),
    "vilbert-regression": (lambda: vilbert(region_loss="regression", **REGRESSION), BLANK),
    "vilbert-contrastive": (lambda: vilbert(region_loss="contrastive", num_negatives=4, **REGRESSION), BLANK),
    "single-stream": (single_stream, BLANK),
    "single-stream-pixels": (lambda: single_stream(masked_appearance="pixels"), BLANK),
    "visualbert": (visualbert, BLANK),
    "interbert": (interbert, BLANK),
    "interbert-paper": (lambda: interbert("paper"), BLANK),
    "interbert-pixels": (lambda: interbert(masked_appearance="pixels"), BLANK),
    "interbert-regression": (lambda: interbert(region_loss="regression", **REGRESSION), BLANK),
    "imagebert": (imagebert, BLANK),
    "imagebert-pixels": (lambda: imagebert(masked_appearance="pixels"), BLANK),
}
SYSTEMS = ("vlbert", "vilbert", "single-stream", "visualbert", "interbert", "imagebert")


def encoder(**arguments: Any) -> RegionEncoder:
    made = RegionEncoder(ENCODER, **arguments)
    load_encoder_weights("random:1", made)
    with torch.no_grad():  # random weights are for pixels that nothing divides
        made.backbone.get_submodule("stem.conv1").weight.mul_(made.conventions.pixel_std[0])
    return made


def joint_model(name: str, **encoder_arguments: Any) -> EndToEndModel:
    make, choices = CASES[name]
    return EndToEndModel(awake(make()), encoder(**encoder_arguments), choices)


def photos(seed: int = 0) -> list[np.ndarray]:
    """A wide and a high one, noise."""
    random = np.random.default_rng(seed)
    return [random.integers(0, 256, shape, dtype=np.uint8) for shape in ((48, 64, 3), (60, 50, 3))]


BOXES = [
    np.array([[2, 3, 30, 30], [10.5, 8, 60, 44], [33, 20, 50, 40], [0, 0, 20, 47]], np.float32),
    np.array([[5, 5, 40, 50], [20, 10, 49, 30.5]], np.float32),
]
MASKED = [np.array([True, False, False, False]), np.array([False, True])]


def inputs(
    joint: EndToEndModel,
    *,
    boxes: list[np.ndarray] = BOXES,
    masked: list[np.ndarray] = MASKED,
    images: list[np.ndarray] | None = None,
) -> tuple[VLBatch, ImageBatch]:
    """Text, targets and photos; the masked regions are predicted, and one that is not masked."""
    made = photo_inputs(images or photos(), boxes, masked, joint.region_encoder, joint.choices)
    rows, count = made.regions["region_mask"].shape
    generator = torch.Generator().manual_seed(3)
    text = torch.randint(1, VOCAB_SIZE, (rows, 6), generator=generator)
    predicted = made.regions["masked_regions"].clone()
    predicted[:, -1:] |= made.regions["region_mask"][:, -1:]
    config: Any = joint.model.config
    regresses = getattr(config, "region_loss", "kl") != "kl"
    stored = torch.randn(rows, count, FEATURES, generator=generator)
    distributions = torch.softmax(torch.randn(rows, count, LABELS, generator=generator), dim=-1)
    batch = VLBatch(
        text_ids=text,
        text_mask=torch.arange(6) < torch.tensor([[6], [4]]),
        text_segments=torch.zeros(rows, 6, dtype=torch.long),
        region_features=stored,
        text_labels=torch.full((rows, 6), IGNORE_INDEX).index_fill_(1, torch.tensor([2]), 3),
        region_targets=stored if regresses else distributions,
        region_target_mask=predicted,
        match_labels=torch.ones(rows, dtype=torch.long),
        **made.regions,
    )
    return batch, made.images


def score_arguments(joint: EndToEndModel) -> tuple[torch.Generator, ...]:
    """A generator of negatives for the model that wants one."""
    draws = getattr(joint.model.config, "region_loss", "") == "contrastive"
    return (torch.Generator().manual_seed(5),) if draws else ()


def losses(joint: EndToEndModel, batch: VLBatch, images: ImageBatch) -> dict[str, torch.Tensor]:
    found = joint(batch, images, *score_arguments(joint)).losses
    return {name: term.mean for name, term in found.items()}
