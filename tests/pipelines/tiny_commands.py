"""What tests of commands share: options of a network and of models of milliseconds, pictures with their store, and the
one line of an error."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from in_process import run_roibeam

from roibeam.features.store import FeatureStore

Cli = Callable[..., Any]  # the fixture `roibeam`
# Fields of every model, and those that a system has beside them: InterBERT shares its layers out to three parts,
# ViLBERT names the layers that meet.
TINY: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
TINY_OF: dict[str, dict[str, Any]] = {
    "vilbert": {
        "image_hidden_size": 32, "image_num_hidden_layers": 1, "image_num_attention_heads": 2,
        "image_intermediate_size": 64, "co_attention_size": 32, "co_attention_num_heads": 2,
        "text_co_attention": [0], "image_co_attention": [0],
    },
    "interbert": {
        "text_num_hidden_layers": 1, "image_num_hidden_layers": 1, "image_num_attention_heads": 2,
        "image_intermediate_size": 64, "pooled_size": 32,
    },
}  # fmt: skip


def tiny_sizes(system: str = "") -> tuple[str, ...]:
    """These fields as a command takes them."""
    fields = {**TINY, **TINY_OF.get(system, {})}
    return tuple(word for name, value in fields.items() for word in ("--set", f"model.{name}={value}"))


TINY_SIZES = tiny_sizes()
# Of a run end to end.
TINY_JOINT = (
    "--steps", 2, "--batch-size", 4, "--threads", 1, "--set", "model.hidden_size=16",
    "--set", "model.num_hidden_layers=1",
    "--set", "model.num_attention_heads=2", "--set", "model.intermediate_size=24",
)  # fmt: skip
TINY_ENCODER = (
    "--end-to-end", "--detector", "small", "--weights", "random:1", "--set", "detector.short_edge=48",
    "--set", "detector.long_edge=80", "--set", "detector.base_channels=4",
)  # fmt: skip


def tiny_run(steps: int, batch_size: int = 4) -> tuple[object, ...]:
    """Options of `roibeam pretrain`."""
    return ("--steps", steps, "--batch-size", batch_size, *TINY_SIZES)


class Pictures(NamedTuple):
    """A folder of drawn pictures, their captions, and their store.

    Session-wide: nothing may be written there. What a test changes it changes in a copy.
    """

    photos: Path
    captions: Path
    store: Path


def draw_pictures(folder: Path, network: tuple[str, ...], *, count: int, **world: int) -> Pictures:
    from roibeam.pipelines.toyworld.rendering import draw_samples

    captions = draw_samples(folder / "samples", count=count, **world)
    made = Pictures(folder / "samples" / "images", captions, folder / "store")
    extract(made.photos, made.store, *network)
    return made


def extract(source: Path, store: Path, *options: object) -> None:
    command("extract", source, store, *options)


def command(*words: object) -> None:
    """A command line that succeeds, for fixtures of more than one test."""
    assert run_roibeam(*words) == 0, words


def ok(result: Any) -> Any:
    """The result of a command that succeeded."""
    assert result.code == 0, result.err
    return result


def one_line(result: Any) -> str:
    """The last line of a command's errors; it failed, and without a traceback."""
    assert result.code != 0 and "Traceback" not in result.err, result.err
    return str(result.err.splitlines()[-1])


def refused(result: Any) -> str:
    """The same, of a command that its user's mistake stopped."""
    assert result.code == 1, result
    return one_line(result)


def damage_record(store: Path, image_id: str) -> None:
    """Changes a byte of its features, wherever they lie."""
    with FeatureStore(store) as opened:
        features = opened[image_id].features.tobytes()
    (path,) = (each for each in store.glob("*.lmdb") if features in each.read_bytes())
    content = bytearray(path.read_bytes())
    content[content.index(features) + 5] ^= 1
    path.write_bytes(content)


def digest(store: Path) -> str:
    """Of what a store holds."""
    with FeatureStore(store) as opened:
        return opened.manifest.content_digest
