"""The page walker against LMDB itself, and against files that want to hurt it."""

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest
from refusals import refused

from roibeam.features.shard.lmdb_file import LmdbPages


def write_lmdb(path: Path, values: dict[bytes | None, dict[bytes, bytes]], *, commits: int = 1) -> None:
    env = lmdb.open(str(path), subdir=False, map_size=2**28, max_dbs=4, lock=False, sync=False)
    databases = {name: env.open_db(name) for name in values}
    for step in range(commits):
        with env.begin(write=True) as txn:
            for name, entries in values.items():
                for key, value in list(entries.items())[step::commits]:
                    txn.put(key, value, db=databases[name])
    env.close()


def mixed_values(count: int, seed: int, long_keys: bool) -> dict[bytes, bytes]:
    """Values that LMDB keeps inline and values that it moves out, around the border of 2038 bytes too."""
    draw = random.Random(seed)
    lengths = [0, 1, 7, 300, 1990, 2000, 2010, 2015, 2020, 2025, 2030, 2031, 4079, 4080, 4081, 9000]
    keys = [f"{draw.random():.17f}{'x' * draw.randrange(400) if long_keys else ''}".encode() for _ in range(count)]
    return {key: draw.randbytes(draw.choice(lengths)) for key in keys}


@pytest.mark.parametrize("count, long_keys, commits", [(0, False, 1), (1, False, 1), (30, False, 3), (1500, True, 7)])
def test_walk_finds_what_lmdb_gives(tmp_path: Path, count: int, long_keys: bool, commits: int) -> None:
    path = tmp_path / "a.lmdb"
    tables = {b"one": mixed_values(count, 1, long_keys), b"two": mixed_values(count // 2, 2, long_keys)}
    write_lmdb(path, tables, commits=commits)
    data = path.read_bytes()
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False, max_dbs=4) as env:
        walker = LmdbPages(memoryview(data), "a.lmdb")
        assert (walker.page_size, walker.num_pages) == (env.stat()["psize"], env.info()["last_pgno"] + 1)
        for name in tables:
            database = env.open_db(name, create=False)
            with env.begin() as txn, txn.cursor(database) as cursor:
                want = list(cursor)
                stat = txn.stat(database)
                assert count < 1500 or (stat["depth"] >= 3 and stat["overflow_pages"] > 0)
            got = [(key, data[offset : offset + length]) for key, offset, length in walked(data, name)]
            assert got == want and len(got) == len(tables[name])


def test_after_overwrites_and_deletes(tmp_path: Path) -> None:
    path = tmp_path / "a.lmdb"
    env = lmdb.open(str(path), subdir=False, map_size=2**26, max_dbs=1, lock=False, sync=False)
    database = env.open_db(b"one")
    draw = random.Random(3)
    for _ in range(10):
        with env.begin(write=True, db=database) as txn:
            for _ in range(60):
                key = str(draw.randrange(200)).encode()
                if draw.random() < 0.3:
                    txn.delete(key)
                else:
                    txn.put(key, draw.randbytes(draw.choice([10, 1000, 5000, 20000])))
    with env.begin(db=database) as txn:
        want = list(txn.cursor())
    env.close()
    data = path.read_bytes()
    assert [(key, data[offset : offset + length]) for key, offset, length in walked(data)] == want


@pytest.mark.parametrize("count, commits", [(0, 1), (1, 1), (1500, 7)])
def test_the_database_without_a_name_read_piece_by_piece(tmp_path: Path, count: int, commits: int) -> None:
    path = tmp_path / "a.lmdb"
    values = mixed_values(count, 6, False)
    write_lmdb(path, {None: values}, commits=commits)
    data = path.read_bytes()

    class Pieces:
        """Gives no buffer, only the parts asked for."""

        def __len__(self) -> int:
            return len(data)

        def __getitem__(self, part: slice) -> bytes:
            assert 0 <= part.start <= part.stop <= len(data)
            return data[part]

    places = list(LmdbPages(Pieces(), "a.lmdb").main_values())
    assert [(place.key, data[place.offset : place.offset + place.length]) for place in places] == sorted(values.items())


def walked(data: bytes, name: bytes = b"one") -> list[tuple[bytes, int, int]]:
    return list(LmdbPages(memoryview(data), "a.lmdb").values(name))


def pages(data: bytes, kind: int) -> Iterator[tuple[int, list[int]]]:
    """Start and nodes of each page behind the meta pages that is of a kind: 1 branch, 2 leaf."""
    for start in range(2 * 4096, len(data), 4096):
        number, _, flags, lower, _ = struct.unpack_from("<QHHHH", data, start)
        if flags == kind and number == start // 4096:
            yield start, [start + at for at in struct.unpack_from(f"<{(lower - 16) // 2}H", data, start + 16)]


@pytest.fixture(scope="module")
def file_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return file_of(tmp_path_factory.mktemp("lmdb"), mixed_values(60, 4, True), commits=2)


def file_of(folder: Path, values: dict[bytes, bytes], *, commits: int = 1) -> bytes:
    write_lmdb(folder / "a.lmdb", {b"one": values}, commits=commits)
    return (folder / "a.lmdb").read_bytes()


def test_files_that_are_no_whole_lmdb(file_bytes: bytes) -> None:
    refused(r"a\.lmdb: holds no database 'two'", walked, file_bytes, b"two")
    refused("key b'one' holds a database, not a value", list, LmdbPages(memoryview(file_bytes), "a.lmdb").main_values())
    for data, words in (
        (b"", "ends after 0 bytes"),
        (b"x" * 100, "ends after 100 bytes"),
        (bytes(5000), "no LMDB meta page"),
        (file_bytes[: len(file_bytes) // 2], "pages of 4096 bytes in a file of"),
    ):
        refused(words, LmdbPages, memoryview(data), "a.lmdb")


@pytest.mark.parametrize(
    ("offset", "number", "words"),
    [
        (40, 100, "page size 100"),
        (20, 2, "LMDB data version 2"),
        # liblmdb would go by the newest one's
        (4096 + 40, 8192, "page size 4096 in one meta page, 8192 in the other"),
    ],
)
def test_meta_pages_that_cannot_be(file_bytes: bytes, offset: int, number: int, words: str) -> None:
    broken = bytearray(file_bytes)
    struct.pack_into("<I", broken, offset, number)
    refused(words, LmdbPages, memoryview(broken), "a.lmdb")


def test_a_circle_of_pages_is_an_error_not_a_hang(file_bytes: bytes) -> None:
    broken = bytearray(file_bytes)
    for start, nodes in pages(file_bytes, 1):  # all children of a branch page become the page itself
        for node in nodes:
            struct.pack_into("<IH", broken, node, start // 4096, 0)
    refused("not a whole LMDB 0", walked, broken)


@pytest.mark.parametrize("first_byte, words", [(0, "is not above"), (255, "is out of order")])
def test_a_branch_key_that_hides_records_from_a_search(file_bytes: bytes, first_byte: int, words: str) -> None:
    broken = bytearray(file_bytes)
    for _, (_, second, *_) in pages(file_bytes, 1):
        broken[second + 8] = first_byte  # of its key
    refused(words, walked, broken)


def test_values_that_share_their_pages_are_an_error_not_endless_work(tmp_path: Path) -> None:
    broken = bytearray(file_of(tmp_path, {b"a": bytes(100_000), **{b"b%d" % i: bytes(3000) for i in range(9)}}))
    nodes = [node for _, each in pages(broken, 2) for node in each]
    large = [at for at in nodes if struct.unpack_from("<H", broken, at + 4) == (1,)]
    places = {at: at + 8 + struct.unpack_from("<H", broken, at + 6)[0] for at in large}
    (whole,) = [at for at in large if broken[at + 8 : places[at]] == b"a"]
    for at in large:  # all keys now lead to the largest value
        broken[at : at + 4] = broken[whole : whole + 4]
        broken[places[at] : places[at] + 8] = broken[places[whole] : places[whole] + 8]
    refused("its values overlap", walked, broken)


def test_two_equal_keys_are_an_error(tmp_path: Path) -> None:
    data = file_of(tmp_path, {b"key-a": b"1", b"key-b": b"2"})
    assert data.count(b"key-b") >= 1
    refused(r"key b'key-a' on page . is out of order", walked, data.replace(b"key-b", b"key-a"))


def test_a_large_value_ends_inside_the_file(tmp_path: Path) -> None:
    broken = bytearray(file_of(tmp_path, {b"a": bytes(3 * 4096 - 16)}))
    beyond = len(broken) - 4096 - 16  # no more than the file has, but from the value's first page on
    (start,) = [
        at for at in range(8192, len(broken), 4096) if broken[at : at + 12] == struct.pack("<QHH", at >> 12, 0, 4)
    ]
    assert struct.unpack_from("<HH", broken, start + 12) == (3, 0)
    struct.pack_into("<H", broken, start + 12, 1000)
    (node,) = [each for _, nodes in pages(broken, 2) for each in nodes if broken[each + 8 : each + 9] == b"a"]
    assert struct.unpack_from("<H", broken, node) == (3 * 4096 - 16,)
    struct.pack_into("<H", broken, node, beyond)
    refused(f"does not hold a value of {beyond} bytes", walked, broken)


def test_random_damage_never_escapes_as_anything_but_value_error(file_bytes: bytes) -> None:
    draw = random.Random(5)
    num_refused = 0
    for _ in range(400):
        broken = bytearray(file_bytes)
        page = draw.randrange(len(broken) // 4096)
        for _ in range(4):  # page headers, pointers and nodes, where every number is a pointer or a length
            at = page * 4096 + draw.choice([draw.randrange(64), draw.randrange(4096)])
            broken[at] = draw.randrange(256)
        try:
            assert all(place.offset + place.length <= len(broken) for place in walked(broken))
        except ValueError:
            num_refused += 1
    assert num_refused > 50
