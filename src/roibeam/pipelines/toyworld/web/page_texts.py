"""The candidate texts of a page: where each stands, and whether it is true of the main picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from roibeam.pipelines.toyworld.captions import NUMBERS, OPENINGS
from roibeam.pipelines.toyworld.picture import Picture
from roibeam.pipelines.toyworld.randomness import IntegerStream
from roibeam.pipelines.toyworld.truth import KnownScene, parse_caption
from roibeam.pipelines.toyworld.web.page_plan import PagePlan
from roibeam.pipelines.toyworld.web.phrases import FOREIGN, JUNK, SHARED, SPAM, TAILS, UNNATURAL, site_name
from roibeam.pipelines.toyworld.world import CATEGORIES

SOURCES = ("alt", "title", "figcaption", "og:description", "sentence")
# How many of 100 pages have a text there; what the others have is nothing, or junk in "alt".
_CHANCES = {"alt": 80, "title": 22, "figcaption": 60, "og:description": 40, "sentence": 45}
_FEWEST_WORDS = 5
_TRIES = 40


@dataclass(frozen=True)
class CandidateText:
    """`why` says what is wrong with a text that is not good; `claims` are the toy world's sentences in it."""

    source: str
    text: str
    good: bool
    why: str = ""


def page_texts(
    plan: PagePlan, stream: IntegerStream, picture: Picture, other: Callable[[int], Picture], sort: str
) -> tuple[CandidateText, ...]:
    """
    Args:
        picture: of the page's scene.
        other: another picture, a new one for each number.
        sort: of the picture on a page of the kind "unnatural", one of `UNNATURAL`.
    """
    sources = _sources(stream)
    known = KnownScene(picture.scene, picture.relations)
    if plan.kind in ("wrong", "swapped"):
        found = [_false_text(plan.kind, stream, picture, known, other) for _ in sources]
        return _placed(sources, found, plan.kind)
    if plan.kind == "mixed":
        wrong = _false_text("wrong", stream, picture, known, other)
        rest = [source for source in sources if source != "alt"] or ["figcaption"]
        true = _placed(rest, [_true_text(stream, picture) for _ in rest], "")
        return (CandidateText("alt", wrong, False, "wrong"), *true)
    if plan.kind in ("spam", "junk", "shared", "unnatural", "foreign"):
        found = [_empty_text(plan, stream, picture, sort) for _ in sources]
        return _placed(sources, found, plan.kind)
    texts = list(_placed(sources, [_true_text(stream, picture) for _ in sources], ""))
    if stream.percent(30):  # a file name in place of the alternative text; the others are as they were
        others = [text for text in texts if text.source != "alt"]
        texts = [CandidateText("alt", _junk(stream), False, "junk"), *others] if others else texts
    return tuple(texts)


def _sources(stream: IntegerStream) -> list[str]:
    """At least one."""
    found = [source for source in SOURCES if stream.percent(_CHANCES[source])]
    return found or ["figcaption"]


def _placed(sources: Sequence[str], texts: Sequence[str], why: str) -> tuple[CandidateText, ...]:
    both = zip(sources, texts, strict=True)
    return tuple(CandidateText(source, text, not why, why) for source, text in both)


def _true_text(stream: IntegerStream, picture: Picture) -> str:
    return _dressed(stream, _sentences(stream, picture))


def _sentences(stream: IntegerStream, picture: Picture) -> list[str]:
    """One or two captions, of at least five words together."""
    texts = [_plain(caption.text) for caption in picture.captions]
    first = stream.pick(texts)
    rest = [text for text in texts if text != first and " is " not in text]
    long = len(first.split()) >= _FEWEST_WORDS
    if rest and " is " not in first and (not long or stream.percent(45)):
        return [first, stream.pick(rest)]
    return [first]


def _plain(caption: str) -> str:
    for opening in (*OPENINGS[1:], "there are "):
        caption = caption.removeprefix(opening)
    return caption


def _dressed(stream: IntegerStream, sentences: Sequence[str]) -> str:
    """As people write it: joined, with a tail, a capital, a full stop."""
    text = stream.pick((", and ", " with ", " next to ")).join(sentences) if len(sentences) > 1 else sentences[0]
    text += stream.pick(TAILS)
    if stream.percent(40):
        text = text[0].upper() + text[1:] + ("." if stream.percent(60) else "")
    return text


def _false_text(
    kind: str, stream: IntegerStream, picture: Picture, known: KnownScene, other: Callable[[int], Picture]
) -> str:
    """Of which no sentence is true of the picture ("wrong"), or one is not ("swapped")."""
    for number in range(_TRIES):
        if kind == "wrong":
            sentences = _sentences(stream, other(number))
            if any(_is_true(sentence, known) for sentence in sentences):
                continue
        else:
            sentences = _sentences(stream, picture)
            changed = _with_another_noun(stream, sentences[0], picture)
            if changed is None or _is_true(changed, known):
                continue
            sentences = [changed, *sentences[1:]]
        return _dressed(stream, sentences)
    raise AssertionError(f"no {kind} text in {_TRIES} tries")


def _is_true(sentence: str, known: KnownScene) -> bool:
    return parse_caption(sentence).is_true_of(known)


def _with_another_noun(stream: IntegerStream, sentence: str, picture: Picture) -> str | None:
    """One category exchanged for one that is not in the picture, the article with it; None if none can be."""
    words = sentence.split(" ")
    if words[0] in NUMBERS.values():  # "two fish" is a plural that looks like a category
        return None
    places = [place for place, word in enumerate(words) if word in CATEGORIES]
    if not places:
        return None
    place = stream.pick(places)
    seen = {thing.category for thing in picture.scene.objects}
    words[place] = stream.pick([name for name in CATEGORIES if name not in seen])
    if place and words[place - 1] in ("a", "an"):
        words[place - 1] = "an" if words[place][0] in "aeiou" else "a"
    return " ".join(words)


def _empty_text(plan: PagePlan, stream: IntegerStream, picture: Picture, sort: str) -> str:
    if plan.kind == "spam":
        return stream.pick(SPAM).format(thing=stream.pick(picture.scene.objects).category)
    if plan.kind == "junk":
        return _junk(stream)
    if plan.kind == "shared":
        return f"{SHARED[plan.group % len(SHARED)]}, part {plan.group + 1}"
    if plan.kind == "foreign":
        return stream.pick(FOREIGN[plan.language])
    return stream.pick(UNNATURAL[sort]).format(site=site_name(plan.site))


def _junk(stream: IntegerStream) -> str:
    number, day, one = stream.between(1000, 9999), stream.between(10, 28), stream.below(10)
    return stream.pick(JUNK).format(n=number, d=day, k=one)
