"""A real browser with a pointer and keys: chromium's DevTools protocol, over a pipe."""

import fcntl
import json
import os
import select
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
OF_A_PAGE = ["--window-size=1240,900", "--remote-debugging-pipe"]
KEYS = {"Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
SECONDS = 60  # that an answer may take


class Browser:
    """One page in a browser; a context, at whose end the browser ends."""

    def __init__(self, folder: Path):
        theirs, self._to = os.pipe()
        self._from, answers = os.pipe()
        # Chromium reads from 3 and writes to 4, which may be taken here.
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs, answers)]
        script = f'exec "$@" 3<&{high[0]} 4>&{high[1]}'
        command = [CHROMIUM, *FLAGS, *OF_A_PAGE, f"--user-data-dir={folder}"]
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            pass_fds=high, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for end in (theirs, answers, *high):
            os.close(end)
        self._left, self._number, self._session = b"", 0, None

    def __enter__(self) -> "Browser":
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        return self

    def __exit__(self, *_) -> None:
        os.close(self._to)  # it ends by itself
        self._process.wait(SECONDS)
        os.close(self._from)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            assert select.select([self._from], [], [], SECONDS)[0], "the browser is silent"
            self._left += (part := os.read(self._from, 2**20))
            assert part, "the browser has ended"
        message, _, self._left = self._left.partition(b"\0")
        return json.loads(message)

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        call = {"id": self._number, "method": method, "params": params} | session
        os.write(self._to, json.dumps(call).encode() + b"\0")
        while (answer := self._message()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, page: Path) -> None:
        """Until its scripts have run."""
        self._call("Page.navigate", url=page.resolve().as_uri())
        loaded = "document.readyState === 'complete' ? done() : addEventListener('load', done)"
        loaded = f"new Promise(done => {loaded})"
        self._call("Runtime.evaluate", expression=loaded, awaitPromise=True)

    def value(self, expression: str) -> Any:
        """Of JavaScript."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def point(self, selector: str, index: int = 0) -> tuple[float, float]:
        """Move the pointer to the middle of what is selected; returns where that is."""
        x, y = self.value(
            f"(element => {{ element.scrollIntoView({{block: 'center'}});"
            "const box = element.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })"
            f"(document.querySelectorAll({selector!r})[{index}])"
        )
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return x, y

    def click(self, selector: str, index: int = 0) -> None:
        x, y = self.point(selector, index)
        for kind in ("mousePressed", "mouseReleased"):
            button = {"button": "left", "clickCount": 1}
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def press(self, key: str) -> None:
        names = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        for kind in ("rawKeyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, **names)
