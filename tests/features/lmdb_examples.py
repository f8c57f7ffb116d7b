"""LMDB folders written as the authors of the formats write them: with liblmdb and pickle."""

import pickle
from pathlib import Path

import lmdb


def write_lmdb(folder: Path, entries: dict[bytes, bytes]) -> Path:
    """The folder, holding these entries."""
    with lmdb.open(str(folder), map_size=2**26, sync=False) as env, env.begin(write=True) as txn:
        for key, value in entries.items():
            txn.put(key, value)
    return folder


def write_pickles(folder: Path, items: dict[str, object], *, key_list: object = ..., protocol: int = 2) -> Path:
    """A pickle under each key and the list of the keys; `key_list` stands in its place, None leaves it out."""
    entries = {name.encode(): pickle.dumps(item, protocol) for name, item in items.items()}
    names = list(entries) if key_list is ... else key_list
    if names is not None:
        entries[b"keys"] = names if isinstance(names, bytes) else pickle.dumps(names, protocol)
    return write_lmdb(folder, entries)


def read_lmdb(folder: Path) -> dict[bytes, bytes]:
    with lmdb.open(str(folder), readonly=True, lock=False) as env, env.begin() as txn:
        return dict(txn.cursor())
