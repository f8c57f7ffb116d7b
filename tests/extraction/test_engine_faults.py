"""What the engine does when memory runs out, one photo fails, something hangs, or photos come in groups."""

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from fake_detector import FakeDetector, raises, when, write_photo

from roibeam.extraction.engine import detector_calls
from roibeam.extraction.engine.background_threads import wait_for_threads
from roibeam.extraction.engine.detector_calls import DetectorCalls
from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.extraction.engine.region_iterator import (
    MAX_LEFT_BEHIND,
    ExtractionStopped,
    extract_regions,
    images_on_their_way,
)
from roibeam.extraction.photos.image_ref import Failure, ImageRef
from roibeam.extraction.regions import Regions
from roibeam.features.record.region_record import RegionRecord

pytestmark = pytest.mark.faults
OutOfMemory = Callable[[], BaseException]
CPU_MEMORY_WORDS = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"


def photos(folder: Path, count: int, width: Callable[[int], int] = lambda number: 8) -> list[ImageRef]:
    """Photo k is grey k everywhere."""
    return [write_photo(folder, f"{number:03d}", grey=number, width=width(number)) for number in range(count)]


def features(outcomes: Sequence[RegionRecord | Failure]) -> list[float | str]:
    """Grey level of each record, reason of each failure."""
    return [o.reason if isinstance(o, Failure) else float(o.features[0, 0]) for o in outcomes]


def before_error(outcomes: Iterator[Any], error: Any, match: str | None = None) -> list[float | str]:
    """Features of what came before the error."""
    done: list[Any] = []
    with pytest.raises(error, match=match):
        for outcome in outcomes:
            done.append(outcome)
    return features(done)


class TestGroups:
    def test_a_detector_gets_as_many_photos_as_it_prefers(self, tmp_path: Path) -> None:
        detector = FakeDetector(preferred_batch=4)
        outcomes = list(extract_regions(photos(tmp_path, 10), detector))
        assert features(outcomes) == list(range(10))
        assert detector.calls == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    def test_photos_of_one_size_come_together_and_outcomes_stay_in_order(self, tmp_path: Path) -> None:
        detector = FakeDetector(preferred_batch=3)
        images = photos(tmp_path, 12, width=lambda number: 8 if number % 2 else 16)
        assert features(list(extract_regions(images, detector))) == list(range(12))
        assert detector.calls == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]

    def test_the_detector_may_say_what_goes_together(self, tmp_path: Path) -> None:
        class ByHeight(FakeDetector):
            def batch_key(self, image_hw: tuple[int, int]) -> int:
                return image_hw[0]

        detector = ByHeight(preferred_batch=4)
        list(extract_regions(photos(tmp_path, 8, width=lambda number: 8 + number), detector))
        assert detector.calls == [[0, 1, 2, 3], [4, 5, 6, 7]]

    def test_a_rare_size_is_not_put_off_for_ever(self, tmp_path: Path) -> None:
        detector = FakeDetector(preferred_batch=2)
        images = photos(tmp_path, 60, width=lambda number: 16 if number == 5 else 8)
        assert features(list(extract_regions(images, detector))) == list(range(60))
        assert detector.calls[:6] == [[0, 1], [2, 3], [4, 6], [7, 8], [5], [9, 10]]

    def test_groups_do_not_depend_on_which_photo_is_loaded_first(self, tmp_path: Path) -> None:
        images = photos(tmp_path, 40, width=lambda number: 8 + number % 3)
        images[11] = ImageRef("gone", "gone.jpg")
        random = np.random.default_rng(0)
        groups = []
        for threads in (1, 5):
            detector = FakeDetector(preferred_batch=4)

            def read(location: str) -> bytes:
                time.sleep(random.exponential(0.003))
                return Path(location).read_bytes()

            # The window grows with the threads, the groups do not change.
            list(extract_regions(images, detector, options=ExtractOptions(decode_threads=threads), read_bytes=read))
            groups.append(detector.calls)
        assert groups[0] == groups[1] and max(map(len, groups[0])) == 4

    def test_no_more_images_are_held_than_stated(self, tmp_path: Path) -> None:
        (image,) = photos(tmp_path, 1)
        data = Path(image.location).read_bytes()
        for batch in (1, 4):
            reads: list[str] = []

            def read(location: str, reads: list[str] = reads) -> bytes:
                reads.append(location)
                return data

            options = ExtractOptions(decode_threads=3)
            outcomes = extract_regions([image] * 100, FakeDetector(batch), options=options, read_bytes=read)
            held = images_on_their_way(3, batch)
            for done in range(1, 20):
                next(outcomes)
                time.sleep(0.005)  # the threads read as much as they are let
                assert len(reads) <= done + held
            outcomes.close()
            time.sleep(0.05)
            assert len(reads) <= 19 + held

    def test_a_detector_may_prepare_photos_in_the_threads_that_load_them(self, tmp_path: Path) -> None:
        class Preparing(FakeDetector):
            threads: frozenset[str] = frozenset()

            def prepare(self, pixels: np.ndarray) -> np.ndarray:
                self.threads |= {threading.current_thread().name}
                if pixels[0, 0, 0] == 2:
                    raise ValueError("cannot be resized")
                return pixels + np.uint8(100)

        detector = Preparing()
        outcomes = list(extract_regions(photos(tmp_path, 4), detector))
        assert features(outcomes) == [100, 101, "detector failed", 103]
        assert detector.threads == {"load photos"}


def small_detector(error: OutOfMemory) -> FakeDetector:
    """Prefers eight photos, has memory for two, and for none of grey 7."""

    def answer(greys: list[int]) -> None:
        if len(greys) > 2 or 7 in greys:
            raise error()

    return FakeDetector(8, answer)


@pytest.mark.parametrize(
    "error",
    [
        lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
        lambda: RuntimeError(CPU_MEMORY_WORDS),
        lambda: RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError,
    ],
)
def test_memory_that_runs_out_splits_the_group_and_warns_once(tmp_path: Path, error: OutOfMemory, caplog: Any) -> None:
    detector = small_detector(error)
    with caplog.at_level(logging.WARNING):
        outcomes = list(extract_regions(photos(tmp_path, 24), detector))
    assert features(outcomes) == [*range(7), "out of device memory", *range(8, 24)]
    (warning,) = caplog.records
    assert warning.getMessage() == "the detector ran out of memory on 8 photos at once; going on with at most 2"
    assert detector.calls.count([7]) == 2  # a photo alone is tried once more, in memory that was given back
    # Of the first group one photo was to blame, so the second is tried whole; the third is not.
    assert [call for call in detector.calls if len(call) == 8] == [[*range(8)], [*range(8, 16)]]
    assert detector.calls[-4:] == [[16, 17], [18, 19], [20, 21], [22, 23]]


def test_what_memory_holds_is_remembered_between_extractions(tmp_path: Path) -> None:
    detector = small_detector(MemoryError)
    calls = DetectorCalls(detector)
    images = photos(tmp_path, 6)
    list(extract_regions(images, detector, calls=calls))
    assert calls.batch == 2
    detector.calls.clear()
    list(extract_regions(images, detector, calls=calls))
    assert max(map(len, detector.calls)) <= 2


def test_a_poisoned_photo_in_a_group_fails_alone(tmp_path: Path) -> None:
    detector = FakeDetector(4, when(5, raises(ValueError("grey 5 is unlucky"))))
    outcomes = list(extract_regions(photos(tmp_path, 12), detector))
    assert features(outcomes) == [0, 1, 2, 3, 4, "detector failed", *range(6, 12)]
    assert detector.calls == [[0, 1, 2, 3], [4, 5, 6, 7], [4], [5], [6], [7], [8, 9, 10, 11]]


@pytest.mark.parametrize(
    "error", [torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), KeyError("a bug")]
)
def test_what_is_not_about_a_photo_stops_the_run_after_what_was_done(tmp_path: Path, error: Exception) -> None:
    outcomes = extract_regions(photos(tmp_path, 12), FakeDetector(2, when(6, raises(error))))
    assert before_error(outcomes, type(error)) == list(range(6))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ESTALE])
def test_too_many_open_files_or_a_file_system_that_went_stop_the_run(tmp_path: Path, number: int) -> None:
    images = photos(tmp_path, 6)

    def read(location: str) -> bytes:
        if location == images[3].location:
            raise OSError(number, os.strerror(number), location)
        return Path(location).read_bytes()

    outcomes = extract_regions(images, FakeDetector(), read_bytes=read)
    assert before_error(outcomes, OSError, os.strerror(number)) == [0, 1, 2]


def test_memory_that_runs_out_in_the_decoder_stops_the_run_and_names_the_photo(
    tmp_path: Path, monkeypatch: Any
) -> None:
    def fails(*arguments: Any) -> np.ndarray:
        raise cv2.error("OpenCV(5.0.0) alloc.cpp:73: error: (-4:Insufficient memory) Failed to allocate 108 bytes")

    images = photos(tmp_path, 2)
    monkeypatch.setattr(cv2, "imdecode", fails)
    with pytest.raises(MemoryError, match=f"{images[0].location}: decoding this image"):
        list(extract_regions(images, FakeDetector()))


def test_a_key_that_cannot_be_computed_stops_the_run(tmp_path: Path) -> None:
    class NoKeys(FakeDetector):
        def batch_key(self, image_hw: tuple[int, int]) -> int:
            raise KeyError(image_hw)

    with pytest.raises(KeyError):
        list(extract_regions(photos(tmp_path, 4), NoKeys(preferred_batch=2)))


def test_a_detector_that_loses_a_photo_is_a_bug(tmp_path: Path) -> None:
    class Losing(FakeDetector):
        def __call__(self, images: Sequence[np.ndarray], /, **options: Any) -> list[Regions]:
            return super().__call__(images, **options)[:-1]

    with pytest.raises(AssertionError, match="gave 1 results for 2 photos"):
        list(extract_regions(photos(tmp_path, 4), Losing(preferred_batch=2)))


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a blocked fake waits for; opened at the end, so that no thread outlives its test."""
    opened = threading.Event()
    yield opened
    opened.set()
    assert wait_for_threads(20)


def blocking_read(gate: threading.Event, *ids: str) -> Callable[[str], bytes]:
    def read(location: str) -> bytes:
        if Path(location).stem in ids:
            gate.wait()
        return Path(location).read_bytes()

    return read


def after_decoding(monkeypatch: pytest.MonkeyPatch, do: Callable[[int], object]) -> None:
    """The decoder of photos does this, with the grey of the photo, before it returns."""
    decode = detector_calls.decode_image

    def decode_and_do(data: bytes, **options: Any) -> np.ndarray:
        pixels = decode(data, **options)
        do(int(pixels[0, 0, 0]))
        return pixels

    monkeypatch.setattr(detector_calls, "decode_image", decode_and_do)


class TestWatchdog:
    def test_reads_that_hang_are_given_up_and_the_others_go_on(self, tmp_path: Path, gate: threading.Event) -> None:
        # More of them than threads: each is replaced by another.
        stuck = ["000", "003", "004", "005", "011"]
        options = ExtractOptions(decode_threads=2, load_timeout=0.5)
        images = photos(tmp_path, 12)
        read = blocking_read(gate, *stuck)
        outcomes = list(extract_regions(images, FakeDetector(), options=options, read_bytes=read))
        assert features(outcomes) == ["timeout" if image.image_id in stuck else int(image.image_id) for image in images]
        (first, *_) = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        assert (first.stage, first.detail) == ("read", "still being read after 0.5 s (--load-timeout)")

    def test_a_decoder_that_hangs_is_given_up(self, tmp_path: Path, gate: Any, monkeypatch: Any) -> None:
        after_decoding(monkeypatch, lambda grey: grey == 1 and gate.wait())
        options = ExtractOptions(load_timeout=0.5)
        outcomes = list(extract_regions(photos(tmp_path, 3), FakeDetector(), options=options))
        assert features(outcomes) == [0, "timeout", 2]
        assert isinstance(outcomes[1], Failure) and outcomes[1].stage == "decode"

    def test_threads_that_do_not_come_back_are_bounded(self, tmp_path: Path, gate: threading.Event) -> None:
        images = photos(tmp_path, MAX_LEFT_BEHIND + 8)
        options = ExtractOptions(decode_threads=8, load_timeout=0.3)
        read = blocking_read(gate, *(image.image_id for image in images))
        before = threading.active_count()
        done: list[Any] = []
        with pytest.raises(RuntimeError, match=r"16 images before this one hang as well.*does the file system"):
            for outcome in extract_regions(images, FakeDetector(), options=options, read_bytes=read):
                done.append(outcome)
                assert threading.active_count() <= before + 1 + 8 + MAX_LEFT_BEHIND
        assert set(features(done)) == {"timeout"}

    def test_many_slow_decoders_cost_their_own_photos_alone(self, tmp_path: Path, gate: Any, monkeypatch: Any) -> None:
        after_decoding(monkeypatch, lambda grey: grey < MAX_LEFT_BEHIND + 2 and gate.wait(1.2))
        options = ExtractOptions(load_timeout=0.3, decode_threads=8)
        found = features(list(extract_regions(photos(tmp_path, MAX_LEFT_BEHIND + 6), FakeDetector(), options=options)))
        assert found[MAX_LEFT_BEHIND + 2 :] == list(range(MAX_LEFT_BEHIND + 2, MAX_LEFT_BEHIND + 6))
        assert found.count("timeout") >= MAX_LEFT_BEHIND

    def test_threads_that_earlier_shards_left_behind_count(self, tmp_path: Path, gate: threading.Event) -> None:
        images = photos(tmp_path, MAX_LEFT_BEHIND)
        options = ExtractOptions(decode_threads=16, load_timeout=0.3)
        stuck = blocking_read(gate, *(image.image_id for image in images))
        outcomes = list(extract_regions(images, FakeDetector(), options=options, read_bytes=stuck))
        assert set(features(outcomes)) == {"timeout"}
        with pytest.raises(RuntimeError, match="16 images before this one hang as well in this process"):
            list(extract_regions(images[:1], FakeDetector(), options=options, read_bytes=stuck))
        gate.set()  # they come back
        assert wait_for_threads(20)
        assert features(list(extract_regions(images[:1], FakeDetector()))) == [0]

    def test_a_detector_that_hangs_stops_the_run(self, tmp_path: Path, gate: threading.Event) -> None:
        detector, options = FakeDetector(1, when(2, gate.wait)), ExtractOptions(detect_timeout=0.6)
        outcomes = extract_regions(photos(tmp_path, 6), detector, options=options)
        message = r"not come back from image '002' for 0\.6 s \(--detect-timeout\)"
        assert before_error(outcomes, RuntimeError, message) == [0, 1]

    def test_slow_calls_are_not_a_call_that_hangs(self, tmp_path: Path) -> None:
        detector, options = FakeDetector(1, lambda greys: time.sleep(0.3)), ExtractOptions(detect_timeout=0.6)
        outcomes = list(extract_regions(photos(tmp_path, 5), detector, options=options))
        assert features(outcomes) == list(range(5))

    def test_a_slow_caller_is_nobodys_timeout(self, tmp_path: Path) -> None:
        options = ExtractOptions(load_timeout=0.3, detect_timeout=0.3)
        done: list[Any] = []
        for outcome in extract_regions(photos(tmp_path, 8), FakeDetector(), options=options):
            done.append(outcome)
            time.sleep(0.4 if len(done) == 1 else 0)
        assert features(done) == list(range(8))

    def test_a_read_that_begins_after_a_slow_caller_has_its_own_time(self, tmp_path: Path) -> None:
        images = photos(tmp_path, 8)

        def read(location: str) -> bytes:
            time.sleep(0.4 if location == images[4].location else 0)
            return Path(location).read_bytes()

        options = ExtractOptions(load_timeout=1.0, decode_threads=1)  # so that photo 4 is read after the caller's pause
        done: list[Any] = []
        for outcome in extract_regions(images, FakeDetector(), options=options, read_bytes=read):
            done.append(outcome)
            time.sleep(1.2 if len(done) == 1 else 0)
        assert features(done) == list(range(8))

    def test_it_stops_when_told_to_between_images(self, tmp_path: Path) -> None:
        stopping = threading.Event()
        done: list[Any] = []
        with pytest.raises(ExtractionStopped):
            for outcome in extract_regions(photos(tmp_path, 12), FakeDetector(), should_stop=stopping.is_set):
                done.append(outcome)
                if len(done) == 3:
                    stopping.set()
        assert features(done) == [0, 1, 2]

    def test_it_stops_when_told_to_while_the_detector_computes(self, tmp_path: Path, gate: threading.Event) -> None:
        stopping = threading.Event()
        threading.Timer(0.3, stopping.set).start()
        with pytest.raises(ExtractionStopped):
            detector = FakeDetector(1, lambda greys: gate.wait())
            list(extract_regions(photos(tmp_path, 6), detector, should_stop=stopping.is_set))


def test_one_detector_computes_for_one_thread_at_a_time(tmp_path: Path) -> None:
    inside: list[list[int]] = []

    def answer(greys: list[int]) -> None:
        inside.append(greys)
        time.sleep(0.002)
        assert len(inside) == 1
        inside.pop()

    detector = FakeDetector(1, answer)
    calls = DetectorCalls(detector)
    images = photos(tmp_path, 20)
    with ThreadPoolExecutor(3) as pool:
        found = pool.map(lambda _: features(list(extract_regions(images, detector, calls=calls))), range(3))
    assert list(found) == [list(range(20))] * 3
