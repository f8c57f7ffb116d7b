"""Records of a shard that is not on this machine's disk, by ranges of bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from store_examples import make_record, write_store

from roibeam.features.folders.local_folder import output_folder
from roibeam.features.shard.manifest import ShardManifest
from roibeam.features.shard.reader import ShardObject, ShardReader


def test_records_and_digests_are_those_of_the_file(tmp_path: Path) -> None:
    write_store(tmp_path / "s", [[make_record(f"i{n}") for n in range(5)]])
    folder = output_folder(f"file://{tmp_path}/s")
    manifest = ShardManifest.read(tmp_path / "s" / "part-00000.json")
    assert manifest.data_file is not None
    shard = ShardObject(folder, manifest)
    with ShardReader(tmp_path / "s" / manifest.data_file, manifest) as reader:
        assert list(shard.digests()) == list(reader.digests()) and len(shard) == len(reader) == 5
        for row in range(5):
            mine, theirs = shard.record_at(row), reader.record_at(row)
            assert mine.image_id == theirs.image_id and np.array_equal(mine.features, theirs.features)

    with pytest.raises(ValueError, match=r"its index counts records, .* its manifest"):
        ShardObject(folder, replace(manifest, num_regions=manifest.num_regions + 1))
    with pytest.raises(ValueError, match=r"\.lmdb: offset index"):
        ShardObject(folder, replace(manifest, index_offset=manifest.index_offset - 64))
    path = tmp_path / "s" / manifest.data_file
    path.write_bytes(path.read_bytes()[: manifest.index_offset + 10])
    with pytest.raises(ValueError, match=f"has 10 bytes from {manifest.index_offset} on"):
        ShardObject(folder, manifest)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=manifest.data_file):
        ShardObject(folder, manifest)
