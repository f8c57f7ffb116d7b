"""`--store`, `--captions` and `--store-weight` of one command: the sources that they name together, in their order; and
`--validation-captions`, what is asked about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from roibeam.features.reading.staging import StagedStore
from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.annotations import stored_captions
from roibeam.pipelines.data.captioned.captioned_store import CaptionedStore
from roibeam.pipelines.data.captioned.checked_reads import ALL, checked_one_in
from roibeam.pipelines.data.captioned.task_texts import TaskTexts
from roibeam.pipelines.data.captions.caption_files import CaptionFile, CaptionFiles, given_file
from roibeam.pipelines.data.held_out import held_out_hint
from roibeam.pipelines.data.image_identity import checked_data_set, data_set_of_store

OWN_CAPTIONS = "own"


class GivenStores:
    """
    Args:
        stores: folders or URLs, at least one.
        captions: a file for each store, or `OWN_CAPTIONS`; of one store also several files, read one after the other.
            None takes the captions that the stores keep.
        weights: one for each store, or none.
        texts: of a task, that take the place of captions.
        caption_column: as of `given_file`.
        checksums: how many records are compared with theirs, see `checked_one_in`.
    Raises:
        ValueError: when the numbers of them do not fit, or a caption file is none.
    """

    def __init__(
        self,
        stores: Sequence[str],
        captions: Sequence[str],
        weights: Sequence[float],
        *,
        texts: TaskTexts | None,
        caption_column: str = "",
        checksums: str = ALL,
    ) -> None:
        if not stores:
            raise ValueError("--store is missing: the folder that `roibeam extract` wrote")
        if captions and texts is not None:
            raise ValueError("--captions and --task-text: a run reads one of them")
        joins = len(stores) == 1 and len(captions) > 1
        if joins and OWN_CAPTIONS in captions:
            raise ValueError(f"--captions {OWN_CAPTIONS}: the captions that a store keeps are not joined with files")
        for option, given in (("--captions", captions), ("--store-weight", weights)):
            if given and len(given) != len(stores) and not (joins and given is captions):
                own = f" ({OWN_CAPTIONS} names those that a store keeps)" if option == "--captions" else ""
                raise ValueError(
                    f"{len(stores)} --store but {len(given)} {option}: give one {option} for each --store, in the same "
                    f"order{own}, or none at all"
                )
        named = captions or [OWN_CAPTIONS] * len(stores)
        self._stores, self._texts, self._one_in = stores, texts, checked_one_in(checksums)
        self._weights: Sequence[float | None] = weights or [None] * len(stores)
        files = [None if each == OWN_CAPTIONS else given_file(each, caption_column=caption_column) for each in named]
        self._files: Sequence[CaptionFile | CaptionFiles | None] = (
            [CaptionFiles([file for file in files if file is not None])] if joins else files
        )

    @contextmanager
    def opened(
        self, stage_to: Path | None, stage_gb: float | None, *, images_of: str | None, min_match: float
    ) -> Iterator[list[CaptionedStore]]:
        """The sources; their stores are closed at the end.

        Args:
            stage_to: folder that stores are copied to as they are read, each of several to a folder of its own there.
            stage_gb: room in it, 10^9 bytes, several stores have equal parts of.
            images_of: as of `checked_data_set`.
            min_match: of caption files.
        Raises:
            ValueError, OSError: when a store cannot be opened.
        """
        several, sources = len(self._stores) > 1, []
        with ExitStack() as stack:
            for number, (where, file) in enumerate(zip(self._stores, self._files, strict=True)):
                folder = stage_to / str(number + 1) if stage_to is not None and several else stage_to
                room = None if stage_gb is None else stage_gb / len(self._stores)
                store = stack.enter_context(_open_store(where, folder, room))
                store.checked_one_in = self._one_in
                data_set = checked_data_set(images_of, data_set_of_store(store.manifest))
                source = CaptionedStore(store, (), weight=self._weights[number], data_set=data_set)
                sources.append(self._captioned(source, file, min_match))
            yield sources

    def _captioned(
        self, source: CaptionedStore, file: CaptionFile | CaptionFiles | None, min_match: float
    ) -> CaptionedStore:
        texts = self._texts
        if texts is not None:
            where = f"the texts of {texts.task}"
            return replace(source, captions=texts, min_match=min_match, where=where, file_notes=texts.notes)
        if file is None:
            where = f"the captions of {source.store.path}"
            return replace(source, captions=stored_captions(source.store), where=where)
        return of_file(source, file, min_match)


class GivenValidation:
    """`--validation-captions` and `--validation-store`.

    Args:
        captions: a caption file, of a Karpathy file its split val; None for no held-out captions.
        store: folder of a store; None for the first one of the run.
    Raises:
        ValueError: when the file is none, or a store is named without it.
    """

    def __init__(self, captions: str | None, store: str | None, *, caption_column: str = "") -> None:
        if captions is None and store is not None:
            raise ValueError("--validation-store: name the captions too, with --validation-captions")
        self._store, self._file = store, None
        if captions is not None:
            self._file = given_file(captions, caption_column=caption_column)
        if captions is not None and self._file is not None and self._file.kind == "karpathy":
            self._file = CaptionFile(captions, split="val")

    @contextmanager
    def opened(
        self, first: CaptionedStore, *, images_of: str | None, min_match: float
    ) -> Iterator[CaptionedStore | None]:
        """The held-out captions; their own store is closed at the end.

        Args:
            first: source of the run.
            images_of, min_match: as of `GivenStores.opened`.
        Raises:
            ValueError, OSError: when the store cannot be opened.
        """
        if self._file is None:
            yield None
        elif self._store is None:
            yield self._captioned(first.store, min_match, first.data_set)
        else:
            with FeatureStore(self._store) as store:
                data_set = checked_data_set(images_of, data_set_of_store(store.manifest))
                yield self._captioned(store, min_match, data_set)

    def _captioned(self, store: FeatureStore, min_match: float, data_set: str | None) -> CaptionedStore:
        assert self._file is not None
        return of_file(CaptionedStore(store, (), data_set=data_set), self._file, min_match)


def of_file(source: CaptionedStore, file: CaptionFile | CaptionFiles, min_match: float) -> CaptionedStore:
    """The source with the captions of a file."""
    return replace(
        source,
        captions=file.captions(),
        min_match=min_match,
        where=file.location,
        other_splits=file.other_splits,
        file_notes=file.notes,
    )


def held_out_hints(sources: Sequence[CaptionedStore]) -> list[str]:
    """What rules would apply to the images of each store, see `held_out_hint`."""
    hints = [(source.store.path, held_out_hint(source.store.ids(), source.data_set)) for source in sources]
    return [hint if len(sources) == 1 else f"{path}: {hint}" for path, hint in hints if hint]


def _open_store(store: str, stage_to: Path | None, stage_gb: float | None) -> FeatureStore:
    if stage_to is not None:
        return StagedStore(store, stage_to, max_bytes=None if stage_gb is None else int(stage_gb * 1e9))
    if "://" in store or stage_gb is not None:
        what = "this is a URL" if "://" in store else "--cache-gb is given"
        raise ValueError(f"--store {store}: {what}, so name a folder on a local disk with --cache-dir")
    return FeatureStore(store)
