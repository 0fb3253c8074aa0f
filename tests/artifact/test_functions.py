"""Functions, methods and attributes of tensors that models use: what a file may not hold, ``save`` refuses."""

from __future__ import annotations

import inspect
import math
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
from torch.fx.graph import inplace_methods, magic_methods
from torch.nn import functional as F
from torch.overrides import get_overridable_functions

import fxquant as fxq
from fxquant.artifact.functions import FUNCTIONS, METHODS, NAMES
from fxquant.artifact.graph import decode_graph, encode_graph
from fxquant.capture.exported import guards, spelling
from fxquant.capture.trace_guards import GUARDS
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


def _logits(h: Tensor) -> Tensor:
    return h.reshape(4, 2, 4)


def _classes(h: Tensor) -> Tensor:
    return h[:, 0].gt(0).long()


LOSSES: dict[str, Callable[[Tensor], Any]] = {
    "mse_loss": lambda h: F.mse_loss(h, h.round()),
    "l1_loss": lambda h: F.l1_loss(h, h.round(), reduction="none"),
    "smooth_l1_loss": lambda h: F.smooth_l1_loss(h, h.round(), beta=0.3),
    "huber_loss": lambda h: F.huber_loss(h, h.round(), delta=0.2),
    "kl_div": lambda h: F.kl_div(h.log_softmax(1), h.flip(1).softmax(1), reduction="batchmean"),
    "binary_cross_entropy": lambda h: F.binary_cross_entropy(h.sigmoid(), h.gt(0).float()),
    "binary_cross_entropy_with_logits": lambda h: F.binary_cross_entropy_with_logits(h, h.gt(0).float()),
    "soft_margin_loss": lambda h: F.soft_margin_loss(h, h.flip(1).sign()),
    "poisson_nll_loss": lambda h: F.poisson_nll_loss(h, h.abs()),
    "gaussian_nll_loss": lambda h: F.gaussian_nll_loss(h, h.round(), h.abs() + 0.1),
    "cross_entropy": lambda h: F.cross_entropy(h, _classes(h), label_smoothing=0.1),
    "nll_loss": lambda h: F.nll_loss(h.log_softmax(1), _classes(h)),
    "cosine_similarity": lambda h: F.cosine_similarity(h, h.flip(1)),
    "cosine_embedding_loss": lambda h: F.cosine_embedding_loss(h, h.flip(1), h[:, 0].sign()),
    "pairwise_distance": lambda h: F.pairwise_distance(h, h.flip(1)),
    "triplet_margin_loss": lambda h: F.triplet_margin_loss(h, h.flip(1), h.roll(1, 1)),
    "margin_ranking_loss": lambda h: F.margin_ranking_loss(h, h.flip(1), h.roll(1, 1).sign()),
    "hinge_embedding_loss": lambda h: F.hinge_embedding_loss(h, h.flip(1).sign()),
    "multi_margin_loss": lambda h: F.multi_margin_loss(h, _classes(h)),
    "multilabel_margin_loss": lambda h: F.multilabel_margin_loss(h, h.gt(0).long()),
    "multilabel_soft_margin_loss": lambda h: F.multilabel_soft_margin_loss(h, h.gt(0).float()),
    "ctc_loss": lambda h: F.ctc_loss(
        h.reshape(8, 1, 4).log_softmax(2), torch.tensor([[1, 2]]), torch.tensor([8]), torch.tensor([2])
    ),
}
FURTHER: dict[str, Callable[[Tensor], Any]] = {
    "max_pool1d_with_indices": lambda h: F.max_pool1d(_logits(h), 2, return_indices=True),
    "max_pool2d_with_indices": lambda h: F.max_pool2d(_logits(h), 2, return_indices=True),
    "adaptive_max_pool2d_with_indices": lambda h: F.adaptive_max_pool2d(_logits(h), 2, return_indices=True),
    "elu_": lambda h: F.elu_(h.clone()),
    "torch.relu_": lambda h: torch.relu_(h.clone()),
    "torch.svd": lambda h: torch.svd(h)[1],
    "torch.cholesky_solve": lambda h: torch.cholesky_solve(h[:, :1], torch.eye(4) + h[:, :4].tril()),
    "torch.gradient": lambda h: torch.gradient(h, dim=1)[0],
    "a recurrent cell": lambda h: torch.gru_cell(h, h[:, :2], torch.ones(6, 8), torch.ones(6, 2)),
    "math of sizes": lambda h: h * math.isqrt(h.shape[1]) + math.atan2(h.shape[0], h.shape[1]) + math.hypot(*h.shape),
    "torch.sym_max": lambda h: h[:, : torch.sym_max(h.shape[0], 5)] * torch.sym_min(h.shape[0], 2),
    "symbols": lambda h: (h > 0).__and__(h < 1).__or__(h > 2).__xor__(h < -1),
}


@pytest.mark.parametrize("name", [*LOSSES, *FURTHER])
def test_a_file_holds_losses_and_further_functions(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    function = {**LOSSES, **FURTHER}[name]
    model = fxq.quantize(Fn(lambda _, h: function(h)).eval(), [x], progress=False)
    fxq.save(model, tmp_path / "a.fxq")
    wanted, got = model(x), fxq.load(tmp_path / "a.fxq")(x)
    for one, two in zip(*((v if isinstance(v, tuple) else (v,)) for v in (wanted, got)), strict=True):
        assert torch.equal(one, two)
        assert not one.isnan().any()


def test_losses_in_a_fresh_process(fresh: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    model = fxq.quantize(Fn(lambda _, h: [loss(h) for loss in LOSSES.values()]).eval(), [x], progress=False)
    fxq.save(model, tmp_path / "a.fxq")
    torch.save((x, list(model(x))), tmp_path / "wanted.pt")
    code = (
        "import sys, torch, fxquant as fxq\n"
        "x, wanted = torch.load(sys.argv[2])\n"
        "found = fxq.load(sys.argv[1])(x)\n"
        "assert len(found) == len(wanted) and all(map(torch.equal, found, wanted))\n"
    )
    run = fresh(code, tmp_path / "a.fxq", tmp_path / "wanted.pt")
    assert run.returncode == 0, run.stderr


def test_a_file_holds_buffers_that_are_assigned(tmp_path: Path) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.register_buffer("past", torch.zeros(1, 8))

        def forward(self, x: Tensor) -> Tensor:
            y = self.fc(x) + self.past
            self.past = y.mean(0, keepdim=True)
            return y

    torch.manual_seed(0)
    x = torch.randn(4, 8)
    model = fxq.quantize(Counts().eval(), [x], progress=False)
    fxq.save(model, tmp_path / "a.fxq")
    loaded = fxq.load(tmp_path / "a.fxq")
    for _ in range(3):
        assert torch.equal(loaded(x), model(x))
    assert model.past.any()


_REFUSED = {
    "it takes a function": "lobpcg triplet_margin_with_distance_loss",
    "it is a context": "autocast",
    "its tensors are quantized, or addresses of packed weights": "choose_qparams_optimized dequantize fbgemm_\\w+"
    " int_repr fused_moving_avg_obs_fake_quant q_\\w+ quantize_\\w+ quantized_\\w+",
    "it is a kernel of one back end, or of training": "batch_norm_\\w+ miopen_\\w+ native_batch_norm is_distributed",
    "its tensors are sparse": "ccol_indices_copy col_indices_copy crow_indices_copy hsmm hspmm indices_copy"
    " row_indices_copy saddmm smm sspaddmm values_copy",
}
"""Functions of torch that files do not hold, by the reason."""


@pytest.mark.parametrize("name", ["__class__", "____", "__builtins__", "a b"])
def test_save_refuses_names_of_nodes_that_load_would_refuse(name: str) -> None:
    graph = Graph()
    x = graph.placeholder("x")
    x._rename("__and")
    graph.output(x)
    assert next(iter(decode_graph(encode_graph(graph), [], []).nodes)).name == "__and"
    written = encode_graph(graph)
    x.name = name
    with pytest.raises(ArtifactError, match="the name of a node is no plain identifier"):
        encode_graph(graph)
    written[0]["name"] = name
    with pytest.raises(ArtifactError, match="the name of a node is no plain identifier"):
        decode_graph(written, [], [])


def test_a_file_holds_every_function_of_torch_that_a_trace_can_hold() -> None:
    refused = re.compile("|".join(" ".join(_REFUSED.values()).split()))
    places = {place: functions for place, functions in get_overridable_functions().items() if inspect.ismodule(place)}
    assert {torch, F, torch.fft, torch.linalg, torch.special} <= set(places)
    missing = [
        f"{place.__name__}.{function.__name__}"
        for place, functions in places.items()
        for function in functions
        if getattr(place, getattr(function, "__name__", ""), None) is function and function not in NAMES
    ]
    assert [name for name in missing if not refused.fullmatch(name.rpartition(".")[2])] == []


def test_a_file_holds_what_traces_and_guards_write() -> None:
    named = [*magic_methods, *(name for name in inplace_methods if name != "setitem")]
    assert [name for name in named if (found := getattr(operator, name, None)) and found not in NAMES] == []
    computing = [getattr(math, name) for name in dir(math) if callable(getattr(math, name)) and name[0] != "_"]
    assert [function for function in computing if function not in NAMES] == []
    assert [function for function in guards._FUNCTIONS.values() if function not in NAMES] == []
    assert [function for function in guards._OPERATORS.values() if function not in NAMES] == []
    assert [guard for guard in GUARDS if guard not in NAMES] == []


def test_no_function_in_a_file_takes_functions_or_names_of_files() -> None:
    harmful = {"fn", "func", "function", "callable", "hook", "tracker", "distance_function", "file", "filename", "path"}
    for name, function in FUNCTIONS.items():
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):  # written in C
            continue
        found = [one.name for one in parameters if one.name in harmful or "Callable" in str(one.annotation)]
        assert (name, found) == (name, [])


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
    model = fxq.quantize(Fn(lambda m, h: (h, h.is_leaf)).eval(), [x], progress=False)
    with pytest.raises(ArtifactError, match="an attribute that it may not read") as caught:
        fxq.save(model, tmp_path / "a.fxq")
    assert "'is_leaf'" in str(caught.value)
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
