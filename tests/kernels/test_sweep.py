"""Every operator under guard pages and with hostile arguments: an error or the right value, never a signal.

The calls run in processes of their own (``sweep.py``), so that one that dies is named.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fxquant
from fxquant.kernels.library import COMPOSED, available_isas

HERE = Path(__file__).parent
SPEC: Any = importlib.util.spec_from_file_location("calls", HERE / "calls.py")
calls = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(calls)
PACKAGE = str(Path(fxquant.__file__).parents[1])
PATH = os.pathsep.join((PACKAGE, str(HERE)))
"""With the modules beside the sweep, which ``PYTHONSAFEPATH`` of ``make sanitize`` hides."""
SEEDS = {"guarded": 40, "hostile": 1}

BEYOND_THE_CONTRACT = re.compile(
    r"(conv2d|conv3d|linear), seed \d+, "
    r"(weight=all|zero_point_correction=all|kernel_size=|x=dim \d (one less|of one))"
    r"|per_token_linear, seed \d+, (weight|zero_point_correction|weight_sums|x_zero_point)=all"
    r"|per_token_linear, seed \d+, x=dim \d (one less|of one)"
    r"|dynamic_linear, seed \d+, (weight|zero_point_correction|weight_sums)=all"
    r"|dynamic_linear, seed \d+, x=dim \d (one less|of one)"
    r"|recurrent_steps, seed \d+, (weight|correction|projection|projection_correction)=(all|one place|overlapping)"
)
"""What no argument check can see. A packed weight has zeros where there is no channel, and its shape does not tell of
which depth and window it was made; sums, with the zero point correction, stay in int32, as those of
``per_token_linear`` and ``dynamic_linear`` do with zero points of their dtype. That of ``recurrent_steps`` is
minus the sum of its weight."""

needs_native = pytest.mark.skipif(not available_isas(), reason="no native CPU library is loaded")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="it maps memory, and reads /proc")


def sweep(fresh: Any, kind: str, out: Path, **environment: str) -> Any:
    """What came of all calls; fails with the call that ended the process."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FXQUANT_")}
    environment = {**inherited, "PYTHONPATH": PATH, **environment}
    done = fresh.script(HERE / "sweep.py", kind, out, str(SEEDS[kind]), environment=environment, strict=False)
    last = out.with_suffix(".at").read_text().strip() if out.with_suffix(".at").exists() else "nothing"
    assert done.returncode == 0, f"exit code {done.returncode} at: {last}\n{done.stderr[-2000:]}"
    return torch.load(out)


def test_every_native_operator_is_called() -> None:
    defined = {
        name.removeprefix("fxquant::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("fxquant::") and name not in COMPOSED
    }
    assert defined == set(calls.CALLS)


@pytest.mark.parametrize("name", calls.CALLS)
def test_the_calls_are_valid(name: str) -> None:
    for seed in range(10):
        calls.operator(name)(*calls.ordered(name, calls.CALLS[name](calls.Maker(seed))).values())


@needs_native
@needs_linux
def test_operands_that_end_where_memory_ends(fresh: Any, tmp_path: Path) -> None:
    assert sweep(fresh, "guarded", tmp_path / "found") == []


@needs_linux
@pytest.mark.parametrize(("behind", "offset"), [(True, 5), (False, -1)])
def test_one_byte_more_ends_the_process(fresh: Any, behind: bool, offset: int) -> None:
    """That the pages guard something."""
    program = (
        "import ctypes, torch; from guarded import Guarded; "
        f"x = Guarded({behind}).place(torch.ones(5, dtype=torch.uint8)); print(x.tolist(), flush=True); "
        f"ctypes.string_at(x.data_ptr() + {offset}, 1)"
    )
    done = fresh(program, environment={**os.environ, "PYTHONPATH": PATH}, strict=False)

    assert done.stdout == "[1, 1, 1, 1, 1]\n"
    assert done.returncode == -signal.SIGSEGV


@needs_native
@needs_linux
def test_hostile_arguments(fresh: Any, tmp_path: Path) -> None:
    """A value where the reference has one is the same; where a check of the reference refuses, so does the kernel."""
    native = sweep(fresh, "hostile", tmp_path / "native")
    reference = sweep(fresh, "hostile", tmp_path / "reference", FXQUANT_KERNELS="reference")

    assert [call for call, _ in native] == [call for call, _ in reference]
    assert sum(not isinstance(got, str) for _, got in native) > 1000
    wrong = []
    for (call, got), (_, want) in zip(native, reference, strict=True):
        if isinstance(got, str):
            if got.startswith("instruction sets differ") and not BEYOND_THE_CONTRACT.match(call):
                wrong.append(f"{call}: {got}")
        elif isinstance(want, str):
            if want.startswith("KernelError"):
                wrong.append(f"{call}: taken, where the reference says {want}")
        elif not calls.same(got, want) and not BEYOND_THE_CONTRACT.match(call):
            wrong.append(f"{call}: not what the reference gives")
    assert wrong == [], "\n".join(wrong)
