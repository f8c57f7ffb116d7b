"""Every page that the product writes, and of the documentation site, opened in a real browser at two widths, light and
dark: nothing scrolls sideways, nothing is fetched, the console is empty, and no letter is below 11 px. Pages of the
product are of real small runs.

Needs Chromium (Debian's package; `make chromium`) and the site (`make docs`). Without them these tests are skipped, but
where ROIBEAM_CHROMIUM says "required", as .ci/run does, they fail.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from browser import LOOKS, Browser, Look, chromium
from in_process import run_roibeam
from tiny_commands import TINY_SIZES, command

pytestmark = pytest.mark.slow
LARGEST_PAGE_BYTES = 2_000_000
SITE = Path(__file__).parents[2] / "build" / "site"
# A picture of several plots, for a paper or a slide: it keeps its size and is no page to read on a phone.
NO_PAGES = {"curves.svg"}
# What must be among them, in any case; what else the commands write is opened too.
EXPECTED = {
    "store/report.html", "random/report.html", "run/report.html", "run/batch.html", "run/evaluation/report.html",
    "run/probe.svg", "said.html", "stages/report.html", "stages/stage-1/report.html", "stages/stage-2/report.html",
    "detector/report.html", "differ.html", "equal.html", "asked.html", "pixels/report.html", "pixels/batch.html",
}  # fmt: skip
TINY_DETECTOR = (
    "--detector", "toy", "--conventions", "vlbert-e2e", "--steps", 24, "--warmup-steps", 1,
    "--set", "detector.base_channels=4", "--set", "detector.short_edge=64", "--set", "detector.long_edge=96",
    "--set", "detector.proposals_before_nms=60", "--set", "detector.proposals_after_nms=20",
    "--set", "sampling.proposals_before_nms=80", "--set", "sampling.proposals_after_nms=30",
)  # fmt: skip


def skip(reason: str) -> None:
    assert os.environ.get("ROIBEAM_CHROMIUM") != "required", reason
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    executable = chromium()
    if executable is None:
        skip("needs Chromium: apt-get install chromium, or make chromium")
    with Browser(executable, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def written(browser: Browser, tmp_path_factory: pytest.TempPathFactory, tiny_network: tuple[str, ...]) -> Path:
    """A folder of everything that writes a page, of fourteen pictures of the toy world and a broken file."""
    from roibeam.pipelines.toyworld.rendering import draw_samples
    from roibeam.pipelines.toyworld.write import write_world

    out = tmp_path_factory.mktemp("pages")
    captions = json.loads(draw_samples(out / "samples", count=14).read_text())
    photos = out / "samples" / "images"
    for name, ids in (("train", range(8)), ("held_out", range(8, 14))):
        rows = [row for row in captions["annotations"] if row["image_id"] in ids]
        (out / f"{name}.json").write_text(json.dumps(captions | {"annotations": rows}))
    (photos / "a_photo_with_a_rather_long_name_that_cannot_be_broken_anywhere_0123456789.jpg").write_bytes(b"no photo")
    for name, network in (("store", ("--detector", "toy", "--device", "cpu")), ("random", tiny_network)):
        command("extract", photos, out / name, *network, "--max-failures", 1.0)
    command("extract", photos, out / "few", "--detector", "toy", "--device", "cpu", "--max-failures", 1.0,
            "--set", "selection.min_regions=1", "--set", "selection.max_regions=4")  # fmt: skip
    told = ("--store", out / "store", "--captions", out / "train.json", "--validation-captions", out / "held_out.json",
            "--min-match", 0.1, "--batch-size", 4, "--threads", 1, *TINY_SIZES,
            "--set", "train.evaluate_every=6")  # fmt: skip
    command("pretrain", out / "run", *told, "--system", "imagebert", "--steps", 24, "--inspect-batch", 4)
    command("pretrain", out / "stages", *told, "--system", "imagebert", "--stage", "--steps 12", "--stage",
            "--steps 15 --learning-rate 0.001")  # fmt: skip
    command("evaluate", out / "run", "--store", out / "store", "--captions", out / "held_out.json")
    command("probe", out / "run", photos / "sample_00008.jpg", "a [MASK] box on a [MASK]", "--detector", "toy")
    command("pretrain", out / "pixels", *told, "--system", "vlbert", "--end-to-end", "--detector", "toy", "--device",
            "cpu", "--steps", 2, "--inspect-batch", 2, "--skip-missing-photos")  # fmt: skip
    _predict(out)
    long = "a_photo_with_a_rather_long_sentence_that_cannot_be_broken_anywhere_0123456789_0123456789"
    command("search", out / "store", long, "--model", out / "run", "--html", out / "found.html")
    command("search", out / "few", "--region", "sample_00001:0", "--html", out / "regions.html")
    for other, page in (("few", "differ.html"), ("store", "equal.html")):
        # Stores may differ, which is exit code 1.
        assert run_roibeam("store", "diff", out / "store", out / other, "--html", out / page) in (0, 1)
    world = out / "world"
    write_world(world, seed=0, num_images=40, workers=1)
    command("detector", "train", out / "detector", "--labels", world / "visual_genome" / "train.txt", *TINY_DETECTOR)
    return out


def _predict(out: Path) -> None:
    """A page of predictions: of the drawn pictures, whether a caption has a word."""
    captions = json.loads((out / "samples" / "captions.json").read_text())
    names = {image["id"]: image["file_name"] for image in captions["images"]}
    (out / "table").mkdir()
    for split, ids in (("train", range(8)), ("val", range(8, 14))):
        rows = [
            {"image": names[row["image_id"]], "text": f"{row['caption']} {'long' * 40}",
             "label": str("a " in row["caption"])}
            for row in captions["annotations"] if row["image_id"] in ids
        ]  # fmt: skip
        rows[0]["label"] = "False"
        if split == "val":  # and of the others as a test split has them, one with its answer
            asked = [row if not place else {**row, "label": ""} for place, row in enumerate(rows)]
            (out / "table" / "test.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in asked))
        (out / "table" / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    command("finetune", out / "learned", "--task", "labels", "--from", out / "run", "--store", out / "store", "--data",
            out / "table", "--steps", 2, "--batch-size", 4, "--threads", 1)  # fmt: skip
    for split, name in (("val", "said"), ("test", "asked")):
        files = ("--out", out / f"{name}.jsonl", "--page", out / f"{name}.html")
        given = ("--store", out / "store", "--data", out / "table", "--split", split, "--threads", 1)
        command("predict", out / "learned", *given, *files)


def faults_of(browser: Browser, page: Path, looks: Sequence[Look] = LOOKS) -> list[str]:
    return [*browser.open(page), *(fault for look in looks for fault in browser.faults(look))]


def test_every_page_is_good_to_read_at_both_widths_in_light_and_dark(browser: Browser, written: Path) -> None:
    pages = sorted(page for kind in ("html", "svg") for page in written.rglob(f"*.{kind}") if page.name not in NO_PAGES)
    names = {str(page.relative_to(written)) for page in pages}
    assert names >= EXPECTED, EXPECTED - names
    faults = []
    for page in pages:
        found = faults_of(browser, page)
        size = page.stat().st_size
        if size >= LARGEST_PAGE_BYTES:
            found.append(f"{size:,} bytes")
        faults += [f"{page.relative_to(written)}: {fault}" for fault in found]
    assert not faults, "\n" + "\n".join(faults)


@pytest.fixture(scope="module")
def site() -> Path:
    if not (SITE / "index.html").is_file():
        skip("needs the documentation site: make docs")
    return SITE


def test_every_page_of_the_site_is_good_to_read_without_a_server(browser: Browser, site: Path) -> None:
    """Code and tables that are wider than a window scroll by themselves. The reference is large: each width once."""
    pages = sorted({*site.glob("*.html")} - {site / "404.html"})  # that one is for servers
    assert len(pages) > 40
    faults = []
    for page in pages:
        looks = LOOKS[::3] if page.name.startswith(("api-", "commands-", "recipes-")) else LOOKS
        found = [each for each in faults_of(browser, page, looks) if not each.startswith(f"asked for {site.as_uri()}/")]
        faults += [f"{page.name}: {each}" for each in found if ": a part scrolls sideways" not in each]
    assert not faults, "\n" + "\n".join(faults)


SEARCH = """new Promise((done) => {
  document.querySelector("[data-md-toggle=search]").click();
  const query = document.querySelector("[data-md-component=search-query]");
  Object.assign(query, { value: "VinVL" }).dispatchEvent(new Event("keyup"));
  const look = () => {
    const found = [...document.querySelectorAll(".md-search-result__link")].map((each) => each.href);
    return found.length ? done(found) : setTimeout(look, 50);
  };
  look();
})"""


def test_the_site_is_searched_without_a_server(browser: Browser, site: Path) -> None:
    browser.open(site / "index.html")
    found = browser.evaluate(SEARCH)
    assert f"{site.as_uri()}/presets.html" in {each.partition("?")[0] for each in found}


GOOD = "<!DOCTYPE html><meta charset=utf-8><style>:root{color-scheme:light dark} @media (prefers-color-scheme:dark)\
{body{background:#111}} @media (prefers-color-scheme:light){body{background:#fff}}</style><body>"


PLANTED = {
    "a wide table": (
        "<table><tr><td><div style='width:900px'>wide</div></table>", "400 px, light: scrolls sideways"),
    "a word wider than its tile": (
        "<div style='width:99px;white-space:nowrap'>fetched, large enough</div>", "dark: text runs out of its box (1)"),
    "a wide part": (
        "<div style='overflow-x:auto'><div style='width:900px'>wide</div></div>", "400 px, dark: a part scrolls"),
    "small letters": ("<p style='font-size:8px'>small</p>", "1280 px, light: letters below 11"),
    "small letters, folded": ("<details><p style='font-size:8px'>small</p></details>", "letters below 11"),
    "a plot that shrinks": (
        "<svg viewBox='0 0 900 90' width='100%'><text y='50' style='font-size:12px'>plot</text></svg>",
        "400 px, light: letters below 11 px (1): 5.1 px"),
    "a plot whose text is cut": (
        "<svg viewBox='0 0 360 90' width='100%'><text y='50' x='-9' style='font-size:12px'>plot</text></svg>",
        "text runs out of its picture (1)"),
    "white in the dark": ("<style>body{background:#fff !important}</style>", "dark: the page is not dark"),
    "an error in the console": ("<script>console.error('so wrong')</script>", "so wrong"),
    "an exception": ("<script>throw new Error('thrown')</script>", "exception:"),
    "a request": (
        "<script>fetch('http://127.0.0.1:9/data.json').catch(() => 0)</script>", "asked for http://127.0.0.1:9/data"),
    "a picture from outside": ("<img src='http://127.0.0.1:9/a.png'>", "asked for http://127.0.0.1:9/a.png"),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_noticed(browser: Browser, tmp_path: Path, fault: str) -> None:
    planted, told = PLANTED[fault]
    page = tmp_path / "page.html"
    page.write_text(GOOD + "<p>All is well.</p>")
    assert faults_of(browser, page) == []
    page.write_text(GOOD + planted)
    found = faults_of(browser, page)
    assert any(told in each for each in found), found
