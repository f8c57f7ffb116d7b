"""Reference arrays of VL-BERT with other options than the project's, made by running the official code from a checkout.

    python bench/vlbert_cases.py --vl-bert CHECKOUT --goldens tests/goldens/vlbert OUT
    python tests/conformance OUT

CHECKOUT is jackroos/VL-BERT at 4373674; nothing of it is copied here. Inputs are those of the project's reference
arrays, parameters are drawn anew. What it needs and may lack gets a stand-in: its compiled RoIAlign is torchvision's,
which is equal by the notes beside the arrays; its tokenizer gives the ids of the special pieces.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from torch import Tensor, nn

IDS = {"[PAD]": 0, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}
MODULES = {
    "ResNetVLBERTForPretraining": ("pretrain.modules.resnet_vlbert_for_pretraining", "ResNetVLBERTForPretraining"),
    "ResNetVLBERTForPretrainingMultitask": (
        "pretrain.modules.resnet_vlbert_for_pretraining_multitask",
        "ResNetVLBERTForPretrainingMultitask",
    ),
    **{
        f"{task} ResNetVLBERT": (f"{task}.modules.resnet_vlbert_for_{task}", "ResNetVLBERT")
        for task in ("vqa", "vcr", "refcoco")
    },
}
# What the modules read and no reference config says.
DEFAULTS = {
    "IMAGE_PRETRAINED": "",
    "IMAGE_PRETRAINED_EPOCH": 0,
    "BERT_MODEL_NAME": "",
    "BERT_PRETRAINED": "",
    "BERT_PRETRAINED_EPOCH": 0,
    "OUTPUT_CONV5": False,
    "BLIND": False,
    "CLASSIFIER_DROPOUT": 0.1,
    "CNN_REG_DROPOUT": 0.0,
    "CNN_LOSS_TOP": False,
    "FOR_MASK_VL_MODELING_PRETRAIN": False,
    "NO_OBJ_ATTENTION": False,
}
# name -> reference case whose inputs it takes, NETWORK, VLBERT
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "prec_again": ("pretrain_prec", {}, {}),
    "prec_scale": (
        "pretrain_prec",
        {"IMAGE_FINAL_DIM": 48},
        {"visual_ln": False, "hidden_size": 48, "visual_size": 48, "num_attention_heads": 6, "hidden_act": "relu"},
    ),
    "prec_wide": ("pretrain_prec", {"IMAGE_FINAL_DIM": 24}, {"hidden_size": 40, "visual_size": 24}),
    "prec_swish": ("pretrain_prec", {}, {"hidden_act": "swish", "num_hidden_layers": 2}),
    "prec_no_relationship": ("pretrain_prec", {"WITH_REL_LOSS": False}, {"with_pooler": False}),
    "prec_no_regions": ("pretrain_prec", {"WITH_MVRC_LOSS": False}, {}),
    "prec_no_words": ("pretrain_prec", {"WITH_MLM_LOSS": False}, {}),
    "prec_rows": (
        "pretrain_prec",
        {"MLM_LOSS_NORM_IN_BATCH_FIRST": True, "MVRC_LOSS_NORM_IN_BATCH_FIRST": True},
        {},
    ),
    "multitask_rows": (
        "pretrain_prec_multitask",
        {"MLM_LOSS_NORM_IN_BATCH_FIRST": True, "MVRC_LOSS_NORM_IN_BATCH_FIRST": True},
        {},
    ),
    "multitask_relationship": ("pretrain_prec_multitask", {"WITH_REL_LOSS": True}, {"with_pooler": True}),
    "multitask_scale": ("pretrain_prec_multitask", {}, {"visual_ln": False}),
    "vqa_1fc": ("vqa", {"CLASSIFIER_TYPE": "1fc", "NO_GROUNDING": True}, {}),
    "vqa_2fc": ("vqa", {"CLASSIFIER_TYPE": "2fc", "IMAGE_FINAL_DIM": 32}, {"visual_size": 32, "hidden_size": 48}),
    "e2e_again": ("pretrain_e2e_narrow", {}, {}),
    "e2e_halved": (
        "pretrain_e2e_narrow",
        {"IMAGE_C5_DILATED": False, "IMAGE_STRIDE_IN_1x1": False, "IMAGE_FROZEN_BACKBONE_STAGES": [1, 2, 3, 5]},
        {},
    ),
    "e2e_multitask": ("pretrain_e2e_narrow", {"MULTITASK": True}, {}),
    "e2e_multitask_learned": ("pretrain_e2e_narrow", {"MULTITASK": True, "MASK_RAW_PIXELS": False}, {}),
    "e2e_captions_shown": ("pretrain_e2e_narrow", {"MASK_RAW_PIXELS": False}, {}),
    "refcoco_halved": ("refcoco", {"IMAGE_C5_DILATED": False}, {}),
    "vcr_softmax": (
        "vcr",
        {"CLASSIFIER_SIGMOID": False, "ENABLE_CNN_REG_LOSS": False, "NO_GROUNDING": True, "ANSWER_FIRST": True},
        {},
    ),
    "vcr_classes": ("vcr", {}, {"object_word_embed_mode": 1}),
    "vcr_weighted": (
        "vcr",
        {
            "CLASSIFIER_SIGMOID_LOSS_POSITIVE_WEIGHT": 3.0,
            "CNN_LOSS_WEIGHT": 0.3,
            "ANS_LOSS_WEIGHT": 2.0,
            "QA_ONE_SENT": True,
            "CLASSIFIER_TYPE": "2fc",
            "CLASSIFIER_HIDDEN_SIZE": 20,
        },
        {},
    ),
}
OUTPUTS = (
    *("relationship_logits", "mlm_logits", "mlm_logits_wvc", "mlm_logits_aux", "mvrc_logits", "label_logits"),
    *("relationship_loss", "mlm_loss", "mlm_loss_wvc", "mlm_loss_aux", "mvrc_loss", "ans_loss", "cls_loss"),
    "cnn_regularization_loss",
)


class Options(dict[str, Any]):
    """What easydict is for."""

    __getattr__ = dict.__getitem__


class _Tokenizer:
    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]:
        return [IDS[token] for token in tokens]


class _RoIAlign(nn.Module):
    def __init__(self, output_size: Any, spatial_scale: float, sampling_ratio: int = 1) -> None:
        super().__init__()
        self.arguments = (output_size, spatial_scale, sampling_ratio)

    def forward(self, maps: Tensor, rois: Tensor) -> Tensor:
        return torchvision.ops.roi_align(maps, rois, *self.arguments, aligned=False)


def import_official(checkout: Path) -> None:
    """Puts the checkout first, with stand-ins for what is compiled, gone or not needed."""
    sys.path.insert(0, str(checkout))
    stand_ins: dict[str, dict[str, Any]] = {
        "common.lib.roi_pooling": {"__path__": []},
        "common.lib.roi_pooling.roi_align": {"ROIAlign": _RoIAlign},
        "common.lib.roi_pooling.roi_pool": {"ROIPool": object},
        "common.nlp.roberta": {"RobertaTokenizer": object},
        # Some environments have a package of this name.
        "vcr": {"__path__": [str(checkout / "vcr")]},
    }
    for name in ("boto3", "botocore", "botocore.exceptions"):
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            stand_ins[name] = {"__path__": [], "ClientError": Exception}
    for name, content in stand_ins.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        sys.modules[name] = module


def build(name: str, network: dict[str, Any], vlbert: dict[str, Any]) -> nn.Module:
    """The official model in evaluation mode, with drawn parameters."""
    module = importlib.import_module(MODULES[name][0])
    module.BertTokenizer = types.SimpleNamespace(from_pretrained=lambda *_: _Tokenizer())
    kind = getattr(module, MODULES[name][1])
    kind.init_weight = lambda self: None  # would load files
    from_pixels = not network["IMAGE_FEAT_PRECOMPUTED"]
    if from_pixels:
        _narrow()
    config = Options(NETWORK=Options(DEFAULTS | network, VLBERT=Options(vlbert)), DATASET=Options(ANSWER_VOCAB_SIZE=50))
    model: nn.Module = kind(config)
    if from_pixels:
        model.image_feature_extractor.obj_downsample[1] = nn.Linear(2048 + 128, network["IMAGE_FINAL_DIM"])
        if hasattr(model, "object_mask_visual_embedding"):
            model.object_mask_visual_embedding = nn.Embedding(1, 128)
    _draw(model)
    model.eval()
    return model


def _narrow() -> None:
    """A sixteenth of the width and one block in each stage, as the reference case "narrow"."""
    fast_rcnn = importlib.import_module("common.fast_rcnn")
    resnet = importlib.import_module("common.backbone.resnet.resnet")

    def make(*, expose_stages: list[int], stride_in_1x1: bool, **_: Any) -> nn.Module:
        network = resnet.ResNet(resnet.Bottleneck, [1, 1, 1], expose_stages=expose_stages, stride_in_1x1=stride_in_1x1)
        network.inplanes, plain = 64, network._make_layer
        for number, (planes, stride) in enumerate(((4, 1), (8, 2), (16, 2)), 1):
            layer = plain(resnet.Bottleneck, planes, 1, stride=stride, stride_in_1x1=stride_in_1x1)
            setattr(network, f"layer{number}", layer)
        network._make_layer = lambda block, planes, blocks, **more: plain(block, planes // 16, blocks, **more)
        return network

    fast_rcnn.resnet101 = make


@torch.no_grad()
def _draw(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(7)
    for name, tensor in model.state_dict().items():
        if name.endswith("num_batches_tracked") or ".head.0." in name or name.endswith("predictions.decoder.weight"):
            continue
        values = torch.randn(tensor.shape, generator=generator)
        if "obj_downsample" in name:
            values *= 0.02
        elif name.endswith("running_var"):
            values = 0.8 + 0.2 * values.abs()
        elif (name.endswith("weight") and tensor.ndim == 1) or "visual_scale" in name:
            values = 1 + 0.1 * values
        elif tensor.ndim == 4:
            values *= (1.2 / tensor[0].numel()) ** 0.5 * (0.01 if tensor.shape[1] == 3 else 1.0)
        else:
            values *= 0.12 if tensor.ndim > 1 else 0.05
        tensor.copy_(values.bfloat16().float())


def run(model: nn.Module, name: str, inputs: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    shared = [inputs.get("image"), inputs["boxes"], inputs.get("masks")]
    if name.startswith("ResNet"):
        order = ("im_info", "text", "relationship_label", "mlm_labels", "mvrc_ops", "mvrc_labels")
        aux = [inputs["aux_text"], inputs["aux_mlm_labels"]] if "Multitask" in name else []
        return model(*shared[:2], *(inputs[each] for each in order), *aux)
    if name.startswith("vcr"):
        answers = (inputs["answer_choices"], None, inputs["answer_label"])
        return model.train_forward(*shared, inputs["question"], None, *answers, inputs["im_info"])
    text = inputs["question"] if name.startswith("vqa") else inputs["expression"]
    return model.train_forward(*shared[:2], inputs["im_info"], text, inputs["label"])


def make_case(goldens: Path, base: str, network: dict[str, Any], vlbert: dict[str, Any]) -> dict[str, np.ndarray]:
    with np.load(goldens / f"{base}.npz") as file:
        arrays = {name: file[name] for name in file.files if name.startswith("in/")}
        config = json.loads(str(file["config_json"]))
    network = dict(network)
    if not network.get("MASK_RAW_PIXELS", True):  # the release's data set leaves the pixels as they are then
        arrays["in/image"] = arrays["in/image_unmasked"]
    if network.pop("MULTITASK", False):
        config["class"] = "ResNetVLBERTForPretrainingMultitask"
        with np.load(goldens / "pretrain_prec_multitask.npz") as file:
            arrays |= {name: file[name] for name in ("in/aux_text", "in/aux_mlm_labels")}
    config = {
        name: config[name]
        for name in ("NETWORK", "VLBERT", "class", "token_ids", "ANSWER_VOCAB_SIZE")
        if name in config
    }
    config["NETWORK"] |= network
    config["VLBERT"] |= vlbert
    model = build(config["class"], config["NETWORK"], config["VLBERT"])
    arrays |= {
        f"param/{name}": tensor.numpy().copy()
        for name, tensor in model.state_dict().items()
        if not name.endswith("num_batches_tracked") and ".head.0." not in name
    }
    inner = getattr(model.vlbert, "_module", model.vlbert)
    seen: dict[str, Tensor] = {}
    embed = inner.embedding

    def embedding(*given: Any) -> Any:
        found = embed(*given)
        seen["embedding_output"] = found[0]
        return found

    inner.embedding = embedding
    model.image_feature_extractor.register_forward_hook(
        lambda _m, _i, found: seen.update({name: found[name] for name in ("obj_reps", "obj_reps_raw")})
    )
    inner.encoder.layer[-1].register_forward_hook(lambda _m, _i, output: seen.update(encoded_last=output))
    # The code writes into its inputs.
    outputs, loss = run(
        model,
        config["class"],
        {name[3:]: torch.from_numpy(array.copy()) for name, array in arrays.items() if name[:3] == "in/"},
    )
    loss.backward()
    seen |= {name: outputs[name] for name in OUTPUTS if outputs.get(name) is not None} | {"loss": loss}
    arrays |= {f"out/{name}": tensor.detach().numpy() for name, tensor in seen.items()}
    for number, (name, parameter) in enumerate(model.named_parameters()):
        if parameter.grad is None or ".head.0." in name:
            continue
        arrays[f"gradnorm/{name}"] = parameter.grad.norm().numpy()
        if number % 4 == 0 and not name.endswith("self.key.bias"):
            arrays[f"grad/{name}"] = parameter.grad.flatten()[:: -(-parameter.grad.numel() // 256)].numpy()
    return arrays | {"config_json": np.array(json.dumps(config))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--vl-bert", type=Path, required=True, help="checkout of jackroos/VL-BERT")
    parser.add_argument("--goldens", type=Path, required=True, help="the project's reference arrays of VL-BERT")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    import_official(arguments.vl_bert)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, (base, network, vlbert) in CASES.items():
        np.savez(arguments.out / f"{name}.npz", **make_case(arguments.goldens, base, network, vlbert))
        print(arguments.out / f"{name}.npz")


if __name__ == "__main__":
    main()
