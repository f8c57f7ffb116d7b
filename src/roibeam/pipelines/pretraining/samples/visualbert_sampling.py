"""The settings of VisualBERT's samples, which `--set sampling.` changes. No torch: a wrong one is said at once."""

from __future__ import annotations

from dataclasses import dataclass

from roibeam.pipelines.data.fit import check_choice, check_probabilities

TASK_TEXT = "task_text"
TEXT_FORMS = ("two_captions", "one_caption", "words_only", TASK_TEXT)
CUTS = ("longer_end", "release_front")
ALIGNED = ("none", "first_piece", "release")
ALL, NAMED = "all", "named"


@dataclass(frozen=True)
class VisualBertSampling:
    """How samples are made; defaults are the release's on COCO, but for `cut`.

    Attributes:
        text_form: "two_captions", the paper's second objective; "one_caption", which belongs to the image or not (the
            release with two_sentence off); "words_only", one caption and no question whether it fits; "task_text",
            pre-training on a task's own text, see `TaskTexts`: VQA's question and one of its answers in one text,
            VCR's as two, NLVR2's statement. A model with a match head is asked whether VCR's choice is right and
            NLVR2's statement true, as in the release; one without learns words alone, as the paper says.
        max_pieces: most pieces of the text, [CLS] and [SEP] counted.
        cut: what a longer pair loses. "longer_end": the last piece of the longer caption, one by one, as BERT does.
            "release_front": the release's `perform_truncate`, which cuts both from the front and takes more of B than
            is too much; B may be gone, and the rest may still be longer than `max_pieces`. One text alone is cut at its
            end.
        max_regions: those of highest score; 0 = all of the record.
        with_regions: False is the ablation that reads the captions alone ("w/o grounded pre-training", C1).
        box_numbers: six numbers of its box stand behind each feature, as the release does for Flickr30k; the model is
            that much wider.
        aligned_words: of VCR's texts, whose tags name boxes: "first_piece" adds the position of each such word's first
            piece to the box, as the release means to and the model's `alignment` says; "release" that of the word's
            number, by its slip, which is another piece behind a word of several; "none" nothing. The store's regions
            must be VCR's boxes.
        told_classes: the model is told the class of each region (`num_region_classes`), as R2C's are; they are read
            where `--objects` says.
        object_names: a file with the names of these classes, one a line; "" for those of the files, see `ImageObjects`.
        whole_region: the image as a whole is the first region, of class 0, as in R2C. From photos the encoder makes its
            feature; else it is the one that the store has of it, or the mean of those that are shown.
        shown_boxes: of VCR's texts, "all" boxes of the image, or those that question, answers and rationales have
            "named", as R2C and the release show them.
        word_probability: how often a piece is predicted.
        word_masked_share: how many of the predicted pieces become [MASK]; half of the others become random ones.
        mismatched_probability: how often the second caption, or the one, is of another image.
    """

    text_form: str = "two_captions"
    max_pieces: int = 128
    cut: str = "longer_end"
    max_regions: int = 0
    with_regions: bool = True
    box_numbers: bool = False
    aligned_words: str = "none"
    told_classes: bool = False
    object_names: str = ""
    whole_region: bool = False
    shown_boxes: str = ALL
    word_probability: float = 0.15
    word_masked_share: float = 0.8
    mismatched_probability: float = 0.5

    def __post_init__(self) -> None:
        check_choice(self, "text_form", TEXT_FORMS)
        check_choice(self, "cut", CUTS)
        check_choice(self, "aligned_words", ALIGNED)
        check_choice(self, "shown_boxes", (ALL, NAMED))
        if self.aligned_words != "none" and not (self.text_form == TASK_TEXT and self.with_regions):
            raise ValueError(
                f"VisualBertSampling: aligned_words={self.aligned_words} is of a task's texts with regions, got "
                f"text_form={self.text_form}, with_regions={str(self.with_regions).lower()}; leave it at none"
            )
        if self.shown_boxes == NAMED and (self.text_form != TASK_TEXT or self.max_regions):
            raise ValueError(
                f"VisualBertSampling: shown_boxes={NAMED} shows all boxes that a task's texts name; got "
                f"text_form={self.text_form}, max_regions={self.max_regions}"
            )
        if (self.told_classes or self.whole_region) and not self.with_regions:
            raise ValueError("VisualBertSampling: told_classes and whole_region are of regions, got with_regions=false")
        if self.object_names and not self.told_classes:
            raise ValueError("VisualBertSampling: object_names is of told_classes; set that, or leave it out")
        check_probabilities(self, "word_probability", "word_masked_share", "mismatched_probability")
        if self.max_pieces < 5 or self.max_regions < 0:
            raise ValueError(
                f"VisualBertSampling: max_pieces must be at least 5 and max_regions not negative, got "
                f"{self.max_pieces} and {self.max_regions}"
            )
