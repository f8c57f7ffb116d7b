"""Words of VCR that name a box: what the built model makes of them, by recipe, head and system; on stored features and
from photos. That a resumed run goes on as it began is in test_finetune_settings.py."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import end_to_end_examples as examples
import pytest
import torch
from photo_groups import from_photos, groups, network
from photo_store import write_photo_store
from task_groups import ASKED, SIZES, TINY
from test_vcr_training import KINDS, batches_of, made_store, network_for, questions, words

from roibeam.features.store import FeatureStore
from roibeam.model.inputs import VLBatch
from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES
from roibeam.pipelines.finetuning.rows import AUTO, CHOICE, GROUNDED, UNGROUNDED
from roibeam.pipelines.finetuning.run.group_task import scores_of
from roibeam.pipelines.finetuning.run.network import TaskNetwork, started_network
from roibeam.pipelines.finetuning.run.task_data import StorePair
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.task import DownstreamTask
from roibeam.pipelines.finetuning.tasks.vcr import VcrOptions, open_vcr
from roibeam.pipelines.pretraining.recipes.published import RECIPES
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer

VCR = {name: recipe for name, recipe in TASK_RECIPES.items() if name.startswith("vlbert-vcr")}
NAMED_BOX = 1  # which a choice of every question begins with
pytestmark = pytest.mark.usefixtures("one_thread")


def built(task: DownstreamTask, tokenizer: CaptionTokenizer, system: str, head: str, **fields: Any) -> TaskNetwork:
    """As a run builds it, of small size; no weight is at its start value."""
    torch.manual_seed(0)
    named: Any = SYSTEMS[system]
    sizes = {**TINY, **SIZES.get(system, {}), "max_position_embeddings": 128, "vocab_size": tokenizer.vocab_size}
    model = named.model_class(named.sizes["small"](**{**fields, **sizes, "region_feature_size": 48}))
    learned = {"beside": task.beside, "grounding": task.grounding}
    made = started_network(named, model, ASKED[CHOICE], head, source="a test", **learned)
    examples.awake(made.module)
    made.module.eval()
    return made


def visual_inputs(encoder: Any, ask: Any) -> torch.Tensor:
    """(B, T, V): the visual feature that each word piece enters VL-BERT with."""
    found: list[torch.Tensor] = []
    hook = encoder.embeddings.register_forward_pre_hook(lambda _, given: found.append(given[3].detach()))
    with torch.no_grad():
        ask()
    hook.remove()
    return found[0]


def changed_pieces(encoder: Any, ask: Any, inputs: VLBatch) -> torch.Tensor:
    """(B, T) bool, True where a piece's visual input is another one when the named region's feature is; the whole image
    has one of its own."""
    features = inputs.region_features.clone()
    features[:, NAMED_BOX] += 1.0
    given = (inputs, replace(inputs, region_features=features))
    before, after = (visual_inputs(encoder, lambda each=each: ask(each)) for each in given)
    return (before != after).any(dim=-1)


@pytest.mark.parametrize("name", VCR)
def test_words_carry_what_paper_or_release_gives_them(name: str, tmp_path: Path) -> None:
    """In the built model, with the recipe's head and what it learns beside: the whole image's feature in all words of
    the paper's runs (section 3.2), that of its box in a word of the release's that names one, and in no other word."""
    recipe, tokenizer = VCR[name], words()
    grounding = UNGROUNDED if "-paper" in name else GROUNDED
    assert recipe.options.grounding == grounding
    task = open_vcr(questions(tmp_path), recipe.options, None)
    made = built(task, tokenizer, "vlbert", recipe.head, **RECIPES[recipe.model].build.fields)
    own: Any = made.encoder_config
    assert own.text_visual == {UNGROUNDED: "whole_image", GROUNDED: "grounded"}[grounding]
    described: Any = made.described.get("model", made.described)
    assert described.get("text_visual", "whole_image") == own.text_visual
    batch = batches_of("vlbert", task, made_store(), tokenizer, made, recipe.layout).batch(task.read("train").groups)
    assert (batch.inputs.aligned_words is not None) == (grounding == GROUNDED)
    module: Any = made.module
    encoder = module.model.vlbert if recipe.head == "ours" else module.vlbert
    whole = torch.randn(batch.inputs.region_features.shape[0], 48)
    inputs = replace(batch.inputs, whole_image_features=whole)
    changed = changed_pieces(encoder, module, inputs)
    if grounding == UNGROUNDED:
        assert not changed.any()
        return
    assert batch.inputs.aligned_words is not None
    named = batch.inputs.aligned_words[:, NAMED_BOX]
    expected = torch.zeros_like(changed)
    for row, places in enumerate(named.tolist()):
        expected[row, [place for place in places if place >= 0]] = True
    assert expected.any() and torch.equal(changed, expected)


@pytest.mark.parametrize("grounding", [AUTO, GROUNDED, UNGROUNDED])
def test_from_photos_too(grounding: str, tmp_path: Path) -> None:
    made = write_photo_store(tmp_path, feature_dim=examples.FEATURES)
    _, trained = network("vlbert", CHOICE, whole_image="box", grounding=grounding)
    joint: Any = trained.module
    with FeatureStore(made.path) as store:
        task = small_task(grounding)
        batch = from_photos(store, trained, "vlbert", CHOICE, task=task).batch(groups(CHOICE)[:2])
        inputs = joint.with_features(batch.inputs, batch.images)
    changed = changed_pieces(joint.model.model.vlbert, joint.model, inputs)
    assert bool(changed.any()) == (grounding != UNGROUNDED)


def small_task(grounding: str) -> DownstreamTask:
    return DownstreamTask(
        name="small", form=CHOICE, loss="softmax", read=lambda split: None, train="train", validation=None,  # type: ignore[arg-type,return-value]
        judge=lambda groups, said: {}, answers=lambda groups, said: iter(()), write=lambda path, entries: None,
        grounding=grounding,
    )  # fmt: skip


def test_regions_of_visualbert_have_the_positions_of_their_words_or_not(tmp_path: Path) -> None:
    """Section B.2 of its paper gives them; without, a batch says of no region which words name it."""
    tokenizer, found = words(), {}
    for grounding in (AUTO, GROUNDED, UNGROUNDED):
        task = open_vcr(questions(tmp_path), VcrOptions(grounding=grounding), None)
        made = built(task, tokenizer, "visualbert", "ours")
        inputs = batches_of("visualbert", task, made_store(), tokenizer, made).batch(task.read("train").groups).inputs
        with torch.no_grad():
            found[grounding] = made.module(inputs)
        assert (inputs.aligned_words is None) == (grounding == UNGROUNDED)
    assert torch.equal(found[AUTO], found[GROUNDED]) and not torch.equal(found[AUTO], found[UNGROUNDED])


@pytest.mark.parametrize("system", ["vilbert", "imagebert", "interbert"])
@pytest.mark.parametrize("grounding", [GROUNDED, UNGROUNDED])
def test_a_system_without_a_place_for_it_says_so(system: str, grounding: str, tmp_path: Path) -> None:
    """An option that would be ignored is an error; left alone, it is none."""
    task = open_vcr(questions(tmp_path), VcrOptions(grounding=grounding), None)
    with pytest.raises(ValueError, match=f"grounding '{grounding}': words of {system} carry nothing .* at 'auto'"):
        built(task, words(), system, "ours")
    built(replace(task, grounding=AUTO), words(), system, "ours")


def test_a_model_that_was_grounded_before_is_not_where_the_task_says_so() -> None:
    """Of a start that learned VCR in the release's way."""
    named: Any = SYSTEMS["vlbert"]
    fields = {**TINY, "vocab_size": 99, "region_feature_size": 48, "text_visual": "grounded"}
    model = named.model_class(named.sizes["small"](**fields))
    for grounding, expected in ((UNGROUNDED, "whole_image"), (AUTO, "grounded")):
        made = started_network(named, model, ASKED[CHOICE], "ours", source="a test", grounding=grounding)
        own: Any = made.encoder_config
        assert own.text_visual == expected


def test_what_is_no_grounding_is_refused() -> None:
    with pytest.raises(ValueError, match="grounding must be one of auto, words, none, got 'all'"):
        VcrOptions(grounding="all")


# --- models that are told the class of each box beside its feature ---


@pytest.mark.parametrize(("system", "head"), [("vlbert", "ours"), ("vlbert", "release"), ("visualbert", "ours")])
def test_a_model_is_told_the_class_of_each_box(system: str, head: str, tmp_path: Path) -> None:
    """By a token for each class (VL-BERT), or an embedding beside the feature (VisualBERT of R2C): other classes, other
    scores, and what tells them is trained. Detected regions are of class 0."""
    (tmp_path / "names.txt").write_text("person\ncup\ndog\n", "utf-8")
    options = VcrOptions(told_classes=True, object_names=str(tmp_path / "names.txt"))
    task, tokenizer = open_vcr(questions(tmp_path), options, None), words()
    assert task.input_classes is not None
    network = network_for(system, tokenizer, 48, head=head, told=task.input_classes.num_classes)
    made, groups = batches_of(system, task, made_store(), tokenizer, network), task.read("train").groups
    batch = made.batch(groups)
    assert batch.inputs.region_classes is not None and batch.inputs.region_classes[0].tolist() == [1, 2, 1, 3]
    scores = scores_of(network.module, batch, CHOICE)
    scores.sum().backward()
    (table,) = [
        p
        for n, p in network.module.named_parameters()
        if n.endswith(("bert.region_token.weight", "classed.classes.weight"))
    ]
    assert len(table) == 4 and table.grad is not None and bool(table.grad[1:].any())
    renamed = made.batch([replace(group, facts={**group.facts, "objects": KINDS[::-1]}) for group in groups])
    if system == "visualbert":  # VL-BERT's tokens start alike
        assert not torch.allclose(scores, scores_of(network.module, renamed, CHOICE))
    detected = replace(options, boxes="detected", max_boxes=7)
    pair = StorePair(made_store(num_regions=5, seed=50), made_store())
    joined = batches_of(system, open_vcr(tmp_path, detected, None), pair, tokenizer, network).batch(groups[:1]).inputs
    assert joined.region_classes is not None and joined.region_classes[0].tolist() == [0, 0, 1, 2, 1, 3]


def test_a_system_without_a_place_for_classes_says_so() -> None:
    with pytest.raises(ValueError, match="told_classes: vilbert has no place for classes of regions"):
        network_for("vilbert", words(), 48, told=4)


@pytest.mark.parametrize("system", ["vlbert", "visualbert"])
def test_a_model_that_must_be_told_starts_no_task_that_tells_nothing(system: str) -> None:
    """It stopped at the first step only, after the whole validation split."""
    told = network_for(system, words(), 48, told=4).module.model
    with pytest.raises(ValueError, match="run: this model reads the class of each region, and the task has none"):
        started_network(SYSTEMS[system], told, ASKED[CHOICE], "ours", source="run")
