"""Losses beside detectron2's own, on the same weights, photos and objects, with everything sampled.

Needs detectron2: installed, or in the folders of ROIBEAM_DETECTRON2_PATH (see docs/detectors.md); skips without it.
"""

import numpy as np
import pytest
import torch
from small_networks import NARROW as CONFIG

from roibeam.extraction.adapters.detectron2_adapter import build_detectron2_detector
from roibeam.extraction.adapters.detectron2_vg import vg_config
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.training.batch import PhotoObjects, collate_training_photos, prepare_training_photo
from roibeam.extraction.training.batch_losses import DetectorTraining
from roibeam.extraction.training.rules import LossRules, SamplingRules
from roibeam.extraction.weights.loading import build_detector

EVERYTHING = SamplingRules(
    anchors_per_image=100_000, anchor_positive_fraction=1.0, regions_per_image=10_000, region_positive_fraction=1.0,
    proposals_before_nms=400, proposals_after_nms=20,
)  # fmt: skip
BOXES = [
    np.array([[10, 12, 90, 80], [60, 30, 150, 118], [100, 5, 130, 25]], np.float32),
    np.array([[0, 0, 159, 119], [40, 60, 70, 110]], np.float32),
    np.empty((0, 4), np.float32),
]


@pytest.fixture(scope="module")
def batch():
    """Three photos of one size, the last without an object."""
    photos = []
    for seed, boxes in enumerate(BOXES):
        image = np.random.default_rng(seed).integers(0, 256, (120, 160, 3), np.uint8)
        class_ids = np.arange(3, 3 + len(boxes))
        objects = PhotoObjects(boxes, class_ids, np.full((len(boxes), 1), -1), np.zeros(len(boxes), bool))
        photos.append(prepare_training_photo(image, objects, CONFIG, CONVENTIONS["d2"]))
    return collate_training_photos(photos, [0, 1, 2])


def losses_of_detectron2(model, batch, index):
    """Objectness, anchor boxes, classes, region boxes of one photo, over what was sampled of it; and their gradients
    in one weight each."""
    from detectron2.structures import Boxes, ImageList, Instances
    from detectron2.utils.events import EventStorage

    objects, input_hw = batch.objects[index], batch.input_hw[index]
    truth = Instances(input_hw, gt_boxes=Boxes(objects.boxes), gt_classes=objects.class_ids)
    rpn, heads = model.proposal_generator.train(), model.roi_heads.train()
    with EventStorage():
        maps = model.backbone(batch.pixels[index, None])
        images = ImageList(batch.pixels[index, None], [input_hw])
        proposals, of_anchors = rpn(images, maps, [truth])
        _, of_regions = heads(images, maps, proposals, [truth])
        ((labels,), _) = rpn.label_and_sample_anchors(rpn.anchor_generator([maps["res4"]]), [truth])
    # detectron2 divides by how many it would have liked to sample.
    factor = rpn.batch_size_per_image / int((labels >= 0).sum())
    losses = [
        of_anchors["loss_rpn_cls"] * factor,
        of_anchors["loss_rpn_loc"] * factor,
        of_regions["loss_cls"],
        of_regions["loss_box_reg"],
    ]
    return losses, gradients_of(losses, model)


def gradients_of(losses, model):
    rpn, heads = model.proposal_generator.rpn_head, model.roi_heads
    weights = [rpn.conv.weight, rpn.conv.weight, heads.res5[2].conv3.weight, heads.res5[2].conv3.weight]
    pairs = zip(losses, weights, strict=True)
    return [torch.autograd.grad(loss, weight, retain_graph=True)[0] for loss, weight in pairs]


@pytest.mark.parametrize("proposal_beta, region_beta", [(0.0, 0.0), (1 / 9, 1.0)])
def test_losses_and_gradients_are_those_of_detectron2(detectron2, batch, proposal_beta, region_beta):
    torch.set_num_threads(1)
    theirs = build_detectron2_detector(vg_config(CONFIG), weights="random:1").model
    rpn, heads = theirs.proposal_generator, theirs.roi_heads
    rpn.batch_size_per_image, rpn.positive_fraction = EVERYTHING.anchors_per_image, 1.0
    rpn.pre_nms_topk[True], rpn.post_nms_topk[True] = 400, 20
    heads.batch_size_per_image, heads.positive_fraction = EVERYTHING.regions_per_image, 1.0
    rpn.smooth_l1_beta, heads.box_predictor.smooth_l1_beta = proposal_beta, region_beta
    rules = LossRules(proposal_beta=proposal_beta, region_beta=region_beta)
    detector = build_detector(CONFIG, weights="random:1", conventions="d2")
    ours = DetectorTraining(detector, sampling=EVERYTHING, loss_rules=rules)
    output = ours(batch)
    names = ("objectness", "proposal_boxes", "classes", "region_boxes")
    for index in range(len(batch)):
        want, want_gradients = losses_of_detectron2(theirs, batch, index)
        got = [output.losses[name][index] for name in names]
        assert (float(got[1].detach()) > 0) == (float(got[3].detach()) > 0) == bool(len(BOXES[index]))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
        for mine, other in zip(gradients_of(got, ours), want_gradients, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4 * float(other.abs().max()))
