"""Quiet about Beam's threads that end with a traceback each when the other side of a connection has gone."""

from __future__ import annotations

import threading


def keep_hang_ups_quiet() -> None:
    """For the rest of this process. Who watches over workers and runners says in one line what has gone."""
    threading.excepthook = _tell_unless_hung_up


def _tell_unless_hung_up(what: threading.ExceptHookArgs) -> None:
    import grpc

    if not issubclass(what.exc_type, grpc.RpcError):
        threading.__excepthook__(what)
