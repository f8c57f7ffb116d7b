"""What is told of a run: progress seen from elsewhere, and its summary."""

import json
import os
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tiny_commands import Cli

from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.features.folders.folder_protocol import LOCK_NAME, lock_of_this_machine, store_lock
from roibeam.features.folders.local_folder import LocalFolder
from roibeam.features.shard.manifest import ShardManifest
from roibeam.pipelines.common.console.progress import ProgressState
from roibeam.pipelines.data.shard_plan import Plan, PlannedShard, extend_plan
from roibeam.pipelines.extract.shard.run_progress import Beat, FinishedShard, Heartbeat, read_heartbeats
from roibeam.pipelines.extract.shard.store_folder import RunEnd, run_summary
from roibeam.pipelines.extract.store_progress import (
    LIVING_SECONDS,
    SILENT_SECONDS,
    SeveralStatus,
    Status,
    StatusView,
    status_json,
    status_text,
)
from roibeam.pipelines.toyworld.rendering import draw_samples
from roibeam.version import __version__

PLAN = Plan({}, {}, tuple(PlannedShard(number, 100, "") for number in range(40)))
NOW = 1_800_000_000.0


def beat(shard: int, images: int, *, silent: float = 5.0, ran: float = 100.0) -> Beat:
    return Beat(shard, images, {}, NOW - silent - ran, NOW - silent, f"a{shard}", f"host{shard}")


def status(*in_work: Beat, finished: int = 2, state: str = "running", error: str | None = None) -> Status:
    images, complete = finished * 100 + sum(each.images for each in in_work), finished == 40 and state != "stopped"
    standing = ProgressState(images - 3, Counter(timeout=3))
    return Status(PLAN, standing, finished, in_work, complete, NOW, NOW - 1500, state, error)


def test_a_look_tells_rate_stragglers_and_what_waits() -> None:
    look = status(beat(7, 30, silent=400.0), beat(2, 50), beat(3, 70))
    assert look.images_per_second == pytest.approx(1.2)  # the silent one counts for nothing
    first, shards, *in_work = status_text(look).splitlines()
    assert first == "350 of 4,000 images, 1.2 images/s, 50 min 42 s left, 3 failed (3 timeout)"
    assert shards == "2 of 40 shards finished, 3 in work, 35 waiting; last heard 25 min 0 s ago"
    assert [line.split()[1] for line in in_work] == ["7", "2", "3"]
    assert "30/100" in in_work[0] and "heard of 6 min 40 s ago  (silent)  host7 a7" in in_work[0]
    assert "(silent)" not in in_work[1] and "2.0 s/image" in in_work[1]
    told = status_json(look, "store")
    assert told["shards"] == {"planned": 40, "finished": 2, "in_work": 3, "waiting": 35}
    assert told["in_work"][0] == {
        "shard": 7, "images": 30, "total": 100, "stage": "extracting", "images_per_second": 0.3,
        "silent_seconds": 400.0, "attempt": "a7", "host": "host7",
    }  # fmt: skip
    assert told["eta_seconds"] == pytest.approx((4000 - 350) / 1.2, abs=0.1) and not told["complete"]


def test_a_look_at_runs_that_stand_still() -> None:
    stopped = status(state="stopped", error="disk full")  # as after a Ctrl-C: no rate, no time left
    first, _, last = status_text(stopped).splitlines()
    assert first == "200 of 4,000 images, 3 failed (3 timeout)"
    assert last == "stopped: no run is at work (the last one: disk full); the same command as before goes on"
    told = status_json(stopped, "store")
    assert (told["eta_seconds"], told["state"], told["error"], told["silent_seconds"]) == (
        None, "stopped", "disk full", 1500.0,
    )  # fmt: skip
    assert "not begun, or stopped: no run" in status_text(status(finished=0, state="stopped"))
    silent = status_text(status(beat(7, 30, silent=1500.0), state="silent"))
    assert "silent: nothing was heard of the run for 25 min 0 s; if it has died, the same command goes on" in silent
    text = status_text(status(finished=40, state="finished"))
    assert "the store is complete: 40 of 40 shards" in text and "images/s" not in text
    failed = status_text(status(finished=40, state="failed", error="9.0% of the images failed"))
    assert failed.endswith("manifest.json is there; the run failed: 9.0% of the images failed")
    many = status_text(status(*(beat(number, 1) for number in range(30)), finished=0))
    assert many.splitlines()[-1] == "  and 10 more, heard of later"


def test_a_look_at_several_stores_shows_each_and_what_holds_for_all() -> None:
    slow, stopped = status(beat(2, 50)), status(state="stopped", error="disk full")
    finished = status(finished=40, state="finished")
    several = SeveralStatus({"a": slow, "c": stopped, "d": finished, "e": None})
    none = "not begun: no run has planned a store there yet"
    told = ["a:", status_text(slow), "c:", status_text(stopped), "d:", status_text(finished), "e:", none]
    assert several.text() == "\n".join(told)
    assert (several.is_well, several.is_over, several.has_work) == (False, False, True)
    assert [line["state"] for line in several.json_lines()] == ["running", "stopped", "finished", "not begun"]
    over = SeveralStatus({"c": stopped, "d": finished})
    assert (over.is_well, over.is_over, over.has_work) == (False, True, False)
    assert SeveralStatus({"a": slow, "d": finished}).is_well
    assert SeveralStatus({"a": slow}).text() == status_text(slow)


def test_whether_a_run_is_there_is_told_by_its_lock_and_what_it_wrote_last(tmp_path: Path) -> None:
    extend_plan(LocalFolder(tmp_path), None, source={}, settings={}, images=[ImageRef("a", "/a.jpg")], shard_size=1)
    view, scratch = StatusView(LocalFolder(tmp_path)), tmp_path / ".tmp-ab"
    scratch.mkdir()

    def state(*, heard_ago: float) -> str:
        """By a beat that is so old; all files are as old at least."""
        heard = time.time() - heard_ago
        (scratch / "heartbeat.json").write_text(json.dumps(asdict(replace(beat(0, 0), beaten_at=heard))))
        for path in tmp_path.iterdir():
            os.utime(path, (heard, heard))
        look = view.read()
        assert look.silent_seconds(beat(0, 0)) >= 0 and look.heard_at == pytest.approx(heard, abs=2)
        assert len(look.in_work) == (look.state != "stopped")  # what was in work is lost
        return look.state

    assert state(heard_ago=1.0) == "stopped"  # no lock: no run of any machine, however new the files are
    with store_lock(tmp_path):
        assert (tmp_path / LOCK_NAME).read_bytes() == lock_of_this_machine()
        assert state(heard_ago=1.0) == state(heard_ago=SILENT_SECONDS / 2) == "running"
        assert state(heard_ago=SILENT_SECONDS) == "silent"
    (tmp_path / LOCK_NAME).touch()  # of a killed run, or of a machine whose locks are not seen here
    assert state(heard_ago=1.0) == "running"
    assert state(heard_ago=LIVING_SECONDS) == "stopped"
    (tmp_path / LOCK_NAME).write_bytes(lock_of_this_machine())  # free, on the machine that held it: known at once
    assert state(heard_ago=5.0) == "stopped"
    assert "(the last one: it ended without a word, killed perhaps; last heard 5 s ago)" in status_text(view.read())
    with store_lock(tmp_path):  # it takes the file that was left, and is new
        assert view.read().heard_at == pytest.approx(time.time(), abs=5)
    assert view.read().state == "stopped"


def test_beats_on_a_disk_and_files_that_are_none(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    with folder.scratch("ab", None) as scratch, Heartbeat(folder, scratch, "ab", 3) as heart:
        assert read_heartbeats(folder, ()) == []
        heart.beat(4, [])
        heart.beat(5, [])  # too soon after the one before
        (found,) = read_heartbeats(folder, ())
        assert (found.shard, found.images, found.attempt, found.stage) == (3, 4, "ab", "extracting")
        assert 0 <= time.time() - found.beaten_at < 60
        for content in (b"", b"[]", b"{}", b'{"shard": "3"}', b'{"shard": 3, "failures": 5}', b"\xff", b"[" * 10**5):
            (scratch / "heartbeat.json").write_bytes(content)
            assert read_heartbeats(folder, ()) == [], content
    assert read_heartbeats(folder, ()) == []


def shard(number: int, seconds: float | None, **times: float) -> FinishedShard:
    failures = Counter({("decode", "truncated"): 2, ("read", "not found"): 1})
    all_times = times if seconds is None else {"seconds": seconds, **times}
    return FinishedShard(number, "a", 97, 970, 1000, failures, all_times)


def test_a_summary_counts_this_run_and_all() -> None:
    new = [shard(1, 30.0, net_ms=5000.0), shard(2, 50.0, net_ms=4000.0), shard(3, None)]
    after = [shard(0, 10.0), *new]
    end = RunEnd("finished", None, "local", ("--x=1",), NOW, NOW + 60, ("a note",), "0" * 64)
    content = run_summary("store", PLAN, end, new, after)
    assert json.loads(json.dumps(content)) == content
    now, in_all = content["this_run"], content["in_all"]
    assert (now["shards"], now["images"], now["records"], now["regions"], now["bytes"]) == (3, 300, 291, 2910, 3000)
    assert now["images_per_second"] == 5.0 and content["seconds"] == 60.0 and in_all["images"] == 400
    assert now["dead_letters"] == {
        "total": 9, "by_stage_and_reason": {"decode": {"truncated": 6}, "read": {"not found": 3}},
    }  # fmt: skip
    assert now["times"]["net_ms"] == {"total": 9000.0, "mean_per_image": 45.0}  # of the two shards that tell
    assert now["times"]["decode_ms"] is None
    seconds = now["shard_seconds"]
    assert (seconds["min"], seconds["median"], seconds["max"]) == (30.0, 40.0, 50.0)
    assert [each["shard"] for each in seconds["slowest"]] == [2, 1]
    assert content["started"].startswith("2027-01-15T08:00:00") and content["notes"] == ["a note"]
    empty = run_summary("store", PLAN, replace(end, ended=NOW), [], after)["this_run"]
    assert empty["images"] == 0 and empty["images_per_second"] is None and empty["shard_seconds"] is None


def test_the_summary_of_a_local_run_and_the_command(roibeam: Cli, extract: Cli, tmp_path: Path) -> None:
    draw_samples(tmp_path / "samples", count=3)
    photos, out = tmp_path / "samples" / "images", tmp_path / "store"
    (photos / "bad.jpg").write_bytes(b"")
    run = (photos, out, "--shard-size", 2)
    assert extract(*run).code == 1  # one of four failed
    summary = json.loads((out / "run_summary.json").read_bytes())
    assert (summary["status"], summary["error"]) == ("failed", "25.0% of the images failed")
    assert summary["runner"] == "local" and {"python", "torch", "apache-beam"} <= summary["versions"].keys()
    assert summary["this_run"]["shards"] == 2 and summary["planned"] == {"shards": 2, "images": 4}
    assert 0 < summary["this_run"]["shard_seconds"]["max"] <= summary["seconds"]
    assert summary["this_run"]["times"]["net_ms"]["total"] > 0 and summary["beam_metrics"]["ok"] == 3

    assert extract(*run).code == 1
    again = json.loads((out / "run_summary.json").read_bytes())
    assert again["this_run"]["images"] == 0 and again["in_all"] == summary["in_all"]
    # What the run was that did something is not lost.
    done = again["last_extraction"]
    assert (done["images"], done["shards"]) == (4, 2) and done["versions"]["roibeam"] == __version__
    assert done["command"] == summary["command"]
    assert done["command"][:4] == ["roibeam", "extract", str(photos), str(out)] and "--shard-size" in done["command"]
    assert all(done[name] == summary[name] for name in ("started", "ended", "status", "error", "runner", "beam_args"))
    part = ShardManifest.read(out / "part-00000.json")
    assert part.stats["roibeam"] == __version__

    look = roibeam("progress", out, "--watch")  # ends by itself: the store is complete, and the run had failed
    assert look.code == 1 and "4 of 4 images, 1 failed (1 empty file)" in look.out
    assert look.out.endswith("is there; the run failed: 25.0% of the images failed\n")
    assert extract(*run, "--max-failures", 0.5).code == 0
    assert roibeam("progress", out, "--watch").code == 0
    (out / "part-00001.json").unlink()
    look = roibeam("progress", out, "--watch", "--json")  # no run is at work, so it ends as well
    assert look.code == 1
    told = json.loads(look.out)
    assert (told["state"], told["shards"]["finished"], told["shards"]["in_work"]) == ("stopped", 1, 0)
    both = roibeam("progress", out, tmp_path)
    assert both.code == 1 and both.out.endswith(f"\n{tmp_path}:\nnot begun: no run has planned a store there yet\n")
    none = roibeam("progress", tmp_path)
    assert none.code == 1 and "has no plan.json" in none.err
    # What failed can be listed, also while a run is at work: the shard of the bad photo is finished.
    listed = roibeam("store", "dead-letters", out)
    assert listed.code == 0 and listed.out == f"bad\t{photos / 'bad.jpg'}\tdecode\tempty file\tthe file holds 0 bytes\n"


def test_a_command_is_kept_without_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["roibeam", "extract", "https://me:secret@host/list?sign=secret", "store?", "--set", "a=b@c"]
    monkeypatch.setattr(sys, "argv", words)
    end = RunEnd("finished", None, "local", (), NOW, NOW + 60)
    wanted = [*words[:2], "https://***@host/list?***", *words[3:]]
    assert run_summary("store", PLAN, end, [], [])["command"] == wanted
