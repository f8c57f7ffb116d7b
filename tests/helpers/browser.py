"""A headless Chromium that opens pages and says what is wrong with them, driven over its debugging pipe.

One process is enough for all pages. Messages are JSON, each ended by a zero byte:
https://chromedevtools.github.io/devtools-protocol/
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDTHS_PX = (1280, 400)
SMALLEST_LETTERS_PX = 11.0
_HEIGHT_PX = 900
_PATIENCE_S = 60
# A page may react to another window, slowly.
_SETTLED = """new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))).then(
  () => Promise.allSettled(document.getAnimations().map((each) => each.finished)))"""
_RULES = Path(__file__).with_name("page_rules.js").read_text("utf-8")


def chromium() -> str | None:
    """The path of the browser; None where this machine has none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@dataclass(frozen=True)
class Look:
    """How a page is looked at: the width of the window, and whether its reader likes it dark."""

    width_px: int
    dark: bool

    def __str__(self) -> str:
        return f"{self.width_px} px, {'dark' if self.dark else 'light'}"


LOOKS = tuple(Look(width, dark) for width in WIDTHS_PX for dark in (False, True))


class Browser:
    """Open from `__enter__` to `__exit__`.

    Args:
        executable: of Chromium.
        profile: an empty folder.
    """

    def __init__(self, executable: str, profile: Path) -> None:
        self._command = [
            executable, "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-extensions", "--disable-background-networking", "--disable-dev-shm-usage", "--hide-scrollbars",
            f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip
        self._number, self._rest = 0, b""
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        (reads_commands, self._commands), (self._answers, writes_answers) = os.pipe(), os.pipe()
        # The browser reads file 3 and writes file 4; copies above them first, so that none is overwritten.
        ours = [fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in (reads_commands, writes_answers)]

        def connect() -> None:
            for number, each in zip((3, 4), ours, strict=True):
                os.dup2(each, number)

        self._process = subprocess.Popen(
            self._command, preexec_fn=connect, pass_fds=(3, 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for each in (reads_commands, writes_answers, *ours):
            os.close(each)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)

    def open(self, page: Path) -> list[str]:
        """Opens a file; what it asked for and what stands in its console, as lines."""
        self._events.clear()
        address = page.absolute().as_uri()
        self._call("Page.navigate", url=address)
        self._wait_for("Page.loadEventFired")
        self.evaluate("new Promise(done => setTimeout(done, 50))")  # what a page does when it is loaded
        found = []
        for event in self._events:
            method, told = event["method"], event["params"]
            if method == "Network.requestWillBeSent":
                asked = told["request"]["url"]
                if asked != address and not asked.startswith("data:"):
                    found.append(f"asked for {asked[:200]}")
            elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
                found.append(f"console: {told['entry']['text'][:200]}")
            elif method == "Runtime.exceptionThrown":
                found.append(f"exception: {json.dumps(told['exceptionDetails'])[:300]}")
            elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
                found.append(f"console: {json.dumps(told['args'])[:200]}")
        return found

    def faults(self, look: Look) -> list[str]:
        """What is wrong with the open page in this look, as lines; folded parts are opened first."""
        self._look(look)
        found: list[str] = self.evaluate(f"({_RULES})({SMALLEST_LETTERS_PX}, {json.dumps(look.dark)})")
        return [f"{look}: {each}" for each in found]

    def picture(self, look: Look, path: Path) -> None:
        """The whole open page as PNG."""
        self._look(look)
        shot = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _look(self, look: Look) -> None:
        size = {"width": look.width_px, "height": _HEIGHT_PX, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if look.dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self.evaluate(_SETTLED)

    def evaluate(self, expression: str) -> Any:
        """The value of JavaScript in the open page; a promise is waited for."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if not method.startswith("Target."):
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            answer = self._message(deadline, method)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _wait_for(self, method: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not any(event["method"] == method for event in self._events):
            self._message(deadline, method)

    def _message(self, deadline: float, waiting_for: str) -> dict[str, Any]:
        """The next one; an event is noted too."""
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(deadline - time.monotonic(), 0))
            told = os.read(self._answers, 1 << 20) if ready else b""
            if not told:
                raise AssertionError(f"Chromium is gone, or silent for {_PATIENCE_S} s; waiting for {waiting_for}")
            self._rest += told
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self._events.append(message)
        return message
