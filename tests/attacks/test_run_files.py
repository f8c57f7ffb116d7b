"""Files of a run that are hurt, and models, tokenizers, detectors and weights of strangers: one line, and no answer."""

import base64
import hashlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked_command import done, run
from hurt_files import Hurt, a_pipe, edited, flipped

from roibeam.extraction.weights.detector_choice import SHIPPED

Json = dict[str, Any]


def newest(folder: Path) -> Path:
    return sorted((folder / "checkpoints").glob("step-*"))[-1]


def resummed(folder: Path) -> None:
    """Sums that fit: a stranger has written them too."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(lines))


def swap_words(content: Json) -> None:
    pieces = content["model"]["vocab"]
    first, second = [piece for piece in pieces if piece.isalpha() and len(piece) > 2][5:7]
    pieces[first], pieces[second] = pieces[second], pieces[first]


def on_keys(change: Callable[[np.ndarray], object]) -> Callable[[Path], None]:
    return lambda path: np.save(path, change(np.load(path)))


lower_case_off = edited(lambda content: content["normalizer"].update(lowercase=False))
one_bit = flipped(0.5)


def better_score(path: Path) -> None:
    first, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first.replace('"step": 0', '"step": 2'), *others]))


PREDICT = "predict {run} --store {perfect} --data {own} --out {out}"
PAIRS = "predict {run} --store {perfect} --data {flickr} --out {out} --split test"
PROBE = "probe {run} {image} a+[MASK] --store {store} --out {out}.png"
FROM = "finetune {out} --task labels --from {run} --store {perfect} --data {own} --steps 1 --batch-size 2"
MORE = (
    "finetune {run} --task retrieval --from none --system visualbert --model small --store {perfect} --data {flickr} "
)
MORE += "--steps 5 --batch-size 4 --set train.checkpoint_every=2 --tokenizer {vocabulary}"
LEAKS = "leaks {run} --held-out list={taken}"
EVALUATE = "evaluate {run} --store {store} --captions {captions} --out {out} --max-images 6 --no-retrieval"
GO_ON = "pretrain {run} --store {store} --captions {captions} --system visualbert --model small --batch-size 4 "
GO_ON += "--set train.checkpoint_every=2 --steps 5 --tokenizer {vocabulary}"
CONVERT = "convert {run} {out} --to roibeam"

TOKENIZER, IMAGES = "tokenizer/tokenizer.json", "trained_images.npy"


def command(words: str, attacked: Any, folder: Path, tmp_path: Path, **more: object) -> list[str]:
    image = json.loads((attacked / "store/part-00000.json").read_text())["first_id"]
    files = {
        "run": folder, "perfect": attacked / "perfect", "own": attacked / "own", "store": attacked / "store",
        "flickr": attacked / "world/flickr30k", "out": tmp_path / "out", "captions": attacked.captions,
        "taken": tmp_path / "taken.txt", "vocabulary": attacked / "world/vocab.txt", "image": image,
    }  # fmt: skip
    return [word.format(**files, **more).replace("+", " ") for word in words.split()]


HURT = [
    ("labels", TOKENIZER, edited(swap_words), (PREDICT, FROM)),
    ("labels", TOKENIZER, lower_case_off, (PREDICT,)),
    ("labels", "tokenizer/tokenizer_config.json", one_bit, (PREDICT,)),
    ("retrieval", TOKENIZER, edited(swap_words), (PAIRS, MORE)),
    ("run", TOKENIZER, edited(swap_words), (PROBE, EVALUATE, GO_ON)),
    ("retrieval", "hard_negatives.npz", one_bit, (MORE,)),
    ("labels", "config.json", edited(lambda content: content["train"].update(seed=9)), (PREDICT,)),
    ("labels", "config.json", a_pipe, (PREDICT,)),
    ("labels", "evaluation.jsonl", better_score, (PREDICT,)),
    ("run", "word_counts.npz", one_bit, (EVALUATE,)),
    *(("labels", IMAGES, on_keys(change), (LEAKS, PREDICT, FROM)) for change in (
        lambda keys: keys[::-1], lambda keys: keys ^ np.uint64(1), lambda keys: keys[:, None], lambda keys: keys[:0],
        lambda keys: keys[0], lambda keys: keys.astype("int64"),
    )),
]  # fmt: skip


@pytest.mark.parametrize(
    "kind, name, hurt, commands", HURT, ids=[f"{each[0]} {each[1]} {k}" for k, each in enumerate(HURT)]
)
def test_what_lies_beside_the_checkpoints_is_compared(
    attacked: Any, tmp_path: Path, kind: str, name: str, hurt: Hurt, commands: tuple[str, ...]
) -> None:
    folder = attacked.copied(kind, tmp_path)
    images = {json.loads(line)["image"] for line in (attacked / "own/train.jsonl").open()}
    (tmp_path / "taken.txt").write_text("".join(f"{image}\n" for image in images))
    hurt(folder / name)
    for words in commands:
        run(*command(words, attacked, folder, tmp_path)).refused(str(folder / name))


@pytest.mark.parametrize("hurt", [lambda keys: keys[::-1], lambda keys: np.append(keys[1:], np.uint64(0)),
                                  lambda keys: keys[:, None], lambda keys: keys[0], lambda keys: keys[:0],
                                  lambda keys: keys.astype(float), lambda keys: keys.astype(str)])  # fmt: skip
def test_leaks_are_not_denied_by_damage_in_a_run_without_sums(attacked: Any, tmp_path: Path, hurt: Any) -> None:
    folder = attacked.copied("labels", tmp_path)
    (folder / "SHA256SUMS").unlink()
    (tmp_path / "taken.txt").write_text("x\n")
    on_keys(hurt)(folder / IMAGES)
    run(*command(LEAKS, attacked, folder, tmp_path)).refused(str(folder / IMAGES))


@pytest.mark.parametrize("words", [PREDICT, CONVERT, LEAKS])
def test_a_run_that_was_moved_and_tidied_still_works(attacked: Any, tmp_path: Path, words: str) -> None:
    folder = attacked.copied("labels", tmp_path)
    (tmp_path / "taken.txt").write_text("x\n")
    for path in sorted((folder / "checkpoints").glob("step-*"))[:-1]:
        shutil.rmtree(path)
    if words != LEAKS:
        (folder / IMAGES).unlink()
    done(*command(words, attacked, folder, tmp_path))


CONFIG = [
    ("labels", "model num_hidden_layers", 10**7), ("labels", "model hidden_size", 10**400),
    ("labels", "head model_type", [1]), ("run", "architectures", {"a": 1}), ("labels", "model", 5),
    ("run", "num_hidden_layers", 10**7), ("run", "hidden_dropout", float("nan")), ("run", "vocab_size", 2**40),
    ("run", "num_attention_heads", 0), ("run", "num_segments", "9" * 3000), ("run", "max_position_embeddings", [512]),
]  # fmt: skip


@pytest.mark.parametrize(
    "kind, field, value", CONFIG, ids=[f"{kind} {field} {value!r:.9}" for kind, field, value in CONFIG]
)
def test_a_strangers_model_is_bounded_by_its_file(
    attacked: Any, tmp_path: Path, kind: str, field: str, value: object
) -> None:
    folder = attacked.copied(kind, tmp_path)

    def change(content: Json) -> None:
        *parts, name = field.split()
        for part in parts:
            content = content[part]
        content[name] = value

    edited(change)(newest(folder) / "model/config.json")
    resummed(newest(folder))
    for words in (*([] if "head" in field else [CONVERT]), PREDICT if kind == "labels" else PROBE):
        ended = run(*command(words, attacked, folder, tmp_path), seconds=20, gigabytes=3)
        ended.refused(str(newest(folder)))
        assert len(ended.line) < 1000


def vocabulary(**change: int) -> Callable[[Json], None]:
    return lambda content: content["model"]["vocab"].update(change)


def part(name: str, **step: object) -> Callable[[Json], None]:
    return lambda content: content.update({name: step})


GROWS = {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaa"}
CHARSMAP = base64.b64encode(b"\xff\xff\xff\x7f" + b"\xff" * 400).decode()
TOKENIZERS: dict[str, Callable[[Json], object]] = {
    "id too large": vocabulary(**{"[CLS]": 10**9}), "id negative": vocabulary(the=-1), "id twice": vocabulary(the=5),
    "id of 2^32": vocabulary(**{"[CLS]": 2**32 - 1}), "id a float": vocabulary(the=5.0),  # type: ignore[arg-type]
    "no unk": lambda content: content["model"]["vocab"].pop("[UNK]"), "endless": vocabulary(**{"w" * 10**6: 272}),
    "expression": part("normalizer", type="Replace", pattern={"Regex": "(([a-z ])+.)+$"}, content=""),
    "grows": part("normalizer", type="Sequence", normalizers=[GROWS] * 7),
    "many": part("normalizer", type="Sequence", normalizers=[{"type": "Lowercase"}] * 300_000),
    "charsmap": part("normalizer", type="Precompiled", precompiled_charsmap=CHARSMAP),
    "length": part("pre_tokenizer", type="FixedLength", length=0),
    "doubled": part("model", type="Unigram", vocab=[["a", 0.0]] * 3),
    "merges": part("model", type="BPE", vocab={"a": 0}, merges=[["a", "zz"]]), "no model": part("model"),
}  # fmt: skip


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_strangers_tokenizer_is_one_line(attacked: Any, tmp_path: Path, name: str) -> None:
    folder = attacked.copied("labels", tmp_path)
    (folder / "SHA256SUMS").unlink()
    edited(TOKENIZERS[name])(folder / TOKENIZER)
    for words in (PREDICT, FROM):
        ended = run(*command(words, attacked, folder, tmp_path), seconds=20, gigabytes=3)
        ended.refused(str(folder / TOKENIZER))


def test_the_code_that_a_tokenizer_names_does_not_run(attacked: Any, tmp_path: Path) -> None:
    folder = attacked.copied("labels", tmp_path)
    named = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    edited(lambda content: content.update(named))(folder / "tokenizer/tokenizer_config.json")
    (folder / "tokenizer/evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    (folder / "SHA256SUMS").unlink()
    done(*command(PREDICT, attacked, folder, tmp_path))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("tensor", [torch.zeros(1).expand(2_000_000, 1000), torch.empty(10**12, device="meta")])
def test_a_number_that_stands_for_many_is_not_copied(tmp_path: Path, tensor: torch.Tensor) -> None:
    data = io.BytesIO()
    torch.save({"bert.embeddings.word_embeddings.weight": tensor}, data)
    (tmp_path / "small.pth").write_bytes(data.getvalue())
    ended = run("convert", tmp_path / "small.pth", tmp_path / "out", "--to", "roibeam", gigabytes=2)
    ended.refused(str(tmp_path / "small.pth"))


@pytest.mark.parametrize("field, value", [
    ("base_channels", 1024), ("rpn_hidden_channels", 16000), ("base_channels", 10**400), ("long_edge", 10**7),
    ("anchor_sizes", [8.0] * 100_000), ("pooled_cells", 10**6), ("depth", [26]), ("num_classes", 24.0),
])  # fmt: skip
def test_a_strangers_detector_is_bounded_by_its_file(attacked: Any, tmp_path: Path, field: str, value: object) -> None:
    folder = Path(shutil.copytree(SHIPPED["toy"], tmp_path / "detector"))
    edited(lambda content: content["detector"].update({field: value}))(folder / "config.json")
    words = (attacked / "world/coco/train2014", tmp_path / "store", "--detector", folder)
    (ended := run("extract", *words, gigabytes=3)).refused(str(folder))
    assert len(ended.line) < 1000
