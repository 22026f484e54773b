"""A headless Chromium that tests drive by its DevTools protocol, where this machine has one."""

from __future__ import annotations

import asyncio
import base64
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
_DEADLINE_S = 60


class Tab:
    """One page of the browser."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._loop = loop
        self._socket = socket
        self._number = 0

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What the browser answers to a command of the protocol."""
        self._number += 1
        return self._loop.run_until_complete(self._command(self._number, method, parameters))

    async def _command(self, number: int, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            said = await asyncio.wait_for(self._socket.receive_json(), _DEADLINE_S)
            if said.get("id") == number:
                assert "error" not in said, said
                return said["result"]

    def open(self, address: str) -> None:
        self.command("Page.navigate", url=address)

    def value(self, expression: str) -> Any:
        """What an expression of the page is worth."""
        found = self.command("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")

    def wait(self, expression: str) -> Any:
        """The value of an expression once it is true."""
        deadline = time.monotonic() + _DEADLINE_S
        while not (value := self.value(expression)):
            assert time.monotonic() < deadline, (expression, self.value("document.body.innerText"))
            time.sleep(0.02)
        return value

    def press(self, key: str) -> None:
        """A key, pressed and let go."""
        text = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
        self.command("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.command("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self, path: Path, width: int = 1280, height: int = 800, dark: bool = False) -> None:
        """Take a picture of the page."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        self.command("Page.bringToFront")
        path.write_bytes(base64.b64decode(self.command("Page.captureScreenshot")["data"]))


@contextmanager
def tabs(folder: Path, count: int) -> Iterator[list[Tab]]:
    """So many pages of a browser of one's own, whose profile is in `folder`."""
    assert PROGRAM is not None
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    options += ["--remote-debugging-port=0", f"--user-data-dir={folder}", "--remote-allow-origins=*"]
    with subprocess.Popen([PROGRAM, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as browser:
        loop = asyncio.new_event_loop()
        session: aiohttp.ClientSession | None = None
        try:
            session = loop.run_until_complete(_session())
            port = _port(folder / "DevToolsActivePort")
            yield [Tab(loop, loop.run_until_complete(_new_tab(session, port))) for _ in range(count)]
        finally:
            if session is not None:
                loop.run_until_complete(session.close())
            loop.close()
            browser.terminate()


async def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession()


async def _new_tab(session: aiohttp.ClientSession, port: str) -> aiohttp.ClientWebSocketResponse:
    async with session.put(f"http://127.0.0.1:{port}/json/new?about:blank") as answer:
        address = (await answer.json())["webSocketDebuggerUrl"]
    return await session.ws_connect(address, max_msg_size=0)


def _port(file: Path) -> str:
    """The port that the browser has opened, which it writes when it is ready."""
    deadline = time.monotonic() + _DEADLINE_S
    while not file.exists() or "\n" not in file.read_text():
        assert time.monotonic() < deadline, "the browser does not start"
        time.sleep(0.05)
    return file.read_text().splitlines()[0]
