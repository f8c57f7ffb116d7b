"""The toy world's files, read back by the readers of the real data sets, say what its scenes say."""

from __future__ import annotations

from pathlib import Path

import pytest

from roibeam.pipelines.data.captions.caption_files import read_captions
from roibeam.pipelines.data.datasets.caption_lists import read_caption_tsv, read_sbu
from roibeam.pipelines.data.datasets.coco import read_coco, read_coco_instances
from roibeam.pipelines.data.datasets.image_boxes import LabelledImage
from roibeam.pipelines.data.datasets.karpathy import read_karpathy
from roibeam.pipelines.data.datasets.rows import CaptionRow
from roibeam.pipelines.data.datasets.text_sets import TextLine, read_text_corpus
from roibeam.pipelines.data.datasets.visual_genome import read_names, read_visual_genome
from roibeam.pipelines.toyworld.formats import open_writers, sentence, write_corpus
from roibeam.pipelines.toyworld.picture import Picture, describe
from roibeam.pipelines.toyworld.scene import generate
from roibeam.pipelines.toyworld.world import ATTRIBUTES, CATEGORIES, CYCLE


@pytest.fixture(scope="module")
def toy_world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Picture]]:
    """Files of 80 scenes, without pixels, and what they say."""
    out = tmp_path_factory.mktemp("world")
    pictures = [describe(generate(5, index)) for index in range(2 * CYCLE)]
    writers = open_writers(out)
    for picture in pictures:
        writers[picture.place.dataset].add(picture)
    for writer in writers.values():
        writer.close()
    write_corpus(out / "corpus.txt", [picture.captions for picture in pictures])
    return out, pictures


def of(pictures: list[Picture], dataset: str, *splits: str) -> list[Picture]:
    return [each for each in pictures if each.place.dataset == dataset and each.place.split in splits]


def check_objects(image: LabelledImage, picture: Picture, class_names: tuple[str, ...]) -> None:
    things = picture.scene.objects
    assert image.image_hw == (picture.scene.height, picture.scene.width) and image.left_out == ()
    assert image.boxes.tolist() == [[x, y, x + width, y + height] for x, y, width, height in (t.box for t in things)]
    assert [class_names[each] for each in image.class_ids] == [thing.category for thing in things]
    assert image.ignored.tolist() == [thing.ignored for thing in things]


def test_the_toy_worlds_coco_files(toy_world: tuple[Path, list[Picture]]) -> None:
    out, pictures = toy_world
    for year, splits in (("train2014", ("train",)), ("val2014", ("restval", "val", "test"))):
        mine = of(pictures, "coco", *splits)
        found = read_coco_instances(str(out / "coco" / "annotations" / f"instances_{year}.json"))
        assert len(found.images) == len(mine) > 0 and found.class_names == tuple(CATEGORIES)
        for image, picture in zip(found.images, mine, strict=True):
            assert f"{year}/{image.file_name}" == picture.file_name
            check_objects(image, picture, found.class_names)
            assert image.areas.tolist() == [thing.area for thing in picture.scene.objects]
            assert (image.crowds == image.ignored).all()
        captions = read_coco(str(out / "coco" / "annotations" / f"captions_{year}.json")).captions
        assert [text for _, text in captions] == [sentence(each) for picture in mine for each in picture.captions]


def test_the_toy_worlds_visual_genome_files(toy_world: tuple[Path, list[Picture]]) -> None:
    out, pictures = toy_world
    folder = out / "visual_genome"
    objects, attributes = (
        read_names(str(folder / "objects_vocab.txt")),
        read_names(str(folder / "attributes_vocab.txt")),
    )
    assert (objects.names, attributes.names) == (tuple(CATEGORIES), tuple(ATTRIBUTES))
    for split in ("train", "val", "test"):
        found = list(read_visual_genome(str(folder / f"{split}.txt"), objects, attributes))
        for image, picture in zip(found, of(pictures, "visual_genome", split), strict=True):
            assert isinstance(image, LabelledImage) and image.file_name == picture.file_name
            check_objects(image, picture, objects.names)
            names = [[attributes.names[each] for each in row if each >= 0] for row in image.attribute_ids]
            assert names == [list(thing.attributes) for thing in picture.scene.objects]


def test_the_toy_worlds_karpathy_splits(toy_world: tuple[Path, list[Picture]]) -> None:
    out, pictures = toy_world
    for dataset, root in (("coco", ""), ("flickr30k", "flickr30k-images/")):
        mine = of(pictures, dataset, "train", "restval", "val", "test")
        found = list(read_karpathy(str(out / dataset / f"dataset_{dataset}.json")))
        assert [(root + image.file_name, image.split) for image in found] == [
            (p.file_name, p.place.split) for p in mine
        ]
        texts = [[each.text for each in image.sentences] for image in found]
        assert texts == [[sentence(caption) for caption in picture.captions] for picture in mine]
    ids = {image.image_id for image in read_karpathy(str(out / "coco" / "dataset_coco.json"))}
    files = [out / "coco" / "annotations" / f"captions_{year}.json" for year in ("train2014", "val2014")]
    assert ids == {image.image_id for path in files for image in read_coco(str(path)).images}


def test_the_toy_worlds_caption_files_and_corpus(toy_world: tuple[Path, list[Picture]]) -> None:
    out, pictures = toy_world
    tsv, sbu = out / "conceptual_captions" / "Train_GCC-training.tsv", out / "sbu" / "sbu-captions-all.json"
    assert [row.path for row in read_caption_tsv(str(tsv)) if isinstance(row, CaptionRow)] == [
        picture.file_name for picture in of(pictures, "conceptual_captions", "train")
    ]
    assert [(row.path, row.caption) for row in read_sbu(str(sbu)) if isinstance(row, CaptionRow)] == [
        (picture.file_name.split("/")[1], sentence(picture.captions[0])) for picture in of(pictures, "sbu", "train")
    ]
    for path in (tsv, sbu):
        assert read_captions(str(path))[1] == []
    lines = [line for line in read_text_corpus(str(out / "corpus.txt")) if isinstance(line, TextLine)]
    expected = [(k, sentence(caption)) for k, picture in enumerate(pictures) for caption in picture.captions]
    assert [(line.document, line.text) for line in lines] == expected
