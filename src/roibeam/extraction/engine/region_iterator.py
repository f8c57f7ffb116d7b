"""The engine: images in, records or failures out, in the order of the images. Knows nothing of Beam, shards or stores.

    for outcome in extract_regions(images, detector):
        if isinstance(outcome, Failure): ...
        else: ...                                 # a RegionRecord

    images -> read, decode (a few threads) -> detector (one thread) -> record, and what the caller does (its thread)

A bounded number of images is on its way (`images_on_their_way`), so memory does not grow with the number of images, and
whoever is slowest sets the pace. While the caller writes a record, the detector computes the next images.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from roibeam.extraction.detector import RegionDetector
from roibeam.extraction.engine.background_threads import start_thread
from roibeam.extraction.engine.detector_calls import Detected, DetectorCalls, RunningCall
from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.extraction.engine.loader_threads import LoaderThreads
from roibeam.extraction.engine.photo_loading import Photo, PhotoLoad
from roibeam.extraction.engine.photo_window import POLL_SECONDS, PhotoWindow, Place
from roibeam.extraction.engine.region_records import to_record
from roibeam.extraction.engine.stage_times import StageTimes
from roibeam.extraction.global_feature import build_global_feature
from roibeam.extraction.photos.image_ref import Failure, ImageRef
from roibeam.extraction.photos.photo_file import read_local_file, without_image_extension
from roibeam.features.record.region_record import RegionRecord
from roibeam.name_list import check_list


class ExtractionStopped(RuntimeError):
    """`should_stop` said so."""


def extract_regions(
    images: Iterable[ImageRef | str | Path],
    detector: RegionDetector,
    *,
    options: ExtractOptions | None = None,
    read_bytes: Callable[[str], bytes] = read_local_file,
    global_feature: Callable[[np.ndarray], np.ndarray] | None = None,
    calls: DetectorCalls | None = None,
    times: StageTimes | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[RegionRecord | Failure]:
    """One outcome for each image, in the order given.

    Args:
        images: consumed lazily, a few ahead of what has been yielded. One with boxes gives a record of exactly those
            regions in their order, clipped to the photo; one without gives what the detector proposes and selects.
            A path alone is the photo whose id is its file's name without image extension.
        detector: called in a thread of its own with one decoded image at a time, or with more where it asks for them
            (see `detector_calls.BatchingDetector`, `photo_loading.PhotoLoad`); its `conventions`, if it has any, say
            what becomes of the EXIF orientation, which is otherwise applied.
        options: None means the defaults of `ExtractOptions`.
        read_bytes: location -> bytes of the file; raises OSError for what cannot be read. Called in several threads.
        global_feature: the network that `options.image_feature` names, for callers that keep it; None builds it here.
        calls: of this detector, for callers that run several extractions with it, one after another or at once.
        times: gets the time of reading and detecting for each image that is yielded.
        should_stop: asked several times a second while waiting.
    Yields:
        RegionRecord, or Failure for an image that cannot be read, decoded, detected on or recorded, or not in time.
        Errors that are not about one image (too many open files, a failed device, a bug) are raised.
    Raises:
        ValueError: for what is neither an ImageRef nor a path, and one ImageRef or a name in place of images or
            detector.
        ExtractionStopped: when `should_stop` says so.
        RuntimeError: when a detector call or very many reads do not come back.
    """
    check_list(images, "images")
    if isinstance(images, ImageRef):
        raise ValueError(f"images is a list, got one alone, {images!r}; write [ImageRef(...)]")
    if not callable(detector):
        raise ValueError(f"detector {detector!r:.80} is none: make it first, as build_detector('toy')")
    options = ExtractOptions() if options is None else options
    if not isinstance(options, ExtractOptions):
        raise ValueError(f"options must be ExtractOptions(...), got {options!r:.80}")
    if options.global_network is not None and global_feature is None:
        global_feature = build_global_feature(options.global_network, device=getattr(detector, "device", "cpu"))
    calls = calls or DetectorCalls(detector)
    assert calls.detector is detector, "the calls are of another detector"
    load = PhotoLoad(
        detector, read_bytes=read_bytes, max_pixels=options.max_pixels, keep_pixels=global_feature is not None
    )
    batch = calls.batch
    window = PhotoWindow(images_on_their_way(options.decode_threads, batch), batch=batch, horizon=_horizon(batch))
    watchdog = _Watchdog(window, load, calls, options, should_stop)

    def detect() -> None:
        whole_image = options.image_feature == "region"
        while (group := window.next_group()) is not None:
            window.detected(group, _detected(calls, group, whole_image, global_feature))

    def next_outcome() -> RegionRecord | Failure:
        if should_stop():
            raise ExtractionStopped("the extraction was stopped")
        place = window.oldest_done(watchdog)
        if times is not None:
            _note_times(place, times)
        return _outcome(place, options)

    start_thread("detect regions", detect)
    try:
        for image in images:
            window.admit(_as_ref(image))
            if len(window) == window.size:
                yield next_outcome()
        window.admitted_all()
        while len(window):
            yield next_outcome()
    finally:
        window.close()


def _as_ref(image: ImageRef | str | Path) -> ImageRef:
    if isinstance(image, str | Path):
        return ImageRef(without_image_extension(Path(image).name), str(image))
    if not isinstance(image, ImageRef):
        raise ValueError(f"images has {image!r:.80}, expected a path or ImageRef('its id', 'path of the photo')")
    return image


def images_on_their_way(decode_threads: int, batch: int) -> int:
    """How many images are read and not yet yielded, at most: enough that neither threads nor detector wait."""
    return 2 * decode_threads + 1 + batch + _horizon(batch)


def _horizon(batch: int) -> int:
    """How many images a photo waits for others of its kind. Batches of COCO's sizes are then more than half full; more
    would be held in memory for little."""
    return 4 * (batch - 1)


class _Watchdog:
    """Called now and then while the caller waits: looks for what hangs. Time in which nobody looks does not count, so a
    process that was stopped for an hour goes on as if nothing had been."""

    def __init__(
        self,
        window: PhotoWindow,
        load: PhotoLoad,
        calls: DetectorCalls,
        options: ExtractOptions,
        should_stop: Callable[[], bool],
    ) -> None:
        self._loaders = LoaderThreads(window, load, num_threads=options.decode_threads, timeout=options.load_timeout)
        self._calls, self._timeout, self._should_stop = calls, options.detect_timeout, should_stop
        self._last = time.monotonic()
        self._call: RunningCall | None = None
        self._call_seconds = 0.0

    def __call__(self, places: list[Place]) -> None:
        if self._should_stop():
            raise ExtractionStopped("the extraction was stopped")
        now = time.monotonic()
        seconds = min(now - self._last, 2 * POLL_SECONDS)
        self._last = now
        self._loaders.watch(places, seconds)
        call = self._calls.running
        if call is None or call != self._call:
            self._call, self._call_seconds = call, 0.0
            return
        self._call_seconds += seconds
        if self._call_seconds >= self._timeout:
            more = f" and {len(call.image_ids) - 1} more" if len(call.image_ids) > 1 else ""
            raise RuntimeError(
                f"the detector has not come back from image {call.image_ids[0]!r}{more} for {self._timeout:g} s "
                f"(--detect-timeout); the run stops, finished shards stay: is its device hanging?"
            )


def _detected(
    calls: DetectorCalls,
    group: Sequence[Place],
    whole_image: bool,
    global_feature: Callable[[np.ndarray], np.ndarray] | None,
) -> Sequence[Detected | Failure | BaseException]:
    photos = [place.photo for place in group]
    try:
        return calls.detect(
            [place.image for place in group],
            [photo for photo in photos if isinstance(photo, Photo)],
            whole_image=whole_image,
            global_feature=global_feature,
        )
    except BaseException as error:  # raised where the images' turn has come
        return [error] * len(group)


def _note_times(place: Place, times: StageTimes) -> None:
    if place.load_seconds is not None:  # None: given up
        times.decode_ms.add(place.load_seconds)
    if isinstance(place.outcome, Detected):
        times.net_ms.add(place.outcome.seconds)


def _outcome(place: Place, options: ExtractOptions) -> RegionRecord | Failure:
    found, image = place.outcome, place.image
    if isinstance(found, BaseException):
        raise found
    if isinstance(found, Failure):
        return found
    assert found is not None and place.image_hw is not None
    try:
        return to_record(image.image_id, *place.image_hw, found.regions, options, found.image_feature)
    except ValueError as error:
        if not np.isfinite(found.regions.features).all():
            reason, detail = "non-finite feature", "the detector gave NaN or infinity"
        else:
            reason, detail = "invalid record", str(error)
        return Failure(image.image_id, image.location, "record", reason, detail)
