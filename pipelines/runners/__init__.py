"""Where the Beam pipeline runs: sets of options by runner, worker processes, a Flink cluster for tests."""
