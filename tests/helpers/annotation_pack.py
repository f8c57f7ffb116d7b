"""Small annotation files of every data set, made up here, in the layouts and under the names of the official files.

    write_annotations(folder)
        images/                      18 drawn photos with COCO's names
        coco/, cc/, vg/              captions, instances; captions with paths; Visual Genome's lists of photos
        formats/<data set>/          karpathy, flickr30k_entities, vqa_v2, vcr, nlvr2, refcoco+, sbu

Texts, boxes and pictures are ours. The photos with captions and boxes are `CAPTIONED`, the same in every file.
"""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from small_files import write_json, write_json_lines, write_text

CAPTIONED = (790, 63217, 70133, 163497, 196393, 215657, 330993, 466547)
PLAIN = (84002, 131486, 132417, 201446, 207647, 306661, 387267, 494628, 573195, 578174)
FLICKR = (36979, 65567, 81641, 134206, 148284, 178045, 205842, 256063)
HEIGHT, WIDTH = 480, 640
# COCO numbers its 80 categories with gaps.
CATEGORY_IDS = [number for number in range(1, 91) if number not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)]
NAMES = {1: "person", 17: "cat", 18: "dog", 90: "toothbrush"}
COLOURS = ("red", "green", "blue", "white", "grey")


def write_annotations(folder: Path) -> Path:
    formats = folder / "formats"
    for number in (*CAPTIONED, *PLAIN):
        draw(folder / "images" / f"{coco_name(number)}.jpg", number)
    write_json(folder / "coco" / "captions_train2014.json", coco_captions())
    write_json(folder / "coco" / "instances_train2014.json", coco_instances())
    write_caption_lists(folder / "cc")
    write_genome_lists(folder / "vg")
    write_karpathy(formats / "karpathy")
    write_flickr(formats / "flickr30k_entities")
    for split, numbers in (("train", CAPTIONED), ("val", (*CAPTIONED[5:], PLAIN[7]))):
        write_vqa(formats / "vqa_v2", split, numbers)
    write_vcr(formats / "vcr")
    write_nlvr2(formats / "nlvr2")
    write_refs(formats / "refcoco+" / "refs(unc).p")
    write_sbu(formats / "sbu" / "sbu-captions-all.json")
    return folder


def coco_name(number: int) -> str:
    return f"COCO_train2014_{number:012}"


def draw(path: Path, seed: int) -> None:
    """Smooth noise: regions differ, and the file stays small."""
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), np.uint8)
    assert cv2.imwrite(str(path), cv2.resize(coarse, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC))


# ---- captions and boxes


def sentences(number: int) -> list[str]:
    """Five captions of an image."""
    return [f"a {colour} cloth lies on table {number} beside a cup" for colour in COLOURS]


def coco_images() -> list[dict[str, Any]]:
    """In another order than their names, as COCO's."""
    return [
        {"id": number, "file_name": f"{coco_name(number)}.jpg", "height": HEIGHT, "width": WIDTH, "license": 4}
        for number in CAPTIONED[::-1]
    ]


def coco_captions() -> dict[str, Any]:
    texts = [(number, text) for number in CAPTIONED for text in sentences(number)]
    rows = [{"id": 100 + row, "image_id": number, "caption": text} for row, (number, text) in enumerate(texts)]
    return {"info": {}, "licenses": [], "images": coco_images(), "annotations": rows[::-1]}


def coco_instances() -> dict[str, Any]:
    """79 boxes of eight images, one at the right and lower edge."""
    rng = np.random.default_rng(0)
    rows = []
    for row in range(79):
        x, y, width, height = (float(value) for value in rng.uniform((0, 0, 8, 8), (400, 300, 240, 180)).round(2))
        if row == 0:
            width, height = WIDTH - x, HEIGHT - y
        rows.append(
            {
                "id": 1000 + row, "image_id": CAPTIONED[row % 8], "category_id": CATEGORY_IDS[row * 7 % 80],
                "bbox": [x, y, width, height], "area": width * height, "iscrowd": 0,
                "segmentation": [[x, y, x + width, y, x + width, y + height]],
            }
        )  # fmt: skip
    categories = [{"id": number, "name": NAMES.get(number, f"thing {number}")} for number in CATEGORY_IDS]
    return {"info": {}, "licenses": [], "images": coco_images(), "annotations": rows, "categories": categories}


def write_caption_lists(folder: Path) -> None:
    """local.tsv: 60 rows on the 18 photos, 8 on files that are not there; bad_rows.tsv: one row of every oddity."""
    photos = [f"images/{coco_name(number)}.jpg" for number in (*CAPTIONED, *PLAIN)]
    odd = [f"images/awkward/{name}.jpg" for name in ("does_not_exist", *(f"odd_{number}" for number in range(7)))]
    rows = [*(photos[row % 18] for row in range(60)), *odd]
    write_text(folder / "local.tsv", "".join(f"a picture in row {row}\t{path}\n" for row, path in enumerate(rows)))
    url = b"\thttp://example.com/"
    write_text(
        folder / "bad_rows.tsv",
        b"a row like any other" + url + b"1.jpg\nno address here\n" + url + b"2.jpg\nno path\t\n"
        b"three\tcolumns" + url + b"3.jpg\nother line end" + url + b'4.jpg\r\n"quotes ""are"" text"' + url + b"5.jpg\n"
        b"\xe9t\xe9" + url + b"6.jpg\n" + "été 🐱".encode() + url + b"7.jpg\n\na row like any other" + url + b"1.jpg\n"
        b"long" + b" word" * 600 + url + b"8.jpg\nno line end" + url + b"9.jpg",
    )  # fmt: skip


def write_genome_lists(folder: Path) -> None:
    for split, first in (("train", 2415417), ("val", 2300000), ("test", 1749)):
        numbers = range(first, first + 50)
        lines = (f"VG_100K_2/{number}.jpg xml/{number}.xml\n" for number in numbers)
        write_text(folder / f"{split}_head50.txt", "".join(lines))


def write_karpathy(folder: Path) -> None:
    for data, numbers, fourth in (("coco", CAPTIONED, "restval"), ("flickr30k", FLICKR, "train")):
        splits = ("train", "train", "train", fourth, "val", "val", "test", "test")
        images = [karpathy_image(data, row, *each) for row, each in enumerate(zip(splits, numbers, strict=True))]
        write_json(folder / f"dataset_{data}.json", {"images": images, "dataset": data})


def karpathy_image(data: str, row: int, split: str, number: int) -> dict[str, Any]:
    texts = [
        {"tokens": text.split(), "raw": text, "imgid": row, "sentid": 5 * row + k}
        for k, text in enumerate(sentences(number))
    ]
    found = {"imgid": row, "split": split, "sentids": [each["sentid"] for each in texts], "sentences": texts}
    if data == "flickr30k":
        return found | {"filename": f"{number}.jpg"}
    return found | {"filename": f"{coco_name(number)}.jpg", "filepath": "train2014", "cocoid": number}


def write_flickr(folder: Path) -> None:
    for number in FLICKR:
        draw(folder / "flickr30k-images" / f"{number}.jpg", number)
        park = f"team] plays in [/EN#{number}2/scene a large park] ."
        lines = [f"[/EN#{number}1/people A {colour} {park}\n" for colour in COLOURS]
        write_text(folder / "Sentences" / f"{number}.txt", "".join(lines))
    for split, numbers in (("train", FLICKR[:4]), ("val", FLICKR[4:6]), ("test", FLICKR[6:])):
        write_text(folder / f"{split}.txt", "".join(f"{number}\n" for number in numbers))


# ---- tasks


def write_vqa(folder: Path, split: str, numbers: Sequence[int]) -> None:
    """13 questions of the split train, 10 of another; all say yes to the first, answers to the others differ."""
    questions, annotations = [], []
    for row in range(13 if split == "train" else 10):
        number = numbers[row % len(numbers)]
        question = "Are they building a tower?" if not row else f"How many {COLOURS[row % 5]} cups stand on the table?"
        answers = ["yes"] * 10 if not row else [str(1 + k % (1 + row % 4)) for k in range(10)]
        found = {"image_id": number, "question_id": number * 1000 + row}
        questions.append(found | {"question": question})
        annotations.append(found | {
            "question_type": "are they" if not row else "how many", "answer_type": "other",
            "multiple_choice_answer": answers[0],
            "answers": [
                {"answer": answer, "answer_confidence": "yes", "answer_id": k} for k, answer in enumerate(answers, 1)
            ],
        })  # fmt: skip
    head = {"info": {"version": "2.0"}, "license": {}, "data_type": "mscoco", "data_subtype": f"{split}2014"}
    write_json(
        folder / f"v2_OpenEnded_mscoco_{split}2014_questions.json",
        head | {"task_type": "Open-Ended", "questions": questions},
    )
    write_json(folder / f"v2_mscoco_{split}2014_annotations.json", head | {"annotations": annotations})


VCR_OBJECTS = ["person", "person", "person", "person", "dog", "cake", "diningtable", "cup", "cup"]
Words = list[Any]


def vcr_objects(number: int) -> list[str]:
    """Nine, and one photo with many more."""
    return VCR_OBJECTS + ["cup"] * (30 if number == CAPTIONED[1] else 0)


def vcr_row(
    split: str, row: int, number: int, question: Words, answers: list[Words], rationales: list[Words], labels: list[int]
) -> dict[str, Any]:
    name = f"pack/{number:012}"
    found: dict[str, Any] = {
        "movie": "pack", "objects": vcr_objects(number), "img_fn": f"{name}.jpg", "metadata_fn": f"{name}.json",
        "question": question, "answer_choices": answers, "rationale_choices": rationales,
        "img_id": f"{split}-{number}", "question_number": row, "annot_id": f"{split}-{row}",
        "match_fold": f"{split}-0", "match_index": row,
    }  # fmt: skip
    return found | dict(zip(("answer_label", "rationale_label"), labels, strict=False))


def write_vcr(folder: Path) -> None:
    """Seven training questions on four pictures, test questions without labels, and rows whose pictures are nowhere."""
    first = vcr_row(
        "train", 0, 790,
        ["Why", "are", [0, 1, 2], "sitting", "with", [3], "?"],
        [
            ["They", "are", "about", "to", "eat", "a", "cake", "."], ["They", "are", "waiting", "for", "a", "bus", "."],
            ["They", "are", "playing", "cards", "."], [[0], "is", "teaching", [2], "to", "drive", "."],
        ],
        [
            [[5], "is", "on", [6], "between", "them", "and", "they", "look", "at", "it", "."],
            ["There", "are", "road", "signs", "near", [1], "."], [[4], "is", "asleep", "on", "the", "sofa", "."],
            [[3], "is", "holding", "a", "map", "."],
        ],
        [0, 0],
    )  # fmt: skip
    numbers = (790, 790, 196393, 196393, 63217, 215657)
    rows = [first]
    rows += [vcr_question("train", row, number, [row % 4, (row + 2) % 4]) for row, number in enumerate(numbers, 1)]
    write_json_lines(folder / "train.jsonl", rows)
    write_json_lines(
        folder / "val.jsonl", [vcr_question("val", row, number, [1, 2]) for row, number in enumerate(CAPTIONED[5:])]
    )
    write_json_lines(folder / "test.jsonl", [vcr_question("test", row, 215657, []) for row in range(2)])
    nowhere = [
        vcr_question("train", row, 1, [0, 0]) | {"img_fn": f"film/1_00.0{row}.57.935-00.24.00.783@0.jpg"}
        for row in range(2)
    ]
    write_json_lines(folder / "rows_no_images.jsonl", nowhere)
    rng = np.random.default_rng(0)
    for number in sorted({*numbers, *CAPTIONED[5:]}):
        path = folder / "vcr1images" / "pack" / f"{number:012}.jpg"
        draw(path, number)
        names = vcr_objects(number)
        corners = rng.uniform((0, 0), (WIDTH - 80, HEIGHT - 80), (len(names), 2)).round(2)
        boxes = [[x, y, x + 70.5, y + 60.25, 1.0] for x, y in corners.tolist()]
        segments = [[[[box[0], box[1]], [box[2], box[1]], [box[2], box[3]]]] for box in boxes]
        metadata = {"boxes": boxes, "segms": segments, "names": names, "width": WIDTH, "height": HEIGHT}
        write_json(path.with_suffix(".json"), metadata)


def vcr_question(split: str, row: int, number: int, labels: list[int]) -> dict[str, Any]:
    question = ["What", "will", [row % 4], "do", "with", [5], "?"]
    answers: list[Words] = [[[row % 4], "will", verb, [5 + row % 3], "."] for verb in ("cut", "lift", "hide", "sell")]
    rationales: list[Words] = [[[k], "looks", "at", [7], "and", "waits", "."] for k in range(4)]
    return vcr_row(split, row, number, question, answers, rationales, labels)


def write_nlvr2(folder: Path) -> None:
    train = [
        ("Each image has a cat in it.", True),
        ("The left image shows a red bus and the right image shows a red truck.", True),
        ("Both images contain a giraffe.", False),
        ("There are at least two people in each image.", True),
        ("The right image shows a bed.", False),
    ]
    for split, pairs, first in (("train", train, 0), ("dev", train[:3], 5)):
        rows = []
        for pair, (sentence, label) in enumerate(pairs, first):
            rows.append({"sentence": sentence, "label": str(label), "identifier": f"{split}-{pair}-0-0"})
            for side in (0, 1):
                draw(folder / "images" / f"{split}-{pair}-0-img{side}.png", 2 * pair + side)
        write_json_lines(folder / f"{split}.json", rows)


def write_refs(path: Path) -> None:
    """19 expressions; a photo may be in several splits."""
    splits = {
        790: "train train testA testA testB testB", 63217: "train train", 196393: "val val train train",
        330993: "train val", 466547: "train train", 215657: "testB testB", 163497: "val",
    }  # fmt: skip
    pairs = [(number, split) for number, text in splits.items() for split in text.split()]
    rows = [
        {
            "ref_id": row, "ann_id": 1000 + row, "category_id": 1, "image_id": number, "split": split,
            "file_name": f"{coco_name(number)}_{row}.jpg", "sent_ids": [row],
            "sentences": [{"sent_id": row, "sent": "man in red", "raw": "man in red", "tokens": ["man", "in", "red"]}],
        }
        for row, (number, split) in enumerate(pairs)
    ]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(rows, protocol=2))


def write_sbu(path: Path) -> None:
    """21 captions of 11 addresses, in three lists."""
    addresses = ["http://static.flickr.com/2723/4385058960_b0f291553e.jpg"]
    addresses += [f"http://static.flickr.com/0/{number}.jpg" for number in PLAIN for _ in range(2)]
    captions = [f"A chair in room {row}" for row in range(len(addresses))]
    write_json(path, {"image_urls": addresses, "user_ids": ["0@N00"] * len(addresses), "captions": captions})
