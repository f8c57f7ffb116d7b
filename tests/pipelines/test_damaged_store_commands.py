"""Stores hurt by a seed, given to commands: an error of one line, or the truth; never a crash, a hang or a lie."""

import contextlib
import io
import json
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluated_models import SIZES
from fuzz_child import in_a_child, limited_time
from in_process import run_roibeam
from soak_share import SHARE
from store_mutations import FAMILIES, Original, hurt, original_of, write_original
from tiny_commands import tiny_run

from roibeam.features.exchange.formats import FORMATS, format_named
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.captions.corpus import CheckedViews
from roibeam.pipelines.data.compatibility import SAMPLE_ONE_IN
from roibeam.pipelines.finetuning.run.task_data import StorePair
from roibeam.pipelines.finetuning.tasks.retrieval import mean_features

_PLACES = ("link", "pipe", "swap")  # what lies in the place of a file: "swap" is another file of the store
_SECONDS = 20  # of one command
OUTCOMES: Counter[tuple[str, int]] = Counter()  # (command, exit code)


Command = Callable[[Original, Path, bool], object]
Commands = dict[str, Command]
Made = tuple[Original, Commands]


def told(*words: str, stores: int = 1) -> Command:
    """`roibeam store` with these words and the store, so often: whatever it answers."""
    return lambda store, out, is_sealed: run("store", *words, *[store.folder] * stores)


TOLD = {"verify": told("verify"), "diff": told("diff", stores=2), "info": told("info")}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A store of features from elsewhere. Its records are of one kind, so that unhurt they would go into a file of
    every format."""
    kinds = [{"distribution": "full", "attributes": True, "image_feature": True}]
    store = write_original(tmp_path_factory.mktemp("damaged") / "store", kinds)
    return store, {
        **TOLD, "copy": copies, "show": showing(store), **{name: exports(name) for name in FORMATS},
        "evaluate": Evaluation.of(store, tmp_path_factory.mktemp("evaluated"), has_captions=False),
    }  # fmt: skip


@pytest.fixture(scope="module")
def extracted(tmp_path_factory: pytest.TempPathFactory, tiny_network: tuple[str, ...]) -> Made:
    """A store that was extracted from photos: with its plan, and with captions of its own."""
    from roibeam.pipelines.toyworld.rendering import draw_samples

    folder = tmp_path_factory.mktemp("extracted")
    given = ("--captions", draw_samples(folder, count=12), "--shard-size", 9, *tiny_network)
    code, said = run("extract", folder / "images", folder / "store", *given, seconds=600)
    assert not code, said
    with FeatureStore(folder / "store") as opened:
        store = original_of(folder / "store", list(opened.scan(check=True)))
    assert {"annotations.parquet", "plan.json", "plan/part-00000.jsonl"} <= set(store.files)
    return store, {
        **TOLD, "copy": copies, "repair": told("repair"), "show": showing(store), "mend": mending(folder / "images"),
        "butd-tsv": exports("butd-tsv"),
        "evaluate": Evaluation.of(store, tmp_path_factory.mktemp("evaluated"), has_captions=True),
    }  # fmt: skip


def run(*arguments: object, seconds: int = _SECONDS) -> tuple[int, str]:
    """Exit code and all that was said; one that takes longer than `seconds` ends the process."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), limited_time(seconds):
        code = run_roibeam(*arguments)
    OUTCOMES[" ".join(map(str, arguments[:2])) if arguments[0] == "store" else str(arguments[0]), code] += 1
    assert "Traceback" not in said.getvalue() and "fault of roibeam" not in said.getvalue() and code != 70, (
        arguments, said.getvalue(),
    )  # fmt: skip
    return code, said.getvalue()


def hurt_on_disk(store: Original, choose: random.Random, seed: int) -> str:
    """Changes the store's files; says what was done."""
    kind = choose.choice([*FAMILIES, *_PLACES])
    if kind in FAMILIES:
        for name, data in hurt(store, kind, seed).items():
            (store.folder / name).unlink()
            (store.folder / name).write_bytes(data)
        return kind
    path = store.folder / choose.choice(sorted(store.files))
    name = path.relative_to(store.folder).as_posix()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "swap":
        other = choose.choice(sorted(set(store.files) - {name}))
        (store.folder / other).rename(path)
        (store.folder / other).write_bytes(store.files[name])
    else:
        path.symlink_to(choose.choice(["/dev/zero", "/etc/passwd", path.name, "nowhere", "."]))
    return f"{kind} {name}"


def restore(store: Original) -> None:
    """New files, so that maps of the ones before stay whole."""
    shutil.rmtree(store.folder)
    for name, data in store.files.items():
        (store.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (store.folder / name).write_bytes(data)


def has_wrong_values(folder: Path, wanted: dict[str, RegionRecord]) -> bool:
    """Whether the store in `folder` gives another record than the unhurt one."""
    with FeatureStore(folder) as opened:
        return any(not record.equals(wanted[record.image_id]) for record in opened)


def copies(store: Original, out: Path, is_sealed: bool) -> None:
    code, said = run("store", "copy", store.folder, out)
    assert code or is_sealed or not has_wrong_values(out, store.wanted), said


def exports(name: str) -> Command:
    def export(store: Original, out: Path, is_sealed: bool) -> None:
        suffixes = format_named(name).suffixes
        file = out.with_suffix(suffixes[0] if suffixes else "")
        code, said = run("store", "export", store.folder, file, "--format", name)
        if code or is_sealed:
            return
        with format_named(name).open(file) as opened:
            for outcome in opened.outcomes("float32"):
                if isinstance(outcome, RegionRecord):
                    features = store.wanted[outcome.image_id].features.astype(np.float32)
                    assert np.array_equal(outcome.features, features), (outcome.image_id, said)

    return export


def showing(store: Original) -> Command:
    """Shows two images of the store, whose words are compared with those of the unhurt one.

    Names of classes are left out: manifest.json holds them, of which no sum is kept (docs/store-format.md).
    """

    def shown(image_id: str) -> tuple[int, list[list[str]]]:
        """Exit code, and the first words of each line: of a region its score and box."""
        code, said = run("store", "show", store.folder, image_id)
        return code, [line.split()[:5] for line in said.splitlines()]

    ids = list(store.wanted)
    unhurt = {image_id: shown(image_id)[1] for image_id in (ids[0], ids[-1])}

    def show(store: Original, out: Path, is_sealed: bool) -> None:
        for image_id, wanted in unhurt.items():
            code, said = shown(image_id)
            assert code or is_sealed or said == wanted, said

    return show


def mending(photos: Path) -> Command:
    """A repair from the photos: what it calls done is whole, and what it was."""

    def mend(store: Original, out: Path, is_sealed: bool) -> None:
        code, said = run("store", "repair", store.folder, "--photos", photos)
        if not code and not is_sealed:
            assert not has_wrong_values(store.folder, store.wanted), said
            again, found = run("store", "verify", store.folder, "--deep")
            assert not again, (said, found)

    return mend


@dataclass(frozen=True)
class Evaluation:
    """A small model, asked about captions of the store's images; whole, it must give the same figures each time."""

    arguments: tuple[object, ...]  # of the command, after the store
    figures: Any  # of the unhurt store

    @classmethod
    def of(cls, store: Original, folder: Path, *, has_captions: bool) -> "Evaluation":
        from roibeam.model.visualbert.model import VisualBertConfig, VisualBertForPreTraining

        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "picture", "of", "things", *"0123456789"]
        (folder / "vocab.txt").write_text("\n".join(words))
        seen = [record for record in store.wanted.values() if record.num_regions]
        width = seen[0].features.shape[1]
        size = {"vocab_size": len(words), "region_feature_size": width, "max_position_embeddings": 64}
        VisualBertForPreTraining(VisualBertConfig(**SIZES | size)).save_pretrained(folder / "model")
        lines = [f"a picture of {number} things\t{one.image_id}.jpg\n" for number, one in enumerate(seen)]
        (folder / "captions.tsv").write_text("".join(lines))
        captions = () if has_captions else ("--captions", folder / "captions.tsv")
        given = (
            folder / "model", *captions, "--tokenizer", folder / "vocab.txt", "--device", "cpu", "--no-retrieval",
            "--threads", 1, "--json",
        )  # fmt: skip
        arguments = ("evaluate", *given, "--store", store.folder, "--out", folder / "unhurt")
        code, said = run(*arguments, seconds=600)  # it imports torch and all that hangs on it
        assert not code, said
        return cls(given, _figures(folder / "unhurt"))

    def __call__(self, store: Original, out: Path, is_sealed: bool) -> None:
        code, said = run("evaluate", *self.arguments, "--store", store.folder, "--out", out)
        assert code or is_sealed or _figures(out) == self.figures, said


def _figures(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text())["figures"]


def test_a_record_is_compared_before_a_person_or_a_model_sees_it(written: Made, tmp_path: Path) -> None:
    """One bit of a feature, in every command that reads records to show them or to learn from them."""
    store, commands = written
    image_id = next(one.image_id for one in store.wanted.values() if one.num_regions > 2)
    row = next(row for row in store.rows if row.key == image_id.encode())
    data = bytearray(store.files[store.data_name])
    data[row.region_offset + row.region_length // 2] ^= 1
    model, *_ = commands["evaluate"].arguments  # type: ignore[attr-defined]
    files = ("--store", store.folder, "--tokenizer", model.parent / "vocab.txt")
    rows = "".join(f"{each},a,{number % 2}\n" for number, each in enumerate(store.wanted))
    for split in ("train", "val"):
        (tmp_path / f"{split}.csv").write_text(f"image,text,label\n{rows}")
    captioned = (*files, "--captions", model.parent / "captions.tsv", *tiny_run(6), "--threads", 1)
    learned = ("--data", tmp_path, "--steps", 6, "--set", "data.batch_size=4", "--set", "data.shared_images=true")
    try:
        (store.folder / store.data_name).unlink()
        (store.folder / store.data_name).write_bytes(data)
        for words in (
            ("store", "show", store.folder, image_id),
            ("probe", model, image_id, "a picture", *files, "--out", tmp_path / "a.svg"),
            ("pretrain", tmp_path / "pretrained", *captioned),
            ("finetune", tmp_path / "learned", "--task", "labels", "--from", model, *files, *learned, "--threads", 1),
        ):
            code, said = run(*words, seconds=600)
            assert code == 1 and f"record {image_id!r}: region value has checksum" in said, (words, said)
        with FeatureStore(store.folder) as opened:
            opened.checked_one_in = SAMPLE_ONE_IN
            read = CheckedViews(opened)
            others = [each for each in store.wanted if each != image_id][: SAMPLE_ONE_IN - 1]
            assert all(read(each).equals(store.wanted[each]) for each in others)
            assert not read(image_id).equals(store.wanted[image_id])
            pair = StorePair(opened, opened)  # of a training that shows regions of two stores
            for compared in (
                CheckedViews(opened),
                pair.__getitem__,
                lambda each: pair.annotated(each, store.wanted[each]),
                lambda each: mean_features(opened, [each]),  # of retrieval's hard negatives
            ):
                with pytest.raises(ValueError, match="region value has checksum"):
                    compared(image_id)
    finally:
        restore(store)


def examine(store: Original, commands: Commands, place: Path, seed: int) -> str:
    """ "d" where the deep verification found the damage, "." where it found none."""
    choose = random.Random(seed)
    what = hurt_on_disk(store, choose, seed)
    # Recomputed sums can cover any value; only `verify --deep` compares with the digests.
    deep, _ = run("store", "verify", store.folder, "--deep")
    try:
        wrong = has_wrong_values(store.folder, store.wanted)
    except (ValueError, OSError, KeyError) as error:
        assert "\n" not in str(error) and len(str(error)) > 20, (what, error)
        wrong = False
    assert deep or not wrong, f"{what}: values that the deep verification calls whole are others"
    sealed = False
    if wrong:
        with contextlib.suppress(ValueError, OSError, KeyError), FeatureStore(store.folder) as opened:
            sealed = any(not record.equals(store.wanted[record.image_id]) for record in opened.scan(check=True))
    for name in choose.sample(sorted(commands), 3):
        commands[name](store, place / f"{seed}-{name}", sealed)
    return "d" if deep else "."


@pytest.mark.parametrize(
    "seeds",
    [range(4), pytest.param(range(1000, 1000 + max(2, round(2000 * SHARE))), marks=pytest.mark.soak, id="2000")],
)
def test_commands_on_damaged_stores(written: Made, extracted: Made, tmp_path: Path, seeds: range) -> None:
    """Stores of both kinds take turns."""
    run("store", "verify", written[0].folder, "--deep", seconds=600)  # imports, once for all seeds

    def all_seeds(tell: Callable[[str], None]) -> None:
        for seed in seeds:
            store, commands = extracted if seed % 2 else written
            restore(store)
            try:
                mark = examine(store, commands, tmp_path, seed)
            except BaseException:
                print(f"seed {seed}", file=sys.stderr)
                raise
            tell(mark)
        print(f"{len(seeds)} stores: {sorted(OUTCOMES.items())}")

    try:
        marks = in_a_child(all_seeds, seeds)
    finally:
        restore(written[0])
        restore(extracted[0])
    assert marks.count("d") >= len(seeds) // 3, marks
