"""The public Hugging Face port of the detector, run from its own files; nothing of theirs is copied here.

`modeling_frcnn.py`, `processing_image.py` and `utils.py` of huggingface/transformers-research-projects, folder lxmert,
are handed in by path. `wget`, which they import and do not need here, becomes an empty module where it is missing.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from roibeam.extraction.detector import Detector
from roibeam.extraction.photos.preprocessing import NetworkInput

FILES = ("modeling_frcnn.py", "processing_image.py", "utils.py")


class Port:
    """Their network with the weights of ours.

    Args:
        folder: where `FILES` are.
        detector: of the conventions "hf", whose sizes and weights the port gets.
        max_regions: regions that are kept, at most.
    """

    def __init__(self, folder: Path, detector: Detector, *, max_regions: int = 36) -> None:
        missing = [name for name in FILES if not (folder / name).is_file()]
        if missing:
            raise FileNotFoundError(f"{folder}: {', '.join(missing)} missing; name a copy of lxmert's folder")
        try:
            importlib.import_module("wget")
        except ImportError:
            sys.modules["wget"] = ModuleType("wget")
        sys.path.insert(0, str(folder))
        frcnn, processing, support = (importlib.import_module(Path(name).stem) for name in FILES)
        config = support.Config(_config(detector, max_regions))
        self.device, self.max_regions = detector.device, max_regions
        self._prepare = processing.Preprocess(config)
        self._net = frcnn.GeneralizedRCNN(config).eval()
        ours = detector.state_dict()
        state = {name: ours.get(name, value) for name, value in self._net.state_dict().items()}
        self._net.load_state_dict(state)

    def net(self, network_input: NetworkInput) -> dict[str, Tensor]:
        """One photo that is resized already."""
        sizes = torch.tensor([network_input.input_hw])
        scales = torch.true_divide(torch.tensor([network_input.image_hw]), sizes)
        return self._run(network_input.pixels, sizes, scales)

    def extract(self, path: Path) -> dict[str, np.ndarray]:
        """File on disk to arrays."""
        # Their own reader of files fails on today's torch (a negative stride); a tensor takes the rest of their way.
        images, sizes, scales = self._prepare([torch.from_numpy(cv2.imread(str(path)))])
        return {name: np.asarray(value.cpu()) for name, value in self._run(images, sizes, scales).items()}

    def _run(self, pixels: Tensor, sizes: Tensor, scales: Tensor) -> dict[str, Tensor]:
        options: dict[str, Any] = {"padding": "max_detections", "max_detections": self.max_regions}
        return self._net(pixels.clone(), sizes, scales_yx=scales, return_tensors="pt", **options)


def _config(detector: Detector, max_regions: int) -> dict[str, Any]:
    """What their code reads of its config, for the sizes of ours."""
    config, conventions = detector.config, detector.conventions
    return {
        "min_detections": 10,
        "max_detections": max_regions,
        "size_divisibility": 0,
        "pad_value": 0.0,
        "input": {"format": "RGB", "min_size_test": config.short_edge, "max_size_test": config.long_edge},
        "backbone": {"freeze_at": 2},
        "model": {
            "device": str(detector.device),
            "max_pool": True,
            "pixel_mean": list(conventions.pixel_mean),
            "pixel_std": list(conventions.pixel_std),
        },
        "resnets": {
            "depth": config.depth,
            "norm": "BN",
            "out_features": ["res4"],
            "num_groups": 1,
            "width_per_group": config.base_channels,
            "stem_out_channels": config.base_channels,
            "res2_out_channels": 4 * config.base_channels,
            "stride_in_1x1": True,
            "res5_dilation": 1,
        },
        "anchor_generator": {
            "sizes": [list(config.anchor_sizes)],
            "aspect_ratios": [list(config.anchor_ratios)],
            "offset": 0.0,
        },
        "proposal_generator": {"hidden_channels": config.rpn_hidden_channels, "min_size": 0},
        "rpn": {
            "in_features": ["res4"],
            "nms_thresh": config.proposal_nms_iou,
            "batch_size_per_image": 256,
            "positive_fraction": 0.5,
            "smooth_l1_beta": 0.0,
            "loss_weight": 1.0,
            "pre_nms_topk_train": config.proposals_before_nms,
            "pre_nms_topk_test": config.proposals_before_nms,
            "post_nms_topk_train": config.proposals_after_nms,
            "post_nms_topk_test": config.proposals_after_nms,
            "boundary_thresh": -1,
            "bbox_reg_weights": list(conventions.proposal_delta_weights),
            "iou_thresholds": [0.3, 0.7],
            "iou_labels": [0, -1, 1],
        },
        "roi_heads": {
            "in_features": ["res4"],
            "num_classes": config.num_classes,
            "positive_fraction": 0.25,
            "proposal_append_gt": True,
            "nms_thresh_test": [0.5, 0.6, 0.7, 0.8, 0.9],
            "score_thresh_test": 0.2,
        },
        "roi_box_head": {
            "cls_agnostic_bbox_reg": False,
            "smooth_l1_beta": 0.0,
            "bbox_reg_weights": list(conventions.region_delta_weights),
            "pooler_resolution": config.pooled_cells,
            "pooler_sampling_ratio": 0,
            "res5halve": False,
            "attr": True,
            "num_attrs": config.num_attributes,
        },
    }
