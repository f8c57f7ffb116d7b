"""Samples of VisualBERT beside those of uclanlp/visualbert's data sets, for `sample_parity_single`.

Captions: coco_dataset.py in three forms, flickr_dataset.py. Texts of a task: vqa_dataset.py, vcr.py (all eight texts of
a question) and nlvr_dataset.py (with its question and without). Both sides read the same files, written as the data
sets' authors write them; but for COCO, whose captions are handed over, VQA, which the release reads as Pythia prepared
it (imdb files), and Flickr30k's features, in which box numbers are stored.

What is known to differ is left out (docs/train.md, "A task's own text"). Of VQA: the release spells an answer
letter by letter, so ours is given spelt ones; Pythia's questions have lost their commas, so these have none. Of VCR: a
text in which the choice brings a person to people of the context, whom the release gives a name that is taken; a text
that is too long, with a context of more than 32 pieces, of which vcr.py keeps all and `release_front` does not; boxes
and features, since the release reads photos. Of NLVR2: statements numbered from 10 on, of whose images the release gets
the names wrong.
"""

from __future__ import annotations

import json
import pickle
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import torch
from official_training import Options
from official_visualbert_data import arrays_of, official_data
from sample_comparison import (
    IMAGES,
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

from roibeam.features.record.region_record import RegionRecord
from roibeam.model.visualbert.model import VisualBertConfig
from roibeam.pipelines.data.batches.sample import PretrainSample
from roibeam.pipelines.data.captions.captioned_store import UsableCaptions, join_task_texts
from roibeam.pipelines.data.captions.corpus import CaptionTable, Corpus
from roibeam.pipelines.data.captions.task_texts import TaskCorpus, TaskTexts
from roibeam.pipelines.data.datasets.caption_lists import read_sentence_folder
from roibeam.pipelines.pretraining.samples.sampling import VisualBertSampling
from roibeam.pipelines.pretraining.samples.visualbert import VisualBertSampler
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer

MAX_PIECES, MAX_REGIONS = 128, 36
TEXTS = 2 * IMAGES
ANSWERS = ("yes", "2", "New York", "café", "xylophonist's ball", "don't know", "no, never", "1/2", "a dog", "!")
OBJECTS = ("person", "person", "dog", "person", "cup", "person")  # of a VCR photo
PEOPLE = [number for number, name in enumerate(OBJECTS) if name == "person"]
EIGHT = 8  # texts of a VCR question
UNCUT_CONTEXT = 32  # pieces: so many of the first text are kept by `cut_from_the_front`


class MadeStore(dict[str, RegionRecord]):
    """What `join_task_texts` asks of a feature store."""

    path = "made records"

    def ids(self) -> list[str]:
        return list(self)


def visualbert(checkout: Path, tokenizer: CaptionTokenizer, vocab: Path, errors: Errors) -> None:
    for compare in (coco, flickr, vqa, vcr, nlvr2):
        with tempfile.TemporaryDirectory() as folder:
            compare(checkout, tokenizer, vocab, errors, Path(folder))


# --- captions ---


def coco(checkout: Path, tokenizer: CaptionTokenizer, vocab: Path, errors: Errors, folder: Path) -> None:
    """Two captions, one caption and words alone, with the box numbers that go to Flickr30k's models."""
    module = official_data(checkout, "coco_dataset")
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
    for form, two, none in (
        ("two_captions", True, False),
        ("one_caption", False, False),
        ("words_only", False, True),
    ):
        theirs = module.COCODataset.__new__(module.COCODataset)
        theirs.args = Options(
            image_feature_type="flickr", two_sentence=two, no_next_sentence=none, false_caption_ratio=0.5
        )
        theirs.image_feature_type, theirs.text_only, theirs.add_spatial_features = "flickr", False, True
        theirs.coco, theirs.items = coco, coco.loadAnns(coco.getAnnIds())
        theirs.expanded, theirs.max_seq_length = False, MAX_PIECES
        theirs.tokenizer, theirs.masked_lm_prob = module.BertTokenizer(str(vocab)), 0.15
        theirs.visual_genome_chunk = {
            int(image_id): {
                "features": record.features, "boxes": record.boxes,
                "image_w": record.width, "image_h": record.height,
            }
            for image_id, record in records.items()
        }  # fmt: skip
        sampler = _sampler(tokenizer, asks=not none, text_form=form, cut="release_front", box_numbers=True)
        for case in range(6 * len(captions)):
            row, draws = case % len(captions), Draws(case)
            if form == "one_caption":
                draws.uniforms[0] = 1 - draws.uniforms[0]  # here theirs mismatch below a half
            module.random = _their_random(draws)
            sample = arrays_of(theirs[row])
            if form == "one_caption":
                draws.uniforms[0] = 1 - draws.uniforms[0]
            choice = _their_choice(corpus, row, draws, sample)
            ours = sampler.sample(corpus, row, OurRandom(draws, choice, pairs=not none))  # type: ignore[arg-type]
            errors.add(f"VisualBERT {form}", _text_fields(ours, sample) | _region_fields(ours, sample))


def _their_choice(corpus: Corpus, row: int, draws: Draws, sample: Mapping[str, Any]) -> int | None:
    if not draws.rows:
        return None
    matched = bool(sample["is_random_next"])
    return draws.rows[-1] if matched else choice_for(corpus, row, draws.rows[-1])


def flickr(checkout: Path, tokenizer: CaptionTokenizer, vocab: Path, errors: Errors, folder: Path) -> None:
    """Captions with a phrase that has a box, the only ones that the release takes; words alone, box numbers stored."""
    module = official_data(checkout, "flickr_dataset")
    records, captions = make_records(), make_texts(TEXTS, longest=140)
    entities = folder / "Flickr30kEntities"
    for kind in ("Sentences", "Annotations"):
        (entities / kind).mkdir(parents=True)
    for image_id in records:
        marked = [f"[/EN#7/people/other Two men] {text}" for text in captions[int(image_id) :: IMAGES]]
        (entities / "Sentences" / f"{image_id}.txt").write_text("\n".join(marked), "utf-8")
        box = "<xmin>5</xmin><ymin>5</ymin><xmax>99</xmax><ymax>99</ymax>"
        (entities / "Annotations" / f"{image_id}.xml").write_text(
            f"<annotation><object><name>7</name><bndbox>{box}</bndbox></object></annotation>"
        )
    ends = np.cumsum([record.num_regions for record in records.values()])
    starts = ends - [record.num_regions for record in records.values()]
    (folder / "train_imgid2idx.pkl").write_bytes(pickle.dumps({int(image_id): int(image_id) for image_id in records}))
    with h5py.File(folder / "train.hdf5", "w") as file:
        file["image_features"] = np.concatenate([record.features for record in records.values()])
        file["image_bb"] = np.concatenate([record.boxes for record in records.values()])
        file["spatial_features"] = np.concatenate([_spatial(record) for record in records.values()])
        file["pos_boxes"] = np.stack([starts, ends], axis=1)
    settings = {"add_spatial_features": True, "pretraining": True} | _settings(vocab)
    theirs = module.Flickr30kFeatureDataset("train", Options(settings), data_root=str(folder))
    read = [(int(name), text) for name, texts in read_sentence_folder(str(entities / "Sentences")) for text in texts]
    corpus = Corpus(records, CaptionTable(list(records), read))
    # Theirs follow the index of images, ours the names of files.
    rows = sorted(range(len(read)), key=lambda row: read[row][0])
    sampler = _sampler(tokenizer, asks=False, text_form="words_only", box_numbers=True)
    for case in range(10 * len(read)):
        draws, index = Draws(case), case % len(read)
        _their_random(draws)
        sample = arrays_of(theirs[index])
        ours = sampler.sample(corpus, rows[index], OurRandom(draws, None, pairs=False))  # type: ignore[arg-type]
        errors.add("VisualBERT Flickr30k", _text_fields(ours, sample) | _region_fields(ours, sample))


def _spatial(record: RegionRecord) -> np.ndarray:
    """(R, 6), as jnhwkim/ban-vqa stores them: left, top, right, bottom, width, height, as shares of the image."""
    left, top, right, bottom = record.boxes.T
    width, height = (right - left) / record.width, (bottom - top) / record.height
    left, top = left / record.width, top / record.height
    return np.stack([left, top, left + width, top + height, width, height], axis=1)


# --- texts of a task ---


def vqa(checkout: Path, tokenizer: CaptionTokenizer, vocab: Path, errors: Errors, folder: Path) -> None:
    """Question and one of its answers in one text, 140 words at most: drawn, or, in every second question, given."""
    module = official_data(checkout, "vqa_dataset")
    numbers = range(IMAGES)
    records = _named(make_records().values(), (f"COCO_train2014_{number:012d}" for number in numbers))
    endings = ("?", " ?", "", "??")
    questions = [
        f"{text.replace(',', '').strip().capitalize()}{endings[place % len(endings)]}"
        for place, text in enumerate(make_texts(TEXTS, longest=140))
    ]
    images = [place % IMAGES for place in range(TEXTS)]
    features = folder / "data/detectron_fix_100/fc6/vqa/train2014"
    features.mkdir(parents=True)
    for name, record in records.items():
        np.save(features / f"{name}.npy", record.features)
    asked = [
        {"question_id": place, "image_id": image, "question": question}
        for place, (image, question) in enumerate(zip(images, questions, strict=True))
    ]
    told = [
        {"question_id": place, "answers": [{"answer": " ".join(answer)} for answer in _answers(place)]}
        for place in range(TEXTS)
    ]
    files = [folder / "questions.json", folder / "annotations.json"]
    for file, part in zip(files, ({"questions": asked}, {"annotations": told}), strict=True):
        file.write_text(json.dumps({"data_subtype": "train2014"} | part))
    prepared = [
        {"image_name": list(records)[image], "question_tokens": module.tokenize(question)}
        | ({"answer": _answers(place)[3]} if place % 2 else {"valid_answers": list(_answers(place))})
        for place, (image, question) in enumerate(zip(images, questions, strict=True))
    ]
    np.save(folder / "imdb.npy", np.array([{}, *prepared], object), allow_pickle=True)
    (folder / "answers.txt").write_text("\n".join(["<unk>", *ANSWERS]), "utf-8")
    settings = {
        "imdb_file": str(folder / "imdb.npy"), "vocab_answer_file": str(folder / "answers.txt"),
        "data_root": str(folder), "use_visual_genome": True, "pretraining": True, "no_next_sentence": True,
        "model": {"training_head_type": "pretraining"},
    }  # fmt: skip
    theirs, corpus = module.VQADataset(Options(settings | _settings(vocab))), _task_corpus(files, records)
    sampler = _sampler(tokenizer, asks=False)
    for case in range(10 * TEXTS):
        draws, row = Draws(case), case % TEXTS
        random = _their_random(draws)
        with mock.patch.object(np.random, "choice", lambda of, random=random: of[random.randint(0, len(of) - 1)]):
            sample = arrays_of(theirs[row])
        choice = draws.rows[-1] if draws.rows else 3
        ours = sampler.sample(corpus, row, OurRandom(draws, choice, pairs=False))  # type: ignore[arg-type]
        errors.add("VisualBERT VQA", _text_fields(ours, sample) | _region_fields(ours, sample))


def _answers(place: int) -> tuple[str, ...]:
    """Ten of a question."""
    return ANSWERS[place % 10 :] + ANSWERS[: place % 10]


def vcr(checkout: Path, tokenizer: CaptionTokenizer, vocab: Path, errors: Errors, folder: Path) -> None:
    """Questions with four answers and with the right one and four rationales, and whether the choice is right.

    The release takes one text of each line, number `line % 8`, whichever is asked for (complete_shuffle, by a slip), so
    every question stands on eight lines. Its words are aligned with boxes (use_alignment), of which the whole image is
    the first and those that no text of the question names are left out; all photos have the boxes of `OBJECTS`.
    """
    module = official_data(checkout, "vcr")
    lines = [question for place in range(TEXTS) for question in [_vcr_question(place)] * EIGHT]
    for name in ("annotations", "dataloaders", "images"):
        (folder / name).mkdir()
    (folder / "annotations" / "train.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "images" / "made.json").write_text(
        json.dumps({"boxes": [[0.0, 0.0, 9.0, 9.0, 1.0]] * len(OBJECTS), "segms": [[]] * len(OBJECTS)})
    )
    (folder / "dataloaders" / "cocoontology.json").symlink_to(checkout / "visualbert/models/cocoontology.json")
    settings = {"pretraining": True, "pretraining_include_qa_and_qar": True, "complete_shuffle": True}
    settings |= {"use_alignment": True, "add_all_features": True} | _settings(vocab)
    theirs = module.VCR(
        "train", "answer",
        vcr_annots_dir=str(folder / "annotations"), vcr_image_dir=str(folder / "images"), **settings,
    )  # fmt: skip
    richest = max(make_records().values(), key=lambda record: record.num_regions)
    photo = _with_regions(richest, np.arange(len(OBJECTS)))
    records = _named([photo] * IMAGES, (f"made/{image}" for image in range(IMAGES)))
    corpus = _task_corpus([folder / "annotations" / "train.jsonl"], records)
    sampler = _sampler(tokenizer, asks=True, cut="release_front", aligned_words="release")
    named_otherwise = cut_otherwise = 0
    for case in range(2 * len(lines)):
        draws, line = Draws(case), case % len(lines)
        row = EIGHT * line + line % EIGHT
        if not _names_agree(lines[line], line % EIGHT):
            named_otherwise += 1
            continue
        first, (choice,), *_ = corpus.text(row)
        context, too_much = tokenizer.count_pieces(first) - 2, tokenizer.count_pieces(choice) + 1 - MAX_PIECES
        if context + too_much > 0 and context > UNCUT_CONTEXT:
            cut_otherwise += 1
            continue
        _their_random(draws)
        _, instance = theirs[EIGHT * line]
        sample = arrays_of(instance)
        ours = sampler.sample(corpus, row, OurRandom(draws, 0, pairs=False))  # type: ignore[arg-type]
        shown, _ = theirs._get_dets_to_use(theirs.items[line])
        aligned = instance.fields["image_text_alignment"].field_list[1:]
        words = {box: each.array for box, each in zip(shown, aligned, strict=True)}
        compared = {"aligned words": (_positions(_of_ours(ours)), _positions(words))}
        errors.add("VisualBERT VCR", _text_fields(ours, sample) | compared)
    print(f"VisualBERT VCR: left out {named_otherwise} texts with other names, {cut_otherwise} cut otherwise")


def _of_ours(sample: PretrainSample) -> dict[int, np.ndarray]:
    """Positions of the words that name each box."""
    words = [] if sample.aligned_words is None else sample.aligned_words
    return {box: each[each >= 0] for box, each in enumerate(words)}


def _positions(words: Mapping[int, np.ndarray]) -> np.ndarray:
    """(boxes, positions), how many words name a box where."""
    counted = np.zeros((len(OBJECTS), 4 * MAX_PIECES))  # words of a cut text are counted from its beginning
    for box, positions in words.items():
        np.add.at(counted[box], positions.astype(int), 1)
    return counted


def _vcr_question(place: int) -> dict[str, Any]:
    """One in three has no people in the question; one in five has an answer and a rationale that are far too long."""
    random = np.random.default_rng(place)
    texts = iter(make_texts((place + 1) * (EIGHT + 1), longest=12)[-EIGHT - 1 :])
    objects = [2, 4] if place % 3 == 0 else range(len(OBJECTS))
    question = _with_tags(next(texts), objects, random)
    choices = [_with_tags(next(texts), range(len(OBJECTS)), random) for _ in range(EIGHT)]
    if place % 5 == 0:
        choices[1], choices[6] = choices[1] * 14, choices[6] * 14
    return {
        "img_fn": f"made/{place % IMAGES}.jpg", "metadata_fn": "made.json", "annot_id": f"train-{place}",
        "movie": "made", "question_number": place, "objects": OBJECTS, "question": question,
        "answer_choices": choices[:4], "answer_label": (0, 2, 3)[place % 3],
        "rationale_choices": choices[4:], "rationale_label": place % 4,
    }  # fmt: skip


def _with_tags(text: str, objects: Sequence[int], random: np.random.Generator) -> list[Any]:
    """Words, of which some have become tags of one object or two."""
    tag = lambda: [int(each) for each in random.choice(objects, int(random.integers(1, 3)), replace=False)]  # noqa: E731
    return [tag() if random.random() < 0.25 else word for word in text.split()]


def _names_agree(question: Mapping[str, Any], text: int) -> bool:
    """Whether nobody comes with the choice who was not among the people of its context, or the context has none."""
    context, choices = question["question"], question["answer_choices"]
    if text >= len(choices):
        context, choices = context + choices[question["answer_label"]], question["rationale_choices"]
    before, after = ({each for tag in part if isinstance(tag, list) for each in tag if each in PEOPLE}
                     for part in (context, choices[text % len(choices)]))  # fmt: skip
    return not before or after <= before


def nlvr2(checkout: Path, tokenizer: CaptionTokenizer, vocab: Path, errors: Errors, folder: Path) -> None:
    """Statements on two images of at most 36 regions each, with the question whether they are true and without."""
    module = official_data(checkout, "nlvr_dataset")
    names = [f"train-{pair}-0-img{side}" for pair in range(IMAGES // 2) for side in range(2)]
    records = _named(map(_strongest_first, make_records().values()), names)
    statements = [
        {
            "identifier": f"train-{place % (IMAGES // 2)}-0-{place // (IMAGES // 2)}", "sentence": text.capitalize(),
            "label": str(place % 3 > 0),
        }
        for place, text in enumerate(make_texts(TEXTS, longest=140))
    ]  # fmt: skip
    (folder / "train.json").write_text("\n".join(map(json.dumps, statements)))
    features = {
        f"{name}.png": tuple(map(torch.from_numpy, (record.features, record.boxes, record.class_scores)))
        for name, record in records.items()
    }
    torch.save(features, folder / "features.th")
    settings = {
        "annots_path": str(folder / "train.json"), "split": "train", "chunk_path": str(folder / "features.th"),
        "image_screening_parameters": {"image_feature_cap": MAX_REGIONS}, "pretraining": True,
    }  # fmt: skip
    corpus = _task_corpus([folder / "train.json"], records)
    for asks in (True, False):
        theirs = module.NLVRDataset(Options(settings | _settings(vocab), no_next_sentence=not asks))
        sampler = _sampler(tokenizer, asks=asks, max_regions=MAX_REGIONS)
        for case in range(10 * TEXTS):
            draws, row = Draws(case), case % TEXTS
            _their_random(draws)
            sample = {name: tensor.numpy() for name, tensor in theirs[row].items()}
            ours = sampler.sample(corpus, row, OurRandom(draws, None, pairs=False))  # type: ignore[arg-type]
            compared = _text_fields(ours, sample) | _region_fields(ours, sample)
            compared["region images"] = (ours.region_images, sample["visual_embeddings_type"])
            compared["truth"] = ([corpus.text(row).fits], sample["label"])
            errors.add(f"VisualBERT NLVR2{'' if asks else ' words'}", compared)


def _strongest_first(record: RegionRecord) -> RegionRecord:
    """Regions in the order in which the release's features stand: of too many it takes the first."""
    return _with_regions(record, np.argsort(-record.class_scores))


def _with_regions(record: RegionRecord, order: np.ndarray) -> RegionRecord:
    return replace(
        record,
        boxes=record.boxes[order],
        features=record.features[order],
        class_ids=record.class_ids[order],
        class_scores=record.class_scores[order],
        class_distribution=None,
    )


def _named(records: Iterable[RegionRecord], names: Iterable[str]) -> dict[str, RegionRecord]:
    return {name: replace(record, image_id=name) for name, record in zip(names, records, strict=True)}


def _task_corpus(files: Sequence[Path], records: Mapping[str, RegionRecord]) -> TaskCorpus:
    """As `roibeam pretrain --task-text` reads it."""
    store: Any = MadeStore(records)
    rows, report = join_task_texts(store, TaskTexts(files), UsableCaptions(MAX_PIECES), 1.0)
    assert report.joined == report.captions == len(rows)
    return TaskCorpus(store, rows)


# --- both ---


def _settings(vocab: Path) -> dict[str, Any]:
    """What all their data sets are told."""
    return {"bert_model_name": str(vocab), "do_lower_case": True, "max_seq_length": MAX_PIECES}


def _sampler(
    tokenizer: CaptionTokenizer, *, asks: bool, text_form: str = "task_text", box_numbers: bool = False, **settings: Any
) -> VisualBertSampler:
    config = VisualBertConfig(
        vocab_size=tokenizer.vocab_size, region_feature_size=WIDTH + 6 * box_numbers, with_match_head=asks
    )
    sampling = VisualBertSampling(text_form=text_form, box_numbers=box_numbers, **settings)
    return VisualBertSampler(sampling, tokenizer, config, num_classes=0)


def _their_random(draws: Draws) -> TheirRandom:
    """In the place of `random` where all their data sets mask words."""
    random = TheirRandom(draws)
    sys.modules["pytorch_pretrained_bert.fine_tuning"].random = random  # type: ignore[attr-defined]
    return random


def _text_fields(ours: PretrainSample, sample: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    compared = {
        "text": (ours.text_ids, sample["bert_input_ids"]),
        "segments": (ours.text_segments, sample["bert_input_type_ids"]),
        "labels": (ours.text_labels, labels_of(sample["masked_lm_labels"])),
        "is asked": (ours.match is not None, "is_random_next" in sample),
    }
    if "is_random_next" in sample:
        compared["match"] = (ours.match, np.squeeze(sample["is_random_next"]))
    return compared


def _region_fields(ours: PretrainSample, sample: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        "features": (ours.features, sample["image_feat_variable"]),
        "regions": (len(ours.boxes), np.squeeze(sample["image_dim_variable"])),
    }
