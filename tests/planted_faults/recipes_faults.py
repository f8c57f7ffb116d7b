"""Faults by which a run is not its recipe: a field that the recipe names is lost on the way to what is built."""

from fault import Fault

_TESTS = "tests/pipelines/test_runs_are_recipes.py"
_PUBLISHED = f"{_TESTS}::test_a_published_run_is_its_recipe"
_TASK = "tests/pipelines/test_task_runs_are_recipes.py::test_a_run_of_a_task_is_its_recipe"

FAULTS = (
    Fault(
        "end to end the mode wins over a recipe's masking",
        "run_model",
        " if name not in preset}",
        "}\n    if end_to_end is not None and system.end_to_end_fields:\n"
        '        choice = dataclasses.replace(choice, overrides={"masked_appearance": "pixels"})',
        f"{_PUBLISHED}[vlbert-paper]",
    ),
    Fault(
        "rules of samples are the system's, not the recipe's",
        "default_sections",
        '"sampling": recipe.sampling if recipe else sampling()',
        '"sampling": sampling()',
        f"{_PUBLISHED}[vlbert-paper]",
    ),
    Fault(
        "a recipe trains on all images in place of its share",
        "default_sections",
        "share=recipe.share if recipe else 1.0",
        "share=1.0",
        f"{_PUBLISHED}[vilbert-25-percent]",
    ),
    Fault(
        "a recipe's optimizer settings are lost in its toy",
        "Recipe.toy_config",
        '            **self.settings,\n            "steps": steps,\n            "learning_rate": TOY_RATE,',
        '            "steps": steps,\n            "learning_rate": TOY_RATE,',
        f"{_TESTS}::test_a_toy_run_is_its_recipe_but_for_sizes_and_steps[vlbert-paper]",
    ),
    Fault(
        "the paper's VL-BERT has no vector for masked regions",
        "VLBertModel.__init__",
        "nn.Embedding(1, config.visual_width) if embedding else None",
        "None",
        f"{_PUBLISHED}[vlbert-paper]",
    ),
    Fault(
        "VisualBERT of late fusion is fused early",
        "VisualBertModel.__init__",
        "None if config.early_fusion else bert_layer(config)",
        "None",
        f"{_PUBLISHED}[visualbert-coco-vqa-late-fusion]",
    ),
    Fault(
        "nothing decays",
        "build_optimizer",
        '"weight_decay": group.get("weight_decay", config.weight_decay)',
        '"weight_decay": 0.5',
        f"{_PUBLISHED}[vilbert]",
    ),
    Fault(
        "the whole encoder trains",
        "RegionEncoder.__init__",
        "for stage in self.frozen_stages:",
        "for stage in ():",
        f"{_PUBLISHED}[vlbert-base-e2e]",
    ),
    Fault(
        "a task's recipe has another layout",
        "sections_of",
        '"layout": LayoutOptions() if recipe is None else recipe.layout',
        '"layout": LayoutOptions()',
        f"{_TASK}[vilbert-vqa-published]",
    ),
    Fault(
        "a task's recipe has a head of ours",
        "sections_of",
        "HeadOptions(recipe.head, recipe.head_start)",
        "HeadOptions()",
        f"{_TASK}[vlbert-vqa-published]",
    ),
    Fault(
        "photos of a task's recipe have the encoder's own edges",
        "sections_of",
        "edges = {} if request.toy else",
        "edges = {} if recipe else",
        f"{_TASK}[vlbert-vcr-answer-published]",
    ),
    Fault(
        "a toy of a task has the published rate",
        "_train_config",
        "    if request.toy:\n        fields |= ",
        "    if request.epochs:\n        fields |= ",
        f"{_TASK}[vilbert-vqa-toy]",
    ),
    Fault(
        "VCR of the paper grounds its words",
        "_vcr_paper",
        "options=VcrOptions(problem=problem, grounding=UNGROUNDED, object_loss=",
        "options=VcrOptions(problem=problem, object_loss=",
        "tests/pipelines/test_grounded_words.py::test_words_carry_what_paper_or_release_gives_them",
    ),
    Fault(
        "a task on stored features goes on from a model that was trained end to end",
        "",
        '    end_to_end=True,\n    photos={"flip": False},',
        '    photos={"flip": False},',
        "tests/pipelines/test_recipe_chains.py::test_what_comes_after_fits_what_was_before[vlbert-vqa-paper]",
    ),
)
