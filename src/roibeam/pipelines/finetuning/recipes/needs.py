"""What the commands of published runs need: official files, room for stores, GPU hours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.network.conventions import SELECTIONS
from roibeam.messages import byte_count
from roibeam.pipelines.data.datasets.text_sets import GLUE_TASKS
from roibeam.pipelines.finetuning.recipes.commands import Command
from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES, gpu_hours
from roibeam.pipelines.finetuning.scored_tasks import SCORED_TASKS

# Publisher and counts, as papers and publishers print them; splits of tasks are those of `SCORED_TASKS`.
_SETS: Mapping[str, str] = MappingProxyType(
    {
        "conceptual-captions": "Conceptual Captions, Google: 3,318,333 captions with URLs, 3.1 million alive",
        "sbu": "SBU Captions, Stony Brook University: 1,000,000 captions with URLs, about 860,000 usable",
        "conceptual-12m": "Conceptual 12M, Google, in place of LAIT, which was never released",
        "coco": "COCO, cocodataset.org: 82,783, 40,504 photos, 81,434 of test2015; Karpathy's file: 113,287, 5,000 x 2",
        "flickr30k": "Flickr30k, University of Illinois; Karpathy's file: 29,000, 1,014, 1,000 photos, 5 captions each",
        "flickr30k-entities": "Flickr30k Entities, University of Illinois: 29,783, 1,000, 1,000 photos, 275,775 boxes",
        "vqa": "VQA v2, visualqa.org",
        "vcr": "VCR 1.0, University of Washington: 80,418, 9,929, 9,557 photos",
        "nlvr2": "NLVR2, Cornell University; photos on request",
        "refcoco+": "RefCOCO+, UNC, from lichengunc/refer; boxes of MAttNet's detector",
        "text": "BookCorpus and English Wikipedia, as BERT read them",
        **{task.name: "GLUE, gluebenchmark.com" for task in GLUE_TASKS.values()},
    }
)
_PHOTOS: Mapping[str, int] = MappingProxyType(
    {
        "conceptual-captions": 3_100_000, "sbu": 860_000, "conceptual-12m": 2_000_000, "coco": 204_721,
        "flickr30k": 31_014, "vcr": 99_904,
    }
)  # fmt: skip


def needs_of(commands: Iterable[Command], data: Path | None) -> Iterator[str]:
    """Lines of text.

    Args:
        data: folder DATA, to say which files are there; None for none.
    """
    commands = list(commands)
    words = (word for each in commands for word in each.words if word.startswith("DATA/"))
    files = sorted({word.removeprefix("DATA/").rstrip("/") for word in words})
    made = {f"{each.words[2].removeprefix('DATA/')}/local.tsv" for each in commands if each.words[0] == "download"}
    yield "official files, below DATA:"
    for name in dict.fromkeys(file.partition("/")[0] for file in files):
        task = next((each for each, glue in GLUE_TASKS.items() if glue.name == name), name)
        splits = SCORED_TASKS[task].splits if task in SCORED_TASKS else {}
        counts = ", ".join(f"{split} {count:,}" for split, count in splits.items() if count)
        yield f"  {name}: {_SETS[name]}{f' ({counts})' if counts else ''}"
        for file in files:
            if file.partition("/")[0] == name and file not in made and not file.endswith("/photos"):
                there = "" if data is None else "there    " if (data / file).exists() else "missing  "
                yield f"    {there}{file}"
    yield "stores, of float16 features:"
    yield from (f"  {line}" for each in commands if (line := _room(each)))
    yield "GPU hours of steps:"
    for each in commands:
        if "--recipe" in each.words:
            recipe = TASK_RECIPES.get(each.words[each.words.index("--recipe") + 1])
            found = None if recipe is None else gpu_hours(recipe)
            yield f"  {each.words[1]}: {'not measured' if found is None else f'{found.hours:.2g} on one {found.card}'}"


def _room(command: Command) -> str:
    """Room of a store at most; "" for other commands."""
    if not command.key.startswith("store "):
        return ""
    name, features = command.key.removeprefix("store "), command.features
    assert features is not None
    photos = next((count for each, count in _PHOTOS.items() if name.startswith(f"{each}-")), None)
    config, selection = CONFIGS.get(features.detector), SELECTIONS.get(features.selection)
    if photos is None or config is None or selection is None:
        return f"{name}: not known before"
    size = photos * selection.max_regions * config.feature_dim * 2
    return f"{name}: at most {byte_count(size)}, {photos:,} photos of up to {selection.max_regions} regions"
