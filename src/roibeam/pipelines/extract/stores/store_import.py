"""`roibeam store import`: a published feature file becomes a store like any other, except for its feature space."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections import Counter, deque
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from roibeam.features.annotations import write_annotations
from roibeam.features.exchange.check_report import CheckReport
from roibeam.features.exchange.entry_file import FeatureFile
from roibeam.features.exchange.formats import format_named, format_of
from roibeam.features.exchange.reading import Reading
from roibeam.features.folders.folder_protocol import OutputFolder, run_lock
from roibeam.features.folders.local_folder import output_folder
from roibeam.features.record.fingerprint import imported_fingerprint
from roibeam.features.record.region_record import check_dtype
from roibeam.features.shard.manifest import StoreManifest
from roibeam.features.writing.partial_store import SequenceStore, work_folder
from roibeam.messages import plural
from roibeam.pipelines.common.console.command_files import NamedFiles, TemporaryCopies, borrowed_files
from roibeam.pipelines.common.console.progress import ENTRIES, Progress
from roibeam.pipelines.common.dead_letters import write_dead_letters
from roibeam.pipelines.data.captions.caption_files import merged_annotations
from roibeam.pipelines.data.datasets.known_files import refuse_others
from roibeam.pipelines.data.vocabulary import PUBLISHED_LISTS
from roibeam.pipelines.extract.stores.class_names import imported_classes
from roibeam.pipelines.extract.stores.locations import StoreLocation

log = logging.getLogger(__name__)
DEFAULT_SHARD_SIZE = 4000


@dataclass(frozen=True)
class ImportSummary:
    """Result of an import.

    Attributes:
        format: name of the source's format.
        failures: reason -> entries that could not be used; they are the store's dead letters.
        num_repeats: entries left out because an earlier one has the same for their image.
        seconds: wall time.
    """

    format: str
    manifest: StoreManifest
    report: CheckReport
    failures: Counter[str]
    num_repeats: int
    seconds: float

    @property
    def failed_share(self) -> float:
        """Dead letters / (records + dead letters), 0..1."""
        return self.failures.total() / max(self.manifest.num_records + self.failures.total(), 1)


def import_features(
    source: StoreLocation,
    out: StoreLocation,
    *,
    format_name: str | None = None,
    dtype: str | None = None,
    shard_size: int = DEFAULT_SHARD_SIZE,
    num_classes: int | None = None,
    vocab: str | None = None,
    background: str | None = None,
    feature_dtype: str | None = None,
    scratch: str | None = None,
) -> ImportSummary:
    """Writes the records of a feature file to the folder `out`, in key order.

    The store manifest comes last: before it there is no store. A killed import goes on where it was: finished shards of
    the same source and options are kept. The source is read from the beginning all the same, for the report.

    Args:
        source: a file or folder of a format in `roibeam.features.exchange.formats`, or its URL: all of it is copied to
            a scratch folder first.
        format_name: of it; None: it is recognised by its content.
        dtype: of the stored features; None for what the file says of its store, else float16, which is half the size:
            a value over 65504 makes a dead letter in it.
        num_classes: foreground classes of the detector, for a file that has class ids without their number; None:
            unknown, or the file's number.
        vocab: in place of that, the names of its classes and attributes, see `read_vocabulary`.
        background: where rows of class probabilities have background: first, last or none; in a file with class ids
            alone, first says that 0 is background. None: that of the format, if the numbers do not speak against it.
        feature_dtype: key of `FILE_DTYPES`: what numbers the bytes of the features are. None: the file's own dtype, and
            float32 where they are base64, if the bytes do not speak against it.
        scratch: parent of the scratch folders that URLs need; None for the machine's temporary folder.
    Raises:
        ValueError: when `source` is no such file, `out` holds anything but a part of this import, or the file does not
            fit `num_classes` or `vocab`; when its numbers look as if they were to be read in another way.
        OSError: when `out` cannot be written.
    """
    start = time.monotonic()
    check_dtype(dtype)
    reading = Reading(background, feature_dtype)
    named = NamedFiles()
    named.need("SOURCE", source)
    named.need("--vocab", None if vocab == PUBLISHED_LISTS else vocab)
    named.need_output_folder(out)
    if format_name is not None:
        named.look(lambda: format_named(format_name))
    named.check()
    folder = output_folder(out, scratch)
    folder.listing("manifest")  # an error for a URL that cannot be written, before a large file is copied
    with borrowed_files(source, scratch=scratch) as files:
        refuse_others(str(files.path), ("features", "oscar-features", "lmdb"))
        found = format_of(files.path, format_name)
        with found.open(files.path, reading) as file, work_folder(folder, scratch) as work, run_lock(folder):
            reading.check(source)
            request = _Request(files, dtype or file.dtype or "float16", shard_size, num_classes, vocab, reading)
            published, report, written = _imported(found.name, file, folder, work, request)
    seconds = time.monotonic() - start
    return ImportSummary(found.name, published, report, written.failures, written.num_repeats, seconds)


@dataclass(frozen=True)
class _Request:
    """Source and form of an import."""

    files: TemporaryCopies
    dtype: str
    shard_size: int
    num_classes: int | None
    vocab: str | None
    reading: Reading

    @property
    def given(self) -> dict[str, int | str]:
        """Given options for facts that the file lacks."""
        reading = {"background": self.reading.background, "file_feature_dtype": self.reading.feature_dtype}
        options = {"num_classes": self.num_classes, "vocab": self.vocab, **reading}
        return {name: value for name, value in options.items() if value is not None}


def _imported(
    name: str, file: FeatureFile, folder: OutputFolder, work: Path, request: _Request
) -> tuple[StoreManifest, CheckReport, SequenceStore]:
    """The store manifest, what was in the source, and the shards; needs the folder's lock."""
    files, dtype, shard_size = request.files, request.dtype, request.shard_size
    classes = imported_classes(
        file, files.path, num_classes=request.num_classes, vocab=request.vocab, background=request.reading.background
    )
    details = {"layout": file.layout, **file.details, "feature_dtype": dtype}
    details |= {name: value for name, value in request.given.items() if name not in ("num_classes", "vocab")}
    details |= {} if classes.number is None else {"num_classes": classes.number}
    own = file.fingerprint if dtype == file.dtype and not request.given else None
    fingerprint = own or imported_fingerprint(name, details)
    report = CheckReport(file.layout, file.details)
    # The same for two runs exactly when they write the same store, if files that change get another time.
    parts = [
        files.location, files.num_bytes, files.changed_ns, fingerprint.feature_space, fingerprint.details, shard_size
    ]  # fmt: skip
    parts += [] if classes.names.digest is None else [classes.names.digest]
    plan = hashlib.sha256(json.dumps(parts, sort_keys=True).encode("ascii")).hexdigest()
    written = SequenceStore(
        folder,
        work,
        "import",
        plan,
        fingerprint,
        shard_size=shard_size,
        shard_bytes=None,
        planned_bytes=files.num_bytes * min(shard_size, file.num_entries) // max(file.num_entries, 1),
    )
    if written.num_kept:
        log.info("reading over the %s that are written", plural(written.num_done, "entry", "entries"))
    with Progress("importing", file.num_entries, ENTRIES) as progress:
        # From the first entry on, for the report.
        outcomes = progress.counting(report.watch(classes.checked(file.outcomes(dtype))))
        deque(islice(outcomes, written.num_done), maxlen=0)
        written.write(outcomes)
    write_dead_letters(folder, written.manifests)
    published = written.publish(
        config={
            "source": {"kind": name, "location": files.location, "bytes": files.num_bytes},
            "options": {"feature_dtype": dtype, "shard_size": shard_size, **request.given},
            "entries": {"all": file.num_entries, "equal_repeats": written.num_repeats},
            "import": {"plan": plan},
        },
        classes=classes.names.classes,
        attributes=classes.names.attributes,
        annotations=write_annotations(folder, merged_annotations(file.annotations(), folder, written.manifests)),
    )
    return published, report, written
