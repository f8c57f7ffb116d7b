"""`python:FILE.py:FUNCTION`: what a function of a user's file may give, and what is one line of error."""

import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from roibeam.extraction.adapters.any_detector import BackboneDetector, ModelDetector, RegionBackbone
from roibeam.extraction.network.conventions import DETECTIONS, SELECTIONS
from roibeam.extraction.weights.named_model import NamedModel

ALL = SELECTIONS[DETECTIONS]
NAMED = 'NAMES = ["cat", "dog"]\n'
PHOTO = np.arange(40 * 60 * 3, dtype=np.uint8).reshape(40, 60, 3)  # B, G, R


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., NamedModel]:
    """Text of a file, whose function is `f` -> its name, opened."""

    def write(text: str, **options: object) -> NamedModel:
        path = tmp_path / "mine.py"
        path.write_text(textwrap.dedent(text))
        return replace(NamedModel(f"python:{path}:f"), **options).opened()

    return write


def gives(result: str) -> str:
    return f"{NAMED}WIDTH = 0\nimport numpy as np, torch\ndef f(photo):\n    return {result}\n"


@pytest.mark.parametrize(
    "result",
    [
        "np.array([[1, 2, 30, 20.5], [0, 0, 5, 5]]), np.array([0.9, 0.5]), np.array(['dog', 'cat'])",
        "torch.tensor([[1, 2, 30, 20.5], [0, 0, 5, 5]]), torch.tensor([0.9, 0.5]).half(), torch.tensor([1, 0])",
        "[[1, 2, 30, 20.5], (0, 0, 5, 5)], [0.9, 0.5], ['dog', 'cat']",
        "list(torch.tensor([[1, 2, 30, 20.5], [0, 0, 5, 5]])), [torch.tensor(0.9), np.float64(0.5)], [1., np.int64(0)]",
        "[[[1, 2, 30, 20.5], [0, 0, 5, 5]], (0.9, 0.5), ('dog', 'cat'), None]",
    ],
)  # fmt: skip
def test_arrays_tensors_and_lists_are_the_same(result: str, opened: Callable[..., NamedModel]) -> None:
    found = opened(gives(result)).detector("cpu", "exact")(PHOTO)
    assert found.boxes.tolist() == [[1, 2, 30, 20.5], [0, 0, 5, 5]] and found.boxes.dtype == torch.float32
    assert found.class_ids.tolist() == [1, 0] and found.vectors is None
    torch.testing.assert_close(found.scores, torch.tensor([0.9, 0.5]), atol=1e-3, rtol=0)  # half


@pytest.mark.parametrize(
    "result", ["[], [], []", "np.zeros((0, 4)), np.zeros(0), np.zeros(0, int)", "torch.zeros(0, 4), [], ()"]
)
def test_a_photo_may_be_without_a_box(result: str, opened: Callable[..., NamedModel]) -> None:
    model = opened(gives(result))
    (found,) = ModelDetector(model.detector("cpu", "exact"), ALL, device="cpu", mode="exact")([PHOTO])
    assert found.boxes.shape == (0, 4) and found.features.shape == (0, 0)


WRONG = {
    "None": "expected boxes, scores, names and perhaps vectors; got NoneType",
    "[], []": "got 2 things",
    "[[1, 2, 3, 4]], [0.5], None": "expected a list of names, one for each box; got NoneType",
    "[[1, 2, 3, 4]], [0.5], 'cat'": "expected a list of names, one for each box; got str",
    "[[1, 2, 3, 4]], [0.5], ['cow']": "'cow' is none of the file's NAMES; choose one of cat, dog",
    "[[1, 2, 3, 4]], [0.5], [2]": "2 is none of the file's NAMES; it has 2",
    "[[1, 2, 3, 4]], [0.5], [-1]": "-1 is none of",
    "[[1, 2, 3, 4]], [0.5], [0.5]": "0.5 is none of",
    "[[1, 2, 3, 4]], [0.5], ['cat', 'dog']": r"boxes have the shape \(1, 4\); expected \(2, 4\) beside 2 names",
    "[], [], ['cat']": r"boxes have the shape \(0,\); expected \(1, 4\)",
    "[[1, 2, 3, 4]], [0.5, 0.5], ['cat']": r"scores have the shape \(2,\); expected \(1,\)",
    "[[1, 2, 3]], [0.5], ['cat']": r"boxes have the shape \(1, 3\)",
    "[[1, 2, 3], [1]], [0.5, 0.5], ['cat', 'cat']": "boxes should be numbers",
    "[['a', 2, 3, 4]], [0.5], ['cat']": "boxes should be numbers",
    "[[1, 2, float('nan'), 4]], [0.5], ['cat']": "boxes: NaN or infinity",
    "[[1, 2, 3, 4]], [float('nan')], ['cat']": "scores: NaN or infinity",
    "[[1, 2, 3, 4]], [7.5], ['cat']": "scores go from 7.5 to 7.5; expected 0..1",
    "[[1, 2, 3, 4]], [-0.5], ['cat']": "scores go from -0.5 to -0.5",
    "[[30, 20, 10, 30]], [0.5], ['cat']": r"the box \[30.0, 20.0, 10.0, 30.0\] ends before it begins",
    "[[30, 20, 40, 10]], [0.5], ['cat']": "ends before it begins",
    "[[0.1, 0.2, 0.9, 1]], [0.5], ['cat']": "boxes seem to go from 0 to 1; multiply them",
    "[[60, 2, 70, 4]], [0.5], ['cat']": "lies outside the photo of 60 x 40 pixels",
    "[[-9, 2, 0, 4]], [0.5], ['cat']": "lies outside the photo",
    "[[1, 2, 3, 4]], [0.5], ['cat'], [[1.0]]": "vectors come with each photo or with none",
    "photo.nothing": "line 5: AttributeError: 'numpy.ndarray' object has no attribute 'nothing'",
    "torch.zeros(2) @ torch.zeros(3)": "line 5: RuntimeError",
    "exit('enough')": "line 5: SystemExit: enough",
}


@pytest.mark.parametrize("result", WRONG)
def test_a_wrong_result_is_an_error_of_this_photo(result: str, opened: Callable[..., NamedModel]) -> None:
    """Of a kind that the engine counts to the photo, see detector_calls.py."""
    detector = opened(gives(result)).detector("cpu", "exact")
    with pytest.raises((ValueError, RuntimeError), match=WRONG[result]) as raised:
        detector(PHOTO)
    assert str(raised.value).startswith("python:") and "\n" not in str(raised.value)


def test_memory_that_runs_out_is_no_matter_of_the_file(opened: Callable[..., NamedModel]) -> None:
    """The engine tries again then."""
    with pytest.raises(MemoryError):
        opened(f"{NAMED}WIDTH = 0\ndef f(photo):\n    raise MemoryError\n").detector("cpu", "exact")(PHOTO)


FILES = {
    "x = (": r"line 1: SyntaxError: '\(' was never closed",
    "import sys\nimport not_a_library.part": "line 2: ModuleNotFoundError.*; install it, and on workers too",
    "\0": "null bytes",
    "NAMES = ['cat']\ndef f(): ...": r"TypeError: f\(\) takes 0 positional arguments but 1 was given",
    "import neighbour": "line 1: ModuleNotFoundError: .*'neighbour'; a file beside this one does not travel",
    "\n1 / 0": "line 2: ZeroDivisionError: division by zero",
    "raise SystemExit(3)": "line 1: SystemExit: 3",
    "NAMES = ['cat']\ndef g(photo): ...": "the file has no function f; choose one of g",
    "NAMES = ['cat']\nf = 3": "the file has no function f; write it",
    "def f(photo): ...": r"the file names no classes; write NAMES = \[...\]",
    "NAMES = 'cat'\ndef f(photo): ...": "NAMES must be a list of texts",
    "NAMES = ['cat', 'cat']\ndef f(photo): ...": "NAMES must be a list of texts, a different one",
    "NAMES = []\ndef f(photo): ...": "NAMES must be a list",
    "NAMES = ['cat', 3]\ndef f(photo): ...": "NAMES must be a list",
    "NAMES = ['cat']\nWIDTH = '8'\ndef f(photo): ...": "the width of its vectors is unknown",
    "NAMES = ['cat']\ndef f(photo): return [], [], [], []": "the width of its vectors is unknown before a photo",
    "NAMES = ['cat']\ndef f(photo): return 1 // int(photo.max())": "line 2: ZeroDivis.*a black photo of 128 x 128",
}


@pytest.mark.parametrize("text", FILES)
def test_a_wrong_file_is_one_line(text: str, opened: Callable[..., NamedModel], tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("")
    model = opened(text)
    with pytest.raises(ValueError, match=FILES[text]) as raised:
        model.detector("cpu", "exact")
    assert str(raised.value).startswith(f"python:{tmp_path}/mine.py:f: ") and "\n" not in str(raised.value)


def test_names_of_the_user_take_the_place_of_the_files(opened: Callable[..., NamedModel]) -> None:
    text = gives("[[1, 2, 3, 4]], [0.5], ['dog']")
    assert opened(text).names() == ("cat", "dog")
    model = opened(text, class_names=("Katze", "Hund"))
    assert model.names() == ("Katze", "Hund")
    assert model.detector("cpu", "exact")(PHOTO).class_ids.tolist() == [1]
    with pytest.raises(ValueError, match="expected 2 class names, one for each of the file's NAMES; got 1"):
        opened(text, class_names=("Katze",)).detector("cpu", "exact")
    unnamed = opened(text.replace("NAMES", "names"), class_names=("cow", "dog"))
    assert unnamed.detector("cpu", "exact")(PHOTO).class_ids.tolist() == [1]


def test_a_photo_comes_as_red_green_blue_and_may_be_changed(opened: Callable[..., NamedModel]) -> None:
    text = f"{NAMED}seen = []\ndef f(photo):\n    seen.append(photo.copy())\n    photo[:] = 0\n    return [], [], []\n"
    model, before = opened(text), PHOTO.copy()
    function = model.detector("cpu", "exact")
    ModelDetector(function, ALL, device="cpu", mode="exact")([PHOTO, PHOTO])
    assert (before == PHOTO).all()
    seen = function.module.seen
    assert [photo.shape for photo in seen] == [(128, 128, 3), (40, 60, 3), (40, 60, 3)] and not seen[0].any()
    assert (seen[1] == PHOTO[:, :, ::-1]).all() and (seen[2] == seen[1]).all()


@pytest.mark.parametrize("width", ["", "WIDTH = 3\n"])
def test_vectors_have_one_width(width: str, opened: Callable[..., NamedModel]) -> None:
    """Of the file, or that of a black photo; the second photo keeps none of the first's array."""
    text = """
        import numpy as np
        out = np.zeros((1, 3))
        def f(photo):
            out[:] = photo.mean(axis=(0, 1))
            found = out if photo.any() else np.zeros((0, 3))
            return [[0, 0, 9, 9]] * len(found), [1.0] * len(found), [0] * len(found), found
    """
    model = opened(NAMED + width + textwrap.dedent(text)).detector("cpu", "exact")
    assert model.feature_dim == 3
    detector = ModelDetector(model, ALL, device="cpu", mode="exact")
    one, two = detector([PHOTO, np.full_like(PHOTO, 7)])
    np.testing.assert_allclose(one.features, PHOTO[:, :, ::-1].mean(axis=(0, 1))[None], rtol=1e-6)
    assert (two.features == 7).all() and detector.feature_dim == 3


def test_a_longest_side_resizes_the_photo_and_the_boxes_come_back(opened: Callable[..., NamedModel]) -> None:
    text = f"{NAMED}def f(photo):\n    h, w = photo.shape[:2]\n    return [[0, h / 2, w, h]], [1], [0]\n"
    model = opened(text, longest_side=30)
    assert model.detector("cpu", "exact")(PHOTO).boxes.tolist() == [[0, 20, 60, 40]]
    assert model.detector("cpu", "exact").describe()["longest_side"] == 30
    backbone = opened("def f(photo):\n    return photo.shape[:2]\n", longest_side=30).backbone("cpu", "exact")
    assert backbone.crop_vectors([PHOTO]).tolist() == [[20, 30]]


def test_the_record_is_the_same_on_any_machine(tmp_path: Path) -> None:
    records = []
    for folder in ("a", "b"):
        path = tmp_path / folder / f"{folder}.py"
        path.parent.mkdir()
        path.write_text(gives("[], [], []"))
        records.append(NamedModel(f"python:{path}:f").opened().detector("cpu", "exact").describe())
    assert records[0] == records[1] and records[0]["name"] == "python:f" and len(records[0]["code"]) == 64


def test_a_map_is_pooled_where_the_box_is(opened: Callable[..., NamedModel]) -> None:
    """The map is of the photo's own pixels: RoIAlign of a box gives their mean, and so does the crop."""
    model = opened("def f(photo):\n    return photo.transpose(2, 0, 1)\n").backbone("cpu", "exact")
    assert model.pools == ("roi", "crop") and model.feature_dim == 3
    photo = np.zeros((56, 84, 3), np.uint8)
    photo[14:28, 28:56] = 10, 20, 30
    for pool in model.pools:
        backbone = RegionBackbone(model, pool, "python:f")
        (found,) = BackboneDetector(None, backbone, device="cpu", mode="exact")(
            [photo], boxes=[np.float32([[28, 14, 56, 28], [0, 28, 84, 56]])]
        )
        np.testing.assert_allclose(found.features, [[30, 20, 10], [0, 0, 0]], atol=1e-5)


def test_a_vector_is_of_a_crop_and_each_crop_is_called_once(opened: Callable[..., NamedModel]) -> None:
    text = "calls = []\ndef f(photo):\n    calls.append(photo.shape)\n    return [float(photo.sum()), 1.0]\n"
    model = opened(text).backbone("cpu", "exact")
    assert model.pools == ("crop",) and model.feature_dim == 2
    boxes = np.float32([[1, 2, 3, 5], [0, 0, 60, 40], [1, 2, 3, 5]])
    backbone = RegionBackbone(model, "", "python:f")
    (found,) = BackboneDetector(None, backbone, device="cpu", mode="exact")([PHOTO], boxes=[boxes])
    np.testing.assert_allclose(found.features[:, 0], [PHOTO[2:5, 1:3].sum(), PHOTO.sum(), PHOTO[2:5, 1:3].sum()])
    assert model.module.calls == [(128, 128, 3), (3, 2, 3), (40, 60, 3), (3, 2, 3)]
    with pytest.raises(ValueError, match="--pool roi: python:f gives no map"):
        RegionBackbone(model, "roi", "python:f")


@pytest.mark.parametrize(
    "text, error",
    [
        ("return 3.0", r"shape \(\); expected a map \(C, h, w\) or a vector"),
        ("return photo[None]", r"shape \(1, 128, 128, 3\)"),
        ("return []", r"shape \(0,\)"),
        ("return [float('inf')]", "its result: NaN or infinity.*called with a black photo|its result: NaN"),
        ("return photo.nothing", "line 2: AttributeError.*called with a black photo of 128 x 128"),
    ],
)
def test_a_function_that_is_no_backbone_is_one_line(text: str, error: str, opened: Callable[..., NamedModel]) -> None:
    with pytest.raises(ValueError, match=error):
        opened(f"def f(photo):\n    {text}\n").backbone("cpu", "exact")


def test_a_backbone_keeps_kind_and_width(opened: Callable[..., NamedModel]) -> None:
    model = opened("def f(photo):\n    return [0.0] * len(photo)\n").backbone("cpu", "exact")
    with pytest.raises(ValueError, match=r"shape \(40,\); of a black photo it began \(128,\)"):
        model.crop_vectors([PHOTO])


def test_a_function_gets_the_device_it_asks_for(opened: Callable[..., NamedModel]) -> None:
    model = opened("def f(photo, device='?'):\n    return [len(device)]\n")
    assert model.backbone("cpu", "exact").crop_vectors([PHOTO]).tolist() == [[3]]


def test_what_a_file_prints_is_no_output_of_the_command(
    opened: Callable[..., NamedModel], capsys: pytest.CaptureFixture[str]
) -> None:
    model = opened("print('begin')\ndef f(photo):\n    print('called')\n    return [1.0]\n")
    model.backbone("cpu", "exact")
    said = capsys.readouterr()
    assert said.out == "" and said.err == "begin\ncalled\n"
