"""Detector of a request: from preset and options, and from the store's record. No torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import (
    CONVENTIONS,
    CONVENTIONS_OF_SIZES,
    DETECTIONS,
    PROPOSAL_FIELDS,
    PUBLISHED_EDGES,
    SELECTIONS,
    Conventions,
    SelectionPolicy,
)
from roibeam.extraction.weights.detector_choice import (
    DEFAULT_SELECTION,
    PRESET_SIZES,
    PUBLISHED_SELECTIONS,
    ChosenDetector,
    Detectron2Config,
    choose_detector,
    detectron2_config,
    named,
)
from roibeam.extraction.weights.named_model import TORCHVISION_OWN, NamedModel, is_named_model, read_queries
from roibeam.extraction.weights.sources import check_weight_file
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.messages import name_hint
from roibeam.pipelines.common.compute import check_device, check_device_name
from roibeam.pipelines.common.console.command_files import FILE, NamedFiles
from roibeam.pipelines.common.console.overrides import apply_overrides
from roibeam.pipelines.data.datasets.known_files import refuse_others
from roibeam.pipelines.data.feature_settings import choice_words, conventions_name, parts_words, selection_name
from roibeam.pipelines.data.shard_plan import Plan
from roibeam.pipelines.data.vocabulary import PUBLISHED_LISTS, Vocabulary, load_vocabulary, read_vocabulary
from roibeam.pipelines.extract.request import DetectorOptions, ExtractRequest
from roibeam.pipelines.extract.shard.detector_spec import DetectorSpec, dataclass_from_json
from roibeam.pipelines.training.run_folder.folder import note_best_detector

ON_THIS_MACHINE = ("local", "portable")  # runners: the others have workers elsewhere
RUNNERS = (*ON_THIS_MACHINE, "flink", "spark", "dataflow")


def check_runner_name(runner: str) -> None:
    """Raises ValueError for a name that is none of `RUNNERS` and no class of Beam, without importing it."""
    if runner not in RUNNERS and not runner.endswith("Runner"):
        raise ValueError(f"--runner {runner!r} is unknown: {name_hint(runner, RUNNERS)}, or the name of Beam's class")


@dataclass(frozen=True)
class _Recorded:
    """Detector recorded by a store under way; no selection where its boxes were given."""

    config: DetectorConfig
    conventions: Conventions
    selection: SelectionPolicy | None

    def is_that_of(self, chosen: ChosenDetector) -> bool:
        return (self.config, self.conventions) == (chosen.config, chosen.conventions) and self.selection in (
            None,
            chosen.selection,
        )


def open_detector(
    request: ExtractRequest, store: OutputFolder, plan: Plan | None, threads: int | None, *,
    tell: Callable[[str], None],
) -> tuple[DetectorSpec, Vocabulary]:  # fmt: skip
    """The detector of a request, and the names of its classes and attributes; reported to the user in a line or two.

    Parts that the request does not name are those that the store recorded, if it has features, else the preset's.

    Args:
        plan: the store's; None where it has no features yet.
        threads: CPU threads of each process.
    """
    given = request.detector
    with_boxes = request.images.boxes is not None
    recorded = None if plan is None else _recorded(plan)
    if recorded is None and plan is not None:
        check_named_again(given, plan, str(store))
    backbone = opened_backbone(given)
    if backbone is not None and not request.run.json:
        tell(f"vectors by {backbone.name}")
    if is_of_others(given, with_boxes=with_boxes):
        spec, vocabulary = other_detector(given, threads, given.mode, with_boxes=with_boxes)
        if not request.run.json:
            boxes = "given boxes" if with_boxes else selection_name(asdict(spec.selection))
            of = " of detectron2" if isinstance(spec.config, Detectron2Config) else ""
            tell(boxes if spec.config is None else f"detector {given.detector}{of}, {boxes}")
        return replace(spec, backbone=backbone), vocabulary
    chosen = chosen_detector(given)
    used = _as_recorded(chosen, given, recorded)
    if not request.run.json:
        if used == chosen or recorded is None or not recorded.is_that_of(used):
            tell(choice_words(chosen, given.detector, given.set, with_boxes=with_boxes))
        else:
            selection = None if with_boxes or used.config.grid else used.selection
            words = parts_words(used.config, used.conventions, selection)
            tell(f"{store} goes on with the settings it recorded: {words}")
    parts = detector_parts(used, given)
    if with_boxes and parts["detector"].grid:
        raise ValueError(f"--boxes: the cells of a grid are its regions ({given.detector}); leave one of the two out")
    for note in _notes(request, used, parts["detector"]):
        tell(f"note: {note}")
    vocabulary = detector_names(used, given, parts["detector"])
    spec = DetectorSpec(
        parts["detector"], parts["selection"], chosen.weights, given.device, threads, parts["conventions"], given.mode,
        given_boxes=with_boxes, backbone=backbone,
    )  # fmt: skip
    return spec, vocabulary


def is_of_others(given: DetectorOptions, *, with_boxes: bool) -> bool:
    """Whether the boxes come from another library's detector, or are given and described by a backbone alone."""
    if is_named_model(given.detector) or detectron2_config(given.detector) is not None:
        return True
    return with_boxes and given.backbone is not None and given.detector is given.preset is given.weights is None


def other_detector(
    given: DetectorOptions, threads: int | None, mode: str, *, with_boxes: bool
) -> tuple[DetectorSpec, Vocabulary]:
    """The detector of `is_of_others`, without a backbone, and its names."""
    config: Detectron2Config | NamedModel | None = None
    if (of_detectron2 := detectron2_config(given.detector)) is not None:
        parts, vocabulary = detectron2_parts(of_detectron2, given)
        config, selection, weights = parts["detector"], parts["selection"], str(given.weights)
    else:
        check_others(given, with_boxes=with_boxes)
        config = named_detector(given)
        selection = named("selection", given.selection or DETECTIONS, SELECTIONS)
        selection = apply_overrides({"selection": selection}, given.set, elsewhere=_SIZED)["selection"]
        vocabulary, weights = Vocabulary(None if config is None else config.names()), ""
    return DetectorSpec(config, selection, weights, given.device, threads, CONVENTIONS["d2"], mode), vocabulary


_SIZED = ("detector", "backbone")  # sections of `--set` with the field longest_side


@dataclass(frozen=True)
class _Size:
    longest_side: int = 0


def named_detector(given: DetectorOptions) -> NamedModel | None:
    """The opened detector of another library; None for given boxes."""
    if not is_named_model(given.detector):
        if unused := next((each for each in given.set if each.startswith("detector.")), None):
            raise ValueError(f"--set {unused}: boxes are given, so no detector runs; leave it out")
        return None
    names = None if given.vocab is None else read_vocabulary(given.vocab).classes
    queries = () if given.queries is None else read_queries(given.queries)
    size = apply_overrides({"detector": _Size()}, given.set, elsewhere=("selection", "backbone"))["detector"]
    model = NamedModel(
        str(given.detector), given.weights or "", queries, longest_side=size.longest_side, class_names=names
    )
    return model.opened()


def opened_backbone(given: DetectorOptions) -> NamedModel | None:
    """The opened backbone of a request; None where it names none."""
    if given.backbone is None:
        setting = next((each for each in given.set if each.startswith("backbone.")), None)
        for option, value in (("pool", given.pool), ("backbone-weights", given.backbone_weights), ("set", setting)):
            if value is not None:
                raise ValueError(f"--{option} {value}: there is no backbone; add --backbone, or leave it out")
        return None
    elsewhere = ("detector", "selection", "conventions")
    size = apply_overrides({"backbone": _Size()}, given.set, elsewhere=elsewhere)["backbone"]
    weights = given.backbone_weights or ""
    return NamedModel(given.backbone, weights, pool=given.pool or "", longest_side=size.longest_side).opened()


def check_others(given: DetectorOptions, *, with_boxes: bool) -> None:
    """Raises ValueError for options that do not go with a detector of another library, or with given boxes alone."""
    what = f"--detector {given.detector}" if given.detector else "--boxes with a --backbone"
    own = () if is_named_model(given.detector) else ("queries",)
    for option in ("preset", "conventions", "grid", *own):
        if (value := getattr(given, option, None)) is not None:
            raise ValueError(f"--{option} {value} does not go with {what}; leave it out")
    if with_boxes and given.detector is not None and given.backbone is not None:
        raise ValueError(f"--boxes: with a --backbone nothing of {given.detector} is used; leave --detector out")
    if given.detector is None and given.vocab is not None:
        raise ValueError(f"--vocab {given.vocab}: given boxes have no classes; leave it out")


def check_named_again(given: DetectorOptions, plan: Plan, store: str) -> None:
    """Raises ValueError where a store was made by models that only the user may name, and the request names none."""
    space = plan.settings.get("feature_space", {})
    is_theirs = "backbone" in space or "config" not in space.get("detector", ("config",))
    if is_theirs and given.detector is given.backbone is None:
        words = "give --detector and --backbone again, as before (code is never run because a store names it)"
        raise ValueError(f"{store} was made by a model of another library: {words}")


def chosen_detector(given: DetectorOptions) -> ChosenDetector:
    if given.queries is not None:
        raise ValueError(f"--queries {given.queries}: {given.detector or 'the detector'} takes none; leave it out")
    note_best_detector(str(given.detector))
    return choose_detector(
        given.detector, preset=given.preset, conventions=given.conventions, selection=given.selection,
        weights=given.weights,
    )  # fmt: skip


def detector_parts(chosen: ChosenDetector, given: DetectorOptions) -> dict[str, Any]:
    """The sections of a detector as the settings change them."""
    sections = {"detector": chosen.config, "conventions": chosen.conventions, "selection": chosen.selection}
    grid = getattr(given, "grid", None)
    if grid is not None and not chosen.config.grid:
        raise ValueError(f"--grid {grid}: the detector gives no grid; take --detector grid-r50, grid-x101 or grid-x152")
    if grid is not None and any(setting.strip().startswith("detector.grid=") for setting in given.set):
        raise ValueError(f"--grid {grid} and --set detector.grid are two values for one thing; give one of them")
    parts = apply_overrides(sections, given.set, elsewhere=() if given.backbone is None else ("backbone",))
    try:
        return parts if grid is None else {**parts, "detector": replace(parts["detector"], grid=grid)}
    except ValueError as error:
        raise ValueError(f"--grid {grid}: {error}") from None


def detector_names(chosen: ChosenDetector, given: DetectorOptions, sizes: DetectorConfig) -> Vocabulary:
    """The names of a detector's classes and attributes."""
    if given.vocab is None:
        return Vocabulary(chosen.class_names, chosen.attribute_names)
    if sizes.grid:
        raise ValueError(f"--vocab {given.vocab}: the cells of a grid have no classes; leave it out")
    return load_vocabulary(given.vocab, num_classes=sizes.num_classes, num_attributes=sizes.num_attributes or None)


def need_detector(
    named: NamedFiles, given: DetectorOptions, *, runs_here: bool = True, with_boxes: bool = False
) -> None:
    """Adds errors in the files and names of a detector, as far as they are known without a store and torch.

    Args:
        runs_here: False where the device may be another machine's.
    """
    for option, weights in (("--weights", given.weights), ("--backbone-weights", given.backbone_weights)):
        if weights != TORCHVISION_OWN and named.need(option, weights, FILE):
            named.look(partial(_check_weights, weights))
    named.need("--queries", given.queries, FILE)
    named.need("--vocab", None if given.vocab == PUBLISHED_LISTS else given.vocab)
    named.look(lambda: _look_at(given, with_boxes=with_boxes))
    named.look(lambda: (check_device if runs_here else check_device_name)(given.device))


def _check_weights(weights: str | None) -> None:
    if weights is not None:
        refuse_others(weights, ("weights",))
    check_weight_file(weights)


def _look_at(given: DetectorOptions, *, with_boxes: bool) -> None:
    for name, weights in ((given.detector, given.weights), (given.backbone, given.backbone_weights)):
        if is_named_model(name):
            NamedModel(str(name), weights or "")
    if given.backbone is not None and not is_named_model(given.backbone):
        NamedModel(given.backbone)
    if (config := detectron2_config(given.detector)) is not None:
        detectron2_parts(config, given)
    elif not is_of_others(given, with_boxes=with_boxes):
        if given.detector is given.preset is given.weights is None and given.backbone is not None:
            words = "give their source: --detector NAME or --boxes FILE"
            raise ValueError(f"--backbone {given.backbone} makes vectors of boxes: {words}")
        chosen_detector(given)


def detectron2_parts(config: Detectron2Config, given: DetectorOptions) -> tuple[dict[str, Any], Vocabulary]:
    """The sections of a network of detectron2's as the settings change them, and its names."""
    check_others(given, with_boxes=False)
    if given.weights is None:
        raise ValueError(f"weights are missing: {given.detector} brings none; give a weight file (--weights FILE)")
    default = PUBLISHED_SELECTIONS.get(config.file, DEFAULT_SELECTION)
    selection = named("selection", given.selection or default, SELECTIONS)
    parts = apply_overrides({"detector": config, "selection": selection}, given.set)
    # The number of names that it needs is known from the network only.
    return parts, Vocabulary() if given.vocab is None else read_vocabulary(given.vocab)


def _as_recorded(chosen: ChosenDetector, given: DetectorOptions, recorded: _Recorded | None) -> ChosenDetector:
    """The choice, with what nothing in the request names as the store recorded it."""
    if recorded is None or given.preset is not None or chosen.is_folder:
        return chosen
    if given.detector is None:
        chosen = replace(chosen, config=recorded.config)
    named_sizes = (*PRESET_SIZES, *CONVENTIONS_OF_SIZES)
    if given.conventions is None and (given.detector is None or given.detector in named_sizes):
        chosen = replace(chosen, conventions=recorded.conventions)
    if given.selection is None and recorded.selection is not None:
        chosen = replace(chosen, selection=recorded.selection)
    return chosen


def _recorded(plan: Plan) -> _Recorded | None:
    """The detector that a store's plan records; None for another form of record."""
    try:
        space = plan.settings["feature_space"]
        detector, regions = space["detector"], space["regions"]
        # Features of given boxes do not depend on some fields, which are then not recorded.
        nearest = max(CONVENTIONS.values(), key=lambda known: _num_equal(asdict(known), detector["conventions"]))
        # Those that are `added` are also left out where they have their default.
        added = {each.name for each in fields(Conventions) if "added" in each.metadata}
        added -= set(PROPOSAL_FIELDS) if regions in ("given", "grid") else set()
        unrecorded = {name: value for name, value in asdict(nearest).items() if name not in added}
        return _Recorded(
            dataclass_from_json(DetectorConfig, detector["config"], "config"),
            dataclass_from_json(Conventions, unrecorded | detector["conventions"], "conventions"),
            None if regions in ("given", "grid") else dataclass_from_json(SelectionPolicy, regions, "selection"),
        )
    except (KeyError, TypeError, AttributeError, ValueError):
        return None  # the plan is compared field by field later, with an error for differences


def _num_equal(known: Mapping[str, Any], recorded: Mapping[str, Any]) -> int:
    plain = json.loads(json.dumps(known))  # tuples are lists, as in the record
    return sum(name in recorded and recorded[name] == value for name, value in plain.items())


def _notes(request: ExtractRequest, chosen: ChosenDetector, config: DetectorConfig) -> list[str]:
    """Notes on parts of the request that were never published, or that have no effect."""
    given, notes = request.detector, []
    with_boxes = request.images.boxes is not None
    named_conventions = given.conventions or CONVENTIONS_OF_SIZES.get(str(given.detector))
    if not with_boxes and named_conventions in ("vlbert-e2e", "r2c"):
        notes.append(f"{named_conventions} was published for given boxes (--boxes), never with proposals")
    sections = {setting.strip().partition(".")[0] for setting in given.set}
    if with_boxes and (given.selection is not None or "selection" in sections):
        notes.append("--selection does nothing with --boxes: every given box is kept")
    if config.grid and (given.selection is not None or "selection" in sections):
        notes.append("--selection does nothing with a grid: every cell is kept")
    conventions = conventions_name(asdict(chosen.conventions))
    edges = (config.short_edge, config.long_edge)
    if chosen.preset is not None and edges not in PUBLISHED_EDGES.get(conventions, (edges,)):
        short, long = PUBLISHED_EDGES[conventions][0]
        usual = "vg-r101-c4" if short == 800 else "vg-r101-c4-600"
        sizes = next((name for name, own in CONVENTIONS_OF_SIZES.items() if own == conventions), usual)
        notes.append(
            f"photos are resized to {edges[0]}/{edges[1]} pixels (short edge, limit of the long one); published "
            f"features of the conventions {conventions} come from {short}/{long}, which --detector {sizes} has"
        )
    return notes
