"""Functions, methods and attributes of tensors that models use: what a file may not hold, ``save`` refuses."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph
from torch.nn import functional as F

import fxquant as fxq
from fxquant.artifact.functions import METHODS, NAMES
from fxquant.artifact.graph import decode_graph, encode_graph
from fxquant.capture.exported import spelling
from fxquant.errors import ArtifactError
from fxquant.graph import decompositions
from tests.sampling import one_of


class Mode(Enum):
    FAST = "fast"
    SLOW = "slow"


class Fn(nn.Module):
    def __init__(self, function: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.function, self.fc = function, nn.Linear(8, 8)
        self.register_buffer("index", torch.tensor([0, 1, 0, 2]))
        self.register_buffer("turn", torch.polar(torch.ones(4), torch.arange(4.0)).conj())

    def forward(self, x: Tensor) -> Any:
        return self.function(self, self.fc(x))


def rotated(module: Any, h: Tensor) -> Tensor:
    pairs = torch.view_as_complex(h.reshape(4, 4, 2))
    return torch.view_as_real(pairs * module.turn).flatten(1)


def gathered(module: Any, h: Tensor) -> Tensor:
    total = torch.zeros(3, 8).index_add_(0, module.index, h)
    total = total.scatter_add(0, module.index[:, None].expand(4, 8), h)
    return total.index_copy(0, module.index[:1], h[:1]).index_put((module.index[1:2],), h[1])


MODELS: dict[str, Callable[[Any, Tensor], Any]] = {
    "a rotary embedding of complex numbers": rotated,
    "sums by index": gathered,
    "a filter of frequencies": lambda m, h: torch.fft.irfft(torch.fft.rfft(h, norm="ortho") * 0.5, n=8, norm="ortho"),
    "the real part of a transform": lambda m, h: torch.fft.fft2(h).real + torch.fft.fftshift(h),
    "attributes of what a function returns": lambda m, h: (h.topk(2).indices, h.sort(1).values, h.max(1).indices),
    "singular values": lambda m, h: (torch.linalg.svd(h).S, torch.linalg.norm(h, dim=1), torch.linalg.inv(h @ h.mT)),
    "special functions": lambda m, h: torch.special.i0(h) + torch.special.ndtr(h) + h.lgamma(),
    "methods that are functions, too": lambda m, h: h.atan().cumsum(1).logsumexp(1).log1p().expm1().nan_to_num(),
    "methods in place": lambda m, h: h.sin().addcmul_(h, h).rsqrt_().log_().nan_to_num_().masked_fill(h > 0, 1),
    "tensors of sizes": lambda m, h: (
        h * torch.tensor(h.shape[1]) + torch.as_tensor([h.shape[0], 1.5], dtype=h.dtype).sum()
    ),
    "an empty tensor that is filled": lambda m, h: torch.empty(h.shape[0], 8).fill_(2.0) + torch.empty_like(h).copy_(h),
    "strides of the user's": lambda m, h: torch.as_strided(h, (3, 4), (8, 2)) + h.as_strided((3, 4), (8, 1), 2),
    "the kind of a device": lambda m, h: (h + len(str(h.device.type)), h.new_tensor(float(h.device.type == "cpu"))),
    "a grid of an affine map": lambda m, h: torch.affine_grid_generator(h[:, :6].reshape(4, 2, 3), [4, 1, 2, 2], False),
    "a sparse product": lambda m, h: torch.sparse.mm(h.to_sparse(), h.mT) + h.to_sparse().coalesce().to_dense().sum(),
    "an attention whose mask a call decides": lambda m, h: F.scaled_dot_product_attention(
        *(h.view(2, 2, 8),) * 3, attn_mask=h[:2, :2] > -9
    ),
    "sums without NaN": lambda m, h: (h.nansum(1), torch.nanmean(h), h.trace(), h.diagonal(), h.tensor_split(3, 1)[2]),
}


LAYERS: tuple[nn.Module, ...] = (
    *(nn.Unflatten(1, (2, 2)), nn.CircularPad2d(1), nn.Softmax2d(), nn.UpsamplingNearest2d(scale_factor=2)),
    *(nn.UpsamplingBilinear2d(size=(9, 5)), nn.LPPool2d(2, 2), nn.LPPool3d(2, 2)),
)


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_a_file_holds_layers_without_tensors(layer: nn.Module, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    model = fxq.quantize(nn.Sequential(nn.Conv2d(3, 4, 1), layer).eval(), [x], progress=False)
    fxq.save(model, tmp_path / "a.fxq")
    assert torch.equal(fxq.load(tmp_path / "a.fxq")(x), model(x))


@pytest.mark.parametrize("name", one_of(3, MODELS))
def test_a_file_holds_what_computes_with_tensors(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    model = fxq.quantize(Fn(MODELS[name]).eval(), [x], progress=False)
    fxq.save(model, tmp_path / "a.fxq")
    wanted, got = model(x), fxq.load(tmp_path / "a.fxq")(x)
    assert type(wanted) is type(got)
    for one, two in zip(*((v if isinstance(v, tuple) else (v,)) for v in (wanted, got)), strict=True):
        assert torch.equal(one.nan_to_num(), two.nan_to_num())


def test_a_file_holds_what_programs_of_export_are_spelled_in() -> None:
    assert [name for name, function in spelling.FUNCTIONS.items() if function not in NAMES] == []
    assert spelling.METHODS | spelling.IN_PLACE_ONLY <= METHODS


def test_a_file_holds_what_decompositions_write() -> None:
    sources = "\n".join(path.read_text() for path in Path(decompositions.__file__).parent.glob("**/*.py"))
    places = {"torch": torch, "F": F, "operator": operator}
    written = set(re.findall(r"emit\.function\(\s*(torch|F|operator)\.(\w+)", sources))
    assert len(written) > 15
    assert [name for place, name in written if getattr(places[place], name) not in NAMES] == []


def test_save_refuses_an_attribute_that_load_would_refuse(tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    model = fxq.quantize(Fn(lambda m, h: (h, h.data)).eval(), [x], progress=False)
    with pytest.raises(ArtifactError, match="an attribute that it may not read") as caught:
        fxq.save(model, tmp_path / "a.fxq")
    assert "'data'" in str(caught.value)
    assert not (tmp_path / "a.fxq").exists()


def test_the_default_of_an_input_that_nothing_reads_may_be_of_any_class(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: Tensor, mode: Any = Mode.FAST) -> Tensor:
            return self.fc(x)

    x = torch.randn(4, 8)
    model = fxq.quantize(Net().eval(), [x], progress=False)
    fxq.save(model, tmp_path / "a.fxq")
    loaded = fxq.load(tmp_path / "a.fxq")
    assert torch.equal(loaded(x), model(x))
    assert torch.equal(loaded(x, mode=Mode.SLOW), model(x))


def test_attributes_of_devices_are_read_of_devices_alone() -> None:
    for source in ("getattr(x, 'device')", "x"):
        graph = Graph()
        x = graph.placeholder("x")
        read = graph.call_function(getattr, (x, "device")) if source != "x" else x
        graph.output(graph.call_function(getattr, (read, "type")))
        if source == "x":
            with pytest.raises(ArtifactError, match="an attribute that it may not read"):
                encode_graph(graph)
        else:
            assert len(decode_graph(encode_graph(graph), [], []).nodes) == 4
