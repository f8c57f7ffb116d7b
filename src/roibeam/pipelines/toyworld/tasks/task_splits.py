"""Which pictures a task's split is about.

Pictures of a validation or test split are none that a caption for pre-training is of: `roibeam pretrain` reads the
splits "train" and "restval". No picture of a task's training split is in another split of any task.
"""

from __future__ import annotations

from roibeam.pipelines.toyworld.picture import Picture

COCO_TRAIN, COCO_VAL, COCO_TEST = ("coco/train",), ("coco/val",), ("coco/test",)
# Two pictures make a statement, so that NLVR2 needs more of them.
OTHER_TRAIN = ("conceptual_captions/train", "flickr30k/train", "sbu/train")
OTHER_VAL = ("flickr30k/val", "visual_genome/val")
OTHER_TEST = ("flickr30k/test", "visual_genome/test")

VQA_SPLITS = {"train": COCO_TRAIN, "val": COCO_VAL + COCO_TEST}
VCR_SPLITS = {"train": COCO_TRAIN, "val": COCO_VAL, "test": COCO_TEST}
REFER_SPLITS = {"train": COCO_TRAIN, "val": COCO_VAL, "test": COCO_TEST}
NLVR2_SPLITS = {"train": OTHER_TRAIN, "dev": OTHER_VAL, "test1": OTHER_TEST}


def place_name(picture: Picture) -> str:
    """Such as "coco/train": how the splits above name places."""
    return f"{picture.place.dataset}/{picture.place.split}"
