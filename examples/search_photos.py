"""Your photos searched by a sentence: a small model learns which captions fit which photos, and scores all photos.

    python examples/search_photos.py [CAPTIONS PHOTOS [SENTENCE [DETECTOR [STEPS]]]]

CAPTIONS is a .csv with the columns image and caption, or another file of docs/extract.md; PHOTOS is the folder of its
photos. Without them, pictures of the toy world and their captions are drawn into toy/. The few default STEPS show the
way, and what they find is chance. docs/look.md has a model that learned to match, and a search without training.

It takes half a minute on one free core. It prints the best photos with their scores, and writes
search_photos/found.html.
"""

import sys
from pathlib import Path

import roibeam
from roibeam import pipelines


def main(
    captions="toy/coco/annotations/captions_train2014.json",
    photos="toy/coco/train2014",
    sentence="a red ball",
    detector="toy",
    steps="100",
):
    if captions.startswith("toy/"):
        pipelines.write_world(Path("toy"), num_images=200)
    out = Path("search_photos")
    store, run = out / "store", out / "run"
    print(roibeam.extract(photos, store, detector=detector, captions=captions))  # the store keeps the captions

    model = pipelines.RequestedModel(system="imagebert", model="tiny")  # with a match head
    training = pipelines.RequestedTraining(steps=int(steps), learning_rate=0.003, warmup_steps=int(steps) // 20)
    data = pipelines.RequestedData([str(store)])
    pipelines.run_pretraining(pipelines.PretrainRequest(run, data, model, training))

    page = out / "found.html"
    page.unlink(missing_ok=True)
    result = pipelines.search_store(
        pipelines.SearchRequest(store=store, text=sentence, model=str(run), top=5, html=page)
    )
    print(result.query, "(after so few steps the order is chance)" if int(steps) < 500 else "")
    for row in result.found:  # a score above 0: rather a pair than not
        print(f"{row['score']:6.2f}  {row['image_id']}  {row['class']}; {row['caption']}")
    print(f"{page}   the photos")


if __name__ == "__main__":
    print(__doc__) if "--help" in sys.argv else main(*sys.argv[1:])
