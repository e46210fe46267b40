"""A headless Chromium that a script drives: pages opened, links clicked, pictures taken. It is asked over two pipes
(the DevTools protocol), so it needs no library, opens no port, and asks no other machine for anything.
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
from contextlib import suppress
from pathlib import Path
from typing import Any

SECONDS = 120.0
"""Until an answer, a page or an element is there; a busy machine needs seconds for each."""
_SWITCHES = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--remote-debugging-pipe",
)


class BrowserError(Exception):
    """What the browser refused, or did not do in time."""


def find_chromium() -> str | None:
    """The program; None where there is none."""
    return shutil.which("chromium") or shutil.which("google-chrome")


class Browser:
    """One Chromium with one page, which ends with the `with` block."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="hpk-browser-", ignore_cleanup_errors=True)
        command_end, self._commands = os.pipe()
        self._answers, answer_end = os.pipe()
        # Chromium reads from its descriptor 3 and writes to 4.
        shell = f'exec "$@" 3<&{command_end} 4>&{answer_end}'
        argv = ["bash", "-c", shell, "browser", program, *_SWITCHES, f"--user-data-dir={self._profile.name}"]
        self._process = subprocess.Popen(
            [*argv, "about:blank"],
            pass_fds=(command_end, answer_end),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_end)
        os.close(answer_end)
        self._buffer = b""
        self._number = 0
        self._session = ""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Page.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(BrowserError, OSError):
            self._session = ""
            self._call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._commands)
        os.close(self._answers)
        self._profile.cleanup()

    def set_screen(self, width: int, height: int, dark: bool = False) -> None:
        """The size of the window, and what the person's system prefers."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = "dark" if dark else "light"
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url: str) -> None:
        """Go to a page and wait until it has loaded."""
        self._call("Page.navigate", url=url)
        self.wait_for(f"document.readyState === 'complete' && location.href !== 'about:blank' && {json.dumps(url)}")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, as JSON has it. Raises BrowserError."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{answer['exceptionDetails']}: {expression[:200]}")
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """The first value of an expression that is true. Raises BrowserError."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            # A page that is left while it is asked has no answer.
            with suppress(BrowserError):
                if value := self.evaluate(expression):
                    return value
            time.sleep(0.1)
        raise BrowserError(f"not within {SECONDS:.0f} s: {expression[:200]}")

    def click(self, element: str) -> None:
        """Click with the mouse on the element that an expression gives. Raises BrowserError where it is covered."""
        place = self.evaluate(
            f"""(() => {{
              const element = {element};
              element.scrollIntoView({{block: "center"}});
              const box = element.getClientRects()[0];
              const x = box.left + Math.min(box.width / 2, 20), y = box.top + box.height / 2;
              const hit = document.elementFromPoint(x, y);
              return element.contains(hit) ? [x, y] : null;
            }})()"""
        )
        if place is None:
            raise BrowserError(f"something else lies over it: {element[:200]}")
        for event in ("mouseMoved", "mousePressed", "mouseReleased"):
            button = "none" if event == "mouseMoved" else "left"
            self._call("Input.dispatchMouseEvent", type=event, x=place[0], y=place[1], button=button, clickCount=1)

    def save_picture(self, path: Path) -> None:
        """A PNG of what the window shows."""
        answer = self._call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + SECONDS
        while True:
            answer = self._read_message(until)
            if answer.get("id") != self._number:
                continue  # an event, or an answer that nobody waits for any more
            if "error" in answer:
                raise BrowserError(f"{method}: {answer['error'].get('message')}")
            result: dict[str, Any] = answer["result"]
            return result

    def _read_message(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            readable, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            if not readable:
                raise BrowserError(f"Chromium has not answered for {SECONDS:.0f} s")
            chunk = os.read(self._answers, 1 << 20)
            if not chunk:
                raise BrowserError("Chromium has ended")
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message
