"""Multiply-accumulates, against those that torch counts while the model runs (it counts two operations for each)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import conv_transpose2d
from torch.utils.flop_counter import FlopCounterMode
from torchvision.ops import deform_conv2d

from fxquant.capture.tracing import trace
from fxquant.graph.macs import multiply_accumulates, products_counted, uncounted

IMAGE = torch.rand(2, 4, 9, 7)


class Body(nn.Module):
    """A model whose forward is a function of its inputs, with a few tensors of its own."""

    def __init__(self, body) -> None:
        super().__init__()
        self.body = body
        self.weight = nn.Parameter(torch.rand(6, 2, 3, 3))

    def forward(self, a):
        return self.body(self, a)


class Body2(Body):
    """The same with two inputs."""

    def forward(self, a, b):
        return self.body(self, a, b)


def counted(model: nn.Module, *inputs: torch.Tensor, **options) -> int:
    gm = trace(model.eval(), example_args=inputs, **options)
    return sum(multiply_accumulates(node) for node in gm.graph.nodes)


def counted_by_torch(model: nn.Module, *inputs: torch.Tensor) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(*inputs)
    assert counter.get_total_flops() % 2 == 0
    return counter.get_total_flops() // 2


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (nn.Conv2d(4, 6, 3), (IMAGE,)),
        (nn.Conv2d(4, 6, (3, 1), stride=2, padding=1, dilation=2, groups=2), (IMAGE,)),
        (nn.Conv2d(4, 4, 3, groups=4), (IMAGE,)),
        (nn.Conv1d(4, 6, 3), (torch.rand(2, 4, 9),)),
        (nn.Conv3d(4, 6, 2), (torch.rand(1, 4, 5, 4, 3),)),
        (nn.Conv2d(4, 6, 3), (IMAGE[0],)),
        (nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), (IMAGE,)),
        (nn.ConvTranspose1d(4, 6, 3, output_padding=1, stride=2), (torch.rand(2, 4, 9),)),
        (nn.Linear(7, 5), (IMAGE,)),
        (nn.Linear(7, 5), (torch.rand(7),)),
        (nn.Linear(7, 5, bias=False), (torch.rand(2, 7),)),
        (Body(lambda m, x: F.conv2d(x, m.weight, None, 1, 1, 1, 2)), (IMAGE,)),
        (Body(lambda m, x: F.linear(x, m.weight.reshape(9, 12))), (torch.rand(5, 12),)),
        (Body2(lambda m, a, b: torch.matmul(a, b)), (torch.rand(2, 3, 4), torch.rand(2, 4, 5))),
        (Body2(lambda m, a, b: torch.matmul(a, b)), (torch.rand(3, 2, 3, 4), torch.rand(4, 5))),
        (Body2(lambda m, a, b: torch.bmm(a, b)), (torch.rand(2, 3, 4), torch.rand(2, 4, 5))),
        (nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(210, 3)), (IMAGE,)),
    ],
    ids=lambda value: str(value).split("\n")[0] if isinstance(value, nn.Module) else "",
)
def test_as_torch_counts(model, inputs):
    expected = counted_by_torch(model, *inputs)
    assert expected > 0
    assert counted(model, *inputs) == expected


def test_a_dot_product():
    assert counted(Body2(lambda m, a, b: torch.matmul(a, b)), torch.rand(4), torch.rand(4)) == 4


class Einsum(nn.Module):
    def forward(self, a, b):
        return torch.einsum("B I D, B J D -> B I J", a, b), torch.einsum("b i d -> b d i", a)


def test_an_einsum_of_two_tensors():
    gm = trace(Einsum(), example_args=(torch.rand(2, 3, 4), torch.rand(2, 5, 4)))
    counts = [multiply_accumulates(node) for node in gm.graph.nodes if node.target is torch.einsum]
    assert counts == [2 * 3 * 5 * 4, 0]


def test_an_input_by_keyword():
    assert counted(Body(lambda m, x: F.conv2d(input=x, weight=m.weight, groups=2)), IMAGE) == 2 * 6 * 7 * 5 * 2 * 9
    body = Body(lambda m, x: m.up(input=x))
    body.up = nn.ConvTranspose2d(4, 6, 3)
    assert counted(body, IMAGE) == IMAGE.numel() * 6 * 9


def test_a_subclass_that_computes_the_same():
    class Named(nn.Linear):
        """Changes nothing."""

    assert counted(nn.Sequential(Named(7, 5)), IMAGE) == IMAGE.numel() * 5


@pytest.mark.parametrize(
    "body",
    [lambda m, x: x + x, lambda m, x: F.max_pool2d(x, 2), lambda m, x: x.relu().sum(), lambda m, x: x.chunk(2)],
)
def test_what_is_no_sum_of_products_costs_nothing(body):
    assert counted(Body(body), IMAGE) == 0


class Attention(nn.Module):
    """Attention of one sequence to another, or to itself."""

    def __init__(self, own: bool, **options) -> None:
        super().__init__()
        self.own = own
        self.attention = nn.MultiheadAttention(8, 2, **options)

    def forward(self, a, b):
        other = a if self.own else b
        return self.attention(a, other, value=other, need_weights=True)[0]


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Attention(True), (torch.rand(5, 3, 8), torch.rand(1))),
        (Attention(True, batch_first=True), (torch.rand(5, 3, 8), torch.rand(1))),
        (Attention(False), (torch.rand(5, 3, 8), torch.rand(7, 3, 8))),
        (Attention(False), (torch.rand(5, 8), torch.rand(7, 8))),
        (Attention(False, kdim=6, vdim=6), (torch.rand(5, 3, 8), torch.rand(7, 3, 6))),
    ],
    ids=["itself", "batch first", "another", "one sequence", "narrow keys"],
)
def test_attention_as_torch_counts(model, inputs):
    model.eval()
    with FlopCounterMode(
        display=False
    ) as counter:  # with gradients, so that torch does not take its uncounted fast path
        model(*inputs)
    assert counted(model, *inputs) == counter.get_total_flops() // 2


def test_a_product_of_queries_keys_and_values_as_torch_counts():
    class Product(nn.Module):
        def forward(self, q, k, v):
            return F.scaled_dot_product_attention(q, k, v)

    given = (torch.rand(2, 3, 5, 8), torch.rand(2, 3, 7, 8), torch.rand(2, 3, 7, 6))
    assert counted(Product(), *given) == counted_by_torch(Product(), *given) > 0


class Last(nn.Module):
    """A recurrent layer, of whose outputs one is used."""

    def __init__(self, layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


@pytest.mark.parametrize(
    ("layer", "matrices"),
    [
        (nn.LSTM(4, 6), 4 * (6 * 4 + 6 * 6)),
        (nn.GRU(4, 6, num_layers=2, bidirectional=True), 2 * 3 * (6 * 4 + 6 * 6) + 2 * 3 * (6 * 12 + 6 * 6)),
        (nn.RNN(4, 6, bias=False), 6 * 4 + 6 * 6),
    ],
    ids=["LSTM", "GRU", "RNN"],
)
def test_recurrent_layers_multiply_with_all_matrices_at_each_step(layer, matrices):
    assert counted(Last(layer), torch.rand(5, 3, 4)) == 5 * 3 * matrices


class Gate(nn.Module):
    """Multiplies in layers, by functions and by operators."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.ConvTranspose2d(6, 4, 3))
        self.rest = nn.Linear(7, 7)

    def forward(self, x):
        y = self.rest(self.inner(x))
        return y @ F.softmax(y.mT @ y, -1)


@pytest.mark.parametrize("leaf", [Gate, nn.Sequential, "0"], ids=["type", "type of torch's", "name"])
def test_all_that_runs_inside_of_what_is_kept_whole_is_counted(leaf):
    model = nn.Sequential(Gate(), nn.Linear(7, 3))
    expected = counted_by_torch(model, IMAGE)
    assert counted(model, IMAGE) == expected
    assert counted(nn.Sequential(model), IMAGE, leaf_modules=(leaf,)) == expected


@pytest.mark.parametrize(
    "layer", [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.TransformerEncoderLayer(8, 2, 16)]
)
def test_what_torch_runs_in_one_piece_is_counted_as_its_parts(layer):
    x = torch.rand(2, 5, 8)
    whole = counted(nn.Sequential(layer), x, leaf_modules=(nn.TransformerEncoderLayer,))
    assert whole == counted(nn.Sequential(layer), x) > 0


def test_a_recurrent_layer_inside_of_what_is_kept_whole():
    last = Last(nn.LSTM(4, 6, num_layers=2, bidirectional=True))
    assert counted(nn.Sequential(last), torch.rand(5, 3, 4), leaf_modules=(Last,)) == counted(last, torch.rand(5, 3, 4))


class Branches(nn.Module):
    """No graph can hold it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(7, 7)

    def forward(self, x):
        return self.inner(x) if x.sum() > 0 else x


@pytest.mark.filterwarnings("ignore:torch.fx cannot trace")
def test_what_cannot_be_traced_is_counted():
    assert counted(nn.Sequential(Branches()), IMAGE, keep_untraceable=True) == IMAGE.numel() * 7


class Outside(nn.Module):
    """Computes with numpy."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(7, 7)

    def forward(self, x):
        y = self.inner(x)
        return torch.from_numpy(y.detach().numpy() @ self.inner.weight.detach().numpy())


@torch.library.custom_op("fxquant_test_macs::triple", mutates_args=())
def triple(x: torch.Tensor) -> torch.Tensor:
    return 3 * x


@triple.register_fake
def _(x):
    return torch.empty_like(x)


class Custom(nn.Module):
    def forward(self, x):
        return triple(x)


@pytest.mark.parametrize(("module", "name"), [(Outside(), "Tensor.numpy"), (Custom(), "fxquant_test_macs.triple")])
def test_what_nobody_can_count_is_named(module, name):
    gm = trace(nn.Sequential(module, nn.Linear(7, 3)).eval(), example_args=(IMAGE,), leaf_modules=(type(module),))
    assert [uncounted(node) for node in gm.graph.nodes] == ["", name, "", ""]
    assert sum(map(multiply_accumulates, gm.graph.nodes)) == IMAGE.numel() * (3 + 7 * isinstance(module, Outside))


class Refuses(nn.Module):
    """Does not run where operators are watched."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(7, 7)

    def forward(self, x):
        if torch.utils._python_dispatch.is_in_torch_dispatch_mode():
            raise RuntimeError("no")
        return self.inner(x)


def test_what_runs_only_unwatched_is_run_so_and_named():
    gm = trace(nn.Sequential(Refuses()).eval(), example_args=(IMAGE,), leaf_modules=(Refuses,))
    assert [uncounted(node) for node in gm.graph.nodes] == ["", "code that does not run while it is counted", ""]


def test_a_traced_model_is_counted_when_it_is_taken():
    class Leaves(torch.fx.Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return isinstance(m, Gate) or super().is_leaf_module(m, module_qualified_name)

    model = nn.Sequential(Gate(), nn.Linear(7, 3)).eval()
    traced = torch.fx.GraphModule(model, Leaves().trace(model))
    assert counted(traced, IMAGE) == counted_by_torch(model, IMAGE)


A, B, C = (torch.rand(shape) for shape in ((3, 4), (4, 5), (2, 3, 4)))
IMAGE, KERNEL = torch.rand(2, 4, 9, 7), torch.rand(6, 2, 3, 3)
QUERY, KEY, VALUE = torch.rand(2, 3, 5, 8), torch.rand(2, 3, 7, 8), torch.rand(2, 3, 7, 8)


def macs_of(run: Callable[[], object]) -> int:
    with torch.no_grad(), products_counted() as found:
        run()
    assert not found.unknown
    return found.count


BY_TORCH: dict[str, Callable[[], object]] = {
    "mm": lambda: A @ B,
    "bmm": lambda: torch.bmm(C, C.mT),
    "addmm": lambda: torch.addmm(torch.rand(5), A, B),
    "baddbmm": lambda: torch.baddbmm(torch.rand(2, 3, 3), C, C.mT),
    "linear": lambda: F.linear(C, B.T, torch.rand(5)),
    "einsum": lambda: torch.einsum("bij,jk->bik", C, B),
    "conv": lambda: F.conv2d(IMAGE, KERNEL, stride=2, padding=1, groups=2),
    "conv, transposed": lambda: conv_transpose2d(IMAGE, torch.rand(4, 2, 3, 3), stride=2, groups=2),
    "conv, 1-D": lambda: F.conv1d(IMAGE[0], torch.rand(5, 9, 2)),
    "vmap": lambda: torch.vmap(torch.mm, in_dims=(0, None))(C, B),
}


@pytest.mark.parametrize("run", BY_TORCH.values(), ids=BY_TORCH.keys())
@pytest.mark.parametrize("inference", [False, True], ids=["no_grad", "inference_mode"])
def test_a_call_as_torch_counts(run: Callable[[], object], inference: bool) -> None:
    with FlopCounterMode(display=False) as counter:
        run()
    with torch.inference_mode() if inference else nullcontext():
        assert macs_of(run) == counter.get_total_flops() // 2 > 0


BY_HAND: dict[str, tuple[Callable[[], object], int]] = {
    "mv": (lambda: A @ B[:, 0], 3 * 4),
    "addmv": (lambda: torch.addmv(torch.rand(3), A, B[:, 0]), 3 * 4),
    "dot": (lambda: A[0] @ A[1], 4),
    "addbmm": (lambda: torch.addbmm(torch.rand(3, 3), C, C.mT), 2 * 3 * 3 * 4),
    "attention": (lambda: F.scaled_dot_product_attention(QUERY, KEY, VALUE), 2 * 3 * 5 * 7 * (8 + 8)),
    "bilinear": (lambda: F.bilinear(torch.rand(2, 3), torch.rand(2, 4), torch.rand(5, 3, 4)), 2 * 5 * 3 * 4),
    "deform_conv2d": (
        lambda: deform_conv2d(IMAGE[:1], torch.zeros(1, 18, 7, 5), torch.rand(6, 4, 3, 3)),
        6 * 7 * 5 * 4 * 9,
    ),
    "sums, views and tables": (lambda: (A.T + A.T).sum() + F.embedding(torch.tensor([1]), A).relu().mean(), 0),
}


@pytest.mark.parametrize(("run", "expected"), BY_HAND.values(), ids=BY_HAND.keys())
def test_what_torch_does_not_count(run: Callable[[], object], expected: int) -> None:
    assert macs_of(run) == expected


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(kind: type[nn.RNNBase], layers: int) -> None:
    layer = kind(4, 6, num_layers=layers, bidirectional=True).eval()
    matrices = sum(weight.numel() for weight in layer.parameters() if weight.dim() == 2)
    assert macs_of(lambda: layer(torch.rand(5, 3, 4))) == 5 * 3 * matrices


@pytest.mark.parametrize("fast", [True, False])
def test_attention_that_torch_runs_in_one_piece_or_in_parts(fast: bool) -> None:
    before = torch.backends.mha.get_fastpath_enabled()
    attention, layer = nn.MultiheadAttention(8, 2).eval(), nn.TransformerEncoderLayer(8, 2, 16).eval()
    x = torch.rand(5, 2, 8)
    try:
        torch.backends.mha.set_fastpath_enabled(fast)
        products = 4 * 10 * 8 * 8 + 2 * 10 * 5 * 8
        assert macs_of(lambda: attention(x, x, x)) == products
        assert macs_of(lambda: layer(x)) == products + 2 * 10 * 8 * 16
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@pytest.mark.parametrize(
    "lead", [lambda: A.numpy(), lambda: A.tolist(), lambda: A.__array__(), lambda: torch.from_dlpack(A)]
)
def test_what_leaves_torch_is_unknown(lead: Callable[[], object]) -> None:
    with products_counted() as found:
        lead()
    assert list(found.unknown) != []
    assert found.count == 0
