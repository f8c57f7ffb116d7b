"""The command line of a small cluster: fetch, start, status, stop.

Of the standard library: this is a tool beside `roibeam`, which alone uses typer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from clusters.small_cluster import SmallCluster
from roibeam.pipelines.common.console.progress import configure_logging


def run_cluster_command(
    cluster_of: Callable[[Path], SmallCluster], fetch: Callable[[Path], Path], *, port: int, source: str
) -> None:
    """Parses the command line and does what it says.

    Args:
        fetch: fetches the engine into a folder; returns Beam's job server for it.
        port: of the cluster's web page by default.
        source: where the engine comes from, for people.
    """
    name = cluster_of(Path()).engine
    parser = _parser(f"{name}_cluster", cluster_of(Path()).managers, port, source)
    asked = parser.parse_args()
    if asked.command == "start" and asked.managers < 1:
        parser.error(f"--managers must be at least 1, got {asked.managers}")
    configure_logging()
    try:
        if asked.command == "fetch":
            print(f"{name.capitalize()} and {fetch(asked.folder)}")
        else:
            _run_command(cluster_of(asked.folder), asked)
    except (ValueError, RuntimeError, OSError) as error:
        sys.exit(f"{parser.prog}: {error}")


def _run_command(cluster: SmallCluster, asked: argparse.Namespace) -> None:
    if asked.command == "start":
        cluster.start(num_managers=asked.managers, port=asked.port, pool_port=asked.pool_port)
        print(f"running; web page at {cluster.web_page}")
        options = " ".join(cluster.options)
        print(f"roibeam extract ... --runner {cluster.engine} --pool-token-file {cluster.token_file} -- {options}")
    elif asked.command == "status":
        for name, pid in cluster.pids.items():
            print(f"{name:16} {pid:>8} {'running' if cluster.is_alive(name) else 'ended'}")
    else:
        cluster.stop()


def _parser(prog: str, managers: str, port: int, source: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in (
        ("fetch", f"Fetches the engine and Beam's job server for it from {source}."),
        ("start", f"Starts the leader, {managers} and the worker pool beside them."),
        ("status", "Says which processes run."),
        ("stop", "Ends all processes of the cluster."),
    ):
        command = commands.add_parser(name, help=words, description=words, allow_abbrev=False)
        command.add_argument("folder", type=Path, help="Where the engine is fetched to and its logs are.")
        if name == "start":
            words = f"How many {managers}, at least 1; default %(default)s."
            command.add_argument("--managers", type=int, default=2, help=words)
            words = "Of the leader's web page; default %(default)s."
            command.add_argument("--port", type=int, default=port, help=words)
            words = "Of the worker pool; default %(default)s."
            command.add_argument("--pool-port", type=int, default=50000, help=words)
    return parser
