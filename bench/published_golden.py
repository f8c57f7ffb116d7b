"""Writes what the published codes propose on two small maps, for the default test suite.

    python bench/published_golden.py --py-faster-rcnn DIR --milvlg DIR tests/extraction/data/published_proposals.npz

Needs what published_proposals.py needs. Arrays of case c (0: drawn deltas; 1: none, so that boxes end on whole pixels):
logits_c (1, 24, h, w), deltas_c (1, 48, h, w), and by preset boxes_<preset>_c (R, 4), scores_<preset>_c (R,); input_hw;
factors (2,), network-input pixels per photo pixel; limits (2,), of proposals before and after the NMS.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from published_codes import CaffeCode, MilvlgCode
from published_proposals import CONFIG, WHOLE_PIXELS, head_outputs, map_size

from roibeam.extraction.network.boxes import cell_anchors
from roibeam.extraction.network.conventions import CONVENTIONS

INPUT_HW = (96, 128)
LIMITS = (100, 60)
# Chosen so that every rule decides something: the first keeps a box past the delta cap; in the second two boxes on
# whole pixels overlap by exactly 0.7, so that > and >= part.
SEEDS = (2, 31)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--py-faster-rcnn", type=Path, required=True, help="checkout of rbgirshick/py-faster-rcnn")
    parser.add_argument("--milvlg", type=Path, required=True, help="checkout of MILVLG/bottom-up-attention.pytorch")
    parser.add_argument("--build", type=Path, help="folder for compiled parts; default: a temporary one")
    parser.add_argument("out", type=Path, help=".npz to write")
    arguments = parser.parse_args()
    factors = (1.0, WHOLE_PIXELS[1])
    arrays = {"input_hw": np.array(INPUT_HW), "factors": np.array(factors), "limits": np.array(LIMITS)}
    with tempfile.TemporaryDirectory() as temporary:
        build = arguments.build or Path(temporary)
        caffe = CaffeCode(arguments.py_faster_rcnn, cython_nms=False, build=build)
        caffe.cfg.TEST.RPN_PRE_NMS_TOP_N, caffe.cfg.TEST.RPN_POST_NMS_TOP_N = LIMITS
        milvlg = MilvlgCode(arguments.milvlg, build, cell_anchors(CONFIG, CONVENTIONS["caffe"]))
        milvlg.limits = LIMITS
        for case, factor in enumerate(factors):
            logits, deltas = head_outputs(map_size(INPUT_HW), np.random.default_rng(SEEDS[case]), still=case == 1)
            arrays |= {f"logits_{case}": logits.numpy(), f"deltas_{case}": deltas.numpy()}
            for preset, code in (("caffe", caffe), ("milvlg", milvlg)):
                boxes, scores = code.propose(logits, deltas, INPUT_HW, factor)
                arrays |= {f"boxes_{preset}_{case}": boxes, f"scores_{preset}_{case}": scores}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(arguments.out, **arrays)  # type: ignore[arg-type]
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
