"""Feature spaces of all that had a name before there was more than one kind of network: a field that came later is not
in what is hashed while it has its default, so stores of any version can be continued and trained on."""

from __future__ import annotations

import pytest
import torch

import roibeam.extraction.detector
from roibeam.extraction.detector import Detector
from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.network.conventions import CONVENTIONS, SELECTIONS
from roibeam.extraction.weights.detector_choice import PRESETS
from roibeam.features.record.fingerprint import feature_space_of

# Kind, name -> first 16 digits of the hash; made on the code of 2026-11-29. Weights are left out.
_SPACES = {
    ("preset", "butd-10-100"): "82f45b14342a2e41",
    ("preset", "butd-36"): "b115a7254980cf20",
    ("preset", "milvlg"): "efdc29e5d9a21b86",
    ("preset", "lxmert"): "a80ffc4d8216a532",
    ("preset", "d2"): "bcab2b3abca57b03",
    ("preset", "vl-bert"): "a27a983f0566e68e",
    ("preset", "vilbert"): "eba079a9cc6fa336",
    ("preset", "visualbert"): "faee0e4af1381f7d",
    ("preset", "imagebert"): "25fda26c4e5a068b",
    ("preset", "interbert"): "bd06eae400cf27e9",
    ("detector", "vg-r101-c4"): "d1245e06ae2d9650",
    ("detector", "vg-r101-c4-600"): "ea48084852ceca97",
    ("detector", "small"): "05a286db1d7579c3",
    ("detector", "r2c-r50"): "ba67576f8fac9bbf",
    ("detector", "toy"): "4a3ac048a7e3cfab",
    ("conventions", "hf"): "05a286db1d7579c3",
    ("conventions", "d2"): "dab9037502130bc8",
    ("conventions", "caffe"): "54b59e2bf9ca54db",
    ("conventions", "milvlg"): "322e4f88cf2366fb",
    ("conventions", "vlbert-e2e"): "4452d603a840d99a",
    ("conventions", "r2c"): "251bae2005e34fbd",
    ("selection", "butd-10-100"): "f8afc99eb5e563c6",
    ("selection", "butd-36"): "05a286db1d7579c3",
    ("selection", "milvlg-10-100"): "abb0654fbb1633c5",
    ("selection", "milvlg-36"): "c1083a64204b726b",
    ("selection", "hf-36"): "eea122863314ecfd",
    ("selection", "hf-100"): "415c869c4991cea3",
    ("selection", "d2-36"): "956d91b7403ac40f",
    ("selection", "d2-100"): "7cce985167f3eb5e",
    ("selection", "vl-bert"): "a290b7504455fba1",
    ("selection", "vilbert"): "a64fea31fd88889e",
    ("selection", "visualbert"): "66fe084e762bade2",
    ("selection", "visualbert-nlvr2"): "133f12f3a73aaf2b",
    ("selection", "imagebert"): "67e550c81fcee32e",
    ("selection", "interbert"): "1a910c0d6e1a0ca8",
    ("selection", "maskrcnn-benchmark-100"): "f7a9ecb3faba7b3b",
    # Of later that day.
    ("preset", "milvlg-36"): "be405c5029b44d6f",
    ("preset", "milvlg-d2-r50"): "cc2ad92fa2f774b0",
    ("preset", "milvlg-d2-r101"): "42f4a56c15c5cfba",
    ("preset", "milvlg-d2-x152"): "360af30244f50f79",
    ("detector", "milvlg-d2-r50"): "29c9d46d349eb19e",
    ("detector", "milvlg-d2-r101"): "45e264213b1468fc",
    ("detector", "milvlg-d2-x152"): "136f1ce3692947ee",
    ("conventions", "milvlg-d2"): "190d37586d9c3376",
    ("conventions", "milvlg-d2-x152"): "fce8e9d861562ad5",
    ("selection", "milvlg-d2"): "17b71772458bb85c",
    ("selection", "milvlg-d2-100"): "db3bbdfabccdb2b1",
}


@pytest.mark.parametrize(("kind", "name"), _SPACES)
def test_feature_space_of_what_had_a_name_stays(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {"detector": "small", "conventions": "hf", "selection": "butd-36", kind: name}
    if kind == "preset":
        parts = vars(PRESETS[name])
    monkeypatch.setattr(roibeam.extraction.detector, "weights_digest", lambda state: "")
    with torch.device("meta"):
        found = Detector(
            CONFIGS[parts["detector"]], CONVENTIONS[parts["conventions"]], SELECTIONS[parts["selection"]],
            proposal_generator=torch.nn.Identity(),
        ).describe()  # fmt: skip
    del found["numerics"]
    assert feature_space_of(found)[:16] == _SPACES[kind, name]
