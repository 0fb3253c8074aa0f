"""``fxq.export`` with a dynamic batch, from every form, before and after runs; what a file without operators says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq

FORMS = ("int8", "reference", "fake_quant")


class Net(nn.Module):
    """A residual, pools, a head, and a second input."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.head = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: Tensor, factor: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = nn.functional.max_pool2d(torch.relu(self.conv(x) + x), 2)
        return self.head(x.mean((2, 3))) * factor


@pytest.fixture(scope="module")
def quantizer() -> fxq.Quantizer:
    torch.manual_seed(0)
    x, factor = torch.randn(2, 3, 8, 8), torch.ones(2, 1)
    return fxq.calibrate(fxq.prepare(Net().eval(), (x, factor)), [(x, factor)], progress=False)


@pytest.mark.parametrize("form", FORMS)
def test_a_dynamic_batch_before_and_after_runs(quantizer: fxq.Quantizer, form: str) -> None:
    x, factor = torch.randn(2, 3, 8, 8), torch.full((2, 1), 2.0)
    reference = fxq.convert(quantizer, to="reference")
    batch = torch.export.Dim("batch", max=64)
    for runs in (0, 3):
        model = fxq.convert(quantizer, to=form)
        for _ in range(runs):
            model(x, factor)
        program = fxq.export(
            model, (x,), example_kwargs={"factor": factor}, dynamic_shapes={"x": {0: batch}, "factor": {0: batch}}
        )
        targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
        assert not [target for target in targets if "fxquant" in target or target.startswith("aten.to.")]
        assert {
            f"quantized_decomposed.{name}.default" for name in ("quantize_per_tensor", "dequantize_per_channel")
        } <= targets
        more = torch.cat([x, x.flip(0), x])
        factors = torch.cat([factor] * 3)
        assert torch.equal(program.module()(more, factor=factors), reference(more, factors))


def test_a_lone_tensor_is_the_input() -> None:
    x = torch.randn(2, 3)
    int8 = fxq.quantize(nn.Sequential(nn.Linear(3, 2)).eval(), [x], progress=False)
    explicit = fxq.explicit(int8)
    assert torch.equal(fxq.export(int8, x).module()(x), explicit(x))
    assert torch.equal(fxq.export(explicit, (x,)).module()(x), explicit(x))


LOAD = """
import sys
import torch
{imports}
program = torch.export.load(sys.argv[1])
saved = torch.load(sys.argv[2])
assert torch.equal(program.module()(saved["x"]), saved["y"])
"""


def test_a_file_says_what_to_import(tmp_path: Path) -> None:
    x = torch.randn(2, 3)
    int8 = fxq.quantize(nn.Sequential(nn.Linear(3, 2), nn.ReLU()).eval(), [x], progress=False)
    explicit = fxq.export(int8, x)
    cases = (
        (
            "explicit",
            explicit,
            "before torch.export.load: import fxquant.exporting.operators, or torch.ao",
            "import fxquant.exporting.operators",
        ),
        ("int8", torch.export.export(int8, (x,)), "failed to resolve torch.ops.fxquant.", "import fxquant"),
    )
    for name, program, says, imports in cases:
        torch.export.save(program, tmp_path / f"{name}.pt2")
        torch.save({"x": x, "y": program.module()(x).detach()}, tmp_path / f"{name}.pt")
        for before in ("", imports):
            command = [sys.executable, "-c", LOAD.format(imports=before)]
            run = subprocess.run(
                [*command, str(tmp_path / f"{name}.pt2"), str(tmp_path / f"{name}.pt")], capture_output=True, text=True
            )
            assert (run.returncode == 0) == bool(before), run.stderr
            assert before or says in run.stderr
