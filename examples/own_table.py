"""A table of your own: a model is pre-trained, fine-tuned on rows with answers, and answers new ones.

    python examples/own_table.py [TABLE PHOTOS [DETECTOR [STEPS]]]

TABLE is a .csv with the columns image, question and answer, PHOTOS the folder of its images. Of five photos three are
for training and one is for evaluations; the last counts as new: the model does not get its answers. Without a table,
one asks which things are in pictures of the toy world. The few default STEPS show the way: they teach nothing.

It takes half a minute on one free core. It prints the first answers, and writes own_table/answers.json.
"""

import csv
import json
import subprocess
import sys
from pathlib import Path

import roibeam
from roibeam.pipelines import write_world

SPLITS = ["train", "train", "train", "val", "test"]  # of five photos


def toy_rows():
    write_world(Path("toy"), num_images=200)
    for scene in map(json.loads, Path("toy/scenes.jsonl").open(encoding="utf-8")):
        if scene["file"].startswith("coco/train2014/"):
            there = {each["category"] for each in scene["objects"]}
            for thing in ("ball", "boat", "clock", "cup"):
                answer = "yes" if thing in there else "no"
                yield {"image": Path(scene["file"]).name, "question": f"is there a {thing}?", "answer": answer}


def command(*words):
    subprocess.run([sys.executable, "-m", "roibeam", *words], check=True)


def main(table=None, photos="toy/coco/train2014", detector="toy", steps="20"):
    rows = list(csv.DictReader(open(table, newline="", encoding="utf-8")) if table else toy_rows())
    images = sorted({row["image"] for row in rows})
    roibeam.extract(photos, "own_table/store", detector=detector)
    for split in ("train", "val", "test"):
        own = [{**row, "id": at} for at, row in enumerate(rows) if SPLITS[images.index(row["image"]) % 5] == split]
        texts = [{**row, "caption": f"{row['question']} {row['answer']}"} for row in own]  # of pre-training
        texts = [{**row, "answer": ""} for row in own] if split == "test" else texts
        Path("own_table", f"{split}.jsonl").write_text("\n".join(map(json.dumps, texts)), "utf-8")
    how = ["--store", "own_table/store", "--steps", steps, "--learning-rate", "0.001"]
    model = ["--captions", "own_table/train.jsonl", "--system", "imagebert", "--model", "tiny"]
    task, new = ["--task", "vqa", "--data", "own_table"], ["--split", "test", "--out", "own_table/answers.json"]
    command("pretrain", "own_table/first", *how, *model)
    command("finetune", "own_table/run", "--from", "own_table/first", *task, *how, "--set", "vqa.min_occurrence=1")
    command("predict", "own_table/run", "--store", "own_table/store", "--data", "own_table", *new)
    answers = json.loads(Path("own_table/answers.json").read_text("utf-8"))
    for each in answers[:6]:
        row = rows[int(each["question_id"])]
        print(f"{row['image']}: {row['question']} {each['answer']} (the table says {row['answer']})")


if __name__ == "__main__":
    print(__doc__) if "--help" in sys.argv else main(*sys.argv[1:])
