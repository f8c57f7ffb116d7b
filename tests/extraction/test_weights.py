"""Weights: strict loading, its words, hostile files, the digest, the random recipe."""

import dataclasses
import pickle
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from small_files import Hostile
from small_networks import TINY, with_counters

from roibeam.extraction.detector import Detector
from roibeam.extraction.network.boxes import cell_anchors
from roibeam.extraction.network.config import CONFIGS, DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.network.state import CELL_ANCHORS, random_state, weights_digest
from roibeam.extraction.weights.loading import build_detector, convert_weights, load_weights, read_tensors

NAME = "roi_heads.box_predictor.cls_score.weight"


@pytest.fixture
def detector():
    return Detector(TINY)


@pytest.fixture
def state(detector):
    return random_state({name: tuple(t.shape) for name, t in detector.state_dict().items()}, seed=5)


def same(state, other):
    return state.keys() == other.keys() and all(torch.equal(state[name], other[name]) for name in state)


def test_random_weights_depend_on_name_shape_and_seed_only(detector, state):
    load_weights("random:5", detector)
    assert same(detector.state_dict(), state)
    load_weights("random:6", detector)
    assert not torch.equal(detector.state_dict()[NAME], state[NAME])


def test_random_weights_of_a_grid_read_pixels_that_are_divided():
    """Guards the signal of grid-x101: divided twice, it drowns in the biases and all cells are nearly equal."""
    conventions, sizes = CONVENTIONS["grid-x101"], dataclasses.replace(CONFIGS["grid-x101"], base_channels=2)
    pair = [
        Detector(sizes, conventions=each)
        for each in (conventions, dataclasses.replace(conventions, pixel_std=(1.0,) * 3))
    ]
    for each in pair:
        load_weights("random:5", each)
    divided, plain = (each.state_dict()["backbone.stem.conv1.weight"] for each in pair)
    torch.testing.assert_close(divided, plain * torch.tensor(conventions.pixel_std).view(1, 3, 1, 1))


@pytest.mark.parametrize("wrap", ["", "model", "state_dict"])
@pytest.mark.parametrize("suffix", [".pth", ".bin", ".pt"])
def test_torch_files_load(tmp_path, detector, state, wrap, suffix):
    path = tmp_path / f"weights{suffix}"
    torch.save({wrap: state, "epoch": 3} if wrap else state, path)
    load_weights(str(path), detector)
    assert same(detector.state_dict(), state)


def test_digest_is_that_of_the_numbers_not_of_the_file(tmp_path, detector, state):
    anchors = {CELL_ANCHORS: cell_anchors(TINY, CONVENTIONS["hf"])}
    torch.save({"model": with_counters(state) | anchors}, tmp_path / "a.pth")
    save_file(dict(reversed(list(state.items()))), tmp_path / "b.safetensors")
    digests = set()
    for name in ("a.pth", "b.safetensors"):
        load_weights(str(tmp_path / name), detector)
        digests |= {weights_digest(detector.state_dict()), weights_digest(read_tensors(tmp_path / name))}
    assert len(digests) == 1 and len(digests.pop()) == 64
    state[NAME][0, 0] = torch.nextafter(state[NAME][0, 0], torch.tensor(9.0))
    assert weights_digest(state) != weights_digest(detector.state_dict())


def test_half_precision_files_are_widened(tmp_path, detector, state):
    half = {name: tensor.to(torch.bfloat16) for name, tensor in state.items()}
    save_file(half, tmp_path / "half.safetensors")
    load_weights(str(tmp_path / "half.safetensors"), detector)
    assert detector.state_dict()[NAME].dtype is torch.float32
    assert weights_digest(detector.state_dict()) == weights_digest(half)


def refused(tmp_path, detector, content, name="weights.pth"):
    """The error for a file of this content; checks that nothing was loaded."""
    path = tmp_path / name
    torch.save(content, path)
    before = {name: tensor.clone() for name, tensor in detector.state_dict().items()}
    with pytest.raises(ValueError) as error:
        load_weights(str(path), detector)
    assert same(detector.state_dict(), before)
    message = str(error.value)
    assert str(path) in message and "\n" not in message
    return message


def test_every_kind_of_misfit_is_listed_at_once(tmp_path, detector, state):
    gone = [name for name in state if name.startswith("roi_heads.res5")]
    content = {name: tensor for name, tensor in state.items() if name not in gone}
    content["extra.weight"] = torch.zeros(2)
    content[NAME] = torch.zeros(5, 256)
    content["backbone.stem.conv1.weight"] = torch.full_like(state["backbone.stem.conv1.weight"], float("nan"))
    message = refused(tmp_path, detector, content)
    assert f"{len(content)} weights, the network has {len(state)}" in message
    assert f"{len(gone)} missing: " in message and f", ... {len(gone) - 5} more" in message
    assert "1 extra: extra.weight (2,)" in message
    assert f"1 misshapen: {NAME} (5, 256) where the network has (4, 256)" in message
    assert "1 non-finite: backbone.stem.conv1.weight (8, 3, 7, 7)" in message


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_one_bad_number_is_enough(tmp_path, detector, state, value):
    state[NAME][1, 2] = value
    assert "1 non-finite" in refused(tmp_path, detector, state)


def test_one_number_that_stands_for_many_is_refused(tmp_path, detector, state):
    """A file of some kilobytes asked for any memory."""
    assert "its tensors have 4,398,046,511,104 bytes, the file" in refused(
        tmp_path, detector, {NAME: torch.zeros(1).expand(2**20, 2**20)}
    )


@pytest.mark.parametrize(
    "value", [torch.zeros(4, 256, dtype=torch.int64), "text", [1.0], torch.zeros(4, 256).to_sparse()]
)
def test_values_that_are_no_plain_tensors_are_misfits(tmp_path, detector, state, value):
    state[NAME] = value
    assert f"1 misshapen: {NAME}" in refused(tmp_path, detector, state)


@pytest.mark.parametrize(
    "rename, words",
    [
        (lambda name: name.replace("conv", "convolution"), "a relative of this network"),
        (lambda name: f"bert.{name}" if "res" in name else name, "something else: hand over a Faster R-CNN ResNet-C4"),
        (lambda name: f"bert.{name}", "weights of no known family (bert.backbone.stem.conv1.weight, "),
    ],
)
def test_the_error_says_what_the_file_looks_like(tmp_path, detector, state, rename, words):
    assert words in refused(tmp_path, detector, {rename(name): tensor for name, tensor in state.items()})


def test_other_sizes_are_recognised(tmp_path, detector):
    bigger = Detector(DetectorConfig(**{**vars(TINY), "num_classes": 4})).state_dict()
    assert "this architecture at other sizes: choose the config" in refused(tmp_path, detector, bigger)
    assert "holds no weights; hand over a checkpoint" in refused(tmp_path, detector, {})


def test_anchors_in_the_file_must_be_those_of_the_config(tmp_path, detector, state):
    state[CELL_ANCHORS] = cell_anchors(dataclasses.replace(TINY, anchor_sizes=(32, 64, 128, 256)), CONVENTIONS["hf"])
    message = refused(tmp_path, detector, state)
    assert (
        "anchor 9 is [-181.02, -90.51, 181.02, 90.51], the config gives [-362.04, -181.02, 362.04, 181.02], "
        "and no published convention fits" in message
    )
    state[CELL_ANCHORS] = torch.zeros(3, 4)
    assert "(3, 4) where the config gives (12, 4)" in refused(tmp_path, detector, state)


@pytest.mark.parametrize(
    "make", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr, lambda anchors: anchors.to("meta")]
)
@pytest.mark.filterwarnings("ignore:.*Sparse CSR:UserWarning")
def test_anchors_that_are_no_plain_tensor_are_refused(tmp_path, detector, state, make):
    message = refused(tmp_path, detector, {**state, CELL_ANCHORS: make(torch.ones(12, 4))})
    assert "cell_anchors.0 (12, 4) where the config gives (12, 4); set anchor_sizes" in message


def test_names_of_a_file_do_not_reach_the_terminal_raw(tmp_path, detector, state):
    name = "\x1b[2Jevil\nroibeam: all good"
    more = refused(tmp_path, detector, {**state, name: torch.zeros(1)})
    assert r"1 extra: \x1b[2Jevil\nroibeam: all good (1,)" in more
    alone = refused(tmp_path, detector, {name: torch.zeros(1)})
    assert r"no known family (\x1b[2Jevil\nroibeam: all good, ...)" in alone


def test_parameters_are_loaded_as_numbers(tmp_path, detector, state):
    parameters = {name: torch.nn.Parameter(tensor) for name, tensor in state.items()}
    torch.save(parameters, tmp_path / "a.pth")
    convert_weights(str(tmp_path / "a.pth"), tmp_path / "a.pkl", to="detectron2", config=TINY)
    load_weights(str(tmp_path / "a.pkl"), detector)
    assert same(detector.state_dict(), state)


@pytest.mark.parametrize("content", [[1, 2], torch.zeros(3), "text", 5])
def test_files_without_a_dict_are_refused(tmp_path, detector, content):
    assert "a dict of name -> tensor is wanted" in refused(tmp_path, detector, content)


def test_an_archive_that_unpacks_to_more_than_it_is_is_refused(tmp_path, detector, state):
    torch.save(state, tmp_path / "plain.pth")
    path = tmp_path / "packed.pth"
    with zipfile.ZipFile(tmp_path / "plain.pth") as plain, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for entry in plain.infolist():
            packed.writestr(entry.filename, plain.read(entry))
        packed.writestr("weights/data/zeros", bytes(10**7))
    with pytest.raises(ValueError, match=r"its entries unpack to [0-9,]+ bytes, more than the file has"):
        load_weights(str(path), detector)


@pytest.mark.parametrize("suffix", [".pth", ".pkl"])
def test_containers_are_told_by_their_content(tmp_path, detector, state, suffix):
    """Files of torch before 1.6, of torch since, and plain pickles of arrays, under each other's suffix."""
    path = tmp_path / f"weights{suffix}"
    arrays = {name: tensor.numpy() for name, tensor in state.items()}
    writers = (
        lambda: torch.save(state, path),
        lambda: torch.save(state, path, _use_new_zipfile_serialization=False),
        lambda: path.write_bytes(pickle.dumps({"model": arrays, "__author__": "x"}, protocol=2)),
        lambda: path.write_bytes(pickle.dumps(arrays, protocol=4)),
    )
    for write in writers:
        write()
        load_weights("random:6", detector)
        load_weights(str(path), detector)
        assert same(detector.state_dict(), state)


@pytest.mark.parametrize("container", ["torch", "pickle"])
@pytest.mark.parametrize("suffix", [".pth", ".bin", ".pt", ".pkl", ".model"])
def test_a_file_that_wants_to_run_code_is_refused(tmp_path, detector, container, suffix):
    trap, path = tmp_path / "trap", tmp_path / f"hostile{suffix}"
    content = {"model": {NAME: Hostile(trap)}}
    if container == "torch":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content))
    with pytest.raises(ValueError, match=r"wants to run (posix|os)\.mkdir when it is read; refused") as error:
        load_weights(str(path), detector)
    assert "\n" not in str(error.value)
    assert not trap.exists()
    pickle.loads(pickle.dumps(Hostile(trap)))  # the trap works
    assert trap.exists()


@pytest.mark.parametrize("suffix, words", [(".pth", "torch file"), (".safetensors", "not a complete safetensors file")])
@pytest.mark.parametrize("keep", [0, 1, 7, 100, 0.5, 0.99, -1])
def test_cut_off_files_are_refused(tmp_path, detector, state, suffix, words, keep):
    path = tmp_path / f"weights{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(state, path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(ValueError, match=words) as error:
        load_weights(str(path), detector)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("data", [b"<html>not found</html>", b"version https://git-lfs.github.com/spec/v1\n", b"\x80"])
def test_other_files_are_refused(tmp_path, detector, suffix, data):
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"weights .*(torch file|safetensors file)") as error:
        load_weights(str(path), detector)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "spec, words",
    [
        ("random:", "the seed must be a whole number"),
        ("random:-1", "the seed must be a whole number"),
        ("random:x", "the seed must be a whole number"),
        ("nowhere.pth", "weights nowhere.pth: no such file"),
        ("{tmp}", "not a file"),
        (
            "{tmp}/weights.onnx",
            r"unknown suffix '.onnx'; readable are .safetensors, .pth, .pt, .th, .bin, .model, .pkl, ",
        ),
    ],
)
def test_specs_that_mean_nothing(tmp_path, detector, spec, words):
    (tmp_path / "weights.onnx").write_bytes(b"x")
    with pytest.raises(ValueError, match=words):
        load_weights(spec.replace("{tmp}", str(tmp_path)), detector)


def test_build_detector_names_what_there_is():
    with pytest.raises(ValueError, match=r"detector 'big' is unknown: no such folder; there are toy, vg-.*small"):
        build_detector("big", weights="random:1")
    with pytest.raises(ValueError, match=r"selection 'top' is unknown; there are butd-10-100"):
        build_detector("small", weights="random:1", selection="top")
    with pytest.raises(ValueError, match=r"conventions 'torch' is unknown; choose one of hf"):
        build_detector("small", weights="random:1", conventions="torch")
    assert build_detector(CONFIGS["small"], weights="random:1").selection.max_regions == 100


def test_digest_of_the_small_weights_is_stable(small_detector):
    """Stores name their weights by it: if this changes, every store made before stops matching."""
    assert weights_digest(small_detector.state_dict()).startswith("141ee6adc2564d2e")
