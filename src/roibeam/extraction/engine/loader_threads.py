"""The threads that read and decode, and the watchdog over them.

Python cannot end a thread. One that does not come back in time is left behind and another takes its seat, so a read of
a dead network file system or a decoder's endless loop costs one image and one thread. Their number is bounded, for all
shards of a process together: each holds a core or the memory of its photo until it comes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from roibeam.extraction.engine.background_threads import start_thread
from roibeam.extraction.engine.photo_loading import Photo
from roibeam.extraction.engine.photo_window import PhotoWindow, Place
from roibeam.extraction.photos.image_ref import Failure, ImageRef

MAX_LEFT_BEHIND = 16
_left_behind: set[Place] = set()  # of this process; a thread that comes back takes its place out
_DOING = {"read": "being read", "decode": "being decoded"}


class LoaderThreads:
    """Threads that load the photos of a window.

    Args:
        load: image, what to call when a stage begins -> photo or failure.
        num_threads: that work at once.
        timeout: seconds that one image may take; counted by `watch`, so only while somebody waits for it.
    """

    def __init__(
        self,
        window: PhotoWindow,
        load: Callable[[ImageRef, Callable[[str], None]], Photo | Failure],
        *,
        num_threads: int,
        timeout: float,
    ) -> None:
        self._window, self._load, self._timeout = window, load, timeout
        for _ in range(num_threads):
            self._start()

    def watch(self, places: Sequence[Place], seconds: float) -> None:
        """Gives up what has been loading for too long; called every now and then, under the window's lock.

        Args:
            seconds: since it was called last.
        Raises:
            RuntimeError: when so many threads have not come back that it is no matter of single images.
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

    def _are_too_many_left(self, place: Place) -> bool:
        """Whether this place has to wait until a decoder has come back: each holds memory.

        Raises:
            RuntimeError: when so many do not come back that it is no matter of single images.
        """
        stage = place.stage
        alike = [left for left in _left_behind if isinstance(left.outcome, Failure) and left.outcome.stage == stage]
        if len(alike) < MAX_LEFT_BEHIND:
            return False
        # A read that hangs does so for good; a decoder ends sooner or later, and sooner when no others are added.
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

    def _loaded(self, place: Place) -> Photo | Failure | BaseException:
        def begin(stage: str) -> None:
            if place.stage is not None:  # not given up
                place.stage = stage

        try:
            return self._load(place.image, begin)
        except BaseException as error:  # raised where the image's turn has come
            return error
