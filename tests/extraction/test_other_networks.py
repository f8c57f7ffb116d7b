"""Weight files that are no detector of this family: each is called what it is; a ResNet alone describes given boxes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from safetensors.torch import save_file
from small_networks import with_counters
from torch import Tensor, nn
from torchvision.models import detection, segmentation
from transformers import ResNetConfig, ResNetForImageClassification, ResNetModel

from roibeam.extraction.detector import Detector
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.network.state import random_state, weights_digest
from roibeam.extraction.region_encoder import RegionEncoder, load_encoder_weights
from roibeam.extraction.weights.families import family_names, name_weights
from roibeam.extraction.weights.loading import build_detector, convert_weights, load_weights

SIZES = DetectorConfig(
    depth=50, base_channels=8, num_classes=80, num_attributes=0, pooled_cells=7, short_edge=48, long_edge=96
)
R2C = CONVENTIONS["r2c"]
State = dict[str, Any]


def on_meta(make: Any, **options: Any) -> State:
    """What a file of a network holds: its own names and shapes, no values."""
    with torch.device("meta"):
        model: nn.Module = make(**options)
    return dict(model.state_dict())


def without_classes(state: State) -> State:
    return {name: value for name, value in state.items() if not name.startswith("fc.")}


RESNETS = {
    "resnet18": "ResNet-18", "resnet34": "ResNet-34", "resnet50": "ResNet-50", "resnet101": "ResNet-101",
    "resnet152": "ResNet-152", "wide_resnet50_2": "Wide ResNet-50", "resnext50_32x4d": "ResNeXt-50",
}  # fmt: skip


@pytest.mark.parametrize(("make", "kind"), RESNETS.items())
def test_a_resnet_of_torchvision_is_called_by_its_layers_and_classes(make: str, kind: str) -> None:
    state = on_meta(getattr(torchvision.models, make))
    titles = [
        name_weights(each, "weights x").family.title
        for each in (state, {f"module.{name}": value for name, value in state.items()}, without_classes(state))
    ]
    assert titles[0] == titles[1] == f"{kind} of torchvision or timm, for 1,000 classes of photos"
    alone = "VL-BERT resnet101-pt-vgbua, or another ResNet-101" if make == "resnet101" else kind
    assert titles[2] == f"{alone} alone in torchvision's names"


def without_weights(make: Any) -> State:
    return on_meta(make, weights=None, weights_backbone=None)


def named(*names: str) -> State:
    """Names of networks that are not installed here, as their code has them."""
    return {name: torch.empty(2, 2, device="meta") for name in names}


def refused_networks() -> dict[str, State]:
    pyramid = "with a feature pyramid, on a ResNet-50"
    bare = ResNetConfig(layer_type="basic", depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512])
    return {
        f"torchvision's Faster R-CNN {pyramid}": without_weights(detection.fasterrcnn_resnet50_fpn),
        f"torchvision's Mask R-CNN {pyramid}": without_weights(detection.maskrcnn_resnet50_fpn),
        f"torchvision's Keypoint R-CNN {pyramid}": without_weights(detection.keypointrcnn_resnet50_fpn),
        "torchvision's RetinaNet or FCOS, on a ResNet-50": without_weights(detection.retinanet_resnet50_fpn),
        "torchvision's SSD": without_weights(detection.ssd300_vgg16),
        "torchvision's segmentation network": without_weights(segmentation.deeplabv3_resnet50),
        "ResNet-50 as Hugging Face names it": on_meta(ResNetForImageClassification, config=ResNetConfig()),
        "ResNet-18 as Hugging Face names it": on_meta(ResNetModel, config=bare),
        "timm's ResNet with a deep stem": named("conv1.0.weight", "conv1.3.weight", "layer1.0.conv1.weight"),
        "timm's ResNet with squeeze": named("conv1.weight", "layer1.0.conv1.weight", "layer1.0.se.fc1.weight"),
        "a network of timm's": named("stem.conv.weight", "stages.0.blocks.0.conv1.weight", "head.fc.weight"),
        "a ResNet in detectron2's names": named("stem.conv1.weight", "res2.0.conv1.weight"),
        "a network of Caffe2's Detectron": named("conv1_w", "res2_0_branch2a_w"),
        "a network of detectron2 with a feature pyramid": named(
            "backbone.bottom_up.res2.0.conv1.weight", "proposal_generator.rpn_head.conv.weight"
        ),
        "a network of maskrcnn-benchmark": named("backbone.body.stem.conv1.weight", "backbone.fpn.fpn_inner1.weight"),
        "DETR": named("transformer.encoder.layers.0.linear1.weight", "backbone.0.body.conv1.weight"),
        "CLIP's ResNet": named("visual.conv1.weight", "visual.layer1.0.conv1.weight", "visual.attnpool.k_proj.bias"),
        "a whole model of R2C, or VisualBERT on VCR": named(
            "detector.backbone.0.weight", "detector.after_roi_align.0.0.conv1.weight", "bert.bert.pooler.dense.bias"
        ),
        "a model of words": named("bert.embeddings.word_embeddings.weight"),
    }


@pytest.mark.parametrize("prefix", ["", "module."])
def test_other_networks_are_called_what_they_are(prefix: str) -> None:
    for title, state in refused_networks().items():
        with pytest.raises(ValueError, match="another network than any that is read here; read are the files") as error:
            name_weights({prefix + name: value for name, value in state.items()}, "weights x")
        assert str(error.value).startswith(f"weights x: {title}"), title


@pytest.fixture(scope="module")
def theirs() -> dict[str, Tensor]:
    """A small ResNet-50 in torchvision's names, with the layer of its classes."""
    back = family_names("vlbert")
    expected = RegionEncoder(SIZES, R2C).state_dict()
    state = random_state({name: tuple(value.shape) for name, value in expected.items()}, seed=7)
    classes = {"fc.weight": torch.zeros(10, SIZES.feature_dim), "fc.bias": torch.zeros(10)}
    return {**{back[name]: value for name, value in state.items()}, **classes}


def built(weights: Path, **options: Any) -> Detector:
    return build_detector(SIZES, weights=weights, conventions="r2c", given_boxes=True, **options)


def test_a_resnet_alone_describes_given_boxes(theirs: dict[str, Tensor], tmp_path: Path) -> None:
    """As the encoder of the same file does; its regions have no classes, and it proposes none."""
    torch.save(theirs, tmp_path / "resnet50-0676ba61.pth")
    detector = built(tmp_path / "resnet50-0676ba61.pth")
    random = np.random.default_rng(0)
    photo = random.integers(0, 256, (60, 90, 3), np.uint8)
    boxes = np.array([[0, 0, 90, 60], [10, 5, 50, 40], [30, 30, 31, 31]], np.float32)
    (found,) = detector([photo], boxes=[boxes])
    assert found.boxes.tolist() == boxes.tolist()
    assert found.features.shape == (3, SIZES.feature_dim) and found.class_probabilities.shape == (3, 1)
    assert found.class_ids.tolist() == [0, 0, 0] and found.class_scores.tolist() == [0, 0, 0]
    assert found.attribute_ids is None
    described = detector.describe()
    assert (described["num_classes"], described["num_attributes"]) == (0, 0) == (
        detector.num_classes, detector.num_attributes,
    )  # fmt: skip
    from roibeam.extraction.region_encoder import collate_photos, prepare_photo

    encoder = RegionEncoder(SIZES, R2C)
    load_encoder_weights(str(tmp_path / "resnet50-0676ba61.pth"), encoder)
    batch = collate_photos([prepare_photo(photo, boxes, SIZES, R2C)])
    with torch.no_grad():
        wanted = encoder(batch.pixels, batch.boxes, batch.region_mask)[0].numpy()
    np.testing.assert_allclose(found.features, wanted, rtol=1e-3, atol=1e-3 * float(np.abs(wanted).max()))
    with pytest.raises(ValueError, match="proposes no boxes; give it boxes"):
        detector([photo])


@pytest.mark.parametrize("mode", ["batched", "bf16"])
def test_faster_modes_take_it_too(theirs: dict[str, Tensor], tmp_path: Path, mode: str) -> None:
    torch.save(theirs, tmp_path / "a.pth")
    photos = [np.full((60, 90, 3), shade, np.uint8) for shade in (20, 200)]
    found = built(tmp_path / "a.pth", mode=mode)(photos, boxes=[np.array([[0, 0, 40, 40]])] * 2)
    assert [each.features.shape for each in found] == [(1, SIZES.feature_dim)] * 2


def test_one_resnet_is_one_digest_in_every_file(theirs: dict[str, Tensor], tmp_path: Path, caplog: Any) -> None:
    """torchvision's before and after it counted batches, without classes (timm), of several devices, of a training."""
    torch.save(theirs, tmp_path / "old.pth")
    torch.save(with_counters(theirs), tmp_path / "new.pth")
    torch.save({"state_dict": {f"module.{name}": value for name, value in theirs.items()}}, tmp_path / "parallel.th")
    save_file(without_classes(theirs), tmp_path / "timm.safetensors")
    torch.save({name: nn.Parameter(value) for name, value in theirs.items()}, tmp_path / "parameters.pth")
    with caplog.at_level("INFO"):
        digests = {weights_digest(built(path).state_dict()) for path in tmp_path.iterdir()}
    assert len(digests) == 1
    assert caplog.text.count("2 weights of classes of photos (fc) left out") == 4
    assert "ResNet-50 of torchvision or timm, for 10 classes of photos" in caplog.text


def test_it_is_strict_and_calls_the_file_what_it_is(theirs: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save({**theirs, "layer5.weight": torch.zeros(1)}, tmp_path / "more.pth")
    with pytest.raises(ValueError, match=r"more.pth \(ResNet-50 of torchvision .*1 extra: layer5.weight"):
        built(tmp_path / "more.pth")
    torch.save(torchvision.models.resnet18(weights=None).state_dict(), tmp_path / "eighteen.pth")
    with pytest.raises(ValueError, match=r"eighteen.pth \(ResNet-18 of torchvision .*missing: backbone.res2.0.conv3"):
        built(tmp_path / "eighteen.pth")
    torch.save(theirs, tmp_path / "whole.pth")
    for load in (
        lambda: build_detector(SIZES, weights=tmp_path / "whole.pth", conventions="r2c"),
        lambda: load_weights(str(tmp_path / "whole.pth"), Detector(SIZES, R2C)),
    ):
        with pytest.raises(ValueError, match=r"ResNet-50 of torchvision .*has no proposal network and no heads; hand"):
            load()


def test_its_classes_are_left_out_of_a_conversion(theirs: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save(theirs, tmp_path / "a.pth")
    done = convert_weights(str(tmp_path / "a.pth"), tmp_path / "b.model", to="vlbert", config=SIZES)
    assert done.digest_before == done.digest_after
    assert "2 weights of classes of photos (fc) left out" in done.changes
    assert torch.load(tmp_path / "b.model").keys() >= without_classes(theirs).keys()
    assert "fc.weight" not in torch.load(tmp_path / "b.model")
    with pytest.raises(ValueError, match=r"ResNet-50 of torchvision .*, a ResNet alone; it can become"):
        convert_weights(str(tmp_path / "a.pth"), tmp_path / "c.bin", to="hf", config=SIZES)


def test_the_sizes_of_r2c_compute_as_r2c() -> None:
    """Else photos of the wrong colours and scale would be described, and nothing would tell."""
    from roibeam.extraction.weights.detector_choice import choose_detector

    assert choose_detector("r2c-r50", weights="x.pth").conventions == R2C
    assert choose_detector("r2c-r50", weights="x.pth", conventions="hf").conventions == CONVENTIONS["hf"]
    with pytest.raises(ValueError, match="num_attributes is 3 beside no classes"):
        DetectorConfig(num_classes=0, num_attributes=3)
