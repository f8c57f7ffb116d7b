"""Parts of a result file: one call at a time, several processes, none of them waited for without end."""

from pathlib import Path

import numpy as np
import pytest

from roibeam.pipelines.finetuning.metrics.own_labels import check_texts, write_label_scores
from roibeam.pipelines.finetuning.run.result_parts import ResultParts, result_lock
from roibeam.pipelines.training import processes

DIGEST = "0123456789ab"


def parts_of(out: Path) -> ResultParts:
    return ResultParts(out, DIGEST, 2, has_array=False)


def test_one_call_writes_a_result_file_and_removes_what_others_left(tmp_path: Path) -> None:
    out = tmp_path / "said"
    left = ["said.parts-ba9876543210", ".said.99999999.0a1b2c3d.tmp", ".said.card.json.99999999.0a1b2c3d.tmp"]
    kept = ["said.parts-mine", "other.parts-ba9876543210", ".other.99999999.0a1b2c3d.tmp"]
    for name in left + kept:
        (tmp_path / name).mkdir() if "parts" in name else (tmp_path / name).touch()
    with result_lock(out):
        with pytest.raises(ValueError, match="another roibeam predict is writing it"), result_lock(out):
            pass
        with parts_of(out).missing() as missing:
            assert missing == [0, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_a_process_that_is_gone_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_GONE_AFTER", 0.0)
    monkeypatch.setattr(processes, "_SECONDS", 0.001)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    other = parts_of(tmp_path / "said")
    monkeypatch.setenv("RANK", "0")
    main = parts_of(tmp_path / "said")
    with main.missing() as missing:
        assert missing == [0]
        main.write(0, None)
    words = r"part-00001\.json: is missing, and no process that would write it is at work"
    with pytest.raises(ValueError, match=words):
        main.wait()
    with other.missing():  # it is there: its part comes
        monkeypatch.setattr(processes.time, "sleep", lambda _: other.write(1, None))
        main.wait()
    next(tmp_path.glob("*/part-00000.json")).unlink()
    with pytest.raises(ValueError, match="was removed or damaged since it was written"):
        main.wait()


def test_scores_refuse_texts_that_numpy_cuts_or_pads_without_bound(tmp_path: Path) -> None:
    """An id of 15 MB took its length for each row; ids that differ by a NUL at their end became one."""
    check_texts(["x" * 4000, *map(str, range(3000))], ["a", "b"])
    with pytest.raises(ValueError, match="15,000,000 letters for each of 12 ids"):
        check_texts(["x" * 15_000_000, *map(str, range(11))], ["a"])
    with pytest.raises(ValueError, match=r"numpy cuts the NUL at the end of the label a\\x00; remove it"):
        check_texts(["x"], ["a", "a\0"])
    np.save(tmp_path / "part.npy", np.ones((5000, 2), np.float32))
    ids = [f"id {number}" for number in range(5000)]
    write_label_scores(tmp_path / "a.npz", ids, ["x", "yes"], [tmp_path / "part.npy"], {"task": "labels"})
    np.savez(tmp_path / "b.npz", ids=np.array(ids), labels=np.array(["x", "yes"]))
    with np.load(tmp_path / "a.npz") as own, np.load(tmp_path / "b.npz") as plain:
        for name in ("ids", "labels"):
            assert own[name].dtype == plain[name].dtype and (own[name] == plain[name]).all()
        assert str(own["about"]) == '{"format": 1, "task": "labels"}' and own["scores"].shape == (5000, 2)
