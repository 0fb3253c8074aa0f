"""Tells whether a process of this machine still runs."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """A process, and the machine that its number counts on."""

    host: str
    pid: int

    @classmethod
    def this(cls) -> Process:
        """Return this process."""
        return cls(_host(), os.getpid())

    def may_run(self) -> bool:
        """Tell whether it may still run: of another machine nothing is known. One that was not waited for has ended."""
        if self.host != _host():
            return True
        with suppress(OSError):
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
            return state not in ("Z", "X")
        if Path("/proc/self/stat").exists():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        return True


def _host() -> str:
    """Return the name of the machine, with the space of process numbers where there are several."""
    space = ""
    with suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    return f"{platform.node()} {space}"
