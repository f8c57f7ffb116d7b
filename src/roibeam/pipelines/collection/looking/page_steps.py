"""Steps 1 to 4 on one page: bytes -> its dominant image with texts, or the reason why it gives none."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from roibeam.pipelines.collection.looking.charset import decode_page
from roibeam.pipelines.collection.looking.document import Document, parse_document
from roibeam.pipelines.collection.looking.dominant_image import dominant_image
from roibeam.pipelines.collection.looking.language import page_language
from roibeam.pipelines.collection.looking.text_rules import clean_text, text_reason
from roibeam.pipelines.collection.page import NOWHERE, Page
from roibeam.pipelines.collection.pair import CandidateImage, CandidateText, PageCandidate, TextSource
from roibeam.pipelines.collection.reasons import Reason
from roibeam.pipelines.collection.thresholds import Thresholds
from roibeam.pipelines.data.download.opt_out import refusal, shown


@dataclass(frozen=True)
class DroppedText:
    """A candidate text that a rule is against, as it was cleaned."""

    source: TextSource
    text: str
    reason: Reason


@dataclass(frozen=True)
class PageOutcome:
    """What became of one page: a candidate, or a reason with a detail for people; and the texts that were dropped."""

    page_url: str
    candidate: PageCandidate | None = None
    reason: Reason | None = None
    detail: str = ""
    dropped_texts: tuple[DroppedText, ...] = ()


def look_into(page: Page, thresholds: Thresholds) -> PageOutcome:
    """The steps in order of cost; the first that is against the page ends it."""
    if len(page.body) > thresholds.page.max_bytes:
        return _dropped(page, Reason.TOO_LARGE, f"{len(page.body):,} bytes")
    if directive := refusal(page.robots):
        return _dropped(page, Reason.PAGE_OPTED_OUT, shown(directive, "X-Robots-Tag"))
    document = parse_document(decode_page(page.body, page.charset), page.url)
    if directive := refusal(document.robots):
        return _dropped(page, Reason.PAGE_OPTED_OUT, shown(directive, "meta robots"))
    found = page_language(document.blocks, thresholds.language)
    if found is None:
        return _dropped(page, Reason.TOO_LITTLE_TEXT, "")
    language, language_score = found
    if language != thresholds.language.language or language_score < thresholds.language.min_score:
        return _dropped(page, Reason.OTHER_LANGUAGE, f"{language} {language_score:.2f}")
    image = dominant_image(document, thresholds.image)
    if image is None:
        has_any = document.og_image is not None or any(tag.urls for tag in document.images)
        return _dropped(page, Reason.NO_DOMINANT_IMAGE if has_any else Reason.NO_IMAGE, "")
    if image.url.startswith(NOWHERE):
        return _dropped(page, Reason.RELATIVE_ADDRESS, "give --base-url")
    return _with_texts(page, document, image, (language, language_score), thresholds)


def _with_texts(
    page: Page, document: Document, image: CandidateImage, language: tuple[str, float], thresholds: Thresholds
) -> PageOutcome:
    """The page's candidate with the texts that pass."""
    kept: dict[str, CandidateText] = {}
    dropped: list[DroppedText] = []
    for candidate in image.texts:
        text = clean_text(candidate.text)
        reason = text_reason(text, thresholds.text, thresholds.language.language)
        if reason is None:
            kept.setdefault(text.casefold(), CandidateText(candidate.source, text))
        else:
            dropped.append(DroppedText(candidate.source, text, reason))
    if not kept:
        worst = ", ".join(sorted({each.reason.value for each in dropped}))
        return PageOutcome(page.url, None, Reason.NO_TEXT, worst or "no candidate text", tuple(dropped))
    robots = "; ".join((*page.robots, *document.robots))[:200]
    chosen = replace(image, texts=tuple(kept.values()))
    return PageOutcome(
        page.url, PageCandidate(page.url, *language, chosen, robots, page.place), dropped_texts=tuple(dropped)
    )


def _dropped(page: Page, reason: Reason, detail: str) -> PageOutcome:
    return PageOutcome(page.url, None, reason, detail)


def outcome_to_json(outcome: PageOutcome) -> dict[str, Any]:
    """Plain data; `outcome_from_json` is the way back."""
    return asdict(outcome)


def outcome_from_json(data: dict[str, Any]) -> PageOutcome:
    found = data["candidate"]
    return PageOutcome(
        data["page_url"],
        None if found is None else candidate_from_json(found),
        None if data["reason"] is None else Reason(data["reason"]),
        data["detail"],
        tuple(
            DroppedText(TextSource(each["source"]), each["text"], Reason(each["reason"]))
            for each in data["dropped_texts"]
        ),
    )


def candidate_from_json(data: dict[str, Any]) -> PageCandidate:
    image = data["image"]
    texts = tuple(CandidateText(TextSource(each["source"]), each["text"]) for each in image["texts"])
    return PageCandidate(**{**data, "image": CandidateImage(**{**image, "texts": texts})})
