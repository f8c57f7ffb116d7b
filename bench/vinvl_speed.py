"""VinVL's detector beside Microsoft's own code: `python bench/vinvl_speed.py ../scene_graph_benchmark --images PHOTOS`.

One process, one set of random weights (saved by the official network, read by ours), photos in turn, float32. The
checkout is microsoft/scene_graph_benchmark 8e14944 and needs yacs; of its compiled module only names are used, since
torchvision has its NMS and RoIAlign. Times are of the network with its post-processing, without reading the photo.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from store_rounds import MIN_ROUNDS, Ratio, table, take_turns

from roibeam.extraction.detector import Detector
from roibeam.extraction.weights.loading import build_detector

BAR = 1.3


class Unused(types.ModuleType):
    """In place of a module that the detector imports and does not use, and of the compiled one."""

    __path__ = ()  # a package, of which any module may be imported

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: lambda value: value


def official(root: Path, size: int) -> tuple[Any, Any]:
    """Microsoft's network of random weights, and its transform of a photo."""
    sys.path.insert(0, str(root))
    for name, kind in (("float", float), ("int", int)):  # gone from numpy
        setattr(np, name, kind)
    torch_of_2020: Any = torch
    torch_of_2020._six = types.SimpleNamespace(PY37=True, string_classes=(str,), int_classes=(int,))
    import maskrcnn_benchmark  # type: ignore[import-not-found]

    maskrcnn_benchmark._C = sys.modules["maskrcnn_benchmark._C"] = Unused("maskrcnn_benchmark._C")
    while True:
        try:
            from maskrcnn_benchmark.config import cfg  # type: ignore[import-not-found]
            from scene_graph_benchmark.AttrRCNN import AttrRCNN  # type: ignore[import-not-found]
            from scene_graph_benchmark.config import sg_cfg  # type: ignore[import-not-found]

            break
        except ModuleNotFoundError as error:
            sys.modules[str(error.name)] = Unused(str(error.name))
    cfg.set_new_allowed(True)
    cfg.merge_from_other_cfg(sg_cfg)
    cfg.set_new_allowed(False)
    cfg.merge_from_file(str(root / "sgg_configs/vgattr/vinvl_x152c4.yaml"))
    cfg.merge_from_list(["MODEL.DEVICE", "cpu", "MODEL.ROI_HEADS.NMS_FILTER", 1, "TEST.IGNORE_BOX_REGRESSION", True])
    cfg.merge_from_list(["TEST.OUTPUT_FEATURE", True, "INPUT.MIN_SIZE_TEST", size])
    cfg.merge_from_list(["INPUT.MAX_SIZE_TEST", size * 5 // 3])
    torch.manual_seed(0)
    model = AttrRCNN(cfg).eval()
    with torch.no_grad():  # activations stay in range, scores apart
        for name, array in model.state_dict().items():
            if name.endswith("bn3.weight"):
                array.fill_(0.1)
            elif "cls_score.weight" in name:
                array.normal_(0, 0.03)
    path = root / "maskrcnn_benchmark/data/transforms/transforms.py"
    spec = importlib.util.spec_from_file_location("official_transforms", path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    steps = [module.Resize(cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST), module.ToTensor()]
    steps.append(module.Normalize(cfg.INPUT.PIXEL_MEAN, cfg.INPUT.PIXEL_STD, cfg.INPUT.TO_BGR255))
    return model, module.Compose(steps)


def ours(model: Any, size: int, mode: str) -> Detector:
    from dataclasses import replace

    from roibeam.extraction.network.config import CONFIGS

    config = replace(CONFIGS["vinvl-x152-c4"], short_edge=size, long_edge=size * 5 // 3)
    with tempfile.NamedTemporaryFile(suffix=".pth") as file:
        torch.save({"model": model.state_dict()}, file.name)
        return build_detector(config, preset="vinvl", weights=file.name, mode=mode)


def agreement(reference: Any, own: Any) -> str:
    """How many regions are equal, row by row; nearly equal scores may stand in another order."""
    features, scores = (reference.get_field(name).numpy() for name in ("box_features", "scores"))
    errors = np.abs(features - own.features).max(axis=1) / np.abs(features).max()
    near = (errors < 1e-4) & (np.abs(scores - own.class_scores) < 1e-4)
    return f"{near.sum()} of {len(near)} regions are equal within 1e-4, features and scores"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--images", type=Path, required=True, help="folder of .jpg photos")
    parser.add_argument("--count", type=int, default=1, help="photos, the first by name [1]")
    parser.add_argument("--size", type=int, default=600, help="short edge [600]")
    parser.add_argument("--modes", nargs="+", default=["exact", "bf16"], help="[exact bf16]")
    parser.add_argument("--threads", type=int, default=2, help="of torch [2]")
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS, help=f"[{MIN_ROUNDS}]")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    paths = sorted(arguments.images.glob("*.jpg"))[: arguments.count]
    photos = [Image.open(path).convert("RGB") for path in paths]
    model, transform = official(arguments.checkout, arguments.size)
    inputs = [transform(photo, None)[0] for photo in photos]
    detectors = {mode: ours(model, arguments.size, mode) for mode in arguments.modes}
    exact = next(iter(detectors.values()))
    prepared = [exact.prepare(np.ascontiguousarray(np.asarray(photo)[:, :, ::-1])) for photo in photos]

    def theirs() -> list[Any]:
        with torch.no_grad():
            return [model(pixels)[0] for pixels in inputs]

    works: dict[str, Callable[[], list[Any]]] = {"Microsoft's": theirs}
    works |= {mode: lambda detector=detector: detector(prepared) for mode, detector in detectors.items()}
    for reference, own in zip(theirs(), exact(prepared), strict=True):
        print(agreement(reference, own))

    def seconds(work: Callable[[], list[Any]]) -> Callable[[], float]:
        def measure() -> float:
            start = time.perf_counter()
            work()
            return (time.perf_counter() - start) / len(paths)

        return measure

    found = take_turns({name: seconds(work) for name, work in works.items()}, arguments.rounds)
    rows = []
    for name, figures in found.items():
        ratio = Ratio(found["Microsoft's"], figures)
        bar = f">= {BAR}: {ratio.at_least(BAR)}" if name == "exact" else ""
        rows.append((name, f"{np.median(figures):.2f}", str(ratio), bar))
    print(table(("network", "s a photo", "times as fast", "bar"), rows))


if __name__ == "__main__":
    main()
