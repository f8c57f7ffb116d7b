"""Samples of VL-BERT and VisualBERT beside those of the official data codes, both with the same draws.

    python bench/sample_parity_single.py --vl-bert CHECKOUT --visualbert CHECKOUT --vocab vocab.txt

Checkouts of jackroos/VL-BERT and uclanlp/visualbert; nothing of theirs is copied here. Theirs: the data sets' own
`__getitem__`, with their tokenizers, on made captions, texts, boxes and features. Ours: the samplers that `roibeam
pretrain` uses. Every uniform number, random piece and drawn caption or answer of theirs is handed to ours. For each
field the largest error over all samples is printed; the exit status is 1 when one is above its tolerance.

VL-BERT's transform is left out, which resizes photos and boxes: stored boxes are in pixels of the photo. For
VisualBERT's data sets see `sample_parity_visualbert`.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from official_training import import_from, stand_in
from sample_comparison import (
    IMAGES,
    NUM_CLASSES,
    WIDTH,
    Draws,
    Errors,
    OurRandom,
    TheirRandom,
    choice_for,
    labels_of,
    make_records,
    make_texts,
)
from sample_parity_visualbert import visualbert

from roibeam.model.vlbert.config import vlbert_config
from roibeam.pipelines.data.captions.corpus import CaptionTable, Corpus
from roibeam.pipelines.pretraining.samples.sampling import VLBertSampling
from roibeam.pipelines.pretraining.samples.vlbert import VLBertSampler
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer, load_tokenizer


def vlbert_captions(checkout: Path, tokenizer: CaptionTokenizer, vocab: Path, errors: Errors) -> None:
    """pretrain/data/datasets/conceptual_captions.py with the relationship task, stored features, 64 elements."""
    stand_in("jsonlines", open=lambda path: map(json.loads, Path(path).read_text().splitlines()))
    module = import_from(checkout, "pretrain.data.datasets.conceptual_captions")
    records, captions = make_records(), make_texts(IMAGES, longest=80)
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for image_id, record in records.items():
            assert isinstance(record.class_distribution, np.ndarray)
            scores = record.class_distribution.astype(np.float32)
            raw = {"boxes": record.boxes, "features": record.features, "classes": scores}
            coded: dict[str, Any] = {name: base64.b64encode(array.tobytes()).decode() for name, array in raw.items()}
            coded |= {"image_w": record.width, "image_h": record.height, "num_boxes": record.num_regions}
            (Path(folder) / f"r{image_id}.json").write_text(json.dumps(coded))
            words = captions[int(image_id)].split()
            rows.append({"image": "none", "frcnn": f"r{image_id}.json", "caption": words})
        (Path(folder) / "train_frcnn.json").write_text("\n".join(map(json.dumps, rows)))
        theirs = module.ConceptualCaptionsDataset(
            "", "train", folder, folder, seq_len=64, with_precomputed_visual_feat=True, zip_mode=True,
            tokenizer=module.BertTokenizer(str(vocab)), add_image_as_a_box=True,
        )  # fmt: skip
        corpus = Corpus(records, CaptionTable(list(records), enumerate(captions)))
        config = vlbert_config(
            "paper", vocab_size=tokenizer.vocab_size, region_feature_size=WIDTH, num_region_labels=NUM_CLASSES + 1
        )
        sampler = VLBertSampler(VLBertSampling(), tokenizer, config, num_classes=NUM_CLASSES)
        for case in range(20 * IMAGES):
            row, draws = case % IMAGES, Draws(case)
            module.random = TheirRandom(draws)
            _, boxes, _, text, match, labels, masked, targets = theirs[row]
            choice = choice_for(corpus, row, draws.rows[-1]) if draws.rows else None
            ours = sampler.sample(corpus, row, OurRandom(draws, choice, pairs=True))  # type: ignore[arg-type]
            assert ours.targets is not None and ours.whole_image is not None
            errors.add("VL-BERT captions", {
                "text": (ours.text_ids, text),
                "labels": (ours.text_labels, labels_of(labels)),
                "match": (ours.match, match),
                "boxes": (ours.boxes, boxes[1:, :4]),
                "features": (ours.features, boxes[1:, 4:]),
                "whole image": (ours.whole_image, boxes[0, 4:]),
                "hidden regions": (ours.masked, np.asarray(masked[1:]) == 1),
                "predicted regions": (ours.predicted, targets[1:].sum(1) > 0),
                "targets": (ours.targets, targets[1:]),
            })  # fmt: skip


def vlbert_texts(checkout: Path, tokenizer: CaptionTokenizer, vocab: Path, errors: Errors) -> None:
    """pretrain/data/datasets/general_corpus.py, 64 words at least, 64 pieces at most."""
    module = import_from(checkout, "pretrain.data.datasets.general_corpus")
    lines = make_texts(30, longest=90)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "corpus.txt"
        file.write_text("\n\n".join(lines), "utf-8")
        theirs = module.GeneralCorpus(str(file), None, tokenizer=module.BertTokenizer(str(vocab)))
    config = vlbert_config("release", vocab_size=tokenizer.vocab_size, num_region_labels=NUM_CLASSES + 1)
    sampler = VLBertSampler(VLBertSampling(), tokenizer, config, num_classes=NUM_CLASSES)
    for case in range(10 * len(lines)):
        draws, line = Draws(case), case % len(lines)
        module.random = TheirRandom(draws)
        text, labels = theirs[line]
        ours = sampler.text_sample(lines, line, OurRandom(draws, None, pairs=False))  # type: ignore[arg-type]
        errors.add("VL-BERT text", {"text": (ours.text_ids, text), "labels": (ours.text_labels, labels_of(labels))})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vl-bert", type=Path, help="checkout of jackroos/VL-BERT")
    parser.add_argument("--visualbert", type=Path, help="checkout of uclanlp/visualbert")
    parser.add_argument("--vocab", type=Path, required=True, help="vocab.txt of bert-base-uncased")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer, errors = load_tokenizer(str(options.vocab)), Errors()
    if options.vl_bert is not None:
        vlbert_captions(options.vl_bert, tokenizer, options.vocab, errors)
        vlbert_texts(options.vl_bert, tokenizer, options.vocab, errors)
    if options.visualbert is not None:
        visualbert(options.visualbert, tokenizer, options.vocab, errors)
    return 0 if errors.report() else 1


if __name__ == "__main__":
    sys.exit(main())
