"""Reader of pickles from outside: plain containers, strings, numbers and numpy arrays; nothing in a pickle is run.

A separate pickle machine, not a restricted `pickle.Unpickler`: there an allowed callable such as `numpy.ndarray` can
ask for a terabyte, and a few bytes make the memo table grow until the machine dies. Here a "global" is only a name, a
call is looked up among a handful (pickle_values.py), and arrays are built from bytes of the file: memory is bounded by
the file's size (see `MAX_STEPS`, `_BYTES_PER_CONTAINER`). Protocols 0 to 5 (python/cpython Lib/pickletools.py), of
Python 2 or 3, numpy 1 or 2. Read are None, bool, int (64 bits), float, str, bytes, bytearray, list, tuple, dict and
OrderedDict (as dict), set, frozenset, numpy dtypes, arrays and scalars of bool, int, float, complex, bytes and str; an
array of shape () that holds one such value (`np.savez` of a dict) as the value, an array of one axis that holds such
values as a list. Keys of dicts and members of sets are None, bool, int, float, str or bytes.
"""

import codecs
import os
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from roibeam.features.pickle_values import (
    CALLS,
    MARK,
    MAX_DEPTH,
    TOO_DEEP,
    Name,
    Unbuilt,
    UnsafePickleError,
    check_result,
    checked_integer,
    checked_key,
    kind_of,
)

# Opcodes. The dearest but for containers, remembering a value, takes about 80 bytes of memory for one of the file.
MAX_STEPS = 30_000_000
# One byte of a file makes an empty set of 216 bytes, so containers are counted: a million, which stay below a quarter
# of a gigabyte, and one more for each 8 bytes of the file. No fixed number alone would do: VQA's answers as pickled for
# bottom-up-attention models (train_target.pkl) have 2 million with the validation set (658,111 questions, each a dict
# with two lists), those of GQA 3 million. But theirs take more than 8 bytes each, even where a question has no answer.
_CONTAINERS_FREE, _BYTES_PER_CONTAINER = 1_000_000, 8
# Calls copy what they are given; a plain pickle gives every byte to one call, a hostile one the same list to thousands.
_COPIES_PER_BYTE, _COPIES_FREE = 4, 10_000
# Entries on the stack for each container around the one that is being made, at most: a call with arguments has them.
_ENTRIES_PER_LEVEL = 5
_NESTING = frozenset((list, tuple, dict))
_SIZED = (str, bytes, bytearray, list, tuple)
Encoding = Literal["latin1", "bytes"]


def load_pickle(path: str | os.PathLike[str], *, encoding: Encoding = "latin1") -> Any:
    """The plain data of a pickle file; see `loads_pickle`. Raises UnsafePickleError naming the file.

    Raises:
        OSError: when the file cannot be read.
    """
    return loads_pickle(Path(path).read_bytes(), source=str(path), encoding=encoding)


def loads_pickle(data: bytes, *, source: str, encoding: Encoding = "latin1") -> Any:
    """The plain data in `data`.

    Args:
        data: one pickle; what follows its end is ignored, as pickle does.
        source: names the file or record in errors.
        encoding: what the `str` of Python 2 becomes: "latin1" makes str, "bytes" keeps bytes.
    Returns:
        the value (see the top of this file). Arrays are read-only views of copied bytes; copy one to write to it.
    Raises:
        UnsafePickleError: one line, naming what was met; also for a pickle that is cut off or damaged.
    """
    machine = _Machine(data, encoding)
    try:
        value = machine.run()
    except UnsafePickleError as error:
        raise UnsafePickleError(f"{source}: {error} (byte {machine.position}); nothing was run") from None
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, struct.error) as error:
        # A machine that is fed damaged code meets an empty stack or a value of the wrong kind.
        raise UnsafePickleError(
            f"{source}: not a complete pickle of plain data: {type(error).__name__} at byte {machine.position} "
            f"of {len(data)}; nothing was run"
        ) from None
    try:
        check_result(value, len(data))
    except UnsafePickleError as error:
        raise UnsafePickleError(f"{source}: {error}; nothing was run") from None
    return value


class _Machine:
    """Stack and memo of one pickle. `position` is the next byte to read."""

    def __init__(self, data: bytes, encoding: Encoding) -> None:
        self.data, self.encoding = data, encoding
        self.position, self.copied, self.containers = 0, 0, 0
        self.max_containers = _CONTAINERS_FREE + len(data) // _BYTES_PER_CONTAINER
        self.stack: list[Any] = []
        self.num_marks = 0
        # Id of a container -> how many containers are in one another there; only of those that hold some.
        self.depths: dict[int, int] = {}
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        data, table = self.data, _OPCODES
        for _ in range(MAX_STEPS):
            opcode = data[self.position]
            self.position += 1
            if opcode == 0x2E:  # STOP
                if len(self.stack) != 1:
                    raise UnsafePickleError(f"ends with {len(self.stack)} values, expected one")
                return self.stack.pop()
            action = table[opcode]
            if action is None:
                if opcode in _REFUSED:
                    raise UnsafePickleError(f"{_REFUSED[opcode]}; refused")
                raise UnsafePickleError(f"is no pickle: unknown opcode 0x{opcode:02x}")
            action(self)
        raise UnsafePickleError(f"has more than {MAX_STEPS:,} steps; split it into smaller files")

    # Reading the file.

    def take(self, count: int) -> bytes:
        end = self.position + count
        if not count >= 0 or end > len(self.data):
            raise UnsafePickleError(
                f"asks for {count:,} bytes where {len(self.data) - self.position:,} are left; cut off or damaged"
            )
        found = self.data[self.position : end]
        self.position = end
        return found

    def byte(self) -> int:
        found = self.data[self.position]
        self.position += 1
        return found

    def number(self, form: struct.Struct) -> Any:
        (found,) = form.unpack_from(self.data, self.position)
        self.position += form.size
        return found

    def line(self) -> bytes:
        end = self.data.index(b"\n", self.position)
        found = self.data[self.position : end]
        self.position = end + 1
        return found

    # The stack.

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def mark(self) -> None:
        self.num_marks += 1
        if self.num_marks > _ENTRIES_PER_LEVEL * MAX_DEPTH:
            raise UnsafePickleError(TOO_DEEP)
        self.stack.append(MARK)

    def pop(self) -> None:
        if self.stack.pop() is MARK:
            self.num_marks -= 1

    def pop_to_mark(self) -> list[Any]:
        stack = self.stack
        self.num_marks -= 1
        for index in range(len(stack) - 1, -1, -1):
            if stack[index] is MARK:
                found = stack[index + 1 :]
                del stack[index:]
                return found
        raise UnsafePickleError("closes a container that it never opened")

    def python2_string(self, raw: bytes) -> str | bytes:
        return raw if self.encoding == "bytes" else raw.decode("latin1")

    def put(self, index: int) -> None:
        value = self.stack[-1]
        if value is MARK:
            raise UnsafePickleError("remembers a mark")
        if isinstance(value, Unbuilt):
            value.memo.append(index)
        self.memo[index] = value

    # Containers.

    def push_container(self, value: Any) -> None:
        self.containers += 1
        if self.containers > self.max_containers:
            raise UnsafePickleError(
                f"makes more than {self.max_containers:,} lists, tuples, dicts and sets, too many for "
                f"{len(self.data):,} bytes; refused"
            )
        if self.num_marks <= 0 and len(self.stack) > _ENTRIES_PER_LEVEL * MAX_DEPTH:
            raise UnsafePickleError(TOO_DEEP)  # without a mark, what is on the stack is around what is being made
        if self.depths:
            self.depths.pop(id(value), None)  # of a container that is gone
        if type(value) is tuple:
            self.nest(value, value)
        self.stack.append(value)

    def nest(self, target: Any, items: Iterable[Any]) -> None:
        """Notes how deep `target` is with these items, so that a deep nest is refused before all of it is built."""
        kinds = map(type, items)
        if _NESTING.isdisjoint(kinds):
            return
        depths = self.depths
        depth = 1 + max(depths.get(id(item), 1) for item in items if type(item) in _NESTING)
        if depth > MAX_DEPTH + 1:  # the check of the result does not count an empty one
            raise UnsafePickleError(TOO_DEEP)
        depths[id(target)] = max(depths.get(id(target), 1), depth)

    def extend_list(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise UnsafePickleError(f"appends to a {kind_of(target)}")
        self.nest(target, items)
        target.extend(items)

    def extend_dict(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict:
            raise UnsafePickleError(f"sets items of a {kind_of(target)}")
        self.nest(target, items)
        target.update(_pairs(items))

    def extend_set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not set:
            raise UnsafePickleError(f"adds members to a {kind_of(target)}")
        target.update(map(checked_key, items))

    # Names and calls.

    def name(self, module: bytes | str, name: bytes | str) -> None:
        parts = (part.decode("utf-8", "replace") if isinstance(part, bytes) else part for part in (module, name))
        self.push(Name(".".join(parts)))

    def call(self) -> None:
        arguments, target = self.stack.pop(), self.stack.pop()
        if not isinstance(target, Name) or target.kind not in CALLS or type(arguments) is not tuple:
            raise UnsafePickleError(f"calls a {kind_of(target)}; refused")
        self.spend(arguments)
        try:
            made = CALLS[target.kind](*arguments)
        except TypeError:
            raise UnsafePickleError(f"calls {target.text} with other arguments than a plain pickle has") from None
        if type(made) in (dict, set, frozenset):
            self.push_container(made)
        else:
            self.push(made)

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack.pop()
        if not isinstance(target, Unbuilt) or type(state) is not tuple:
            raise UnsafePickleError(f"sets the state of a {kind_of(target)} to a {kind_of(state)}; refused")
        self.spend(state)
        built = target.built(state)
        for index in target.memo:
            self.memo[index] = built
        self.push(built)

    def spend(self, arguments: tuple[Any, ...]) -> None:
        self.copied += sum(len(value) for value in arguments if isinstance(value, _SIZED))
        if self.copied > _COPIES_FREE + _COPIES_PER_BYTE * len(self.data):
            raise UnsafePickleError("copies the same values again and again; refused")


def _pairs(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise UnsafePickleError("has a dict with a key and no value")
    return {checked_key(key): value for key, value in zip(items[::2], items[1::2], strict=True)}


def _text_integer(text: bytes) -> int:
    if len(text) > 24:
        raise UnsafePickleError("holds an integer of more than 64 bits")
    return checked_integer(int(text.removesuffix(b"L")))


def _read_int(machine: _Machine) -> None:
    text = machine.line()
    machine.push({b"00": False, b"01": True}[text] if text in (b"00", b"01") else _text_integer(text))


def _read_long(machine: _Machine, form: struct.Struct) -> None:
    size = machine.number(form)
    if size > 9:
        raise UnsafePickleError("holds an integer of more than 64 bits")
    machine.push(checked_integer(int.from_bytes(machine.take(size), "little", signed=True)))


def _read_quoted(machine: _Machine) -> None:
    text = machine.line().strip()
    if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in (b"'", b'"'):
        raise UnsafePickleError("holds a string without quotes")
    machine.push(machine.python2_string(codecs.escape_decode(text[1:-1])[0]))


def _sized(form: struct.Struct, make: Callable[[_Machine, bytes], Any]) -> Callable[[_Machine], None]:
    return lambda machine: machine.push(make(machine, machine.take(machine.number(form))))


def _text(_machine: _Machine, raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


def _bytes(_machine: _Machine, raw: bytes) -> bytes:
    return raw


def _tuple_of(count: int) -> Callable[[_Machine], None]:
    def make(machine: _Machine) -> None:
        if len(machine.stack) < count or any(value is MARK for value in machine.stack[-count:]):
            raise UnsafePickleError("makes a tuple of values that are not there")
        values = tuple(machine.stack[-count:])
        del machine.stack[-count:]
        machine.push_container(values)

    return make


def _pop_many(machine: _Machine, count: int) -> list[Any]:
    found = [machine.stack.pop() for _ in range(count)][::-1]
    if any(value is MARK for value in found):
        raise UnsafePickleError("takes a mark for a value")
    return found


def _protocol(machine: _Machine) -> None:
    protocol = machine.byte()
    if protocol > 5:
        raise UnsafePickleError(f"has pickle protocol {protocol}; 0 to 5 are read")


def _stack_name(machine: _Machine) -> None:
    module, name = _pop_many(machine, 2)
    if type(module) is not str or type(name) is not str:
        raise UnsafePickleError("names a global by something other than text")
    machine.name(module, name)


def _global(machine: _Machine) -> None:
    module = machine.line()
    machine.name(module, machine.line())


def _instance(machine: _Machine) -> None:
    _global(machine)  # an error with the name where it is not a known one
    raise UnsafePickleError("makes an instance of a class; refused")


_U1, _U2, _I4, _U4, _U8, _F8 = map(struct.Struct, ("<B", "<H", "<i", "<I", "<Q", ">d"))
_ACTIONS: dict[int, Callable[[_Machine], Any]] = {
    0x80: _protocol,
    0x95: lambda m: m.number(_U8),  # FRAME: only a hint of how much to read ahead
    # Constants and numbers.
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("I"): _read_int,
    ord("L"): lambda m: m.push(_text_integer(m.line())),
    ord("J"): lambda m: m.push(m.number(_I4)),
    ord("K"): lambda m: m.stack.append(m.byte()),
    ord("M"): lambda m: m.push(m.number(_U2)),
    0x8A: lambda m: _read_long(m, _U1),
    0x8B: lambda m: _read_long(m, _U4),
    ord("F"): lambda m: m.push(float(m.line()[:400])),
    ord("G"): lambda m: m.push(m.number(_F8)),
    # Strings of Python 2, text, bytes.
    ord("S"): _read_quoted,
    ord("T"): _sized(_I4, _Machine.python2_string),
    ord("U"): _sized(_U1, _Machine.python2_string),
    ord("V"): lambda m: m.push(codecs.raw_unicode_escape_decode(m.line())[0]),
    ord("X"): _sized(_U4, _text),
    0x8C: _sized(_U1, _text),
    0x8D: _sized(_U8, _text),
    ord("B"): _sized(_U4, _bytes),
    ord("C"): _sized(_U1, _bytes),
    0x8E: _sized(_U8, _bytes),
    0x96: _sized(_U8, lambda _machine, raw: bytearray(raw)),
    # Containers.
    ord("("): _Machine.mark,
    ord("]"): lambda m: m.push_container([]),
    ord("l"): lambda m: m.push_container(m.pop_to_mark()),
    ord("a"): lambda m: m.extend_list(_pop_many(m, 1)),
    ord("e"): lambda m: m.extend_list(m.pop_to_mark()),
    ord(")"): lambda m: m.push_container(()),
    ord("t"): lambda m: m.push_container(tuple(m.pop_to_mark())),
    0x85: _tuple_of(1),
    0x86: _tuple_of(2),
    0x87: _tuple_of(3),
    ord("}"): lambda m: m.push_container({}),
    ord("d"): lambda m: m.push_container(_pairs(m.pop_to_mark())),
    ord("s"): lambda m: m.extend_dict(_pop_many(m, 2)),
    ord("u"): lambda m: m.extend_dict(m.pop_to_mark()),
    0x8F: lambda m: m.push_container(set()),
    0x90: lambda m: m.extend_set(m.pop_to_mark()),
    0x91: lambda m: m.push_container(frozenset(map(checked_key, m.pop_to_mark()))),
    # Stack and memo.
    ord("0"): _Machine.pop,
    ord("1"): lambda m: m.pop_to_mark(),
    ord("2"): lambda m: m.push(m.stack[-1]),
    ord("p"): lambda m: m.put(_text_integer(m.line())),
    ord("q"): lambda m: m.put(m.byte()),
    ord("r"): lambda m: m.put(m.number(_U4)),
    0x94: lambda m: m.put(len(m.memo)),
    ord("g"): lambda m: m.stack.append(m.memo[_text_integer(m.line())]),
    ord("h"): lambda m: m.stack.append(m.memo[m.byte()]),
    ord("j"): lambda m: m.stack.append(m.memo[m.number(_U4)]),
    # Names, calls, states.
    ord("c"): _global,
    0x93: _stack_name,
    ord("R"): _Machine.call,
    0x81: _Machine.call,  # NEWOBJ: cls.__new__(cls, *args), the same here
    ord("b"): _Machine.build,
    ord("i"): _instance,
}
_OPCODES = tuple(_ACTIONS.get(opcode) for opcode in range(256))
_REFUSED = {
    **dict.fromkeys((ord("o"), 0x92), "makes an instance of a class"),
    **dict.fromkeys((0x82, 0x83, 0x84), "uses a registered class"),
    **dict.fromkeys((ord("P"), ord("Q")), "refers to an object outside itself"),
    **dict.fromkeys((0x97, 0x98), "keeps its arrays outside itself"),
}
