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
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.datasets.karpathy import read_captioned
from roibeam.pipelines.finetuning.metrics.retrieval import write_ids

RIDGES, POWERS, WIDTHS = (0.1, 0.3, 1.0, 3.0), (0.5, 1.0, 2.0), (128, 256, 1024)
MIN_COUNT = 4  # of a word in the captions of train
BATCH = 256


def word_vectors(trained, texts):
    """(len(texts), words) float32: counts of the words of `trained`, each by the logarithm of how rare it is."""
    counts = Counter(word for text in trained for word in set(text.lower().split()))
    words = {word: row for row, word in enumerate(word for word, count in counts.items() if count >= MIN_COUNT)}
    rarity = np.log(len(trained) / np.array([counts[word] for word in words], np.float32))
    found = np.zeros((len(texts), len(words)), np.float32)
    for row, text in enumerate(texts):
        for word in text.lower().split():
            if word in words:
                found[row, words[word]] = rarity[words[word]]
    return found


@torch.inference_mode()
def bert_vectors(folder, texts):
    """(len(texts), width) float32: the mean of a BERT's last states over the pieces of each text."""
    from transformers import BertModel, BertTokenizerFast

    tokenizer, model = (
        BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=True),
        BertModel.from_pretrained(folder).eval(),
    )
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))  # little padding
    found = np.zeros((len(texts), model.config.hidden_size), np.float32)
    for start in range(0, len(texts), BATCH):
        rows = order[start : start + BATCH]
        pieces = tokenizer(
            [texts[row] for row in rows], padding=True, truncation=True, max_length=64, return_tensors="pt"
        )
        real = pieces["attention_mask"][..., None]
        found[rows] = ((model(**pieces).last_hidden_state * real).sum(1) / real.sum(1)).numpy()
    return found


def normed(rows):
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


class Joined:
    """Canonical correlation analysis of rows that belong together.

    Args:
        x: (n, D) texts; y: (n, E) photos.
    """

    def __init__(self, x, y):
        self.means = x.mean(0), y.mean(0)
        x, y = x - self.means[0], y - self.means[1]
        self.own = [np.linalg.eigh(each.T.astype(np.float64) @ each / len(each)) for each in (x, y)]
        self.cross = x.T.astype(np.float64) @ y / len(x)

    def found(self, ridges):
        """Whitening and directions of each side, and the correlations. A ridge is a share of the mean eigenvalue."""
        roots = [
            (vectors / np.sqrt(values.clip(0) + ridge * values.mean())) @ vectors.T
            for (values, vectors), ridge in zip(self.own, ridges, strict=True)
        ]
        left, strength, right = np.linalg.svd(roots[0] @ self.cross @ roots[1], full_matrices=False)
        return roots[0] @ left, roots[1] @ right.T, strength


def ranks(scores, image_of_caption):
    """From 1, ties against us: of each caption's photo, and of the best caption of each photo."""
    own = scores[np.arange(len(scores)), image_of_caption]
    of_texts = (scores >= own[:, None]).sum(1)
    better = [(scores[:, image] >= own[image_of_caption == image].max()).sum() for image in range(scores.shape[1])]
    return of_texts, np.array(better)


def main(store, data, out, text):
    pictures = {split: read_captioned(data, split)[0] for split in ("train", "val", "test")}
    texts = {split: [caption for each in found for caption in each.captions] for split, found in pictures.items()}
    of_caption = {
        split: np.repeat(np.arange(len(found)), [len(each.captions) for each in found])
        for split, found in pictures.items()
    }
    every = [caption for found in texts.values() for caption in found]
    vectors = word_vectors(texts["train"], every) if text == "words" else bert_vectors(Path(text), every)
    sizes = np.cumsum([len(found) for found in texts.values()])
    x = dict(zip(texts, np.split(normed(vectors), sizes[:-1]), strict=True))
    with FeatureStore(store) as opened:
        y = {}
        for split, found in pictures.items():
            whole = [opened.get(each.image).image_feature for each in found]
            if any(each is None for each in whole):
                raise ValueError(f"{store} has no feature of whole photos; extract it with --image-feature region")
            y[split] = normed(np.stack(whole).astype(np.float32))
    joined = Joined(x["train"], y["train"][of_caption["train"]])

    def scores(split, found, width, power):
        *layers, strength = found
        left, right = (
            normed((rows - mean) @ (layer[:, :width] * strength[:width] ** (power / 2)))
            for rows, mean, layer in zip((x[split], y[split]), joined.means, layers, strict=True)
        )
        return (left @ right.T).astype(np.float32)

    tried = {}
    for ridges in itertools.product(RIDGES, RIDGES):
        found = joined.found(ridges)
        for width, power in itertools.product(WIDTHS, POWERS):
            both = ranks(scores("val", found, width, power), of_caption["val"])
            tried[ridges, width, power] = sum(float((each <= 10).mean()) for each in both)
    best = max(tried, key=tried.get)
    out.mkdir(parents=True, exist_ok=True)
    for split in ("val", "test"):
        np.save(out / f"{split}.npy", scores(split, joined.found(best[0]), *best[1:]))
        captions = [each.caption_id(place) for each in pictures[split] for place in range(len(each.captions))]
        write_ids(out / f"{split}.npy", captions, [each.image for each in pictures[split]], 1)
    chosen = {"ridges": best[0], "width": best[1], "power": best[2], "val R@10, mean of both ways": tried[best] / 2}
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
