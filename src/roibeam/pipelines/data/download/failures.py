"""Why there is no image: the URL's fault, which is data, or this machine's, which stops the run."""

from __future__ import annotations


class DownloadError(Exception):
    """One URL that gave no image.

    Args:
        stage: "list", "url", "connect", "fetch" or "decode".
        reason: short word for counting.
        detail: one line for a person.
        may_pass: whether another attempt may end otherwise.
        wait_seconds: what the server asked to wait before it.
    """

    def __init__(
        self, stage: str, reason: str, detail: str, *, may_pass: bool = False, wait_seconds: float | None = None
    ) -> None:
        super().__init__(detail)
        self.stage, self.reason, self.detail = stage, reason, detail
        self.may_pass, self.wait_seconds = may_pass, wait_seconds


class LocalFaultError(RuntimeError):
    """A full disk, too many open files, no network: no URL is to blame."""
