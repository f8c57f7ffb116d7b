"""The pickle machine: what plain pickles give, and that hostile ones give one line, run nothing and make no memory."""

import collections
import io
import os
import pickle
import random
import re
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from characters import texts
from exchange_examples import Runs
from fuzz_child import traced_peak
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from soak_share import SHARE

from roibeam.features.pickle_values import UnsafePickleError
from roibeam.features.safe_pickle import load_pickle, loads_pickle

PROTOCOLS = range(6)


def read(data: bytes, **options: Any) -> Any:
    return loads_pickle(data, source="a.pkl", **options)


def refused(data: bytes, **options: Any) -> str:
    with pytest.raises(UnsafePickleError) as error:
        read(data, **options)
    message = str(error.value)
    assert message.startswith("a.pkl: ") and "\n" not in message and len(message) < 500 and message.isprintable()
    return message


def equal(left: Any, right: Any) -> bool:
    """Same values of the same types; NaN equals NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, (float, complex, np.generic)):
        return left == right or (left != left and right != right)
    return bool(left == right)


PLAIN: dict[str, Any] = {
    "numbers": [0, 1, -1, 255, 256, 65536, -(2**31), 2**31, 2**63, -(2**63), 2**64 - 1, 0.1, -0.0, 1e308, float("inf")],
    "constants": [None, True, False],
    "text": ["", "plain", "\u00fc\u4e2d\U0001f600", "a'b\"c\\d\n\t", "\ud800", "x" * 300],
    "bytes": [b"", b"a", bytes(range(256)), b"y" * 70_000, bytearray(b""), bytearray(b"12\xff")],
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ((1,), [2])],
    "dicts": [{}, {"a": 1}, {1: "b", None: 2, b"k": 3, 2.5: 4}, {True: 5}],
    "sets": [set(), {1, 2}, frozenset(), frozenset(["a"])],
    "shared": [["same"]] * 3,
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", PLAIN)
def test_plain_values_come_back(name: str, protocol: int) -> None:
    assert equal(read(pickle.dumps(PLAIN[name], protocol)), PLAIN[name])


ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(4, dtype=">i4"), np.array([1.5, np.nan], np.float16), np.array([True, False]), np.array([1 + 2j]),
    np.array(["ab", "\u00fc\u4e2d"]), np.array([b"ab", b"c"]), np.zeros((0, 4)), np.array(7),
    np.float32(1.5), np.int64(-3), np.bool_(True), np.dtype("<f4"),
]  # fmt: skip


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_arrays_scalars_and_dtypes_come_back(protocol: int) -> None:
    found = read(pickle.dumps(ARRAYS, protocol))
    assert all(map(equal, found, ARRAYS))
    assert found[1].flags.f_contiguous and not found[0].flags.writeable


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_ordered_dict_is_a_dict_and_arrays_of_objects_are_their_objects(protocol: int) -> None:
    ordered = collections.OrderedDict([("b", 1), ("a", [np.float32(2)])])
    assert read(pickle.dumps(ordered, protocol)) == {"b": 1, "a": [2.0]}
    row = np.array([{"question_id": 1}, "two"], dtype=object)  # what Pythia keeps questions in
    assert loads_pickle(pickle.dumps(row, protocol), source="a test") == [{"question_id": 1}, "two"]
    info = {"image_id": "1", "objects_id": np.arange(3)}  # what np.savez makes of MILVLG's `info`
    found = read(pickle.dumps(np.array(info, dtype=object), protocol))
    assert found["image_id"] == "1" and found["objects_id"].tolist() == [0, 1, 2]


# Python 2 with numpy 1: pickle.dumps({'k': 'caf\xe9', 'u': u'\xe9', 'a': numpy.array([1.5], 'f4'), 'n': 3L}, protocol)
PYTHON2 = {
    0: b"(dp0\nS'a'\np1\ncnumpy.core.multiarray\n_reconstruct\np2\n(cnumpy\nndarray\np3\n(I0\ntp4\nS'b'\np5\ntp6\nRp7\n"
    b"(I1\n(I1\ntp8\ncnumpy\ndtype\np9\n(S'f4'\np10\nI0\nI1\ntp11\nRp12\n(I3\nS'<'\np13\nNNNI-1\nI-1\nI0\ntp14\nbI00\n"
    b"S'\\x00\\x00\\xc0?'\np15\ntp16\nbsS'k'\np17\nS'caf\\xe9'\np18\nsS'u'\np19\nV\xe9\np20\nsS'n'\np21\nL3L\ns.",
    2: b"\x80\x02}q\x00(U\x01aq\x01cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85q\x04U"
    b"\x01bq\x05\x87q\x06Rq\x07(K\x01K\x01\x85q\x08cnumpy\ndtype\nq\tU\x02f4q\nK\x00K\x01\x87q\x0bRq\x0c(K\x03U\x01<q\rNNNJ"
    b"\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x0eb\x89U\x04\x00\x00\xc0?q\x0ftq\x10bU\x01kq\x11U\x04caf\xe9q\x12U\x01uq"
    b"\x13X\x02\x00\x00\x00\xc3\xa9q\x14U\x01nq\x15\x8a\x01\x03u.",
}


@pytest.mark.parametrize("protocol", PYTHON2)
def test_pickles_of_python_2(protocol: int) -> None:
    found = read(PYTHON2[protocol])
    assert found == {"a": np.float32([1.5]), "k": "caf\xe9", "u": "\xe9", "n": 3}
    found = read(PYTHON2[protocol], encoding="bytes")
    assert found == {b"a": np.float32([1.5]), b"k": b"caf\xe9", b"u": "\xe9", b"n": 3}
    theirs = pickle.loads(PYTHON2[protocol], encoding="latin1")
    assert theirs == read(PYTHON2[protocol])


def test_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "b.pkl"
    path.write_bytes(pickle.dumps({"a": 1}))
    assert load_pickle(path) == {"a": 1}
    path.write_bytes(pickle.dumps(os.getcwd))
    with pytest.raises(UnsafePickleError, match=rf"{path}: wants to run \w+\.getcwd when it is read; refused"):
        load_pickle(path)


class Stateful:
    def __init__(self, state: Any) -> None:
        self.state = state

    def __getstate__(self) -> Any:
        return self.state


class MyArray(np.ndarray):
    pass


def hostile(canary: Path) -> dict[str, Any]:
    """Name -> an object whose pickle makes a folder, or worse, when something trusting reads it."""
    command = f"mkdir {canary}"
    source = f"__import__('os').mkdir({str(canary)!r})"
    return {
        "system": Runs(os.system, command),
        "mkdir": Runs(os.mkdir, str(canary)),
        "eval": Runs(eval, source),
        "exec": Runs(exec, source),
        "getattr": Runs(getattr, Runs(__import__, "os"), "mkdir"),
        "nested": Runs(np.dtype, Runs(os.mkdir, str(canary))),
        "in a dict": {"model": {"a": np.zeros(2), "b": Runs(os.mkdir, str(canary))}},
        "as a key": {Runs(os.mkdir, str(canary)): 1},
        "numpy.load": Runs(np.load, io.BytesIO),
        "numpy.frombuffer": Runs(np.frombuffer, b"1234"),
        "fromfile": Runs(np.fromfile, "/etc/passwd"),
        "ndarray of a terabyte": Runs(np.ndarray, (2**37,), "f8"),
        "a type": dict,
        "a function": len,
        "a class of ours": Stateful({"a": 1}),
        "a subclass of ndarray": np.zeros(2).view(MyArray),
        "structured": np.zeros(2, [("a", "f4")]),
        "objects": np.array([[{}, {}], [{}, {}]], dtype=object),
        "dates": np.array(["2020"], "M8[Y]"),
        "void": np.zeros(2, "V4"),
        "module": Runs(__import__, "antigravity"),
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", hostile(Path("x")))
def test_hostile_objects_are_refused_and_run_nothing(tmp_path: Path, name: str, protocol: int) -> None:
    canary = tmp_path / "canary"
    content = hostile(canary)[name]
    try:
        data = pickle.dumps(content, protocol)
    except TypeError:
        pytest.skip("not to be written in this protocol")
    assert "nothing was run" in refused(data)
    assert not canary.exists()
    if name == "mkdir":
        pickle.loads(data)
        assert canary.exists()  # the trap works


def op(*parts: Any) -> bytes:
    """Opcodes by hand: bytes as they are, text as a line."""
    return b"".join(part if isinstance(part, bytes) else f"{part}\n".encode() for part in parts)


RECONSTRUCT = op(b"c", "numpy.core.multiarray", "_reconstruct", b"(c")
ARRAY = RECONSTRUCT + op("numpy", "ndarray", b"K\x00\x85C\x01btR")
F4 = op(
    *(b"c", "numpy", "dtype", b"(", b"X\x02\x00\x00\x00f4", b"K\x00K\x01tR"),
    b"(K\x03X\x01\x00\x00\x00<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
)


def array_state(shape: bytes, raw: bytes, dtype: bytes = F4) -> bytes:
    return ARRAY + b"(K\x01" + shape + dtype + b"\x89" + raw + b"tb."


BY_HAND = {
    "instance": (op(b"(S'mkdir x'\ni", "os", "system", b"."), "wants to run os.system"),
    "stack global": (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "wants to run os.system"),
    "dotted name": (b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.__new__\x93.", "wants to run numpy.ndarray.__new__"),
    "deep attribute": (b"\x80\x04\x8c\x08builtins\x8c\x0dbytes.fromhex\x93.", "wants to run builtins.bytes.fromhex"),
    "codec": (op(b"c", "_codecs", "encode", b"(X\x01\x00\x00\x00aX\x03\x00\x00\x00bz2tR."), "text as latin1"),
    "bytes of a number": (op(b"c", "builtins", "bytes", b"(J\x00\x00\x00\x7ftR."), "other arguments"),
    "bytearray of a number": (op(b"c", "builtins", "bytearray", b"(J\x00\x00\x00\x7ftR."), "other than bytes"),
    "array of other type": (RECONSTRUCT + op("builtins", "set", b"K\x00\x85C\x01btR."), "than a plain numpy.ndarray"),
    "array of huge start": (
        RECONSTRUCT + op("numpy", "ndarray", b"J\x00\x00\x00\x7f\x85C\x01btR."), "other than a plain numpy.ndarray"
    ),
    "array called": (op(b"c", "numpy", "ndarray", b"(J\x00\x00\x00\x7f\x85tR."), "calls a global numpy.ndarray"),
    "array of no content": (ARRAY + b".", "numpy array without its content"),
    "array in a list without content": (b"](" + ARRAY + b"e.", "numpy array without its content"),
    "huge shape": (array_state(b"J\x00\x00\x00\x7f\x85", b"C\x04abcd"), "8,522,825,728 bytes, but brings 4"),
    "overflowing shape": (array_state(b"(" + b"J\x00\x00\x00\x7f" * 8 + b"t", b"C\x00"), "but brings 0"),
    "negative shape": (array_state(b"J\xff\xff\xff\xff\x85", b"C\x04abcd"), "sides that cannot be"),
    "33 sides": (array_state(b"(" + b"K\x01" * 33 + b"t", b"C\x04abcd"), "33 sides"),
    "text for a shape": (array_state(b"(X\x01\x00\x00\x001t", b"C\x04abcd"), "sides that cannot be"),
    "list for bytes": (array_state(b"K\x01\x85", b"]"), "not made of bytes"),
    "text for a dtype": (array_state(b"K\x01\x85", b"C\x04abcd", b"X\x02\x00\x00\x00f4"), "not made of bytes"),
    "state of a dict": (b"}}b.", "sets the state of a dict"),
    "state of a global": (op(b"c", "numpy", "ndarray", b"}b."), "sets the state of a global numpy.ndarray"),
    "call of text": (b"X\x01\x00\x00\x00a)R.", "calls a str"),
    "global as a value": (op(b"c", "numpy", "ndarray", b"."), "holds a global numpy.ndarray"),
    "global as a key": (op(b"}c", "numpy", "ndarray", b"Ns."), "as a key"),
    "tuple as a key": (b"})Ns.", "uses a tuple as a key"),
    "persistent id": (op(b"P", "x", b"."), "refers to an object outside itself"),
    "registered class": (b"\x82\x01.", "uses a registered class"),
    "next buffer": (b"\x97.", "keeps its arrays outside itself"),
    "protocol 6": (b"\x80\x06N.", "pickle protocol 6"),
    "unknown opcode": (b"\xff.", "is no pickle: unknown opcode 0xff"),
    "html": (b"<html>", "is no pickle"),
    "long bytes": (b"B\xff\xff\xff\x7fabc.", "asks for 2,147,483,647 bytes where 4 are left"),
    "very long bytes": (b"\x8e" + b"\xff" * 7 + b"\x7fabc.", "are left"),
    "very long bytearray": (b"\x96" + b"\xff" * 7 + b"\x7fabc.", "are left"),
    "very long text": (b"\x8d" + b"\xff" * 7 + b"\x7fabc.", "are left"),
    "negative length": (b"T\xff\xff\xff\xffabc.", "are left"),
    "long integer": (b"\x8b\xff\xff\xff\x7fabc.", "more than 64 bits"),
    "wide integer": (b"\x8a\x0a" + b"\x01" * 10 + b".", "more than 64 bits"),
    "integer of many digits": (b"L" + b"9" * 5000 + b"L\n.", "more than 64 bits"),
    "mark alone": (b"(.", "holds a mark|ends with"),
    "mark remembered": (b"(q\x00.", "remembers a mark"),
    "no mark": (b"e.", "never opened"),
    "append to a dict": (b"}Na.", "appends to a dict"),
    "items of a list": (b"]NNs.", "sets items of a list"),
    "key without value": (b"}(Nu.", "a key and no value"),
    "two values": (b"NN.", "ends with 2 values"),
    "nothing": (b"", "not a complete pickle"),
    "empty memo": (b"h\x07.", "not a complete pickle"),
    "list in itself": (b"]q\x00h\x00a.", "contains itself"),
    "dict in itself": (b"}q\x00Nh\x00s.", "contains itself"),
    "tuple in its list": (b"]q\x00(h\x00ta.", "contains itself"),
    "nested lists": (b"]" * 20_000 + b"a" * 19_999 + b".", "nests more than 100"),
    "nested lists of a long file": (b"]K\x01aK\x01a" * 10**6 + b"a" * (10**6 - 1) + b".", "nests more than 100"),
    "nested by the memo": (b"]q\x000" + b"]h\x00aq\x000" * 10**5 + b"h\x00.", "nests more than 100"),
    "nested marks": (b"(" * 10**6 + b"t" * 10**6 + b".", "nests more than 100"),
    "nested tuples": (b")" + b"\x85" * 20_000 + b".", "nests more than 100"),
    "bool bytes": (array_state(b"K\x01\x85", b"C\x01\x02", F4.replace(b"f4", b"b1")), "other bytes than 0 and 1"),
    "code points": (
        array_state(b"K\x01\x85", b"C\x04\xff\xff\xff\xff", F4.replace(b"f4", b"U1")), "code points that do not exist"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_pickles_by_hand_are_refused(name: str) -> None:
    data, words = BY_HAND[name]
    message = refused(data)
    assert any(part in message for part in words.split("|")), message


def test_a_deep_nest_is_refused_when_it_begins_and_walked_no_deeper() -> None:
    """Three million in one another were built whole before: seconds and hundreds of megabytes."""
    for name in ("nested lists of a long file", "nested by the memo", "nested marks", "nested tuples"):
        position = re.search(r"\(byte (\d+)\)", refused(BY_HAND[name][0]))
        assert position is not None and int(position[1]) < 6_000, name
    read(b")" + b"\x85" * 100 + b".")
    data = b"N" + b"\x85" * 20_000 + b"."
    assert traced_peak(lambda: refused(data)) < 80 * len(data)  # of which 48 are the tuples themselves


def test_many_containers_side_by_side_are_no_nest() -> None:
    for value in (tuple([] for _ in range(2000)), [((),) * 3 for _ in range(2000)], {i: [[i]] for i in range(2000)}):
        for protocol in PROTOCOLS:
            assert read(pickle.dumps(value, protocol)) == value


def test_the_parts_of_the_pickles_by_hand_are_right() -> None:
    assert read(array_state(b"K\x01\x85", b"C\x04\x00\x00\xc0?")).tolist() == [1.5]
    assert read(array_state(b"K\x01\x85", b"C\x01\x01", F4.replace(b"f4", b"b1"))).tolist() == [True]


def laughs(levels: int) -> bytes:
    """Each list holds the one before ten times: a few bytes for each power of ten."""
    lists = (b"](" + 10 * bytes([0x68, i]) + b"e" + bytes([0x71, i + 1]) for i in range(levels))
    return b"]q\x00(" + b"".join(lists) + b"t."


def copies(call: bytes) -> bytes:
    """A list of pairs made once, and a dict, set or the like made of it again and again."""
    pairs = b"](" + b"".join(b"J" + struct.pack("<i", i) + b"N\x86" for i in range(500)) + b"eq\x00"
    return b"(" + pairs + (call + b"h\x00\x85R") * 4_000 + b"t."


TEXT = b"X" + struct.pack("<I", 20_000) + b"a" * 20_000 + b"q\x00"
BOMBS = {
    "laughs": laughs(30),
    "ordered dicts": copies(op(b"c", "collections", "OrderedDict")),
    "memo of four billion": b"Nr\xff\xff\xff\xff" + b".",
    "encodings": b"(" + TEXT + op(b"c", "_codecs", "encode", b"(h\x00X\x06\x00\x00\x00latin1tR") * 4_000 + b"t.",
    "lists": b"(" + b"]" * 100_000,
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_small_pickles_make_little_memory(name: str) -> None:
    peak = traced_peak(lambda: (read if name == "memo of four billion" else refused)(BOMBS[name]))
    assert peak < 200 * len(BOMBS[name]) + 2**20


def test_containers_are_counted() -> None:
    """An empty set takes a byte of the file and 216 of memory. Every kind counts: one less is not too many."""
    kinds = b"](l)}(d(tN\x85NN\x86NNN\x87\x8f(\x91" + op(b"c", "builtins", "set", b")R")
    num_others = next(n for n in range(1_100_000, 2_000_000) if n + 13 > 1_000_000 + (n + 1 + len(kinds)) // 8)
    message = refused(b"(" + b")" * num_others + kinds)
    assert f"makes more than {num_others + 12:,} lists, tuples, dicts and sets, too many for " in message
    assert "not a complete pickle" in refused(b"(" + b")" * (num_others - 1) + kinds)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_answers_of_vqa_take_more_bytes_than_containers_are_granted(protocol: int) -> None:
    """Entries of train_target.pkl (hengyuan-hu/bottom-up-attention-vqa tools/compute_softscore.py), none answered."""
    entries = [{"question_id": 10**8 + i, "image_id": 10**5 + i, "labels": [], "scores": []} for i in range(3000)]
    data = pickle.dumps(entries, protocol)
    assert read(data) == entries
    assert len(data) > 8 * (3 * len(entries) + 1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pickle_cut_off_anywhere_is_refused(protocol: int) -> None:
    data = pickle.dumps({"a": [1, "b", 2.5, np.arange(3)], "c": (b"d", {1})}, protocol)
    for end in range(len(data) - 1):
        refused(data[:end])


def test_what_a_file_says_is_shown_short_and_printable() -> None:
    message = refused(op(b"c", "\x1b[31m" + "evil" * 100, "\x07name"))
    assert r"\x1b[31mevil" in message and len(message) < 250


# Values of every kind that is read.
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | texts(9)
    | st.binary(max_size=9)
    | st.sampled_from([np.arange(3.0), np.zeros((2, 0), "f2"), np.float32(2), np.array(["\u00fc"]), np.array([True])])
)
KEYS = st.none() | st.booleans() | st.integers(-9, 9) | texts(4) | st.binary(max_size=4)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=4)
    return lists | lists.map(tuple) | st.dictionaries(KEYS, inner, max_size=4)


VALUES = st.recursive(LEAVES, containers, max_leaves=12)


def survives(data: bytes) -> None:
    """Damaged or random: a plain value or one error, never anything else."""
    try:
        read(data)
    except UnsafePickleError as error:
        assert "\n" not in str(error)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(VALUES, st.sampled_from(PROTOCOLS))
def test_any_plain_value_comes_back(value: Any, protocol: int) -> None:
    assert equal(read(pickle.dumps(value, protocol)), value)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(VALUES, st.sampled_from(PROTOCOLS), st.randoms(use_true_random=False))
def test_damage_gives_a_value_or_one_error(value: Any, protocol: int, chance: random.Random) -> None:
    survives(damaged(pickle.dumps(value, protocol), chance))


def damaged(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(changed))
        kind = chance.randrange(4)
        if kind == 0:
            changed[at] = chance.randrange(256)
        elif kind == 1:
            changed[at:at] = bytes(chance.randrange(256) for _ in range(chance.randint(1, 5)))
        elif kind == 2:
            del changed[at : at + chance.randint(1, 5)]
        else:
            other = chance.randrange(len(changed))
            changed[at:at] = changed[other : other + chance.randint(1, 40)]
        if not changed:
            changed = bytearray(b".")
    return bytes(changed)


def test_damaged_pickles_of_the_hostile_run_nothing(tmp_path: Path) -> None:
    canary, chance = tmp_path / "canary", random.Random(3)
    data = pickle.dumps({"a": np.zeros(2), "b": Runs(os.mkdir, str(canary))}, 2)
    for _ in range(2000):
        survives(damaged(data, chance))
    assert not canary.exists()


WATCHED = ("os.", "subprocess.", "exec", "compile", "open", "import", "ctypes", "pickle.")


@pytest.mark.soak
def test_damage_for_long(tmp_path: Path) -> None:
    """Watches what the interpreter itself reports, so a call that leaves no trace on disk is seen too."""
    canary, chance = tmp_path / "canary", random.Random(11)
    seen: list[str] = []
    watching = True

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event.startswith(WATCHED):
            seen.append(f"{event} {arguments}")

    values = [pickle.dumps(value, p) for value in [*PLAIN.values(), ARRAYS, PYTHON2] for p in PROTOCOLS]
    values += [pickle.dumps(hostile(canary)[name], p) for name in ("system", "nested", "objects") for p in (0, 2, 4)]
    sys.addaudithook(audit)
    for round_number in range(round(400_000 * SHARE)):
        survives(damaged(values[round_number % len(values)], chance))
    watching = False
    print(f"{round_number + 1} damaged pickles of {len(values)}")
    assert not canary.exists() and not seen, seen[:5]
