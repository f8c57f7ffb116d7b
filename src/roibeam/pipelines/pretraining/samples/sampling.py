"""Settings of the samples of each system, which `--set sampling.` changes, of batches, and the draws of matching pairs.

No torch: wrong settings are refused at once. A pair is drawn before anything is masked, and does not change the masks:
a mask that is more common in one kind of pair would give the kind away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from roibeam.pipelines.data.compatibility import check_choices, check_least, check_probabilities

if TYPE_CHECKING:
    import numpy as np

    from roibeam.pipelines.data.captions.corpus import Corpus


@dataclass(frozen=True)
class DataConfig:
    """Batch settings of any system.

    Attributes:
        batch_size: captions per micro-batch and process; rows of text alone come on top.
        workers: processes that make batches ahead; 0 makes them in the one that trains. Changes nothing but the time.
        share: of the captioned images, drawn by `share_seed`; the others are left out. A smaller share lies inside a
            larger one of the same seed, so that runs on 25, 50 and 100 % differ in what is added only.
        fixed_masks: every epoch, and evaluation, draws the masks of epoch 0: for checking that a model can over-fit.
        texts_per_caption: rows of text alone for each caption, in a run with a text corpus.
        max_tokens: words and regions of a micro-batch, padding counted; 0 = any number. The captions of a step stay the
            same; those of alike lengths share a micro-batch, as many as the budget allows and at most `batch_size`.
        validation_captions: of a run with held-out captions, about how many of them each evaluation uses: all of as
            many images, the same ones each time; 0 = all.
        validation_retrieval: of their images, how many each evaluation searches through with all of their captions,
            both ways; the cost grows with the square. 0 = no search.
    """

    batch_size: int = 64
    workers: int = 0
    share: float = 1.0
    share_seed: int = 0
    fixed_masks: bool = False
    texts_per_caption: float = 1.0
    max_tokens: int = 0
    validation_captions: int = 1000
    validation_retrieval: int = 0

    def __post_init__(self) -> None:
        check_least(self, batch_size=1, max_tokens=0, validation_captions=0, workers=0, share_seed=0)
        if self.validation_retrieval < 0 or self.validation_retrieval == 1:
            raise ValueError(
                f"DataConfig: validation_retrieval must be 0, or 2 images or more, got {self.validation_retrieval}"
            )
        if not 0 < self.share <= 1:
            raise ValueError(f"DataConfig: share must be above 0 and at most 1, got {self.share}")
        if not 0.001 <= self.texts_per_caption <= 1000:
            raise ValueError(
                f"DataConfig: texts_per_caption must be in 0.001..1000, got {self.texts_per_caption}; for none, name "
                f"no text corpus"
            )


_PROBABILITIES = (
    "word_probability", "region_probability", "word_masked_share", "region_masked_share", "mismatched_probability",
)  # fmt: skip
NEGATIVES = ("caption", "image", "caption_or_image")


class PairRows(NamedTuple):
    """Rows of the corpus whose caption and whose image are in one row of a batch."""

    caption_row: int
    image_row: int
    matched: bool


def draw_pair(
    corpus: Corpus, row: int, random: np.random.Generator, *, mismatched_probability: float, negatives: str = "caption"
) -> PairRows:
    """The pair of `row`, or, of this probability, one that does not belong together.

    `negatives` (of `NEGATIVES`) is what of it is another image's, each row of other images as likely;
    "caption_or_image" replaces one or the other, equally often. ValueError if there is no caption of another image.
    """
    if random.random() >= mismatched_probability:
        return PairRows(row, row, True)
    other = corpus.draw_row_of_another_image(row, random)
    if negatives == "image" or (negatives == "caption_or_image" and random.random() < 0.5):
        return PairRows(row, other, False)
    return PairRows(other, row, False)


def draw_second_caption(
    corpus: Corpus, row: int, random: np.random.Generator, *, mismatched_probability: float
) -> PairRows:
    """Another caption for the image of `row`: one of its others, each as likely, or a mismatched one of another image.

    The only caption of its image has no second one, so it always stands with one of another image. ValueError if there
    is none.
    """
    matched = random.random() >= mismatched_probability
    own = corpus.rows_of_image(row)
    if matched and len(own) > 1:
        others = own[own != row]
        return PairRows(int(others[random.integers(len(others))]), row, True)
    return PairRows(corpus.draw_row_of_another_image(row, random), row, False)


@dataclass(frozen=True)
class ImageBertSampling:
    """Sample settings; defaults are the paper's, as far as it gives them.

    Attributes:
        max_pieces: text is cut at its end to so many pieces, [CLS] and [SEP] counted, the model's last [SEP] too where
            it has one. 44 is what 100 regions leave of 144 (section 5.1).
        max_regions: those of highest score ("top-100 ranked objects", section 5.3; its ablation has 36); 0 = all.
        word_probability, region_probability: how often a piece or region is predicted.
        word_masked_share: how many of the predicted pieces become [MASK]; half of the others become random ones.
        region_masked_share: how many of the predicted regions are hidden; the others stay as they are.
        mismatched_probability: how often caption and image do not belong together, for a model with a match head.
            Section 4.3 does not give it.
        negatives: the part of such a pair that is another image's, see `draw_pair`; the paper has both kinds, without
            their shares.
    """

    max_pieces: int = 44
    max_regions: int = 100
    word_probability: float = 0.15
    region_probability: float = 0.15
    word_masked_share: float = 0.8
    region_masked_share: float = 0.9
    mismatched_probability: float = 0.5
    negatives: str = "caption_or_image"

    def __post_init__(self) -> None:
        check_probabilities(self, *_PROBABILITIES)
        check_choices(self, negatives=NEGATIVES)
        check_least(self, max_pieces=4, max_regions=0)


MASKINGS = ("groups", "groups_as_released", "single")


@dataclass(frozen=True)
class InterBertSampling:
    """Sample settings; defaults are the paper's masks in the release's lengths.

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
        check_least(self, max_pieces=3, max_regions=1)
        check_choices(self, masking=MASKINGS)
        given = [name for name in ("word_probability", "region_probability") if getattr(self, name) is not None]
        check_probabilities(self, *given, "mismatched_probability")
        if self.masking == "groups_as_released" and self.word_probability is not None:
            raise ValueError(
                "InterBertSampling: word_probability has no effect on the one span of masking 'groups_as_released'; "
                "leave it out, or choose another masking"
            )


OVERLAPPING_REGIONS = ("kept", "hidden", "uncounted")


@dataclass(frozen=True)
class ViLbertSampling:
    """Sample settings; defaults are the first release's. (There a mismatched caption may be the image's own.)

    Attributes:
        max_pieces: text is cut at its end to so many pieces, [CLS] and [SEP] counted.
        max_regions: regions of the highest class score that are kept, in the order of the record; IMG is not counted.
        word_probability, region_probability: how often a piece of a word or a region is predicted. Of the pieces 80 %
            become [MASK], 10 % random ones; of the regions 90 % are hidden.
        mismatched_probability: of a caption and an image that do not belong together; 0 is the multi-task release's
            `--objective 2`, whose model has no match head.
        negatives: what of such a pair is another image's: "caption" (the releases), "caption_or_image" (the paper),
            equally often, or "image".
        overlapping_regions: regions with an IoU above 0.4 to a predicted one: "kept" as they are (first release),
            "hidden" with a hidden one (as in arXiv:1912.02315), or seen but not counted where IMG is averaged,
            "uncounted" (the code of that paper).
    """

    max_pieces: int = 36
    max_regions: int = 36
    word_probability: float = 0.15
    region_probability: float = 0.15
    mismatched_probability: float = 0.5
    negatives: str = "caption"
    overlapping_regions: str = "kept"

    def __post_init__(self) -> None:
        check_least(self, max_pieces=3, max_regions=1)
        check_probabilities(self, "word_probability", "region_probability", "mismatched_probability")
        check_choices(self, negatives=NEGATIVES, overlapping_regions=OVERLAPPING_REGIONS)


TASK_TEXT = "task_text"
TEXT_FORMS = ("two_captions", "one_caption", "words_only", TASK_TEXT)
CUTS = ("longer_end", "release_front")
ALIGNED = ("none", "first_piece", "release")
ALL, NAMED = "all", "named"


@dataclass(frozen=True)
class VisualBertSampling:
    """Sample settings; defaults are the release's on COCO, but for `cut`.

    Attributes:
        text_form: "two_captions", the paper's second objective; "one_caption", which belongs to the image or not (the
            release with two_sentence off); "words_only", one caption and no question whether it fits; "task_text",
            pre-training on a task's own text, see `TaskTexts`: VQA's question and one of its answers in one text,
            VCR's as two, NLVR2's statement. A model with a match head predicts whether VCR's choice is right and
            NLVR2's statement true, as in the release; one without learns words alone, as in the paper.
        max_pieces: most pieces of the text, [CLS] and [SEP] counted.
        cut: pieces that a longer pair drops. "longer_end": the last piece of the longer caption, as in BERT.
            "release_front": the release's `perform_truncate`, which cuts both from the front and takes more of B than
            is too much; B may be gone, and the rest may still be longer than `max_pieces`. One text alone is cut at its
            end.
        max_regions: those of highest score; 0 = all of the record.
        with_regions: False is the ablation that reads the captions alone ("w/o grounded pre-training", C1).
        box_numbers: six numbers of its box stand behind each feature, as the release does for Flickr30k; the model is
            that much wider.
        aligned_words: of VCR's texts, whose tags name boxes: "first_piece" adds the position of each such word's first
            piece to the box, as the release means to, by the model's `alignment`; "release" that of the word's
            number, by its slip, which is another piece behind a word of several; "none" nothing. The store's regions
            must be VCR's boxes.
        told_classes: the model reads the class of each region (`num_region_classes`), as R2C's does; they are in
            the file of `--objects`.
        object_names: a file with the names of these classes, one a line; "" for those of the files, see `ImageObjects`.
        whole_region: the image as a whole is the first region, of class 0, as in R2C. From photos the encoder makes its
            feature; else it is the one that the store has of it, or the mean of the row's regions.
        shown_boxes: of VCR's texts, "all" boxes of the image, or those that question, answers and rationales have
            "named", as R2C and the release do.
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
        check_choices(self, text_form=TEXT_FORMS, cut=CUTS, aligned_words=ALIGNED, shown_boxes=(ALL, NAMED))
        if self.aligned_words != "none" and not (self.text_form == TASK_TEXT and self.with_regions):
            raise ValueError(
                f"VisualBertSampling: aligned_words={self.aligned_words} is of a task's texts with regions, got "
                f"text_form={self.text_form}, with_regions={str(self.with_regions).lower()}; leave it at none"
            )
        if self.shown_boxes == NAMED and (self.text_form != TASK_TEXT or self.max_regions):
            raise ValueError(
                f"VisualBertSampling: shown_boxes={NAMED} keeps all boxes that a task's texts name; got "
                f"text_form={self.text_form}, max_regions={self.max_regions}"
            )
        if (self.told_classes or self.whole_region) and not self.with_regions:
            raise ValueError("VisualBertSampling: told_classes and whole_region are of regions, got with_regions=false")
        if self.object_names and not self.told_classes:
            raise ValueError("VisualBertSampling: object_names is of told_classes; set that, or leave it out")
        check_probabilities(self, "word_probability", "word_masked_share", "mismatched_probability")
        check_least(self, max_pieces=5, max_regions=0)


@dataclass(frozen=True)
class VLBertSampling:
    """Sample settings; defaults are the release's.

    Attributes:
        max_elements: text pieces + whole image + regions kept, cut from the longer side (SEQ_LEN, [END] not counted);
            0 = no cut. Text is always cut to the positions the model has.
        word_probability, region_probability: how often a word or region is predicted.
        word_masked_share: how many of the predicted words become [MASK]; half of the others become random ones.
        region_masked_share: how many of the predicted regions are hidden.
        mismatched_probability: how often the caption is another image's, for a model with a relationship head; the
            release draws any other row of its data, which may be of the same image.
        min_text_words: whole words that a row of text alone has at least: lines that follow join it (MIN_SEQ_LEN).
        max_text_pieces: where a row of text alone is cut (SEQ_LEN of the second data set).
    """

    max_elements: int = 64
    word_probability: float = 0.15
    region_probability: float = 0.15
    word_masked_share: float = 0.8
    region_masked_share: float = 0.9
    mismatched_probability: float = 0.5
    min_text_words: int = 64
    max_text_pieces: int = 64

    def __post_init__(self) -> None:
        check_least(self, min_text_words=1, max_text_pieces=1)
        if self.max_elements and self.max_elements < 4:
            raise ValueError(f"VLBertSampling: max_elements must be 0 or at least 4, got {self.max_elements}")
        check_probabilities(self, *_PROBABILITIES)
