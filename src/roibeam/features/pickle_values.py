"""Values that a pickle may hold: the names it may use, what stands for each, and a last check of the whole.

`safe_pickle` reads the opcodes and comes here for everything that a pickle wants "called". Nothing is imported by name,
and nothing is called that is not written out below.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from roibeam.messages import printable

MAX_DEPTH = 100  # containers in one another; consumers may walk a result recursively
TOO_DEEP = f"nests more than {MAX_DEPTH} containers in one another"
MARK = object()  # start of a container on the machine's stack
_MAX_DIMENSIONS = 32
# A value may be shared by reference, and shared values that hold shared values are small in memory but endless to walk.
_WALK_PER_BYTE, _WALK_FREE = 16, 10_000

_LEAVES = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray, np.ndarray})
_KEYS = (type(None), bool, int, float, str, bytes)
_BUILTINS = ("builtins", "__builtin__")
# Module and name in the file -> what is made of it here (`CALLS`).
NAMES = {
    **{
        f"{core}.{name}": kind
        for core in ("numpy.core.multiarray", "numpy._core.multiarray", "numpy.core._multiarray_umath")
        for name, kind in (("_reconstruct", "array"), ("scalar", "scalar"))
    },
    "numpy.core.numeric._frombuffer": "frombuffer",
    "numpy._core.numeric._frombuffer": "frombuffer",
    "numpy.ndarray": "ndarray",
    "numpy.dtype": "dtype",
    "_codecs.encode": "encode",  # bytes of Python 3 in protocols 0 to 2
    "collections.OrderedDict": "dict",
    **{f"{module}.{name}": name for module in _BUILTINS for name in ("set", "frozenset", "bytes", "bytearray")},
}


class UnsafePickleError(ValueError):
    """A pickle that is damaged or asks for more than plain data; names what and where. Nothing of it was run."""


class Name:
    """A global of the pickle: no more than its name and what stands for it here."""

    __slots__ = ("kind", "text")

    def __init__(self, text: str) -> None:
        if text not in NAMES:
            raise UnsafePickleError(f"wants to run {printable(text)} when it is read; refused")
        self.text, self.kind = text, NAMES[text]


class Unbuilt:
    """An array or dtype whose state comes later (opcode BUILD); `memo` holds the places that must then be replaced."""

    __slots__ = ("dtype", "kind", "memo")

    def __init__(self, kind: str, dtype: str = "") -> None:
        self.kind, self.dtype = kind, dtype
        self.memo: list[int] = []

    def built(self, state: tuple[Any, ...]) -> Any:
        """The array, the dtype, or the value in a 0-d array of objects."""
        return _built_array(*state) if self.kind == "array" else _built_dtype(self.dtype, *state)


def _make_array(kind: object = None, shape: object = None, typecode: object = None) -> Unbuilt:
    # numpy's own pickles have _reconstruct(ndarray, (0,), b"b"): all true values come with the state.
    if not (isinstance(kind, Name) and kind.kind == "ndarray" and shape == (0,) and typecode in (b"b", "b")):
        raise UnsafePickleError("reconstructs something other than a plain numpy.ndarray; refused")
    return Unbuilt("array")


def _make_dtype(code: object, _align: object = False, _copy: object = True) -> Unbuilt:
    text = code.decode("latin1") if isinstance(code, bytes) else code
    if not isinstance(text, str) or not re.fullmatch(r"b1|[iu][1248]|f[248]|c8|c16|O8|[SU][0-9]{1,9}", text):
        raise UnsafePickleError(f"uses the numpy dtype {printable(str(text))}; read are bool, numbers, bytes and str")
    return Unbuilt("dtype", text)


def _built_dtype(code: str, _version: object, order: object, *rest: object) -> np.dtype:
    order = order.decode("latin1") if isinstance(order, bytes) else order
    # subdtype, names, fields: a plain dtype has none of them.
    if order not in ("<", ">", "|", "=") or any(part is not None for part in rest[:3]):
        raise UnsafePickleError("uses a structured numpy dtype; read are bool, numbers, bytes and str")
    return np.dtype(code).newbyteorder(">" if order == ">" else "<" if order == "<" else "=")


def _built_array(_version: object, shape: object, dtype: object, fortran: object, raw: object) -> Any:
    if isinstance(dtype, np.dtype) and dtype.hasobject:
        if type(raw) is list and shape == () and len(raw) == 1:
            return raw[0]
        if type(raw) is list and shape == (len(raw),):
            return raw
        raise UnsafePickleError(
            "holds a numpy array of Python objects of another shape than its list; read are one object and one row"
        )
    return _array_of(raw, dtype, shape, "F" if fortran else "C")


def _array_of(raw: object, dtype: object, shape: object, order: object) -> np.ndarray:
    if isinstance(raw, str):
        raw = raw.encode("latin1")  # an array of Python 2, whose bytes were a str
    shape = (shape,) if type(shape) is int else shape
    if not isinstance(raw, (bytes, bytearray)) or not isinstance(dtype, np.dtype) or not isinstance(shape, tuple):
        raise UnsafePickleError("holds a numpy array that is not made of bytes, dtype and shape")
    sides = [side for side in shape if type(side) is int and side >= 0]
    if dtype.hasobject or not dtype.itemsize or len(sides) < len(shape) or len(shape) > _MAX_DIMENSIONS:
        raise UnsafePickleError(f"holds a numpy array of dtype {dtype} and {len(shape)} sides that cannot be")
    if (num_bytes := math.prod(sides) * dtype.itemsize) != len(raw):
        raise UnsafePickleError(
            f"holds a numpy array of shape {printable(str(shape))} and dtype {dtype}, {num_bytes:,} bytes, "
            f"but brings {len(raw):,}"
        )
    raw = bytes(raw)
    array = np.frombuffer(raw, dtype).reshape(sides, order="F" if order == "F" else "C")
    if dtype.kind == "b" and np.frombuffer(raw, np.uint8).max(initial=0) > 1:
        raise UnsafePickleError("holds a numpy array of bool with other bytes than 0 and 1")
    if (
        dtype.kind == "U"
        and np.frombuffer(raw, np.dtype(np.uint32).newbyteorder(dtype.byteorder)).max(initial=0) > 0x10FFFF
    ):
        raise UnsafePickleError("holds a numpy array of str with code points that do not exist")
    return array


def _make_encoded(text: object, encoding: object) -> bytes:
    if type(text) is not str or encoding not in ("latin1", b"latin1"):
        raise UnsafePickleError("encodes something other than text as latin1; refused")
    return text.encode("latin1")


def _make_bytearray(*arguments: object) -> bytearray:
    if not arguments:
        return bytearray()
    if len(arguments) == 1 and type(arguments[0]) is bytes:
        return bytearray(arguments[0])
    if len(arguments) == 2 and type(arguments[0]) is str and arguments[1] in ("latin-1", b"latin-1"):
        return bytearray(arguments[0].encode("latin1"))
    raise UnsafePickleError("makes a bytearray out of something other than bytes; refused")  # of a number: memory


def _make_dict(items: object = ()) -> dict[Any, Any]:
    if not isinstance(items, (list, tuple)) or not all(type(i) in (list, tuple) and len(i) == 2 for i in items):
        raise UnsafePickleError("makes an OrderedDict out of something other than pairs")
    return {checked_key(key): value for key, value in items}


def _make_set(members: object = ()) -> set[Any]:
    if not isinstance(members, (list, tuple)):
        raise UnsafePickleError("makes a set out of something other than a list")
    return set(map(checked_key, members))


CALLS: dict[str, Callable[..., Any]] = {
    "array": _make_array,
    "scalar": lambda dtype, raw: _array_of(raw, dtype, (), "C")[()],
    "frombuffer": _array_of,
    "dtype": _make_dtype,
    "encode": _make_encoded,
    "bytes": lambda: b"",  # how Python 3 writes empty bytes in protocols 0 to 2
    "bytearray": _make_bytearray,
    "dict": _make_dict,
    "set": _make_set,
    "frozenset": lambda members=(): frozenset(_make_set(members)),
}


def checked_key(value: Any) -> Any:
    """A key of a dict or a member of a set. A tuple would be hashed through all it shares, which may never end."""
    if type(value) not in _KEYS:
        raise UnsafePickleError(f"uses a {kind_of(value)} as a key or a member of a set; read are strings and numbers")
    return value


def checked_integer(value: int) -> int:
    """Checks for at most 64 bits: wider integers are slow to print and can be chosen to collide in a dict."""
    if not -(2**63) <= value < 2**64:
        raise UnsafePickleError("holds an integer of more than 64 bits")
    return value


def check_result(value: Any, num_bytes: int) -> None:
    """Checks a whole result: plain values only, nested a little, and no longer to walk than its file is long.

    One walk over the containers, children before parents, without recursion.

    Args:
        num_bytes: size of the pickle.
    Raises:
        UnsafePickleError: also for a container that contains itself.
    """
    limit = _WALK_FREE + _WALK_PER_BYTE * num_bytes
    # Id of a container -> (values in it with repetition, depth); only of those that hold others, the few in most files.
    known: dict[int, tuple[int, int]] = {}
    entered: set[int] = set()
    num_open = 0  # containers around the current one
    todo: list[tuple[Any, bool]] = [(value, False)]
    while todo:
        current, children_done = todo.pop()
        children = _children(current)
        if children is None or id(current) in known:
            continue
        nested = [child for child in children if type(child) not in _LEAVES and _children(child) is not None]
        if not nested:
            continue
        if not children_done:
            if id(current) in entered:
                raise UnsafePickleError("holds a container that contains itself")
            entered.add(id(current))
            num_open += 1
            if num_open > MAX_DEPTH:  # here as well, so that the walk ends early
                raise UnsafePickleError(TOO_DEEP)
            todo.append((current, True))
            todo.extend((child, False) for child in nested)
            continue
        num_open -= 1
        inner = [known.get(id(child)) or (len(child), 1) for child in nested]
        count = len(children) + sum(size for size, _ in inner)
        depth = 1 + max(depth for _, depth in inner)
        if depth > MAX_DEPTH:
            raise UnsafePickleError(TOO_DEEP)
        if count > limit:
            raise UnsafePickleError(
                f"repeats its parts to more than {limit:,} values, too many for {num_bytes:,} bytes"
            )
        known[id(current)] = count, depth


def _children(value: Any) -> list[Any] | tuple[Any, ...] | None:
    """Values in a container; None for a plain value and for an empty container, which has nothing to check.

    Keys and members of sets were checked when they were read.
    """
    kind = type(value)
    if kind is list or kind is tuple:
        return value or None
    if kind is dict:
        return list(value.values()) or None
    if kind in _LEAVES or kind in (set, frozenset) or isinstance(value, (np.generic, np.dtype)):
        return None
    raise UnsafePickleError(f"holds a {kind_of(value)} where plain data was expected")


def kind_of(value: object) -> str:
    """Kind of a value on the machine's stack, for an error."""
    if isinstance(value, Name):
        return f"global {value.text}"
    if isinstance(value, Unbuilt):
        return f"numpy {value.kind} without its content"
    return "mark" if value is MARK else type(value).__name__
