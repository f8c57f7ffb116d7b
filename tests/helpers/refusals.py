"""Calls that are refused, one line for each where a test has several."""

from collections.abc import Callable
from typing import Any

import pytest


def refused(
    words: str, call: Callable[..., Any], *arguments: Any, error: type[Exception] = ValueError, **options: Any
) -> str:
    """The message of the error that `call(*arguments, **options)` raises; `words`, a regular expression, is in it."""
    with pytest.raises(error, match=words) as raised:
        call(*arguments, **options)
    return str(raised.value)
