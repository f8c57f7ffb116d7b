"""Reading what a conformance folder holds: arrays and options, from anybody, executing nothing."""

import json
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.pipelines.common.console.command_files import read_json_object

MAX_ARRAYS_BYTES = 1 << 30
MAX_JSON_BYTES = 16 << 20


class ArrayError(ValueError):
    """What is wrong with one array of a file; `array` is its name."""

    def __init__(self, array: str, what: str) -> None:
        super().__init__(f"array {array!r} {what}")
        self.array = array


class Arrays:
    """The arrays of one .npz file; remembers which of them were asked for.

    Args:
        path: an .npz of plain numbers and text. Pickled arrays are refused, as is a file whose arrays take over 1 GiB.
    Raises:
        ValueError, OSError: one line, when the file cannot be read as such.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._arrays = _read_npz(path)
        self._unread = set(self._arrays)

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    @property
    def names(self) -> list[str]:
        return list(self._arrays)

    def below(self, folder: str) -> list[str]:
        """Names below "out/" and the like, without it."""
        return [name.removeprefix(folder) for name in self.names if name.startswith(folder)]

    @property
    def unread(self) -> list[str]:
        """Arrays that were not read, in the file's order."""
        return [name for name in self._arrays if name in self._unread]

    def take(self, name: str, *shape: int | None) -> np.ndarray:
        """One array.

        Args:
            shape: what its shape must be, None for any length of an axis; no argument at all allows every shape.
        Raises:
            ArrayError: when the file has no such array, or one of another shape.
        """
        if name not in self._arrays:
            raise ArrayError(name, f"is not in {self.path.name}; is the file cut, or of another version?")
        self._unread.discard(name)
        array = self._arrays[name]
        if shape and not (
            array.ndim == len(shape)
            and all(want is None or got == want for got, want in zip(array.shape, shape, strict=True))
        ):
            wanted = ", ".join("any" if want is None else str(want) for want in shape)
            raise ArrayError(name, f"has shape {array.shape}, expected ({wanted})")
        return array

    def text(self, name: str) -> str:
        """Raises ArrayError for an array that is not one text."""
        array = self.take(name)
        if array.dtype.kind != "U" or array.ndim:
            raise ArrayError(name, f"has shape {array.shape} and holds {array.dtype}, expected one text")
        return str(array)

    def json(self, name: str) -> Any:
        """Raises ArrayError for a text that is no JSON."""
        text = self.text(name)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ArrayError(name, f"is no JSON: {_one_line(error)}") from None

    def take_finite(self, name: str, *shape: int | None) -> np.ndarray:
        """As `take`, and every number finite: for what a network is fed with."""
        array = self.take(name, *shape)
        if array.dtype.kind == "U" or not np.isfinite(array).all():
            raise ArrayError(name, "holds NaN, infinity or text")
        return array


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            num_bytes = sum(member.file_size for member in archive.infolist())
            if num_bytes > MAX_ARRAYS_BYTES:
                raise ValueError(f"unpacks to {num_bytes} bytes, more than {MAX_ARRAYS_BYTES}")
            return {
                member.filename.removesuffix(".npy"): _read_member(archive, member) for member in archive.infolist()
            }
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path}: not an .npz file, or damaged: {error}") from None
    except (ValueError, EOFError, KeyError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise ValueError(f"{path}: {_one_line(error)}") from None


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """One array; its header is not believed: numpy would reserve whatever it asks for."""
    if not member.filename.endswith(".npy"):
        raise ValueError(f"{member.filename!r} is no array; an .npz holds .npy members only")
    try:
        with archive.open(member) as file:
            major, _ = np.lib.format.read_magic(file)
            read_header = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}.get(major)
            if read_header is None:
                raise ValueError(f"format version {major} is unknown")
            shape, _, dtype = read_header(file)
            if dtype.kind not in "biufU":
                raise ValueError(f"holds {dtype}; only plain numbers and text are read, never pickled objects")
            count = 1
            for length in shape:
                count *= length
            if count * dtype.itemsize > member.file_size:
                raise ValueError(f"claims shape {shape} {dtype}, but holds {member.file_size} bytes")
        with archive.open(member) as file:
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
    except ValueError as error:
        raise ValueError(f"array {member.filename.removesuffix('.npy')!r} is damaged or refused: {error}") from None


def read_case_json(path: Path, *, parse_float: Callable[[str], float] = float) -> dict[str, Any]:
    """The JSON object in a file of a case; ValueError, one line, when there is none, or the file is over 16 MiB."""
    return read_json_object(path, max_bytes=MAX_JSON_BYTES, parse_float=parse_float)


def is_number(value: Any) -> bool:
    """Whether a value of a JSON text is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
