"""How a small cluster finds its processes again: each by its number and its start."""

import json
import os
from pathlib import Path

import pytest
from clusters.small_cluster import SmallCluster

NUM_STARTS = 200  # by the command line, one of 200 was taken for ended in each of four runs


class Sleepers(SmallCluster):
    """Processes that wait, in place of an engine's."""

    engine, managers, options = "none", "sleepers", ()

    def waiting(self) -> list[str]:
        """A command that does not end, with the folder in it."""
        return ["tail", "-f", str(self.run / "conf" / "log4j.properties")]

    def start(self, *, num_managers: int = 2, port: int | None = None, pool_port: int = 0) -> None:
        self.begin()
        for number in range(num_managers):
            self._start_process(f"sleeper-{number}", self.waiting())


@pytest.fixture
def cluster(tmp_path: Path):
    cluster = Sleepers(tmp_path)
    yield cluster
    cluster.stop()


def test_a_process_is_alive_from_its_first_moment(cluster):
    cluster.begin()
    for number in range(NUM_STARTS):
        cluster._start_process(name := f"sleeper-{number}", cluster.waiting())
        assert cluster.is_alive(name)


def test_one_that_ended_is_not_alive_and_a_stopped_cluster_can_start_again(cluster):
    cluster.start()
    os.kill(cluster.pids["sleeper-0"], 9)
    os.waitpid(cluster.pids["sleeper-0"], 0)
    assert [cluster.is_alive(f"sleeper-{number}") for number in range(2)] == [False, True]
    with pytest.raises(ValueError, match="is running; stop it first"):
        cluster.start()
    cluster.stop()
    cluster.start(num_managers=1)
    assert list(cluster.pids) == ["sleeper-0"] and cluster.is_alive("sleeper-0")


def test_a_stranger_of_the_same_number_is_left_alone(cluster):
    cluster.start(num_managers=1)
    state = json.loads((cluster.run / "cluster.json").read_text())
    state["started"]["sleeper-0"] -= 100  # the cluster's own ended a second before this one started
    (cluster.run / "cluster.json").write_text(json.dumps(state))
    try:
        assert not cluster.is_alive("sleeper-0")
        cluster.stop()
        assert Path(f"/proc/{cluster.pids['sleeper-0']}").exists()
    finally:
        os.kill(cluster.pids["sleeper-0"], 9)
