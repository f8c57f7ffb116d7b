"""What is broken or missing in a store, and what a repair of it did: as JSON, and in words."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

from roibeam.features.counted import counted
from roibeam.features.printable import printable
from roibeam.pipelines.extract.stores.damage import StoreDamage
from roibeam.pipelines.extract.stores.places import Place
from roibeam.pipelines.extract.stores.store_repair import RepairSummary

_LISTED = 20  # images, and files; the JSON lists all


def damage_json(store: Place, damage: StoreDamage) -> dict[str, Any]:
    """All that is broken or missing."""
    shards = [
        {
            "shard": state.number,
            "files": list(state.files),
            "broken": [{"image_id": image_id, "what": what} for image_id, what in state.broken.items()],
            "missing": list(state.missing),
            "unnamed": state.num_unnamed,
        }
        for state in damage.damaged
    ]
    counts = {"broken": damage.num_broken, "missing": damage.num_missing, "dead_letters": damage.num_dead_letters}
    whole = {"whole": damage.is_whole, "manifest_is_stale": damage.is_stale, "annotations": damage.annotations}
    return {"store": str(store), **whole, **counts, "shards": shards}


def damage_text(store: Place, damage: StoreDamage) -> str:
    """The first of it for the terminal, and what to do."""
    files = [line for state in damage.damaged for line in state.files]
    lines = [printable(line, 300) for line in files[:_LISTED]]
    if len(files) > _LISTED:
        lines.append(f"... and {len(files) - _LISTED:,} more about files; --json tells all")
    found = chain.from_iterable(state.images() for state in damage.damaged)
    lines += [
        f"{kind:<8} {printable(name, 100)}: {printable(what, 200)}" for kind, name, what in islice(found, _LISTED)
    ]
    more = sum(1 for _ in found)
    if more:
        lines.append(f"... and {counted(more, 'more image', 'more images')}; --json tells all")
    unnamed = sum(state.num_unnamed for state in damage.damaged)
    if unnamed:
        lines.append(f"{counted(unnamed, 'lost record')} whose ids only the source knows: the store has no plan")
    if damage.is_stale:
        lines.append("manifest.json does not list the shards as they are; a repair writes it again")
    if damage.annotations:
        lines.append(printable(damage.annotations, 300))
    letters = counted(damage.num_dead_letters, "dead letter")
    if damage.is_whole:
        return f"{store}: whole; {counted(damage.manifest.num_records, 'record')}, {letters}"
    counts = f"{counted(damage.num_broken, 'broken image')}, {counted(damage.num_missing, 'missing image')}, {letters}"
    lines.append(f"{store}: {counts}; {_advice(store, damage)}")
    return "\n".join(lines)


def _advice(store: Place, damage: StoreDamage) -> str:
    if damage.plan is None:
        return "it has no plan of its images: import or copy it again from its source"
    again = f"`roibeam store repair {store} --photos {damage.plan.source['image_root']}`"
    if not damage.damaged:
        return f"{again} writes it again"
    return f"{again} extracts the images again"


def repair_json(store: Place, summary: RepairSummary) -> dict[str, Any]:
    """What a repair did."""
    return {
        "store": str(store),
        "shards": summary.num_shards,
        "annotations_again": summary.annotations_again,
        "extracted": summary.num_extracted,
        "copied": summary.num_copied,
        "retried": summary.num_retried,
        "lost": [{"image_id": letter.image_id, "reason": letter.reason} for letter in summary.lost],
        "records": summary.manifest.num_records,
        "dead_letters": summary.manifest.num_dead_letters,
        "content_digest": summary.manifest.content_digest,
        "as_before": summary.is_as_before,
        "same_digest": summary.compared.same,
        "close": summary.compared.close,
        "not_compared": summary.compared.unknown,
        "doubtful": [{"image_id": image_id, "what": what} for image_id, what in summary.compared.doubtful.items()],
        "seconds": round(summary.seconds, 3),
        "device": summary.device,
    }


def repair_text(store: Place, summary: RepairSummary) -> str:
    """What a repair did, for the terminal."""
    lost = [
        f"lost     {printable(letter.image_id, 100)}: {letter.reason} ({printable(letter.detail, 200)})"
        for letter in summary.lost[:_LISTED]
    ]
    if len(summary.lost) > _LISTED:
        lost.append(f"... and {len(summary.lost) - _LISTED:,} more; {store}/dead_letters.parquet names all")
    doubtful = [
        f"doubtful {printable(image_id, 100)}: {what}; is the photo still what it was?"
        for image_id, what in islice(summary.compared.doubtful.items(), _LISTED)
    ]
    if len(summary.compared.doubtful) > _LISTED:
        doubtful.append(f"... and {len(summary.compared.doubtful) - _LISTED:,} more; --json tells all")
    done = (
        f"{store}: {counted(summary.num_shards, 'shard')} written anew: {counted(summary.num_extracted, 'image')} "
        f"extracted, {counted(summary.num_copied, 'record')} copied"
    )
    if summary.annotations_again:
        done += ", the table of captions and labels too"
    if summary.num_retried:
        done += f", {counted(summary.num_retried, 'dead letter')} now a record"
    content = "its content digest is what it was" if summary.is_as_before else "its content digest is another one now"
    found = summary.compared
    compared = [
        f"{counted(count, 'record')} {what}"
        for count, what in (
            (found.same, "extracted with the digest that it had before"),
            (
                found.close,
                "with the same regions as before, in other digits: another device, version or mode gives them",
            ),
            (found.unknown, "had nothing left to compare the new one with"),
        )
        if count
    ]
    records = counted(summary.manifest.num_records, "record")
    letters = counted(summary.manifest.num_dead_letters, "dead letter")
    return "\n".join([*lost, *doubtful, done, *compared, f"{records}, {letters}; {content}"])
