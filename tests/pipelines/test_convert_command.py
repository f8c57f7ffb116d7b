"""`roibeam convert`: one file of a family in, one of another out, and one line for everything that cannot be."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_commands import Cli, ok

from roibeam.extraction.detector import Detector
from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.network.state import weights_digest
from roibeam.extraction.weights.loading import build_detector
from roibeam.features.safe_pickle import load_pickle

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
def test_what_cannot_be_is_said_in_one_line(
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
