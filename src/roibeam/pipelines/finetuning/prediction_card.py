"""Card of a file of predictions, FILE.card.json beside it: the model, its inputs and its training data.

A card belongs to the bytes of its file: their SHA-256 stands in it, and a card of other bytes is not believed. So the
card of a file that was renamed or copied is recognised by it in the same folder. The score's own part of a card is made
where the file is scored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roibeam.features.folders.durable_files import sha256_of, write_bytes_atomically
from roibeam.messages import plural, printable
from roibeam.pipelines.common.console.command_files import read_json_object

SUFFIX, FORMAT = ".card.json", 1
UNKNOWN = (
    "not known: no card of `roibeam predict` lies beside the file; where it was copied or renamed, copy its "
    f"{SUFFIX} into the same folder"
)
_MOST_CARDS, _MOST_BYTES = 100, 1_000_000  # that are looked at in a folder, and of each


def card_path(results: Path) -> Path:
    return results.with_name(f"{results.name}{SUFFIX}")


def write_card(results: Path, facts: Mapping[str, Any]) -> Path:
    """Writes the card of a file that is there, whole or not at all."""
    path = card_path(results)
    card = {"format": FORMAT, "results": results.name, "sha256": sha256_of(results), **facts}
    write_bytes_atomically(path, (json.dumps(card, indent=2) + "\n").encode("utf-8"))
    return path


def read_card(results: Path, digest: str) -> tuple[dict[str, Any] | None, str]:
    """The card of a file, or None and the reason. A card of these bytes under another name will do.

    Args:
        digest: SHA-256 of the file.
    """
    own = card_path(results)
    card, why = _card_of(own, digest)
    if card is None:
        others = (path for path in sorted(own.parent.glob(f"*{SUFFIX}"))[:_MOST_CARDS] if path != own)
        card = next((found for path in others if (found := _card_of(path, digest)[0]) is not None), None)
    return card, why if card is None else ""


def _card_of(path: Path, digest: str) -> tuple[dict[str, Any] | None, str]:
    """The card in one file, or None and the reason."""
    if not path.is_file():
        return None, UNKNOWN
    try:
        card = read_json_object(path, max_bytes=_MOST_BYTES)
    except ValueError as error:
        return None, f"not known: {printable(str(error), 200)}"
    if card.get("format") != FORMAT:
        return None, f"not known: {path.name} is of another version"
    if card.get("sha256") != digest:
        return None, f"not known: {path.name} is the card of other predictions; the file was changed since"
    return card, ""


def card_lines(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lines of a card for people: name, and the value in words."""
    settings, store = (_part(card, name) for name in ("asked", "store"))
    lines = [
        *_model_lines(card),
        *_model_lines(_part(card, "second")),
        ("boxes", _boxes(store, _part(card, "options"))),
        ("shown", _input_notes(settings)),
        ("judged", _judged(_part(card, "told"))),
        ("best", _best(_part(card, "told"))),
    ]
    commands = card.get("commands")
    lines += [("command", str(each)) for each in (commands if isinstance(commands, list) else ())]
    return [(name, printable(value, 1000)) for name, value in lines if value]


def _model_lines(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lines of one model; none without a card."""
    model = _part(card, "model")
    if not card:
        return []
    return [
        ("model", f"{model.get('system')}, step {model.get('step')}, {model.get('folder')}"),
        ("weights", f"sha256 {str(model.get('weights'))[:16]}"),
        ("computed", _computed(model)),
        ("trained", _trained(model)),
        ("seeds", _seeds(model)),
        ("leaks", _leaks(_part(card, "leaks"))),
    ]


def _part(card: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = card.get(name)
    return found if isinstance(found, Mapping) else {}


def _boxes(store: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Boxes of the inputs, and the store of their features."""
    if not store:
        return "none: this task is of texts alone"
    given = f"{options['boxes']} ones of the task; " if options.get("boxes") else ""
    return f"{given}{store.get('boxes')}; store {store.get('path')}, content {str(store.get('content'))[:16]}"


def _computed(model: Mapping[str, Any]) -> str:
    """Number type of the computation; "" for a card without it."""
    own, learned = model.get("precision"), model.get("learned_in")
    return "" if own is None else f"in {own}" if own == learned else f"in {own}; the run learned in {learned}"


def _trained(model: Mapping[str, Any]) -> str:
    recipe = f"recipe {model['recipe']}" if model.get("recipe") else "no recipe"
    count = model.get("trained_groups")
    start = model.get("started_from", model.get("start"))
    return f"from {start}, {recipe}, on {count:,} questions" if isinstance(count, int) else recipe


def _seeds(model: Mapping[str, Any]) -> str:
    seeds = model.get("seeds")
    if not isinstance(seeds, Mapping):
        return f"seed {model.get('seed')}, one run"
    spread = "" if seeds.get("sd") is None else f", sd {100 * seeds['sd']:.2f}"
    place = "the best" if seeds.get("is_best") else "one"
    mean = 100 * seeds["mean"] if isinstance(seeds.get("mean"), float) else float("nan")
    return (
        f"seed {model.get('seed')}, {place} of {seeds.get('count')}: mean {mean:.2f}{spread} in their own evaluations"
    )


def _input_notes(settings: Mapping[str, Any]) -> str:
    if settings.get("blind"):
        return "no regions at all (--blind)"
    unseen = _part(settings, "unseen")
    if unseen:
        rows, images = (plural(int(unseen.get(name, 0)), name.removesuffix("s")) for name in ("rows", "images"))
        named = ", ".join(map(str, unseen.get("such_as", ())))
        return f"{rows} without regions: the store lacks {images}, such as {named}"
    return "images of other questions (--permute-images)" if settings.get("permute_images") else ""


def _judged(summary: Mapping[str, Any]) -> str:
    """Number of judged rows; "" for all of them, and for a card without it."""
    unjudged, judged = summary.get("unjudged"), summary.get("judged") or 0
    if not unjudged:
        return ""
    rows = plural(unjudged + judged, "row")
    return f"{judged:,} of {rows}; the others have no right answers" if judged else f"none of {rows}"


def _best(summary: Mapping[str, Any]) -> str:
    judged = summary.get("judged")
    if not judged:
        return ""
    possible = 100 * summary["best_sum"] / judged
    return f"{possible:.2f} % can be reached at best with these labels and boxes ({summary.get('measure')}, oracle)"


def _leaks(leaks: Mapping[str, Any]) -> str:
    trained, images = leaks.get("trained_on"), leaks.get("images")
    if trained is None:
        return "not known: the run has no list of its training images"
    if not images:
        return "none can be: this task has no images"
    perhaps = leaks.get("perhaps_trained_on")
    maybe = f", perhaps on {perhaps:,} more" if perhaps else ""
    start = "" if leaks.get("start_is_known", True) else "; the training data of its start are not known"
    return f"trained on {trained:,} of the {images:,} images of this split{leaks.get('how', '')}{maybe}{start}"
