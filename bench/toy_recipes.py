"""What the toy variants of the recipes cost: `python bench/toy_recipes.py --store STORE --captions FILE [RECIPE ...]`.

Trains each as `roibeam pretrain --toy` does, with its 400 steps of 32 captions (end to end 40, through the toy
detector's encoder, so on a store of that; a text corpus is the captions without their images), and prints the seconds
from the command to its end: reading, training, checkpoints and evaluation. A recipe in two stages is both. Without
names: one of each kind that differs in cost.

`make evidence ARGS="--only detector/vlbert --seeds 0"` leaves both: build/evidence/stores/detector and
build/evidence/captions/train.json.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from roibeam.pipelines.data.captions.caption_files import CaptionFile
from roibeam.pipelines.pretraining.recipes.published import recipe_named

ROIBEAM = Path(sys.executable).with_name("roibeam")
OF_EACH_KIND = (
    "vlbert-base", "vlbert-base-captions", "vilbert", "vilbert-8-layer", "vilbert-single-stream", "visualbert-coco-vqa",
    "imagebert-cc", "imagebert-stage-2", "interbert", "vlbert-paper", "vlbert-base-e2e",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--captions", type=Path, required=True)
    parser.add_argument("recipes", nargs="*", default=OF_EACH_KIND)
    options = parser.parse_args()
    print("| recipe | seconds |\n| --- | --- |")
    for name in options.recipes:
        recipe = recipe_named(name)
        command = [str(ROIBEAM), "pretrain", "RUN", "--recipe", name, "--toy", "--device", "cpu"]
        command += ["--store", str(options.store), "--captions", str(options.captions)]
        command += ["--end-to-end"] if recipe.end_to_end else []
        with tempfile.TemporaryDirectory() as folder:
            command[2] = f"{folder}/run"
            if recipe.text_corpus:
                text = Path(folder) / "text.txt"
                lines = (caption.text for caption in CaptionFile(str(options.captions)).captions())
                text.write_text("\n".join(lines), encoding="utf-8")
                command += ["--text-corpus", str(text)]
            start = time.monotonic()
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name}: {done.stderr.strip().splitlines()[-1]}")
        print(f"| {name} | {time.monotonic() - start:.0f} |", flush=True)


if __name__ == "__main__":
    main()
