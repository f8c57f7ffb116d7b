"""Which kinds of data go together in a run, whatever is in them. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from roibeam.pipelines.pretraining.recipes.named_systems import NamedSystem

_OF_IMAGES = (  # fields of `DataConfig`
    "share", "share_seed", "texts_per_caption", "max_tokens", "validation_captions", "validation_retrieval",
)  # fmt: skip


def text_alone_settings(section: Any) -> dict[str, Any]:
    """Of `DataConfig`, those that a run on text alone looks at."""
    return {each.name: getattr(section, each.name) for each in fields(section) if each.name not in _OF_IMAGES}


def check_kinds(
    system: NamedSystem,
    *,
    num_stores: int,
    has_text_corpus: bool,
    has_task_texts: bool,
    is_end_to_end: bool,
    has_validation: bool,
) -> None:
    """Raises ValueError for a text corpus, texts of a task, stores and held-out captions that do not go together."""
    if has_text_corpus and system.text_only_fields is None:
        if not num_stores:
            raise ValueError(f"{system.title} reads no text without images; name a --store, or train a VL-BERT")
        raise ValueError(f"{system.title} reads no text without images; leave out the text corpus, or train a VL-BERT")
    if has_task_texts:
        _check_task_texts(system, num_stores)
        if has_validation:
            raise ValueError("texts of a task have no validation here; judge the model on its task, or leave it out")
    if is_end_to_end and num_stores > 1:
        raise ValueError(
            f"end to end a run reads one store, got {num_stores}; merge them (roibeam store copy), or train on "
            f"stored features"
        )


def check_search(data: Any, *, has_validation: bool) -> None:
    """Raises ValueError where `data`, a `DataConfig`, asks for a search and there is nothing to search in."""
    if data.validation_retrieval and not has_validation:
        raise ValueError(
            "data.validation_retrieval searches among held-out images: name them with --validation-captions"
        )


def check_text_alone(system: NamedSystem, data: Any, sampling: Any) -> None:
    """Raises ValueError for a setting that a run on text alone would not look at."""
    _check_read(data, "data", _OF_IMAGES)
    unread = (each.name for each in fields(sampling) if each.name not in system.text_only_sampling)
    _check_read(sampling, "sampling", unread)


def _check_read(settings: Any, section: str, unread: Iterable[str]) -> None:
    for name in unread:
        if getattr(settings, name) != getattr(type(settings)(), name):
            raise ValueError(f"{section}.{name} is of captions with images; a run on text alone has none, leave it out")


def _check_task_texts(system: NamedSystem, num_stores: int) -> None:
    if not system.reads_task_text:
        raise ValueError(
            f"{system.title} was not pre-trained on a task's own text; leave it out, or train a VisualBERT"
        )
    if num_stores > 1:
        raise ValueError(f"texts of a task are read with one store, got {num_stores}; merge them (roibeam store copy)")
