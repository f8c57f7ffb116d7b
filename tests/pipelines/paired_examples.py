"""Small records and captions, and tasks on them, for the systems whose rows are one caption beside one image."""

import dataclasses
from functools import cache

import captioned_records
import numpy as np
import torch
from binomial import assert_share
from captioned_records import CAPTIONS, NUM_CLASSES

from roibeam.pipelines.data.captions.corpus import CaptionTable, Corpus
from roibeam.pipelines.pretraining.samples.sampling import DataConfig
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.pretraining.task import PretrainTask
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer

WIDTH, IMAGE = 12, 400
TINY = {
    "vilbert": {
        "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
        "image_hidden_size": 40, "image_num_hidden_layers": 1, "image_num_attention_heads": 4,
        "image_intermediate_size": 64, "co_attention_size": 48, "co_attention_num_heads": 4,
        "text_co_attention": (1,), "image_co_attention": (0,),
    },
    "vilbert-single-stream": {
        "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
    },
    "interbert": {
        "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 96,
        "text_num_hidden_layers": 1, "image_num_hidden_layers": 1, "image_num_attention_heads": 4,
        "image_intermediate_size": 96, "pooled_size": 48,
    },
}  # fmt: skip
NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
NO_IMAGE_DROPOUT = {"image_hidden_dropout": 0.0, "image_attention_dropout": 0.0, "region_embedding_dropout": 0.0}
NO_IMAGE_DROPOUT |= {"pair_dropout": 0.0}


def no_dropout(system):
    return NO_DROPOUT | ({} if system == "vilbert-single-stream" else NO_IMAGE_DROPOUT)


class FakeStore(captioned_records.FakeStore):
    feature_dim = WIDTH


def apart(count):
    """(count, 4) boxes that do not touch."""
    corner = np.stack([np.arange(count) % 20, np.arange(count) // 20], axis=1) * 20.0
    return np.concatenate([corner, corner + 15], axis=1).astype(np.float32)


def make_record(image_id, seed, *, num_regions=None, **changes):
    square = {"height": IMAGE, "width": IMAGE, "image_feature": None}
    record = captioned_records.make_record(image_id, seed, num_regions=num_regions, width=WIDTH, dtype=np.float16)
    return dataclasses.replace(record, **(square | changes))


def make_store(images=8):
    return FakeStore({f"image-{index}": make_record(f"image-{index}", index) for index in range(images)})


def make_corpus(store, captions=CAPTIONS, per_image=1):
    """`per_image` captions of each image, from the list in turn."""
    rows = ((n // per_image, captions[n % len(captions)]) for n in range(len(store) * per_image))
    return Corpus(store, CaptionTable(list(store), rows))


def captions_tokenizer():
    return remembered(load_tokenizer("captions", CAPTIONS * 2))  # twice: every word is common enough to stay whole


def remembered(tokenizer):
    """Thousands of draws from few captions: encodings are looked up, in read-only arrays."""
    encode = tokenizer.encode

    @cache
    def read_only(caption):
        encoded = encode(caption)
        encoded.ids.flags.writeable = encoded.word_ids.flags.writeable = False
        return encoded

    tokenizer.encode = read_only
    return tokenizer


def pieces_tokenizer(folder):
    """One whose words are cut into two pieces: "a1" is a and ##1."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", *(f"##{digit}" for digit in range(10))]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return remembered(load_tokenizer(str(folder / "vocab.txt")))


def model_config(system, tokenizer, size="small", **sizes):
    fields = {"vocab_size": tokenizer.vocab_size, "region_feature_size": WIDTH, "region_target_size": NUM_CLASSES + 1}
    return SYSTEMS[system].sizes[size](**(TINY[system] | fields | no_dropout(system) | sizes))


def make_sampler(system, tokenizer, *, sizes=None, num_classes=NUM_CLASSES, **sampling):
    chosen = SYSTEMS[system]
    config = model_config(system, tokenizer, **(sizes or {}))
    return chosen.sampler(chosen.sampling(**sampling), tokenizer, config, num_classes=num_classes)


def make_task(system, corpus, tokenizer, *, sizes=None, batch_size=4, fixed_masks=False, seed=0, **sampling):
    torch.manual_seed(0)
    model = SYSTEMS[system].model_class(model_config(system, tokenizer, **(sizes or {})))
    sampler = make_sampler(system, tokenizer, sizes=sizes, **sampling)
    data = DataConfig(batch_size=batch_size, fixed_masks=fixed_masks)
    return PretrainTask(model, corpus, sampler, data, pad_id=tokenizer.pad_id, seed=seed)


def samples(sampler, corpus, count, seed=0):
    """One sample after the other, each from a generator of its own."""
    for number in range(count):
        row = number % len(corpus)
        yield row, sampler.sample(corpus, row, np.random.default_rng([seed, number]))


def one(sampler, corpus, row=0, seed=0):
    return sampler.sample(corpus, row, np.random.default_rng(seed))


def caption_of_halves(words):
    """So many words, of two pieces each for `pieces_tokenizer`."""
    return " ".join(f"{'abcdefghij'[n % 10]}{n % 7}" for n in range(words))


def assert_replaced(ids, before, chosen, tokenizer):
    """80% [MASK], 10% any piece of the vocabulary, 10% what was there.

    Args:
        ids: (rows, T), what is read now. before: (T,). chosen: (rows, T) bool, each with a draw of its own.
    """
    now, was, size = ids[chosen], np.broadcast_to(before, ids.shape)[chosen], tokenizer.vocab_size
    same = 0.1 / size
    assert_share((now == tokenizer.mask_id).sum(), len(now), 0.8 + same)
    assert_share((now == was).sum(), len(now), 0.1 + same)
    for piece in range(size):
        if piece != tokenizer.mask_id:
            others = was != piece
            assert_share((now[others] == piece).sum(), others.sum(), same)
