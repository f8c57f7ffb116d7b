"""Detectors of Hugging Face transformers beside the bare library, on small random models of the real classes."""

from __future__ import annotations

import json
import shutil
import string
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from torch import Tensor
from transformers.image_transforms import center_to_corners_format

from roibeam.extraction.adapters.any_detector import Detections, ModelDetector
from roibeam.extraction.network.conventions import SELECTIONS
from roibeam.extraction.weights.named_model import NamedModel

LABELS = ("N/A", "cat", "dog", "background", "N/A", "car")
NAMES = ("cat", "dog", "car")
ROWS = {1: 0, 2: 1, 5: 2}  # of LABELS among NAMES
QUERIES = ("cat", "red car", "dogs", "zebra cat")  # the tokenizer of two families knows no zebra
SQUARE = {"height": 64, "width": 64}
EDGES = {"shortest_edge": 48, "longest_edge": 80}


def _resnet(kind: Any = hf.ResNetConfig, stages: tuple[str, ...] = ("stage4",)) -> Any:
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 12, 16, 20], "depths": [1] * 4, "layer_type": "basic"}
    return kind(**sizes, out_features=list(stages))


def _detr(kind: Any, stages: tuple[str, ...] = ("stage4",), width: str = "d_model", **options: Any) -> Any:
    sizes = {
        width: 32,
        "num_queries": 7,
        "backbone_config": _resnet(stages=stages),
        "use_timm_backbone": False,
        **dict.fromkeys(("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"), 2),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 16),
    }
    return kind(**sizes | options)


THREE = ("stage2", "stage3", "stage4")


def _hgnet() -> Any:
    return hf.HGNetV2Config(
        embedding_size=8,
        stem_channels=[3, 8, 8],
        hidden_sizes=[8, 12, 16, 20],
        depths=[1] * 4,
        stage_in_channels=[8, 8, 12, 16],
        stage_mid_channels=[8] * 4,
        stage_out_channels=[8, 12, 16, 20],
        stage_num_blocks=[1] * 4,
        stage_numb_of_layers=[1] * 4,
        out_features=list(THREE),
    )


def _rt_detr(kind: Any, backbone: Any) -> Any:
    return kind(
        d_model=16,
        encoder_hidden_dim=16,
        encoder_in_channels=[12, 16, 20],
        decoder_in_channels=[16] * 3,
        backbone_config=backbone,
        num_queries=7,
        num_denoising=0,
        **dict.fromkeys(("encoder_layers", "encoder_attention_heads"), 1),
        **dict.fromkeys(("decoder_layers", "decoder_attention_heads"), 2),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 16),
    )


def _light_detr(kind: Any, backbone: Any, **options: Any) -> Any:
    heads = dict.fromkeys(("decoder_layers", "decoder_self_attention_heads", "decoder_cross_attention_heads"), 2)
    return kind(d_model=16, **heads, decoder_ffn_dim=16, num_queries=7, backbone_config=backbone, **options)


_VIT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 64, "patch_size": 16}
RT_PROCESSOR = lambda: hf.RTDetrImageProcessor(size=SQUARE)  # noqa: E731
# family: its config, its image processor
FIXED: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "detr": (lambda: _detr(hf.DetrConfig), lambda: hf.DetrImageProcessor(size=EDGES)),
    "detr_of_timm": (  # as facebook/detr-resnet-50
        lambda: _detr(hf.DetrConfig, backbone_config=None, use_timm_backbone=True, backbone="test_resnet"),
        lambda: hf.DetrImageProcessor(size=EDGES),
    ),
    "table_transformer": (
        lambda: _detr(hf.TableTransformerConfig),
        lambda: hf.DetrImageProcessor(size=EDGES, pad_size={"height": 96, "width": 96}),
    ),
    "conditional_detr": (
        lambda: _detr(hf.ConditionalDetrConfig),
        lambda: hf.ConditionalDetrImageProcessor(size=EDGES),
    ),
    "deformable_detr": (
        lambda: _detr(hf.DeformableDetrConfig, THREE, num_feature_levels=3),
        lambda: hf.DeformableDetrImageProcessor(size=EDGES),
    ),
    "deformable_detr_two_stage": (
        lambda: _detr(
            hf.DeformableDetrConfig,
            THREE,
            num_feature_levels=3,
            two_stage=True,
            with_box_refine=True,
            two_stage_num_proposals=40,  # and 6 labels: more than the 100 that its post-processing keeps
        ),
        lambda: hf.DeformableDetrImageProcessor(size=EDGES),
    ),
    "dab_detr": (
        lambda: _detr(hf.DabDetrConfig, width="hidden_size"),
        lambda: hf.ConditionalDetrImageProcessor(size=EDGES),
    ),
    "yolos": (
        lambda: hf.YolosConfig(**(_VIT | {"image_size": [48, 64]}), intermediate_size=16, num_detection_tokens=7),
        lambda: hf.YolosImageProcessor(size=EDGES),
    ),
    "rt_detr": (lambda: _rt_detr(hf.RTDetrConfig, _resnet(hf.RTDetrResNetConfig, THREE)), RT_PROCESSOR),
    "rt_detr_v2": (lambda: _rt_detr(hf.RTDetrV2Config, _resnet(hf.RTDetrResNetConfig, THREE)), RT_PROCESSOR),
    "d_fine": (lambda: _rt_detr(hf.DFineConfig, _hgnet()), RT_PROCESSOR),
    "deimv2": (lambda: _rt_detr(hf.Deimv2Config, _hgnet()), RT_PROCESSOR),
    "lw_detr": (
        lambda: _light_detr(
            hf.LwDetrConfig,
            hf.LwDetrViTConfig(**_VIT, pretrain_image_size=64, window_block_indices=[0], out_indices=[1]),
            projector_scale_factors=[1.0],
        ),
        lambda: hf.DeformableDetrImageProcessor(size=SQUARE),
    ),
    "rf_detr": (
        lambda: _light_detr(hf.RfDetrConfig, hf.RfDetrDinov2Config(**_VIT, num_windows=2, out_indices=[1, 2])),
        lambda: hf.RfDetrImageProcessor(size=SQUARE),
    ),
}
SOFTMAX = ("detr", "detr_of_timm", "table_transformer", "yolos")


def _clip_tokenizer(length: int) -> Any:
    letters = list(string.ascii_lowercase + ",.")
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return hf.CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=length)


def _bert_tokenizer() -> Any:
    at = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]", 1012: ".", 1029: "?"}  # as in the model
    at |= dict(enumerate(("cat", "dog", "red", "car", "##s", *string.ascii_lowercase), 1030))
    return hf.BertTokenizer(vocab={at.get(number, f"[unused{number}]"): number for number in range(max(at) + 1)})


def _swin() -> Any:
    return hf.SwinConfig(
        image_size=64, embed_dim=8, depths=[1] * 4, num_heads=[1, 1, 2, 2], window_size=4, out_indices=[2, 3, 4]
    )


def _owl(kind: Any, image_processor: Any, processor: Any) -> tuple[Any, Any]:
    tokenizer = _clip_tokenizer(16)
    sizes = {"hidden_size": 12, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    texts = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = kind(
        text_config=sizes | texts | {"vocab_size": len(tokenizer), "max_position_embeddings": 16},
        vision_config=_VIT | {"intermediate_size": 16},
        projection_dim=12,
    )
    return config, processor(image_processor(size=SQUARE), tokenizer)


def _grounding_dino(kind: Any) -> tuple[Any, Any]:
    tokenizer = _bert_tokenizer()
    text = hf.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
    )
    config = kind(
        backbone_config=_swin(),
        text_config=text,
        num_queries=9,
        d_model=32,
        max_text_len=24,
        **dict.fromkeys(("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"), 2),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 16),
    )
    return config, hf.GroundingDinoProcessor(hf.GroundingDinoImageProcessor(size=EDGES), tokenizer)


def _omdet() -> tuple[Any, Any]:
    tokenizer = _clip_tokenizer(77)
    text = hf.CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        projection_dim=16,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    config = hf.OmDetTurboConfig(
        backbone_config=_swin(),
        apply_layernorm_after_vision_backbone=False,
        text_config=text,
        num_queries=20,
        image_size=64,
        encoder_in_channels=[16, 32, 64],
        vision_features_channels=[32] * 3,
        cache_size=2,  # fewer than the queries
        **dict.fromkeys(("encoder_hidden_dim", "decoder_hidden_dim"), 32),
        **dict.fromkeys(("encoder_attention_heads", "decoder_num_heads", "decoder_num_layers"), 2),
        **dict.fromkeys(("text_projection_in_dim", "text_projection_out_dim", "class_embed_dim"), 16),
        **dict.fromkeys(("task_encoder_hidden_dim", "encoder_dim_feedforward", "decoder_dim_feedforward"), 16),
    )
    return config, hf.OmDetTurboProcessor(hf.DetrImageProcessor(size=SQUARE, do_pad=False), tokenizer)


ZERO_SHOT: dict[str, Callable[[], tuple[Any, Any]]] = {
    "owlvit": lambda: _owl(hf.OwlViTConfig, hf.OwlViTImageProcessor, hf.OwlViTProcessor),
    "owlv2": lambda: _owl(hf.Owlv2Config, hf.Owlv2ImageProcessor, hf.Owlv2Processor),
    "grounding_dino": lambda: _grounding_dino(hf.GroundingDinoConfig),
    "mm_grounding_dino": lambda: _grounding_dino(hf.MMGroundingDinoConfig),
    "omdet_turbo": _omdet,
}
ALL = (*FIXED, *ZERO_SHOT)


def _noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)


PHOTO = _noise(50, 70)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any, Any]]:
    """Folder, network and processor of a family."""
    made: dict[str, tuple[Path, Any, Any]] = {}

    def of(family: str) -> tuple[Path, Any, Any]:
        if "timm" in family:
            pytest.importorskip("timm")
        if family not in made:
            torch.manual_seed(len(family))
            if family in FIXED:
                config, processor = (make() for make in FIXED[family])
                config.id2label = dict(enumerate(LABELS))
                config.label2id = {label: at for at, label in enumerate(LABELS)}
                network = hf.AutoModelForObjectDetection.from_config(config)
            else:
                config, processor = ZERO_SHOT[family]()
                network = hf.AutoModelForZeroShotObjectDetection.from_config(config)
            network.eval()
            if family in FIXED:  # new weights choose one class for every query
                head, inputs = _head(network), processor(images=PHOTO, return_tensors="pt")
                for value in head.parameters():
                    torch.nn.init.normal_(value)
                with torch.no_grad():
                    if family == "yolos":
                        torch.nn.init.normal_(network.vit.embeddings.detection_tokens)
                    last = head.layers[-1] if family == "yolos" else head
                    last.bias -= network(**inputs).logits[0].mean(dim=0)
            elif "owl" in family:
                network.box_head.dense2.weight.data.mul_(0.01)  # new ones make boxes of all or nothing
            folder = tmp_path_factory.mktemp(family)
            network.save_pretrained(folder)
            processor.save_pretrained(folder)
            made[family] = folder, network, processor
        return made[family]

    return of


def _head(network: Any) -> Any:
    """The class head of a decoder's last layer."""
    if hasattr(network, "class_labels_classifier"):
        return network.class_labels_classifier
    heads = getattr(network, "class_embed", None) or network.model.decoder.class_embed
    return heads[1] if isinstance(heads, torch.nn.ModuleList) else heads  # a third is of the first stage


def _named(folder: Path, family: str, **settings: Any) -> NamedModel:
    return NamedModel(f"hf:{folder}", queries=QUERIES if family in ZERO_SHOT else (), **settings).opened()


def _detected(model: NamedModel, photo: np.ndarray = PHOTO) -> Detections:
    with torch.inference_mode():
        found: Detections = model.detector("cpu", "exact")(photo)
    return found


@torch.inference_mode()
def _bare(family: str, network: Any, processor: Any, photo: np.ndarray = PHOTO) -> tuple[Any, dict[str, Tensor]]:
    """Outputs of the network, and of the post-processing with everything that it does not throw away itself."""
    picture, size = Image.fromarray(photo), [photo.shape[:2]]
    if family in FIXED:
        outputs = network(**processor(images=picture, return_tensors="pt"))
        return outputs, processor.post_process_object_detection(outputs, threshold=-1.0, target_sizes=size)[0]
    inputs = processor(images=[picture], text=[list(QUERIES)], return_tensors="pt")
    outputs = network(**inputs, **({"output_hidden_states": True} if family == "omdet_turbo" else {}))
    found = processor.post_process_grounded_object_detection(outputs, threshold=-1.0, target_sizes=size)[0]
    return outputs, found


def _changed(folder: Path, to: Path, name: str, change: dict[str, Any]) -> Path:
    """A copy of a folder in which other settings stand in a file."""
    shutil.copytree(folder, to)
    content = json.loads((to / name).read_text())
    content.get("image_processor", content).update(change)
    (to / name).write_text(json.dumps(content))
    return to


def _same(found: Tensor, expected: Tensor, rtol: float = 0) -> None:
    torch.testing.assert_close(found, expected, rtol=rtol, atol=rtol)


def _states(family: str, outputs: Any) -> Tensor:
    """(queries, D), found otherwise than in the code."""
    if family in ("owlvit", "owlv2"):
        return outputs.class_embeds[0]
    if family in ("grounding_dino", "mm_grounding_dino"):
        return outputs.intermediate_hidden_states[0, -1]
    if family == "omdet_turbo":
        return outputs.decoder_hidden_states[-1][0]
    return outputs.last_hidden_state[0, -outputs.logits.shape[1] :]


def _query_of(found: Detections, states: Tensor) -> Tensor:
    same = (found.vectors[:, None] == states).all(dim=2)
    assert (same.sum(dim=1) == 1).all()  # the states of queries differ, so a vector names its query
    return same.int().argmax(dim=1)


@pytest.mark.parametrize("family", FIXED)
def test_fixed_classes_are_those_of_the_bare_library(family: str, saved: Any) -> None:
    folder, network, processor = saved(family)
    model = _named(folder, family)
    assert model.names() == NAMES
    found = _detected(model)
    outputs, bare = _bare(family, network, processor)
    kept = torch.tensor([label in ROWS for label in bare["labels"].tolist()])
    assert 0 < kept.sum() < len(kept)  # some are of placeholders
    _same(found.boxes, bare["boxes"][kept])
    _same(found.scores, bare["scores"][kept])
    assert found.class_ids.tolist() == [ROWS[label] for label in bare["labels"][kept].tolist()]
    # Each vector is that of its query: this query's box, and its score as the class head gives it of the vector.
    queries = _query_of(found, _states(family, outputs))
    boxes = center_to_corners_format(outputs.pred_boxes[0, queries]) * torch.tensor([70.0, 50.0, 70.0, 50.0])
    _same(found.boxes, boxes, 1e-6)
    with torch.inference_mode():
        logits = _head(network)(found.vectors)
    odds = logits.softmax(dim=1) if family in SOFTMAX else logits.sigmoid()
    rows = torch.arange(len(odds))
    labels = torch.tensor([label for label in bare["labels"].tolist() if label in ROWS])
    _same(found.scores, odds[rows, labels], 1e-5)
    if family in SOFTMAX:
        probabilities = torch.cat([odds[:, list(ROWS)], odds[:, [0, 3, 4, 6]].sum(dim=1, keepdim=True)], dim=1)
        _same(found.probabilities, probabilities, 1e-5)
    else:
        assert found.probabilities is None


@pytest.mark.parametrize("family", ZERO_SHOT)
def test_queries_are_those_of_the_bare_library(family: str, saved: Any) -> None:
    folder, network, processor = saved(family)
    model = _named(folder, family)
    assert model.names() == QUERIES
    found = _detected(model)
    outputs, bare = _bare(family, network, processor)
    _same(found.boxes, bare["boxes"])
    _same(found.scores, bare["scores"])
    queries = _query_of(found, _states(family, outputs))
    if family == "omdet_turbo":
        logits, relative = outputs.decoder_class_logits[0], outputs.decoder_coord_logits[0]
    else:
        logits, relative = outputs.logits[0], outputs.pred_boxes[0]
    # The input of OWLv2 is a square: the photo with a strip below or at its right, and so are the numbers of its boxes.
    sides = [70.0, 70.0] if family == "owlv2" else [70.0, 50.0]
    boxes = center_to_corners_format(relative[queries]) * torch.tensor(sides * 2)
    if family == "omdet_turbo":  # clips them itself
        boxes = boxes.clamp(min=0).minimum(torch.tensor([70.0, 50.0] * 2))
    _same(found.boxes, boxes, 1e-6)
    odds = logits.sigmoid()[queries]
    if "grounding" not in family:
        assert found.class_ids.tolist() == bare["labels"].tolist()
        _same(found.scores, odds[torch.arange(len(queries)), found.class_ids], 1e-6)
        return
    tokens: list[int] = []  # of each query its tokens and the dot
    for number, query in enumerate(QUERIES):
        tokens += [number] * len(processor.tokenizer(query, add_special_tokens=False)["input_ids"]) + [-1]
    of_query = torch.stack(
        [odds[:, [at + 1 for at, n in enumerate(tokens) if n == number]].amax(1) for number in range(len(QUERIES))], 1
    )
    assert found.class_ids.tolist() == of_query.argmax(dim=1).tolist()
    assert len(set(found.class_ids.tolist())) > 1


@pytest.mark.parametrize("family", ALL)
def test_one_photo_does_not_change_the_next(family: str, saved: Any) -> None:
    """Also with arithmetic of 16 bits, where a model must still give numbers of 32."""
    model = _named(saved(family)[0], family)
    detector = model.detector("cpu", "exact")
    with torch.inference_mode():
        first = [detector(PHOTO), detector(_noise(90, 40)), detector(PHOTO)]
        alone = _detected(model, _noise(90, 40))
        with torch.autocast("cpu", torch.bfloat16):
            rough = detector(PHOTO)
    for name in ("boxes", "scores", "class_ids", "vectors"):
        _same(getattr(first[0], name), getattr(first[2], name))
        _same(getattr(first[1], name), getattr(alone, name))
        assert getattr(rough, name).dtype == getattr(alone, name).dtype
    assert detector.feature_dim == alone.vectors.shape[1] > 0
    assert detector.num_classes == len(model.names() or ())
    assert detector.has_distribution == (alone.probabilities is not None)


@pytest.mark.parametrize("family", ["detr", "dab_detr", "yolos", "owlvit", "owlv2"])
def test_a_photo_twice_as_large_has_the_same_boxes(family: str, saved: Any) -> None:
    model = _named(saved(family)[0], family)
    blobs = Image.fromarray(_noise(5, 8))
    small, large = (np.asarray(blobs.resize(size, Image.Resampling.BICUBIC)) for size in ((96, 60), (192, 120)))
    one, two = _detected(model, small), _detected(model, large)
    assert one.class_ids.tolist() == two.class_ids.tolist()
    assert ((one.boxes * 2 - two.boxes).abs() / 120).max() < 0.01


def test_regions_of_a_photo_that_opencv_read(saved: Any) -> None:
    """Blue first outside, red first inside; a photo of three rows is no photo with its channels in front."""
    model = _named(saved("detr")[0], "detr")
    detector = ModelDetector(model.detector("cpu", "exact"), SELECTIONS["detections"], device="cpu", mode="exact")
    for photo in (PHOTO, _noise(3, 40)):
        (regions,) = detector([np.ascontiguousarray(photo[:, :, ::-1])])
        found = _detected(model, photo)
        best = found.scores.argsort(descending=True, stable=True)
        assert len(regions.boxes) == len(best)
        np.testing.assert_array_equal(regions.features, found.vectors[best].numpy())


def test_description_is_equal_wherever_the_files_lie(saved: Any, tmp_path: Path) -> None:
    folder, _, _ = saved("grounding_dino")
    shutil.copytree(folder, tmp_path / "moved")
    model = _named(folder, "grounding_dino")

    def described(model: NamedModel) -> str:
        return json.dumps(model.detector("cpu", "exact").describe(), sort_keys=True)

    text = described(model)
    assert text == described(_named(tmp_path / "moved", "grounding_dino"))
    assert str(folder) not in text
    assert all(word in text for word in ("shortest_edge", "0.485", "red car"))
    assert text != described(replace(model, queries=("cat",)))
    assert text != described(replace(model, longest_side=64))
    words = _changed(folder, tmp_path / "words", "tokenizer.json", {})
    tokenizer = (words / "tokenizer.json").read_text()
    for old, new in (("cat", "_"), ("red", "cat"), ("_", "red")):
        tokenizer = tokenizer.replace(f'"{old}"', f'"{new}"')
    (words / "tokenizer.json").write_text(tokenizer)
    assert text != described(_named(words, "grounding_dino"))
    detr = _named(saved("detr")[0], "detr")
    assert described(detr) != described(_named(saved("conditional_detr")[0], "conditional_detr"))


@pytest.mark.parametrize(
    "size, longest_side, input_hw",
    [
        (EDGES, 0, (48, 67)),
        (EDGES, 70, (50, 70)),
        (EDGES, 140, (100, 140)),
        ({"longest_edge": 84}, 0, (60, 84)),  # transformers refuses it: resizes by two edges
    ],
)
def test_longest_side_takes_the_place_of_the_edges(
    size: dict[str, int], longest_side: int, input_hw: tuple[int, int], saved: Any, tmp_path: Path
) -> None:
    folder = _changed(saved("detr")[0], tmp_path / "sized", "preprocessor_config.json", {"size": size})
    detector = _named(folder, "detr", longest_side=longest_side).detector("cpu", "exact")
    seen: list[Any] = []
    detector.network.register_forward_pre_hook(
        lambda _, __, kwargs: seen.append(kwargs["pixel_values"].shape[2:]), with_kwargs=True
    )
    with torch.inference_mode():
        detector(PHOTO)
        with pytest.raises(ValueError, match="a photo of 900 x 1 pixels is too narrow"):
            detector(_noise(1, 900))
    assert seen == [input_hw]


def test_names_are_ids_where_a_model_has_none(saved: Any, tmp_path: Path) -> None:
    folder, network, processor = saved("rt_detr")
    labels = {f"LABEL_{at}": at for at in range(len(LABELS))}
    change = {"label2id": labels, "id2label": {str(at): label for label, at in labels.items()}}
    model = _named(_changed(folder, tmp_path / "bare", "config.json", change), "rt_detr")
    assert model.names() is None
    _, bare = _bare("rt_detr", network, processor)
    assert _detected(model).class_ids.tolist() == bare["labels"].tolist()


@pytest.mark.parametrize(
    "family, queries, words",
    [
        ("detr", ("cat",), "has its own classes and takes no --queries"),
        ("owlvit", (), "looks for what --queries names"),
        ("owlvit", ("cat", "an overlong query"), "'an overlong query' has 17 tokens; at most 16 fit"),
        ("grounding_dino", ("cat", "zebra"), "'zebra' has no word that its tokenizer knows"),
        ("grounding_dino", ("cat", "st. bernard"), "'st. bernard': a dot ends a query"),
        # 24 tokens: two ends, and two for each query
        ("grounding_dino", tuple(string.ascii_lowercase), "26 queries have 54 tokens .* first 11,"),
        ("grounding_dino", ("a " * 22,), "has 25 tokens; at most 24 fit"),
        # 77 tokens: two ends, the six letters of "detect", a dot, and two for each query less one comma
        ("omdet_turbo", tuple(string.ascii_lowercase * 2), "52 queries have 112 tokens .* first 34,"),
    ],
)
def test_queries_that_do_not_fit_are_refused(family: str, queries: tuple[str, ...], words: str, saved: Any) -> None:
    model = NamedModel(f"hf:{saved(family)[0]}", queries=queries).opened()
    for call in (model.names, lambda: model.detector("cpu", "exact")):
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.parametrize(
    "family, name, change, words",
    [
        ("detr", "preprocessor_config.json", {"size": {"height": 10**6, "width": 10**6}}, "expected 1 to 8192 pixels"),
        (
            "detr",
            "preprocessor_config.json",
            {"pad_size": {"height": 10**6, "width": 9}},
            "pad_size has height 1000000",
        ),
        (
            "detr",
            "preprocessor_config.json",
            {"image_processor_type": "CLIPImageProcessor"},
            "is no processor of a detr",
        ),
        ("detr", "preprocessor_config.json", {"size": {"height": 9.5, "width": 9}}, "size has height 9.5; expected"),
        ("detr", "preprocessor_config.json", {"size": "large"}, "no network that runs"),
        ("detr", "preprocessor_config.json", {"size": {"shortest_edge": 64}}, "no network that runs"),
        ("detr", "preprocessor_config.json", {"image_mean": [0.5, 0.5]}, "no network that runs"),
        ("owlvit", "processor_config.json", {"do_center_crop": True}, "cuts out the middle"),
        ("detr", "config.json", {"model_type": "vit"}, "vit is no detector that is known here"),
    ],
)
def test_settings_that_make_no_detector_are_refused(
    family: str, name: str, change: dict[str, Any], words: str, saved: Any, tmp_path: Path
) -> None:
    model = _named(_changed(saved(family)[0], tmp_path / "changed", name, change), family)
    with pytest.raises(ValueError, match=words) as error:
        model.detector("cpu", "exact")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("family", ["owlv2", "grounding_dino"])
def test_a_tokenizer_without_its_file_is_refused(family: str, saved: Any, tmp_path: Path) -> None:
    """For transformers it is one without words, for which all queries are one."""
    shutil.copytree(saved(family)[0], tmp_path / "copy")
    (tmp_path / "copy" / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="'cat' has no word that its tokenizer knows"):
        _named(tmp_path / "copy", family).names()


@pytest.mark.parametrize("more", [{}, {"backbone_kwargs": {"in_chans": 3, "out_indices": [1, 2, 3, 4]}}])
def test_a_backbone_of_timm_is_one_however_it_is_written(
    more: Any, saved: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """Files of before version 5 of transformers, which today asks the hub what their name means."""
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the hub was asked"))
    folder = saved("detr_of_timm")[0]
    older = {"backbone_config": None, "backbone": "test_resnet", "use_timm_backbone": True, **more}
    model = _named(_changed(folder, tmp_path / "older", "config.json", older), "detr")
    _same(_detected(model).vectors, _detected(_named(folder, "detr")).vectors)
    monkeypatch.setattr("roibeam.extraction.adapters.hugging_face.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"timm, which is not installed: pip install 'roibeam\[timm\]', or name"):
        model.names()


def test_nothing_is_loaded_from_elsewhere(saved: Any, tmp_path: Path) -> None:
    shutil.copytree(saved("owlv2")[0], tmp_path / "copy")
    path = tmp_path / "copy" / "processor_config.json"
    elsewhere = {"audio_tokenizer_class": "DacModel", "audio_tokenizer_name_or_path": str(tmp_path / "elsewhere")}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"audio_tokenizer": elsewhere}))
    with pytest.raises(OSError, match="elsewhere"):
        hf.AutoProcessor.from_pretrained(tmp_path / "copy", local_files_only=True)
    _named(tmp_path / "copy", "owlv2").detector("cpu", "exact")


def test_longest_side_and_names_must_fit(saved: Any) -> None:
    with pytest.raises(ValueError, match="its input is of one size"):
        _named(saved("rt_detr")[0], "rt_detr", longest_side=64).detector("cpu", "exact")
    with pytest.raises(ValueError, match="has 3 classes; 2 names were given"):
        _named(saved("detr")[0], "detr", class_names=("a", "b")).detector("cpu", "exact")
