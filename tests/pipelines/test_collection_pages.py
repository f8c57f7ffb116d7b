"""Collection, steps 1 to 4: pages of every kind in, an image with texts or a reason out."""

import gzip
import io
import json
import os
import sysconfig
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urljoin

import pytest
from warc_files import write_warc

from roibeam.pipelines.collection import warc_pages
from roibeam.pipelines.collection.document import decode_page, parse_document, plain, web_url
from roibeam.pipelines.collection.page_process import PageProcess
from roibeam.pipelines.collection.page_steps import PageOutcome, clean_text, look_into, outcome_from_json, text_reason
from roibeam.pipelines.collection.page_units import plan_units
from roibeam.pipelines.collection.pairs import NOWHERE, STEP_OF, BrokenPage, Page, Reason, TextSource
from roibeam.pipelines.collection.request import CollectRequest
from roibeam.pipelines.collection.thresholds import LanguageThresholds, PageThresholds, TextThresholds, Thresholds
from roibeam.pipelines.collection.warc_pages import read_warc

LIMITS = Thresholds()
TEXT = "<p>The dog is an animal that people keep at home, and it likes to run in the park every day.</p>"
RUSSIAN = "Это животное, которое люди держат дома, и каждый день оно охотно гуляет в городском парке. "
IMAGE = "<img src=dog.jpg alt='a brown dog running in the park'>"
GOOD = f"<html><body><main>{TEXT}{IMAGE}</main></body></html>"


def look(
    html: str | bytes, *, robots: tuple[str, ...] = (), url: str = "http://a.org/x/", limits: Thresholds = LIMITS
) -> PageOutcome:
    body = html.encode() if isinstance(html, str) else html
    return look_into(Page(url, body, None, robots), limits)


def test_every_reason_belongs_to_one_step() -> None:
    assert set(STEP_OF) == set(Reason)


def test_a_page_gives_its_dominant_image_with_texts_and_sources() -> None:
    page = f"""<head><meta property="og:description" content="All about dogs and their daily walk"></head><body>
      <nav><img src=/logo.png width=400 height=400 alt="the logo of our fine site"></nav>
      <main>{TEXT}<figure><img src="../img/dog.jpg#top" srcset="s.jpg 320w, ../img/large.jpg 1280w" width=640 height=480
      alt="a brown&nbsp;dog running in the park" title="a dog in the park"><figcaption>Photo: A dog runs on green grass
      (photo by Bob)</figcaption></figure><p>Dogs run fast. They like to play with balls.</p></main>"""
    outcome = look(page)
    assert outcome.candidate is not None and outcome_from_json(json.loads(json.dumps(asdict(outcome)))) == outcome
    image = outcome.candidate.image
    assert (image.url, image.found_by) == ("http://a.org/img/large.jpg", "srcset")
    assert (image.declared_width, image.declared_height) == (640, 480)
    assert [(text.source, text.text) for text in image.texts] == [
        (TextSource.ALT, "a brown dog running in the park"),
        (TextSource.FIGCAPTION, "A dog runs on green grass"),
        (TextSource.TITLE, "a dog in the park"),
        (TextSource.OG_DESCRIPTION, "All about dogs and their daily walk"),
        (TextSource.NEAR, "Dogs run fast."),
        (TextSource.NEAR, "They like to play with balls."),
    ]


@pytest.mark.parametrize(
    "page, reason",
    [
        ("<p>hi</p>", Reason.TOO_LITTLE_TEXT),
        ("<p>Der Hund ist ein Tier, das die Menschen zu Hause halten, und er rennt gern jeden Tag im Park.</p>" + IMAGE,
         Reason.OTHER_LANGUAGE),
        (TEXT, Reason.NO_IMAGE),
        (TEXT + "<img src='data:image/png;base64,AAAA'><img src='javascript:alert(1)'><img src='file:///etc/passwd'>",
         Reason.NO_IMAGE),
        (TEXT + "<nav><img src=logo.png></nav><img src=a.jpg width=20 height=20>", Reason.NO_DOMINANT_IMAGE),
        (TEXT + "<img src=a.jpg alt='a wide banner of nothing' width=900 height=90>", Reason.NO_DOMINANT_IMAGE),
        (f"<main><img src=a.jpg alt=IMG_2031.jpg width=500 height=500><h2>Dogs</h2>{TEXT * 3}</main>", Reason.NO_TEXT),
        ("<meta name=robots content='index, noimageai'>" + GOOD, Reason.PAGE_OPTED_OUT),
        ("<meta name=tdm-reservation content=1>" + GOOD, Reason.PAGE_OPTED_OUT),
    ],
)  # fmt: skip
def test_a_page_without_a_pair_says_why(page: str, reason: Reason) -> None:
    assert look(page).reason is reason


@pytest.mark.parametrize(
    "attributes, url",
    [
        ("src='my photo.jpg'", "my%20photo.jpg"),  # as browsers read it
        ("src=' a\n.jpg\t'", "a.jpg"),
        ("src='a\u00a0b.jpg'", "a%C2%A0b.jpg"),
        ("src=s.jpg srcset='s.jpg 300w,l.jpg 1200w'", "l.jpg"),  # no blank behind the comma
        ("src=s.jpg srcset='/w_3,h_2/s.jpg 300w, /w_9,h_6/l.jpg 900w 600h'", "/w_9,h_6/l.jpg"),
        ("src=s.jpg srcset=', m.jpg, l.jpg 2x,'", "l.jpg"),
        ("src=s.jpg srcset='l.jpg,'", "l.jpg"),
        (f"src=s.jpg srcset='{',' * 20_000}'", "s.jpg"),  # in no time
    ],
)
def test_addresses_of_images_are_read_as_browsers_read_them(attributes: str, url: str) -> None:
    found = look(GOOD.replace("src=dog.jpg", attributes)).candidate
    assert found is not None and found.image.url == urljoin("http://a.org/x/", url)


ALT = "alt='a brown dog running in the park'"


@pytest.mark.parametrize(
    "image",
    [
        *(f"<img src=wait.jpg {name}=real.jpg {ALT}>" for name in
          ("data-src", "data-lazy", "data-actualsrc", "data-original", "data-original-src", "data-lazy-src")),
        f"<img src=real.jpg data-lazy=true data-src=1 {ALT}>",  # whether it is lazy, no address
        f"<img src=wait.jpg data-lazy-srcset='s.jpg 300w, real.jpg 900w' {ALT}>",
        f"<picture><source data-srcset='real.jpg 2x'><img src=wait.jpg {ALT}></picture>",
        f"<img src=wait.jpg {ALT}> <noscript><img src=real.jpg {ALT}></noscript>",
        f"<noscript><span><img src=real.jpg {ALT}></span></noscript><img src=wait.jpg width=300 height=300 {ALT}>",
        f"<img src='data:image/gif;base64,AA' {ALT}><noscript><img src=real.jpg></noscript>",
        f"<figure><noscript><img src=real.jpg {ALT}></noscript></figure>",
        f"<img src=real.jpg {ALT}><noscript><img src=counter.php></noscript>",
        f"<amp-img src=real.jpg {ALT} width=16 height=9 layout=responsive></amp-img>",
        f"<amp-img src=s.jpg srcset='real.jpg 900w, s.jpg 300w' {ALT}><noscript><img src=s.jpg></noscript></amp-img>",
    ],
)  # fmt: skip
def test_a_lazy_image_is_taken_from_where_its_real_address_stands(image: str) -> None:
    found = look(GOOD.replace(IMAGE, image)).candidate
    assert found is not None and found.image.url == "http://a.org/x/real.jpg"
    texts = [(each.source, each.text) for each in found.image.texts]
    assert (TextSource.ALT, "a brown dog running in the park") in texts


def test_words_for_browsers_without_scripts_are_no_text_of_the_page() -> None:
    noscript = "<noscript>Please enable scripts <noscript>here</noscript><img src=b.gif><p>at once</noscript>"
    pages = (
        GOOD,
        GOOD.replace("</main>", f"{noscript}</main>"),
        GOOD.replace(IMAGE, f"{IMAGE}<noscript>On</noscript>"),
    )
    assert len({parse_document(page, "http://a.org/x/").text for page in pages}) == 1


def test_a_page_may_opt_out_by_header() -> None:
    assert look(GOOD, robots=("otherbot: noai",)).candidate is not None
    assert look(GOOD, robots=("noai",)).reason is Reason.PAGE_OPTED_OUT


@pytest.mark.parametrize(
    "text, reason",
    [
        ("a golfer sitting at the edge of sand trap head in hands", None),  # the paper's own samples
        ("one year old boy playing with snap puzzles", None),
        ("a young boy with cochlear implant reading a book", None),
        ("two dogs", Reason.TOO_SHORT),
        ("IMG_2031.JPG", Reason.FILE_NAME),
        ("a dog " * 30, Reason.TOO_LONG),
        ("see more dogs at www.dogs.com today", Reason.URL_OR_EMAIL),
        ("write to bob@dogs.org about dogs", Reason.URL_OR_EMAIL),
        ("buy now the best dog food here", Reason.SPAM_WORD),
        ("click here to enlarge the image", Reason.BOILERPLATE),
        ("2019-04-03 12:30 640x480 3 of 20", Reason.NUMBERS),
        ("A DOG RUNS IN THE PARK", Reason.CAPITALS),
        ("dog dog dog dog dog dog park", Reason.REPEATED_WORDS),
        ("<b>a dog</b> runs in the park", Reason.MARKUP),
        ("qwfp zxcvq jluyk ghwmq runs", Reason.UNKNOWN_WORDS),
        ("★ ★ ★ ★ ★ dog ★ ★ ★", Reason.NOISE),
        ("a hot nude girl on the beach", Reason.ADULT_WORD),
    ],
)
def test_text_rules(text: str, reason: Reason | None) -> None:
    assert text_reason(clean_text(text), TextThresholds()) is reason


def test_words_of_the_language_that_is_asked_for_are_known() -> None:
    text = "маленькая собака бежит через тёмный лес"
    assert text_reason(text, TextThresholds(), "ru") is None
    assert text_reason(text, TextThresholds(), "en") is Reason.UNKNOWN_WORDS
    russian = f"<main><p>{RUSSIAN * 3}</p><img src=dog.jpg alt='{text}'></main>"
    asked = look(russian, limits=Thresholds(language=LanguageThresholds(language="ru")))
    assert asked.candidate is not None and asked.candidate.language == "ru"
    assert look(russian).reason is Reason.OTHER_LANGUAGE


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("language.language=zh", "language must be one of ar, bg, .* got 'zh'"),  # no blanks between its words
        ("language.language=DE", "got 'DE'"),
        ("language.min_score=80", "min_score must be 0 to 1, got 80"),
        ("text.min_words=60", "min_words is 60 and max_words 50: no text passes"),
        ("text.max_unknown_share=-1", "max_unknown_share must be 0 to 1"),
        ("picture.max_nsfw=50", "max_nsfw must be 0 to 1.01"),
        ("image.max_declared_aspect=0.5", "must be 1 or more"),
        ("page.max_seconds=0", "max_seconds must be over 0"),
        ("aggregation.max_phash_bits=64", "max_phash_bits must be 0 to 16"),
        ("aggregation.max_images_per_text=0", "must be 1 or more"),
    ],
)
def test_thresholds_that_would_drop_all_or_mean_nothing_are_refused(setting: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        CollectRequest("crawl", Path("out"), set=(setting,)).thresholds()


def test_a_relative_image_of_a_page_without_an_address_is_not_asked_for() -> None:
    assert look(GOOD, url=f"{NOWHERE}a.html").reason is Reason.RELATIVE_ADDRESS
    assert look(GOOD.replace("dog.jpg", "http://a.org/dog.jpg"), url=f"{NOWHERE}a.html").candidate is not None


def test_texts_lose_what_nobody_sees_and_credits() -> None:
    assert clean_text("a\x00 dog\u202e runs\u200b\n fast (Photo: AP)") == "a dog runs fast"
    assert clean_text("Figure 3: a dog on grass | Photo by Bob Smith") == "a dog on grass"


@pytest.mark.parametrize(
    "text",
    [
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \u0628\u0631\u0648\u0645",  # a Persian word of two parts
        "\u0d28\u0d4d\u200d \u0d05",  # Malayalam: at the end of a word
        "a family \U0001f468\u200d\U0001f469\u200d\U0001f467 and \u2764\ufe0f\u200d\U0001f525 on a beach",
    ],
)
def test_joiners_that_shape_words_and_emoji_stay(text: str) -> None:
    assert plain(text) == clean_text(text) == text
    assert plain(f"\u200c{text}\u200e \u200d\u200c \u200c") == text  # those beside nothing are invisible


def test_charsets_that_lie_are_survived() -> None:
    assert decode_page("café".encode(), "no-such-charset") == "café"
    assert decode_page("café".encode("latin-1"), None) == "café"
    assert decode_page(b"\xff\xfea\x00", "utf-8") == "a"
    assert decode_page(b"<meta charset=utf-16>caf\xc3\xa9", None).endswith("café")
    assert decode_page(b"x+AD0-y", "utf-7") == "x+AD0-y"  # no page's encoding, and a known attack


@pytest.mark.parametrize(
    "reference",
    ["javascript:alert(1)", "data:image/png;base64,AA", "file:///etc/passwd", "ftp://a.org/a.jpg", "http://u:p@a.org/a.jpg",
     "http://[::1", "http://a.org:99999999/x", "//", "\x00", "a\u202e.jpg", "x" * 5000],
)  # fmt: skip
def test_addresses_that_cannot_be_fetched_are_none(reference: str) -> None:
    assert web_url("http://a.org/", reference) is None or reference == "//"


@pytest.mark.slow  # its process starts three times
def test_hostile_pages_cost_themselves_alone() -> None:
    """A parser in its own process, with a time limit: what stalls or kills it is one page of the run."""
    limits = Thresholds(page=PageThresholds(max_bytes=2_000_000, max_seconds=0.9, max_memory_mb=150))
    pages = {
        "good": GOOD,
        "attributes": "<p " + " ".join(f"a{number}=1" for number in range(40_000)) + ">",  # quadratic in the parser
        "tree": "<p>a" * 490_000,  # some 280 MB
        "captions": f"<figure><figcaption>{'a dog ' * 300_000}</figcaption>{'<img src=a.jpg>' * 500}</figure>{GOOD}",
        "large": "x" * 2_000_001,
        "data": f"<img src='data:image/png;base64,{'A' * 1_900_000}'>{GOOD}",
        "entities": f'<!DOCTYPE x [<!ENTITY a "b"><!ENTITY c "&a;&a;&a;">]>{GOOD}&c;',
        "script": f"<script>while(1){{}}</script>{GOOD}",
        "nul": "\0" * 500 + GOOD,
        "depth": "<div>" * 3000 + GOOD,
    }
    with PageProcess(limits) as process:
        found = list(process.outcomes(Page(f"http://a.org/{name}", body.encode()) for name, body in pages.items()))
    reasons = dict(zip(pages, (outcome.reason for outcome in found), strict=True))
    assert {reasons.pop(name) for name in ("attributes", "tree")} == {Reason.PARSE_FAILED}
    assert reasons.pop("large") is Reason.TOO_LARGE
    assert reasons.pop("captions") is not Reason.PARSE_FAILED  # one caption for all of its images
    assert set(reasons.values()) == {None}, reasons


PAGES = [(f"http://a.org/{number}", GOOD.replace("brown", f"brown {number}").encode()) for number in range(5)]


def read(tmp_path: Path, content: bytes, *, packed: bool = False, max_bytes: int = 1000) -> list[Page | BrokenPage]:
    path = tmp_path / ("a.warc.gz" if packed else "a.warc")
    path.write_bytes(content)
    return list(read_warc(str(path), max_bytes=max_bytes))


@pytest.mark.parametrize("packed", [True, False])
def test_a_warc_of_warcio_comes_back(tmp_path: Path, packed: bool) -> None:
    content = write_warc(PAGES, packed=packed, encoded={2})
    found = read(tmp_path, content, packed=packed, max_bytes=10_000)
    assert [(page.url, page.body) for page in found if isinstance(page, Page)] == PAGES
    assert all(isinstance(page, Page) and page.charset == "utf-8" and page.robots == ("all",) for page in found)
    cut = [page for page in read(tmp_path, content, packed=packed, max_bytes=100) if isinstance(page, Page)]
    assert [len(page.body) for page in cut] == [101] * 5  # the one that is packed too: no bomb goes off


def test_a_damaged_record_costs_itself(tmp_path: Path) -> None:
    data = bytearray(write_warc(PAGES, packed=True))
    second = [at for at in range(len(data)) if data[at : at + 3] == b"\x1f\x8b\x08"][-4]
    data[second + 20 : second + 40] = bytes(20)
    found = read(tmp_path, bytes(data), packed=True, max_bytes=10_000)
    assert [page.url for page in found if isinstance(page, Page)] == [PAGES[at][0] for at in (0, 2, 3, 4)]
    assert [page.reason for page in found if isinstance(page, BrokenPage)] == [Reason.BROKEN_RECORD]


def record(url: str, body: bytes, *, length: int | str | None = None, headers: str = "") -> bytes:
    """A record of a plain WARC, whose header may lie."""
    content = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{headers}\r\n".encode() + body
    head = f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {url}\r\nContent-Type: application/http\r\n"
    length = len(content) if length is None else length
    return f"{head}Content-Length: {length}\r\n\r\n".encode() + content + b"\r\n\r\n"


AFTER = record("http://a.org/1", b"one") + record("http://a.org/2", b"two")


@pytest.mark.parametrize(
    "broken",
    [
        record("http://a.org/x", b"long", length=20),
        record("http://a.org/x", b"negative", length=-5),
        record("http://a.org/x", b"no gzip", headers="Content-Encoding: gzip\r\n"),
        record("http://a.org/x", b"ffffffffffff\r\nabc", headers="Transfer-Encoding: chunked\r\n"),
        record("http://a.org/x", b"", headers=f"X: {'a' * 2_000_000}\r\n"),
        b"junk\r\n" * 100,
        bytes(3000),
    ],
    ids=["short", "negative", "encoding", "chunks", "header", "junk", "zeros"],
)
def test_damage_in_a_plain_warc_costs_itself(tmp_path: Path, broken: bytes) -> None:
    """A page decides its own bytes and HTTP headers: with these it must not make other pages vanish."""
    found = read(tmp_path, record("http://a.org/0", b"zero") + broken + AFTER)
    pages = [(page.url[-1], page.body) for page in found if isinstance(page, Page) and page.body]
    assert pages == [("0", b"zero"), ("1", b"one"), ("2", b"two")]
    assert {page.reason for page in found if isinstance(page, BrokenPage)} == {Reason.BROKEN_RECORD}


@pytest.mark.parametrize("packed", [True, False])
def test_a_page_that_holds_a_warc_record_gives_no_second_page(tmp_path: Path, packed: bool) -> None:
    """Else anybody could put words into another host's mouth, past its robots directives."""
    inner = os.urandom(3000) + gzip.compress(record("http://victim.org/", b"never said"))
    records = (record("http://a.org/0", b"zero"), record("http://evil.org/", inner))
    content = b"".join(map(gzip.compress, records) if packed else records)
    found = read(tmp_path, content, packed=packed, max_bytes=10_000)
    assert [isinstance(page, Page) and page.url for page in found] == ["http://a.org/0", "http://evil.org/"]


def test_a_warc_packed_as_one_member_is_read_whole(tmp_path: Path) -> None:
    pages = [record(f"http://a.org/{number}", os.urandom(40_000).hex().encode()) for number in range(20)]
    found = read(tmp_path, gzip.compress(b"".join(pages), 1), packed=True, max_bytes=100_000)
    assert len(found) == 20 and all(isinstance(page, Page) and len(page.body) == 80_000 for page in found)


@pytest.mark.parametrize(
    "content",
    [b"", b"<html>no WARC</html>" * 50, bytes(5000), gzip.compress(b"WARC/1.0\r\nfoo"), b"WARC/1.0\r\n\r\n\r\n"],
    ids=["empty", "html", "zeros", "cut", "bare"],
)
def test_what_is_no_warc_is_counted_and_no_crash(tmp_path: Path, content: bytes) -> None:
    assert all(isinstance(page, BrokenPage) for page in read(tmp_path, content, packed=True))


def test_a_file_without_a_page_is_told(tmp_path: Path) -> None:
    """Common Crawl's WET files hold texts without their HTML; nothing said why they gave no page."""
    texts = gzip.compress(record("http://a.org/", b"A dog runs.").replace(b": response", b": conversion"))
    for packed, content, detail in ((True, texts, "only conversion"), (False, b"", "it is empty")):
        (found,) = read(tmp_path, content, packed=packed)
        assert isinstance(found, BrokenPage) and found.reason is Reason.NO_PAGE and detail in found.detail


@pytest.mark.parametrize("error", [ConnectionResetError(104, "reset by peer"), TimeoutError(), OSError(5, "I/O error")])
def test_a_network_that_fails_is_no_damage(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit would count as done, and what had not come yet would be lost."""

    class Failing(io.BytesIO):
        has_failed = False

        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 1000 and not self.has_failed:
                self.has_failed = True
                raise error
            return super().read(80)

    data = write_warc([(f"http://a.org/{at}", b"<p>hello") for at in range(9)], packed=False)
    monkeypatch.setattr(warc_pages, "_opened", lambda _: Failing(data))
    with pytest.raises(OSError, match=r"s3://b/a.warc: cannot be read \(.+\); what is done is kept, run again"):
        list(read_warc("s3://b/a.warc", max_bytes=1000))


def test_headers_of_a_page_that_speak_of_its_use(tmp_path: Path) -> None:
    (page,) = read(tmp_path, record("http://a.org/", b"<p>", headers="x-robots-tag: all\r\nTDM-Reservation: 1\r\n"))
    assert isinstance(page, Page) and page.robots == ("all", "tdm-reservation: 1")


def test_units_follow_names_and_no_links(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    os.mkfifo(tmp_path / "b" / "pipe.html")  # no process writes to it
    (tmp_path / "secret.html").write_text(GOOD)
    for name in ("b/z.html", "a.htm", "c.txt"):
        (tmp_path / "b" / name.replace("/", "_")).write_text(GOOD)
    (tmp_path / "b" / "out.html").symlink_to(tmp_path / "secret.html")
    (tmp_path / "b" / "x.warc").write_bytes(write_warc(PAGES, packed=False))
    units = plan_units(str(tmp_path / "b"), base_url="http://h.org/")
    assert [unit.names for unit in units] == [(str(tmp_path / "b" / "x.warc"),), ("a.htm", "b_z.html")]
    urls = [page.url for page in units[1].pages(max_bytes=10_000) if isinstance(page, Page)]
    assert urls == ["http://h.org/a.htm", "http://h.org/b_z.html"]


def test_a_list_names_files_below_its_folder_and_web_addresses_that_are_public(tmp_path: Path) -> None:
    (tmp_path / "in/a").mkdir(parents=True)
    (tmp_path / "in/a/x.warc").write_bytes(b"")
    (tmp_path / "y.warc").write_bytes(b"")
    pages = tmp_path / "in/l.paths"
    web = ("https://data.org/a.warc.gz?b=1", "s3://commoncrawl/a.warc.gz", "http://[2606::1]/a.warc")
    pages.write_text("\n".join(("a/x.warc", str(tmp_path / "in/a/../a/x.warc"), *web)))
    units = plan_units(str(pages), base_url="http://h.org/", allow_private=("10.0.0.0/8",))
    inside = str(tmp_path / "in/a/x.warc")
    assert [unit.names[0] for unit in units] == [inside, inside, *web]
    assert {unit.allowed for unit in units} == {("10.0.0.0/8",)}
    (typed,) = plan_units(web[0], base_url="http://h.org/")
    assert typed.allowed is None  # what the user named may be anywhere
    for line in ("../y.warc", str(tmp_path / "y.warc"), "a/../../y.warc"):
        pages.write_text(line)
        with pytest.raises(ValueError, match=r"l\.paths, line 1: .* is not below the folder of the list"):
            plan_units(str(pages), base_url="http://h.org/")
    for line in ("file:///y.warc", "zip://a::http://h.org/a.warc", "s3://b/a::file:///y.warc", "ftp://h.org/a.warc"):
        pages.write_text(line)
        with pytest.raises(ValueError, match="expected a URL of http, https or s3"):
            plan_units(str(pages), base_url="http://h.org/")


def test_reading_ends_after_too_many_damaged_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(read(tmp_path, b"WARC/1.0\r\n" * 50_000)) == 1  # no record begins with a line alone: one damaged place
    assert len(read(tmp_path, b"WARC/1.0\r\nA: b\r\n" * 300)) == 300
    monkeypatch.setattr(warc_pages, "_MAX_DAMAGED", 9)
    *_, last = read(tmp_path, b"WARC/1.0\r\nA: b\r\n" * 300)
    assert isinstance(last, BrokenPage) and "over 9 damaged places; the rest of the file is not read" in last.detail
    assert last.place == "a.warc, record 10"


def test_real_html_goes_through() -> None:
    """That of installed packages: documentation, templates of reports."""
    folders = (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"))
    saved = [path.read_bytes() for folder in folders for path in sorted(Path(folder).rglob("*.html"))[:40]]
    outcomes = [look(body) for body in (*saved, GOOD)]
    assert all((outcome.candidate is None) == (outcome.reason is not None) for outcome in outcomes)
    assert outcomes[-1].candidate is not None
