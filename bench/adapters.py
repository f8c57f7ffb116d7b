"""Models of other libraries beside the bare library in a loop: `python bench/adapters.py --images PHOTOS`.

Weights are random. Bare: Pillow, the library's processor, model and post-processing, and what vectors need besides.
Ours: `extract_regions`, from files to records. Both take turns in one process, and their vectors are compared.
`--profile` tells what a photo's processor time goes to instead; then `vinvl` and `vinvl bf16` are models too.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
import transformers as hf
from PIL import Image
from store_rounds import MIN_ROUNDS, Ratio, table, take_turns
from torchvision.models import get_model
from torchvision.models.feature_extraction import create_feature_extractor
from torchvision.ops import roi_align
from torchvision.transforms import functional as pixels

from roibeam.extraction.adapters.any_detector import build_detector
from roibeam.extraction.engine.region_iterator import extract_regions
from roibeam.extraction.photos.image_ref import ImageRef

BOXES = torch.tensor([[5 * n, 3 * n, 60 + 7 * n, 50 + 5 * n] for n in range(36)]).float()
RCNN = ("torchvision:fasterrcnn_resnet50_fpn", "torchvision:fasterrcnn_mobilenet_v3_large_320_fpn")
BACKBONES = ("torchvision:resnet50@layer4", "hf:DINOv2-base#tokens", "hf:CLIP-B-32#projection")
USER_FILE = """import torch, torchvision
body = torch.nn.Sequential(*list(torchvision.models.resnet18().eval().children())[:-2])
NAMES = ["thing"]
def detect(photo):
    found = body(torch.from_numpy(photo).permute(2, 0, 1)[None].float() / 255)[0].flatten(1).T[:36]
    return torch.arange(36)[:, None] + torch.tensor([0, 0, 99, 99]), [0.9] * 36, NAMES * 36, found
"""
STAGES: Any = {"depths": [2] * 4, "hidden_sizes": [64, 128, 256, 512], "out_features": ["stage2", "stage3", "stage4"]}
LATENT: Any = {"encoder_in_channels": [128, 256, 512], "decoder_layers": 3, "hidden_expansion": 0.5}


def pooled(values: Any, across: float, down: float) -> Any:
    return roi_align(values, [BOXES * torch.tensor([across, down] * 2)], 7, aligned=True).mean((2, 3))


def of_torchvision(name: str) -> Any:
    """Our detector, and the bare library's vectors of a photo."""
    target, _, layer = name.partition(":")[2].partition("@")
    given: Any = {"backbone": name, "backbone_weights": "random:1", "given_boxes": True}
    ours: Any = build_detector(**given) if layer else build_detector(name, weights="random:1")
    network = (ours.backbone.network if layer else ours.model)._network
    bare = create_feature_extractor(get_model(target), [layer]) if layer else get_model(target, weights_backbone=None)
    bare.eval().load_state_dict(network.state_dict())

    def run(photo: Any) -> Any:
        if layer:
            scale = 800 / max(photo.size)
            image = pixels.to_tensor(photo.resize((round(photo.width * scale), round(photo.height * scale)), 2))
            image = pixels.normalize(image, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
            return pooled(bare(image[None])[layer], scale / 32, scale / 32)
        images, _ = bare.transform([pixels.to_tensor(photo)])  # the steps of its `forward`, and one for vectors
        maps, sizes = bare.backbone(images.tensors), images.image_sizes
        found, _ = bare.roi_heads(maps, bare.rpn(images, maps)[0], sizes)
        vectors = bare.roi_heads.box_head(bare.roi_heads.box_roi_pool(maps, [found[0]["boxes"]], sizes))
        bare.transform.postprocess(found, sizes, [photo.size[::-1]])
        return vectors

    return ours, run


def of_hugging_face(name: str, folder: str) -> Any:
    part, body = name.partition("#")[2], hf.RTDetrResNetConfig(**STAGES, layer_type="basic")
    auto, config, kind = {
        "": (hf.AutoModelForObjectDetection, hf.RTDetrConfig(backbone_config=body, **LATENT), hf.RTDetrImageProcessor),
        "tokens": (hf.AutoModel, hf.Dinov2Config(image_size=518), hf.BitImageProcessor),
        "projection": (hf.AutoModel, hf.CLIPConfig(text_config={"num_hidden_layers": 1}), hf.CLIPImageProcessor),
    }[part]
    auto.from_config(config).save_pretrained(folder)
    kind().save_pretrained(folder)
    model, processor = auto.from_pretrained(folder).eval(), hf.AutoImageProcessor.from_pretrained(folder)

    def run(photo: Any) -> Any:
        if not part:
            found = model(**processor(images=photo, return_tensors="pt"))
            processor.post_process_object_detection(found, threshold=0.2, target_sizes=[photo.size[::-1]])
            return found.last_hidden_state[0]
        rows, columns = (
            (16, 16) if part == "projection" else (round(37 * n / max(photo.size)) for n in photo.size[::-1])
        )
        options: Any = {"size": {"height": rows * 14, "width": columns * 14}, "do_center_crop": False}
        if part == "projection":
            given = processor(images=[photo.crop(tuple(box)) for box in BOXES.tolist()], **options, return_tensors="pt")
            return model.get_image_features(**given).pooler_output
        tokens = model(**processor(images=photo, **options, return_tensors="pt")).last_hidden_state[:, 1:]
        return pooled(tokens.mT.unflatten(2, (rows, columns)), columns / photo.width, rows / photo.height)

    backbone: Any = {"backbone": f"hf:{folder}#{part}", "given_boxes": True}
    return build_detector(**backbone) if part else build_detector(f"hf:{folder}"), run


def compared(refs: list[ImageRef], ours: Any, bare: Any, rounds: int) -> tuple[str, ...]:
    found: dict[str, Any] = {}
    spent: dict[str, list[float]] = {"ours": [], "bare": []}

    def measure(arm: str) -> float:
        clock, processor = time.perf_counter(), time.process_time()
        with torch.inference_mode():
            photos = (Image.open(ref.location).convert("RGB") for ref in refs)
            found[arm] = list(extract_regions(refs, ours) if arm == "ours" else map(bare, photos))
        spent[arm].append((time.process_time() - processor) / len(refs))
        return (time.perf_counter() - clock) / len(refs)

    seconds = take_turns({arm: lambda arm=arm: measure(arm) for arm in spent}, rounds)
    theirs = torch.cat(found["bare"])
    mine = torch.from_numpy(np.concatenate([record.features for record in found["ours"]])).float()
    gap = float(torch.cdist(mine, theirs).amin(1).max() / theirs.norm(dim=1).mean())
    ratio, work = Ratio(seconds["ours"], seconds["bare"]), Ratio(spent["ours"][1:], spent["bare"][1:])
    medians = (f"{np.median(seconds[arm]):.2f}" for arm in ("bare", "ours"))
    return (*medians, str(ratio), ratio.at_most(1.1), str(work), f"{gap:.0e}")


def profiled(photo: Path, boxes: Any, ours: Any) -> str:
    """The operators that take most of a detector's processor time for one photo, and their shares."""
    given: Any = ([cv2.imread(str(photo))],)
    more = {} if boxes is None else {"boxes": [np.array(boxes, np.float32)]}
    ours(*given, **more)  # warm
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        ours(*given, **more)
    events = sorted(profile.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    return ", ".join(f"{event.key} {event.self_cpu_time_total / total:.0%}" for event in events[:8])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="folder of .jpg photos")
    parser.add_argument("--count", type=int, default=3, help="photos of a round [3]")
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS, help=f"[{MIN_ROUNDS}]")
    parser.add_argument("--models", nargs="+", default=[*RCNN, *BACKBONES, "hf:RT-DETR-R18", "python:ResNet-18"])
    parser.add_argument("--profile", action="store_true", help="shares of the operators, of one photo")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows, ours, bare = [], None, None
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            if name.startswith("vinvl"):
                mode = name.partition(" ")[2] or "exact"
                ours, bare = build_detector(preset="vinvl", weights="random:1", mode=mode), None
            elif name.startswith("python"):
                Path(folder, "mine.py").write_text(USER_FILE, encoding="utf-8")
                ours = build_detector(f"python:{folder}/mine.py:detect")
                bare = lambda photo, ours=ours: ours.model.module.detect(np.array(photo))[3]  # noqa: E731
            else:
                ours, bare = of_torchvision(name) if "torchvision" in name else of_hugging_face(name, folder)
        boxes: Any = tuple(map(tuple, BOXES.tolist())) if name in BACKBONES else None
        paths = sorted(arguments.images.glob("*.jpg"))[: arguments.count]
        if arguments.profile:
            print(f"{name}: {profiled(paths[0], boxes, ours)}", flush=True)
            continue
        refs = [ImageRef(path.name, str(path), boxes) for path in paths]
        rows.append((name, *compared(refs, ours, bare, arguments.rounds)))
    if rows:
        print(table(("model", "bare, s a photo", "ours", "ours / bare", "<= 1.1", "processor s", "difference"), rows))


if __name__ == "__main__":
    main()
