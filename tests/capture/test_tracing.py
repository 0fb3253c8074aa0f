from __future__ import annotations

import collections
import copy
import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule, symbolic_trace

from fxquant.capture.tracing import trace
from fxquant.errors import InputError, TracingError, UnknownNameError, user_line
from fxquant.graph.query import BY_REQUEST, module_of, qualified_name, reason_of, value_of

X = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


class Gate(nn.Module):
    def forward(self, x):
        if x.mean() > 0:  # a branch on data
            return x * 2
        return -x


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.gate = Gate()

    def forward(self, x):
        return self.gate(self.conv(x))


class Fn(nn.Module):
    """A model of one function, to say in a line what is traced."""

    def __init__(self, function, **parts) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.function(self, x)


def targets(gm: GraphModule) -> list[object]:
    return [node.target for node in gm.graph.nodes if node.op not in ("placeholder", "output")]


def test_the_model_is_not_touched_and_names_are_the_users():
    model = nn.Sequential(collections.OrderedDict(conv=nn.Conv2d(3, 4, 3), bn=nn.BatchNorm2d(4))).train()
    before = copy.deepcopy(model.state_dict())
    gm = trace(model, example_args=(X,))
    assert type(gm).__name__ == "Sequential"
    assert list(gm.state_dict()) == list(before)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
        assert torch.equal(gm.state_dict()[name], before[name]), name
    assert gm.conv is not model.conv
    assert gm.training
    assert gm.bn.training


def test_eval_mode_reaches_containers_too():
    gm = trace(nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3))).eval(), example_args=(X,))
    assert not any(module.training for module in gm.modules())


def test_nodes_know_the_users_line_and_module():
    gm = trace(Gated(), example_args=(X,), leaf_modules=("gate",))
    conv = next(node for node in gm.graph.nodes if node.name == "conv")
    source = Gated.forward.__code__
    assert user_line(conv) == f"{source.co_filename}:{source.co_firstlineno + 1}"
    assert qualified_name(conv) == "conv"
    assert value_of(conv).shape == (2, 4, 6, 6)


def test_a_branch_on_data_names_submodule_line_and_way_out():
    line = Gate.forward.__code__.co_firstlineno + 1
    with pytest.raises(TracingError) as caught:
        trace(Gated(), example_args=(X,))
    assert str(caught.value) == (
        "torch.fx cannot trace the submodule 'gate' (a Gate)\n"
        f"  at:       {__file__}:{line}: if x.mean() > 0:  # a branch on data\n"
        "  got:      a branch (if, while, and, or, assert) on the value of a tensor\n"
        "  expected: a forward that does not depend on values\n"
        '  hint:     leaf_modules=("gate",) keeps it whole and in float'
    )


@pytest.mark.parametrize("leaf", ["gate", Gate])
def test_leaf_modules_are_kept_whole_and_in_float(leaf):
    model = Gated()
    gm = trace(model, example_args=(X,), leaf_modules=(leaf,))
    gate = next(node for node in gm.graph.nodes if node.name == "gate")
    assert reason_of(gate) == "kept whole and in float by leaf_modules"
    assert gate.meta[BY_REQUEST]
    for x in (X, -X, X + 3):
        assert torch.equal(gm(x), model(x))


@pytest.mark.parametrize(
    ("function", "meaning"),
    [
        (
            lambda self, x: [row + 1 for row in x],
            "a loop over a tensor or over something made of one, whose length is not known",
        ),
        (lambda self, x: x[0] if x.sum() > 0 and x.mean() > 0 else x, "a branch (if, while, and, or, assert)"),
        (lambda self, x: x * float(x.sum()), "int() or float() of a tensor, whose value is known only at run time"),
    ],
    ids=["iteration", "and", "float"],
)
def test_what_cannot_be_traced_at_top_level(function, meaning):
    with pytest.raises(TracingError) as caught:
        trace(Fn(function), example_args=(X,))
    text = str(caught.value)
    assert text.startswith("torch.fx cannot trace the forward of the model itself (a Fn)\n  at:       " + __file__)
    assert f"  got:      {meaning}" in text
    assert "move that line into a submodule of its own" in text


def test_the_innermost_submodule_is_named_also_after_an_error_that_the_user_caught():
    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = Gate()
            self.second = nn.Sequential(Gate())

        def forward(self, x):
            try:
                return self.first(x)
            except Exception:
                return self.second(x)

    with pytest.raises(TracingError, match=r"cannot trace the submodule 'second\.0' \(a Gate\)"):
        trace(Tries(), example_args=(X,))


def test_unknown_leaf_modules():
    with pytest.raises(UnknownNameError) as caught:
        trace(Gated(), example_args=(X,), leaf_modules=("gata",))
    assert str(caught.value) == (
        "leaf_modules names a module that the model does not have\n"
        "  got:      'gata'\n"
        "  expected: the qualified name of a submodule, as model.named_modules() gives it\n"
        "  hint:     did you mean 'gate'?"
    )
    with pytest.raises(UnknownNameError, match="names a type that the model does not have"):
        trace(Gated(), example_args=(X,), leaf_modules=(nn.LSTM,))
    with pytest.raises(InputError, match="neither a type nor a name"):
        trace(Gated(), example_args=(X,), leaf_modules=(3,))


def test_what_cannot_be_copied_is_named():
    model = nn.Sequential(nn.Linear(3, 3))
    model[0].lock = threading.Lock()
    with pytest.raises(TracingError) as caught:
        trace(model, example_args=(torch.zeros(1, 3),))
    text = str(caught.value)
    assert "the model cannot be copied (copy.deepcopy fails) because of its attribute '0.lock', a lock" in text
    assert "hint:     delete or replace that attribute first" in text


def test_a_scripted_model_is_refused():
    with pytest.warns(match="deprecated"):
        scripted = torch.jit.script(nn.ReLU())
    with pytest.raises(TracingError, match="the model is a ScriptModule"):
        trace(scripted, example_args=(X,))


def test_leaves_are_torch_modules_and_what_computes_the_same():
    class Same(nn.Conv2d):
        pass

    class Other(nn.Conv2d):
        def forward(self, x):
            return F.conv2d(x, self.weight * 2, self.bias)

    class Block(nn.Sequential):
        pass

    class Mine(nn.Module):
        def forward(self, x):
            return x + 1

    class Derived(Mine):
        pass

    model = Block(Same(3, 3, 1), Other(3, 3, 1), Mine(), Derived())
    gm = trace(model, example_args=(X,), leaf_types=(Mine,))
    called = [type(module_of(node)) for node in gm.graph.nodes if node.op == "call_module"]
    assert called == [Same, Mine]
    assert torch.equal(gm(X), model(X))


def test_in_place_operators_are_recorded_as_such():
    def change(self, x):
        y = x + 1
        view = y.view(-1)
        y += 1
        y *= 2
        y -= 0.5
        y[0] = 3
        return view

    model = Fn(change)
    gm = trace(model, example_args=(X,))
    assert [getattr(target, "__name__", target) for target in targets(gm)] == [
        "add",
        "view",
        "iadd",
        "imul",
        "isub",
        "setitem",
    ]
    assert torch.equal(gm(X), model(X))


def test_shapes_of_parameters_and_buffers_are_known():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 3, 1, 1))
            self.register_buffer("shift", torch.ones(4, 1, 1))

        def forward(self, x):
            groups = self.weight.size(0) // len(self.shift)
            return F.conv2d(x, self.weight, groups=groups) + self.shift * 2 if self.shift.ndim == 3 else x

    model = Net()
    gm = trace(model, example_args=(X,))
    with torch.no_grad():
        model.shift += 1
        gm.shift += 1  # read when run, not frozen by the trace
    assert torch.equal(gm(X), model(X))
    assert set(gm.state_dict()) == {"weight", "shift"}


def test_plain_tensor_attributes_are_no_part_of_the_state():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.offset = torch.ones(3, 1, 1)
            self.register_buffer("hidden", torch.ones(1), persistent=False)

        def forward(self, x):
            return x + self.offset + self.hidden

    gm = trace(Net(), example_args=(X,))
    assert gm.state_dict() == {}
    assert torch.equal(gm(X), Net()(X))


def test_keyword_inputs_and_defaults():
    class Net(nn.Module):
        def forward(self, q, k, bias=0.5, *, mask=None):
            out = q - 2 * k + bias
            return out if mask is None else out * mask

    q, k = torch.ones(2), torch.full((2,), 3.0)
    gm = trace(Net(), example_args=(), example_kwargs={"k": k, "q": q})
    assert torch.equal(gm(k=k, q=q), Net()(q, k))
    assert torch.equal(gm(q, k, 2.0), Net()(q, k, 2.0))
    with pytest.raises(InputError) as caught:
        gm(q, k, mask=q)
    assert str(caught.value).startswith("the argument 'mask' was fixed when the model was prepared\n")
    masked = trace(Net(), example_args=(q, k), example_kwargs={"mask": q})
    assert torch.equal(masked(q, k, mask=k), Net()(q, k, mask=k))
    with pytest.raises(InputError, match="the argument 'mask' was given when the model was prepared, and is left out"):
        masked(q, k)


def test_structured_outputs():
    pair = collections.namedtuple("pair", ["hidden", "raw"])

    def forward(self, x):
        return {"logits": x * 2, "aux": None, "pair": pair(x + 1, x), "list": [x, (x, 3)]}

    out = trace(Fn(forward), example_args=(X,))(X)
    assert isinstance(out["pair"], pair)
    assert out["pair"].raw is X
    assert out["aux"] is None
    assert isinstance(out["list"][1], tuple)
    assert out["list"][1][1] == 3


def test_a_module_called_twice_is_one_module():
    model = Fn(lambda self, x: self.conv(self.conv(x)), conv=nn.Conv2d(3, 3, 1))
    gm = trace(model, example_args=(X,))
    assert targets(gm) == ["conv", "conv"]
    assert torch.equal(gm(X), model(X))


def test_hooks_survive():
    calls: list[str] = []
    model = Fn(lambda self, x: self.act(x), act=nn.ReLU())
    model.register_forward_hook(lambda *_: calls.append("model"))
    model.act.register_forward_hook(lambda module, args, out: out + 1)
    gm = trace(model, example_args=(X,))
    calls.clear()
    assert torch.equal(gm(X), X.relu() + 1)
    assert calls == ["model"]


def test_a_traced_module_is_taken_as_it_is():
    traced = symbolic_trace(Fn(lambda self, x: self.act(self.conv(x)), conv=nn.Conv2d(3, 3, 1), act=nn.ReLU()))
    gm = trace(traced, example_args=(X,))
    assert gm is not traced
    assert [node.name for node in gm.graph.nodes] == [node.name for node in traced.graph.nodes]
    assert torch.equal(gm(X), traced(X))
    assert qualified_name(list(gm.graph.nodes)[1]) == "conv"


def test_running_the_example_leaves_statistics_and_random_state_alone():
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Dropout(0.5)).train()
    state = torch.random.get_rng_state()
    x = X.clone()
    gm = trace(model, example_args=(x,))
    assert torch.equal(gm.get_submodule("0").running_mean, torch.zeros(3))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(x, X)


def test_the_example_is_not_changed_by_a_model_that_writes_to_its_input():
    x = X.clone()
    trace(Fn(lambda self, x: x.add_(1)), example_args=(x,))
    assert torch.equal(x, X)


def test_a_module_with_hooks_has_a_reason_to_stay_float():
    model = Fn(lambda self, x: self.b(self.a(x)), a=nn.Conv2d(4, 4, 1), b=nn.Conv2d(4, 4, 1))
    model.a.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    gm = trace(model, example_args=(torch.rand(1, 4, 2, 2),))
    reasons = {node.name: reason_of(node) for node in gm.graph.nodes if node.op == "call_module"}
    assert reasons == {"a": "it has hooks, which only a float module runs", "b": None}


def test_weights_that_autograd_computed_can_be_copied():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = nn.Sequential(nn.utils.weight_norm(nn.Conv1d(3, 4, 3))).eval()
    x, weight = torch.rand(2, 3, 5), model[0].weight
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(model)
    gm = trace(model, example_args=(x,))
    assert torch.equal(gm(x), model(x))
    assert model[0].weight.requires_grad
    assert weight is not gm.get_submodule("0").weight


class Pyramid(nn.Module):
    """Keeps values in an attribute between two of its methods, anew in each call."""

    def __init__(self, poisoned: bool = False) -> None:
        super().__init__()
        self.levels, self.poisoned = [torch.zeros(1)], poisoned

    def forward(self, x):
        before = self.levels[0].sum() if self.poisoned else 0
        self.levels = [x]
        self.levels.append(x[:, ::2])
        return self.levels[0].sum(1) + self.levels[1].sum(1) + before


def test_an_attribute_that_every_call_writes_before_it_reads():
    model, x = nn.Sequential(nn.Linear(4, 4), Pyramid()).eval(), torch.rand(2, 4)
    gm = trace(model, example_args=(x,))
    assert torch.equal(gm(x), model(x))
    assert torch.equal(gm(-x), model(-x))


def test_an_attribute_that_is_read_before_it_is_written():
    model = nn.Sequential(nn.Linear(4, 4), Pyramid(poisoned=True)).eval()
    with pytest.raises(TracingError, match=r"a change of self\.levels"):
        trace(model, example_args=(torch.rand(2, 4),))
