"""Engine of extraction: images in, records or failures out, in the order of the images. No Beam, shards or stores.

    for outcome in extract_regions(images, detector):      # each a RegionRecord or a Failure
    images -> read, decode (a few threads) -> detector (one thread) -> record, and the caller's work (its thread)

`PhotoWindow` bounds the images on their way, so memory does not grow with their number, and the slowest stage sets the
pace. `StageTimes` is how long the stages took, in whole milliseconds.

    consumer --admit--> [ to load | loading | loaded | being detected | done ] --oldest_done--> consumer
Python cannot end a thread. A loader thread that does not come back in time is left behind and another takes its seat:
a dead network file system or a decoder's endless loop costs one image and one thread. Their number is bounded, for all
shards of a process together: each holds a core or the memory of its photo until it comes back.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from roibeam.extraction.detector import RegionDetector
from roibeam.extraction.engine.background_threads import start_thread
from roibeam.extraction.engine.detector_calls import Detected, DetectorCalls, LoadedPhoto, PhotoLoad, RunningCall
from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.extraction.global_feature import build_global_feature
from roibeam.extraction.photos.image_ref import Failure, ImageRef, read_local_file, without_image_extension
from roibeam.extraction.regions import Regions
from roibeam.features.record.region_record import FEATURE_DTYPES, RegionRecord, TopKDistribution
from roibeam.messages import check_list

POLL_SECONDS = 0.2


@dataclass(eq=False)
class PhotoSlot:
    """One image on its way; `number` counts them from 0.

    Attributes:
        stage: "read" or "decode" while a thread loads it.
        loading_seconds: time for which its loading has been watched.
        load_seconds: time of reading and decoding, once they have ended.
        photo: the photo, between loading and detection.
        outcome: the detector's result, a failure, or the error that stops the run.
    """

    image: ImageRef
    number: int
    stage: str | None = None
    loading_seconds: float = 0.0
    load_seconds: float | None = None
    photo: LoadedPhoto | None = None
    image_hw: tuple[int, int] | None = None
    outcome: Detected | Failure | BaseException | None = None


class PhotoWindow:
    """At most `size` places, and the groups in which their photos go to the detector.

    The groups of photos depend on their order and keys alone, not on which is loaded first: if a detector's last digits
    depend on the group, a second run gives the same ones.

    Args:
        horizon: a photo waits for others of its `batch_key` until so many images after it are loaded; under `size`.
    """

    def __init__(self, size: int, *, batch: int, horizon: int) -> None:
        assert horizon < size
        self.size = size
        self._batch, self._horizon = batch, horizon
        self._lock = threading.Lock()
        self._wanted = threading.Condition(self._lock)  # something to load
        self._ready = threading.Condition(self._lock)  # something to detect on
        self._done = threading.Condition(self._lock)  # the oldest has its outcome
        self._places: deque[PhotoSlot] = deque()
        self._to_load: deque[PhotoSlot] = deque()
        self._unsorted: deque[PhotoSlot] = deque()  # in order; those before them are in a group, or failed
        self._forming: dict[Hashable, list[PhotoSlot]] = {}  # by the age of their first
        self._groups: deque[list[PhotoSlot]] = deque()
        self._num_admitted = 0
        self._all_admitted = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._places)

    def admit(self, image: ImageRef) -> None:
        """Takes one more image; the caller ensures that there is room."""
        with self._lock:
            assert len(self._places) < self.size
            place = PhotoSlot(image, self._num_admitted)
            self._num_admitted += 1
            self._places.append(place)
            self._unsorted.append(place)
            self._to_load.append(place)
            self._wanted.notify()

    def admitted_all(self) -> None:
        """Declares that no more images will come, so that the last groups wait for nothing."""
        with self._lock:
            self._all_admitted = True
            self._form_groups()

    def oldest_done(self, watch: Callable[[list[PhotoSlot]], None]) -> PhotoSlot:
        """Returns the oldest place as soon as it has an outcome; while it waits, every `POLL_SECONDS`, `watch` gets all
        places, under the lock."""
        with self._lock:
            while self._places[0].outcome is None:
                if not self._done.wait(POLL_SECONDS):
                    watch(list(self._places))
            return self._places.popleft()

    def next_to_load(self) -> PhotoSlot | None:
        """Waits for an image, for a loader thread; None if it is to end."""
        with self._lock:
            while not self._to_load and not self._closed:
                self._wanted.wait()
            if self._closed:
                return None
            place = self._to_load.popleft()
            place.stage = "read"
            return place

    def loaded(self, place: PhotoSlot, result: LoadedPhoto | Failure | BaseException) -> bool:
        """Takes the result of a loader thread; False if the place was given up meanwhile."""
        with self._lock:
            if place.stage is None:
                return False
            place.stage = None
            if isinstance(result, LoadedPhoto):
                place.photo, place.image_hw = result, result.image_hw
            else:
                self._finish(place, result)
            self._form_groups()
            return True

    def give_up_loading(self, place: PhotoSlot, failure: Failure) -> None:
        """Ends a place whose thread does not return; the lock is held (`watch` calls it)."""
        place.stage = None
        self._finish(place, failure)
        self._form_groups()

    def next_group(self) -> list[PhotoSlot] | None:
        """Waits for photos to detect on together, for the detector thread; None if it is to end."""
        with self._lock:
            while not self._groups and not self._closed:
                self._ready.wait()
            return None if self._closed else self._groups.popleft()

    def detected(self, group: Sequence[PhotoSlot], results: Sequence[Detected | Failure | BaseException]) -> None:
        """Takes the detector's results for a group."""
        with self._lock:
            for place, result in zip(group, results, strict=True):
                place.photo = None
                self._finish(place, result)

    def close(self) -> None:
        """Ends the waiting threads; working ones notice when they return."""
        with self._lock:
            self._closed = True
            for waiting in (self._to_load, self._places, self._unsorted, self._groups):
                waiting.clear()
            self._forming.clear()
            self._wanted.notify_all()
            self._ready.notify_all()

    def _finish(self, place: PhotoSlot, outcome: Detected | Failure | BaseException) -> None:
        place.outcome = outcome
        if self._places and self._places[0] is place:
            self._done.notify()

    def _form_groups(self) -> None:
        """Sorts loaded photos into groups, in order; the lock is held."""
        while self._unsorted and (self._unsorted[0].photo is not None or self._unsorted[0].outcome is not None):
            place = self._unsorted.popleft()
            if place.photo is not None:
                key = place.photo.batch_key
                self._forming.setdefault(key, []).append(place)
                if len(self._forming[key]) == self._batch:
                    self._hand_over(key)
            while self._forming and place.number - next(iter(self._forming.values()))[0].number >= self._horizon:
                self._hand_over(next(iter(self._forming)))
        while self._forming and self._all_admitted and not self._unsorted:
            self._hand_over(next(iter(self._forming)))

    def _hand_over(self, key: Hashable) -> None:
        self._groups.append(self._forming.pop(key))
        self._ready.notify()


MAX_LEFT_BEHIND = 16
_left_behind: set[PhotoSlot] = set()  # of this process; a thread that comes back takes its place out
_DOING = {"read": "being read", "decode": "being decoded"}


class LoaderThreads:
    """Threads that load the photos of a window.

    Args:
        load: image, function to call when a stage starts -> photo or failure.
        timeout: seconds that one image may take; counted by `watch`, so only while a caller waits for it.
    """

    def __init__(
        self,
        window: PhotoWindow,
        load: Callable[[ImageRef, Callable[[str], None]], LoadedPhoto | Failure],
        *,
        num_threads: int,
        timeout: float,
    ) -> None:
        self._window, self._load, self._timeout = window, load, timeout
        for _ in range(num_threads):
            self._start()

    def watch(self, places: Sequence[PhotoSlot], seconds: float) -> None:
        """Gives up images that have been loading for too long; called every now and then, under the window's lock, with
        the seconds since then. Raises RuntimeError if so many threads have not returned that single images cannot be
        the cause."""
        for place in places:
            if place.stage is None:
                continue
            place.loading_seconds += seconds
            if place.loading_seconds < self._timeout:
                continue
            if self._are_too_many_left(place):
                continue
            detail = f"still {_DOING[place.stage]} after {self._timeout:g} s (--load-timeout)"
            failure = Failure(place.image.image_id, place.image.location, place.stage, "timeout", detail)
            _left_behind.add(place)
            self._window.give_up_loading(place, failure)
            self._start()

    def _are_too_many_left(self, place: PhotoSlot) -> bool:
        """Whether this place has to wait until a decoder has returned: each holds memory."""
        stage = place.stage
        alike = [left for left in _left_behind if isinstance(left.outcome, Failure) and left.outcome.stage == stage]
        if len(alike) < MAX_LEFT_BEHIND:
            return False
        # A read that hangs does so for good; a decoder ends sooner or later, and sooner if no others are added.
        if stage == "decode" and place.loading_seconds < MAX_LEFT_BEHIND * self._timeout:
            return True
        why = "does the file system they are on still answer?" if stage == "read" else "decoders that never end"
        raise RuntimeError(
            f"{place.image.location}: {MAX_LEFT_BEHIND} images before this one hang as well in this process while "
            f"{_DOING[str(stage)]}, each for more than {self._timeout:g} s: {why} (--load-timeout)"
        )

    def _start(self) -> None:
        start_thread("load photos", self._run)

    def _run(self) -> None:
        while (place := self._window.next_to_load()) is not None:
            start = time.monotonic()
            result = self._loaded(place)
            place.load_seconds = time.monotonic() - start
            if not self._window.loaded(place, result):
                _left_behind.discard(place)
                return  # another thread has this one's seat

    def _loaded(self, place: PhotoSlot) -> LoadedPhoto | Failure | BaseException:
        def begin(stage: str) -> None:
            if place.stage is not None:  # not given up
                place.stage = stage

        try:
            return self._load(place.image, begin)
        except BaseException as error:  # raised at the image's turn
            return error


class Milliseconds:
    """Durations as whole milliseconds whose sum is that of the durations to the millisecond: a rounding remainder goes
    to a later one. So a stage of 0.4 ms per image is not nothing after a million images."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self._exact = 0.0
        self._reported = 0

    def add(self, seconds: float) -> None:
        self._exact += seconds * 1000
        value = round(self._exact) - self._reported
        self._reported += value
        self.values.append(value)

    def summary(self) -> dict[str, int]:
        """{"count", "sum", "min", "max"}; all 0 without any."""
        return {
            "count": len(self.values),
            "sum": self._reported,
            "min": min(self.values, default=0),
            "max": max(self.values, default=0),
        }


@dataclass
class StageTimes:
    """One extraction's times.

    Attributes:
        decode_ms: reading, decoding and preparing a photo, in its thread; those that failed count as well.
        net_ms: a photo's share of its detector call, waiting for the device included, for others not.
        write_ms: the caller's times of writing each record.
    """

    decode_ms: Milliseconds = field(default_factory=Milliseconds)
    net_ms: Milliseconds = field(default_factory=Milliseconds)
    write_ms: Milliseconds = field(default_factory=Milliseconds)

    def summaries(self) -> dict[str, dict[str, int]]:
        return {name: getattr(self, name).summary() for name in ("decode_ms", "net_ms", "write_ms")}


_TORCH_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def to_record(
    image_id: str,
    height: int,
    width: int,
    regions: Regions,
    options: ExtractOptions,
    image_feature: np.ndarray | None = None,
) -> RegionRecord:
    """Regions of one image of height x width pixels as the record that is stored, in the dtypes of `options`. Raises
    ValueError if the regions break a rule of RegionRecord; a feature too large for float16 is one."""
    has_attributes = regions.attribute_ids is not None and regions.attribute_scores is not None
    return RegionRecord(
        image_id=image_id,
        height=height,
        width=width,
        boxes=np.ascontiguousarray(regions.boxes, dtype=np.float32),
        features=_cast(regions.features, options.feature_dtype),
        class_ids=regions.class_ids.astype(np.uint16),
        class_scores=regions.class_scores.astype(np.float32),
        attribute_ids=np.asarray(regions.attribute_ids).astype(np.uint16) if has_attributes else None,
        attribute_scores=np.asarray(regions.attribute_scores).astype(np.float32) if has_attributes else None,
        class_distribution=_distribution(regions.class_probabilities, options),
        image_feature=None if image_feature is None else _cast(image_feature, options.feature_dtype),
    )


def _cast(features: np.ndarray, dtype: str) -> np.ndarray:
    # torch casts about a hundred times faster than numpy's half-precision loop.
    cast = torch.from_numpy(np.ascontiguousarray(features)).to(_TORCH_DTYPES[dtype])
    if dtype == "bfloat16":
        return cast.view(torch.uint16).numpy().view(FEATURE_DTYPES["bfloat16"])
    return cast.numpy()


def _distribution(probabilities: np.ndarray, options: ExtractOptions) -> np.ndarray | TopKDistribution | None:
    """(K, C + 1) float32, background last -> the stored part of it."""
    if options.distribution == "none" or probabilities.shape[1] <= 1:  # of a network without classes or distribution
        return None
    if options.top_k is None:
        return _cast(probabilities, "float16")
    width = probabilities.shape[1]
    if options.top_k > width:
        raise ValueError(f"distribution {options.distribution!r} needs more than the {width} classes there are")
    order = _most_probable(probabilities, options.top_k)
    best = np.take_along_axis(probabilities, order, axis=1)
    rest = np.clip(1.0 - best.sum(axis=1, dtype=np.float64), 0.0, 1.0)
    return TopKDistribution(order.astype(np.uint16), _cast(best, "float16"), rest.astype(np.float16), width - 1)


def _most_probable(probabilities: np.ndarray, count: int) -> np.ndarray:
    """(K, count) int64: classes by descending probability, of equal ones the lower first.

    A tenth of the time of a stable sort: the bits of a float that is not negative are in its order, and with the class
    in the low half of a whole number no two are equal.
    """
    bits = (np.asarray(probabilities, np.float32) + np.float32(0)).view(np.int32).astype(np.int64)  # no -0
    keys = (bits << 32) | (0x7FFFFFFF - np.arange(probabilities.shape[1]))
    return torch.from_numpy(keys).topk(count, dim=1).indices.numpy()


class ExtractionStopped(RuntimeError):
    """`should_stop` returned True."""


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
        detector: called in a thread of its own with one decoded image at a time, or with more on its request (see
            `BatchingDetector` and `PhotoLoad` in detector_calls.py); its `conventions`, if it has any, set the
            treatment of the EXIF orientation, which is otherwise applied.
        options: None means the defaults of `ExtractOptions`.
        read_bytes: location -> bytes of the file; raises OSError for unreadable ones. Called in several threads.
        global_feature: the network that `options.image_feature` names, for callers that keep it; None builds it here.
        calls: of this detector, for callers that run several extractions with it, one after another or at once.
        times: gets the time of reading and detecting for each image that is yielded.
        should_stop: called several times a second while waiting.
    Yields:
        RegionRecord, or Failure for an image that cannot be read, decoded, detected on or recorded, or not in time.
        Errors that are not about one image (too many open files, a failed device, a bug) are raised.
    Raises:
        ValueError: for items that are neither an ImageRef nor a path, and one ImageRef or a name in place of images
            or detector.
        ExtractionStopped: if `should_stop` returns True.
        RuntimeError: if a detector call or very many reads do not return.
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
        if times is not None and place.load_seconds is not None:  # None: given up
            times.decode_ms.add(place.load_seconds)
        if times is not None and isinstance(place.outcome, Detected):
            times.net_ms.add(place.outcome.seconds)
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
    """Largest number of images that are read and not yet yielded: enough that neither threads nor detector wait."""
    return 2 * decode_threads + 1 + batch + _horizon(batch)


def _horizon(batch: int) -> int:
    """Number of images that a photo waits for others of its kind. Batches of COCO's sizes are then more than half full;
    more would be held in memory for little."""
    return 4 * (batch - 1)


class _Watchdog:
    """Check for hanging threads, called now and then while the caller waits. Only checked time counts, so a process
    that was stopped for an hour continues as if nothing had happened."""

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

    def __call__(self, places: list[PhotoSlot]) -> None:
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
    group: Sequence[PhotoSlot],
    whole_image: bool,
    global_feature: Callable[[np.ndarray], np.ndarray] | None,
) -> Sequence[Detected | Failure | BaseException]:
    photos = [place.photo for place in group]
    try:
        return calls.detect(
            [place.image for place in group],
            [photo for photo in photos if isinstance(photo, LoadedPhoto)],
            whole_image=whole_image,
            global_feature=global_feature,
        )
    except BaseException as error:  # raised at the images' turn
        return [error] * len(group)


def _outcome(place: PhotoSlot, options: ExtractOptions) -> RegionRecord | Failure:
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
