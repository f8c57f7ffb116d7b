"""The photos on their way through the engine: a bounded number, in order, between the threads that work on them.

consumer --admit--> [ to load | loading | loaded | being detected | done ] --oldest_done--> consumer
            loader threads: next_to_load, loaded        detector thread: next_group, detected
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence

from roibeam.extraction.engine.detector_calls import Detected
from roibeam.extraction.engine.photo_loading import Photo
from roibeam.extraction.photos.image_ref import Failure, ImageRef

POLL_SECONDS = 0.2


class Place:
    """One image on its way.

    Attributes:
        stage: "read" or "decode" while a thread loads it.
        loading_seconds: how long it has been watched while being loaded.
        photo: from when it is loaded until it is detected.
        load_seconds: how long reading and decoding took, once they have ended.
        image_hw: of the photo, as soon as it is known.
        number: of the image, from 0.
        outcome: what became of it: the detector's word, a failure, or the error that stops the run.
    """

    def __init__(self, image: ImageRef, number: int) -> None:
        self.image = image
        self.number = number
        self.stage: str | None = None
        self.loading_seconds = 0.0
        self.load_seconds: float | None = None
        self.photo: Photo | None = None
        self.image_hw: tuple[int, int] | None = None
        self.outcome: Detected | Failure | BaseException | None = None


class PhotoWindow:
    """At most `size` places, and the groups in which their photos go to the detector.

    Which photos form a group depends on their order and keys alone, not on which is loaded first: where a detector's
    last digits depend on the group, a second run gives the same ones.

    Args:
        size: images that are admitted and not yet handed out, at most.
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
        self._places: deque[Place] = deque()
        self._to_load: deque[Place] = deque()
        self._unsorted: deque[Place] = deque()  # in order; those before them are in a group, or failed
        self._forming: dict[Hashable, list[Place]] = {}  # by the age of their first
        self._groups: deque[list[Place]] = deque()
        self._num_admitted = 0
        self._all_admitted = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._places)

    def admit(self, image: ImageRef) -> None:
        """Takes one more image; the caller sees to it that there is room."""
        with self._lock:
            assert len(self._places) < self.size
            place = Place(image, self._num_admitted)
            self._num_admitted += 1
            self._places.append(place)
            self._unsorted.append(place)
            self._to_load.append(place)
            self._wanted.notify()

    def admitted_all(self) -> None:
        """No more images will come, so that the last groups wait for nothing."""
        with self._lock:
            self._all_admitted = True
            self._form_groups()

    def oldest_done(self, watch: Callable[[list[Place]], None]) -> Place:
        """Hands out the oldest place as soon as it has an outcome.

        Args:
            watch: called with all places every `POLL_SECONDS` while waiting, under the lock.
        """
        with self._lock:
            while self._places[0].outcome is None:
                if not self._done.wait(POLL_SECONDS):
                    watch(list(self._places))
            return self._places.popleft()

    def next_to_load(self) -> Place | None:
        """For a loader thread: waits for an image; None when it is to end."""
        with self._lock:
            while not self._to_load and not self._closed:
                self._wanted.wait()
            if self._closed:
                return None
            place = self._to_load.popleft()
            place.stage = "read"
            return place

    def loaded(self, place: Place, result: Photo | Failure | BaseException) -> bool:
        """Takes what a loader thread made; False when the place was given up meanwhile."""
        with self._lock:
            if place.stage is None:
                return False
            place.stage = None
            if isinstance(result, Photo):
                place.photo, place.image_hw = result, result.image_hw
            else:
                self._finish(place, result)
            self._form_groups()
            return True

    def give_up_loading(self, place: Place, failure: Failure) -> None:
        """Ends a place whose thread does not come back; the lock is held (`watch` calls it)."""
        place.stage = None
        self._finish(place, failure)
        self._form_groups()

    def next_group(self) -> list[Place] | None:
        """For the detector thread: waits for photos to detect on together; None when it is to end."""
        with self._lock:
            while not self._groups and not self._closed:
                self._ready.wait()
            return None if self._closed else self._groups.popleft()

    def detected(self, group: Sequence[Place], results: Sequence[Detected | Failure | BaseException]) -> None:
        """Takes what the detector said of a group."""
        with self._lock:
            for place, result in zip(group, results, strict=True):
                place.photo = None
                self._finish(place, result)

    def close(self) -> None:
        """Ends the threads that wait; those at work find out when they come back."""
        with self._lock:
            self._closed = True
            for waiting in (self._to_load, self._places, self._unsorted, self._groups):
                waiting.clear()
            self._forming.clear()
            self._wanted.notify_all()
            self._ready.notify_all()

    def _finish(self, place: Place, outcome: Detected | Failure | BaseException) -> None:
        place.outcome = outcome
        if self._places and self._places[0] is place:
            self._done.notify()

    def _form_groups(self) -> None:
        """Sorts what is loaded into groups, in order; the lock is held."""
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

    def _first_forming(self) -> Place:
        return next(iter(self._forming.values()))[0]

    def _hand_over(self, key: Hashable) -> None:
        self._groups.append(self._forming.pop(key))
        self._ready.notify()
