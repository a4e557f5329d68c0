"""A headless Chromium, driven over its pipe (Chrome DevTools Protocol), so that a test needs no driver and no network.

Without a browser tests skip on a laptop and fail in CI (where the variable CI is set).
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import pathlib
import shutil
import signal
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions",
    "--disable-dev-shm-usage", "--force-color-profile=srgb", "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """One page of a browser.

    Attributes:
      errors: uncaught exceptions and console errors of the page, and what it asked the network for.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._ids, self._buffer, self._session = itertools.count(1), b"", ""
        self.errors: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its result."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == number:
                assert "error" not in found, (method, found["error"])
                return found["result"]

    def _next(self) -> dict[str, Any]:
        """The next message; what it says of errors is kept."""
        while b"\0" not in self._buffer:
            read = os.read(self._answers, 1 << 16)
            assert read, "the browser closed its pipe"
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\0")
        found = json.loads(line)
        event, params = found.get("method"), found.get("params", {})
        if event == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"])[:2000])
        elif event == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.errors.append(json.dumps(params["args"])[:2000])
        elif event == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("file:", "data:")):
            self.errors.append(f"asked for {params['request']['url'][:200]}")
        return found

    def open(self, path: pathlib.Path, *, width: int, height: int = 800, scripts: bool = True, media: str = "") -> None:
        """Loads a file at a viewport size, with or without scripts, for the screen or for `media`."""
        self.errors.clear()
        self.send("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.send("Emulation.setEmulatedMedia", media=media)
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.send("Page.navigate", url=path.absolute().as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression (also where the page's own scripts are off)."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """One stroke of a key, such as `ArrowRight` or `Tab`."""
        code = {"Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "End": 35, "Home": 36}[key]
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def move(self, x: float, y: float) -> None:
        """The pointer, in CSS pixels of the viewport."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: pathlib.Path) -> None:
        """The viewport as PNG."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser with one page, closed at the end."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        message = "no Chromium on PATH: install the system's package (apt-get install chromium)"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        theirs_in, ours_out = _pipe()
        ours_in, theirs_out = _pipe()
        # Chromium reads commands from descriptor 3 and writes to 4.
        process = os.posix_spawn(
            program,
            [program, *FLAGS, f"--user-data-dir={profile}"],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, theirs_in, 3),
                (os.POSIX_SPAWN_DUP2, theirs_out, 4),
            ],
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Browser(ours_out, ours_in)
        finally:
            os.kill(process, signal.SIGTERM)
            os.waitpid(process, 0)
            os.close(ours_out)
            os.close(ours_in)


def _pipe() -> tuple[int, int]:
    """A pipe's two ends, above the descriptors that the browser's own are to have."""
    ends = os.pipe()
    read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return read, write
