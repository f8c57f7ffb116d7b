"""VL-BERT from photos to losses and gradients as one module, read from a file of the official kind.

goldens/vlbert/README.md, `pretrain_e2e_narrow` and its tolerances. What is inside is compared by tests/conformance;
here it is the loader, the photos and the joint model.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from harness.vlbert.pixels import build_region_encoder

from roibeam.model.common.fields import EndToEndChoices
from roibeam.model.end_to_end import EndToEndModel
from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.model.vlbert.checkpoint import config_from_official, split_official
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.pipelines.data.batches.image_batch import photo_inputs
from roibeam.pipelines.training.model_files.joint_checkpoint import load_official_joint, official_joint_state

GOLDEN = Path(__file__).resolve().parents[1] / "goldens" / "vlbert" / "pretrain_e2e_narrow.npz"
LOSSES = {"masked_words": "mlm", "masked_regions": "mvrc", "matching": "relationship"}


def test_official_checkpoint_and_photos_give_the_official_losses(tmp_path):
    with np.load(GOLDEN) as file:
        golden = {key: torch.from_numpy(file[key]) for key in file.files if key != "config_json"}
        options = json.loads(str(file["config_json"]))
        network = options["NETWORK"]
    official = {key.removeprefix("param/"): value for key, value in golden.items() if key.startswith("param/")}
    path = tmp_path / "vl-bert-base-e2e.model"
    torch.save({"state_dict": {f"module.{key}": value for key, value in official.items()}}, path)

    # Sizes of the narrow network; its weights come from the file.
    zeros = {key: torch.zeros_like(value) for key, value in split_official(official)[1].items()}
    encoder = build_region_encoder(zeros, network, (int(golden["in/min_size"]), int(golden["in/max_size"])))
    config = config_from_official(network, options["VLBERT"], "pretrain", region_feature_size=encoder.feature_dim)
    choices = EndToEndChoices(masked_pixels="blank", whole_image="box")
    joint = EndToEndModel(VLBertForPreTraining(config).eval(), encoder, choices)
    load_official_joint(str(path), joint)

    counts = golden["in/raw_num_boxes"].tolist()
    made = photo_inputs(
        [golden[f"in/raw_image_{row}"].flip(-1).numpy() for row in range(2)],  # R, G, B in the golden
        [golden["in/raw_boxes"][row, 1:count].numpy() for row, count in enumerate(counts)],
        [(golden["in/mvrc_ops"][row, 1:count] == 1).numpy() for row, count in enumerate(counts)],
        encoder,
        choices,
        flips=golden["in/raw_flip"].tolist(),
    )
    assert torch.equal(made.images.pixels, golden["in/image"])
    assert torch.equal(made.images.whole_image_boxes, golden["in/boxes"][:, 0])
    assert torch.equal(made.images.boxes, golden["in/boxes"][:, 1:])
    targets = golden["in/mvrc_labels"][:, 1:]
    batch = VLBatch(
        text_ids=golden["in/text"],
        text_mask=golden["in/text"] > 0,
        text_segments=torch.zeros_like(golden["in/text"]),
        region_features=torch.zeros(*targets.shape[:2], 0),
        text_labels=golden["in/mlm_labels"].masked_fill(golden["in/mlm_labels"] == -1, IGNORE_INDEX),
        region_targets=targets,
        region_target_mask=targets.sum(-1) > 0.9,
        match_labels=golden["in/relationship_label"],
        **made.regions,
    )
    losses = joint(batch, made.images).losses
    for ours, theirs in LOSSES.items():
        torch.testing.assert_close(losses[ours].mean, golden[f"out/{theirs}_loss"], rtol=1e-5, atol=2e-5)
    sum(term.mean for term in losses.values()).backward()
    res3 = joint.region_encoder.backbone.res3[0].conv2.weight.grad.norm()
    name = "image_feature_extractor.backbone.layer2.0.conv2.weight"
    torch.testing.assert_close(res3, golden[f"gradnorm/{name}"], rtol=1e-3, atol=1e-5)

    # And back: every tensor of the official file, as it was there.
    written = official_joint_state(joint)
    assert written.keys() >= official.keys()
    assert all(torch.equal(written[key], value) for key, value in official.items())
