"""README.md, CONTRIBUTING.md and docs/: what they tell to type exists, their links lead somewhere, their sentences are
short, and their blocks run. CONTRIBUTING.md, "Documentation", tells how pages are written."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from doc_commands import (
    OPTIONS_OF_OTHERS,
    REPOSITORY,
    all_options,
    is_beam_option,
    pages_named_in_source,
    problem_of_call,
    problem_of_target,
    problems_of_imports,
    roibeam_calls,
    simple_commands,
)
from doc_pages import REASONS, RUN, Page, repeated_runs
from doc_runs import REAL_DATA, REAL_MODELS, environment, made_folder, run_page
from soak_share import SHARE
from warm_command import warm_command

MOST_PAGES, MOST_WORDS = 26, 60_000
MOST_WORDS_OF_A_SENTENCE, MEAN_BELOW, RUN_THAT_STANDS_ONCE = 40, 16, 12
MOST_LINES = {
    "README.md": 125,
    "BENCHMARKS.md": 500,
    "CHANGELOG.md": 120,
    "docs/upgrade.md": 80,
    "docs/evidence.md": 400,
}
GENERATED = "docs/evidence.md"
COLD = "README.md"
TUTORIAL = "docs/tutorial-"  # whose models learn something: one step here, all in the soak
DOCS = sorted(f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md"))
PAGES = ["README.md", "CONTRIBUTING.md", "examples/README.md", "examples/real_photos/README.md", *DOCS]
HAND_WRITTEN = [name for name in PAGES if name != GENERATED]
LINKED = [*PAGES, *(name for name in ("CHANGELOG.md", "SECURITY.md", "BENCHMARKS.md") if (REPOSITORY / name).is_file())]


def page(name: str) -> Page:
    return Page.read(REPOSITORY / name)


def problems_of_commands(page: Page) -> list[str]:
    """Commands, options, targets and names that a page shows and that do not exist, of all blocks and mentions."""
    found = []
    for block in page.blocks:
        wrong: list[str] = []
        if block.language == "python":
            wrong = problems_of_imports(block.text)
        elif block.language in ("bash", "console"):
            wrong = [problem_of_call(words) for words in roibeam_calls(block.shell)]
            wrong += [problem_of_target(words) for words in simple_commands(block.shell)]
        elif block.language == "text":
            shown = "\n".join(line for line in block.text.splitlines() if line.startswith("roibeam "))
            wrong = [problem_of_call(words) for words in roibeam_calls(shown)]
        found += [f"line {block.line}: {what}" for what in wrong if what]
    for line, span in page.code_spans:
        found += [f"line {line}: {what}" for what in problems_of_span(span) if what]
    return found


def problems_of_span(span: str) -> list[str]:
    """Of `code` between words: a call, an option with or without its value, a target of make, a script."""
    if span.startswith("roibeam "):
        return [problem_of_call(span.split()[1:], whole=False)]
    if span.startswith("-"):
        options = [word.partition("=")[0] for word in span.split() if re.match(r"--[a-z]", word)]
        unknown = [word for word in options if "_" not in word and word not in all_options() | OPTIONS_OF_OTHERS]
        return [f"no command has the option {option}" for option in unknown if not is_beam_option(option)]
    return [problem_of_target(span.split())]


def problems_of_links(page: Page, folder: Path) -> list[str]:
    found = []
    for line, target in page.links:
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (folder / file).resolve() if file else None
        if there is not None and not (there.exists() and there.is_relative_to(REPOSITORY)):
            found.append(f"line {line}: {target}: no such file in the clone")
        elif there is not None and there.suffix != ".md":
            continue
        elif anchor and anchor not in (page if there is None else Page.read(there)).anchors:
            found.append(f"line {line}: {target}: no such heading")
    return found


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_known_marks_commands_and_names_that_exist_and_short_sentences(name: str) -> None:
    assert page(name).problems == []
    assert problems_of_commands(page(name)) == []
    assert page(name).long_sentences(MOST_WORDS_OF_A_SENTENCE) == []
    if name != GENERATED:
        assert page(name).mean_sentence < MEAN_BELOW


@pytest.mark.parametrize("name", LINKED)
def test_links_lead_somewhere(name: str) -> None:
    assert problems_of_links(page(name), (REPOSITORY / name).parent) == []


def test_readme_and_docs_stay_small_and_pages_that_messages_name_are_there() -> None:
    long = [name for name, most in MOST_LINES.items() if len((REPOSITORY / name).read_bytes().splitlines()) > most]
    assert sum(name.startswith("docs/") for name in HAND_WRITTEN) <= MOST_PAGES
    named = pages_named_in_source()
    missing = {name: sorted(files) for name, files in named.items() if not (REPOSITORY / name).is_file()}
    assert named and not missing and not long


def test_readme_and_hand_written_docs_have_few_words() -> None:
    names = [name for name in HAND_WRITTEN if name == "README.md" or name.startswith("docs/")]
    words = {name: len((REPOSITORY / name).read_text("utf-8").split()) for name in names}
    assert sum(words.values()) <= MOST_WORDS, words


def test_nothing_is_written_twice() -> None:
    """A fact stands where its reader looks for it; other pages link to it."""
    assert repeated_runs({name: page(name) for name in HAND_WRITTEN}, RUN_THAT_STANDS_ONCE) == []


def test_the_page_on_clusters_shows_every_runner_and_arguments_of_the_image() -> None:
    blocks = page("docs/cluster.md").blocks
    calls = [words for block in blocks if block.language in ("bash", "console") for words in roibeam_calls(block.shell)]
    runners = {words[words.index("--runner") + 1] for words in calls if "--runner" in words}
    assert {"portable", "flink", "spark", "dataflow"} <= runners
    arguments = set(re.findall(r"^ARG (\w+)", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE))
    text = (REPOSITORY / "docs" / "cluster.md").read_text("utf-8")
    assert set(re.findall(r"--build-arg (\w+)=", text)) <= arguments


def cases(*, soak: bool) -> list[Any]:
    """Pages with a block to run; in the soak those with one that takes long."""
    marks = {name: {block.mark for block in page(name).blocks if block.language in RUN} for name in PAGES}
    if soak:
        return [name for name in PAGES if "soak" in marks[name] or name.startswith(TUTORIAL)]
    return [name for name in PAGES if marks[name] & {"", "fails"}]


@pytest.fixture
def page_folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, name: str) -> Any:
    """A folder with what the page starts from; removed after a test that passed, since models are large."""
    folder = tmp_path / "page"
    setup = page(name).setup
    if setup == "real photos" and not (REAL_DATA.is_dir() and any(REAL_MODELS.glob("*.pth"))):
        pytest.skip("needs the photos of ../shared/data and the weights that `make real-models` fetches")
    if setup:
        shutil.copytree(made_folder(setup, tmp_path_factory), folder)
    else:
        folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with warm_command(tmp_path_factory.getbasetemp() / "warm", environment()) as folder:
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("name", cases(soak=False))
def test_the_blocks_run(name: str, page_folder: Path, commands: Path) -> None:
    """Those of one page with all their imports, as a reader types them; the others save those of a hundred commands."""
    commands_of_page = None if name == COLD else commands
    run_page(page(name), page_folder, commands=commands_of_page, one_step=name.startswith(TUTORIAL))


@pytest.mark.soak
@pytest.mark.skipif(SHARE < 1, reason="they train for many minutes: in the whole soak alone")
@pytest.mark.parametrize("name", cases(soak=True))
def test_the_blocks_run_with_those_that_take_long(name: str, page_folder: Path) -> None:
    run_page(page(name), page_folder, with_soak=True)


# The same, on pages made here: what is wrong is noticed.


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```\nls\n```\n", "line 1: a block without a language"),
        ("# A\n\n    ls\n", "line 3: a block by four spaces"),
        ("```perl\nls\n```\n", "line 1: the language 'perl' is none of"),
        ("<!-- not run: no time -->\n```bash\nls\n```\n", "line 1: the comment 'not run: no time' is no mark"),
        ("<!-- soak -->\n\n```bash\nls\n```\n", "line 1: a mark stands on the line before its block"),
        ("<!-- soak -->\n```text\nls\n```\n", "line 2: a mark on a text block"),
        ("```bash\nls\n```\n\n<!-- in: toy store -->\n", "line 5: the set-up stands above the first block"),
        ("<!-- in: a castle -->\n", "line 1: the comment 'in: a castle' is no mark"),
        ("```console\nls\n```\n", "line 1: a console block without a line `$ command`"),
    ],
)
def test_a_block_that_is_not_written_as_it_should_be_is_noticed(text: str, said: str) -> None:
    (problem,) = Page(text).problems
    assert problem.startswith(said)


def test_a_page_as_it_should_be_has_no_problem() -> None:
    made = Page(
        "<!-- in: toy store -->\n\n```bash\nls\n```\n\n"
        "<!-- not run: needs a GPU -->\n```console\n$ echo 1 \\\n  2\n1 2\n```\n"
        "1. in a list\n\n   <!-- soak -->\n   ```python\n   print()\n   ```\n"
    )
    assert made.problems == [] and made.setup == "toy store"
    assert [block.mark for block in made.blocks] == ["", "not run: needs a GPU", "soak"]
    assert made.blocks[1].shell == "echo 1 \\\n  2\n" and "needs a GPU" in REASONS


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("bash\nroibeam extract photos store --colour red", "has no option --colour"),
        ("console\n$ cd x && roibeam extrude photos", "no command 'extrude'"),
        ("bash\nroibeam store info a b c > out.txt", "are arguments too many"),
        ("bash\nfor x in a b; do roibeam store info; done", "issing argument"),
        ("bash\nroibeam pretrain run --steps many", "--steps 'many': expected a whole number"),
        ("bash\nroibeam extract photos store --runner flink -- --flink_slaster=x:8081", "Beam has no option"),
        ("bash\ndocker run --rm roibeam/worker:0.2 extract photos store --colour red", "has no option --colour"),
        ("text\nroibeam store inform store", "no command 'inform'"),
        ("bash\nmake tea", "make has no target tea"),
        ("bash\npython bench/tea.py", "there is no bench/tea.py"),
        ("python\nfrom roibeam import FeatureShop", "there is no roibeam.FeatureShop"),
        ("python\nimport roibeam\nroibeam.build_castle()", "there is no roibeam.build_castle"),
        ("python\nfrom roibeam.features.castle import Castle", "there is no roibeam.features.castle.Castle"),
    ],
)
def test_what_does_not_exist_is_noticed(block: str, said: str) -> None:
    (problem,) = problems_of_commands(Page(f"```{block}\n```\n"))
    assert said in problem


def test_what_exists_is_not() -> None:
    made = Page(
        "```bash\n# a remark\nOMP_NUM_THREADS=1 roibeam store info store 2> log | head -1  # and another\n"
        "roibeam --help && roibeam extract 'photos/*.jpg' \\\n    store --runner flink -- --flink_master=x:8081\n"
        "python bench/toyworld.py\nmake test\n```\n\n```python\nimport roibeam\nfrom roibeam import FeatureStore\n"
        "from roibeam.features.store import FeatureStore\n```\n\n"
        "`roibeam store copy`, `roibeam pretrain ... --steps 3`, `--runner flink`, `-- --parallelism=8`, `make test`\n"
    )
    assert problems_of_commands(made) == []
    wrong = Page("`roibeam store paint`, `roibeam extract --colour`, `--colour red`, `make tea`\n")
    assert len(problems_of_commands(wrong)) == 4


def test_a_link_into_nothing_is_noticed(tmp_path: Path) -> None:
    text = "# One `two` (three)\n\n[a](#one-two-three) [b](#four) [c](README.md) [d](READYOU.md) [e](https://x.org/y)\n"
    assert [problem.split(": ")[1] for problem in problems_of_links(Page(text), REPOSITORY)] == ["#four", "READYOU.md"]


def test_a_long_sentence_is_noticed_and_code_and_tables_do_not_count() -> None:
    words = "word " * 20
    table = f"| {words} {words} {words} |\n|---|\n| a |"
    made = Page(f"{words}`{words}` {words}.\n\n{table}\n\n- {words}, {words}once\n  more.")
    assert made.long_sentences(40) == ["line 7: 42 words: word word word word word word word word ..."]


def test_the_mean_of_sentences_leaves_out_headings_tables_and_code() -> None:
    made = Page(
        "# A heading of many words\n\nOne two `three four`. One two\nthree four!\n\n| a b c d |\n|---|\n| a |\n\n- One."
    )
    assert made.mean_sentence == (2 + 4 + 1) / 3


def test_words_that_stand_twice_are_noticed() -> None:
    planted = "Regions of one photo are the same bits on any number of workers"
    block, table, heading = f"```text\n{planted}\n```", f"| {planted} |\n|---|\n| a |", f"# {planted}"
    pages = {
        "a.md": Page(f"# A\n\n{planted}, always.\n\n{block}\n\n{table}"),
        "b.md": Page(f"{heading}\n\n- See: {planted.replace('one photo', '`a b`')}.\n- So\n  {planted.lower()}."),
    }
    assert repeated_runs(pages, 12) == ["a.md:3 and b.md:4: regions of one photo are the same bits on any number of"]
    assert repeated_runs(pages, 14) == [] and repeated_runs({"a.md": pages["a.md"]}, 12) == []


def test_blocks_run_in_order_in_one_folder_and_one_python(tmp_path: Path) -> None:
    run_page(
        Page(
            "```console\n$ echo 5 > number\nnot a command\n```\n```python\nnumber = int(open('number').read())\n```\n"
            "<!-- not run: needs weights -->\n```bash\nrm number\n```\n<!-- soak -->\n```bash\nrm number\n```\n"
            "<!-- fails -->\n```bash\nfalse\necho unreached > number\n```\n"
            "```python\nassert number == 5\nopen('number', 'a').write('6')\n```\n```bash\ngrep -q 6 number\n```\n"
        ),
        tmp_path,
    )


@pytest.mark.parametrize(
    "block",
    ["```bash\nfalse\ntrue\n```\n", "```python\n1 / 0\n```\n", "<!-- fails -->\n```bash\ntrue\n```\n"],
)
def test_a_block_that_does_not_end_as_it_should_is_noticed(tmp_path: Path, block: str) -> None:
    with pytest.raises(AssertionError, match=r"line \d: this block (failed|did not fail)"):
        run_page(Page(block), tmp_path)
    unmarked = block.removeprefix("<!-- fails -->\n")
    run_page(Page(f"<!-- soak -->\n{unmarked}"), tmp_path)
