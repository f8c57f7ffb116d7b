"""What is to be extracted, and how, opened and checked; no torch and no Beam yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.pipelines.data.captions.caption_join import GivenCaptions
from roibeam.pipelines.data.given_boxes import GivenBoxes
from roibeam.pipelines.data.held_out import LeakReport
from roibeam.pipelines.data.source_kinds import Source
from roibeam.pipelines.data.vocabulary import Vocabulary
from roibeam.pipelines.extract.shard.detector_spec import DetectorSpec


@dataclass(frozen=True)
class Work:
    """What is to be extracted, and how: everything that decides what a store holds.

    Attributes:
        source: images.
        store: folder to write, on a disk or at a URL.
        detector, options: how images become records.
        vocabulary: names to store.
        shard_size: images per new shard; None means about ten minutes of work, at most 4,000, or `UNTIMED_SHARD_IMAGES`
            where the time cannot be taken here.
        boxes: of every image of the source; None where the detector proposes.
        captions: where the user gave them for a source without any.
        leaks: what was held out of the source, where the user named anything.
        is_held_out: of an image's id, whether it must not be in the store; likewise.
        own_detector: the same detector as this process can build it, where `detector` computes on GPUs of other
            machines; None where there is one for both.
    """

    source: Source
    store: OutputFolder
    detector: DetectorSpec
    options: ExtractOptions
    vocabulary: Vocabulary
    shard_size: int | None = None
    boxes: GivenBoxes | None = None
    captions: GivenCaptions | None = None
    leaks: LeakReport | None = None
    own_detector: DetectorSpec | None = None
    is_held_out: Callable[[str], bool] | None = None

    @property
    def detector_here(self) -> DetectorSpec:
        """What this process builds to plan: equal in all that a feature means, not in device and mode."""
        return self.own_detector or self.detector


@dataclass(frozen=True)
class UnlistedWork:
    """What a dry run knows where the images are at a URL that cannot be read from here.

    Attributes:
        detector: how they would become records.
        reason: why they cannot be listed, in a line.
    """

    detector: DetectorSpec
    reason: str
