"""Drives a headless browser through the WebDriver protocol: Chromium with chromedriver.

WebDriver is JSON over HTTP, and the part that the tests of the page need is here. Debian has both programs, as
`chromium` and `chromium-driver`; `make browser` installs them.
"""

import base64
import contextlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

PROGRAMS = ("chromium", "chromedriver")
ENTER, ESCAPE, SHIFT, TAB, BACKSPACE = "\ue007", "\ue00c", "\ue008", "\ue004", "\ue003"
_ATTEMPTS = 8  # to start a driver
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the name the protocol gives to a reference
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # containers let nobody make one
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-proxy-server",
    "--hide-scrollbars",
    # One process for all pages, and none in reserve: to start one costs more than most pages do.
    "--renderer-process-limit=1",
    "--disable-features=SpareRendererForSitePerProcess,BackForwardCache",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",  # whoever asks outside gets nothing
)


def missing_programs() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name) is None]


class WebDriverError(Exception):
    """What the driver could not do."""


class Browser:
    """One window. Elements are named by CSS selectors, and waited for."""

    def __init__(self, client: httpx.Client, session: str) -> None:
        self._client = client
        self._session = session
        self.timeout = 10.0

    def command(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return _command(self._client, method, f"/session/{self._session}{path}", body)

    def open(self, url: str) -> None:
        self.command("POST", "/url", {"url": url})

    def reload(self) -> None:
        self.command("POST", "/refresh", {})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a JavaScript function's body."""
        return self.command("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def devtools(self, name: str, **parameters: Any) -> Any:
        return self.command("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def resize(self, width: int, height: int, *, scale: float = 1.0) -> None:
        """The size of the page, not of a window around it; below 500 pixels there is no window."""
        metrics = dict(width=width, height=height, deviceScaleFactor=scale, mobile=False)
        self.devtools("Emulation.setDeviceMetricsOverride", **metrics)

    def prefer(self, scheme: str) -> None:
        """ "light" or "dark", as the system would say."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def click(self, selector: str) -> None:
        self.command("POST", f"/element/{self._element(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        self.command("POST", f"/element/{self._element(selector)}/value", {"text": text})

    def upload(self, selector: str, *paths: Path) -> None:
        """Chooses files in a field for them, which the page may hide behind a button."""
        field = self._reference("/element", "POST", {"using": "css selector", "value": selector})
        self.command("POST", f"/element/{field}/value", {"text": "\n".join(str(path) for path in paths)})

    def press(self, keys: str) -> None:
        """Sends keys to the element that has the focus."""
        self.command("POST", f"/element/{self._reference('/element/active', 'GET', None)}/value", {"text": keys})

    def text(self, selector: str) -> str:
        """As it is in the page, also where it is not shown."""
        script = "return document.querySelector(arguments[0])?.textContent ?? null"
        self.wait(lambda: self.run(script, selector) is not None, f"there is no {selector}")
        return str(self.run(script, selector))

    def value(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0]).value", selector))

    def count(self, selector: str) -> int:
        return int(self.run("return document.querySelectorAll(arguments[0]).length", selector))

    def is_shown(self, selector: str) -> bool:
        return bool(self.run("return document.querySelector(arguments[0])?.checkVisibility() ?? false", selector))

    def wait(self, condition: Callable[[], object], complaint: str = "it did not happen") -> None:
        deadline, pause = time.monotonic() + self.timeout, 0.02
        while not condition():
            if time.monotonic() > deadline:
                raise WebDriverError(
                    f"{complaint} within {self.timeout:.0f} s.\nThe page says: {self.page_text()[-600:]}"
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.16)  # every question costs the browser time too

    def wait_for(self, selector: str, text: str = "") -> None:
        """Until an element is shown, with this text in it."""
        script = (
            "return [...document.querySelectorAll(arguments[0])]"
            ".some(found => found.checkVisibility() && found.textContent.includes(arguments[1]))"
        )
        self.wait(lambda: self.run(script, selector, text), f"no {selector} with {text!r} is shown")

    def page_text(self) -> str:
        return str(self.run("return document.body.innerText"))

    def console(self) -> list[str]:
        """Errors that the page logged since the last call."""
        entries = self.command("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("WARNING", "SEVERE")]

    def requested_urls(self) -> list[str]:
        """Every address requested since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.command("POST", "/se/log", {"type": "performance"})]  # fmt: skip  # noqa: E501
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]

    def screenshot(self) -> bytes:
        return base64.b64decode(self.command("GET", "/screenshot"))

    def _element(self, selector: str) -> str:
        self.wait_for(selector)
        return self._reference("/element", "POST", {"using": "css selector", "value": selector})

    def _reference(self, path: str, method: str, body: dict[str, Any] | None) -> str:
        return str(self.command(method, path, body)[_ELEMENT])


def _command(client: httpx.Client, method: str, path: str, body: dict[str, Any] | None) -> Any:
    answer = client.request(method, path, json=body) if body is not None else client.request(method, path)
    value = answer.json()["value"]
    if answer.is_error:
        raise WebDriverError(f"{value['error']}: {value['message'].splitlines()[0]}")
    return value


@contextlib.contextmanager
def running_browser() -> Iterator[Browser]:
    with running_driver() as port, _client(port) as client:
        chromium = {"binary": shutil.which("chromium"), "args": list(_OPTIONS)}
        logs = {"browser": "ALL", "performance": "ALL"}
        asked = {"goog:chromeOptions": chromium, "goog:loggingPrefs": logs}
        session = _command(client, "POST", "/session", {"capabilities": {"alwaysMatch": asked}})["sessionId"]
        try:
            yield Browser(client, session)
        finally:
            _command(client, "DELETE", f"/session/{session}", None)


def _client(port: int) -> httpx.Client:
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)


@contextlib.contextmanager
def running_driver() -> Iterator[int]:
    """The port of a driver that listens.

    Left to choose, chromedriver takes a port that is free over IPv6, and ends if another program has the same one over
    IPv4. It is then started again.
    """
    for _ in range(_ATTEMPTS):
        with subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True) as driver:
            try:
                if (port := _port(driver)) is not None:
                    yield port
                    return
            finally:
                driver.terminate()
    raise WebDriverError(f"chromedriver was started {_ATTEMPTS} times and always ended before it listened")


def _port(driver: "subprocess.Popen[str]") -> int | None:
    assert driver.stdout is not None
    for line in driver.stdout:
        if found := re.search(r"started successfully on port (\d+)", line):
            return int(found[1])
    return None
