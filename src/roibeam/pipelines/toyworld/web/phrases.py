"""Words of the toy web that are not about a picture: what sites say, sell, and write in other languages."""

from __future__ import annotations

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
