"""Our samples beside those of the official data codes of ViLBERT and InterBERT, from checkouts, with the same draws.

    python bench/sample_parity.py --vilbert CHECKOUT --vilbert-mt CHECKOUT --interbert CHECKOUT [--record GOLDEN.npz]

of jiasenlu/vilbert_beta, facebookresearch/vilbert-multi-task and black4321/InterBERT; nothing of theirs is copied here.
Each official `BertPreprocessBatch` gets the entry that its LMDB would hold, and its loader's own `__iter__` adds the
whole image. What they import and do not use for that (tensorpack, msgpack_numpy, scipy) is a stand-in. Our sampler runs
first, on a generator that notes each draw; the official code gets these draws where it asks `random` for one.

Prints the largest error of each field and exits with 1 when one is above its bar: 0 for whole numbers, 1e-6 of the
largest value for features, locations and targets.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from official_training import load_script, stand_in

from roibeam.features.record.region_record import RegionRecord
from roibeam.model.common.regions import elements_with_whole_image
from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.pipelines.data.batches.sample import PretrainSample, collate, in_float32
from roibeam.pipelines.data.captions.corpus import CaptionTable, Corpus
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer, load_tokenizer

NUM_CLASSES, WIDTH, MAX_REGIONS, MAX_PIECES = 1600, 2048, 36, 36  # fixed numbers of the official codes
IMAGES, CAPTIONS_PER_IMAGE, BATCH = 24, 2, 8
BAR = 1e-6
GOLDEN_COLUMNS = 5  # all of a location


class NotingGenerator:
    """A generator whose draws are noted, as numbers and as whole numbers, in their order."""

    def __init__(self, seed: Sequence[int]) -> None:
        self._random = np.random.default_rng(seed)
        self.numbers: deque[float] = deque()
        self.integers_drawn: deque[int] = deque()

    def random(self, size: int | None = None) -> Any:
        drawn = self._random.random(size)
        self.numbers.extend(np.atleast_1d(drawn).tolist())
        return drawn

    def integers(self, low: int, high: int | None = None, size: int | None = None) -> Any:
        drawn = self._random.integers(low, high, size)
        self.integers_drawn.extend(np.atleast_1d(drawn).tolist())
        return drawn


class GivenDraws:
    """Stands for the module `random` and for `numpy.random`: gives noted draws in their order.

    Args:
        caption_row: the first whole number of a pair that does not match -> the row of the caption that it stands for.
        flip_first: the multi-task release replaces a caption above 0.5, the others below.
    """

    def __init__(self, noted: NotingGenerator, caption_row: Callable[[int], int], *, flip_first: bool) -> None:
        self._noted, self._caption_row = noted, caption_row
        numbers = noted.numbers
        replaced = numbers[0] < 0.5
        self._ask_for_caption = replaced
        if flip_first:
            numbers[0] = 1.0 - numbers[0]

    def random(self) -> float:
        return self._next(self._noted.numbers)

    def randint(self, low: int, high: int | None = None) -> int:
        drawn = self._next(self._noted.integers_drawn)
        if self._ask_for_caption:
            self._ask_for_caption = False
            return self._caption_row(drawn)
        return drawn

    def choice(self, entries: Sequence[Any]) -> Any:
        return entries[self.randint(0, len(entries) - 1)]

    @staticmethod
    def _next(draws: deque[Any]) -> Any:
        if not draws:
            raise ValueError("the official code asks for more draws than ours: its rules are not these")
        return draws.popleft()

    def check_used_up(self) -> None:
        left = len(self._noted.numbers), len(self._noted.integers_drawn)
        if any(left):
            raise ValueError(f"the official code asked for fewer draws than ours: {left} are left")


class OfficialTokenizer:
    """What the official codes ask of BERT's tokenizer, from ours; `vocab` is in the order of its numbers."""

    mask_token = "[MASK]"

    def __init__(self, tokenizer: CaptionTokenizer) -> None:
        self._tokenizer = tokenizer
        self.vocab = {tokenizer.piece(number): number for number in range(tokenizer.vocab_size)}

    def __len__(self) -> int:
        return len(self.vocab)

    def encode(self, caption: str) -> list[int]:
        return self._tokenizer.encode(caption).ids[1:-1].tolist()

    def tokenize(self, caption: str) -> list[str]:
        return [self._tokenizer.piece(number) for number in self.encode(caption)]

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        return self.vocab[tokens] if isinstance(tokens, str) else [self.vocab[token] for token in tokens]

    def add_special_tokens_single_sentence(self, ids: list[int]) -> list[int]:
        return [self._tokenizer.cls_id, *ids, self._tokenizer.sep_id]


def official_module(checkout: Path, path: str, name: str) -> Any:
    """A file of a checkout as a module of its own, without the package around it.

    Raises:
        FileNotFoundError: when it is not there.
    """
    file = checkout / path
    if not file.is_file():
        raise FileNotFoundError(f"{checkout}: no {path} there; is it a checkout of that code?")
    stand_in("tensorpack.dataflow")
    stand_in("msgpack_numpy", patch=lambda: None)
    stand_in("msgpack")
    stand_in("scipy.spatial", distance=None)
    return load_script(file, name)


@dataclass(frozen=True)
class Case:
    """One official setting and what it is called here.

    Attributes:
        name: for people.
        system, size, sampling, model: ours.
        options: of the official `BertPreprocessBatch`.
        file: of the official data code.
        code: which checkout.
        full_images: every image has 36 regions: the multi-task release fails on fewer.
    """

    name: str
    code: str
    file: str
    system: str
    options: Mapping[str, Any]
    sampling: Mapping[str, Any]
    model: Mapping[str, Any]
    full_images: bool = False

    @property
    def classifies(self) -> bool:
        return self.model.get("region_loss", "kl") == "kl"


_VILBERT, _INTERBERT = "vilbert/datasets/concept_cap_dataset.py", "bertmodel/datasets/concept_cap_dataset.py"
_FEATURES = {"region_loss": "regression", "region_target_size": WIDTH}
CASES = (
    Case("vilbert_beta", "vilbert", _VILBERT, "vilbert", {}, {}, {}),
    Case("vilbert_beta, single stream", "vilbert", _VILBERT, "vilbert-single-stream", {}, {}, {}),
    Case("vilbert_beta --predict_feature", "vilbert", _VILBERT, "vilbert", {"predict_feature": True}, {}, _FEATURES),
    Case(
        "vilbert-multi-task --objective 1",
        "vilbert_mt",
        _VILBERT,
        "vilbert",
        {"bert_model": "bert-base-uncased", "objective": 1},
        {"overlapping_regions": "uncounted"},
        {"masked_loss_pairs": "matched"},
        full_images=True,
    ),
    Case(
        "vilbert-multi-task --visual_target 2",
        "vilbert_mt",
        _VILBERT,
        "vilbert",
        {"bert_model": "bert-base-uncased", "visual_target": 2},
        {"overlapping_regions": "uncounted"},
        {"region_loss": "contrastive", "region_target_size": WIDTH},
        full_images=True,
    ),
    Case("InterBERT", "interbert", _INTERBERT, "interbert", {}, {"masking": "single"}, {}),
    Case(
        "InterBERT --span_mask",
        "interbert",
        _INTERBERT,
        "interbert",
        {"span_mask": True},
        {"masking": "groups_as_released"},
        {},
    ),
    Case(
        "InterBERT --span_mask --predict_feature",
        "interbert",
        _INTERBERT,
        "interbert",
        {"span_mask": True, "predict_feature": True},
        {"masking": "groups_as_released"},
        _FEATURES,
    ),
)


@cache
def made_records(*, full: bool) -> dict[str, RegionRecord]:
    """Images of 10 to 36 regions (36 where `full`), many of them overlapping, with features that the detector could
    give; one of an image's features is zero, as InterBERT's rule asks for it."""
    records = {}
    for image in range(IMAGES):
        random = np.random.default_rng([7, image])
        count = MAX_REGIONS if full else int(random.integers(10, MAX_REGIONS + 1))
        height, width = (int(side) for side in random.integers(200, 700, 2))
        centre = random.uniform(0.25, 0.75, (count, 2))
        half = random.uniform(0.02, 0.25, (count, 2))
        corners = np.clip(np.concatenate([centre - half, centre + half], axis=1), 0, 1)
        # Sums and products of uniform draws alone: the same bits on every machine.
        features = np.maximum(4 * random.random((count, WIDTH)) - 2, 0).astype(np.float16)
        features[0] *= image % 3 > 0
        weights = random.random((count, NUM_CLASSES + 1))
        for _ in range(6):  # to the power of 64: peaked, as a detector's are
            weights = weights * weights
        distribution = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float16)
        name = str(100 + image)
        records[name] = RegionRecord(
            image_id=name,
            height=height,
            width=width,
            boxes=(corners * [width, height, width, height]).astype(np.float32),
            features=features,
            class_ids=distribution[:, :-1].argmax(1).astype(np.uint16),
            class_scores=np.sort(random.random(count).astype(np.float32))[::-1].copy(),
            class_distribution=distribution,
        )
    return records


def made_captions() -> list[str]:
    """Captions of 1 to 60 words of one to three pieces: some are longer than what the models read."""
    random = np.random.default_rng(11)
    syllables = ["sun", "tree", "boat", "red", "lamp", "field", "dog", "street", "cup", "wall"]
    words = [a + b for a in syllables for b in syllables]
    counts = random.integers(1, 61, IMAGES * CAPTIONS_PER_IMAGE)
    return [" ".join(random.choice(words, count)) for count in counts]


def vocabulary(folder: Path) -> CaptionTokenizer:
    """One that cuts those words."""
    syllables = ["sun", "tree", "boat", "red", "lamp", "field", "dog", "street", "cup", "wall"]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *syllables, *(f"##{part}" for part in syllables)]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return load_tokenizer(str(folder / "vocab.txt"))


def lmdb_entry(record: RegionRecord, image_id: int | str, caption: str) -> list[Any]:
    """What the official LMDB holds of an image: background FIRST in the class probabilities, numbers as text."""
    distribution = record.class_distribution
    assert isinstance(distribution, np.ndarray)
    probabilities = np.roll(distribution.astype(np.float32), 1, axis=1)
    features, count = record.features.astype(np.float32), str(record.num_regions)
    return [features, probabilities, record.boxes, count, str(record.height), str(record.width), image_id, caption]


def official_batches(
    case: Case, module: Any, entries: Sequence[Sequence[Any]], draws: Sequence[GivenDraws], tokenizer: Any, folder: Path
) -> Iterator[list[np.ndarray]]:
    """Through `BertPreprocessBatch` and the loader's `__iter__`; without its names of images."""
    captions = folder / "captions.json"
    options = {"caption_path": str(captions), "tokenizer": tokenizer, "seq_len": MAX_PIECES, "data_size": len(entries)}
    preprocess = module.BertPreprocessBatch(region_len=MAX_REGIONS, **options, **case.options)
    preprocess.num_caps = IMAGES * CAPTIONS_PER_IMAGE
    rows = []
    for entry, given in zip(entries, draws, strict=True):
        module.random = given
        if case.code == "vilbert_mt":  # draws random words with numpy
            module.np = SimpleNamespace(**{**vars(np), "random": given})
        rows.append(preprocess(entry))
        given.check_used_up()
    module.np = np
    batches = [
        tuple(np.stack(column) for column in zip(*rows[n : n + BATCH], strict=True)) for n in range(0, len(rows), BATCH)
    ]
    loader = object.__new__(module.ConceptCapLoaderTrain)
    loader.cond_mask = False
    # What the loader asks of its data flow.
    loader.ds = type("Data", (list,), {"get_data": lambda self: iter(self)})(batches)
    for batch in loader:
        yield [np.asarray(tensor) for tensor in batch]


def fields_here(case: Case, batch: VLBatch) -> dict[str, np.ndarray]:
    """Ours under the official names, in the official shapes; padding is 0, or -1 in labels."""
    elements = elements_with_whole_image(batch, count="all")
    assert batch.text_labels is not None and batch.match_labels is not None
    assert batch.region_targets is not None and batch.region_target_mask is not None
    labels, predicted = padded(batch.text_labels, MAX_PIECES, IGNORE_INDEX), padded(batch.region_target_mask)
    targets = batch.region_targets.numpy()
    if targets.ndim == 2:  # of predicted regions alone
        of_all = np.zeros((*batch.region_target_mask.shape, targets.shape[1]), targets.dtype)
        of_all[batch.region_target_mask.numpy()] = targets
        targets = of_all
    targets = padded(targets)
    fields = {
        "input_ids": padded(batch.text_ids, MAX_PIECES),
        "input_mask": padded(batch.text_mask, MAX_PIECES),
        "segment_ids": padded(batch.text_segments, MAX_PIECES),
        "lm_label_ids": np.where(labels == IGNORE_INDEX, -1, labels),
        "is_next": 1 - batch.match_labels.numpy(),
        "image_label": np.where(predicted, 1, -1),
        "image_mask": padded(elements.mask, MAX_REGIONS + 1),
        "image_feat": padded(elements.features[:, 1:]),
        "IMG": elements.features[:, 0].numpy(),
        "image_loc": padded(elements.locations, MAX_REGIONS + 1),
        "image_target": np.roll(targets, 1, axis=2) if case.classifies else targets,  # background first, as there
    }
    if case.code == "interbert":
        joint = [fields["image_mask"], fields["input_mask"]]
        fields["multimodal_mask"] = np.concatenate(joint, axis=1)
    return fields


def padded(values: Any, length: int = MAX_REGIONS, fill: float = 0) -> np.ndarray:
    values = np.asarray(values)
    whole = np.full((len(values), length, *values.shape[2:]), fill, values.dtype)
    whole[:, : values.shape[1]] = values
    return whole


def fields_there(case: Case, official: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """The official batch by names, with the targets that are read: of predicted regions, or of all if they contrast."""
    names = ("input_ids", "input_mask", "segment_ids", "lm_label_ids", "is_next", "image_feat", "image_loc")
    names += ("image_target", "image_label", "image_mask", *(("multimodal_mask",) if case.code == "interbert" else ()))
    fields = dict(zip(names, official, strict=False))
    features, label, mask = fields["image_feat"], fields["image_label"], fields["image_mask"]
    read = mask[:, 1:] == 1 if case.model.get("region_loss") == "contrastive" else label == 1
    return fields | {
        "IMG": features[:, 0],
        "image_feat": features[:, 1:],
        "image_target": fields["image_target"] * read[..., None],
    }


def largest(left: np.ndarray, right: np.ndarray) -> float:
    if left.shape != right.shape:
        raise ValueError(f"shapes differ: {left.shape} here, {right.shape} there")
    return float(np.abs(left.astype(np.float64) - right.astype(np.float64)).max())


@dataclass(frozen=True, eq=False)
class Made:
    """Samples of ours, with all that the official code needs to make the same."""

    samples: list[PretrainSample]
    draws: list[GivenDraws]
    entries: list[list[Any]]
    tokenizer: CaptionTokenizer

    def batches(self) -> Iterator[VLBatch]:
        for start in range(0, len(self.samples), BATCH):
            yield in_float32(collate(self.samples[start : start + BATCH], pad_id=self.tokenizer.pad_id))


def make_samples(case: Case, count: int, folder: Path) -> Made:
    """`count` samples of ours by the rules of `case`; writes captions.json for the official code."""
    records, captions, tokenizer = made_records(full=case.full_images), made_captions(), vocabulary(folder)
    table = CaptionTable(list(records), ((n // CAPTIONS_PER_IMAGE, caption) for n, caption in enumerate(captions)))
    corpus = Corpus(records, table)
    # InterBERT tells captions of one image by their names without the last character.
    names = [f"{corpus.record_id(row)}{row % CAPTIONS_PER_IMAGE}" for row in range(len(corpus))]
    (folder / "captions.json").write_text(json.dumps(dict(zip(names, captions, strict=True))))
    system = SYSTEMS[case.system]
    fields = {"vocab_size": tokenizer.vocab_size, "region_target_size": NUM_CLASSES + 1} | dict(case.model)
    config = system.sizes["base"](**fields)
    sampler = system.sampler(system.sampling(**case.sampling), tokenizer, config, num_classes=NUM_CLASSES)
    made = Made([], [], [], tokenizer)
    for number in range(count):
        row, noting = number % len(corpus), NotingGenerator([3, number])
        made.samples.append(sampler.sample(corpus, row, noting))  # type: ignore[arg-type]

        def caption_row(drawn: int, row: int = row) -> int:
            given: Any = SimpleNamespace(integers=lambda others: drawn)
            return corpus.draw_row_of_another_image(row, given)

        made.draws.append(GivenDraws(noting, caption_row, flip_first=case.code == "vilbert_mt"))
        # InterBERT's code reads the name as text, vilbert_beta's makes a tensor of it.
        name = names[row] if case.code == "interbert" else int(names[row])
        made.entries.append(lmdb_entry(corpus.record(row), name, captions[row]))
    return made


def run(case: Case, checkout: Path, count: int, folder: Path) -> tuple[bool, dict[str, np.ndarray]]:
    """Prints the errors of one case.

    Returns:
        whether all are below their bars, and what a golden keeps: the official fields of the first batch, of wide ones
        the first `GOLDEN_COLUMNS`.
    """
    module, made = official_module(checkout, case.file, f"official_{case.code}"), make_samples(case, count, folder)
    samples = made.samples
    replaced, words = (
        sum(sample.match == 0 for sample in samples),
        sum((s.text_labels != IGNORE_INDEX).sum() for s in samples),
    )
    regions, hidden = (sum(int(getattr(s, n).sum()) for s in samples) for n in ("predicted", "masked"))
    told = f"{count} samples, {replaced} mismatched, {words} words and {regions} regions predicted, {hidden} hidden"
    print(f"{case.name}: {told}")
    error: dict[str, float] = {}
    bar: dict[str, float] = {}
    kept: dict[str, np.ndarray] = {}
    there_batches = official_batches(case, module, made.entries, made.draws, OfficialTokenizer(made.tokenizer), folder)
    for ours, official in zip(made.batches(), there_batches, strict=True):
        here, there = fields_here(case, ours), fields_there(case, official)
        for name, right in there.items():
            error[name] = max(error.get(name, 0.0), largest(here[name], right))
            floating = np.issubdtype(right.dtype, np.floating)
            bar[name] = max(bar.get(name, 0.0), BAR * float(np.abs(right).max()) if floating else 0.0)
        kept = kept or {name: golden_part(right) for name, right in there.items()}
    for name, largest_error in error.items():
        above = "" if largest_error <= bar[name] else f"ABOVE {bar[name]:.1e}"
        print(f"  {name:<16} {largest_error:.1e}  {above}".rstrip())
    return all(error[name] <= bar[name] for name in error), kept


def golden_part(values: np.ndarray) -> np.ndarray:
    """What a golden keeps of a field: small whole numbers, and of wide rows the first `GOLDEN_COLUMNS`."""
    if not np.issubdtype(values.dtype, np.floating):
        return values.astype(np.int16)
    return values[..., :GOLDEN_COLUMNS].astype(np.float32)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for code in sorted({case.code for case in CASES}):
        parser.add_argument(f"--{code.replace('_', '-')}", type=Path, help="checkout; its cases are left out without")
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--record", type=Path, help="write what the official codes gave for the first batches here")
    options = parser.parse_args()
    fine, golden = [], {}
    for case in CASES:
        checkout = getattr(options, case.code)
        if checkout is not None:
            with tempfile.TemporaryDirectory() as folder:
                good, kept = run(case, checkout, options.samples, Path(folder))
            fine.append(good)
            golden |= {f"{case.name}/{name}": values for name, values in kept.items()}
    if not fine:
        parser.error("name at least one checkout")
    if options.record is not None:
        np.savez_compressed(options.record, **golden)
        print(f"{options.record}: {options.record.stat().st_size:,} bytes")
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
