"""Files of a tokenizer and of a BERT that a user has on this machine. No torch."""

from __future__ import annotations

from pathlib import Path

from roibeam.pipelines.training.model_files.model_folder import CONFIG

BERT_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def tokenizer_file(spec: str) -> Path:
    """Its tokenizer.json or vocab.txt.

    Args:
        spec: such a file, or a folder with one of them.
    Raises:
        ValueError: for anything else.
    """
    path = Path(spec)
    for name in ("tokenizer.json", "vocab.txt"):
        if path.is_dir() and (path / name).is_file():
            return path / name
    if path.is_file():
        return path
    raise ValueError(
        f"tokenizer {spec!r} is neither a vocab.txt, nor a folder with tokenizer.json or vocab.txt, nor "
        f"'hf:<repository>', nor 'captions'"
    )


def check_tokenizer_file(spec: str | None) -> None:
    """Raises ValueError for a file or a folder that is there and is no tokenizer."""
    if spec is not None and Path(spec).exists():
        tokenizer_file(spec)


def bert_files(spec: str) -> tuple[Path, Path]:
    """Its configuration and its weights.

    Args:
        spec: folder.
    Raises:
        ValueError: when one of them is not in it.
    """
    folder = Path(spec).expanduser()
    config = folder / CONFIG
    found = [folder / name for name in BERT_WEIGHTS if (folder / name).is_file()]
    if not config.is_file() or not found:
        raise ValueError(
            f"BERT {spec}: expected a folder with {CONFIG} and {' or '.join(BERT_WEIGHTS)}, or hf:<repository>"
        )
    return config, found[0]
