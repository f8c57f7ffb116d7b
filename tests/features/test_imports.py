"""What users do with stores and feature files imports no library that it does not need."""

import subprocess
import sys
from pathlib import Path

import pytest
from exchange_examples import measured
from store_examples import make_record, write_store

from roibeam.features.exchange.butd_tsv import FORMAT as TSV

OPEN = "from roibeam.features.store import FeatureStore; store = FeatureStore('s')\n"
WRITE = """from roibeam import StoreWriter, write_store
with StoreWriter('new', feature_space='x') as writer:
    writer.write('a', height=9, width=9, boxes=[[0, 0, 5, 5]], features=[[1.0, 2.0]])
assert len(writer.manifest.shards) == 1
"""
EVERY_NAME = """import roibeam.features
assert roibeam.features.FeatureStore in [getattr(roibeam.features, name) for name in dir(roibeam.features)]
"""


@pytest.mark.parametrize(
    ("code", "without"),
    [
        (EVERY_NAME, "torch apache_beam pyarrow"),
        (OPEN + "repr(store['a'])", "cv2 PIL torch"),
        (OPEN + "store['a']._repr_html_(); store._repr_html_(); store.draw('a', None)", "torch"),
        (WRITE, "torch pyarrow apache_beam"),
        ("from roibeam.features.folders.local_folder import output_folder; output_folder('s')", "fsspec"),
        ("from roibeam.features.exchange.formats import recognise; assert recognise('f.tsv').name == 'butd-tsv'",
         "h5py torch"),
    ],
)  # fmt: skip
def test_libraries_that_are_not_needed_are_not_imported(tmp_path: Path, code: str, without: str) -> None:
    write_store(tmp_path / "s", [[make_record("a")]])
    TSV.write([measured()], tmp_path / "f.tsv")
    code += f"\nimport sys; print({set(without.split())} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "set()\n", done.stderr
