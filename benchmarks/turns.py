"""Contestants in processes of their own, which run in turns: who does not have the turn is stopped and cannot spin."""

from __future__ import annotations

import os
import pickle
import signal
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from exported import EXPORTED
from peers import PEERS
from runtimes import RUNTIMES
from torch import Tensor

ALL = PEERS | RUNTIMES | EXPORTED
_TURN = 0.1
"""Seconds of a turn at least: the system counts processor time in hundredths."""
_PATIENCE = 10
"""Seconds that a process has to end."""
_OTHERS = 0.1
"""A turn counts if other processes had less than this share of the machine meanwhile."""


@dataclass
class Contestant:
    """One process. It is stopped whenever it is not asked something."""

    name: str
    process: Any
    pipe: Any
    turns: dict[int, list[float]] = field(default_factory=dict)
    """Batch size to milliseconds of a call, one number for each undisturbed turn."""
    disturbed: int = 0
    failure: str = ""
    built: float = float("nan")
    """Seconds that all processors together worked to make what is timed."""

    def ask(self, *question: Any) -> Any:
        """The answer; None if it failed, and then ``failure`` says how."""
        self._signal("SIGCONT")
        try:
            with suppress(OSError):  # it has ended: there is no answer then
                self.pipe.send(question)
            return self.answer()
        finally:
            self._signal("SIGSTOP")

    def answer(self) -> Any:
        try:
            right, value = self.pipe.recv()
        except (EOFError, OSError):
            right, value = False, "the process ended"
        if not right:
            self.failure = value
        return value if right else None

    def stop(self) -> None:
        self._signal("SIGCONT")
        with suppress(OSError):  # it has ended already
            self.pipe.send(None)
        self.process.join(_PATIENCE)
        self.process.kill()

    def _signal(self, name: str) -> None:
        with suppress(ProcessLookupError, AttributeError):  # gone, or a system without these signals
            os.kill(self.process.pid, getattr(signal, name))


def compete(
    names: Sequence[str],
    model: torch.nn.Module,
    calibration: Sequence[Tensor],
    inputs: Mapping[int, Tensor],
    judged: Tensor,
    rounds: int,
    clock: str = "wall",
) -> tuple[list[Contestant], dict[str, Tensor]]:
    """Let contestants take turns.

    Args:
        names: Of ``ALL``.
        model: Float, in eval mode.
        calibration: Batches for those who calibrate.
        inputs: Batch size to the input that is timed.
        judged: Input whose outputs are returned.
        rounds: Turns of each contestant with each batch size. A disturbed turn is repeated, at most three times.
        clock: ``"wall"``, or ``"cpu"``: time that processors worked for the contestant. With one thread that is what
            the wall clock shows on a quiet machine, so no turn is repeated; with more it counts those that wait.

    Returns:
        The contestants, with the times of their turns, and by name what each makes of ``judged``.
    """
    outputs: dict[str, Tensor] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder, "task")
        path.write_bytes(pickle.dumps((model, list(calibration), dict(inputs), judged, torch.get_num_threads())))
        contestants = []
        for name in names:  # one after the other, so that they do not fight over the machine while they build
            contestants.append(contestant := _start(name, path))
            stack.callback(contestant.stop)
            if not contestant.failure and (output := contestant.ask("output")) is not None:
                outputs[name] = output
            for size in inputs:
                if not contestant.failure:
                    contestant.ask("warm", size)
            if contestant.failure:
                print(f"{name} fails: {contestant.failure.strip().splitlines()[-1]}", file=sys.stderr, flush=True)
        running = [each for each in contestants if not each.failure]
        for size in inputs:
            for _ in range(rounds):
                for contestant in running:
                    if not contestant.failure:
                        _take_turn(contestant, size, clock)
    return contestants, outputs


def median_ms(contestant: Contestant, size: int) -> float:
    """Milliseconds of a call; NaN if it failed."""
    return statistics.median(contestant.turns.get(size) or [float("nan")])


def _take_turn(contestant: Contestant, size: int, clock: str) -> None:
    answer = None
    for _ in range(4):
        before, start = _busy(), time.perf_counter()
        answer = contestant.ask("turn", size, clock)
        if answer is None:
            return
        if clock == "cpu":
            break
        spent = time.perf_counter() - start
        if _busy() - before - answer["cpu"] < _OTHERS * spent * (os.cpu_count() or 1):
            break
        contestant.disturbed += 1
    contestant.turns.setdefault(size, []).append(answer["ms"])


def _busy() -> float:
    """Seconds that all processors have worked since the machine started; 0 where the system does not say."""
    path = Path("/proc/stat")
    if not path.exists():
        return 0.0
    user, nice, system, _, _, irq, softirq, *_ = map(int, path.read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _start(name: str, path: Path) -> Contestant:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(name, str(path), theirs), daemon=True)
    process.start()
    theirs.close()
    contestant = Contestant(name, process, ours)
    built = contestant.answer()
    contestant.built = float("nan") if built is None else built
    contestant._signal("SIGSTOP")
    return contestant


def _serve(name: str, path: str, pipe: Any) -> None:
    """What a contestant's process does: build, then answer."""
    warnings.simplefilter("ignore")  # what peers deprecate or guess is no news to whoever measures them
    with open(os.devnull, "w") as nowhere:  # nor are their progress bars and logs
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    model, calibration, inputs, judged, threads = pickle.loads(Path(path).read_bytes())
    torch.set_num_threads(threads)
    with torch.no_grad():
        try:
            call = ALL[name](model, calibration)
            pipe.send((True, time.process_time()))
        except Exception:
            pipe.send((False, traceback.format_exc()))
            return
        while (asked := pipe.recv()) is not None:
            question, *rest = asked
            try:
                pipe.send((True, _ANSWERS[question](call, inputs, judged, *rest)))
            except Exception:
                pipe.send((False, traceback.format_exc()))


def _turn(call: Any, inputs: Any, judged: Tensor, size: int, clock: str = "wall") -> dict[str, float]:
    """Calls for a tenth of a second: the first untimed, so that its weights are in the caches; the median counts."""
    now = time.process_time if clock == "cpu" else time.perf_counter
    x, times = inputs[size], []
    cpu, start = time.process_time(), time.perf_counter()
    call(x)
    while not times or time.perf_counter() - start < _TURN:
        begin = now()
        call(x)
        times.append(now() - begin)
    return {"ms": 1e3 * statistics.median(times), "cpu": time.process_time() - cpu}


def _warm(call: Any, inputs: Any, judged: Tensor, size: int) -> None:
    """What happens once per shape, compiling for example, happens here."""
    for _ in range(3):
        call(inputs[size])


def _output(call: Any, inputs: Any, judged: Tensor) -> Tensor:
    return call(judged).clone()


_ANSWERS: dict[str, Any] = {
    "output": _output,
    "warm": _warm,
    "turn": _turn,
}
