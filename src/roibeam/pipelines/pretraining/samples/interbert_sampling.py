"""The settings of InterBERT's samples, which `--set sampling.` changes. No torch: a wrong one is said at once."""

from __future__ import annotations

from dataclasses import dataclass

from roibeam.pipelines.data.fit import check_choice, check_probabilities, check_room

MASKINGS = ("groups", "groups_as_released", "single")


@dataclass(frozen=True)
class InterBertSampling:
    """How samples are made; defaults are the paper's masks in the release's lengths.

    Attributes:
        max_pieces: text is cut at its end to so many pieces, [CLS] and [SEP] counted.
        max_regions: regions of the highest class score that are kept, in the order of the record; IMG is not counted.
            36 is what the release pre-trains with, 100 what it fine-tunes with.
        masking: "groups": segments of words and regions with what overlaps them, of the paper; "groups_as_released":
            one span of pieces and such regions, the release's `--span_mask`; "single": ViLBERT's, the release without
            that flag.
        word_probability, region_probability: how often a word or region is an anchor of a group, or, with "single", is
            predicted; None for what was published, 0.1 of anchors and 0.15. The released span has no such number.
        mismatched_probability: of a caption that is another image's, never one of the same image.
        conditional_masking: each pair makes two rows, one whose regions alone are masked beside the whole text, and
            one whose words alone are (the release's `--cond_mask`, which fails there: its first pass has no labels and
            hides the regions from the second).
    """

    max_pieces: int = 36
    max_regions: int = 36
    masking: str = "groups"
    word_probability: float | None = None
    region_probability: float | None = None
    mismatched_probability: float = 0.5
    conditional_masking: bool = False

    def __post_init__(self) -> None:
        check_room(self, "max_pieces", 3)
        check_room(self, "max_regions", 1)
        check_choice(self, "masking", MASKINGS)
        given = [name for name in ("word_probability", "region_probability") if getattr(self, name) is not None]
        check_probabilities(self, *given, "mismatched_probability")
        if self.masking == "groups_as_released" and self.word_probability is not None:
            raise ValueError(
                "InterBertSampling: word_probability has no effect on the one span of masking 'groups_as_released'; "
                "leave it out, or choose another masking"
            )
