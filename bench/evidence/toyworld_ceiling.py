"""What retrieval in the toy world can reach: `python bench/toyworld_ceiling.py [--seed 7] [--scenes 500]`.

Each scene is searched for by its first caption. Whoever knows what is true and no more has to draw lots among the
scenes that a caption is true of.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from roibeam.pipelines.toyworld.captions import Caption, write_captions
from roibeam.pipelines.toyworld.relations import find_relations
from roibeam.pipelines.toyworld.scene import generate
from roibeam.pipelines.toyworld.truth import KnownScene, parse_caption, truthful_recall

PLACES = (1, 5, 10)


def true_counts(seed: int, scenes: int) -> tuple[list[Caption], list[int]]:
    """The first caption of each scene from 0 on, and of how many of them it is true."""
    known, captions = [], []
    for index in range(scenes):
        scene = generate(seed, index).scene
        relations = find_relations(scene)
        known.append(KnownScene(scene, relations))
        captions.append(write_captions(scene, relations)[0])
    claims = [parse_caption(caption.text) for caption in captions]
    return captions, [sum(claim.is_true_of(scene) for scene in known) for claim in claims]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--scenes", type=int, default=500, help="scenes 0 to this, each with its first caption")
    arguments = parser.parse_args()
    start = time.perf_counter()
    captions, found = true_counts(arguments.seed, arguments.scenes)
    seconds, counts = time.perf_counter() - start, np.array(found)
    print(f"| captions | scenes of {len(captions)} that one is true of, mean | median | most | {_names()} |")
    print(f"|{'---|' * 7}")
    print(_row(f"all ({len(captions)})", counts))
    for kind in sorted({caption.kind for caption in captions}):
        chosen = np.array([caption.kind == kind for caption in captions])
        print(_row(f"{kind} ({chosen.sum()})", counts[chosen]))
    print(f"\n{len(captions)} scenes drawn, {len(captions) ** 2} pairs judged in {seconds:.2f} s")


def _names() -> str:
    return " | ".join(f"expected R@{at}, %" for at in PLACES)


def _row(name: str, counts: np.ndarray) -> str:
    recalls = " | ".join(f"{100 * truthful_recall(counts.tolist(), at):.1f}" for at in PLACES)
    return f"| {name} | {counts.mean():.1f} | {np.median(counts):.0f} | {counts.max()} | {recalls} |"


if __name__ == "__main__":
    main()
