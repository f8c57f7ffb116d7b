"""The published extractors by name: one network, with the conventions, photo size and regions that each was used with.

docs/presets.md says where each came from, and why one was chosen where a paper and its code differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class ExtractorPreset:
    """What three names say together.

    Attributes:
        name: as `--preset` and `build_detector(preset=...)` take it.
        source: whose features these are: code base or paper.
        detector: name in `CONFIGS`: the network's sizes, and the size that photos are resized to.
        conventions: name in `CONVENTIONS`.
        selection: name in `SELECTIONS`.
    """

    name: str
    source: str
    detector: str
    conventions: str
    selection: str


DEFAULT_PRESET = "butd-10-100"
PRESETS = MappingProxyType(
    {
        preset.name: preset
        for preset in (
            # The tool that the others port or build on; its weights were trained at 600/1000.
            ExtractorPreset(
                "butd-10-100",
                "peteanderson80/bottom-up-attention, adaptive (arXiv:1707.07998)",
                "vg-r101-c4-600",
                "caffe",
                "butd-10-100",
            ),
            ExtractorPreset(
                "butd-36",
                "peteanderson80/bottom-up-attention, 36 regions (arXiv:1707.07998)",
                "vg-r101-c4-600",
                "caffe",
                "butd-36",
            ),
            ExtractorPreset(
                "milvlg", "MILVLG/bottom-up-attention.pytorch, caffe mode", "vg-r101-c4-600", "milvlg", "milvlg-10-100"
            ),
            # LXMERT's own published files are the Caffe tool's, as butd-36; this is what transformers' LXMERT is fed.
            ExtractorPreset(
                "lxmert", "Hugging Face's LXMERT port, unc-nlp/frcnn-vg-finetuned", "vg-r101-c4", "hf", "hf-36"
            ),
            # Its script for COCO. The notebooks take 800/1333 and a rule for regions that is not built here.
            ExtractorPreset(
                "d2", "airsplay/py-bottom-up-attention (detectron2), COCO script", "vg-r101-c4-600", "d2", "d2-36"
            ),
            # The five systems used the Caffe tool, or name only the number of regions; see selection.py.
            ExtractorPreset("vl-bert", "VL-BERT (arXiv:1908.08530)", "vg-r101-c4-600", "caffe", "vl-bert"),
            ExtractorPreset("vilbert", "ViLBERT (arXiv:1908.02265)", "vg-r101-c4-600", "caffe", "vilbert"),
            ExtractorPreset("visualbert", "VisualBERT (arXiv:1908.03557)", "vg-r101-c4-600", "caffe", "visualbert"),
            ExtractorPreset("imagebert", "ImageBERT (arXiv:2001.07966)", "vg-r101-c4-600", "caffe", "imagebert"),
            ExtractorPreset("interbert", "InterBERT (arXiv:2003.13198)", "vg-r101-c4-600", "caffe", "interbert"),
        )
    }
)
# Sizes that presets are of; others have conventions of their own.
PRESET_SIZES = frozenset(preset.detector for preset in PRESETS.values())
