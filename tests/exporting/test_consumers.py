"""What other tools make of the explicit form: real ones, each in a process of its own, skipped where it is missing."""

from __future__ import annotations

import importlib.util
import json
import platform
import subprocess
import sys
from typing import Any

import pytest

MODELS = """
import collections, json, sys, warnings
import torch
from torch import nn
import fxquant as fxq

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.conv, self.head = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.stem(x)), 2)
        x = torch.relu(self.conv(x) + x)
        return self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))

torch.manual_seed(0)
torch.set_grad_enabled(False)
x = torch.randn(4, 3, 16, 16)
model = Net().eval()
int8 = fxq.quantize(model, [x, x * 1.1], progress=False)
explicit = fxq.explicit(int8)
wanted = explicit(x)
"""


def answer(package: str, code: str) -> Any:
    """What a process prints in its last line that runs this behind the models."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install {package}")
    run = subprocess.run([sys.executable, "-c", MODELS + code], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


TORCHAO = """
from torchao.quantization.pt2e.lowering import lower_pt2e_quantized_to_x86
from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import X86InductorQuantizer  # registers the fusions

def lowered(int8, x):
    made = lower_pt2e_quantized_to_x86(fxq.export(int8, x).module(), (x,))
    kernels = collections.Counter(str(n.target) for n in made.graph.nodes if str(n.target).startswith("onednn."))
    return made, kernels

made, kernels = lowered(int8, x)
import torchvision
resnet, images = torchvision.models.resnet18(weights=None).eval(), torch.randn(2, 3, 64, 64)
_, of_resnet = lowered(fxq.quantize(resnet, [images], progress=False), images)
print(json.dumps([kernels, of_resnet, float((made(x) - int8(x)).abs().max()), float((made(x) - wanted).abs().max())]))
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="it lowers to operators for x86")
def test_torchao_makes_every_unit_an_int8_operator() -> None:
    small, resnet, from_int8, from_explicit = answer("torchao", TORCHAO)
    convolution, binary, linear = (
        f"onednn.{name}"
        for name in ("qconv_pointwise.default", "qconv2d_pointwise.binary", "qlinear_pointwise.default")
    )
    assert small == {convolution: 1, binary: 1, linear: 1}
    assert resnet == {convolution: 12, binary: 8, linear: 1}  # 20 convolutions, 8 of them with a residual
    assert max(from_int8, from_explicit) < 1e-6


COMPILE = """
found = {}
for name, backend in (("aot_eager", "aot_eager"), ("inductor", "inductor")):
    torch._dynamo.reset()
    y = torch.compile(explicit, fullgraph=True, dynamic=True, backend=backend)(torch.cat([x, x]))
    found[name] = float((y - torch.cat([wanted, wanted])).abs().max())
print(json.dumps(found))
"""


@pytest.mark.slow
def test_torch_compile() -> None:
    found = answer("torch", COMPILE)
    assert found["aot_eager"] == 0
    assert found["inductor"] < 0.02  # it fuses products with sums: a step at a tie


OPENVINO = """
warnings.simplefilter("ignore")
import openvino.torch
from openvino.frontend.pytorch.torchdynamo import execute

own, errors = execute.openvino_execute, []

def watched(*args, **kwargs):
    try:
        return own(*args, **kwargs)
    except Exception as error:
        errors.append(str(error))
        raise

execute.openvino_execute = watched
y = torch.compile(explicit, backend="openvino", options={"aot_autograd": True})(x)
print(json.dumps([float((y - wanted).abs().max()), errors]))
"""


def test_openvino_does_not_read_integer_weights() -> None:
    """It takes ``dequantize`` for nothing behind a ``quantize``, so it cannot convert the model, and its backend runs
    the graph in PyTorch without a word: right, and no faster. Its way in is ONNX."""
    difference, errors = answer("openvino", OPENVINO)
    assert difference == 0
    assert len(errors) == 1
    assert "Arguments do not have the same element type" in errors[0]


EXECUTORCH = """
warnings.simplefilter("ignore")
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime

activation = fxq.MinMaxObserver.with_args(dtype=torch.int8, qscheme=torch.per_tensor_affine)
weight = fxq.PerChannelMinMaxObserver.with_args(dtype=torch.int8, qscheme=torch.per_channel_symmetric)
model, x = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).eval(), torch.randn(4, 16)
int8 = fxq.quantize(model, [x], fxq.QConfig(activation, weight, output=activation), progress=False)
edge = to_edge_transform_and_lower(fxq.export(int8, x), partitioner=[XnnpackPartitioner()])
calls = [str(node.target) for node in edge.exported_program().graph.nodes if node.op == "call_function"]
program = Runtime.get().load_program(bytes(edge.to_executorch().buffer))
y = program.load_method("forward").execute([x])[0]
print(json.dumps([calls, torch.equal(y, int8(x))]))
"""


def test_executorch_runs_signed_linear_layers_in_one_delegate() -> None:
    calls, equal = answer("executorch", EXECUTORCH)
    assert calls == ["executorch_call_delegate", "<built-in function getitem>"]
    assert equal
