"""The floor of retrieval: text vectors and vectors of whole photos, joined by one linear layer a side. No region, no
deep model that is trained: what a system of regions must be better than.

    python examples/real_photos/floor.py STORE DATA OUT --text words
    python examples/real_photos/floor.py STORE DATA OUT --text build/real-models/minilm
    roibeam score retrieval OUT/test.npy --data DATA

STORE has a feature of each whole photo (`roibeam extract --image-feature region`); DATA is a folder of `prepare.py`.
Text vectors are counts of words, weighted by how rare they are, or the mean state of a BERT. The layers are those of
canonical correlation analysis with a ridge, in closed form, fitted to all captions of `train`; ridges, width and the
power of the correlations are chosen by R@10 on `val`. OUT/val.npy and OUT/test.npy are files of `roibeam score`.
"""

import argparse
import itertools
import json
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from roibeam.features.store import FeatureStore
from roibeam.pipelines.common.statistics.retrieval_ranks import CaptionedImages, retrieval_ranks
from roibeam.pipelines.data.datasets.karpathy import read_captioned
from roibeam.pipelines.finetuning.metrics.retrieval import write_ids
from roibeam.pipelines.finetuning.run.task_data import StoreImages

RIDGES, POWERS, WIDTHS = (0.1, 0.3, 1.0, 3.0), (0.5, 1.0, 2.0), (128, 256, 1024)
MIN_COUNT = 4  # of a word in the captions of train
BATCH, BLOCK = 256, 4096  # captions of a pass through a BERT; rows of a sum


class WordVectors:
    """Counts of the words of some captions, each by the logarithm of how rare it is."""

    def __init__(self, trained):
        counts = Counter(word for text in trained for word in set(words_of(text)))
        self.words = {
            word: row for row, word in enumerate(word for word, count in counts.items() if count >= MIN_COUNT)
        }
        self.rarity = np.log(len(trained) / np.array([counts[word] for word in self.words], np.float32))

    def __call__(self, texts):
        """(len(texts), words) float32."""
        found = np.zeros((len(texts), len(self.words)), np.float32)
        for row, text in enumerate(texts):
            for word in words_of(text):
                if word in self.words:
                    found[row, self.words[word]] = self.rarity[self.words[word]]
        return found


def words_of(text):
    return re.findall(r"\w+", text.lower())


class BertVectors:
    """The mean of a BERT's last states over the pieces of a text."""

    def __init__(self, folder):
        from transformers import BertModel, BertTokenizerFast

        self.tokenizer = BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=True)
        self.model = BertModel.from_pretrained(folder).eval()

    @torch.inference_mode()
    def __call__(self, texts):
        """(len(texts), width) float32."""
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))  # little padding
        found = np.zeros((len(texts), self.model.config.hidden_size), np.float32)
        for start in range(0, len(texts), BATCH):
            rows = order[start : start + BATCH]
            some = [texts[row] for row in rows]
            pieces = self.tokenizer(some, padding=True, truncation=True, max_length=64, return_tensors="pt")
            real = pieces["attention_mask"][..., None]
            found[rows] = ((self.model(**pieces).last_hidden_state * real).sum(1) / real.sum(1)).numpy()
        return found


def normed(rows):
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


class Joined:
    """Canonical correlation analysis of rows that belong together.

    Args:
        blocks: (n, D) of texts and (n, E) of photos, some rows at a time.
    """

    def __init__(self, blocks):
        count, sums, squares, cross = 0, [0.0, 0.0], [0.0, 0.0], 0.0
        for block in blocks:
            x, y = (each.astype(np.float64) for each in block)
            count += len(x)
            sums = [total + each.sum(0) for total, each in zip(sums, (x, y), strict=True)]
            squares = [total + each.T @ each for total, each in zip(squares, (x, y), strict=True)]
            cross = cross + x.T @ y
        self.means = [total / count for total in sums]
        self.own = [
            np.linalg.eigh(total / count - np.outer(mean, mean))
            for total, mean in zip(squares, self.means, strict=True)
        ]
        self.cross = cross / count - np.outer(*self.means)

    def found(self, ridges):
        """Whitening and directions of each side, and the correlations. A ridge is a share of the mean eigenvalue."""
        roots = [
            (vectors / np.sqrt(values.clip(0) + ridge * values.mean())) @ vectors.T
            for (values, vectors), ridge in zip(self.own, ridges, strict=True)
        ]
        left, strength, right = np.linalg.svd(roots[0] @ self.cross @ roots[1], full_matrices=False)
        return roots[0] @ left, roots[1] @ right.T, strength


def whole_photos(store, names):
    """(len(names), E) float32: the feature of each whole photo."""
    images = StoreImages(store)
    found = []
    for name in names:
        image = images.id_of(name)
        if image is None:
            raise ValueError(f"{store.path} has no photo {name}; `roibeam store dead-letters` lists those that failed")
        feature = store.get(image).image_feature
        if feature is None:
            raise ValueError(f"{store.path} has no feature of whole photos; extract it with --image-feature region")
        found.append(feature.astype(np.float32))
    return normed(np.stack(found))


def main(store, data, out, text):
    pictures = {split: read_captioned(data, split)[0] for split in ("train", "val", "test")}
    texts = {split: [caption for each in found for caption in each.captions] for split, found in pictures.items()}
    of_caption = {
        split: np.repeat(np.arange(len(found)), [len(each.captions) for each in found])
        for split, found in pictures.items()
    }
    vectors = WordVectors(texts["train"]) if text == "words" else BertVectors(Path(text))
    with FeatureStore(store) as opened:
        y = {split: whole_photos(opened, [each.image for each in found]) for split, found in pictures.items()}
    starts = range(0, len(texts["train"]), BLOCK)
    joined = Joined(
        (normed(vectors(texts["train"][start : start + BLOCK])), y["train"][of_caption["train"][start : start + BLOCK]])
        for start in starts
    )
    x = {split: normed(vectors(texts[split])) for split in ("val", "test")}

    def scores(split, found, width, power):
        *layers, strength = found
        left, right = (
            normed((rows - mean) @ (layer[:, :width] * strength[:width] ** (power / 2)))
            for rows, mean, layer in zip((x[split], y[split]), joined.means, layers, strict=True)
        )
        return (left @ right.T).astype(np.float32)

    own, count = of_caption["val"], len(texts["val"])
    captioned = CaptionedImages(np.arange(count), own, count, len(pictures["val"]))
    tried = {}
    for ridges in itertools.product(RIDGES, RIDGES):
        found = joined.found(ridges)
        for width, power in itertools.product(WIDTHS, POWERS):
            both = retrieval_ranks(scores("val", found, width, power), captioned)
            tried[ridges, width, power] = (both.image_to_text <= 10).mean() + (both.text_to_image <= 10).mean()
    best = max(tried, key=tried.get)
    out.mkdir(parents=True, exist_ok=True)
    for split in ("val", "test"):
        np.save(out / f"{split}.npy", scores(split, joined.found(best[0]), *best[1:]))
        captions = [each.caption_id(place) for each in pictures[split] for place in range(len(each.captions))]
        write_ids(out / f"{split}.npy", captions, [each.image for each in pictures[split]], 1)
    chosen = {
        "ridges": best[0],
        "width": best[1],
        "power": best[2],
        "val R@10, mean of both ways": float(tried[best]) / 2,
    }
    (out / "chosen.json").write_text(json.dumps(chosen, indent=1) + "\n", "utf-8")
    print(json.dumps(chosen))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("store", "data", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--text", default="words", metavar="words|FOLDER")
    try:
        main(**vars(parser.parse_args()))
    except (OSError, ValueError) as error:
        sys.exit(f"floor.py: {error}")
