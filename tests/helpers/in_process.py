"""The command line in the test's own process: imports, networks and compiled code are there already."""

import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import pytest


def run_roibeam(*arguments: object) -> int:
    """The exit code of `roibeam ARGUMENTS`, for fixtures of a module. Tests have the fixture `roibeam`, which also
    gives what was said."""
    from roibeam.pipelines.cli import commands
    from roibeam.pipelines.cli.main import main

    if "torch" in sys.modules:  # a process without it shall stay without Beam, too
        _remember_signatures()
        _remember_views()
    with pytest.MonkeyPatch.context() as patch, signals_kept():
        patch.setattr(sys, "argv", ["roibeam", *map(str, arguments)])
        patch.setattr(commands, "app", _commands())
        with pytest.raises(SystemExit) as stopped:
            main()
    return int(stopped.value.code or 0)


@contextmanager
def signals_kept() -> Iterator[None]:
    """Takes away what a command does at SIGTERM. A forked process of a later test would inherit it, and a handler in
    Python misses a signal that comes right before a wait for a lock: the test then waits for ever."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@functools.cache
def _commands() -> Callable[..., Any]:
    """What typer makes of the app at each call of it, from the parameters of all commands: a tenth of a second."""
    from typer.main import get_command

    from roibeam.pipelines.cli.commands import app

    return get_command(app)


@functools.cache
def _remember_signatures() -> None:
    """A quarter of a small extraction is Beam asking thousands of times which parameters the same functions have."""
    from apache_beam.transforms import core

    ask, known = core.get_function_args_defaults, dict[Any, Any]()

    def remembered(function: Any) -> tuple[list[str], list[Any]]:
        plain = getattr(function, "__func__", function)
        key = (plain, plain is function)  # of a bound method the first one is left out
        if key not in known:
            known[key] = ask(function)
        names, defaults = known[key]
        return list(names), list(defaults)

    core.get_function_args_defaults = remembered


@functools.cache
def _remember_views() -> None:
    """Another quarter is Beam building the same parsers of options, a hundred and fifty for one pipeline."""
    from apache_beam.options.pipeline_options import PipelineOptions

    make = PipelineOptions.view_as
    views: WeakKeyDictionary[PipelineOptions, dict[type, Any]] = WeakKeyDictionary()

    def remembered(self: PipelineOptions, cls: type) -> Any:
        known = views.setdefault(self, {})
        if cls not in known:
            known[cls] = make(self, cls)
        return known[cls]

    PipelineOptions.view_as = remembered  # type: ignore[method-assign]
