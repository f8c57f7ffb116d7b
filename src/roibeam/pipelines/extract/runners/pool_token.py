"""The secret that a worker pool requires: without it, a request at its port starts no worker.

It is read from a file by the pool and by the run. The run hands it to Beam in the `params` of `--environment_config`,
Beam to the cluster, and the cluster to the pool with each request for a worker. It is on no command line and in no log.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roibeam.features.folders.durable_files import open_regular_file

log = logging.getLogger(__name__)
TOKEN_PARAM = "roibeam_pool_token"  # its name among the params
_FEWEST, _MOST = 16, 1024  # letters


def new_token() -> str:
    """256 random bits, as letters."""
    return secrets.token_urlsafe(32)


def read_token(path: Path) -> str:
    """The token in a file: one line of at least 16 ASCII letters without spaces. Raises ValueError naming the file, and
    never what is in it; also where other users may write to it.

    Raises:
        OSError: if it cannot be read.
    """
    with open_regular_file(path) as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        token = file.read(2 * _MOST).strip()
    if mode & 0o022:
        raise ValueError(f"{path}: other users may write to it (mode {mode:04o}); chmod 600, and write a new token")
    if mode & 0o044:  # a warning, as secrets that Kubernetes mounts are readable by all in their container
        log.warning("%s: other users may read it (mode %04o), and start workers as you; chmod 600", path, mode)
    if not (_FEWEST <= len(token) <= _MOST and all(0x21 <= byte <= 0x7E for byte in token)):
        raise ValueError(
            f"{path}: expected a token: one line of {_FEWEST} to {_MOST} letters and digits without spaces; write one "
            f"with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return token.decode("ascii")


def is_right(token: str, params: Mapping[str, str]) -> bool:
    """Whether a request has the token; compared in constant time."""
    return hmac.compare_digest(params.get(TOKEN_PARAM, "").encode("utf-8"), token.encode("utf-8"))


def environment_config(url: str, token: str) -> str:
    """Value of Beam's `--environment_config`, with the token beside the pool's address.

    Args:
        url: the address, or JSON of Beam's that has it.
    """
    given: dict[str, Any] = json.loads(url) if url.lstrip().startswith("{") else {"url": url}
    return json.dumps({**given, "params": {**(given.get("params") or {}), TOKEN_PARAM: token}})
