"""Programs of ``torch.export`` are prepared like the models that they were exported of."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import operator
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torchvision.models import MobileNetV3, ShuffleNetV2, VisionTransformer
from torchvision.models.mobilenetv3 import InvertedResidualConfig
from torchvision.models.resnet import BasicBlock, ResNet
from torchvision.models.swin_transformer import SwinTransformer

import fxquant as fxq
from fxquant.capture.exported.branches import REASON_OF_BRANCHES
from fxquant.capture.exported.guards import Guards
from fxquant.capture.exported.program import import_program, is_exported
from fxquant.capture.exported.spelling import has_row
from fxquant.errors import InputError, TracingError
from fxquant.samples.networks import make_meaningful
from tests.sampling import one_of

SIDE = 32
AUTO = torch.export.Dim.AUTO


def residual(
    channels: int, inside: int, out: int, squeezes: bool, activation: str, stride: int
) -> InvertedResidualConfig:
    return InvertedResidualConfig(channels, 3, inside, out, squeezes, activation, stride, 1, 1.0)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet": lambda: ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10),
    "mobilenet_v3": lambda: MobileNetV3([residual(8, 16, 8, True, "RE", 1), residual(8, 24, 8, True, "HS", 1)], 32, 10),
    "shufflenet": lambda: ShuffleNetV2([1, 2, 1], [8, 16, 24, 32, 48], num_classes=10),
    "vit": lambda: VisionTransformer(SIDE, 8, 2, 2, 32, 64, num_classes=10),
    "swin": lambda: SwinTransformer([4, 4], 24, [2], [2], [4, 4], num_classes=10),
}


FURTHER = ("mobilenet_v3", "swin")
"""A second network of convolutions, and a second transformer."""


def export(model: nn.Module, *args: Any, dynamic: bool = True, **kwargs: Any) -> torch.export.ExportedProgram:
    """Export a model in evaluation mode, the batch left open."""

    def shapes(given: Any) -> Any:
        return pytree.tree_map(lambda one: {0: AUTO} if isinstance(one, Tensor) and one.dim() else None, given)

    free = (*map(shapes, args), *map(shapes, kwargs.values())) if dynamic else None
    named = None if free is None else dict(zip(names_of(model, args, kwargs), free, strict=True))
    return torch.export.export(model.eval(), args, kwargs, dynamic_shapes=named, strict=False)


def names_of(model: nn.Module, args: Any, kwargs: Any) -> list[str]:
    return [*list(inspect.signature(model.forward).parameters)[: len(args)], *kwargs]


def int8(model: Any, *args: Any, **kwargs: Any) -> Any:
    prepared = fxq.prepare(model, args, example_kwargs=kwargs)
    prepared.observe(*args, **kwargs)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "values of very different size are joined")  # of random weights
        return prepared, prepared.convert(engine="graph")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow if name in FURTHER else ()) for name in NETWORKS],
)
def doors(request):
    """The program of a network, and what came of it by either door."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, SIDE, SIDE)
    model = NETWORKS[request.param]().eval()
    make_meaningful(model)
    program = export(model, x)
    return model, x, program, int8(model, x), int8(program, x)


@pytest.mark.one_in(2)
def test_a_program_gives_the_same_integers_as_its_model(doors):
    _, x, _, (traced, by_tracing), (imported, by_program) = doors
    assert len(imported.plan.units) <= len(traced.plan.units)
    assert imported.coverage().int8_macs == traced.coverage().int8_macs
    if len(imported.plan.units) == len(traced.plan.units):
        assert torch.equal(by_program(x), by_tracing(x))
    larger = torch.cat((x, x.flip(0), x))
    assert torch.equal(by_program(larger)[:2], by_program(x))


def test_every_operator_of_the_programs_has_a_row(doors):
    nodes = doors[2].graph.nodes
    aten = {node.target for node in nodes if isinstance(node.target, torch._ops.OpOverload)}
    assert {str(target) for target in aten if not has_row(target)} == set()


def test_names_are_those_of_the_model(doors):
    model, _, _, (traced, by_tracing), (imported, by_program) = doors
    named, expected = ({name for name, _ in one.root.named_parameters()} for one in (imported, traced))
    assert named == expected
    if isinstance(model, (ResNet, MobileNetV3)):
        assert str(imported.coverage()) == str(traced.coverage())
        assert by_program.state_dict().keys() == by_tracing.state_dict().keys()


def imported(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Import the program of a model, and see that it computes the same."""
    gm = import_program(export(model, *args, **kwargs))
    with torch.no_grad():
        given, expected = gm(*args, **kwargs), model(*args, **kwargs)
    for a, b in zip(pytree.tree_leaves(given), pytree.tree_leaves(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    return gm


class Lines(nn.Module):
    """A forward as one function."""

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.run = run

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


def changed_view(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x)
    part = y.narrow(1, 0, 4)
    part.relu_()
    return y + 1


def table_of_numbers(self: Any, x: Tensor) -> Tensor:
    mask = x.new_zeros(8, 8)
    mask[:, :4] = -1.0
    mask[2:, 3].fill_(5)
    early = mask * 2
    mask += torch.arange(8)
    return self.fc(x) @ mask + early.sum(0)


def without_gradients(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x)
    with torch.no_grad():
        scale = y.abs().amax() + 1
    return y / scale


def computed_sizes(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x).reshape(x.shape[0] * 2, -1)
    return torch.cat((y, y.new_ones(y.shape[0], 1)), 1).flatten(1)


FORWARDS = (changed_view, table_of_numbers, without_gradients, computed_sizes)


@pytest.mark.parametrize("forward", FORWARDS, ids=lambda function: function.__name__)
def test_what_a_program_computes(forward):
    gm = imported(Lines(forward, fc=nn.Linear(8, 8)).eval(), X)
    calls = [str(node.target) for node in gm.graph.nodes if node.op != "get_attr"]
    assert not [call for call in calls if "aten" in call or "submod" in call]
    with torch.no_grad():
        assert gm(X[:3]).shape[0] in (3, 6)
    assert [node.target for node in gm.graph.nodes if node.op == "call_module"] == ["fc"]


NUMBER_FIRST: dict[str, Callable[..., Any]] = {
    "pow": lambda self, x: self.fc(2**x),
    "pow of a size": lambda self, x: self.fc(x.shape[0] ** x),
    "remainder": lambda self, x: self.fc(5 % (x.abs() + 1)),
    "floor_divide": lambda self, x: self.fc(7 // (x.abs() + 1)),
    "div": lambda self, x: self.fc(1 / (x.abs() + 1)),
    "xlogy": lambda self, x: self.fc(torch.xlogy(2.0, x.abs() + 1)),
    "bitwise_and": lambda self, x: self.fc(x * (3 & x.long())),
    "bitwise_or": lambda self, x: self.fc(x * (3 | x.long())),
    "bitwise_xor": lambda self, x: self.fc(x * (3 ^ x.long())),
    "shift": lambda self, x: self.fc(x * (1 << x.long().abs())),
    "isin": lambda self, x: self.fc(x * torch.isin(0, x.long())),
    "copysign": lambda self, x: self.fc(torch.copysign(x, 2)),
    "cdist": lambda self, x: self.fc(torch.cdist(x, x) @ x),
    "cdist by differences": lambda self, x: self.fc(torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist") @ x),
    "cdist by products": lambda self, x: self.fc(torch.cdist(x, x, compute_mode="use_mm_for_euclid_dist") @ x),
}


@pytest.mark.parametrize("name", one_of(3, NUMBER_FIRST))
def test_a_number_may_come_first(name):
    model = Lines(NUMBER_FIRST[name], fc=nn.Linear(8, 8)).eval()
    program = export(model, X)
    prepared = fxq.prepare(program, X)
    with torch.no_grad():
        torch.testing.assert_close(prepared(X), model(X), rtol=0, atol=0)
    converted = fxq.convert(prepared.calibrate([X], progress=False))
    assert converted(X).isfinite().all()


def parts(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x)
    return torch.cat((y[1:, 0::2], y[:-1, 1::2], y[..., 1:, 4:]), 1) * y[0, 3]


def test_the_slices_of_one_index_are_one():
    gm = imported(Lines(parts, fc=nn.Linear(8, 8)).eval(), X)
    indices = [node.args[1] for node in gm.graph.nodes if node.target is operator.getitem]
    assert indices[:3] == [
        (slice(1, None, None), slice(None, None, 2)),
        (slice(None, -1, None), slice(1, None, 2)),
        (slice(1, None, None), slice(4, None, None)),
    ]


def test_numbers_are_folded():
    gm = imported(Lines(table_of_numbers, fc=nn.Linear(8, 8)).eval(), X)
    assert {node.target for node in gm.graph.nodes if node.op == "get_attr"} == {
        "_tensor_constant0",
        "_tensor_constant1",
    }
    assert not any("fill_" in str(node.target) or "new_zeros" in str(node.target) for node in gm.graph.nodes)


def test_a_change_of_a_view_stays_in_place():
    model = nn.Sequential(nn.Linear(8, 8), Lines(changed_view, fc=nn.Linear(8, 8))).eval()
    prepared = fxq.prepare(export(model, X), X)
    assert torch.equal(prepared(X), model(X))
    assert {one.reason for one in prepared.plan.refusals if one.node == "_1_fc"} == {
        "relu_ changes its value later: in-place change of an aliased tensor"
    }


class Counts(nn.Module):
    """Keeps a state from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = self.fc(x)
        self.last.copy_(y.detach().mean(0) + self.last)
        return y * self.calls


def test_buffers_that_change_are_kept():
    model = Counts().eval()
    gm = import_program(export(copy.deepcopy(model), X))
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(gm(X), model(X))
    assert gm.calls == 3
    assert torch.equal(gm.last, model.last)


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@dataclasses.dataclass
class Result:
    logits: Tensor
    hidden: tuple[Tensor, ...]


torch.export.register_dataclass(Result, serialized_type_name="tests.Result")


class Nested(nn.Module):
    """Takes and gives structures."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor, parts: Any, flag: bool = True, *, scale: Tensor) -> Any:
        y = self.fc(x) * scale if flag else x
        result = Result(y + parts["a"][0], (y, parts["b"]))
        return {"result": result, "pair": Pair(y, x), "list": [y]}


def test_inputs_and_outputs_have_their_structure():
    model = Nested().eval()
    given = (X, {"a": [X + 1], "b": X - 1}, True)
    program = torch.export.export(model, given, {"scale": torch.tensor(0.5)})
    prepared, converted = int8(program, *given, scale=torch.tensor(0.5))
    expected = model(*given, scale=torch.tensor(0.5))
    for result in (prepared.graph_module, converted):
        got = result(*given, scale=torch.tensor(0.5))
        assert isinstance(got["result"], Result)
        assert isinstance(got["pair"], Pair)
        assert pytree.tree_structure(got) == pytree.tree_structure(expected)
    torch.testing.assert_close(prepared.graph_module(*given, scale=torch.tensor(0.5)), expected)
    with pytest.raises(InputError, match="the argument 'flag' was fixed"):
        converted(X, given[1], False, scale=torch.tensor(0.5))


def test_sizes_that_a_program_has_as_numbers_are_checked():
    _, converted = int8(export(nn.Sequential(nn.Linear(8, 4), nn.ReLU()), X, dynamic=False), X)
    assert converted(X).shape == (4, 4)
    with pytest.raises(InputError) as caught:
        converted(X[:3])
    assert str(caught.value) == (
        "the program was exported for inputs of other sizes: on these it would compute something else\n"
        "  at:       input.size()[0] == 4\n"
        "  got:      3\n"
        "  expected: 4\n"
        "  hint:     give example inputs of this size, or torch.export dynamic_shapes; or leaf_modules=[...]"
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("line", "condition"),
    [
        (lambda self, x: self.fc(x) * int(x.shape[0] / 2), "math.trunc(x.size()[0] / 2) == 2"),
        (lambda self, x: self.fc(x) * (2 if x.shape[0] ** 0.5 > 2.3 else 3), "torch.sym_float(x.size()[0]) ** 0.5"),
        (lambda self, x: self.fc(x) * (2 if x.shape[0] & 1 else 3), "x.size()[0] & 1"),
    ],
    ids=["trunc", "power", "bits"],
)
@pytest.mark.parametrize("whole", [True, False], ids=["program", "submodule"])
def test_sizes_of_a_condition_that_cannot_be_read_are_those_on_export(line, condition, whole):
    model, x = Lines(line, fc=nn.Linear(8, 8)).eval(), torch.randn(4, 8)
    if whole:
        gm = import_program(torch.export.export(model, (x,), dynamic_shapes=({0: AUTO},)))
    else:
        model = nn.Sequential(nn.Linear(8, 8), model, nn.Linear(8, 8)).eval()
        gm = fxq.prepare(model, x, capture="export").graph_module
    assert torch.equal(gm(x), model(x))
    with pytest.raises(InputError, match="exported for inputs of other sizes") as caught:
        gm(torch.randn(9, 8))
    assert ".size()[0], of which " in str(caught.value)
    assert condition.partition("x.")[2] in str(caught.value)


def test_a_condition_of_an_unknown_size_is_refused():
    program = torch.export.export(nn.Linear(8, 8).eval(), (torch.randn(4, 8),), dynamic_shapes=({0: AUTO},))
    known = next(node.meta["val"] for node in program.graph.nodes if node.name == "input")
    graph = torch.fx.Graph()
    leaf = graph.placeholder("x")
    guards = Guards(graph, {"x": leaf})
    guards.pin("math.trunc(x.size()[1] / 2) == 4", {leaf: known})
    with pytest.raises(TracingError, match=r"cannot be checked\n  at:       f\(y.size\(\)\[0\]\) == 2"):
        guards.pin("f(y.size()[0]) == 2", {leaf: known})


def test_conditions_between_sizes_are_checked():
    model = Lines(lambda self, x: self.fc(x.view(-1, 4)).view(x.shape[0] // 2, -1), fc=nn.Linear(4, 4))
    program = torch.export.export(model.eval(), (torch.randn(6, 4),), dynamic_shapes=({0: AUTO},))
    gm = import_program(program)
    assert gm(torch.randn(8, 4)).shape == (4, 8)
    with pytest.raises(InputError, match="the program was exported for inputs of other sizes"):
        gm(torch.randn(7, 4))


@pytest.mark.parametrize("model", [nn.Sequential(nn.Linear(8, 8), nn.Dropout()), nn.Sequential(nn.BatchNorm1d(8))])
def test_programs_of_training_mode_are_refused(model):
    program = torch.export.export(model.train(), (X,))
    with pytest.raises(TracingError) as caught:
        fxq.prepare(program, X)
    lines = str(caught.value).splitlines()
    assert (
        lines[0] == "the program was exported in training mode: it goes on dropping values, or normalizing by the batch"
    )
    assert lines[-1] == "  hint:     torch.export.export(model.eval(), example_inputs)"
    fxq.prepare(torch.export.export(nn.Sequential(nn.Linear(8, 8), *model).eval(), (X,)), X)


class PerSample(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(lambda sample: self.fc(sample).relu())(x)


@pytest.mark.parametrize(
    "taken", [lambda program: program, lambda program: program.module()], ids=["program", "module"]
)
def test_programs_with_vmap_are_refused(taken):
    """Their graphs begin and end it by calls that give nothing, which every graph drops."""
    program = torch.export.export(PerSample().eval(), (X,))
    with pytest.raises(TracingError, match=r"inside torch\.vmap[\s\S]*test_program\.py[\s\S]*hint: +move what calls"):
        fxq.prepare(taken(program), X)


def test_a_submodule_with_vmap_stays_whole():
    model = nn.Sequential(PerSample(), nn.Linear(8, 4)).eval()
    int8 = fxq.quantize(model, [X], progress=False, leaf_modules=["0"])  # as the hint says
    assert (int8(X) - model(X)).abs().max() < 0.02
    with pytest.warns(fxq.FxQuantWarning, match="cannot trace the submodule '0'"):
        int8 = fxq.quantize(model, [X], progress=False)
    assert (int8(X) - model(X)).abs().max() < 0.02


def test_the_module_of_a_program_is_taken_too():
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU())
    program = export(model, X)
    assert [is_exported(one) for one in (program, program.module(), model)] == [True, True, False]
    _, by_program = int8(program, X)
    _, by_module = int8(program.module(), X)
    assert torch.equal(by_program(X), by_module(X))


class Mine(nn.Module):
    """A class of the user's, with a shared layer and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 6)
        self.fc = nn.Linear(6, 6)
        self.head = nn.Linear(6, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.fc(F.relu(self.fc(self.embed(x)))))


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Mine()
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(x))


TOKENS = torch.randint(8, (4, 5), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("rule", "floats"),
    [
        (lambda config: config.set_module_name("inner.fc", None), {"inner.fc"}),
        (lambda config: config.set_object_type(Mine, None), {"inner.fc", "inner.head"}),
        (lambda config: config.set_object_type(nn.Embedding, None), {"inner.embed"}),
    ],
)
def test_rules_name_modules_and_classes_as_for_the_model(rule, floats):
    config = rule(fxq.get_default_qconfig_mapping())
    prepared = fxq.prepare(export(Outer(), TOKENS), TOKENS, config)
    converted = fxq.prepare(Outer().eval(), TOKENS, config)
    assert str(prepared.coverage()) == str(converted.coverage())
    planned = {node for unit in prepared.plan.units for node in unit.nodes}
    assert not planned & {name.replace(".", "_") for name in floats}
    layers = {name for name, module in prepared.modules.items() if isinstance(module, (nn.Linear, nn.Embedding))}
    assert {"inner.fc", "inner.head", "last", "inner.embed"} <= layers
    assert prepared.modules["inner.head"].weight is prepared.modules["inner.embed"].weight


@pytest.mark.slow
def test_what_a_program_gives_trains_and_travels(tmp_path):
    model = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=4)
    x = torch.randn(2, 3, SIDE, SIDE)
    program = export(model, x)
    trained = fxq.prepare_qat(program, x)
    assert [name for name, _ in trained.named_parameters()] == [name for name, _ in model.named_parameters()]
    trained.train()(x).sum().backward()
    assert all(parameter.grad is not None for parameter in trained.parameters())
    _, converted = int8(program, x)
    fxq.save(converted, tmp_path / "net.fxq")
    assert torch.equal(fxq.load(tmp_path / "net.fxq")(x), converted(x))


class Attends(nn.Module):
    """One attention, called in one way."""

    def __init__(self, call: Callable[..., Any], **arguments: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, **arguments)
        self.call = call

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call(self.attention, x, y)


MASK = torch.triu(torch.ones(5, 5), 1).bool()
ATTENTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "self": (lambda a, x, y: a(x, x, x, need_weights=False)[0], {"batch_first": True}),
    "sequence first": (lambda a, x, y: a(x, x, x, need_weights=False)[0], {}),
    "weights": (lambda a, x, y: a(x, x, x), {"batch_first": True}),
    "weights of heads": (lambda a, x, y: a(x, x, x, average_attn_weights=False), {}),
    "cross": (lambda a, x, y: a(x, y, y, need_weights=False)[0], {"batch_first": True}),
    "three": (lambda a, x, y: a(x, y, y + 1, need_weights=False)[0], {"batch_first": True}),
    "no bias": (lambda a, x, y: a(x, y, y)[0], {"bias": False}),
    "mask": (lambda a, x, y: a(x, x, x, attn_mask=y[0, :5, :5] > 0.5)[0], {"batch_first": True}),
    "padding": (lambda a, x, y: a(x, x, x, key_padding_mask=y[:, :5, 0] > 1)[0], {"batch_first": True}),
}


CONSTANT_MASKS: dict[str, Callable[..., Any]] = {
    "bool": lambda a, x, y: a(x, x, x, attn_mask=torch.triu(torch.ones(5, 5, dtype=torch.bool), 1))[0],
    "float": lambda a, x, y: a(x, x, x, attn_mask=torch.triu(torch.full((5, 5), -1e9), 1), need_weights=False)[0],
    "padding": lambda a, x, y: a(x, x, x, key_padding_mask=(torch.arange(5) > 3).expand(2, 5))[0],
    "both": lambda a, x, y: a(
        x, x, x, attn_mask=MASK.clone(), key_padding_mask=(torch.arange(5) > 3).expand(2, 5), need_weights=False
    )[0],
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", CONSTANT_MASKS)
def test_attention_with_a_constant_mask_computes_the_same(name):
    model = Attends(CONSTANT_MASKS[name], batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    gm = import_program(torch.export.export(model, (x, x)))
    if name != "both":
        assert [node.target for node in gm.graph.nodes if node.op == "call_module"] == ["attention"]
    with torch.no_grad():
        torch.testing.assert_close(gm(x, x), model(x, x))


@pytest.mark.parametrize("name", one_of(3, ATTENTIONS))
def test_attention_is_folded_back(name):
    torch.manual_seed(3)
    call, arguments = ATTENTIONS[name]
    model = Attends(call, **arguments).eval()
    x, y = torch.randn(2, 5, 8), torch.randn(2, 5 if name == "mask" else 6, 8)
    if not arguments.get("batch_first"):
        y = torch.randn(6, 5, 8)
    y[0, :5, 0] = y[1, :5, 0] = 0.1
    gm = import_program(torch.export.export(model, (x, y)))
    assert [node.target for node in gm.graph.nodes if node.op == "call_module"] == ["attention"]
    with torch.no_grad():
        torch.testing.assert_close(gm(x, y), model(x, y))
    assert gm.state_dict().keys() == model.state_dict().keys()


def test_attention_with_keys_of_its_own_stays_in_parts():
    model = Attends(lambda a, x, y: a(x, x, x)[0], add_zero_attn=True).eval()
    x = torch.randn(2, 5, 8)
    gm = import_program(torch.export.export(model, (x, x)))
    assert "attention" not in [node.target for node in gm.graph.nodes if node.op == "call_module"]
    with torch.no_grad():
        torch.testing.assert_close(gm(x, x), model(x, x))


def branch(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x)
    return self.last(torch.cond(y.sum() > 0, lambda y: y.relu() * 2, lambda y: -y, (y,)))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of torch.export, on torch.cond
def test_branches_on_values_stay_float_and_all_else_is_quantized():
    model = Lines(branch, fc=nn.Linear(8, 8), last=nn.Linear(8, 8)).eval()
    prepared, converted = int8(export(model, X), X)
    (row,) = [row for row in prepared.coverage().float_rows if not row.excused and "." not in row.node]
    assert row.reason == REASON_OF_BRANCHES
    inside = {row.node.rpartition(".")[2]: row.reason for row in prepared.coverage().float_rows if "." in row.node}
    nothing = "the branch could not be quantized: PlanError: the model has no operator that can be quantized"
    assert inside == {"when_true": nothing, "when_false": nothing}
    assert prepared.coverage().int8_macs == 1.0
    up = 9 * model.fc.weight.sum(0)
    assert [bool(model.fc(x).sum() > 0) for x in (X + up, X - up)] == [True, False]
    for x in (X + up, X - up):
        with torch.no_grad():
            y = model.fc(x)
            expected = model.last(y.relu() * 2 if y.sum() > 0 else -y)
            assert torch.equal(prepared.graph_module(x), expected)
    with torch.no_grad():
        assert (converted(X) - prepared.graph_module(X)).abs().max() < 0.2


def test_conditions_share_what_they_compute():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.Conv2d(4, 4, 3, 2)).eval()
    open_sizes = dict.fromkeys(range(4), torch.export.Dim.AUTO)
    program = torch.export.export(model, (torch.randn(2, 3, 33, 33),), dynamic_shapes=(open_sizes,))
    graph = import_program(program).graph
    sums = [(node.target, node.args) for node in graph.nodes if node.op == "call_function" and len(node.args) == 2]
    assert len(sums) > 4
    assert len(set(sums)) == len(sums)


def of_its_own(base: type[nn.Module], shape: tuple[int, ...]) -> type[nn.Module]:
    """A layer with a parameter and a buffer beside those of torch."""

    class Layer(base):  # type: ignore[misc,valid-type]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.gain = nn.Parameter(torch.linspace(0.5, 1.5, shape[0]).view(shape))
            self.register_buffer("shift", torch.linspace(-1, 1, shape[0]).view(shape))

        def forward(self, x):
            return super().forward(x) * self.gain + self.shift

    return Layer


DERIVED: dict[str, tuple[nn.Module, Tensor]] = {
    "Linear": (of_its_own(nn.Linear, (8,))(8, 8), torch.linspace(-1, 1, 32).view(4, 8)),
    "Conv2d": (of_its_own(nn.Conv2d, (8, 1, 1))(3, 8, 3), torch.linspace(-1, 1, 384).view(2, 3, 8, 8)),
    "ConvTranspose2d": (
        of_its_own(nn.ConvTranspose2d, (8, 1, 1))(3, 8, 3),
        torch.linspace(-1, 1, 384).view(2, 3, 8, 8),
    ),
    "Embedding": (of_its_own(nn.Embedding, (8,))(10, 8), torch.arange(10).view(2, 5)),
}


@pytest.mark.parametrize("name", DERIVED)
def test_layers_with_tensors_of_their_own_are_those_of_the_model(name, tmp_path):
    layer, x = DERIVED[name]
    model = nn.Sequential(layer, nn.ReLU()).eval()
    program = torch.export.export(model, (x,))
    prepared = [fxq.prepare(model, x), fxq.prepare(program, x), fxq.prepare(model, x, capture="export")]
    expected = fxq.convert(fxq.calibrate(prepared[0], [x], progress=False))(x)
    for each in prepared[1:]:
        assert torch.equal(each(x), model(x))
        int8 = fxq.convert(fxq.calibrate(each, [x], progress=False))
        assert torch.equal(int8(x), expected)
    fxq.save(fxq.convert(prepared[1]), tmp_path / "model.fxq")
    assert torch.equal(fxq.load(tmp_path / "model.fxq")(x), expected)
    qat = fxq.prepare_qat(program, x).train()
    qat(x).square().mean().backward()
    assert {name for name, each in qat.named_parameters() if each.grad is not None} == dict(
        model.named_parameters()
    ).keys()


def test_parts_of_given_sizes_are_those_of_the_model():
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 4, 1), nn.Conv2d(5, 4, 1)

        def forward(self, x):
            a, b = torch.split(self.first(x), [3, 5], 1)
            return self.second(a) + self.last(b)

    torch.manual_seed(0)
    model, x = Parts().eval(), torch.randn(2, 3, 8, 8)
    by_model, by_program = (fxq.prepare(given, x) for given in (model, torch.export.export(model, (x,))))
    patterns = [[unit.pattern for unit in each.plan.units] for each in (by_model, by_program)]
    assert patterns[0] == patterns[1]
    assert "split" in patterns[0]
    results = [fxq.convert(fxq.calibrate(each, [x], progress=False))(x) for each in (by_model, by_program)]
    assert torch.equal(*results)
