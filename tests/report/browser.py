"""A headless Chromium driven over the DevTools protocol, for tests of the page.

https://chromedevtools.github.io/devtools-protocol/ describes the messages.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import websocket

CHROMIUM = "/usr/bin/chromium"
START_LIMIT_S = 60.0
"""Chromium starts in one to three seconds here; a machine whose two cores are busy needs longer."""
ANSWER_LIMIT_S = 60.0
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-lcd-text",
    "--hide-scrollbars",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
)

needs_chromium = pytest.mark.skipif(not os.path.exists(CHROMIUM), reason=f"{CHROMIUM} is not installed")
"""Marks a test that needs the browser."""


class Browser:
    """One Chromium with one page; a context manager that leaves no process and no file behind."""

    def __init__(self) -> None:
        self._profile = Path(tempfile.mkdtemp(prefix="ddpdoctor-chromium-"))
        self._process = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        """Everything that the page told unasked: requests, exceptions, console and security messages."""
        try:
            self._socket = websocket.create_connection(
                self._address(), timeout=ANSWER_LIMIT_S, suppress_origin=True, http_no_proxy=["127.0.0.1"]
            )
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log", "Audits"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and remove its profile."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)

    def _address(self) -> str:
        """Wait for the file in which Chromium says where it listens."""
        file = self._profile / "DevToolsActivePort"
        end = time.monotonic() + START_LIMIT_S
        while time.monotonic() < end:
            lines = file.read_text().splitlines() if file.exists() else []
            if len(lines) == 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            if self._process.poll() is not None:
                raise RuntimeError(f"chromium ended with {self._process.returncode}")
            time.sleep(0.05)
        raise TimeoutError("chromium did not open its DevTools port")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and return its result.

        Raises:
            RuntimeError: the browser answers with an error.
        """
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._socket.recv())
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, path: Path) -> None:
        """Load a file and wait until it is complete."""
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        end = time.monotonic() + ANSWER_LIMIT_S
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            if time.monotonic() > end:
                raise TimeoutError(f"{path} did not load")
            self._read()

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page.

        Raises:
            RuntimeError: the expression throws.
        """
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def text(self) -> str:
        """Return the text of the page as a reader sees it."""
        text: str = self.evaluate("document.body.innerText")
        return text

    def set_scheme(self, scheme: str, media: str = "") -> None:
        """Emulate prefers-color-scheme (light or dark) and a medium (screen or print)."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", media=media, features=[feature])

    def set_javascript(self, allowed: bool) -> None:
        """Allow or forbid the page's scripts; `evaluate` works either way."""
        self.call("Emulation.setScriptExecutionDisabled", value=not allowed)

    def set_size(self, width: int, height: int, *, mobile: bool = False) -> None:
        """Emulate a screen of CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if mobile else 1,
            mobile=mobile,
        )

    def screenshot(self, path: Path, *, whole: bool = False) -> bytes:
        """Write a PNG of what is seen, or of the whole page, and return its bytes."""
        data = base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"])
        path.write_bytes(data)
        return data

    def print_pdf(self) -> bytes:
        """Return the page printed to PDF."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    @property
    def requests(self) -> list[str]:
        """Addresses that the page asked for since it was opened."""
        return [
            e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"
        ]

    @property
    def complaints(self) -> list[dict[str, Any]]:
        """Exceptions, dialogs, console messages and refused content since the page was opened."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Audits.issueAdded")
        return [e for e in self.events if e["method"] in (*kinds, "Page.javascriptDialogOpening")]
