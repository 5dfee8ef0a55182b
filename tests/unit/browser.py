"""A headless Chromium, spoken to over its debugging pipe: opens a page, moves the pointer, reads what it shows.

It is Debian's package ``chromium`` (or another build of it in the path); where there is none, tests skip with a reason.
Nothing is needed beside it. The protocol: JSON messages that end with a zero byte, requests on the browser's file
descriptor 3, answers and events on 4.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CTRL = 2
PATIENCE_S = 90.0
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # of the browser's own: containers run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)


def chromium() -> str | None:
    """The path of a Chromium, None where there is none. One in a snap sees no file of a test, and does not count."""
    found = (path for name in NAMES if (path := shutil.which(name)))
    return next((path for path in found if Path(os.path.realpath(path)).name != "snap"), None)


class Browser:
    """One window with one page."""

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        path = chromium()
        assert path is not None
        self.width, self.height = width, height
        self._profile = tempfile.TemporaryDirectory(prefix="ppsim-chromium-", ignore_cleanup_errors=True)
        their_in, self._out = os.pipe()
        self._in, their_out = os.pipe()
        # The shell puts the pipes where the browser looks for them; they may have any number here.
        words = [
            path,
            *FLAGS,
            f"--user-data-dir={self._profile.name}",
            f"--window-size={width},{height}",
            "about:blank",
        ]
        shell = f'exec "$@" 3<&{their_in} 4>&{their_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "chromium", *words],
            pass_fds=(their_in, their_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(their_in)
        os.close(their_out)
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    # --- the protocol ---

    def call(self, method: str, **params: Any) -> Any:
        """The result of a command; events that come meanwhile are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE_S
        while True:
            answer = self._receive(until)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            part = os.read(self._in, 1 << 16) if ready else b""
            if not part:
                raise RuntimeError("chromium does not answer" if not ready else "chromium has ended")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    # --- a page ---

    def resize(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)

    def open(self, path: Path, ready: str = "window.ppsimPage !== undefined && window.ppsimPage.ready") -> None:
        """Load a file and wait until its scripts are through: until an expression is true."""
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        until = time.monotonic() + PATIENCE_S
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive(until))  # a question to a page that is being left is never answered
        self.wait(ready)

    def js(self, expression: str) -> Any:
        """The value of an expression; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, expression: str) -> None:
        """Until an expression is true."""
        until = time.monotonic() + PATIENCE_S
        while not self.js(expression):
            assert time.monotonic() < until, f"never true: {expression}"
            assert not self.troubles(), self.troubles()
            time.sleep(0.05)

    def settle(self) -> None:
        """Until what was asked for is drawn."""
        self.js("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 30))))")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def point(self, x: float, y: float) -> None:
        self.mouse("mouseMoved", x, y)
        self.settle()

    def click(self, x: float, y: float) -> None:
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)
        self.settle()

    def drag(self, x: float, y: float, to_x: float) -> None:
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
        for i in range(1, 6):
            self.mouse("mouseMoved", x + (to_x - x) * i / 5, y, button="left", buttons=1)
        self.mouse("mouseReleased", to_x, y, button="left", clickCount=1)
        self.settle()

    def wheel(self, x: float, y: float, delta: float, modifiers: int = 0) -> None:
        self.mouse("mouseMoved", x, y)
        self.mouse("mouseWheel", x, y, deltaX=0, deltaY=delta, modifiers=modifiers)
        self.settle()

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """The page as an image, below the window's edge too."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def troubles(self) -> list[str]:
        """What a developer would see in red: exceptions, errors and warnings of the console, refused requests."""
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                found.append(details.get("exception", {}).get("description", details["text"]))
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(" ".join(str(arg.get("value", arg.get("description"))) for arg in params["args"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
            elif method == "Network.loadingFailed":
                found.append(f"a request failed: {params.get('errorText')}")
        return found

    def requests(self) -> list[str]:
        """Addresses that the page asked for, itself left out."""
        sent = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith(("file:", "data:", "blob:"))]
