"""Plan and candidate texts of the toy web's pages: kind, site, language and scene; place and truth of each text.

Phrases that are not about a picture stand here too: site names, advertisements, other languages.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from roibeam.pipelines.toyworld.captions import NUMBERS, OPENINGS
from roibeam.pipelines.toyworld.picture import Picture
from roibeam.pipelines.toyworld.randomness import IntegerStream, Weights
from roibeam.pipelines.toyworld.truth import KnownScene, parse_caption
from roibeam.pipelines.toyworld.world import CATEGORIES

# Kind of a page -> how many of 100 pages.
KINDS = {
    "good": 37,  # a natural picture, a true caption in one place or several
    "mixed": 6,  # as good, but the alternative text is another picture's
    "copied": 6,  # as good, and the picture is on three pages
    "wrong": 10,  # texts of another picture
    "swapped": 6,  # true texts in which one noun was exchanged
    "spam": 6,  # texts that sell
    "junk": 6,  # file names, dates, addresses, "click to enlarge"
    "unnatural": 7,  # logos, charts, screenshots, banners, with well written texts
    "small": 5,  # a side of 300 pixels or less
    "foreign": 6,  # in another language
    "shared": 3,  # one text for more than ten pictures
    "evaluation": 1,  # the picture is a test picture of the toy world
    "opted out": 1,  # <meta name="robots" content="noai">
}
LANGUAGES = ("de", "fr", "es", "ru")
NUM_SITES = 40
COPIES = 3  # pages of one "copied" picture
SHARED_BY = 14  # pages of one "shared" text
# Scenes of the web are numbered from here: none of them is a picture of the world (or a text of its corpus).
FIRST_WEB_SCENE = 1 << 41
_PURPOSE = 11
_WEIGHTS = Weights(tuple(KINDS.values()))
_NAMES = tuple(KINDS)


@dataclass(frozen=True)
class PagePlan:
    """
    Attributes:
        number: of the page, from 0.
        kind: one of `KINDS`.
        site: 0 to `NUM_SITES` - 1.
        language: "en" or one of `LANGUAGES`.
        scene: index of the scene on the main picture.
        copy: 0, or which copy of a picture that another page has too.
        group: number of the shared text, of pages of that kind.
    """

    number: int
    kind: str
    site: int
    language: str
    scene: int
    copy: int = 0
    group: int = 0


def plan_pages(seed: int, num_pages: int, evaluation_scenes: tuple[int, ...]) -> Iterator[PagePlan]:
    """Yields the pages in order: the first ones do not depend on how many there are.

    Args:
        evaluation_scenes: test pictures of the toy world; pages about them take these in turn. Where there are none,
            such pages are good ones.
    """
    seen = dict.fromkeys(KINDS, 0)
    first_copy = 0
    for number in range(num_pages):
        stream = IntegerStream(seed, _PURPOSE, number)
        kind = _NAMES[stream.weighted(_WEIGHTS)]
        if kind == "evaluation" and not evaluation_scenes:
            kind = "good"
        site, language, scene = stream.below(NUM_SITES), stream.pick(LANGUAGES), FIRST_WEB_SCENE + number
        count, copy = seen[kind], 0
        seen[kind] += 1
        if kind == "copied":
            copy = count % COPIES
            first_copy = first_copy if copy else scene
            scene = first_copy
        elif kind == "evaluation":
            scene = evaluation_scenes[count % len(evaluation_scenes)]
        yield PagePlan(number, kind, site, language if kind == "foreign" else "en", scene, copy, count // SHARED_BY)


SITE_WORDS = ("harbor", "garden", "morning", "paper", "river", "maple", "corner", "window", "copper", "meadow")
SITE_ENDINGS = ("journal", "notes", "weekly", "diary")
SENTENCES = (
    "We spent the whole weekend walking through the old town and came home late on Sunday evening.",
    "My sister asked me to write down how it all began, so here is the story from the start.",
    "The weather was better than the forecast had promised, and nobody needed a coat.",
    "After lunch we met a few friends who had arrived by train the day before.",
    "It takes some patience, but the result is worth every minute that you put into it.",
    "Last year the council decided to open the place to visitors during the summer months.",
    "You will find directions and opening hours at the end of this article.",
    "Several readers have written to us about the article of last week, and we thank them all.",
    "There is a small café around the corner where they bake their own bread.",
    "The children wanted to stay longer, but the last bus leaves at seven.",
    "I have been collecting these stories for many years, and I still enjoy every one of them.",
    "Nobody remembers who built it, but everybody in the village has a theory.",
    "If you plan to go there, take the early ferry and bring something to eat.",
    "The workshop begins on the first Monday of each month and is open to beginners.",
    "In the second part we look at what has changed since then and why it matters.",
    "She learned the craft from her grandfather, who had learned it from his.",
    "We tried three different recipes before we found one that all of us liked.",
    "Most of the work was done by volunteers who gave up their evenings for it.",
    "The market is busiest before noon, when people come in from the farms.",
    "Thank you for reading, and please tell your friends about our little site.",
    "At first it seemed too difficult, and then suddenly everything fell into place.",
    "The new exhibition shows what everyday life looked like a hundred years ago.",
)
TAILS = (
    "", "", "", "", " on a quiet afternoon", " during our last visit", " as seen from the path",
    " early in the morning", " just before the rain came", " at the end of the day",
)  # fmt: skip
NAVIGATION = (
    "Home", "News", "Articles", "Archive", "Gallery", "Recipes", "Travel", "People", "Events", "Calendar", "Shop",
    "About us", "Contact", "Privacy policy", "Terms of use", "Imprint", "Newsletter", "Search", "Log in", "Help",
)  # fmt: skip
SPAM = (
    "BUY NOW cheap {thing} best price free shipping limited offer",
    "{thing} sale 70% off discount coupon code order online today",
    "cheap {thing} for sale, lowest price guaranteed, buy one get one free $19.99",
    "casino bonus free spins play online slots win cash now",
    "hot singles in your area click here xxx free video",
    "replica watches cheap viagra online pharmacy no prescription",
    "make money fast from home click here to subscribe now!!!",
    "{thing} {thing} {thing} best {thing} cheap {thing} buy {thing}",
)
JUNK = (
    "IMG_{n}.jpg", "DSC0{n}", "image{n}", "photo-{n}-1024x768", "https://example.com/images/{n}.jpg",
    "2019-07-{d} 14:0{k}", "Click to enlarge", "click here to view full size image", "{d} July 2018",
    "Image may contain: outdoor", "$ {n}.00",
    "contact us at info@example.com", "© 2019 all rights reserved", "no description available", "800 x 600",
    "photo", "{n}", "Share on Facebook", "untitled", "<b>loading...</b>",
)  # fmt: skip
SHARED = (
    "the best pictures that our readers sent us this month",
    "a lovely day out with family and friends in the country",
    "a picture of a tree from the yearly contest of the garden club",
    "one of the many beautiful places that you can visit here",
    "a red ball and a blue box in our gallery of the week",
    "see more of our favourite moments of the year in the album",
)
UNNATURAL = {
    "logo": ("the logo of the {site} in two colours", "company logo with a round emblem and the name in large letters"),
    "chart": (
        "a bar chart of visitors by month for the last year",
        "sales by quarter shown as coloured bars with labels",
    ),
    "screenshot": (
        "a screenshot of the settings page of the program",
        "a window with several lines of text and two buttons",
    ),
    "banner": (
        "a banner that announces the summer festival in the park",
        "the title of our new series in large letters",
    ),
    "diagram": (
        "a diagram of how the three parts work together",
        "boxes and arrows that show the steps of the process",
    ),
}
FOREIGN = {
    "de": (
        "Am Wochenende sind wir mit der ganzen Familie durch die alte Stadt gegangen und spät nach Hause gekommen.",
        "Das Wetter war besser als vorhergesagt, und niemand brauchte einen Mantel.",
        "Nach dem Mittagessen trafen wir einige Freunde, die mit dem Zug angekommen waren.",
        "Die Öffnungszeiten und den Weg dorthin finden Sie am Ende des Artikels.",
        "Ein roter Ball liegt neben einer braunen Kiste auf der Wiese.",
        "Ein kleines Haus hinter einem großen Baum am frühen Morgen.",
    ),
    "fr": (
        "Nous avons passé tout le week-end dans la vieille ville et nous sommes rentrés tard dimanche soir.",
        "Le temps était meilleur que prévu, et personne n'avait besoin d'un manteau.",
        "Après le déjeuner, nous avons retrouvé des amis qui étaient arrivés par le train.",
        "Vous trouverez les horaires d'ouverture et le chemin à la fin de cet article.",
        "Un ballon rouge à côté d'une boîte brune dans l'herbe.",
        "Une petite maison derrière un grand arbre tôt le matin.",
    ),
    "es": (
        "Pasamos todo el fin de semana paseando por el casco antiguo y volvimos tarde el domingo por la noche.",
        "El tiempo fue mejor de lo previsto y nadie necesitó un abrigo.",
        "Después de comer nos encontramos con unos amigos que habían llegado en tren.",
        "Al final de este artículo encontrará los horarios y la manera de llegar.",
        "Una pelota roja al lado de una caja marrón sobre la hierba.",
        "Una casa pequeña detrás de un árbol grande por la mañana.",
    ),
    # ruff: noqa: RUF001
    "ru": (
        "Мы провели все выходные в старом городе и вернулись домой поздно вечером в воскресенье.",
        "Погода была лучше, чем обещали, и никому не понадобилось пальто.",
        "После обеда мы встретились с друзьями, которые приехали на поезде.",
        "Часы работы и дорогу туда вы найдёте в конце этой статьи.",
        "Красный мяч лежит рядом с коричневой коробкой на траве.",
        "Маленький дом за большим деревом ранним утром.",
    ),
}


def site_name(site: int) -> str:
    """ "harbor journal" of site 0."""
    return f"{SITE_WORDS[site % len(SITE_WORDS)]} {SITE_ENDINGS[site // len(SITE_WORDS) % len(SITE_ENDINGS)]}"


SOURCES = ("alt", "title", "figcaption", "og:description", "sentence")
# How many of 100 pages have a text there; the others have nothing, or junk in "alt".
_CHANCES = {"alt": 80, "title": 22, "figcaption": 60, "og:description": 40, "sentence": 45}
_FEWEST_WORDS = 5
_TRIES = 40


@dataclass(frozen=True)
class PageText:
    """A text of a page; `why` is the fault of one that is not good."""

    source: str
    text: str
    good: bool
    why: str = ""


def page_texts(
    plan: PagePlan, stream: IntegerStream, picture: Picture, other: Callable[[int], Picture], sort: str
) -> tuple[PageText, ...]:
    """Makes the texts of a page.

    Args:
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
        return (PageText("alt", wrong, False, "wrong"), *true)
    if plan.kind in ("spam", "junk", "shared", "unnatural", "foreign"):
        found = [_empty_text(plan, stream, picture, sort) for _ in sources]
        return _placed(sources, found, plan.kind)
    texts = list(_placed(sources, [_true_text(stream, picture) for _ in sources], ""))
    if stream.percent(30):  # a file name in place of the alternative text; the others are as they were
        others = [text for text in texts if text.source != "alt"]
        texts = [PageText("alt", _junk(stream), False, "junk"), *others] if others else texts
    return tuple(texts)


def _sources(stream: IntegerStream) -> list[str]:
    """Draws the places of texts, at least one."""
    found = [source for source in SOURCES if stream.percent(_CHANCES[source])]
    return found or ["figcaption"]


def _placed(sources: Sequence[str], texts: Sequence[str], why: str) -> tuple[PageText, ...]:
    both = zip(sources, texts, strict=True)
    return tuple(PageText(source, text, not why, why) for source, text in both)


def _true_text(stream: IntegerStream, picture: Picture) -> str:
    return _dressed(stream, _sentences(stream, picture))


def _sentences(stream: IntegerStream, picture: Picture) -> list[str]:
    """Draws one or two captions, of at least five words together."""
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
    """Joins sentences as people write them: with a tail, a capital, a full stop."""
    text = stream.pick((", and ", " with ", " next to ")).join(sentences) if len(sentences) > 1 else sentences[0]
    text += stream.pick(TAILS)
    if stream.percent(40):
        text = text[0].upper() + text[1:] + ("." if stream.percent(60) else "")
    return text


def _false_text(
    kind: str, stream: IntegerStream, picture: Picture, known: KnownScene, other: Callable[[int], Picture]
) -> str:
    """Makes a text with no sentence true of the picture ("wrong"), or with one that is not ("swapped")."""
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
    """Exchanges a category for one that is not in the picture, with its article; None if none can be."""
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
