"""Runs the public extractors' own code from checkouts, for side-by-side checks; nothing of theirs is copied here.

py-faster-rcnn and bottom-up-attention are Python 2 around Caffe: their files are read, brought to Python 3 in memory by
a few textual rules, and run with small stand-ins for `caffe` and `easydict`. MILVLG's package runs as it is, on
detectron2 without its compiled part; `apex.amp.float_function` becomes the identity, and its NMS is compiled from its
own C++ source, in which only four names of torch that are gone are spelt as today.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

_PYTHON2 = [
    (r"(?m)^( *)print (?!\()", r"\1_ = "),  # nothing is printed
    (r"\bxrange\b", "range"),
    (r"\bimport cPickle\b", "import pickle as cPickle"),
    (r"(?m)^from generate_anchors import", "from rpn.generate_anchors import"),
]
# torch's names of 2019 -> today's, in MILVLG's nms_cpu.cpp and nms.h.
_TORCH_2019 = [
    (".type().is_cuda()", ".is_cuda()"),
    ("dets.type() == scores.type()", "dets.scalar_type() == scores.scalar_type()"),
    ("dets.type()", "dets.scalar_type()"),
    (".data<", ".data_ptr<"),
]


class AttributeDict(dict[str, Any]):
    """What the published config files use of easydict."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    __setattr__ = dict.__setitem__


def _module(name: str, **members: Any) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module
    return module


def _run_python2(path: Path, name: str) -> Any:
    """One Python 2 file as a module of that name."""
    source = path.read_text()
    for pattern, replacement in _PYTHON2:
        source = re.sub(pattern, replacement, source)
    module = _module(name, __file__=str(path))
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def foreground(logits: Tensor) -> Tensor:
    """The softmax over the pair of each anchor: (1, 2A, h, w), background of all anchors first -> (1, A, h, w)."""
    _, channels, rows, columns = logits.shape
    return logits.view(1, 2, channels // 2, rows, columns).softmax(dim=1)[:, 1]


class CaffeCode:
    """lib/ of rbgirshick/py-faster-rcnn or of peteanderson80/bottom-up-attention.

    Args:
        checkout: the repository, with lib/.
        cython_nms: also compile lib/nms/cpu_nms.pyx; needs the package cython and g++.
    Raises:
        OSError: for a checkout without the files.
    """

    def __init__(self, checkout: Path, *, cython_nms: bool, build: Path) -> None:
        self.checkout, lib = checkout, checkout / "lib"
        for package in ("fast_rcnn", "rpn", "nms", "utils"):
            _module(package, __path__=[])
        _module("caffe", Layer=object)
        _module("easydict", EasyDict=AttributeDict)
        _module("_init_paths")
        _module("utils.timer", Timer=object)
        _module("utils.cython_bbox", bbox_overlaps=None)
        config = _run_python2(lib / "fast_rcnn" / "config.py", "fast_rcnn.config")
        self.cfg = config.cfg
        self.cfg.TEST.HAS_RPN = True  # as experiments/cfgs/faster_rcnn_end2end_resnet.yml sets it
        self.python_nms = _run_python2(lib / "nms" / "py_cpu_nms.py", "nms.py_cpu_nms").py_cpu_nms
        self.cython_nms = compile_cpu_nms(lib / "nms" / "cpu_nms.pyx", build) if cython_nms else None
        # What it ran on was the GPU kernel: IoU > threshold in float32, as py_cpu_nms; the .pyx has >=.
        self.nms = self.python_nms
        _module("fast_rcnn.nms_wrapper", nms=lambda boxes, iou: self.nms(boxes, iou), soft_nms=None)
        _run_python2(lib / "fast_rcnn" / "bbox_transform.py", "fast_rcnn.bbox_transform")
        _run_python2(lib / "utils" / "blob.py", "utils.blob")
        self.anchors = _run_python2(lib / "rpn" / "generate_anchors.py", "rpn.generate_anchors").generate_anchors
        layer = _run_python2(lib / "rpn" / "proposal_layer.py", "rpn.proposal_layer")
        layer.yaml = SimpleNamespace(load=ast.literal_eval)
        self._layer_class = layer.ProposalLayer
        self.test = _run_python2(lib / "fast_rcnn" / "test.py", "fast_rcnn.test")

    def propose(
        self, logits: Tensor, deltas: Tensor, input_hw: tuple[int, int], factor: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """The proposal layer: (1, 2A, h, w) logits and (1, 4A, h, w) deltas -> (R, 4) boxes, (R,) scores.

        Caffe's softmax layer before it is torch's.
        """
        front = foreground(logits)
        probabilities = torch.cat([1 - front, front], dim=1).numpy()  # the layer reads the second half only
        layer = self._layer_class()
        layer.param_str = layer.param_str_ = "{'feat_stride': 16, 'scales': (4, 8, 16, 32)}"
        # "TEST" in the older Caffe binding, 1 in the newer; each checkout reads it in its own way.
        layer.phase = 1 if "self.phase == 0" in (self.checkout / "lib/rpn/proposal_layer.py").read_text() else "TEST"
        info = np.array([[*input_hw, factor]], dtype=np.float32)
        top = [_Blob(), _Blob()]
        layer.setup([], top)
        layer.forward([SimpleNamespace(data=part) for part in (probabilities, deltas.numpy(), info)], top)
        return top[0].data[:, 1:], top[1].data.ravel()


class _Blob:
    """What the layer uses of a Caffe blob."""

    def __init__(self) -> None:
        self.data = np.zeros(0, np.float32)

    def reshape(self, *shape: int) -> None:
        self.data = np.zeros(shape, np.float32)


class GenerateTsv:
    """tools/generate_tsv.py of bottom-up-attention: its function `get_detections_from_im`, fed with head outputs.

    Args:
        checkout: the repository, with tools/generate_tsv.py.
        caffe: its lib/, or py-faster-rcnn's, which it imports from.
    """

    def __init__(self, checkout: Path, caffe: CaffeCode) -> None:
        self.tool = _run_python2(checkout / "tools" / "generate_tsv.py", "generate_tsv")
        get_blobs = caffe.test._get_blobs

        def get_blobs_of_numpy_1(image: np.ndarray, boxes: None) -> tuple[object, list[float]]:
            # A float32 array over a float64 scalar was float32 in the NumPy of its time; over a Python float it is now.
            blobs, scales = get_blobs(image, boxes)
            return blobs, [float(scale) for scale in scales]

        self.tool._get_blobs = get_blobs_of_numpy_1

    def select(
        self, image: np.ndarray, factor: float, boxes: np.ndarray, probabilities: np.ndarray, limits: tuple[int, int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Network-input boxes (R, 4) and class probabilities (R, C + 1), background first -> ids, photo boxes. The
        factor is not handed over: the tool finds its own."""
        tool, ids = self.tool, np.arange(len(boxes), dtype=np.float32)[:, None]
        rois = np.hstack([np.zeros((len(boxes), 1), np.float32), boxes])
        blobs = {"rois": rois, "cls_prob": probabilities, "pool5_flat": ids}
        net = SimpleNamespace(blobs={name: SimpleNamespace(data=value) for name, value in blobs.items()})
        tool.MIN_BOXES, tool.MAX_BOXES = limits
        tool.im_detect = lambda net, image: (probabilities, None, None, None)
        tool.cv2 = SimpleNamespace(imread=lambda path: image)
        tool.base64 = SimpleNamespace(b64encode=lambda array: array)
        row = tool.get_detections_from_im(net, "photo", 0)
        return row["features"][:, 0].astype(int), row["boxes"]


class MilvlgCode:
    """bua/caffe and utils/extract_utils.py of MILVLG/bottom-up-attention.pytorch.

    Args:
        checkout: the repository. detectron2 must be importable.
        build: folder for its compiled NMS.
        cell_anchors: (12, 4), those that its weight files hold.

    Attributes:
        limits: of proposals, before and after the NMS, as its configs have them.
    """

    def __init__(self, checkout: Path, build: Path, cell_anchors: Tensor) -> None:
        self.cell_anchors, self.limits = cell_anchors, (6000, 300)
        amp = SimpleNamespace(float_function=lambda function: function)
        _module("apex", amp=amp)
        # Their __init__ files import the whole network; only these parts are wanted.
        for name in ("bua", "bua.caffe", "bua.caffe.modeling", "bua.caffe.modeling.layers"):
            _module(name, __path__=[str(checkout.joinpath(*name.split(".")))])
        csrc = checkout / "bua" / "caffe" / "modeling" / "layers" / "csrc"
        sys.modules["bua.caffe.modeling"].__dict__["_C"] = compile_milvlg_nms(csrc, build)
        self.rpn = importlib.import_module("bua.caffe.modeling.rpn_outputs")
        self.boxes = importlib.import_module("bua.caffe.modeling.box_regression")
        self.extract = _import_file(checkout / "utils" / "extract_utils.py", "milvlg_extract_utils")

    def propose(
        self, logits: Tensor, deltas: Tensor, input_hw: tuple[int, int], factor: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Raw head outputs -> (R, 4) boxes, (R,) scores."""
        from detectron2.modeling.anchor_generator import DefaultAnchorGenerator

        generator = DefaultAnchorGenerator(
            sizes=[[4, 8, 16, 32]], aspect_ratios=[[0.5, 1.0, 2.0]], strides=[16], offset=0.0
        )
        next(generator.cell_anchors.buffers()).copy_(self.cell_anchors)

        class Images(SimpleNamespace):
            def __len__(self) -> int:
                return 1

        images = Images(image_sizes=[input_hw], image_scales=[factor])
        transform = self.boxes.BUABox2BoxTransform(weights=(1.0, 1.0, 1.0, 1.0))
        anchors = [[self.boxes.BUABoxes(boxes.tensor) for boxes in generator([logits])]]
        outputs = self.rpn.BUARPNOutputs(transform, None, 64, 0.5, images, [logits], [deltas], anchors)
        with torch.inference_mode():
            (result,) = self.rpn.find_top_bua_rpn_proposals(
                outputs.predict_proposals(), outputs.predict_objectness_logits(), images, 0.7, *self.limits, 16, False
            )
        return result.proposal_boxes.tensor.numpy(), result.objectness_logits.numpy()

    def select(
        self, image: np.ndarray, factor: float, boxes: np.ndarray, probabilities: np.ndarray, limits: tuple[int, int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """`save_roi_features`, read back from the file it writes: ids, photo boxes."""
        extractor = SimpleNamespace(MIN_BOXES=limits[0], MAX_BOXES=limits[1], CONF_THRESH=0.2)
        cfg = SimpleNamespace(MODEL=SimpleNamespace(BUA=SimpleNamespace(EXTRACTOR=extractor)))
        ids = torch.arange(len(boxes)).float()[:, None]
        with tempfile.TemporaryDirectory() as folder:
            self.extract.save_roi_features(
                SimpleNamespace(output_dir=folder),
                cfg,
                "photo.jpg",
                image,
                {"im_scale": factor},
                [torch.from_numpy(boxes)],
                [torch.from_numpy(probabilities)],
                [ids],
            )
            with np.load(Path(folder) / "photo.npz") as saved:  # "info", a pickle, is not read
                return saved["x"][:, 0].astype(int), saved["bbox"]


def vlbert_resize(checkout: Path) -> Any:
    """jackroos/VL-BERT pretrain/data/transforms/transforms.py as a module."""
    return _import_file(checkout / "pretrain" / "data" / "transforms" / "transforms.py", "vlbert_transforms")


def compile_cpu_nms(source: Path, build: Path) -> Any:
    """lib/nms/cpu_nms.pyx, with NumPy's removed aliases spelt as today; the threshold stays a Python float."""
    text = source.read_text()
    for old, new in (("np.float thresh", "object thresh"), ("dtype=np.int)", "dtype=int)"), ("np.int_t", "np.int64_t")):
        text = text.replace(old, new)
    build.mkdir(parents=True, exist_ok=True)
    path = build / "cpu_nms.pyx"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
        _call([sys.executable, "-m", "cython", "-2", str(path)])
    library = build / f"cpu_nms{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not library.exists() or library.stat().st_mtime < path.stat().st_mtime:
        includes = [f"-I{sysconfig.get_paths()['include']}", f"-I{np.get_include()}"]
        _call(["gcc", "-O2", "-w", "-shared", "-fPIC", *includes, str(build / "cpu_nms.c"), "-o", str(library)])
    return _import_file(library, "cpu_nms").cpu_nms


def compile_milvlg_nms(csrc: Path, build: Path) -> ModuleType:
    """csrc/vision.cpp with nms/nms_cpu.cpp; some minutes the first time."""
    from torch.utils.cpp_extension import include_paths, library_paths

    (build / "nms").mkdir(parents=True, exist_ok=True)
    texts = {}
    for name in ("vision.cpp", "nms/nms.h", "nms/vision_cpu.h", "nms/nms_cpu.cpp"):
        text = (csrc / name).read_text()
        for old, new in _TORCH_2019:
            text = text.replace(old, new)
        texts[name] = text
    library = build / f"bua_nms{sysconfig.get_config_var('EXT_SUFFIX')}"
    stamp = build / "bua_nms.json"
    if not library.exists() or not stamp.exists() or json.loads(stamp.read_text()) != texts:
        for name, text in texts.items():
            (build / name).write_text(text)
        includes = [f"-I{path}" for path in [*include_paths(), sysconfig.get_paths()["include"]]]
        libraries = [f"-L{path}" for path in library_paths()]
        command = ["g++", "-O2", "-w", "-std=c++20", "-shared", "-fPIC", "-DTORCH_EXTENSION_NAME=bua_nms", *includes]
        command += [str(build / "vision.cpp"), str(build / "nms/nms_cpu.cpp"), *libraries]
        _call([*command, "-ltorch", "-ltorch_cpu", "-lc10", "-ltorch_python", "-o", str(library)])
        stamp.write_text(json.dumps(texts))
    return _import_file(library, "bua_nms")


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{command[0]} ended with status {done.returncode}: {done.stderr[-2000:]}")


def _import_file(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise OSError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
