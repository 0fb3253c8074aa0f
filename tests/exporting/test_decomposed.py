"""The operators are registered by whoever has them, and compute the same wherever they come from."""

from __future__ import annotations

import json
from typing import Any

import pytest

PREPARE = """
import importlib.abc, json, sys
import torch
import fxquant as fxq
from fxquant.exporting import decomposed

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == decomposed.HOME:
            raise ModuleNotFoundError(name)

absent = Absent()
"""

COMPUTE = """
import fxquant.exporting.operators
ops = torch.ops.quantized_decomposed
generator = torch.Generator().manual_seed(0)
x = torch.randn(6, 8, generator=generator)
q = torch.randint(0, 256, (6, 8), generator=generator).to(torch.uint8)
scales, steps = torch.rand(6, generator=generator) + 0.01, torch.arange(6) * 40
found = [
    ops.quantize_per_tensor.default(x, 0.013, 77, 3, 200, torch.uint8),
    ops.quantize_per_tensor.tensor(x, torch.tensor([0.013]).double(), torch.tensor([77]), 3, 200, torch.uint8),
    ops.dequantize_per_tensor.default(q, 0.013, 77, 0, 255, torch.uint8),
    ops.dequantize_per_tensor.default(q, 0.013, 77, 0, 255, torch.uint8, out_dtype=torch.float16),
    ops.dequantize_per_tensor.tensor(q, torch.tensor([0.013]).double(), torch.tensor([77]), 0, 255, torch.uint8),
    *ops.choose_qparams.tensor(x, -8, 7, 1e-30, torch.int8),
    *ops.choose_qparams.tensor(x.abs(), 0, 255, 1e-30, torch.uint8),
    *ops.choose_qparams_symmetric.tensor(x, -128, 127, 1e-30, torch.int8),
    *ops.choose_qparams_symmetric.tensor(x, 0, 255, 1e-30, torch.uint8),
    ops.quantize_per_channel.default(x, scales, steps, 0, 0, 255, torch.uint8),
    ops.quantize_per_channel.default(x.T, scales, steps, 1, 0, 255, torch.uint8),
    ops.dequantize_per_channel.default(q, scales, steps, 0, 0, 255, torch.uint8),
    ops.dequantize_per_channel.default(q, scales, None, 0, 0, 255, torch.uint8),
    ops.dequantize_per_channel_group.default(
        q, torch.cat([scales, scales]), torch.arange(12), 0, 255, torch.uint8, 4, torch.float32
    ),
]
fakes = []
with torch._subclasses.FakeTensorMode() as mode:
    a, b = mode.from_tensor(x), mode.from_tensor(q)
    c, d = mode.from_tensor(scales), mode.from_tensor(steps)
    fakes = [
        ops.quantize_per_tensor.default(a, 0.013, 77, 3, 200, torch.uint8),
        ops.dequantize_per_tensor.default(b, 0.013, 77, 0, 255, torch.uint8),
        *ops.choose_qparams.tensor(a, -8, 7, 1e-30, torch.int8),
        ops.dequantize_per_channel.default(b, c, d, 0, 0, 255, torch.uint8),
        ops.dequantize_per_channel_group.default(b, c, d, 0, 255, torch.uint8, 8, torch.float32),
    ]
model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
with torch.no_grad():
    for number, parameter in enumerate(model.parameters()):
        parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape) / (number + 1))
exported = fxq.export(fxq.quantize(model, [x], progress=False), x, dynamic_shapes=({0: torch.export.Dim("n")},))
found.append(exported.module()(torch.cat([x, x])).detach())
print(json.dumps({
    "values": [tensor.double().tolist() for tensor in found],
    "kinds": [[str(tensor.dtype), list(tensor.shape)] for tensor in (*found, *fakes)],
    "ours": len(decomposed._libraries),
    "loaded": decomposed.HOME in sys.modules,
}))
"""


def answers(fresh: Any, between: str, behind: str = "") -> list[Any]:
    """What a process says that runs this before it computes, and then ``behind``."""
    run = fresh(PREPARE + between + COMPUTE + behind)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


THEIRS_FIRST = "import torch.ao.quantization.fx._decomposed\n"
WITHOUT_THEIRS = "sys.meta_path.insert(0, absent)\n"


@pytest.fixture(scope="module")
def without_theirs(fresh: Any) -> list[Any]:
    """What a process says in which torch's own module cannot be imported at first."""
    return answers(fresh, WITHOUT_THEIRS, BEHIND)


@pytest.mark.slow
def test_the_same_from_wherever_they_come(fresh: Any, without_theirs: list[Any]) -> None:
    (first,), (found,), missing = answers(fresh, THEIRS_FIRST), answers(fresh, ""), dict(without_theirs[0])
    assert [(each.pop("ours"), each.pop("loaded")) for each in (first, found, missing)] == [
        (0, True),  # they are there already
        (0, True),  # torch has the module, which is imported
        (10, False),  # ours
    ]
    assert first == found == missing


def test_importing_fxquant_registers_nothing(fresh: Any) -> None:
    run = fresh(PREPARE + "print(decomposed.HOME in sys.modules, len(decomposed._libraries))")
    assert run.stdout.split() == ["False", "0"], run.stderr


BEHIND = """
sys.meta_path.remove(absent)
try:
    import torch.ao.quantization.fx._decomposed
except RuntimeError as error:
    print(json.dumps(str(error)))
print(json.dumps(fxq.export(fxq.quantize(model, [x], progress=False), x).module()(x).equal(exported.module()(x))))
"""


@pytest.mark.slow
def test_torchs_own_module_behind_ours(without_theirs: list[Any]) -> None:
    """A schema can be defined once. Ours are defined only where that module cannot be imported; should it appear later
    all the same, torch refuses the second definition, and what is there goes on working."""
    *_, refused, works = without_theirs
    assert "quantize_per_tensor" in refused
    assert works is True
