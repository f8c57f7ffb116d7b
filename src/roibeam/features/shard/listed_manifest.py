"""The shard manifest that a store manifest was made from, also while the shard's failed images are tried again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

from roibeam.features.shard.manifest import STORE_MANIFEST_NAME, ShardEntry, retried_manifest_name


class ListedManifest(NamedTuple):
    """Bytes of a shard manifest and their SHA-256: another than the entry's where the store changed and the old one is
    gone. `is_set_aside`: a run tries the shard's failed images again, or was stopped when it did."""

    data: bytes
    sha256: str
    is_set_aside: bool = False


def listed_manifest(read: Callable[[str], bytes], entry: ShardEntry, where: str) -> ListedManifest:
    """The manifest that the store manifest was made from, wherever it is now.

    `extract --retry-dead-letters` sets the manifests of its shards aside and keeps their data files until the store
    manifest lists the new ones. So the store can be read while such a run is at work, or after it was killed.

    Args:
        read: gives a whole file of the store's folder by its name; FileNotFoundError where there is none.
        where: how messages name the manifest.
    Raises:
        FileNotFoundError: where it is gone.
    """
    data = _read(read, entry.manifest)
    digest = None if data is None else hashlib.sha256(data).hexdigest()
    if digest != entry.manifest_sha256:
        aside = _read(read, retried_manifest_name(entry.shard))
        if aside is not None and hashlib.sha256(aside).hexdigest() == entry.manifest_sha256:
            return ListedManifest(aside, entry.manifest_sha256, is_set_aside=True)
    if data is None or digest is None:
        raise FileNotFoundError(
            f"{where}: is missing, {STORE_MANIFEST_NAME} lists it; restore it, or run the command that wrote the store "
            f"again"
        )
    return ListedManifest(data, digest)


def _read(read: Callable[[str], bytes], name: str) -> bytes | None:
    try:
        return read(name)
    except FileNotFoundError:
        return None
