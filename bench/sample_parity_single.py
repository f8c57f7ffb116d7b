"""Samples of VL-BERT and VisualBERT beside those of the official data codes, both with the same draws.

    python bench/sample_parity_single.py --vl-bert CHECKOUT --visualbert CHECKOUT --vocab vocab.txt

Checkouts of jackroos/VL-BERT and uclanlp/visualbert; nothing of theirs is copied here. Theirs: the data sets' own
`__getitem__`, with their tokenizers, on made captions, texts, boxes and features. Ours: the samplers that `roibeam
pretrain` uses. Every uniform number, random piece and drawn caption of theirs is handed to ours. For each field the
largest error over all samples is printed; the exit status is 1 when one is above its tolerance.

Stand-ins: AllenNLP's containers, of which only the arrays inside are read, and what the modules import and do not use
here (jsonlines, drawing of masks). VL-BERT's transform is left out, which resizes photos and boxes: stored boxes are in
pixels of the photo.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from official_models import import_from, stand_in

from features.record import RegionRecord
from model.inputs import IGNORE_INDEX
from model.visualbert import VisualBertConfig
from model.vlbert_config import vlbert_config
from pipelines.caption_table import CaptionTable
from pipelines.pretraining.corpus import Corpus
from pipelines.pretraining.sample import PretrainSample
from pipelines.pretraining.visualbert_samples import VisualBertSampler, VisualBertSampling
from pipelines.pretraining.vlbert_samples import VLBertSampler, VLBertSampling
from pipelines.tokenizer import CaptionTokenizer, load_tokenizer

NUM_CLASSES, WIDTH, IMAGES = 20, 16, 12
# Sums over regions in another order; everything else is equal to the bit.
TOLERANCES = {"whole image": 1e-5}


class Draws:
    """Draws by number, for both sides: a sequence of uniform numbers, and one of random pieces.

    `rows` are the rows that theirs drew from their data, which ours must draw too.
    """

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.uniforms, self.pieces = random.random(4000), random.integers(2**31, size=4000)
        self.rows: list[int] = []


class TheirRandom:
    """In the place of the module `random`."""

    def __init__(self, draws: Draws) -> None:
        self._uniforms, self._pieces = iter(draws.uniforms), iter(draws.pieces)
        self._rows = draws.rows
        self._other = np.random.default_rng(int(draws.pieces[-1]))

    def random(self) -> float:
        return float(next(self._uniforms))

    def choice(self, options: Any) -> Any:
        return options[int(next(self._pieces)) % len(options)]

    def randint(self, first: int, last: int) -> int:
        self._rows.append(int(self._other.integers(first, last + 1)))
        return self._rows[-1]

    def randrange(self, first: int, end: int) -> int:
        return self.randint(first, end - 1)


class OurRandom:
    """In the place of numpy's generator. Theirs mismatch a pair above a half, ours below it."""

    def __init__(self, draws: Draws, choice: int | None, *, pairs: bool) -> None:
        self._uniforms = list(draws.uniforms)
        if pairs:
            self._uniforms[0] = 1 - self._uniforms[0]
        self._pieces, self._choice = iter(draws.pieces), choice

    def random(self, size: int | None = None) -> Any:
        drawn = [self._uniforms.pop(0) for _ in range(1 if size is None else size)]
        return drawn[0] if size is None else np.array(drawn)

    def integers(self, high: int, size: int | None = None) -> Any:
        if size is None:
            return self._choice
        return np.array([int(next(self._pieces)) % high for _ in range(size)], np.int64)


class Errors:
    """The largest error of each field; of another shape, infinite."""

    def __init__(self) -> None:
        self.largest: dict[str, float] = {}
        self.samples: dict[str, int] = {}

    def add(self, system: str, fields: Mapping[str, tuple[Any, Any]]) -> None:
        for name, (ours, theirs) in fields.items():
            key, ours, theirs = f"{system}: {name}", np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
            error = float("inf")
            if ours.shape == theirs.shape:
                error = float(np.abs(ours - theirs).max(initial=0.0))
            self.largest[key] = max(self.largest.get(key, 0.0), error)
            self.samples[key] = self.samples.get(key, 0) + 1

    def report(self) -> bool:
        """Prints all; whether each is within its tolerance."""
        within = True
        for key, error in self.largest.items():
            tolerance = TOLERANCES.get(key.split(": ")[1], 0.0)
            within &= error <= tolerance
            print(f"{key:<40} {self.samples[key]:>5} samples, largest error {error:.2g} (at most {tolerance:g})")
        return within


def make_texts(count: int, *, longest: int) -> list[str]:
    """Sentences with words of several pieces, punctuation and accents; some as long as `longest` words."""
    words = "a dog runs after the xylophonist's ball , café tables don't tessellate ; under electroluminescent signs !"
    random, pool = np.random.default_rng(0), words.split()
    lengths = [longest if place % 5 == 0 else int(random.integers(3, 15)) for place in range(count)]
    return [" ".join(random.choice(pool, length)) for length in lengths]


def make_records() -> dict[str, RegionRecord]:
    records = {}
    for place in range(IMAGES):
        random = np.random.default_rng(place)
        count = int(random.integers(1, 90))
        corner = random.uniform(0, 200, (count, 2))
        # No two regions have one largest probability: VL-BERT sorts by it, equal ones in any order.
        largest = 0.5 + random.permutation(800)[:count, None] / 2048
        probabilities = np.repeat(((1 - largest) / NUM_CLASSES), NUM_CLASSES + 1, axis=1).astype(np.float16)
        probabilities[np.arange(count), random.integers(NUM_CLASSES + 1, size=count)] = largest[:, 0]
        records[str(place)] = RegionRecord(
            image_id=str(place),
            height=420,
            width=480,
            boxes=np.concatenate([corner, corner + random.uniform(1, 200, (count, 2))], 1).astype(np.float32),
            features=random.standard_normal((count, WIDTH)).astype(np.float32),
            class_ids=probabilities[:, :-1].argmax(1).astype(np.uint16),
            class_scores=probabilities.max(1).astype(np.float32),  # background included, as VL-BERT has it
            class_distribution=probabilities,
        )
    return records


def labels_of(theirs: Any) -> np.ndarray:
    """-1 is where theirs predict nothing."""
    labels = np.asarray(theirs)
    return np.where(labels == -1, IGNORE_INDEX, labels)


def choice_for(corpus: Corpus, row: int, wanted: int) -> int:
    """What `Corpus.draw_row_of_another_image` must draw to give the row `wanted`."""
    others = len(corpus) - len(corpus.rows_of_image(row))
    give = (SimpleNamespace(integers=lambda high, number=number: number) for number in range(others))
    drawn: list[Any] = [corpus.draw_row_of_another_image(row, random) for random in give]
    return drawn.index(wanted)


# --- VL-BERT ---


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


# --- VisualBERT ---


class _Field:
    """Of AllenNLP: the array that goes into a batch."""

    def __init__(self, array: Any, padding_value: int = 0) -> None:
        self.array = np.asarray(array)


class _Arguments(dict[str, Any]):
    __getattr__ = dict.__getitem__


def official_coco(checkout: Path) -> Any:
    """The module dataloaders/coco_dataset.py of uclanlp/visualbert; `checkout` holds its folder `visualbert`."""
    containers = ("TextField", "ListField", "LabelField", "SequenceLabelField", "ArrayField", "MetadataField")
    stand_in("allennlp")
    stand_in("allennlp.data")
    stand_in("allennlp.nn")
    stand_in("allennlp.data.dataset", Batch=None)
    stand_in("allennlp.data.fields", **dict.fromkeys(containers, _Field))
    stand_in("allennlp.data.instance", Instance=lambda fields: {name: field.array for name, field in fields.items()})
    stand_in("allennlp.data.token_indexers", ELMoTokenCharactersIndexer=None)
    stand_in("allennlp.data.tokenizers", Token=None)
    stand_in("allennlp.data.vocabulary", Vocabulary=None)
    stand_in("allennlp.nn.util", get_text_field_mask=None)
    fields = dict.fromkeys(("BertField", "IntArrayField", "IntArrayTensorField", "ArrayTensorField"), _Field)
    stand_in("dataloaders.bert_field", **fields)
    stand_in("dataloaders.box_utils", load_image=None, resize_image=None, to_tensor_and_normalize=None)
    stand_in("dataloaders.mask_utils", make_mask=None)
    sys.path.insert(0, str(checkout))
    try:
        return import_from(checkout / "visualbert", "dataloaders.coco_dataset")
    finally:
        sys.path.remove(str(checkout))


def visualbert(checkout: Path, tokenizer: CaptionTokenizer, vocab: Path, errors: Errors) -> None:
    """Two captions, one caption and words alone, with the box numbers that go to Flickr30k's models."""
    module = official_coco(checkout)
    records, captions = make_records(), make_texts(4 * IMAGES, longest=110)
    images = [place % IMAGES for place in range(len(captions))]
    notes = [
        {"id": place, "image_id": image, "caption": caption}
        for place, (image, caption) in enumerate(zip(images, captions, strict=True))
    ]
    coco = module.COCO()
    coco.dataset = {"images": [{"id": image} for image in range(IMAGES)], "annotations": notes}
    coco.createIndex()
    corpus = Corpus(records, CaptionTable(list(records), zip(images, captions, strict=True)))
    config = VisualBertConfig(vocab_size=tokenizer.vocab_size, region_feature_size=WIDTH + 6)
    for form, two, none in (
        ("two_captions", True, False),
        ("one_caption", False, False),
        ("words_only", False, True),
    ):
        theirs = module.COCODataset.__new__(module.COCODataset)
        theirs.args = _Arguments(
            image_feature_type="flickr", two_sentence=two, no_next_sentence=none, false_caption_ratio=0.5
        )
        theirs.image_feature_type, theirs.text_only, theirs.add_spatial_features = "flickr", False, True
        theirs.coco, theirs.items = coco, coco.loadAnns(coco.getAnnIds())
        theirs.expanded, theirs.max_seq_length = False, 128
        theirs.tokenizer, theirs.masked_lm_prob = module.BertTokenizer(str(vocab)), 0.15
        theirs.visual_genome_chunk = {
            int(image_id): {
                "features": record.features, "boxes": record.boxes,
                "image_w": record.width, "image_h": record.height,
            }
            for image_id, record in records.items()
        }  # fmt: skip
        settings = VisualBertSampling(text_form=form, cut="release_front", box_numbers=True)
        sampler = VisualBertSampler(settings, tokenizer, config, num_classes=0)
        for case in range(6 * len(captions)):
            row, draws = case % len(captions), Draws(case)
            if form == "one_caption":
                draws.uniforms[0] = 1 - draws.uniforms[0]  # here theirs mismatch below a half
            module.random = sys.modules["pytorch_pretrained_bert.fine_tuning"].random = TheirRandom(draws)
            sample = theirs[row]
            if form == "one_caption":
                draws.uniforms[0] = 1 - draws.uniforms[0]
            ours = sampler.sample(
                corpus,
                row,
                OurRandom(draws, _their_choice(corpus, row, draws, sample), pairs=not none),  # type: ignore[arg-type]
            )
            compared = _visualbert_fields(ours, sample)
            if not none:
                compared["match"] = (ours.match, int(sample["is_random_next"]))
            errors.add(f"VisualBERT {form}", compared)


def _their_choice(corpus: Corpus, row: int, draws: Draws, sample: Mapping[str, Any]) -> int | None:
    if not draws.rows:
        return None
    matched = bool(sample["is_random_next"])
    return draws.rows[-1] if matched else choice_for(corpus, row, draws.rows[-1])


def _visualbert_fields(ours: PretrainSample, sample: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        "text": (ours.text_ids, sample["bert_input_ids"]),
        "segments": (ours.text_segments, sample["bert_input_type_ids"]),
        "labels": (ours.text_labels, labels_of(sample["masked_lm_labels"])),
        "features": (ours.features, sample["image_feat_variable"]),
    }


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
