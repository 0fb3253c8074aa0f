"""Operators of ATen in files: exported programs hold those that are spelled as no function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import Graph
from torch.nn import functional as F

import fxquant as fxq
from fxquant.artifact.functions import FUNCTIONS, METHODS, function_called, name_of
from fxquant.artifact.graph import decode_graph, encode_graph
from fxquant.artifact.operators import names_of, operator_called
from fxquant.errors import ArtifactError
from tests.sampling import one_of

NAMES = names_of(FUNCTIONS, METHODS)


def overloads() -> Iterator[OpOverload[..., Any]]:
    """Every overload of ATen in this version of torch."""
    for schema in torch._C._jit_get_all_schemas():
        place, _, name = schema.name.partition("::")
        packet = getattr(torch.ops.aten, name, None) if place == "aten" else None
        if isinstance(packet, OpOverloadPacket) and (schema.overload_name or "default") in packet.overloads():
            yield getattr(packet, schema.overload_name or "default")


def test_a_name_is_that_of_one_operator() -> None:
    held = {name: overload for overload in overloads() if (name := name_of(overload))}
    assert len(held) > 1000
    assert all(function_called(name) is overload for name, overload in held.items())
    assert name_of(torch.ops.aten.im2col.default) == "torch.ops.aten.im2col.default"


@pytest.mark.parametrize(
    "name",
    [
        *(
            "from_file.default",
            "save.default",
            "set_.source_Storage",
            "set_.source_Tensor",
            "data_ptr.default",
            "warn.default",
        ),
        *("resize_.default", "record_stream.default", "add.out", "add.t", "copy.Dict_str", "__getitem__.Dict_str"),
        *("__eq__.__call__", "__reduce__.default", "__class__.default", "add.__class__", "add.overloads", "add.none"),
        *("_print.default", "manual_seed.default", "set_grad_enabled.default", "fbgemm_linear_int8_weight.default"),
        *("add", "add.Tensor.x", "add. Tensor", "add.Tensor\n", "none.default", ""),
    ],
)
def test_operators_that_no_file_may_call(name: str) -> None:
    assert function_called(f"torch.ops.aten.{name}") is None
    assert operator_called(f"torch.ops.aten.{name}", NAMES) is None
    with pytest.raises(ArtifactError, match="a function that artifacts may not hold"):
        decode_graph(
            [
                {"op": "call_function", "name": "a", "target": f"torch.ops.aten.{name}", "args": [], "kwargs": {}},
                {"op": "output", "name": "output", "target": "output", "args": [{"n": "a"}], "kwargs": {}},
            ],
            [],
            [],
        )


def test_operators_of_other_libraries_are_refused_by_name() -> None:
    graph = Graph()
    graph.output(graph.call_function(torch.ops.prims.add.default, (graph.placeholder("x"), 1)))
    with pytest.raises(ArtifactError, match="a function that artifacts may not hold") as caught:
        encode_graph(graph)
    assert "add" in str(caught.value)


def test_no_operator_in_a_file_takes_storages_streams_or_dicts() -> None:
    types = {
        str(one.type)
        for overload in overloads()
        if name_of(overload)
        for one in (*overload._schema.arguments, *overload._schema.returns)
    }
    assert not [kind for kind in types if any(word in kind for word in ("Storage", "Stream", "Dict", "Any", "Future"))]
    assert {"Tensor", "List[int]", "Optional[Tensor]"} <= types


class Exported(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Any:
        return self.function(self.second(self.first(x).relu()))


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "an unpadded convolution": lambda h: h,
    "half of a size": lambda h: h[:, :, : h.shape[2] // 2],
    "patches": lambda h: F.fold(F.unfold(h, 2), (14, 14), 2),
    "a Fourier transform": lambda h: torch.fft.ifft(torch.fft.fft(h)).real + torch.fft.irfft2(torch.fft.rfft2(h)),
    "the k-th value": lambda h: h.kthvalue(2, 1).values,
    "the shape of another": lambda h: h.flatten(1).reshape_as(h),
    "operators on bools": lambda h: ((h >= 0) & (h < 1) | (h > 2)) ^ (h < -1),
    "operators on integers": lambda h: (h.int() << 2 >> 1) & 3 | 8,
    "operators in place": lambda h: (h > 0).__iand__(h < 1),
    "activations in place": lambda h: F.elu_(h + 1) + F.leaky_relu_(h * 2),
    "losses": lambda h: (F.mse_loss(h, h.round()), F.cross_entropy(h, h[:, 0].gt(0).long()), F.l1_loss(h, h.round())),
    "a distance": lambda h: F.pairwise_distance(h, h.flip(1)) + F.cosine_similarity(h, h.flip(1)).sum(),
    "a solution": lambda h: torch.linalg.solve(h[..., :14] + 20 * torch.eye(14), h) + torch.special.i0(h),
    "where a stack begins": lambda h: h[0, 1:].as_strided((3, 3), (3, 1), h[0, 1:].storage_offset()),
    "reflections": lambda h: F.pad(h, (1, 1, 1, 1), mode="reflect") + F.pad(h, (1, 1, 1, 1), mode="circular"),
    "the largest where they lie": lambda h: F.max_pool2d(h, 2, return_indices=True),
    "a number of the sizes": lambda h: h * math.sqrt(h.shape[1]),
}


@pytest.mark.parametrize("name", one_of(2, PROGRAMS))
def test_a_file_holds_programs(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 16, 16)
    prepared = fxq.prepare(Exported(PROGRAMS[name]).eval(), [x], capture="export")
    fxq.calibrate(prepared, [x], progress=False)
    for model in (fxq.convert(prepared), prepared):
        fxq.save(model, tmp_path / "a.fxq", overwrite=True)
        loaded = fxq.load(tmp_path / "a.fxq")
        if isinstance(loaded, fxq.Quantizer):
            model, loaded = fxq.convert(model), fxq.convert(loaded)
        wanted, found = model(x), loaded(x)
        for one, two in zip(*((v if isinstance(v, tuple) else (v,)) for v in (wanted, found)), strict=True):
            assert torch.equal(one, two)


@pytest.mark.parametrize("size", one_of(2, [15, 22]))
def test_sizes_that_a_program_leaves_open(size: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, other = torch.randn(2, 3, 16, 16), torch.randn(3, 3, size, 16)
    prepared = fxq.prepare(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval(), [x], capture="export"
    )
    model = fxq.convert(fxq.calibrate(prepared, [x], progress=False))
    fxq.save(model, tmp_path / "a.fxq")
    assert torch.equal(fxq.load(tmp_path / "a.fxq")(other), model(other))
