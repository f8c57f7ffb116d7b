"""Window of photos on their way through the engine: a bounded number, in order, between the threads that work on them.

    consumer --admit--> [ to load | loading | loaded | being detected | done ] --oldest_done--> consumer
                loader threads: next_to_load, loaded        detector thread: next_group, detected

Python cannot end a thread. A loader thread that does not return in time is left behind and another replaces it, so a
read of a dead network file system or a decoder's endless loop costs one image and one thread. Their number is bounded,
for all shards of a process together: each holds a core or the memory of its photo until it returns.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence

from roibeam.extraction.engine.background_threads import start_thread
from roibeam.extraction.engine.detector_calls import Detected
from roibeam.extraction.engine.photo_loading import LoadedPhoto
from roibeam.extraction.photos.image_ref import Failure, ImageRef

POLL_SECONDS = 0.2


class PhotoSlot:
    """One image on its way.

    Attributes:
        stage: "read" or "decode" while a thread loads it.
        loading_seconds: time for which its loading has been watched.
        photo: the photo, between loading and detection.
        load_seconds: time of reading and decoding, once they have ended.
        image_hw: of the photo, as soon as it is known.
        number: of the image, from 0.
        outcome: the detector's result, a failure, or the error that stops the run.
    """

    def __init__(self, image: ImageRef, number: int) -> None:
        self.image = image
        self.number = number
        self.stage: str | None = None
        self.loading_seconds = 0.0
        self.load_seconds: float | None = None
        self.photo: LoadedPhoto | None = None
        self.image_hw: tuple[int, int] | None = None
        self.outcome: Detected | Failure | BaseException | None = None


class PhotoWindow:
    """At most `size` places, and the groups in which their photos go to the detector.

    The groups of photos depend on their order and keys alone, not on which is loaded first: if a detector's last digits
    depend on the group, a second run gives the same ones.

    Args:
        size: most images that are admitted and not yet returned.
        batch: photos in a group, at most.
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
        """Returns the oldest place as soon as it has an outcome.

        Args:
            watch: called with all places every `POLL_SECONDS` while waiting, under the lock.
        """
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
            while self._forming and place.number - self._first_forming().number >= self._horizon:
                self._hand_over(next(iter(self._forming)))
        while self._forming and self._all_admitted and not self._unsorted:
            self._hand_over(next(iter(self._forming)))

    def _first_forming(self) -> PhotoSlot:
        return next(iter(self._forming.values()))[0]

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
        num_threads: number of threads that work at once.
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
        """Gives up images that have been loading for too long; called every now and then, under the window's lock.

        Args:
            seconds: since it was called last.
        Raises:
            RuntimeError: if so many threads have not returned that single images cannot be the cause.
        """
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
        """Whether this place has to wait until a decoder has returned: each holds memory.

        Raises:
            RuntimeError: if so many do not return that single images cannot be the cause.
        """
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
