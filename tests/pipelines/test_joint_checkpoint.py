"""A model and its region encoder saved as one, ours and the official way."""

import dataclasses
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from end_to_end_examples import (
    CASES,
    ENCODER,
    SYSTEMS,
    VLBERT_SIZES,
    awake,
    encoder,
    inputs,
    joint_model,
    losses,
    vlbert,
)
from harness.vlbert.pixels import build_region_encoder
from safetensors.torch import load_file, save_file
from soak_share import some

from roibeam.extraction.network.resnet import Backbone
from roibeam.extraction.region_encoder import RegionEncoder, load_encoder_weights
from roibeam.model.common.fields import EndToEndChoices
from roibeam.model.end_to_end import EndToEndModel
from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.model.vlbert.checkpoint import config_from_official, split_official
from roibeam.model.vlbert.config import vlbert_task_config
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.model.vlbert.tasks import VLBertForVcr
from roibeam.pipelines.data.batches.image_batch import photo_inputs
from roibeam.pipelines.training.model_files.joint_checkpoint import (
    load_joint,
    load_official_joint,
    official_joint_state,
    save_joint,
    save_official_joint,
)
from roibeam.pipelines.training.run_folder.files import write_sums

VLBERT_TASK_SIZES = {name: value for name, value in VLBERT_SIZES.items() if name != "num_region_labels"}
NOTHING = [np.zeros(4, bool), np.zeros(2, bool)]


def change(folder, **sections):
    path = folder / "config.json"
    found = json.loads(path.read_text())
    for section, values in sections.items():
        found[section].update(values)
    path.write_text(json.dumps(found))


@pytest.mark.parametrize("name", some(CASES, (*SYSTEMS, "vlbert-learned", "vilbert-contrastive")))
def test_round_trip(name, tmp_path):
    joint = joint_model(name, frozen_stages=(1, 2, 3))
    assert save_joint(joint, tmp_path / "joint") == tmp_path / "joint"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["config.json", "joint", "model.safetensors"]
    again = load_joint(tmp_path / "joint")
    assert type(again.model) is type(joint.model) and again.choices == joint.choices
    ours, theirs = joint.state_dict(), again.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
    trained = {key for key, parameter in joint.named_parameters() if parameter.requires_grad}
    assert trained == {key for key, parameter in again.named_parameters() if parameter.requires_grad}
    batch, images = inputs(joint)
    with torch.no_grad():
        assert losses(again, batch, images) == losses(joint, batch, images)


def test_a_folder_that_is_there_gives_way(tmp_path):
    first, second = joint_model("visualbert"), EndToEndModel(awake(vlbert(), seed=4), encoder(), CASES["vlbert"][1])
    save_joint(first, tmp_path / "joint")
    save_joint(second, tmp_path / "joint")
    again = load_joint(tmp_path / "joint")
    key = "model.vlbert.region_token.weight"
    assert torch.equal(again.state_dict()[key], second.state_dict()[key])
    assert [path.name for path in tmp_path.iterdir()] == ["joint"]


def test_half_precision_stays(tmp_path):
    joint = joint_model("visualbert").bfloat16()
    again = load_joint(save_joint(joint, tmp_path / "joint"))
    assert {tensor.dtype for tensor in again.state_dict().values()} == {torch.bfloat16}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Read only."""
    return save_joint(joint_model("vlbert"), tmp_path_factory.mktemp("saved") / "joint")


def as_checkpoint(saved, run):
    """The one checkpoint of a run end to end: the folder."""
    checkpoint = run / "checkpoints" / "step-00000004"
    shutil.copytree(saved, checkpoint / "model")
    for name in ("state.json", "optimizer.safetensors"):
        (checkpoint / name).write_text("{}")
    (run / "config.json").write_text("{}")
    write_sums(checkpoint)
    return checkpoint


def test_a_run_and_its_checkpoints_are_taken_as_their_model(saved, tmp_path):
    checkpoint = as_checkpoint(saved, tmp_path / "run")
    first = load_joint(saved).state_dict()
    for folder in (tmp_path / "run", str(checkpoint), checkpoint / "model"):
        again = load_joint(folder).state_dict()
        assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())


def rewrite(path, change):
    path.write_bytes(change(path.read_bytes()))


def retensor(folder, change):
    """Writes the weights again, with what `change` makes of them."""
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors), folder / "model.safetensors")


def with_a_nan(tensors):
    next(tensor for name, tensor in tensors.items() if name.startswith("region_encoder.")).view(-1)[0] = math.nan
    return tensors


CONFIG, WEIGHTS = "config.json", "model.safetensors"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            lambda folder: change(folder, model={"region_feature_size": 64}),
            r"joint: the model reads region features of width 64 .* encoder makes 128",
        ),
        (
            lambda folder: change(folder, model={"num_hidden_layers": 3}),
            r"joint: parameter model.vlbert.encoder.layers.2\S*: the file has none, the config makes it \(",
        ),
        (
            lambda folder: change(folder, model={"architectures": ["os.system"]}),
            r"config.json: architecture 'os.system' is unknown; there are VLBertForPre",
        ),
        (
            lambda folder: change(folder, end_to_end={"masked": "black"}),
            r"config.json: 'end_to_end' must have the fields .* 'masked'",
        ),
        *(
            (
                lambda folder, given=given: change(folder, region_encoder={"frozen_stages": given}),
                "joint.*frozen_stages",
            )
            for given in (["1"], None, [7])
        ),
        *(
            (
                lambda folder, text=text: (folder / CONFIG).write_text(text),
                r"config.json: .*joint checkpoint's config.json",
            )
            for text in ("{", "[]", '{"format": 1}', "{}" + " " * 2**20)
        ),
        (
            lambda folder: rewrite(folder / CONFIG, lambda data: data.replace(b'"format": 1', b'"format": 2')),
            '"format" is 2, this roibeam reads 1',
        ),
        (
            lambda folder: rewrite(folder / WEIGHTS, lambda data: data[:-100]),
            r"model\.safetensors: not a complete safetensors file",
        ),
        (lambda folder: (folder / WEIGHTS).unlink(), r"joint: model\.safetensors is missing"),
        (
            lambda folder: retensor(folder, lambda tensors: tensors | {"model.other": torch.zeros(3)}),
            r"parameter model.other: the file has \(3,\), the config makes it none",
        ),
        (lambda folder: retensor(folder, with_a_nan), r"joint: parameter region_encoder\..* holds NaN or infinity"),
    ],
)
def test_a_folder_that_does_not_fit_itself_is_refused(saved, tmp_path, damage, words):
    folder = shutil.copytree(saved, tmp_path / "joint")
    damage(folder)
    with pytest.raises(ValueError, match=words):
        load_joint(folder)


def test_one_bit_of_a_run_s_checkpoint(saved, tmp_path):
    weights = as_checkpoint(saved, tmp_path / "run") / "model" / WEIGHTS
    rewrite(weights, lambda data: data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"model\.safetensors: is damaged: its SHA-256 is not that in SHA256SUMS"):
        load_joint(tmp_path / "run")


def test_a_model_on_stored_features_and_the_other_way_round(saved, tmp_path):
    joint_model("vlbert").model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"of a model on stored features, which roibeam\.load_model reads"):
        load_joint(tmp_path)
    with pytest.raises(ValueError, match=r"config\.json is of a model with its region encoder, .*load_joint reads"):
        VLBertForPreTraining.from_pretrained(saved)


def test_an_encoder_that_its_config_does_not_make(tmp_path):
    backbone = Backbone(ENCODER, encoder().conventions)
    backbone.res4 = backbone.res4[:1]
    odd = RegionEncoder(ENCODER, backbone=backbone)
    joint = EndToEndModel(awake(vlbert()), odd, EndToEndChoices(whole_image="box"))
    with pytest.raises(ValueError, match=r"other parts than its config makes: parameter backbone.res4.1"):
        save_joint(joint, tmp_path / "joint")
    assert not list(tmp_path.iterdir())


class TestOfficialVLBert:
    def test_round_trip_under_the_official_names(self, tmp_path):
        joint = joint_model("vlbert")
        path = save_official_joint(joint, tmp_path / "vl-bert.model")
        fresh = EndToEndModel(vlbert(), RegionEncoder(ENCODER), joint.choices)
        load_official_joint(str(path), fresh)
        assert all(torch.equal(tensor, fresh.state_dict()[name]) for name, tensor in joint.state_dict().items())
        names = set(official_joint_state(joint))
        last_stage = "image_feature_extractor.{}0.conv1.weight"
        assert names >= {
            "vlbert.mlm_head.predictions.decoder.weight",
            "image_feature_extractor.obj_downsample.1.weight",
            "image_feature_extractor.backbone.layer1.0.downsample.1.num_batches_tracked",
            last_stage.format("roi_head_feature_extractor."),
            last_stage.format("head.0."),
        }
        saved = torch.load(path, weights_only=True)["state_dict"]
        assert set(saved) == {f"module.{name}" for name in names}
        # The encoder alone reads the same file.
        alone = RegionEncoder(ENCODER)
        load_encoder_weights(str(path), alone)
        assert torch.equal(alone.backbone.stem.conv1.weight, joint.region_encoder.backbone.stem.conv1.weight)

    def test_task_models_have_kinds_of_their_own(self, tmp_path):
        choices = EndToEndChoices(masked_pixels="whole", whole_image="box")
        config = vlbert_task_config("vcr", **VLBERT_TASK_SIZES)
        joint = EndToEndModel(awake(VLBertForVcr(config)), encoder(), choices)
        path = save_official_joint(joint, tmp_path / "vcr.model", "vcr-1fc")
        fresh = EndToEndModel(VLBertForVcr(config), RegionEncoder(ENCODER), choices)
        load_official_joint(str(path), fresh)
        again = load_joint(save_joint(joint, tmp_path / "joint"))
        batch, images = inputs(joint, masked=NOTHING)
        batch = dataclasses.replace(batch, aligned_words=torch.tensor([[[1], [2], [-1], [3]]] * 2))
        with torch.no_grad():
            scores = [each.model.choices(each(batch, images), 2) for each in (joint, fresh.eval(), again)]
        assert torch.equal(scores[0], scores[1]) and torch.equal(scores[0], scores[2])

    def test_a_checkpoint_on_stored_features(self, tmp_path):
        joint = joint_model("vlbert")
        official = {name: t for name, t in official_joint_state(joint).items() if name.startswith("vlbert.")}
        torch.save({"state_dict": official}, tmp_path / "stored.model")
        with pytest.raises(ValueError, match="holds no image network, so it was trained on stored features"):
            load_official_joint(str(tmp_path / "stored.model"), joint)

    def test_a_checkpoint_of_other_sizes(self, tmp_path):
        path = save_official_joint(joint_model("vlbert"), tmp_path / "vl-bert.model")
        other = EndToEndModel(vlbert(num_region_labels=9), RegionEncoder(ENCODER), CASES["vlbert"][1])
        before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
        with pytest.raises(ValueError, match=r"masked_region_head.decoder.weight: the file has \(7, 16\).*\(9, 16\)"):
            load_official_joint(str(path), other)
        assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())

    @pytest.mark.parametrize("name", [name for name in SYSTEMS if name != "vlbert"])
    def test_another_model_has_no_official_names(self, name, tmp_path):
        with pytest.raises(ValueError, match="has no name in a checkpoint of VL-BERT"):
            save_official_joint(joint_model(name), tmp_path / "other.model")

    def test_outlines_in_channels_have_no_official_names(self, tmp_path):
        with pytest.raises(ValueError, match=r"no place for encoder\.mask_channels"):
            save_official_joint(joint_model("vlbert", mask_channels=8), tmp_path / "other.model")


# --- VL-BERT's reference arrays ---

GOLDEN = Path(__file__).resolve().parents[1] / "goldens" / "vlbert" / "pretrain_e2e_narrow.npz"
LOSSES = {"masked_words": "mlm", "masked_regions": "mvrc", "matching": "relationship"}


def test_official_checkpoint_and_photos_give_the_official_losses(tmp_path):
    """goldens/vlbert/README.md, `pretrain_e2e_narrow` and its tolerances. What is inside is compared by
    tests/conformance; here it is the loader, the photos and the joint model, to losses and gradients."""
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
