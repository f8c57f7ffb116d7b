"""Request of one fine-tuning run: names, paths and numbers alone, its photos and encoder, and seeds; no torch.

Runs that differ in their seed alone have the mean, standard deviation and best of their results.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from roibeam.extraction.weights.sources import check_weight_file
from roibeam.features.store import FeatureStore
from roibeam.model.common.fields import EndToEndChoices
from roibeam.pipelines.common.console.command_files import FOLDER, NamedFiles, read_json_object
from roibeam.pipelines.data.compatibility import check_least
from roibeam.pipelines.data.record_photos import has_photo_locations
from roibeam.pipelines.finetuning.requests import FinetuneRequest
from roibeam.pipelines.training.model_files.encoder_settings import JointSettings, encoder_at_start, read_joint_settings
from roibeam.pipelines.training.model_files.model_folder import CONFIG, model_folder
from roibeam.pipelines.training.requests import EncoderRequest
from roibeam.pipelines.training.run_folder.files import check_run_file, write_run_file

SECTIONS = ("detector", "encoder", "photos", "end_to_end")
Request = TypeVar("Request", bound=EncoderRequest)


def refuse_encoder(request: EncoderRequest) -> None:
    """Raises ValueError for options that a run on stored features does not have."""
    given = [field.name for field in fields(EncoderRequest) if getattr(request, field.name)]
    if given:
        raise ValueError(f"--{given[0]} is for --end-to-end; stored features need no photos and no encoder")


def need_encoder(request: EncoderRequest, named: NamedFiles) -> None:
    """Checks that the files exist."""
    named.need("--photos", request.photos, FOLDER)
    named.need("--weights", request.weights)
    named.look(lambda: check_weight_file(request.weights))


@dataclass(frozen=True)
class PhotoRequest:
    """Options of batches from photos. Raises ValueError naming the field.

    Attributes:
        flip: whether every other photo of training, by chance, is mirrored left to right, its boxes with it, and its
            words by the rule of the task; photos of a task without such a rule are not mirrored.
        fixed_size: whether every photo is padded to the encoder's short edge x long edge (VL-BERT on VCR), instead of
            to the largest of its batch.
        outlines: whether regions count inside the outlines of their objects alone, where a task has some (VCR).
        aspect_buckets: whether photos of nearly the same shape come together, so that batches need little padding
            (VL-BERT on RefCOCO+).
    """

    flip: bool = True
    fixed_size: bool = False
    outlines: bool = True
    aspect_buckets: bool = False
    read_ahead: int = 2

    def __post_init__(self) -> None:
        check_least(self, read_ahead=1)

    def described(self) -> dict[str, Any]:
        """Settings that must match on resume."""
        return {name: value for name, value in asdict(self).items() if name != "read_ahead"}


def encoder_sections(request: EncoderRequest, start: str, whole_image: str) -> dict[str, Any]:
    """The sections of `--set`, by `SECTIONS`, with their defaults: those of the run that this one starts from, if any.

    Args:
        start: of the model; its encoder is taken from a run end to end.
        whole_image: see `EndToEndChoices`.
    """
    own = joint_start(start)
    sizes, options = encoder_at_start(request, own, start)
    choices = EndToEndChoices(whole_image=whole_image) if own is None else own.choices
    return dict(zip(SECTIONS, (sizes, options, PhotoRequest(), choices), strict=True))


def resolve_encoder(request: Request, start: str, published: str) -> Request:
    """The request, with the published run's encoder where neither the user nor the start has one.

    Args:
        start: of `encoder_sections`.
        published: preset of its detector; "" for none of its own.
    """
    if request.detector is not None or not published or joint_start(start) is not None:
        return request
    return replace(request, detector=published)


def joint_start(start: str) -> JointSettings | None:
    """Settings of the encoder of a run end to end; None for any other start. Raises ValueError for a folder without a
    model, or a config.json that cannot be read."""
    path = Path(start).expanduser()
    if not path.is_dir():
        return None
    config = model_folder(path)[0] / CONFIG
    return read_joint_settings(config) if "end_to_end" in read_json_object(config) else None


def check_photo_places(store: FeatureStore, photos: str | None) -> None:
    """Raises ValueError if neither the user nor the store gives the place of the photos."""
    if photos is None and not has_photo_locations(store):
        raise ValueError(
            f"--end-to-end reads photos, and {store.path} does not record where its photos are; name their folder with "
            "--photos"
        )


NEW = "none"  # in place of a model to start from


SEEDS_NAME = "seeds.json"


def seed_requests(request: FinetuneRequest) -> list[FinetuneRequest]:
    """Requests of the seeds: in OUT itself for one, OUT/seed-N for several."""
    if request.seeds == 1:
        return [request]
    numbers = range(request.seed, request.seed + request.seeds)
    return [replace(request, out=request.out / f"seed-{number}", seed=number, seeds=1) for number in numbers]


def seed_summary(
    results: Sequence[tuple[Path, Mapping[str, float | None]]],
    main: str,
    steps: Sequence[int] | None = None,
    *,
    chances: Mapping[str, float | None] = MappingProxyType({}),
) -> dict[str, Any]:
    """Summary of the results of several seeds.

    Args:
        results: folder of each run and its measures.
        main: measure by which the best is chosen.
        steps: of each run, the checkpoint that `train.best_by` chose and the measures are of; None for the last ones.
        chances: value of guessing, by measure.
    Returns:
        for each measure that all have: mean, median, sd (of a sample, None for one run), values, chance (None where it
        is not known); and the best run's folder.
    """
    measures = {}
    for name in results[0][1]:
        given = [values.get(name) for _, values in results]
        known = [value for value in given if value is not None]
        if len(known) == len(results):
            sd = statistics.stdev(known) if len(known) > 1 else None
            mean, median = statistics.fmean(known), statistics.median(known)
            measures[name] = {"mean": mean, "median": median, "sd": sd, "values": known, "chance": chances.get(name)}
    best = max(results, key=lambda each: each[1].get(main) or 0.0)[0]
    found = {"main": main, "best": best.name, "runs": [run.name for run, _ in results], "measures": measures}
    return found if steps is None else {**found, "steps": list(steps)}


def write_seeds(out: Path, summary: Mapping[str, Any]) -> Path:
    """Writes OUT/seeds.json, whole or not at all."""
    path = out / SEEDS_NAME
    write_run_file(path, lambda aside: aside.write_text(json.dumps(summary, indent=2) + "\n", "utf-8"))
    return path


def seeds_of(run: Path) -> dict[str, Any] | None:
    """Facts of a run that is one of several seeds: count, mean and sd of the main measure, whether it is the best."""
    path = run.parent / SEEDS_NAME
    check_run_file(path)
    summary = read_json_object(path) if path.is_file() else {}
    if run.name not in summary.get("runs", ()):
        return None
    main = summary["measures"].get(summary["main"], {})
    return {
        "count": len(summary["runs"]), "measure": summary["main"], "mean": main.get("mean"), "sd": main.get("sd"),
        "is_best": summary.get("best") == run.name,
    }  # fmt: skip


def best_of_seeds(folder: Path) -> Path:
    """The best run of a folder of several seeds; the folder itself where it is of one. Raises ValueError when its list
    is damaged."""
    path = folder / SEEDS_NAME
    if not path.is_file():
        return folder
    check_run_file(path, f"name a run yourself, such as {folder / 'seed-0'}")
    best = read_json_object(path).get("best")
    if not isinstance(best, str) or not (folder / best).is_dir():
        raise ValueError(f"{path} names no run of this folder; name one yourself, such as {folder / 'seed-0'}")
    return folder / best
