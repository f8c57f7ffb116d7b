"""Our conventions beside the published codes, run from their checkouts on shared random numbers; exit 1 on a miss.

    python bench/published_proposals.py --py-faster-rcnn DIR [--milvlg DIR] [--generate-tsv DIR] [--vl-bert DIR]

Three parts, one table each: proposals from random head outputs (py-faster-rcnn's proposal layer against "caffe",
MILVLG's against "milvlg"), the final choice of regions (bottom-up-attention's generate_tsv.py, MILVLG's
save_roi_features), and the network's input (py-faster-rcnn, detectron2, VL-BERT). How their code is run:
published_codes.py.

MILVLG needs detectron2 with fvcore, iopath, omegaconf and pycocotools on PYTHONPATH (a checkout and a `pip install
--target` folder will do) and g++; the checkout's own C++ NMS is compiled into --build, which takes some minutes once.
`--cython` also compiles py-faster-rcnn's cpu_nms.pyx, which needs the package cython.

Scores are drawn without ties: the published codes leave the order of equal scores to their sort, ours is by index.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from published_codes import CaffeCode, GenerateTsv, MilvlgCode, foreground, vlbert_resize
from torch import Tensor

from roibeam.extraction.network.boxes import cell_anchors
from roibeam.extraction.network.config import CONFIGS, DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS, SELECTIONS, Conventions, SelectionPolicy
from roibeam.extraction.network.rpn import ProposalGenerator, choose_proposals
from roibeam.extraction.photos.preprocessing import preprocess
from roibeam.extraction.regions import select_regions

CONFIG = CONFIGS["vg-r101-c4-600"]
# Size of the photo, height and width; the network's input and the factor follow.
PHOTOS = [(480, 640), (640, 480), (500, 500), (333, 500), (375, 1242), (150, 900)]
# Boxes that no delta moves and that end on whole pixels, and a factor that makes the smallest allowed side 30 pixels,
# which clipped anchors have exactly: here > and >= part, in the filter and in the NMS.
WHOLE_PIXELS = ((320, 427), 1.875)
# How far the best class stands out: with 300 regions fewer than 10, some and more than 100 of them pass 0.2.
GAINS = (1.0, 3.6, 6.0)
INPUT_SIZES = [
    *((375, 500), (480, 640), (500, 333), (427, 640), (600, 1000), (1000, 600), (599, 999), (1200, 1600)),
    *((360, 600), (360, 601), (361, 602), (601, 359), (480, 801), (123, 987), (987, 123), (40, 900), (1, 1), (2, 3)),
]
BOX_TOLERANCE = 1e-3  # pixels: exp of NumPy and of torch differ in the last digit, and a side may be 1,000 pixels


@dataclass
class Row:
    """One line of a table: how many boxes or pixels were compared, whether all were the same, and what differed."""

    name: str
    cases: int = 0
    compared: int = 0
    same: bool = True
    largest: float = 0.0
    note: str = ""

    def add(self, ids: np.ndarray, want_ids: np.ndarray, values: np.ndarray, want: np.ndarray, where: str) -> None:
        self.cases += 1
        self.compared += len(want_ids)
        if len(ids) != len(want_ids) or not np.array_equal(ids, want_ids):
            self.same = False
            self.note += f" {where}: {len(set(ids.tolist()) ^ set(want_ids.tolist()))} not in both;"
        elif len(ids):
            self.largest = max(self.largest, float(np.abs(values.astype(np.float64) - want).max()))

    @property
    def passed(self) -> bool:
        return self.same and self.largest <= BOX_TOLERANCE

    def text(self) -> str:
        verdict = "yes" if self.same else f"NO:{self.note}"
        return f"| {self.name} | {self.cases} | {self.compared} | {verdict} | {self.largest:.1e} |"


def head_outputs(map_hw: tuple[int, int], rng: np.random.Generator, *, still: bool) -> tuple[Tensor, Tensor]:
    """Logits (1, 2A, h, w), background of all anchors first, whose probabilities have no ties; deltas (1, 4A, h, w)."""
    anchors, (rows, columns) = CONFIG.num_anchors, map_hw
    logits = torch.from_numpy(rng.normal(0, 1, (1, 2 * anchors, rows, columns)).astype(np.float32))
    for _ in range(100):
        values = foreground(logits).flatten()
        _, inverse, counts = values.unique(return_inverse=True, return_counts=True)
        tied = (counts[inverse] > 1).view(1, anchors, rows, columns)
        if not tied.any():
            break
        fresh = torch.from_numpy(rng.normal(0, 1, int(tied.sum())).astype(np.float32))
        logits[:, anchors:][tied] = fresh
    else:
        raise RuntimeError("a hundred draws left ties among the scores")
    deltas = rng.normal(0, 0.0 if still else 0.3, (anchors, 4, rows, columns)).astype(np.float32)
    if not still:
        # Some that grow a box past the cap of MILVLG, which Caffe does not have, and move it so far that its left edge
        # stays in the photo with the cap and leaves it without.
        wild = rng.random((anchors, rows, columns)) < 0.01
        deltas[:, 0][wild], deltas[:, 2][wild] = 31.25, 4.5
    return logits, torch.from_numpy(deltas).view(1, 4 * anchors, rows, columns)


def map_size(input_hw: tuple[int, int]) -> tuple[int, int]:
    return -(-input_hw[0] // 16), -(-input_hw[1] // 16)


def proposal_cases(seeds: int) -> Iterator[tuple[str, tuple[int, int], float, Tensor, Tensor]]:
    """Name, input size, factor, logits, deltas."""
    for seed in range(seeds):
        for index, photo_hw in enumerate([*PHOTOS, WHOLE_PIXELS[0]]):
            rng = np.random.default_rng([seed, index])
            still = index == len(PHOTOS)
            made = preprocess(np.zeros((*photo_hw, 3), np.uint8), CONFIG, CONVENTIONS["caffe"])
            factor = WHOLE_PIXELS[1] if still else made.factor
            name = f"{photo_hw[0]}x{photo_hw[1]} seed {seed}"
            yield name, made.input_hw, factor, *head_outputs(map_size(made.input_hw), rng, still=still)


Propose = Callable[[Tensor, Tensor, tuple[int, int], float], tuple[np.ndarray, np.ndarray]]


def compare_proposals(row: Row, seeds: int, conventions: Conventions, theirs: Propose) -> Row:
    """Ours against `theirs`, (logits, deltas, input size, factor) -> boxes, scores; an index is told by its score."""
    generator = ProposalGenerator(CONFIG, conventions)
    for name, input_hw, factor, logits, deltas in proposal_cases(seeds):
        with torch.inference_mode():
            boxes, objectness = generator.score_anchors(logits, deltas)
            ours = choose_proposals(boxes, objectness, input_hw, factor, CONFIG, conventions)
        want_boxes, want_scores = theirs(logits, deltas, input_hw, factor)
        order = np.argsort(objectness.numpy())
        ids, want_ids = (
            order[np.searchsorted(objectness.numpy(), scores, sorter=order)]
            for scores in (ours.objectness.numpy(), want_scores)
        )
        row.add(ids, want_ids, ours.boxes.numpy(), want_boxes, name)
    return row


def selection_cases(seeds: int) -> Iterator[tuple[str, np.ndarray, float, np.ndarray, np.ndarray]]:
    """Name, photo (which only its size matters of), factor, network boxes (300, 4), probabilities, background first."""
    for seed in range(seeds):
        for index, gain in enumerate(GAINS):
            # The published class count once, as their loops over classes take minutes in Python.
            classes = CONFIG.num_classes if seed == index == 0 else 60
            rng = np.random.default_rng([seed, index, 7])
            photo_hw = PHOTOS[(seed + index) % len(PHOTOS)]
            photo = np.zeros((*photo_hw, 3), np.uint8)
            made = preprocess(photo, CONFIG, CONVENTIONS["caffe"])
            centers = rng.uniform(0, 1, (60, 2))[rng.integers(0, 60, 300)] + rng.normal(0, 0.02, (300, 2))
            sides = rng.uniform(0.05, 0.3, (300, 2))
            corners = np.concatenate([centers - sides / 2, centers + sides / 2], axis=1).clip(0, 1)
            edges = np.array([made.input_hw[1] - 1, made.input_hw[0] - 1] * 2)
            logits = rng.normal(0, 1, (300, classes + 1))
            logits[np.arange(300), rng.integers(1, min(classes, 40) + 1, 300)] += gain + rng.normal(0, 1, 300)
            logits[:, 0] += np.log(classes / 60)
            scores = torch.from_numpy(logits.astype(np.float32)).softmax(dim=1).numpy()
            yield f"gain {gain} seed {seed}", photo, made.factor, (corners * edges).astype(np.float32), scores


def compare_selection(
    row: Row,
    seeds: int,
    policy: SelectionPolicy,
    theirs: Callable[[np.ndarray, float, np.ndarray, np.ndarray, tuple[int, int]], tuple[np.ndarray, np.ndarray]],
) -> Row:
    """Ours against `theirs`, (photo, factor, network boxes, probabilities, least and most) -> ids, photo boxes."""
    kept = []
    for name, photo, factor, boxes, probabilities in selection_cases(seeds):
        photo_boxes = torch.from_numpy(boxes) / torch.tensor(factor, dtype=torch.float32)
        ours = select_regions(
            policy,
            class_scores=torch.from_numpy(probabilities[:, 1:].copy()),
            proposal_boxes=photo_boxes,
            regressed_boxes=photo_boxes,
            nms_boxes=photo_boxes,
        )
        want_ids, want_boxes = theirs(photo, factor, boxes, probabilities, (policy.min_regions, policy.max_regions))
        row.add(ours.proposal_ids.numpy(), want_ids, ours.boxes.numpy(), want_boxes, name)
        kept.append(len(want_ids))
    row.name += f" ({min(kept)} to {max(kept)} kept)"
    return row


def photo_of(image_hw: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(image_hw).integers(0, 256, (*image_hw, 3), dtype=np.uint8)


def compare_inputs(
    row: Row,
    config: DetectorConfig,
    conventions: Conventions,
    theirs: Callable[[np.ndarray], np.ndarray],
) -> Row:
    """Ours against `theirs`, photo in B, G, R -> (3, height', width') float32."""
    for image_hw in INPUT_SIZES:
        image = photo_of(image_hw)
        ours, want = preprocess(image, config, conventions).pixels[0].numpy(), theirs(image)
        row.add(np.array(ours.shape), np.array(want.shape), ours, want, f"{image_hw[0]}x{image_hw[1]}")
        row.compared += want.size - 3
    return row


def caffe_rows(arguments: argparse.Namespace, build: Path) -> Iterator[tuple[str, Row]]:
    code = CaffeCode(arguments.py_faster_rcnn, cython_nms=arguments.cython, build=build)
    anchors = code.anchors(scales=np.array([4, 8, 16, 32]))
    row = Row('py-faster-rcnn generate_anchors, "caffe"')
    row.add(np.arange(12), np.arange(12), cell_anchors(CONFIG, CONVENTIONS["caffe"]).numpy(), anchors, "anchors")
    yield "proposals", row

    caffe, at_or_above = CONVENTIONS["caffe"], replace(CONVENTIONS["caffe"], nms_comparison=">=")
    name = "py-faster-rcnn ProposalLayer, {}"
    yield "proposals", compare_proposals(Row(name.format('py_cpu_nms, "caffe"')), arguments.seeds, caffe, code.propose)
    compiled = code.cython_nms
    if compiled is not None:
        # Its threshold is a float64 number: 0.7 is above the float32 number that an overlap of 7 to 10 gives, so that
        # whole pixels would part it from the GPU kernel and from MILVLG's, which round the threshold.
        code.nms = lambda boxes, iou: compiled(boxes, float(np.float32(iou)))
        row = Row(name.format('cpu_nms.pyx with a float32 threshold, "caffe" with nms_comparison ">="'))
        yield "proposals", compare_proposals(row, arguments.seeds, at_or_above, code.propose)
        code.nms = code.python_nms
    if arguments.generate_tsv is not None:
        tool = GenerateTsv(arguments.generate_tsv, code)
        for preset in ("butd-10-100", "butd-36"):
            row = Row(f'generate_tsv.py, py_cpu_nms, "{preset}"')
            yield "regions", compare_selection(row, arguments.seeds, SELECTIONS[preset], tool.select)
    row = Row('py-faster-rcnn _get_image_blob, "caffe", 600/1000')
    yield "inputs", compare_inputs(row, CONFIG, caffe, lambda image: code.test._get_image_blob(image)[0][0])


def milvlg_rows(arguments: argparse.Namespace, build: Path) -> Iterator[tuple[str, Row]]:
    code = MilvlgCode(arguments.milvlg, build, cell_anchors(CONFIG, CONVENTIONS["caffe"]))
    row = Row('MILVLG find_top_bua_rpn_proposals, "milvlg"')
    yield "proposals", compare_proposals(row, arguments.seeds, CONVENTIONS["milvlg"], code.propose)
    for preset in ("milvlg-10-100", "milvlg-36"):
        row = Row(f'MILVLG save_roi_features, "{preset}"')
        yield "regions", compare_selection(row, arguments.seeds, SELECTIONS[preset], code.select)
    row = Row('MILVLG get_image_blob, "milvlg", 600/1000')
    means = np.array([102.9801, 115.9465, 122.7717])
    get = code.extract.get_image_blob
    yield "inputs", compare_inputs(row, CONFIG, CONVENTIONS["milvlg"], lambda image: get(image, means)["image"].numpy())


def detectron2_rows() -> Iterator[tuple[str, Row]]:
    from detectron2.data.transforms import ResizeShortestEdge

    mean = torch.tensor(CONVENTIONS["d2"].pixel_mean).view(3, 1, 1)
    for name, config in (("800/1333", CONFIGS["vg-r101-c4"]), ("600/1000", CONFIG)):
        resize = ResizeShortestEdge([config.short_edge, config.short_edge], config.long_edge)

        def theirs(image: np.ndarray, resize: ResizeShortestEdge = resize) -> np.ndarray:
            pixels = resize.get_transform(image).apply_image(image)
            return (torch.as_tensor(pixels.astype("float32").transpose(2, 0, 1)) - mean).numpy()

        row = Row(f'detectron2 ResizeShortestEdge, "d2", {name}')
        yield "inputs", compare_inputs(row, config, CONVENTIONS["d2"], theirs)


def vlbert_rows(checkout: Path) -> Iterator[tuple[str, Row]]:
    from PIL import Image

    transforms, conventions = vlbert_resize(checkout), CONVENTIONS["vlbert-e2e"]
    steps = transforms.Compose(
        [
            transforms.Resize(600, 1000),
            transforms.ToTensor(),
            transforms.Normalize(list(conventions.pixel_mean), list(conventions.pixel_std)),
        ]
    )

    def theirs(image: np.ndarray) -> np.ndarray:
        photo = Image.fromarray(np.ascontiguousarray(image[..., ::-1]))
        info = torch.tensor([image.shape[1], image.shape[0], 1.0, 1.0])
        return steps(photo, None, None, info)[0].numpy()

    yield "inputs", compare_inputs(Row('VL-BERT build_transforms, "vlbert-e2e", 600/1000'), CONFIG, conventions, theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--py-faster-rcnn", type=Path, required=True, help="checkout of rbgirshick/py-faster-rcnn")
    parser.add_argument("--milvlg", type=Path, help="checkout of MILVLG/bottom-up-attention.pytorch; wants detectron2")
    parser.add_argument("--generate-tsv", type=Path, help="checkout of peteanderson80/bottom-up-attention")
    parser.add_argument("--vl-bert", type=Path, help="checkout of jackroos/VL-BERT")
    parser.add_argument("--cython", action="store_true", help="also compile and run py-faster-rcnn's cpu_nms.pyx")
    parser.add_argument("--seeds", type=int, default=3, help="random draws for each photo size (default 3)")
    parser.add_argument("--build", type=Path, help="folder for compiled parts; default: a temporary one")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tables: dict[str, list[Row]] = {"proposals": [], "regions": [], "inputs": []}
    with tempfile.TemporaryDirectory() as temporary:
        build = arguments.build or Path(temporary)
        sources = [caffe_rows(arguments, build)]
        if arguments.milvlg is not None:
            sources += [milvlg_rows(arguments, build), detectron2_rows()]
        if arguments.vl_bert is not None:
            sources.append(vlbert_rows(arguments.vl_bert))
        try:
            for source in sources:
                for table, row in source:
                    tables[table].append(row)
                    print(f"done: {row.name}", file=sys.stderr, flush=True)
        except (OSError, ImportError) as error:
            sys.exit(f"a checkout or something it needs is missing: {error}")
    units = {"proposals": "boxes", "regions": "regions", "inputs": "values"}
    for table, rows in tables.items():
        if rows:
            same = "same size?" if table == "inputs" else "same, same order?"
            print(f"\n| {table} | cases | {units[table]} | {same} | largest difference |\n|---|---|---|---|---|")
            print("\n".join(row.text() for row in rows))
    missed = [row.name for rows in tables.values() for row in rows if not row.passed]
    if missed:
        sys.exit(f"differs from the published code: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
