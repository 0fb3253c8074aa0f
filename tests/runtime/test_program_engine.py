"""Converted models run by programs: the same bits whatever happens to the model, and memory that does not grow."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import os
import pickle
import resource
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torchvision.models.densenet import DenseNet

import fxquant as fxq
from fxquant.errors import InputError, KernelError, UnknownNameError
from fxquant.kernels.library import available_isas, use_isa
from fxquant.runtime import ProgramEngine, engine_of
from fxquant.runtime import program_engine as module_under_test
from fxquant.runtime.execution_plan import ExecutionPlan
from fxquant.runtime.program_engine import PLANS
from fxquant.samples.networks import make_meaningful
from tests.sampling import one_of

pytestmark = pytest.mark.skipif(not available_isas(), reason="programs are made of native kernels")


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 10, 3, stride=2, padding=1)
        self.wide, self.narrow = nn.Conv2d(10, 21, 1), nn.Conv2d(21, 10, 3, padding=1)
        self.last = nn.Linear(10, 4)

    def forward(self, x):
        x = F.relu(self.first(x))
        x = F.relu(x + self.narrow(F.hardswish(self.wide(x))))
        return self.last(F.adaptive_avg_pool2d(x, 1).flatten(1))


def image(*sizes: int, seed: int = 0):
    return torch.randn(*(sizes or (2, 3, 16, 16)), generator=torch.Generator().manual_seed(seed))


def pair(model: nn.Module | None = None, x=None):
    """An int8 model that runs by programs, and the same as a graph."""
    torch.manual_seed(0)
    x = image() if x is None else x
    prepared = fxq.calibrate(fxq.prepare((Small() if model is None else model).eval(), x), [x], progress=False)
    return fxq.convert(prepared, engine="program"), fxq.convert(prepared, engine="graph")


def run_twice(model, x):
    """After that there is a plan for x."""
    return [model(x) for _ in range(3)]


@pytest.fixture
def models():
    return pair()


class Optional(Small):
    """Takes what most calls leave out."""

    def forward(self, x, mask=None, factor: float = 2.0):
        return super().forward(x) * factor if mask is None else super().forward(x * mask)


@pytest.mark.parametrize("make", [Optional, lambda: nn.ConvTranspose2d(3, 8, 2, 2)], ids=["own", "torch"])
def test_inputs_that_are_left_out_have_their_defaults(make):
    program, graph = pair(make())
    for seed in range(5):
        assert torch.equal(program(image(seed=seed)), graph(image(seed=seed)))
    (plan,) = engine_of(program).plans
    assert plan.programs
    assert not plan.fallback_reason


class Variadic(Small):
    """Takes its input as the first of any number."""

    def forward(self, *xs):
        return super().forward(xs[0])


def test_any_number_of_inputs_is_no_input_of_a_program():
    program, graph = pair(Variadic())
    for seed in range(4):
        assert torch.equal(program(image(seed=seed)), graph(image(seed=seed)))
    assert engine_of(program).plans == ()


def test_programs_are_the_default(models):
    prepared = fxq.calibrate(fxq.prepare(Small().eval(), image()), [image()], progress=False)
    assert isinstance(engine_of(fxq.convert(prepared)), ProgramEngine)
    assert isinstance(engine_of(models[0]), ProgramEngine)
    assert engine_of(models[1]) is None
    assert engine_of(fxq.convert(prepared, to="fake_quant")) is None


def test_wrong_engines_are_refused(monkeypatch):
    prepared = fxq.calibrate(fxq.prepare(Small().eval(), image()), [image()], progress=False)
    with pytest.raises(UnknownNameError, match=r"unknown engine\n  got: +'programm'\n(.*\n)*.*did you mean 'program'"):
        fxq.convert(prepared, engine="programm")
    with pytest.raises(InputError, match="only int8 models have an engine"):
        fxq.convert(prepared, to="fake_quant", engine="graph")
    monkeypatch.setattr(module_under_test, "library", lambda: None)
    with pytest.raises(KernelError, match="programs are made of native operators, and these are not here"):
        fxq.convert(prepared, engine="program")
    assert engine_of(fxq.convert(prepared)) is None


def test_the_second_call_makes_a_plan_and_bits_stay(models):
    model, graph = models
    engine = engine_of(model)
    assert str(engine) == "no program yet"
    for seed in range(4):
        assert torch.equal(model(image(seed=seed)), graph(image(seed=seed)))
        assert len(engine.plans) == (seed > 0)
    assert str(engine).startswith("1 program of ")


def test_a_call_that_is_like_the_one_before_runs_its_program_at_once(monkeypatch):
    """One input, one result: neither a key nor lists of values are made."""
    layer, x = nn.Linear(6, 4).eval(), torch.randn(5, 6)
    program, graph = pair(layer, x)
    run_twice(program, x)
    for name in ("__call__", "_first_calls"):
        monkeypatch.setattr(ProgramEngine, name, None)
    monkeypatch.setattr(ExecutionPlan, "run", None)
    for seed in range(3):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(seed))
        found = program(x)
        assert torch.equal(found, graph(x))
        assert found.stride() == graph(x).stride()


def outcome(model: nn.Module, x: torch.Tensor) -> object:
    """What a call gives, or how it fails."""
    try:
        return model(x).tolist()
    except Exception as error:
        return type(error), str(error)


def test_a_call_that_is_unlike_the_one_before_does_not_run_its_program():
    layer, x = nn.Linear(6, 4).eval(), torch.randn(5, 6)
    program, graph = pair(layer, x)
    run_twice(program, x)
    other = torch.randn(6, 5).t()
    fixed = nn.Parameter(x, requires_grad=False)
    for unlike in (other, torch._neg_view(x), x[:3], fixed, x.expand(2, 5, 6)):
        assert torch.equal(program(unlike), graph(unlike))
        assert torch.equal(program(x), graph(x))
    assert torch.equal(program(input=x), graph(input=x))
    for wrong in (x.double(), x.to_sparse(), x[:, :3], x.to("meta"), x.to(torch.complex64)):
        assert outcome(program, wrong) == outcome(graph, wrong)
    with pytest.warns(fxq.FxQuantWarning, match="none flow through integers"):
        program(x.clone().requires_grad_())
    with torch.inference_mode():
        assert program(x).is_inference()
    assert not program(x).is_inference()
    calls = []
    program.register_forward_hook(lambda *_: calls.append("model"))
    next(program.children()).register_forward_hook(lambda *_: calls.append("module"))
    assert torch.equal(program(x), graph(x))
    assert calls == ["module", "model"]


def test_a_plan_that_is_dropped_is_not_run(models):
    model, graph = models
    run_twice(model, image())
    late = engine_of(model)._latest
    assert late is not None
    engine_of(model).invalidate()
    assert engine_of(model)._latest is None
    engine_of(model)._latest = late  # as a call in another thread may that found its plan before
    late.plan.used = -1
    assert torch.equal(model(image()), graph(image()))
    assert late.plan.used == -1
    run_twice(model, image())
    for size in range(8, 8 + PLANS):
        model(image(1, 3, size, size))
        model(image(1, 3, size, size))  # a plan is made, and has not run
    assert engine_of(model)._latest is None
    assert torch.equal(model(image()), graph(image()))


def test_shapes_and_layouts_may_change(models):
    model, graph = models
    for x in (
        image(1, 3, 9, 12),
        image(3, 3, 16, 7),
        image().contiguous(memory_format=torch.channels_last),
        image(0, 3, 8, 8),
    ):
        wanted = graph(x)
        for found in run_twice(model, x):
            assert torch.equal(found, wanted)
            assert found.stride() == wanted.stride()
    assert len(engine_of(model).plans) == 4


def test_few_plans_are_kept(models):
    model, graph = models
    for size in range(8, 8 + 2 * PLANS):
        run_twice(model, image(1, 3, size, size))
    assert len(engine_of(model).plans) == PLANS
    assert torch.equal(model(image(1, 3, 8, 8)), graph(image(1, 3, 8, 8)))


def test_shapes_that_come_once_make_no_plan(models):
    for size in range(8, 100):
        models[0](image(1, 3, size, 8))
    assert engine_of(models[0]).plans == ()


def test_a_state_dict_that_is_loaded_counts(models):
    model, graph = models
    run_twice(model, image())
    state = {name: value.clone() for name, value in graph.state_dict().items()}
    state["last.weight"] = -state["last.weight"].clamp(min=-127)
    model.load_state_dict(state)
    graph.load_state_dict(state)
    for found in run_twice(model, image()):
        assert torch.equal(found, graph(image()))
    assert list(model.state_dict()) == list(graph.state_dict())


def test_hooks_run(models):
    model, _ = models
    run_twice(model, image())
    seen: list[torch.Size] = []
    handle = model.get_submodule("wide").register_forward_hook(lambda module, args, y: seen.append(y.shape))
    run_twice(model, image())
    assert len(seen) >= 3
    handle.remove()
    run_twice(model, image())
    del seen[:]
    model(image())
    assert seen == []


def test_a_module_around_layers_may_be_replaced():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x):
            return self.layer(x)

    torch.manual_seed(0)
    x = torch.randn(3, 6)
    model, graph = pair(nn.Sequential(nn.Sequential(Block()), Block()), x)
    run_twice(model, x)
    for each in (model, graph):
        other = copy.deepcopy(each.get_submodule("0"))
        layer = other.get_submodule("0.layer")
        layer.weight.neg_()
        layer.invalidate()
        setattr(each, "0", other)
    for found in run_twice(model, x):
        assert torch.equal(found, graph(x))


def test_inputs_may_be_parts_of_one_tensor():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, a, b):
            return self.layer(a), b[:, 1:4]

    torch.manual_seed(0)
    whole = torch.randn(8, 6)
    a, b = whole[:4], whole[4:]
    prepared = fxq.calibrate(fxq.prepare(Two().eval(), (a, b)), [(a, b)], progress=False)
    model, graph = fxq.convert(prepared, engine="program"), fxq.convert(prepared, engine="graph")
    for inputs in ((a, b), (a, b), (a, b), (b, a), (torch.randn(4, 6), torch.randn(4, 6)), (a, a)):
        assert all(map(torch.equal, model(*inputs), graph(*inputs)))
    assert engine_of(model).plans[0].programs


def test_a_negation_that_is_only_noted_down_counts(models):
    model, graph = models
    plain = image()
    negated = torch._neg_view(plain)
    for _ in range(2):
        for x in (plain, negated, plain):
            assert torch.equal(model(x), graph(x))
    assert not torch.equal(graph(plain), graph(negated))


def test_a_changed_graph_runs(models):
    model, _ = models
    run_twice(model, image())
    output = next(iter(reversed(model.graph.nodes)))
    with model.graph.inserting_before(output):
        output.args = (model.graph.call_function(torch.neg, output.args),)
    wanted = -model(image())
    model.recompile()
    for found in run_twice(model, image()):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_run_by_programs_of_their_own(models, duplicate):
    model, graph = models
    run_twice(model, image())
    twin = duplicate(model)
    assert engine_of(twin) is not engine_of(model)
    assert engine_of(twin).plans == ()
    for found in run_twice(twin, image(seed=3)):
        assert torch.equal(found, graph(image(seed=3)))
    assert len(engine_of(twin).plans) == 1


def test_a_pickle_holds_no_plans(models):
    model, _ = models
    before, after = io.BytesIO(), io.BytesIO()
    torch.save(model, before)
    run_twice(model, image())
    torch.save(model, after)
    assert before.getvalue() == after.getvalue()


def test_who_watches_operators_sees_them(models):
    model, graph = models
    run_twice(model, image())
    traced = make_fx(model)(image())
    assert "fxquant.conv2d" in traced.code
    exported = torch.export.export(model, (image(),))
    assert "fxquant.conv2d" in exported.graph_module.code
    assert torch.equal(exported.module()(image()), graph(image()))


def test_values_that_change_shapes_are_left_to_the_graph():
    class Rows(nn.Module):
        def forward(self, x):
            return x[: 1 + int(x[0].mean() > x[1].mean())]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.rows, self.last = nn.Linear(6, 6), Rows(), nn.Linear(6, 3)

        def forward(self, x):
            return self.last(self.rows(self.first(x)))

    torch.manual_seed(0)
    x = torch.randn(2, 6)
    prepared = fxq.prepare(Net().eval(), x, leaf_modules=(Rows,))
    fxq.calibrate(prepared, [x], progress=False)
    model, graph = fxq.convert(prepared, engine="program"), fxq.convert(prepared, engine="graph")
    run_twice(model, x)
    assert {len(graph(x)), len(graph(x.flip(0)))} == {1, 2}
    for other in (x.flip(0), x, x.flip(0)):
        assert torch.equal(model(other), graph(other))


def test_float_layers_learn_behind_programs():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head, self.last = nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 3)

        def forward(self, x):
            return self.head(self.first(x)), self.last(self.head(self.first(x)))

    torch.manual_seed(0)
    model, graph = pair(Net(), torch.randn(5, 6))
    x = torch.randn(5, 6)
    with torch.no_grad():
        run_twice(model, x)
    for found in run_twice(model, x):
        (weight,) = torch.autograd.grad(found[0].sum(), model.get_submodule("head").weight)
        (wanted,) = torch.autograd.grad(graph(x)[0].sum(), graph.get_submodule("head").weight)
        assert torch.equal(weight, wanted)
        assert not found[1].requires_grad
    assert [len(plan.programs) > 0 for plan in engine_of(model).plans] == [True, True]  # one for each mode


def test_keywords_and_several_inputs():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, a, b, flip: bool = False):
            y = torch.relu(self.layer(a)) + self.layer(b)
            return {"sum": y, "parts": (y[:, :2], y[:, 2:])}

    torch.manual_seed(0)
    a, b = torch.randn(3, 6), torch.randn(3, 6)
    prepared = fxq.calibrate(fxq.prepare(Two().eval(), (a, b)), [(a, b)], progress=False)
    model, graph = fxq.convert(prepared, engine="program"), fxq.convert(prepared, engine="graph")
    for inputs in ((a, b), (b, a), (a, a), (a, b)):
        found, wanted = model(*inputs), graph(*inputs)
        assert torch.equal(found["sum"], wanted["sum"])
        assert all(map(torch.equal, found["parts"], wanted["parts"]))
    assert torch.equal(model(a, b=b)["sum"], graph(a, b)["sum"])


@pytest.mark.parametrize(
    "name", one_of(3, ["resnet18", "mobilenet_v2", "mobilenet_v3_small", "shufflenet_v2_x0_5", "googlenet"])
)
def test_networks_run_as_one_program_on_every_instruction_set(name):
    more = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    torch.manual_seed(0)
    network = make_meaningful(getattr(torchvision.models, name)(num_classes=10, **more).eval())
    check_network(network, programs=1, isas=available_isas())


def test_a_densely_connected_network():
    torch.manual_seed(0)
    check_network(make_meaningful(DenseNet(8, (2, 3), 16, num_classes=10).eval()), programs=1)


def test_a_vision_transformer_runs_in_pieces():
    torch.manual_seed(0)
    network = torchvision.models.VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=10).eval()
    nn.init.normal_(network.heads.head.weight)  # a new one has zeros, of which calibration warns
    check_network(network, programs=None)


def check_network(network: nn.Module, programs: int | None, isas=("",)) -> None:
    x = image(2, 3, 32, 32)
    model, graph = pair(network, x)
    with torch.inference_mode():
        run_twice(model, x)
        (plan,) = engine_of(model).plans
        assert programs is None or len(plan.programs) == programs
        assert plan.programs
        for seed, isa in enumerate(isas, start=1):
            other = image(2, 3, 32, 32, seed=seed)
            if isa:
                with use_isa(isa):
                    assert torch.equal(model(other), graph(other))
            else:
                assert torch.equal(model(other), graph(other))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:calibration saw one and the same number")  # of a channel whose ReLU is dead
@settings(max_examples=8, deadline=None)
@given(
    channels=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    kernel=st.sampled_from([1, 3, 5]),
    stride=st.integers(1, 3),
    size=st.integers(5, 12),
    batch=st.integers(1, 3),
    act=st.sampled_from([F.relu, F.hardswish, F.silu, torch.sigmoid]),
)
def test_drawn_networks(channels, kernel, stride, size, batch, act):
    class Drawn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            ends = zip([3, *channels], channels, strict=False)
            self.layers = nn.ModuleList(nn.Conv2d(a, b, kernel, stride, kernel // 2) for a, b in ends)

        def forward(self, x):
            for layer in self.layers:
                y = act(layer(x))
                x = torch.cat([y, y], 1)[:, : y.shape[1]] + y
            return x.mean((2, 3))

    x = image(batch, 3, size, size)
    model, graph = pair(Drawn(), x)
    run_twice(model, x)
    assert torch.equal(model(image(batch, 3, size, size, seed=5)), graph(image(batch, 3, size, size, seed=5)))


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("FXQUANT_SANITIZE") == "1", reason="AddressSanitizer keeps what was freed")
def test_ten_thousand_calls_from_four_threads_leave_memory_and_bits_as_they_are(models):
    model, graph = models
    inputs = [image(batch, 3, size, size) for batch in (1, 2) for size in (8, 9, 16, 20, 24)]
    wanted = [graph(x) for x in inputs]
    threads = torch.get_num_threads()

    def calls(begin: int) -> int:
        torch.set_num_threads(1)
        with torch.inference_mode():
            return sum(
                not torch.equal(model(inputs[i % len(inputs)]), wanted[i % len(inputs)])
                for i in range(begin, begin + 250)
            )

    def round_of(count: int) -> int:
        with ThreadPoolExecutor(4) as pool:
            return sum(pool.map(calls, range(count)))

    assert round_of(4) == 0  # 1,000 calls
    before = resident()
    assert round_of(36) == 0
    torch.set_num_threads(threads)
    assert resident() - before < SOAK_GROWTH


SOAK_GROWTH = 8 << 20
"""Bytes: the arenas of the allocator for threads that came and went; a leak of 1 KB per call would be 9 MB."""


def resident() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_input_is_named_whatever_ran_before(layout: torch.layout) -> None:
    x = torch.linspace(-1, 1, 6).reshape(2, 3)
    model = fxq.quantize(torch.nn.Sequential(torch.nn.Linear(3, 3)).eval(), [x], progress=False)
    nested = torch.nested.nested_tensor([x[0], x[1]], layout=layout)
    expected = model(x)
    for _ in range(4):
        with pytest.raises(InputError, match="the input 'input' is nested where the model takes a dense tensor"):
            model(nested)
        assert torch.equal(model(x), expected)
