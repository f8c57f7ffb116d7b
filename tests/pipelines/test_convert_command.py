"""`roibeam convert`: one file of a detector in, one of another family out; an official file of a model to our folder
and back, bit for bit; and one line for everything that cannot be."""

import json
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_commands import Cli, ok, refused

from roibeam.extraction.detector import Detector
from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.network.state import weights_digest
from roibeam.extraction.weights.loading import build_detector
from roibeam.features.safe_pickle import load_pickle
from roibeam.model.interbert.model import InterBertConfig, InterBertForPreTraining
from roibeam.model.vilbert.encoder import ViLbertConfig
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.model.vilbert.single_stream import SingleStreamConfig, SingleStreamForPreTraining
from roibeam.model.visualbert.model import VisualBertConfig, VisualBertForPreTraining
from roibeam.model.vlbert.config import vlbert_config, vlbert_task_config
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.model.vlbert.tasks import VLBertForVqa
from roibeam.pipelines.training.model_files.model_checkpoint import load_model
from roibeam.pipelines.training.model_files.model_conversion import convert_model
from roibeam.pipelines.training.model_files.published_models import writer_of

SMALL = ("--detector", "small", "--set", "detector.base_channels=4", "--set", "detector.rpn_hidden_channels=8")


@pytest.fixture(scope="module")
def detector() -> Detector:
    config = type(CONFIGS["small"])(**{**vars(CONFIGS["small"]), "base_channels": 4, "rpn_hidden_channels": 8})
    return build_detector(config, weights="random:1")


@pytest.fixture
def weights(tmp_path: Path, detector: Detector) -> Path:
    path = tmp_path / "a.pth"
    torch.save({"model": detector.state_dict()}, path)
    return path


def test_round_the_families(tmp_path: Path, weights: Path, detector: Detector, roibeam: Cli) -> None:
    digest = weights_digest(detector.state_dict())
    for source, target, tensors in (
        (weights, "b.bin", 281 + 53), ("b.bin", "c.pkl", 281), ("c.pkl", "d.safetensors", 281),
        ("d.safetensors", "e.pkl", 281),
    ):  # fmt: skip
        result = ok(roibeam("convert", tmp_path / source, tmp_path / target, *SMALL))
        assert result.out.count(digest) == 2 and "(equal)" in result.out
        assert f"{tensors} tensors, read back and compared" in result.out
        added = "no anchors in the file: those of hf written, they will override --conventions" in result.out
        assert added == (source == weights)  # the later ones bring those
    assert weights_digest(load_file(tmp_path / "d.safetensors")) == digest
    assert (tmp_path / "c.pkl").read_bytes() == (tmp_path / "e.pkl").read_bytes()
    assert (tmp_path / "c.pkl").stat().st_mode == weights.stat().st_mode  # as readable as any file
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pth", "b.bin", "c.pkl", "d.safetensors", "e.pkl"]


def test_a_pickle_for_detectron2_is_read_by_pickle_itself(
    tmp_path: Path, weights: Path, detector: Detector, roibeam: Cli
) -> None:
    roibeam("convert", weights, tmp_path / "a.pkl", *SMALL)
    data = (tmp_path / "a.pkl").read_bytes()
    assert b"numpy._core" not in data  # numpy 1 does not have it
    content = pickle.loads(data, encoding="latin1")
    assert set(content) == {"model", "__author__"} == set(load_pickle(tmp_path / "a.pkl"))
    state = detector.state_dict()
    assert all((content["model"][name] == tensor.numpy()).all() for name, tensor in state.items())


def test_milvlg_and_back_rounds_box_deltas(tmp_path: Path, weights: Path, detector: Detector, roibeam: Cli) -> None:
    options = (*SMALL, "--to", "milvlg", "--json")
    result = roibeam("convert", weights, tmp_path / "m.pth", *options)
    done = json.loads(result.out)
    assert done["format"] == "milvlg" and "box deltas scaled" in done["changes"]
    assert 0 < done["largest_change"] < 2**-22 and done["digest_before"] != done["digest_after"]
    result = roibeam("convert", tmp_path / "m.pth", tmp_path / "n.safetensors", *SMALL)
    assert "MILVLG bottom-up-attention.pytorch, caffe mode; 5 names changed" in result.out
    found = load_file(tmp_path / "n.safetensors")
    for name, tensor in detector.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=2**-22 if "bbox_pred" in name else 0, atol=0)
    # The anchors that the network was trained with stay with it.
    anchors = found["proposal_generator.anchor_generator.cell_anchors.0"]
    torch.testing.assert_close(anchors, detector.proposal_generator.cell_anchors)


def test_the_resnet_of_vl_bert(tmp_path: Path, weights: Path, detector: Detector, roibeam: Cli) -> None:
    result = roibeam("convert", weights, tmp_path / "r.model", *SMALL)
    assert "318 tensors" in result.out and "(equal)" in result.out
    found = torch.load(tmp_path / "r.model")
    assert torch.equal(found["layer4.0.conv1.weight"], detector.state_dict()["roi_heads.res5.0.conv1.weight"])
    result = roibeam("convert", tmp_path / "r.model", tmp_path / "r.safetensors", *SMALL)
    assert "ResNet-50 alone in torchvision's names; 265 names changed" in result.out
    ok(roibeam("convert", tmp_path / "r.safetensors", tmp_path / "s.model", *SMALL))
    result = roibeam("convert", tmp_path / "r.model", tmp_path / "r.pkl", *SMALL)
    assert result.code == 1 and "a ResNet alone; it can become safetensors or vlbert" in result.err


@pytest.mark.parametrize(
    "source, target, options, words",
    [
        ("a.pth", "a.onnx", SMALL, "suffix '.onnx' is no format that is written; there are safetensors (.safetensors)"),
        ("a.pth", "b.pkl", (*SMALL, "--to", "hf"), "hf files end in .bin; rename it, or choose another --to"),
        ("a.pth", "b.pkl", (*SMALL, "--to", "onnx"), "--to 'onnx' is no format"),
        ("a.pth", "a.pth", SMALL, "is there already; name another file"),
        ("nowhere.pth", "b.pkl", SMALL, "no such file"),
        ("a.pth", "b.pkl", ("--detector", "large"), "--detector 'large' is unknown"),
        ("a.pth", "b.pkl", ("--detector", "small"), "misshapen"),
        ("a.pth", "b.pkl", (), "--detector"),
        ("a.pth", "missing/b.pkl", SMALL, "missing/b.pkl: there is no folder"),
        ("part.safetensors", "b.pkl", SMALL, "missing: "),
        ("hostile.pkl", "b.safetensors", SMALL, "wants to run"),
    ],
)
def test_a_detector_that_cannot_be_converted_is_one_line(
    tmp_path: Path, weights: Path, detector: Detector, roibeam: Cli, source: str, target: str,
    options: tuple[str, ...], words: str,
) -> None:  # fmt: skip
    state = {name: value for name, value in detector.state_dict().items() if "res4" not in name}
    save_file(state, tmp_path / "part.safetensors")
    (tmp_path / "hostile.pkl").write_bytes(b"cos\nsystem\n(S'exit 3'\ntR.")
    before = sorted(path.name for path in tmp_path.iterdir())
    result = roibeam("convert", tmp_path / source, tmp_path / target, *options)
    assert result.code == 1 and words in result.err, result.err
    assert len(result.err.strip().splitlines()) == 1 and not result.out
    assert sorted(path.name for path in tmp_path.iterdir()) == before


SIZES = {
    "vocab_size": 30, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 20,
    "max_position_embeddings": 12, "region_feature_size": 6, "region_target_size": 5,
}  # fmt: skip
WORDY = {name: value for name, value in SIZES.items() if name != "region_target_size"}
VLBERT = WORDY | {"coordinate_embedding_size": 16}
IMAGE_SIZES = {
    "image_hidden_size": 16, "image_num_hidden_layers": 1, "image_intermediate_size": 8, "co_attention_size": 16,
}  # fmt: skip
CO_LAYERS: dict[str, Any] = {"text_co_attention": (1,), "image_co_attention": (0,)}


@pytest.fixture
def official(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = ViLbertForPreTraining(ViLbertConfig(**SIZES, **IMAGE_SIZES, **CO_LAYERS))
    parameters = writer_of(model).to_official(model)
    # Every published file has these, and nothing reads them.
    parameters["bert.encoder.c_layer.0.biOutput.q_dense1.weight"] = torch.zeros(16, 16)
    torch.save(parameters, tmp_path / "pytorch_model_9.bin")
    return tmp_path / "pytorch_model_9.bin"


def test_there_and_back(official: Path, tmp_path: Path, roibeam: Cli) -> None:
    there = ok(roibeam("convert", official, tmp_path / "ours", "--to", "roibeam"))
    assert "ViLbertForPreTraining; 1 parameter that nothing reads left out (biOutput.q_dense)" in there.out
    assert "read back and compared (equal)" in there.out
    told = "num_attention_heads 1, image_num_attention_heads 8, co_attention_num_heads 8, text_co_attention (1,)"
    assert f"taken as published, since a file lacks them: {told}" in there.out and "--config" in there.out
    assert sorted(path.name for path in (tmp_path / "ours").iterdir()) == ["config.json", "model.safetensors"]
    back = roibeam("convert", tmp_path / "ours", tmp_path / "again.bin", "--to", "official", "--json")
    assert json.loads(back.out)["model"] == "ViLbertForPreTraining"
    before, after = torch.load(official), torch.load(tmp_path / "again.bin")
    assert before.keys() - after.keys() == {"bert.encoder.c_layer.0.biOutput.q_dense1.weight"}
    assert all(torch.equal(before[name], after[name]) for name in after)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".part")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # its settings lie beside it
        assert load_model(str(tmp_path / "again.bin")).model.config.image_hidden_size == 16
    assert json.loads(back.out)["settings"] == str(tmp_path / "again.bin.json")


@pytest.mark.parametrize("model", ["vilbert", "interbert"])
def test_a_model_without_a_head_for_regions_comes_back_without(model: str, tmp_path: Path, roibeam: Cli) -> None:
    sizes: dict[str, Any] = {**SIZES, "region_loss": "none"}
    if model == "vilbert":
        made: Any = ViLbertForPreTraining(ViLbertConfig(**sizes, **IMAGE_SIZES, **CO_LAYERS))
    else:
        own = {"num_hidden_layers": 6, "text_num_hidden_layers": 1, "image_num_hidden_layers": 1}
        heads = {"image_num_attention_heads": sizes["num_attention_heads"], "pooled_size": 16}
        made = InterBertForPreTraining(InterBertConfig(**(sizes | own | heads | {"image_intermediate_size": 8})))
    made.save_pretrained(tmp_path / "ours")
    ok(roibeam("convert", tmp_path / "ours", tmp_path / "official.bin", "--to", "official"))
    assert load_model(str(tmp_path / "official.bin")).model.config.region_loss == "none"


def test_settings_that_a_file_does_not_keep_are_named(tmp_path: Path, roibeam: Cli) -> None:
    """UCLA's segment of regions is 0; under transformers' names it reads as 1, which is another vector."""
    VisualBertForPreTraining(VisualBertConfig(**WORDY)).save_pretrained(tmp_path / "ours")
    done = ok(roibeam("convert", tmp_path / "ours", tmp_path / "a.bin", "--to", "official"))
    assert "a.bin.json: settings that the file does not show (here first_region_segment 0, else 1)" in done.out
    (tmp_path / "a.bin.json").unlink()
    with pytest.warns(UserWarning, match="regions are segment 1, .*taken as published.* num_attention_heads 1"):
        assert load_model(str(tmp_path / "a.bin")).model.config.first_region_segment == 1


@pytest.mark.parametrize("image_size", [16, 20])  # the eight heads that are assumed do not divide 20
def test_settings_that_no_shape_shows_come_back(image_size: int, tmp_path: Path, roibeam: Cli) -> None:
    """Of a model with other heads than published ones the official file gave other numbers, without a word."""
    sizes: dict[str, Any] = {**SIZES, "hidden_size": 80, "num_attention_heads": 4, "image_num_attention_heads": 4}
    widths = IMAGE_SIZES | {"image_hidden_size": image_size, "co_attention_num_heads": 2}
    co_layers = CO_LAYERS | {"text_co_attention": (0,)}
    made = ViLbertForPreTraining(ViLbertConfig(**sizes, **widths, **co_layers, whole_image_count="visible"))
    made.save_pretrained(tmp_path / "ours")
    ok(roibeam("convert", tmp_path / "ours", tmp_path / "a.bin", "--to", "official"))
    again = load_model(str(tmp_path / "a.bin"))
    fields = made.config.own_fields()
    assert [getattr(again.model.config, name) for name in fields] == [getattr(made.config, name) for name in fields]
    assert again.changes == (f"settings read from {tmp_path / 'a.bin.json'}",) and not again.assumed
    assert "a.bin.json" in roibeam("convert", tmp_path / "a.bin", tmp_path / "back", "--to", "roibeam").out
    assert load_model(str(tmp_path / "back")).model.config.num_attention_heads == 4
    (tmp_path / "b.bin").write_bytes((tmp_path / "a.bin").read_bytes())
    assert load_model(str(tmp_path / "b.bin"), options=tmp_path / "a.bin.json").model.config == again.model.config


def test_settings_of_another_system_are_refused_with_both_names(official: Path, tmp_path: Path) -> None:
    VisualBertForPreTraining(VisualBertConfig(**WORDY)).save_pretrained(tmp_path / "ours")
    with pytest.raises(ValueError, match=r"parameters are of ViLBERT, .*config.json is of a VisualBertForPreTraining"):
        load_model(str(official), options=tmp_path / "ours" / "config.json")


def test_small_sizes_of_vlbert_go_to_the_official_layout(tmp_path: Path, roibeam: Cli) -> None:
    """Where a learned feature of masked regions shows its width; the file of anything else is taken for 2048."""
    VLBertForPreTraining(vlbert_config(**VLBERT, num_region_labels=4)).save_pretrained(tmp_path / "ours")
    done = ok(roibeam("convert", tmp_path / "ours", tmp_path / "a.bin", "--to", "official"))
    assert "the official code does not: it takes coordinates of 2048 and features of 2048" in done.out
    config = load_model(str(tmp_path / "a.bin")).model.config
    assert (config.coordinate_embedding_size, config.region_feature_size) == (16, 6)


def test_a_vlbert_goes_to_a_file_of_its_release(official: Path, tmp_path: Path, roibeam: Cli) -> None:
    """As its trainer saves: under state_dict, names after module."""
    VLBertForPreTraining(vlbert_config(**VLBERT, num_region_labels=4)).save_pretrained(tmp_path / "ours")
    for name in ("a.bin", "a.model"):
        assert roibeam("convert", tmp_path / "ours", tmp_path / name, "--to", "official").code == 0
    flat, saved = (torch.load(tmp_path / name) for name in ("a.bin", "a.model"))
    assert list(saved["state_dict"]) == [f"module.{name}" for name in flat]
    models = [load_model(str(tmp_path / name)).model.state_dict() for name in ("a.bin", "a.model", "ours")]
    assert all(torch.equal(tensor, each[name]) for name, tensor in models[2].items() for each in models[:2])
    other = refused(roibeam("convert", official, tmp_path / "b.model", "--to", "official"))
    assert "files in .model are VL-BERT's, this is a ViLBERT; name a .bin file" in other


@pytest.mark.parametrize(
    "model, words",
    [
        (lambda: VLBertForVqa(vlbert_task_config("vqa", **VLBERT, num_answers=3)), "coordinate_embedding_size 16; "),
        (lambda: VLBertForPreTraining(vlbert_config("release-e2e", **VLBERT)), "official layout holds 2048 alone"),
        (lambda: VLBertForPreTraining(vlbert_config("paper", **VLBERT)), "has no name in a checkpoint of VL-BERT"),
        (lambda: InterBertForPreTraining(InterBertConfig(**SIZES)), "has 2 joint layers (num_hidden_layers)"),
    ],
)
def test_sizes_that_the_official_layout_does_not_hold(
    model: Callable[[], Any], words: str, tmp_path: Path, roibeam: Cli
) -> None:
    model().save_pretrained(tmp_path / "ours")
    result = roibeam("convert", tmp_path / "ours", tmp_path / "a.bin", "--to", "official")
    assert words in refused(result) and result.err.count("\n") == 1 and ".part" not in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_an_official_file_of_other_sizes_is_refused_in_one_line(tmp_path: Path) -> None:
    model = VLBertForVqa(vlbert_task_config("vqa", **VLBERT, num_answers=3))
    torch.save(writer_of(model).to_official(model), tmp_path / "a.bin")
    with pytest.raises(ValueError, match=r"coordinates and feature are 22 numbers together; .* so 2048 of them"):
        load_model(str(tmp_path / "a.bin"))


@pytest.mark.parametrize(
    "source, target, options, words",
    [
        ("pytorch_model_9.bin", "pytorch_model_9.bin", ("--to", "roibeam"), "is there already"),
        ("pytorch_model_9.bin", "no/ours", ("--to", "roibeam"), "there is no folder"),
        ("pytorch_model_9.bin", "a.onnx", ("--to", "official"), "official checkpoints end in .bin"),
        ("pytorch_model_9.bin", "ours", ("--to", "roibeam", "--set", "x.y=1"), "--set is for a detector's sizes"),
        ("pytorch_model_9.bin", "a.pkl", ("--config", "x.json"), "give --to roibeam or --to official, too"),
        ("baseline", "a.bin", ("--to", "official"), "SingleStreamForPreTraining has no official checkpoints"),
        ("apart", "a.bin", ("--to", "official"), "would look like InterBERT's"),
        ("joint", "ours", ("--to", "roibeam"), "model.safetensors is missing"),
        ("other.pth", "ours", ("--to", "roibeam"), "of no published model"),
    ],
)
def test_a_model_that_cannot_be_converted_is_one_line(
    source: str, target: str, options: tuple[str, ...], words: str, official: Path, tmp_path: Path,
    roibeam: Cli,
) -> None:  # fmt: skip
    SingleStreamForPreTraining(SingleStreamConfig(**SIZES)).save_pretrained(tmp_path / "baseline")
    apart = ViLbertConfig(**SIZES, **IMAGE_SIZES, text_co_attention=(), image_co_attention=(), with_co_attention=False)
    ViLbertForPreTraining(apart).save_pretrained(tmp_path / "apart")
    (tmp_path / "joint").mkdir()
    (tmp_path / "joint" / "config.json").write_text('{"format": 1, "end_to_end": {}}')
    torch.save({"a": torch.zeros(1)}, tmp_path / "other.pth")
    before = sorted(tmp_path.iterdir())
    result = roibeam("convert", tmp_path / source, tmp_path / target, *options)
    assert words in refused(result) and result.err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_a_direction_of_another_name_writes_nothing(official: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'huggingface'; there are roibeam, official, detector"):
        convert_model(str(official), tmp_path / "out", to="huggingface")
    assert not (tmp_path / "out").exists()
