"""Every module in every state under ``torch.compile`` and ``torch.export``, autocast, vmap, and on the meta device."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fxquant import fake_quantize
from fxquant.errors import InputError, KernelError, TracingError
from fxquant.fake_quantize import AdaRoundFakeQuantize, FakeQuantize, LearnableFakeQuantize, learnable
from fxquant.observers import PerChannelMinMaxObserver
from tests.sampling import one_of

X = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))

MODULES: dict[str, Any] = {
    name: getattr(fake_quantize, name)
    for name in (
        "default_fake_quant",
        "default_per_channel_weight_fake_quant",
        "default_embedding_fake_quant",
        "default_histogram_fake_quant",
        "default_fixed_qparams_range_0to1_fake_quant",
        "default_fused_act_fake_quant",
        "default_fused_per_channel_wt_fake_quant",
    )
} | {
    "groups": FakeQuantize.with_args(observer=PerChannelMinMaxObserver, group_size=5),
    "learnable": LearnableFakeQuantize,
    "learnable per channel": LearnableFakeQuantize.with_args(
        observer=PerChannelMinMaxObserver,
        channel_len=6,
        quant_min=-128,
        quant_max=127,
        dtype=torch.int8,
        qscheme="per_channel_symmetric",
        use_grad_scaling=True,
    ),
    "adaround": AdaRoundFakeQuantize,
}
PER_CHANNEL = ("default_per_channel_weight_fake_quant", "default_fused_per_channel_wt_fake_quant")


def leave(module: Any) -> None:
    """Everything on, as a module begins."""


def freeze(module: Any) -> None:
    module.disable_observer()
    module(X)  # AdaRound sets V


def pass_on(module: Any) -> None:
    module.disable_fake_quant()


def rest(module: Any) -> None:
    freeze(module)
    module.disable_fake_quant()


def learn(module: Any) -> None:
    module.enable_param_learning()


def round_hard(module: Any) -> None:
    freeze(module)
    module.set_soft_rounding(False)


IN_EVERY_STATE = ("default_fake_quant", "default_histogram_fake_quant", "learnable per channel", "adaround")
STATES: dict[str, Callable[[Any], None]] = {"on": leave, "frozen": freeze, "observing": pass_on, "at rest": rest}
CASES = [(name, state) for name in MODULES for state in STATES.values()] + [
    ("learnable", learn),
    ("learnable per channel", learn),
    ("adaround", round_hard),
]
TRACEABLE = [
    pytest.param(
        name,
        state,
        marks=pytest.mark.slow if state in (pass_on, rest) and name not in IN_EVERY_STATE else (),
    )
    for name, state in CASES
    if name != "default_histogram_fake_quant" or state in (freeze, rest)
]
"""Each module with everything on and frozen; further states of one of each class: compiling takes half a second."""
OF_EACH = [each for name in MODULES for each in one_of(3, [case for case in TRACEABLE if case.values[0] == name])]


def made(name: str, state: Callable[[Any], None] = leave) -> Any:
    module = MODULES[name]()
    module(X)
    state(module)
    return module


def same(one: nn.Module, other: nn.Module) -> bool:
    mine, right = one.state_dict(), other.state_dict()
    return all(torch.equal(mine[key], value) for key, value in right.items())


@pytest.mark.parametrize(("name", "state"), one_of(3, OF_EACH))
def test_compiled(name: str, state: Callable[[Any], None]) -> None:
    module = made(name, state)
    eager = copy.deepcopy(module)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    for factor in (1, 2):
        mine, right = (X * factor).requires_grad_(), (X * factor).requires_grad_()
        results = compiled(mine), eager(right)
        assert torch.equal(*results)
        if results[1].requires_grad:
            for result in results:
                result.square().sum().backward()
            assert mine.grad is right.grad is None or torch.equal(mine.grad, right.grad)
    assert same(module, eager)
    gradients = [(p.grad, q.grad) for p, q in zip(module.parameters(), eager.parameters(), strict=True)]
    assert all(p is q is None or torch.equal(p, q) for p, q in gradients)


@pytest.mark.parametrize(("name", "state"), one_of(3, OF_EACH))
def test_exported(name: str, state: Callable[[Any], None]) -> None:
    module = made(name, state)
    eager = copy.deepcopy(module)
    exported = torch.export.export(module, (X,)).module()
    with torch.no_grad():
        for factor in (1, 2):
            assert torch.equal(exported(X * factor), eager(X * factor))
    if name != "learnable" or state is not learn:  # an exported program holds scales above eps anew in each call
        assert same(exported, eager)


@pytest.mark.parametrize("name", one_of(3, PER_CHANNEL))
def test_what_has_no_shape_yet_is_not_traced(name: str) -> None:
    words = "the first batch gives statistics and qparams per channel their shape"
    with pytest.raises(TracingError) as caught:
        torch.export.export(MODULES[name](), (X,))
    assert str(caught.value) == f"{words}\n  hint:     run the module once before it is traced"
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=words):
        torch.compile(MODULES[name](), backend="eager", fullgraph=True)(X)
    module = MODULES[name]()
    assert torch.equal(torch.compile(module, backend="eager")(X), MODULES[name]()(X))  # Python runs that part


def test_a_histogram_that_observes_is_not_traced() -> None:
    module = made("default_histogram_fake_quant")
    with pytest.raises(TracingError, match="the range is searched for in Python"):
        torch.export.export(module, (X,))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="the range is searched for in Python"):
        torch.compile(module, backend="eager", fullgraph=True)(X)


def test_v_is_not_set_by_a_traced_program() -> None:
    module = made("adaround")
    module.disable_observer()
    with pytest.raises(TracingError, match="AdaRound sets V at the first call after observing"):
        torch.export.export(module, (X,))


def test_inductor() -> None:
    model = nn.Sequential(nn.Linear(10, 10), made("default_fused_act_fake_quant", freeze))
    torch._dynamo.reset()
    with torch.no_grad():
        assert torch.equal(torch.compile(model, fullgraph=True)(X), model(X))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MODULES)
def test_autocast(name: str, dtype: torch.dtype) -> None:
    """Values come in half precision and go out in it; ranges and grids are float32, and gradients come back."""
    module, x = MODULES[name](), X.clone().requires_grad_()
    module(X)
    with torch.autocast("cpu", dtype):
        values = nn.functional.linear(x, torch.eye(10))
        rounded = module(values)
    assert rounded.dtype == values.dtype == dtype
    expected = module(values.detach().float())
    assert (rounded.float() - expected.float()).abs().max() <= module.scale.max()
    assert module.scale.dtype == torch.float32
    if name != "adaround":
        rounded.float().sum().backward()
        assert x.grad is not None
        assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("name", [name for name in MODULES if "learnable" not in name and name != "adaround"])
def test_double_backward(name: str) -> None:
    """The gradient is that of a mask: linear in what comes in."""
    module, x = made(name, freeze), X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((module(x) * x.exp()).sum(), x, create_graph=True)
    mask = torch.autograd.grad(module(x).sum(), x)[0]
    (second,) = torch.autograd.grad(gradient.sum(), x)
    expected = (mask * x.exp() + (mask + module(x)) * x.exp()).detach()
    torch.testing.assert_close(second, expected)


@pytest.mark.parametrize("name", ["learnable", "learnable per channel"])
def test_a_learned_grid_is_differentiated_once(name: str) -> None:
    module, x = made(name, learn), X.clone().requires_grad_()
    gradients = torch.autograd.grad((module(x) * x).sum(), (x, module.scale), create_graph=True)
    for gradient in gradients:
        with pytest.raises(KernelError, match="fake_quantize_learnable_backward has no derivative"):
            torch.autograd.grad(gradient.sum(), x, retain_graph=True)


@pytest.mark.parametrize("name", MODULES)
def test_vmap_of_a_grid_that_stays(name: str) -> None:
    module = made(name, freeze)
    assert torch.equal(torch.vmap(module)(torch.stack([X, 2 * X])), torch.stack([module(X), module(2 * X)]))


@pytest.mark.parametrize("name", [name for name in MODULES if name != "default_fixed_qparams_range_0to1_fake_quant"])
def test_observing_inside_vmap_is_refused(name: str) -> None:
    module = made(name)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    with pytest.raises(InputError) as caught:
        torch.vmap(module)(torch.stack([X, X]))
    assert str(caught.value) == (
        "an observer cannot measure inside vmap\n  hint:     disable_observer() once it is calibrated"
    )
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


@pytest.mark.parametrize("name", MODULES)
def test_shapes_are_right_on_the_meta_device(name: str) -> None:
    """Also of the grid that the first batch gives its shape."""
    right = made(name)
    module = MODULES[name]().to("meta")
    y = module(torch.empty(6, 10, device="meta"))
    assert y.shape == (6, 10)
    assert y.is_meta
    shapes = {key: (value.shape, value.dtype) for key, value in right.state_dict().items()}
    assert {key: (value.shape, value.dtype) for key, value in module.state_dict().items()} == shapes
    with torch.device("meta"):
        assert MODULES[name]().scale.is_meta


@pytest.mark.parametrize("name", MODULES)
def test_copies_pickles_and_casts(name: str) -> None:
    module = made(name, freeze)
    cast = copy.deepcopy(module).double().half()
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), cast):
        assert torch.equal(other(X), module(X))
        assert same(other, module)
        assert all(value.dtype == module.state_dict()[key].dtype for key, value in other.state_dict().items())
    assert cast(X.half()).dtype == torch.float16


def test_switches_of_any_name_are_pickled_and_compiled() -> None:
    module = made("adaround", round_hard)
    again = pickle.loads(pickle.dumps(module))
    torch._dynamo.reset()
    assert torch.equal(torch.compile(again, backend="eager", fullgraph=True)(X), module(X))


def loaded(name: str, state: dict[str, Tensor], **how: Any) -> Any:
    module = MODULES[name]()
    module.load_state_dict(state, **how)
    return module


@pytest.mark.parametrize("name", MODULES)
def test_states_are_loaded_strictly_and_not(name: str) -> None:
    module = made(name, freeze)
    state = module.state_dict()
    assert torch.equal(loaded(name, state)(X), module(X))
    del state["scale"]
    with pytest.raises(RuntimeError, match="scale"):
        loaded(name, state)
    assert loaded(name, state, strict=False).scale.numel() >= 1


def test_a_release_that_loses_gradients_runs_the_module_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales per channel get their gradients all the same; where one graph is asked for, it is an error."""
    monkeypatch.setattr(learnable, "COMPILES_GRADIENTS", False)
    torch._dynamo.reset()

    def learning() -> LearnableFakeQuantize:
        module = MODULES["learnable per channel"]()
        module(X)
        return module.enable_param_learning()

    mine, right = learning(), learning()
    for call in (torch.compile(mine, backend="eager"), right):
        call(X).square().sum().backward()
    assert right.scale.grad is not None
    assert bool((right.scale.grad != 0).any())
    assert torch.equal(mine.scale.grad, right.scale.grad)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="this torch compiles no gradients of scales"):
        torch.compile(learning(), backend="eager", fullgraph=True)(X)
