"""Settings of a request: its system, numbers of its recipe or defaults with its changes, and sections of `--set`.

No torch. A run through the region encoder has sections of its own: photos, labelled photos, encoder and detector.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.training.rules import LossRules, SamplingRules
from roibeam.messages import name_hint
from roibeam.model.common.fields import MASKINGS, EndToEndChoices
from roibeam.pipelines.common.compute import num_processes
from roibeam.pipelines.common.console.overrides import parse_value
from roibeam.pipelines.data.compatibility import check_least
from roibeam.pipelines.pretraining.recipes.named_systems import DEFAULT_SYSTEM, NAMED_SYSTEMS, NamedSystem
from roibeam.pipelines.pretraining.recipes.published import recipe_named
from roibeam.pipelines.pretraining.recipes.recipe import Recipe
from roibeam.pipelines.pretraining.request import PretrainRequest, RequestedEncoder
from roibeam.pipelines.pretraining.samples.sampling import DataConfig
from roibeam.pipelines.training.model_files.encoder_settings import TOY_ENCODER, EncoderOptions, LossWeights
from roibeam.pipelines.training.run_folder.folder import CONFIG_NAME, recorded_steps, saved_config, with_saved
from roibeam.pipelines.training.train_config import TrainConfig, with_settings

HEADS = ("weights", "new")


@dataclass(frozen=True)
class PhotoRules:
    """Rules that make batches of photos; `EndToEndChoices` has what they hide.

    Attributes:
        flip: whether every other photo, by chance, is mirrored left to right, its boxes with it.
        swap_left_right: whether "left" and "right" change places in the caption of a mirrored photo (VL-BERT's release
            leaves them in pre-training).
        short_edges: pixels; each photo is resized to one of these, by chance (scale jitter). () means the encoder's own
            short edge. Its limit of the long edge holds for all.
        fixed_size: whether every photo is padded to the encoder's short edge x long edge (R2C), instead of to the
            largest of its batch.
        aspect_buckets: whether photos of nearly the same shape come together, so that batches need little padding.
        read_ahead: threads that read and resize the next batch's photos while one is trained on.
        skip_broken: whether a photo that cannot be used drops its sample from the batch, counted, instead of stopping
            the run. It is never replaced by another picture.
    """

    flip: bool = True
    swap_left_right: bool = True
    short_edges: tuple[int, ...] = ()
    fixed_size: bool = False
    aspect_buckets: bool = True
    read_ahead: int = 2
    skip_broken: bool = False

    def __post_init__(self) -> None:
        check_least(self, read_ahead=1)
        if not all(isinstance(edge, int) and edge >= 16 for edge in self.short_edges):
            raise ValueError(f"PhotoRules: short_edges must be pixels, 16 or more, got {list(self.short_edges)}")
        if self.fixed_size and self.short_edges:
            raise ValueError("PhotoRules: fixed_size is of one size; leave short_edges out")

    def draw(self, random: np.random.Generator, short_edge: int) -> tuple[int, bool]:
        """Random choices for one photo: pixels of its short edge, by default the encoder's, and whether it is
        mirrored."""
        chosen = int(random.choice(self.short_edges or (short_edge,)))
        return chosen, bool(random.random() < 0.5) and self.flip


@dataclass(frozen=True)
class LabelledRules:
    """Number and preparation of labelled photos.

    Attributes:
        photos_per_caption: labelled photos for each caption. 0.25 is one for each four.
        flip: whether every other photo, by chance, is mirrored left to right.
        short_edges: pixels; each photo is resized to one of these, by chance. () means the encoder's own short edge.
        heads: source of proposal network and heads: "weights", the file that the encoder starts from, or "new":
            drawn, with as many classes and attributes as the labels have.
    """

    photos_per_caption: float = 0.25
    flip: bool = True
    short_edges: tuple[int, ...] = ()
    heads: str = "weights"

    def __post_init__(self) -> None:
        if not 0.001 <= self.photos_per_caption <= 1000:
            raise ValueError(
                f"LabelledRules: photos_per_caption must be in 0.001..1000, got {self.photos_per_caption}; for none, "
                f"name no labels"
            )
        if not all(isinstance(edge, int) and edge >= 16 for edge in self.short_edges):
            raise ValueError(f"LabelledRules: short_edges must be pixels, 16 or more, got {list(self.short_edges)}")
        if self.heads not in HEADS:
            raise ValueError(f"LabelledRules: heads is {self.heads!r}; it must be one of {', '.join(map(repr, HEADS))}")


_LEARNS_FROM_TEXT_ALONE = "vlbert"
_LEARNS_FROM_TASK_TEXT = "visualbert"


def chosen_system(request: PretrainRequest) -> str:
    """The system of a request, in this order: 1. the recipe's or the requested one; 2. that of the run in `out` (so a
    repeated command resumes); 3. that of `from_run`; 4. the one that can read the inputs; 5. the default."""
    spec, data = request.model, request.data
    if spec.recipe is not None:
        return recipe_named(spec.recipe).system
    if spec.system is not None:
        return spec.system
    if request.training.resume_choice is not False and (recorded := system_of_folder(request.out)) is not None:
        return recorded
    if spec.from_run is not None and (started_from := system_of_folder(Path(spec.from_run))) is not None:
        return started_from
    if data.task_text:
        return _LEARNS_FROM_TASK_TEXT
    if data.text_corpus:
        return _LEARNS_FROM_TEXT_ALONE
    return DEFAULT_SYSTEM


def system_of_folder(folder: Path) -> str | None:
    """The system of a run's or model's folder; None without one, or if it is not recorded."""
    try:
        config: Any = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # faults are reported where the whole file is needed
        return None
    for part in ("task", "model"):  # a run's folder has its model's configuration inside
        config = config.get(part, config) if isinstance(config, dict) else {}
    architectures = config.get("architectures") if isinstance(config, dict) else None
    named = {each.architecture: name for name, each in NAMED_SYSTEMS.items()}
    return named.get(architectures[0]) if isinstance(architectures, list) and architectures else None


def encoder_of(request: PretrainRequest, recipe: Recipe | None) -> RequestedEncoder:
    """The requested encoder, by default with the detector of the recipe or the toy."""
    published = TOY_ENCODER if request.model.toy else "" if recipe is None else recipe.detector
    return replace(request.encoder, detector=request.encoder.detector or published or None)


def sections_of_encoder(
    spec: RequestedEncoder,
    sizes: DetectorConfig,
    options: EncoderOptions,
    choices: EndToEndChoices,
    recipe: Recipe | None,
) -> dict[str, Any]:
    photos = PhotoRules(skip_broken=spec.skip_missing_photos)
    if recipe is not None:
        options, photos = replace(options, **recipe.encoder), replace(photos, **recipe.photos)
    found = {"detector": sizes, "encoder": options, "photos": photos, "end_to_end": choices}
    if spec.labels is None:
        return found
    return found | {
        "labelled": LabelledRules(),
        "detection": LossWeights(),
        "detection_sampling": SamplingRules(),
        "detection_losses": LossRules(),
    }


OF_MODEL, OF_TRAIN = "model.", "train."  # sections of settings with code of their own
MASKING, APPEARANCE, PIXELS = "end_to_end.masking", "model.masked_appearance", "end_to_end.masked_pixels"


def recipe_of(request: PretrainRequest) -> Recipe | None:
    """The recipe that a request names. A resumed run keeps its recorded rules of samples, if the recipe was different
    then; the user's settings win over both.
    """
    name = request.model.recipe
    recipe = None if name is None else recipe_named(name)
    if recipe is None or request.training.resume_choice is False or not (request.out / CONFIG_NAME).is_file():
        return recipe
    saved = saved_config(request.out)
    sampling, known = saved["task"].get("sampling"), {field.name for field in fields(recipe.sampling)}
    if not isinstance(sampling, dict) or not known.issuperset(sampling):
        return recipe
    # Runs did not record their recipe at first; of these, one that lacks a rule is older than that.
    if saved["recorded"].get("recipe", name if known - sampling.keys() else "") != name:
        return recipe
    return replace(recipe, sampling=with_saved(recipe.sampling, sampling))


def recorded_recipe_notes(request: PretrainRequest) -> list[str]:
    """Notes of settings that a resumed run keeps although its recipe has changed."""
    anew = replace(request.training, resume=False, resume_from=None)
    kept, fresh = recipe_of(request), recipe_of(replace(request, training=anew))
    if kept is None or fresh is None:
        return []
    named = {each.partition("=")[0].strip() for each in request.training.settings}
    return [
        f"sampling.{each.name} stays {began!r}, as this run began; {request.model.recipe} has {now!r} now"
        for each in fields(kept.sampling)
        if (began := getattr(kept.sampling, each.name)) != (now := getattr(fresh.sampling, each.name))
        and f"sampling.{each.name}" not in named
    ]


def batch_size_of(request: PretrainRequest, recipe: Recipe | None) -> int:
    """Captions that each process takes at once."""
    if request.training.batch_size is not None:
        return request.training.batch_size
    return recipe.at_once(num_processes()) if recipe is not None and not request.model.toy else 32


def train_config_of(request: PretrainRequest, recipe: Recipe | None) -> Callable[[int], TrainConfig]:
    """Function from the number of captions to the training settings; it raises ValueError for an invalid one."""
    spec, batch_size = request.training, batch_size_of(request, recipe)
    options = {"steps": spec.steps, "learning_rate": spec.learning_rate, "warmup_steps": spec.warmup_steps}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if spec.steps is None and (recorded := recorded_steps(request.out)) is not None:
        given["steps"] = recorded
    of_train = [setting for setting in spec.settings if setting.startswith(OF_TRAIN)]

    def train_config(num_captions: int) -> TrainConfig:
        if recipe is None:
            config = TrainConfig(**{"steps": 1000, **given})
        elif request.model.toy:
            config = recipe.toy_config(micro_batch=batch_size, **given)
        else:
            config = recipe.train_config(num_captions, micro_batch=batch_size, processes=num_processes(), **given)
        # Checkpoints and evaluations at intervals that fit the run's length.
        pause = max(1, min(1000, config.steps // 10))
        evaluate_every = config.evaluate_every or (pause if request.data.validation_captions else 0)
        paced = replace(
            config, device=spec.device, seed=spec.seed, checkpoint_every=pause, evaluate_every=evaluate_every
        )
        return with_settings(paced, of_train)

    return train_config


def with_masking(request: PretrainRequest, recipe: Recipe | None, system: NamedSystem) -> PretrainRequest:
    """The request of an end-to-end run with `end_to_end.masking` replaced by the two settings that it stands for.
    Without it, those of the recipe, or of the run in the folder, which it keeps. The user's own two settings win.
    """
    if not request.end_to_end:
        return request
    given = dict(each.partition("=")[::2] for each in request.training.settings)
    named = {name.strip(): value.strip() for name, value in given.items()}
    masking = named.get(MASKING)
    if masking is not None:
        if not system.masking:
            raise ValueError(f"--set {MASKING}={masking}: {system.title} masks no regions; leave it out")
        if masking not in MASKINGS:
            raise ValueError(f"--set {MASKING}={masking}: {name_hint(masking, MASKINGS)}")
    elif recipe is not None and request.model.from_run is None:
        masking = recipe.masking
    pair = {APPEARANCE: system.masking[masking], PIXELS: MASKINGS[masking]} if masking else {}
    if MASKING not in named:
        pair |= recorded_masking(request.out)
    others = [each for each in request.training.set if each.partition("=")[0].strip() != MASKING]
    settings = [*others, *(f"{name}={value}" for name, value in pair.items() if name not in named)]
    return replace(request, training=replace(request.training, set=settings))


def recorded_masking(run: Path) -> dict[str, str]:
    """Recorded masking settings of the end-to-end run in the folder. Empty for any other."""
    if not (run / CONFIG_NAME).is_file():
        return {}
    described = saved_config(run)["task"].get("model")
    if not isinstance(described, dict) or not isinstance(described.get("end_to_end"), dict):
        return {}
    found = {PIXELS: described["end_to_end"].get("masked_pixels")}
    found[APPEARANCE] = described.get("model", {}).get("masked_appearance")
    return {name: value for name, value in found.items() if isinstance(value, str)}


def default_sections(request: PretrainRequest, recipe: Recipe | None, sampling: type) -> dict[str, Any]:
    """The sections of settings that every run has, with their defaults; `sampling` is the class of the system's."""
    return {
        "train": TrainConfig(steps=1),
        "sampling": recipe.sampling if recipe else sampling(),
        "data": DataConfig(batch_size=batch_size_of(request, recipe), share=recipe.share if recipe else 1.0),
    }


def model_overrides(settings: Sequence[str]) -> dict[str, Any]:
    """Fields of the model's configuration that the settings change."""
    overrides: dict[str, Any] = {}
    for setting in (each for each in settings if each.startswith(OF_MODEL)):
        name, equals, value = setting.removeprefix(OF_MODEL).partition("=")
        if not equals:
            raise ValueError(f"--set {setting!r}: expected model.field=value")
        overrides[name.strip()] = parse_value(value.strip())
    return overrides
