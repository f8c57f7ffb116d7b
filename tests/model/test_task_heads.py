"""Heads of tasks on every model: shapes, gradients, what padding does, what a model lacks, files."""

import dataclasses

import pytest
import torch
from model_examples import EXAMPLES, MOSTLY_ONE_OF_EACH, build, in_dtype, make_full_batch, padded
from vilbert_examples import randomised

from roibeam.model.common.losses import cross_entropy
from roibeam.model.common.transformer import TransformerEncoder
from roibeam.model.inputs import IGNORE_INDEX
from roibeam.model.task_heads import (
    GroundingHead,
    GroundingHeadConfig,
    ImagePairHead,
    ImagePairHeadConfig,
    LabelHead,
    LabelHeadConfig,
    RegionHead,
    RegionHeadConfig,
    TaskModel,
    by_choice,
    join_row_pairs,
    load_task_head,
    read_summary,
)
from roibeam.model.task_losses import (
    answer_bce,
    answer_kl,
    binary_loss,
    class_bce,
    grounding_loss,
    multi_class_loss,
    region_bce,
    score_regression,
)
from roibeam.model.vilbert.model import ViLbertForPreTraining

ANSWERS = 6
ONE_STREAM = ("VL-BERT", "VL-BERT with relationship", "VL-BERT, paper")
ONE_STREAM += ("ViLBERT single-stream", "VisualBERT", "ImageBERT")


def summary(model):
    """What a row is summed up by: the pooled vector, or [CLS] where there is none."""
    return "pooled" if model.config.output_widths.pooled else "cls"


def labels(model, classes, reads=None, **fields):
    reads = reads or summary(model)
    return LabelHead(LabelHeadConfig.for_model(model.config, num_classes=classes, reads=reads, **fields))


def four_rows(**changes):
    return dataclasses.replace(make_full_batch((9, 4, 7, 5), (5, 6, 1, 3)), **changes)


def two_images_in_a_row():
    batch = four_rows()
    return dataclasses.replace(batch, region_images=(torch.arange(6) % 2).expand(4, -1))


def without_regions():
    return make_full_batch((9, 4, 7, 5), (0, 0, 0, 0))


def with_phrases():
    return four_rows(phrase_positions=torch.tensor([[3, -1], [0, 2], [1, -1], [-1, -1]]))


def some_targets(shape, seed=3):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def region_targets(batch):
    return (some_targets(batch.region_mask.shape) > 0.5).float()


# Task: how a head is made for a model, a batch for it, its loss, and the shape of what it says.
TASKS = {
    "VQA on [MASK]": (
        lambda m: labels(m, ANSWERS, "mask_piece", classifier="two_layers"), four_rows,
        lambda out, batch: answer_kl(out, some_targets((4, ANSWERS)).softmax(dim=-1)), (4, ANSWERS),
    ),
    "VQA on the pair": (
        lambda m: labels(m, ANSWERS), four_rows,
        lambda out, batch: answer_bce(out, some_targets((4, ANSWERS))), (4, ANSWERS),
    ),
    "VCR": (
        lambda m: labels(m, 1), four_rows,
        lambda out, batch: cross_entropy(by_choice(out, 4), torch.tensor([2])), (4, 1),
    ),
    "VCR, each choice by itself": (
        lambda m: labels(m, 1), four_rows,
        lambda out, batch: class_bce(by_choice(out, 4), torch.tensor([2])), (4, 1),
    ),
    "RefCOCO+": (
        lambda m: RegionHead(RegionHeadConfig.for_model(m.config, classifier="two_layers")), four_rows,
        lambda out, batch: region_bce(out, region_targets(batch), batch.region_mask, per="regions"),
        (4, 6),
    ),
    "NLVR2 in two rows": (
        lambda m: ImagePairHead(
            ImagePairHeadConfig.for_model(m.config, reads=summary(m), classifier="two_layers", num_classes=2)
        ), four_rows,
        lambda out, batch: class_bce(out, torch.tensor([1, 0])), (2, 2),
    ),
    "NLVR2 in one row": (
        lambda m: labels(m, 2), two_images_in_a_row,
        lambda out, batch: cross_entropy(out, torch.tensor([1, 0, 0, 1])), (4, 2),
    ),
    "retrieval among four": (
        lambda m: labels(m, 1), four_rows,
        lambda out, batch: multi_class_loss(by_choice(out, 4), torch.tensor([0])), (4, 1),
    ),
    "Flickr30k Entities": (
        lambda m: GroundingHead(GroundingHeadConfig.for_model(m.config, inner_width=6)), with_phrases,
        lambda out, batch: grounding_loss(
            out, some_targets(out.shape).masked_fill(~batch.region_mask[:, None], 0.0).softmax(dim=-1)
        ), (4, 2, 6),
    ),
    "GLUE": (
        lambda m: labels(m, 3, "pooled_text" if m.config.output_widths.pooled else "cls"),
        without_regions,
        lambda out, batch: cross_entropy(out, torch.tensor([2, 0, 1, IGNORE_INDEX])), (4, 3),
    ),
    "STS-B": (
        lambda m: labels(m, 1, "cls"), without_regions,
        lambda out, batch: score_regression(out, torch.tensor([5.0, 0.0, 2.5, 3.75])), (4, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MOSTLY_ONE_OF_EACH)
@pytest.mark.parametrize("task", TASKS)
def test_each_head_on_each_model(task, name):
    """Shapes and gradients, and that padding does not matter."""
    make_head, make_its_batch, loss, shape = TASKS[task]
    model, batch = build(name), make_its_batch()
    task_model = TaskModel(model, randomised(make_head(model))).eval()
    scores = task_model(batch)
    assert scores.shape == shape
    loss(scores, batch).mean.backward()
    gradients = {name: p.grad for name, p in task_model.named_parameters() if p.grad is not None}
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    assert any("layers.0.attention.query" in name and grad.abs().max() > 0 for name, grad in gradients.items())
    assert {f"head.{name}" for name, _ in task_model.head.named_parameters()} <= gradients.keys()
    regions = batch.region_mask.shape[1]
    with torch.no_grad():
        others = task_model(padded(batch, 3, 2))
    if others.shape != scores.shape:
        assert (others[..., regions:] < -1e30).all()
        others = others[..., :regions]
    torch.testing.assert_close(others, scores, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(loss(others, batch).mean, loss(scores, batch).mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", EXAMPLES)
def test_scores_of_pairs_are_float32_in_bfloat16_too(name):
    """Among a thousand images many scores of bfloat16 would tie, and ties count against a model."""
    model, batch = build(name), four_rows()
    with torch.autocast("cpu", torch.bfloat16):
        output = model.encode(batch)
        odds, chosen = model.match_log_odds(output), labels(model, 1)(batch, output)
    for scores in (chosen,) if odds is None else (chosen, odds):
        assert scores.dtype == torch.float32
        assert (scores != scores.bfloat16()).any()


@pytest.mark.parametrize("name", EXAMPLES)
def test_match_log_odds_train_retrieval(name):
    """InterBERT's way: the match head again, each candidate by itself."""
    model, batch = build(name), four_rows()
    odds = model.match_log_odds(model.encode(batch))
    if odds is None:
        assert name == "VL-BERT"
        return
    binary_loss(by_choice(odds, 4), torch.tensor([0])).mean.backward()
    gradients = [p.grad for n, p in model.named_parameters() if "layers.0.attention.query" in n]
    assert gradients and all(grad.isfinite().all() and grad.abs().max() > 0 for grad in gradients)


def test_which_vector_is_read():
    model, batch = build("ViLBERT"), four_rows()
    output = model.encode(batch)
    assert torch.equal(read_summary(batch, output, "pooled"), output.pooled)
    assert torch.equal(read_summary(batch, output, "pooled_text"), output.pooled_text)
    assert torch.equal(read_summary(batch, output, "cls"), output.text_states[:, 0])
    places = output.text_states[[0, 1, 2, 3], [7, 2, 5, 3]]  # rows of 9, 4, 7 and 5 pieces
    assert torch.equal(read_summary(batch, output, "mask_piece"), places)
    one_stream = build("VisualBERT").encode(batch)
    assert torch.equal(read_summary(batch, one_stream, "pooled_text"), one_stream.pooled)


@pytest.mark.parametrize("reads", ["summary", "mask_piece"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_last_layer_leaves_out_what_no_head_reads(name, reads):
    """Scores and gradients are those of all states; models of one stream compute four states of their last layer."""
    batch = four_rows()
    found, computed = [], []
    for all_states in (True, False):
        model = build(name).double()
        head = labels(model, 3, summary(model) if reads == "summary" else reads).double().eval()
        head.load_state_dict(randomised(labels(model, 3, head.config.reads)).state_dict())
        if name in ONE_STREAM:
            (encoder,) = (each for each in model.modules() if isinstance(each, TransformerEncoder))
            encoder.layers[-1].feed_forward.register_forward_hook(lambda _, __, states: computed.append(len(states)))
        task_model = TaskModel(model, head)
        wide = in_dtype(batch, torch.float64)
        scores = head(wide, model.encode(wide)) if all_states else task_model(wide)
        (scores * some_targets(scores.shape).double()).sum().backward()
        grads = {key: value.grad for key, value in task_model.named_parameters() if value.grad is not None}
        found.append({"scores": scores.detach(), **grads})
    assert found[0].keys() == found[1].keys()
    for key, value in found[0].items():
        torch.testing.assert_close(found[1][key], value, rtol=1e-10, atol=1e-12, msg=key)
    if name in ONE_STREAM:
        assert computed[1] == 4 < computed[0]


def test_rows_that_belong_together():
    rows = torch.arange(8.0).reshape(4, 2)
    assert by_choice(rows[:, :1], 2).tolist() == [[0, 2], [4, 6]]
    assert join_row_pairs(rows).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(ValueError, match="4 rows are no questions with 3 choices each"):
        by_choice(rows[:, 0], 3)
    with pytest.raises(ValueError, match="3 rows are no pairs of images"):
        join_row_pairs(rows[:3])


def test_the_whole_image_takes_part_where_there_is_one():
    batch = four_rows()
    for name in ("ViLBERT", "VL-BERT"):
        model = build(name)
        head = RegionHead(RegionHeadConfig.for_model(model.config, with_whole_image=True)).eval()
        output = model.encode(batch)
        scores, scored = head(batch, output), head.scored(batch)
        assert scores.shape == scored.shape == (4, 7) and scored.sum(dim=1).tolist() == [6, 7, 2, 4]
        torch.testing.assert_close(scores[:, 0], head.classifier(output.whole_image_state)[:, 0])
        assert (scores[~scored] < -1e30).all() and (scores[scored] > -1e3).all()
    model = build("VisualBERT")
    head = RegionHead(RegionHeadConfig.for_model(model.config, with_whole_image=True))
    with pytest.raises(ValueError, match="no state of the whole image"):
        head(batch, model.encode(batch))


def test_what_a_model_lacks_is_said():
    bare, batch = build("VL-BERT"), four_rows()
    with pytest.raises(
        ValueError, match=r"no pooler; make it with one \(VL-BERT: with_pooler=True\), or .* reads='cls'"
    ):
        labels(bare, 2, "pooled")
    with pytest.raises(ValueError, match="no pooler"):
        read_summary(batch, bare.encode(batch), "pooled_text")
    with pytest.raises(ValueError, match="LabelHeadConfig: input_width is 24, but ViLbertConfig gives 16"):
        TaskModel(build("ViLBERT"), labels(build("VisualBERT"), 2))
    with pytest.raises(ValueError, match="reads is 'first'; it must be one of"):
        LabelHeadConfig(reads="first")
    with pytest.raises(ValueError, match="unknown field 'num_clases'; did you mean num_classes"):
        LabelHeadConfig(num_clases=2)
    with pytest.raises(ValueError, match="no phrase_positions"):
        GroundingHead(GroundingHeadConfig.for_model(bare.config))(batch, bare.encode(batch))


@pytest.mark.parametrize("name", EXAMPLES)
def test_widths_are_those_of_the_output(name):
    model, batch = build(name), four_rows()
    output, widths = model.encode(batch), model.config.output_widths
    assert widths.text == output.text_states.shape[-1] and widths.region == output.region_states.shape[-1]
    for pooled in (output.pooled, output.pooled_text, output.pooled_image):
        assert pooled is None or widths.pooled == pooled.shape[-1]
    assert (widths.pooled is None) == (output.pooled is None)
    if output.whole_image_state is not None:
        assert widths.region == output.whole_image_state.shape[-1]


@pytest.mark.parametrize("task", ["VQA on [MASK]", "NLVR2 in two rows", "RefCOCO+", "Flickr30k Entities"])
def test_one_folder_holds_model_and_head(task, tmp_path):
    make_head, make_its_batch, _, _ = TASKS[task]
    model, batch = build("ViLBERT"), make_its_batch()
    task_model = TaskModel(model, randomised(make_head(model)))
    task_model.save(tmp_path)
    loaded = TaskModel(ViLbertForPreTraining.from_pretrained(tmp_path), load_task_head(tmp_path)).eval()
    assert type(loaded.head) is type(task_model.head)
    with torch.no_grad():
        assert torch.equal(loaded(batch), task_model(batch))


def test_a_folder_may_be_a_text_and_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    """A text as the folder stopped half way: the model was written, its head was not."""
    make_head, make_its_batch, _, _ = TASKS["VQA on the pair"]
    model, batch = build("ViLBERT"), make_its_batch()
    task_model = TaskModel(model, randomised(make_head(model))).eval()
    for _ in range(2):  # also into a folder that is there
        task_model.save(f"{tmp_path}/saved")
        loaded = TaskModel(
            ViLbertForPreTraining.from_pretrained(tmp_path / "saved"), load_task_head(f"{tmp_path}/saved")
        )
        with torch.no_grad():
            assert torch.equal(loaded.eval()(batch), task_model(batch))
    monkeypatch.setattr(task_model.head, "save_pretrained", None)
    with pytest.raises(TypeError):
        task_model.save(tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_a_folder_without_a_head_or_with_another_kind(tmp_path):
    with pytest.raises(ValueError, match="holds no task head"):
        load_task_head(tmp_path)
    (tmp_path / "task_head").mkdir()
    (tmp_path / "task_head" / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="no head is of kind 'bert'; there are roibeam-label-head"):
        load_task_head(tmp_path)


def test_new_heads_start_as_bert_does():
    torch.manual_seed(0)
    head = LabelHead(LabelHeadConfig(input_width=400, num_classes=300, classifier="two_layers", initializer_range=0.03))
    dense = head.classifier[1].dense
    assert dense.weight.std().item() == pytest.approx(0.03, rel=0.02) and dense.bias.abs().max() == 0
    assert (head.classifier[1].norm.weight == 1).all()
