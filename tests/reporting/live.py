"""A page in a headless browser in real time, spoken to through a pipe, so that workers run."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any


class Live:
    """A browser with one page. Its messages are those of the Chrome DevTools Protocol, each ended by a zero byte.

    Args:
        command: The browser and its flags.
        page: The file to open.
        address: What follows ``#``.
        before: A script that runs before those of the page.
        patience: Seconds that an answer may take, on a machine that does other things too.
    """

    def __init__(
        self, command: Sequence[str], page: Path, address: str = "", before: str = "", patience: float = 90.0
    ) -> None:
        self._patience, self._number, self._rest = patience, 0, b""
        (theirs, self._to), (self._from, ours) = os.pipe(), os.pipe()
        # The browser reads from its descriptor 3, and writes to 4.
        high = [fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in (theirs, ours)]
        start = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
        start += "os.execv(sys.argv[3], sys.argv[3:])"
        whole = [sys.executable, "-Sc", start, *map(str, high), *command, "--remote-debugging-pipe", "about:blank"]
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(whole, pass_fds=high, **quiet)
        for each in (theirs, ours, *high):
            os.close(each)
        os.set_blocking(self._from, False)
        targets = self._ask("Target.getTargets")["targetInfos"]
        target = next(each["targetId"] for each in targets if each["type"] == "page")
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._ask("Page.enable")
        self._ask("Page.addScriptToEvaluateOnNewDocument", source=before)
        self._ask("Page.navigate", url=f"{page.as_uri()}#{address}")

    def __enter__(self) -> Live:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def run(self, script: str) -> Any:
        """Return what an expression gives in the page; of a promise, what it comes to."""
        found = self._ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script: str) -> Any:
        """Return what an expression gives once it is true."""
        end = time.monotonic() + self._patience
        while not (found := self.run(script)):
            assert time.monotonic() < end, f"still false: {script}"
            time.sleep(0.05)
        return found

    def _ask(self, method: str, **values: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": values}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + self._patience
        while time.monotonic() < end:
            while b"\0" in self._rest:
                text, _, self._rest = self._rest.partition(b"\0")
                answer = json.loads(text)
                if answer.get("id") == self._number:
                    assert "error" not in answer, answer["error"]
                    result: dict[str, Any] = answer["result"]
                    return result
            try:
                self._rest += os.read(self._from, 1 << 20)
            except BlockingIOError:
                assert self._process.poll() is None, "the browser has ended"
                time.sleep(0.01)
        raise AssertionError(f"no answer to {method} for {self._patience:g} s")
