"""Runs programs in fresh processes that have nothing of ours.

Each is forked from one process that has imported torch and done nothing else, since ``import torch`` takes three
seconds. Ranks alone are processes of their own.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PATIENCE = 300
"""Seconds that a program may take, on a machine that does other things too."""
SANITIZER = {"ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:handle_segv=0"}
"""Of ``make sanitize``: an allocation that fails is an error as without it, and so is a signal."""


class Fresh:
    """Starts programs, as ``subprocess.run([sys.executable, "-W", "error", "-c", code, ...])`` does."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **SANITIZER, "OMP_NUM_THREADS": "1"},  # read when torch is imported
        )

    def __call__(
        self,
        code: str,
        *arguments: str | Path,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        strict: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program.

        Args:
            code: Its text.
            arguments: What follows in ``sys.argv``.
            environment: All of its environment; that of this process by default.
            folder: Where it runs; here by default.
            strict: Whether warnings are errors.

        Returns:
            Its exit status, minus the signal that ended it, and what it printed.
        """
        with tempfile.TemporaryDirectory() as place:
            outputs = [str(Path(place) / name) for name in ("out", "err")]
            request = {
                "code": code,
                "arguments": list(map(str, arguments)),
                "environment": dict(os.environ if environment is None else environment),
                "folder": str(folder or Path.cwd()),
                "strict": strict,
                "outputs": outputs,
            }
            print(json.dumps(request), file=self._server.stdin, flush=True)
            answer = self._server.stdout.readline()  # type: ignore[union-attr]
            assert answer, "the process that forks has ended"
            printed = [Path(path).read_text(encoding="utf-8") for path in outputs]
        return subprocess.CompletedProcess([sys.executable, "-c", code], int(answer), *printed)

    def script(self, path: Path, *arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a file, with the files beside it to import; arguments and result as those of a call."""
        code = (
            "import os, runpy, sys; del sys.argv[0]; sys.path.insert(0, os.path.dirname(sys.argv[0])); "
            "runpy.run_path(sys.argv[0], run_name='__main__')"
        )
        return self(code, path, *arguments, **options)

    @staticmethod
    def ranks(path: Path, folder: Path, count: int, *arguments: str) -> tuple[list[int], list[str]]:
        """Run ``path RANK FOLDER ARGUMENTS`` in several processes at once.

        None is forked from another: on several machines, too, each rank has its own order of sets and of addresses.

        Returns:
            The exit status of each, and what each printed.
        """
        logs = [folder / f"{rank}.log" for rank in range(count)]
        with contextlib.ExitStack() as stack:
            processes = []
            for rank, log in enumerate(logs):
                command = [sys.executable, "-W", "error", path, str(rank), folder, *arguments]
                environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": str(rank + 1)}
                printed = stack.enter_context(open(log, "w"))
                process = subprocess.Popen(command, stdout=printed, stderr=printed, env=environment)
                processes.append(stack.enter_context(process))
                stack.callback(process.kill)
            codes = [process.wait(PATIENCE) for process in processes]
        return codes, [log.read_text() for log in logs]

    def close(self) -> None:
        """End the process that forks."""
        with self._server:
            self._server.stdin.close()  # type: ignore[union-attr]


def serve() -> None:
    """Fork a process for each line of the input, and print its exit status."""
    importlib.import_module("torch")  # in the process that forks alone
    for line in sys.stdin:
        process = os.fork()
        if not process:
            sys.exit(become(json.loads(line)))  # which ends the interpreter as that of any program
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


def become(request: dict[str, Any]) -> Any:
    """Run a program as the main one of this process, and return what the process is to end with."""
    signal.alarm(PATIENCE)
    nothing = os.open(os.devnull, os.O_RDONLY)
    printed = [os.open(path, os.O_WRONLY | os.O_CREAT) for path in request["outputs"]]
    for number, source in enumerate([nothing, *printed]):
        os.dup2(source, number)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    here = str(Path(__file__).parent)
    own = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:] = [*own, *(each for each in sys.path if each != here)]
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, "")
    sys.argv = ["-c", *request["arguments"]]
    if request["strict"]:
        warnings.resetwarnings()
        warnings.simplefilter("error")
        sys.warnoptions[:] = ["error"]  # for the processes that it starts
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(compile(request["code"], "<string>", "exec"), main.__dict__)
    except SystemExit as ended:
        return ended.code
    except BaseException:  # as the interpreter does
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    serve()
