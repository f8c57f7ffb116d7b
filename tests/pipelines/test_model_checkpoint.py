"""Models from every kind of folder and file that holds one, and back."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from roibeam.model.imagebert.model import ImageBertConfig, ImageBertForPreTraining
from roibeam.model.inputs import VLBatch
from roibeam.model.interbert.model import InterBertConfig, InterBertForPreTraining, InterBertForTasks
from roibeam.model.vilbert.encoder import ViLbertConfig
from roibeam.model.vilbert.model import ViLbertForMultiTask, ViLbertForPreTraining, ViLbertForTasks
from roibeam.model.vilbert.single_stream import SingleStreamConfig, SingleStreamForPreTraining, SingleStreamForTasks
from roibeam.model.visualbert.model import (
    VisualBertConfig,
    VisualBertForGrounding,
    VisualBertForLabels,
    VisualBertForPreTraining,
)
from roibeam.model.vlbert.config import vlbert_config, vlbert_task_config
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.model.vlbert.tasks import VLBertForReferring, VLBertForVcr, VLBertForVqa
from roibeam.pipelines.training.model_files.model_checkpoint import load_model
from roibeam.pipelines.training.model_files.published_models import COORDINATE_EMBEDDING_SIZE, writer_of

BERT = {
    "vocab_size": 60, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": 20,
}  # fmt: skip
FEATURES = {"region_feature_size": 12}
VLBERT: dict[str, Any] = BERT | FEATURES | {"coordinate_embedding_size": COORDINATE_EMBEDDING_SIZE}
VILBERT = BERT | FEATURES | {
    "image_hidden_size": 32, "image_num_hidden_layers": 2, "image_num_attention_heads": 8,
    "image_intermediate_size": 24, "co_attention_size": 40, "co_attention_num_heads": 8, "text_co_attention": (1, 2),
    "image_co_attention": (0, 1), "region_target_size": 7,
}  # fmt: skip
INTERBERT = BERT | FEATURES | {
    "num_hidden_layers": 6, "text_num_hidden_layers": 2, "image_num_hidden_layers": 1, "image_intermediate_size": 24,
    "pooled_size": 20, "region_target_size": 7,
}  # fmt: skip
MT = {"num_gqa_answers": 5, "num_task_tokens": 20, "whole_image_count": "visible", "masked_loss_pairs": "matched"}
PUBLISHED = {
    "VL-BERT": lambda: VLBertForPreTraining(vlbert_config(**VLBERT, num_region_labels=7)),
    "VL-BERT, captions": lambda: VLBertForPreTraining(vlbert_config("release-captions", **VLBERT, num_region_labels=7)),
    "VL-BERT, end to end": lambda: VLBertForPreTraining(vlbert_config("release-e2e", **VLBERT, num_region_labels=7)),
    "VL-BERT for VQA": lambda: VLBertForVqa(vlbert_task_config("vqa", **VLBERT, num_answers=9)),
    "VL-BERT for VCR": lambda: VLBertForVcr(vlbert_task_config("vcr", **VLBERT)),
    "VL-BERT for RefCOCO+": lambda: VLBertForReferring(vlbert_task_config("refcoco", **VLBERT)),
    "ViLBERT": lambda: ViLbertForPreTraining(ViLbertConfig(**VILBERT)),
    "ViLBERT for tasks": lambda: ViLbertForTasks(ViLbertConfig(**VILBERT, num_answers=9)),
    "ViLBERT, multi-task": lambda: ViLbertForMultiTask(ViLbertConfig(**VILBERT, **MT, num_answers=9)),
    "VisualBERT": lambda: VisualBertForPreTraining(VisualBertConfig(**BERT, **FEATURES, first_region_segment=1)),
    "VisualBERT for labels": lambda: VisualBertForLabels(
        VisualBertConfig(**BERT, **FEATURES, first_region_segment=1, num_answers=9, with_match_head=False)
    ),
    "VisualBERT for grounding": lambda: VisualBertForGrounding(
        VisualBertConfig(**BERT, **FEATURES, first_region_segment=1)
    ),
    "InterBERT": lambda: InterBertForPreTraining(InterBertConfig(**INTERBERT)),
    "InterBERT for tasks": lambda: InterBertForTasks(InterBertConfig(**INTERBERT, num_answers=9)),
}
OURS_ALONE = {
    "ImageBERT": lambda: ImageBertForPreTraining(ImageBertConfig(**BERT, **FEATURES, num_region_labels=7)),
    "single stream": lambda: SingleStreamForPreTraining(SingleStreamConfig(**BERT, **FEATURES, region_target_size=7)),
    "single stream for tasks": lambda: SingleStreamForTasks(
        SingleStreamConfig(**BERT, **FEATURES, region_target_size=7, num_answers=9)
    ),
}


def same_state(left: torch.nn.Module, right: torch.nn.Module) -> bool:
    ours, theirs = left.state_dict(), right.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def fields_of(model: Any) -> dict[str, Any]:
    fields = model.config.to_dict()
    return {name: fields[name] for name in fields if name not in ("architectures", "transformers_version", "dtype")}


@pytest.mark.parametrize("name", [*PUBLISHED, *OURS_ALONE])
def test_our_own_folders(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = (PUBLISHED | OURS_ALONE)[name]()
    model.save_pretrained(tmp_path / "model")
    found = load_model(str(tmp_path / "model"))
    assert type(found.model) is type(model) and not found.model.training
    assert same_state(found.model, model) and fields_of(found.model) == fields_of(model)


@pytest.mark.parametrize("name", PUBLISHED)
def test_official_files_become_ours_and_back(name: str, tmp_path: Path) -> None:
    """Sizes and heads are read off the shapes alone; fields without a shape are the published ones."""
    torch.manual_seed(0)
    model = PUBLISHED[name]()
    official = writer_of(model).to_official(model)
    torch.save({"state_dict": {f"module.{key}": value for key, value in official.items()}}, tmp_path / "a.bin")
    found = load_model(str(tmp_path / "a.bin"))
    assert type(found.model) is type(model)
    assert same_state(found.model, model)
    if name.startswith("VL-BERT for"):
        return  # what stands beside the heads of a task has no shape: compared where it is made
    assert fields_of(found.model) == fields_of(model)
    again = writer_of(found.model).to_official(found.model)
    assert again.keys() == official.keys() and all(torch.equal(again[key], official[key]) for key in again)


def test_a_folder_of_transformers(tmp_path: Path) -> None:
    """transformers' own VisualBERT, as the hub's repositories hold it."""
    from transformers import VisualBertConfig as TheirConfig
    from transformers import VisualBertForPreTraining as Theirs

    torch.manual_seed(0)
    theirs = Theirs(TheirConfig(**BERT, visual_embedding_dim=12, pad_token_id=0)).eval()
    theirs.save_pretrained(tmp_path)
    theirs.visual_bert.save_pretrained(tmp_path / "bare")
    with pytest.raises(ValueError, match="VisualBertModel alone, which has no heads"):
        load_model(str(tmp_path / "bare"))
    found = load_model(str(tmp_path))
    assert isinstance(found.model, VisualBertForPreTraining) and found.model.config.first_region_segment == 1
    ids = torch.randint(1, 60, (2, 5))
    features = torch.randn(2, 3, 12)
    with torch.no_grad():
        want = theirs(input_ids=ids, visual_embeds=features, visual_attention_mask=torch.ones(2, 3)).prediction_logits
        batch = VLBatch(
            text_ids=ids, text_mask=torch.ones_like(ids, dtype=torch.bool), text_segments=torch.zeros_like(ids),
            region_features=features, region_boxes=torch.tensor([1.0, 1.0, 9.0, 9.0]).expand(2, 3, 4),
            region_mask=torch.ones(2, 3, dtype=torch.bool), image_hw=torch.full((2, 2), 20.0),
            masked_regions=torch.zeros(2, 3, dtype=torch.bool),
        )  # fmt: skip
        got = found.model.word_logits(found.model.encode(batch).text_states)
    torch.testing.assert_close(got, want[:, :5], rtol=0, atol=1e-5)


def save(tensors: dict[str, Tensor], path: Path) -> None:
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, path)  # refuses shared memory


def test_the_names_of_uclas_files(tmp_path: Path) -> None:
    model = PUBLISHED["VisualBERT"]()
    replaced = (
        ("visual_bert.", "bert.bert."),
        ("cls.", "bert.cls."),
        ("visual_token_type_embeddings", "token_type_embeddings_visual"),
        ("visual_position_embeddings", "position_embeddings_visual"),
        ("visual_projection", "projection"),
    )
    ucla = {}
    for name, tensor in writer_of(model).to_official(model).items():
        for old, new in replaced:
            name = name.replace(old, new)
        ucla[name] = tensor
    torch.save(ucla, tmp_path / "model_state_epoch_9.th")
    found = load_model(str(tmp_path / "model_state_epoch_9.th"))
    assert same_state(found.model, model) and found.model.config.first_region_segment == 0
    told = "taken as published, since a file lacks them: num_attention_heads 2; --config sets others"
    assert found.changes == ("regions are segment 0, as UCLA's code counts", told)


def test_a_configuration_tells_what_shapes_do_not(tmp_path: Path) -> None:
    model = ViLbertForPreTraining(ViLbertConfig(**(VILBERT | {"image_co_attention": (0, 0), "num_attention_heads": 4})))
    save(writer_of(model).to_official(model), tmp_path / "a.safetensors")
    options = {
        "vocab_size": 60, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
        "max_position_embeddings": 20, "v_feature_size": 12, "v_target_size": 7, "v_hidden_size": 32,
        "v_num_hidden_layers": 2, "v_num_attention_heads": 8, "v_intermediate_size": 24, "bi_hidden_size": 40,
        "bi_num_attention_heads": 8, "t_biattention_id": [1, 2], "v_biattention_id": [0, 0],
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(options))
    found = load_model(str(tmp_path / "a.safetensors"), options=tmp_path / "config.json")
    assert found.model.config.image_co_attention == (0, 0) and found.model.config.num_attention_heads == 4
    assert same_state(found.model, model)


def test_vlberts_options_are_the_network_of_its_yaml_file(tmp_path: Path) -> None:
    model = PUBLISHED["VL-BERT"]()
    save(writer_of(model).to_official(model), tmp_path / "a.safetensors")
    sizes = BERT | {"visual_size": 128, "visual_ln": True, "num_attention_heads": 4, "type_vocab_size": 3}
    options = {"NETWORK": {"IMAGE_FEAT_PRECOMPUTED": True, "VLBERT": sizes, "WITH_REL_LOSS": False}}
    (tmp_path / "cfg.json").write_text(json.dumps(options))
    found = load_model(str(tmp_path / "a.safetensors"), options=tmp_path / "cfg.json")
    assert found.model.config.num_attention_heads == 4 and same_state(found.model, model)
    (tmp_path / "cfg.json").write_text(json.dumps({"hidden_size": 4}))
    with pytest.raises(ValueError, match=r"a\.safetensors: the configuration has no VLBERT"):
        load_model(str(tmp_path / "a.safetensors"), options=tmp_path / "cfg.json")


def test_a_run_and_its_checkpoints(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step in (1, 2):
        torch.manual_seed(step)
        OURS_ALONE["ImageBERT"]().save_pretrained(run / "checkpoints" / f"step-{step:08d}" / "model")
    (run / "tokenizer").mkdir()
    newest, older = load_model(str(run)), load_model(str(run / "checkpoints" / "step-00000001"))
    assert newest.source.parent.name == "step-00000002" and older.source.parent.name == "step-00000001"
    assert newest.tokenizer == older.tokenizer == run / "tokenizer"
    assert not same_state(newest.model, older.model)


class Attack:
    """Would make a file if it were unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (open, (str(self.mark), "w"))


@pytest.mark.parametrize("suffix", [".bin", ".th", ".pkl"])
def test_nothing_in_a_file_runs(suffix: str, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    path = tmp_path / f"a{suffix}"
    if suffix == ".pkl":
        path.write_bytes(pickle.dumps({"bert.x": Attack(mark)}))
    else:
        torch.save({"bert.x": Attack(mark)}, path)
    with pytest.raises(ValueError, match=r"open|nothing"):
        load_model(str(path))
    assert not mark.exists()


def test_what_does_not_fit_is_one_line(tmp_path: Path) -> None:
    def refused(spec: Path, **more: Any) -> str:
        with pytest.raises(ValueError) as caught:
            load_model(str(spec), **more)
        message = str(caught.value)
        assert "\n" not in message and str(spec) in message
        return message

    official = writer_of(model := PUBLISHED["ViLBERT"]()).to_official(model)
    name = next(iter(official))
    short, shorter = ({key: t for key, t in official.items() if part not in key} for part in ("v_pooler", "t_pooler"))
    missing = ("parameter vilbert.pooler.image.weight: the file has none", "; besides, 1 parameter more")
    path = tmp_path / "a.safetensors"
    for tensors, *words in (
        ({"a.weight": torch.zeros(1)}, "of no published model; known are VL-BERT"),
        (short, *missing),
        (official | {name: torch.full_like(official[name], torch.nan)}, f"parameter {name} holds NaN or infinity"),
        (shorter, "no parameter for 'vilbert.pooler.text.weight'"),
        (official | {"bert.encoder.extra": torch.zeros(1)}, "'bert.encoder.extra' is not one of"),
    ):
        save(tensors, path)
        message = refused(path)
        assert all(each in message for each in words), message
    (tmp_path / "empty").mkdir()
    assert "no config.json" in refused(tmp_path / "empty")
    model.save_pretrained(tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    assert "--config is for official files" in refused(tmp_path / "model", options=config)
    settings = json.loads(config.read_text())
    for changes, words in (
        ({"hidden_size": 64}, "parameter vilbert."),
        ({"image_num_hidden_layers": 10**7}, "the config makes it a model of more than"),  # in milliseconds
        ({"vocab_size": 10**400}, "model: its configuration makes no model: "),
        ({"hidden_dropout": float("nan")}, "hidden_dropout must be of type float, got nan"),
        ({"hiden_size": 64}, "unknown field 'hiden_size'"),
        ({"architectures": ["ViLbertForAll"]}, "architecture 'ViLbertForAll' is unknown"),
    ):
        config.write_text(json.dumps(settings | changes))
        assert words in refused(tmp_path / "model")
    config.write_text("[]")
    assert "expected a JSON object" in refused(tmp_path / "model")
