"""``equalize``: the model computes the same, weights get ranges that are alike, and what does not help is left."""

from __future__ import annotations

import copy
import functools
import pickle
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fxquant as fxq
from fxquant.equalization.clamps import Extremes, limits_of
from fxquant.equalization.factors import Limits, WeightRanges, magnitudes_of, weight_factors
from fxquant.equalization.regions import find_regions
from fxquant.errors import CalibrationError, FxQuantWarning, InputError, UnknownNameError
from fxquant.measure.noise import sqnr
from fxquant.measure.parity import measure_parity
from fxquant.passes.scale_channels import factors_of
from fxquant.plan.spec import TensorRef
from tests.sampling import one_of

PER_TENSOR = fxq.MinMaxObserver.with_args(dtype=torch.int8, qscheme="per_tensor_symmetric")
QCONFIG = fxq.QConfig(activation=fxq.MinMaxObserver.with_args(dtype=torch.uint8), weight=PER_TENSOR)
KINDS = ("conv", "norm", "depthwise", "grouped", "transposed", "relu", "leaky", "relu6", "pool", "shuffle", "residual")


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(channels, 6, 1), nn.Conv2d(6, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(F.relu(self.a(x)))


def layer(kind: str, channels: int) -> list[nn.Module]:
    """Return layers that keep the number of channels."""
    conv = {"depthwise": channels, "grouped": 2}.get(kind, 1)
    made: dict[str, Any] = {
        "norm": lambda: [nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels)],
        "transposed": lambda: [nn.ConvTranspose2d(channels, channels, 3, padding=1)],
        "relu": lambda: [nn.ReLU()],
        "leaky": lambda: [nn.LeakyReLU(0.3)],
        "relu6": lambda: [nn.ReLU6()],
        "pool": lambda: [nn.AvgPool2d(3, 1, 1)],
        "shuffle": lambda: [nn.ChannelShuffle(2)],
        "residual": lambda: [Residual(channels)],
    }
    return made.get(kind, lambda: [nn.Conv2d(channels, channels, 3, padding=1, groups=conv)])()


def network(kinds: list[str], seed: int) -> nn.Module:
    """Return a net with weights whose channels differ up to a hundredfold."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 4, 1), *(each for kind in kinds for each in layer(kind, 4)), nn.Conv2d(4, 3, 1)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(3 * 36, 2)).eval()
    with torch.no_grad():
        for module in model.modules():
            weight = getattr(module, "weight", None)
            if weight is not None:
                spread = 10 ** (2 * torch.rand(len(weight), generator=generator) - 1)
                weight.mul_(spread.view(-1, *[1] * (weight.dim() - 1)))
            if isinstance(module, nn.BatchNorm2d):
                module.running_var.uniform_(0.5, 2, generator=generator)
                module.running_mean.uniform_(-1, 1, generator=generator)
                module.bias.uniform_(-1, 1, generator=generator)
    return model


def images(seed: int = 0, count: int = 4) -> Tensor:
    return torch.randn(count, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


def prepared(model: nn.Module, x: Tensor | None = None, qconfig: Any = QCONFIG) -> fxq.Quantizer:
    return fxq.prepare(model, images() if x is None else x, qconfig)


def error(model: nn.Module, start: fxq.Quantizer, data: list[Tensor]) -> float:
    """Return the squared error of the int8 model on the first batch."""
    int8 = fxq.convert(fxq.calibrate(start, data, progress=False))
    with torch.no_grad():
        return float((int8(data[0]) - model(data[0])).square().mean())


@pytest.mark.slow
@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=5), st.integers(0, 99))
def test_the_equalized_graph_computes_the_same(kinds, seed):
    start, x = prepared(network(kinds, seed)), images(1)
    equalized = fxq.equalize(start, progress=False)
    with torch.no_grad():
        expected, result = start.graph_module(x), equalized.graph_module(x)
    assert float((expected - result).abs().max()) <= 1e-5 * float(expected.abs().max())
    with_data = fxq.equalize(start, [x], keep_if=0.0, progress=False)
    with torch.no_grad():  # no value of the data comes to a bound, or leaves one
        result = with_data.graph_module(x)
    assert float((expected - result).abs().max()) <= 1e-5 * float(expected.abs().max())


@pytest.mark.parametrize("seed", range(3))
def test_twice_is_once(seed):
    kinds = ["relu", "norm", "relu", "depthwise", "relu", "residual"]
    once = fxq.equalize(prepared(network(kinds, seed)), iterations=200, progress=False)
    assert once.equalization is not None
    assert once.equalization.scaled > 0
    twice = fxq.equalize(once, progress=False)
    assert twice.equalization is not None
    assert max(row.largest for row in twice.equalization) <= 1.01


def test_permuted_channels_have_permuted_factors():
    model = network(["relu"], 3)
    order = torch.tensor([2, 0, 3, 1])
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].weight.copy_(model[0].weight[order])
        other[0].bias.copy_(model[0].bias[order])
        other[2].weight.copy_(model[2].weight[:, order])
    one, permuted = (fxq.equalize(prepared(each), progress=False).graph_module for each in (model, other))
    assert torch.allclose(one.get_submodule("0").weight[order], permuted.get_submodule("0").weight, rtol=1e-6)


def test_ranges_on_both_sides_are_alike():
    equalized = fxq.equalize(prepared(network(["relu"], 5)), progress=False).graph_module
    rows = magnitudes_of(equalized.get_submodule("0")).amax(2).flatten()
    columns = magnitudes_of(equalized.get_submodule("2")).amax(1).flatten()
    assert torch.allclose(rows, columns, rtol=0.02)


def test_a_batch_norm_is_scaled_and_its_statistics_are_not():
    start = prepared(network(["norm", "relu"], 5))
    equalized = fxq.equalize(start, progress=False)
    before, after = start.graph_module.state_dict(), equalized.graph_module.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed >= {"2.weight", "2.bias", "4.weight"}
    assert not {name for name in changed if "running" in name}
    assert list(before) == list(after)


def test_the_noise_falls_where_channels_differ():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4))
    torch.manual_seed(0)
    with torch.no_grad():
        spread = torch.logspace(-1.5, 1.5, 8)
        model[0].weight.mul_(spread.view(-1, 1, 1, 1))
        model[2].weight.div_(spread.view(1, -1, 1, 1))
    data = [images(seed) for seed in range(3)]
    start = prepared(model.eval())
    equalized = fxq.equalize(start, data, progress=False)
    assert equalized.equalization is not None
    row = equalized.equalization.rows[1]
    assert (row.sources, row.sinks, row.scaled, row.outcome) == (("0",), ("2",), 8, "used")
    assert row.before is not None
    assert row.after is not None
    assert row.after < 0.1 * row.before
    noise = [error(model, each, data) for each in (start, equalized)]
    assert noise[1] < 0.2 * noise[0]


def test_what_does_not_help_is_left_as_it_is():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)).eval()
    data = [torch.randn(64, 16)]
    start = prepared(model, data[0])
    equalized = fxq.equalize(start, data, keep_if=0.9, progress=False)
    assert equalized.equalization is not None
    row = equalized.equalization.rows[1]
    assert row.scaled == 0
    assert row.outcome.startswith("left as it is: its noise changes by ")
    assert torch.equal(equalized.graph_module(data[0]), start.graph_module(data[0]))
    assert "nothing was scaled" in str(equalized.equalization)


def test_channels_that_reach_a_clamp_keep_their_scale_and_others_stay_below():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU6(), nn.Linear(4, 2)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(4) * torch.tensor([0.01, 10.0, 1.0, 0.5])[:, None])
        model[0].bias.zero_()
    x = torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.5, -1.0, 2.0, 3.0]])
    start = prepared(model, x)
    (region,) = find_regions(start.graph_module, (x,), {}, with_data=True)[1:2]
    extremes = Extremes({region.bounds[0].value: -1})
    extremes.observe(start.graph_module, {"input": x, "input_1": x})
    limits = limits_of(region, extremes, 2.0)
    assert limits.low.tolist() == pytest.approx([0.01 * 2 / 6, 1.0, 2.0 * 2 / 6, 1.5 * 2 / 6])
    assert limits.high.tolist() == [1000.0, 1.0, 1000.0, 1000.0]
    equalized = fxq.equalize(start, [x], keep_if=0.0, progress=False).graph_module
    values = nn.functional.linear(x, equalized.get_submodule("0").weight)
    assert float(values[:, [0, 2, 3]].detach().max()) <= 6.0
    assert torch.equal(equalized.get_submodule("0").weight[1], model[0].weight[1])
    low = nn.Sequential(nn.Linear(4, 4), nn.Hardtanh(-1, 1), nn.Linear(4, 2)).eval()
    assert fxq.equalize(prepared(low, x), [x], progress=False).graph_module(x).allclose(low(x), atol=1e-5)


def test_a_limit_holds_while_ranges_are_balanced():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.01, 0.0], [0.0, 1.0]]))
        model[2].weight.copy_(torch.eye(2))
    start = prepared(model, torch.randn(3, 2))
    regions = find_regions(start.graph_module, (torch.randn(3, 2),), {})
    usual = Limits.usual(regions[1])
    tight = Limits(torch.tensor([0.5, 1.0]).double(), usual.high)
    ranges = WeightRanges(start.graph_module, regions)
    assert weight_factors(ranges, {1: usual}, 20)[1].tolist() == pytest.approx([0.1, 1.0])
    assert weight_factors(WeightRanges(start.graph_module, regions), {1: tight}, 20)[1].tolist() == [0.5, 1.0]
    assert factors_of(regions[1].sources[0], torch.tensor([0.5, 1.0])).tolist() == [0.5, 1.0]


def test_dead_channels_keep_their_scale():
    model = network(["relu"], 2)
    with torch.no_grad():
        model[0].weight[1] = 0
        model[2].weight[:, 3] = 0
    start = prepared(model)
    after = fxq.equalize(start, progress=False).graph_module
    assert torch.equal(after.get_submodule("0").weight[[1, 3]], model[0].weight[[1, 3]])
    assert not torch.equal(after.get_submodule("0").weight[0], model[0].weight[0])


def test_weights_with_a_scale_for_each_channel_are_left_unless_asked_for():
    model, default = network(["relu"], 2), fxq.get_default_qconfig()
    left = fxq.equalize(prepared(model, qconfig=default), progress=False)
    assert left.equalization is not None
    assert left.equalization.rows[1].outcome == "its weights have a scale for each channel"
    asked = fxq.equalize(prepared(model, qconfig=default), method="weights", progress=False)
    assert asked.equalization is not None
    assert asked.equalization.scaled > 0


class Stream(nn.Module):
    """A norm with two channels that are sixty times as large as the others, before a layer with small weights there."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.up, self.down, self.head = (
            nn.LayerNorm(64),
            nn.Linear(64, 32),
            nn.Linear(32, 64),
            nn.Linear(64, 8),
        )
        with torch.no_grad():
            self.norm.weight[[3, 40]] *= 60
            self.up.weight[:, [3, 40]] /= 20

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.down(F.relu6(self.up(self.norm(x)))))


def test_values_with_large_channels_are_smoothed():
    model = Stream().eval()
    data = [torch.randn(32, 64, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    start = fxq.prepare(model, data[0])
    equalized = fxq.equalize(start, data, progress=False)
    assert equalized.equalization is not None
    row = equalized.equalization.rows[0]
    assert (row.sources, row.sinks, row.outcome) == (("norm",), ("up",), "used")
    assert row.before is not None
    assert row.after is not None
    assert row.after < 0.01 * row.before
    norm = equalized.graph_module.get_submodule("norm")
    assert float(norm.weight.detach().abs().max() / norm.weight.detach().abs().median()) < 30
    with torch.no_grad():
        assert equalized.graph_module(data[0]).allclose(model(data[0]), atol=1e-4)
    with pytest.warns(FxQuantWarning, match="one channel reaches so far beyond the others"):
        before = error(model, start, data)
    assert error(model, equalized, data) < 0.1 * before
    x = torch.randn(256, 64, generator=torch.Generator().manual_seed(9))
    int8 = fxq.convert(fxq.calibrate(equalized, data, progress=False))
    with torch.no_grad():
        assert sqnr(model(x), int8(x)) >= 33
    assert equalized.coverage().int8_macs == 1.0
    without = fxq.equalize(fxq.prepare(model, data[0]), progress=False)
    assert without.equalization is not None
    assert without.equalization.rows[0].outcome == "a norm makes it, which has no weight that is quantized"


class PostNorm(nn.Module):
    """Norms that layers and the stream read, one of them with two channels that are sixty times as large."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out, self.up, self.down = (nn.Linear(16, n) for n in (48, 16, 32, 16))
        self.down = nn.Linear(32, 16)
        with torch.no_grad():
            self.first.weight[[3, 11]] *= 60
            self.qkv.weight[:, [3, 11]] /= 60

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        q, k, v = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.second(x + self.out(attended))
        return x + self.down(F.gelu(self.up(x)))


@pytest.mark.slow
def test_norms_that_the_stream_reads_get_a_second_one_for_their_layers(monkeypatch):
    monkeypatch.setenv("FXQUANT_VERIFY", "1")
    model = PostNorm().eval()
    data = [torch.randn(8, 5, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    start = fxq.prepare(model, data[0])
    equalized = fxq.equalize(start, data, progress=False)
    assert equalized.equalization is not None
    rows = {row.sources: row for row in equalized.equalization.rows if row.sources != row.sinks}
    first = rows[("first_scaled",)]
    assert (first.sinks, first.outcome, first.scaled) == (("qkv",), "used", 16)
    assert first.before is not None
    assert first.after is not None
    assert first.after < 0.1 * first.before
    assert ("second_scaled",) in rows
    assert rows[("qkv",)].sinks == ("out",)
    graph = equalized.graph_module
    with torch.no_grad():
        expected = model(data[0])
        assert sqnr(expected, graph(data[0])) > 100
    for name in ("first", "second"):
        assert torch.equal(graph.get_submodule(name).weight, model.get_submodule(name).weight)
        used = rows[(f"{name}_scaled",)].outcome == "used"
        assert hasattr(graph, f"{name}_scaled") == used
    assert not hasattr(start.graph_module, "first_scaled")
    coverage = equalized.coverage()
    assert coverage.int8_macs == start.coverage().int8_macs == 1.0
    with pytest.warns(FxQuantWarning, match="one channel reaches so far beyond the others"):
        before = error(model, start, data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FxQuantWarning)  # the stream goes on having them
        assert error(model, equalized, data) < before
        int8, simulated = fxq.convert(equalized), fxq.convert(equalized, to="fake_quant")
        parity = measure_parity(int8, simulated, (data[0],))
    assert parity.breaches == ()
    again = fxq.equalize(fxq.prepare(model, data[0]), progress=False)
    assert again.equalization is not None
    assert not [row for row in again.equalization.rows if any("_scaled" in name for name in row.sources)]


class Queries(nn.Module):
    """Attention whose queries have two channels in each head that are thirty times as large, and its keys as small."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))
        with torch.no_grad():
            self.q.weight[::4] *= 30
            self.q.bias[::4] *= 30
            self.k.weight[::4] /= 30
            self.k.bias[::4] /= 30

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (2, 8)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@pytest.mark.slow
def test_queries_and_keys_are_scaled_head_by_head(monkeypatch):
    monkeypatch.setenv("FXQUANT_VERIFY", "1")
    model = Queries().eval()
    data = [torch.randn(8, 5, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    start = fxq.prepare(model, data[0])
    equalized = fxq.equalize(start, data, progress=False)
    row = next(row for row in equalized.equalization if row.sources == ("q",) and row.sinks)
    assert (row.sinks, row.channels, row.scaled, row.outcome) == (("k",), 16, 16, "used")
    assert row.after < 0.5 * row.before
    graph = equalized.graph_module
    ranges = [layer(torch.cat(data)).detach().abs().amax((0, 1)) for layer in (graph.q, graph.k)]
    assert torch.allclose(ranges[0] / ranges[1], (ranges[0] / ranges[1]).mean(), rtol=1e-3)
    with torch.no_grad():
        assert sqnr(model(data[0]), graph(data[0])) > 100
    with pytest.warns(FxQuantWarning, match="one channel reaches so far beyond the others"):
        before = error(model, start, data)
    assert error(model, equalized, data) < before
    blind = fxq.equalize(fxq.prepare(model, data[0]), progress=False).equalization
    assert "only data tells how large queries and keys are" in str(blind)


def test_smoothing_is_asked_for_by_name_and_needs_data():
    model, data = network(["relu6", "depthwise", "relu"], 4), [images(seed) for seed in range(2)]
    start = prepared(model)
    with pytest.raises(InputError, match="values are smoothed by what data shows of them"):
        fxq.equalize(start, method="smooth")
    smooth = fxq.equalize(start, data, method="smooth", keep_if=0.0, progress=False)
    assert smooth.equalization is not None
    for x in data:
        with torch.no_grad():
            expected = model(x)
            assert float((smooth.graph_module(x) - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


def test_it_is_seen_and_nothing_of_the_given_changes(monkeypatch):
    start = prepared(network(["relu"], 2))
    state = copy.deepcopy(start.graph_module.state_dict())
    monkeypatch.setenv("FXQUANT_VERIFY", "1")
    equalized = fxq.equalize(start, [images()], progress=False)
    passes = ["split_norms", "scale_channels", "scale_clamped_channels"]
    assert [each.name for each in equalized.snapshots[-3:]] == passes
    assert len(equalized.snapshots) == len(start.snapshots) + 3
    assert start.equalization is None
    assert all(torch.equal(value, state[name]) for name, value in start.graph_module.state_dict().items())
    assert (
        int(start.calibration_statistics.history.batches) == int(equalized.calibration_statistics.history.batches) == 0
    )
    text = str(equalized.equalization)
    assert text.splitlines()[0].split() == ["sources", "sinks", "channels", "scaled", "largest", "noise", "outcome"]
    assert "→" in text
    assert "<table>" in equalized.equalization._repr_html_()
    again = copy.deepcopy(equalized)
    assert again.equalization == equalized.equalization
    int8 = fxq.convert(fxq.calibrate(equalized, [images()], progress=False), check=images())
    assert int8(images()).shape == (4, 2)


def test_observations_are_dropped_and_that_is_said():
    start = fxq.calibrate(prepared(network(["relu"], 2)), [images()], progress=False)
    with pytest.warns(FxQuantWarning, match="what was observed before equalize does not count any more") as caught:
        equalized = fxq.equalize(start, progress=False)
    assert len(caught) == 1
    with pytest.raises(CalibrationError):
        fxq.convert(equalized)


def test_bad_input():
    start = prepared(network(["relu"], 2))
    with pytest.raises(UnknownNameError, match="unknown method of equalization"):
        fxq.equalize(start, method="smoth")
    for options, text in (
        ({"iterations": 0}, "iterations is no number of rounds"),
        ({"headroom": 0.5}, "headroom is out of range"),
        ({"keep_if": 1.0}, "keep_if is no part of the noise"),
    ):
        with pytest.raises(InputError, match=text):
            fxq.equalize(start, **options)
    exhausted = iter([images()])
    list(exhausted)
    for nothing in ([], exhausted):
        with pytest.raises(CalibrationError, match="there is no calibration data"):
            fxq.equalize(start, nothing)
    with pytest.raises(InputError, match="calibration batch 0") as refusal:
        fxq.equalize(start, [torch.randn(2, 5, 6, 6)], progress=False)
    assert "this batch does not run through the model" in str(refusal.value)
    training = fxq.prepare_qat(network(["relu"], 2).train(), images())
    for other in (training, fxq.convert(fxq.calibrate(copy.deepcopy(start), [images()], progress=False))):
        with pytest.raises(InputError, match="equalize takes what prepare gave"):
            fxq.equalize(other)


def test_a_weight_that_is_not_finite_is_named():
    model = network(["relu"], 2)
    start = prepared(model)
    with torch.no_grad():
        start.graph_module.get_submodule("2").weight[0, 0, 0, 0] = torch.nan
    with pytest.raises(CalibrationError, match="a weight holds values that are not finite\n  at:       2\n"):
        fxq.equalize(start, progress=False)


def test_learned_roundings_and_given_qparams_are_not_taken():
    data = [torch.randn(8, 4)]
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    learned = fxq.adaround(
        fxq.calibrate(prepared(model, data[0]), data, progress=False), data, iterations=2, progress=False
    )
    with pytest.raises(InputError, match="learned roundings, which are those of weights that are not scaled"):
        fxq.equalize(learned)


LEARNERS = {
    "gptq": (fxq.gptq, {"the integers of the weight of _1", "the integers of the weight of _2"}),
    "correct_statistics": (fxq.correct_statistics, {"the integers of the weight of _1", "the bias of _1"}),
    "reconstruct": (
        functools.partial(fxq.reconstruct, iterations=3, steps=True),
        {"the bias of _1", "the scale of _1"},
    ),
}


@pytest.mark.parametrize("learner", one_of(len(LEARNERS), LEARNERS))
def test_what_would_be_lost_is_named_from_files_too(learner, tmp_path):
    data = [torch.randn(16, 4, generator=torch.Generator().manual_seed(0))]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    qconfig = fxq.low_bit_qconfig(3, 4, ends=None)
    learn, named = LEARNERS[learner]
    start = fxq.calibrate(prepared(model, data[0], qconfig), data, progress=False)
    learned = learn(start, data, progress=False)
    fxq.save(learned, tmp_path / "learned.fxq")
    without_tables = copy.copy(learned)
    without_tables.reconstruction = without_tables.corrected_statistics = None
    for each in (learned, fxq.load(tmp_path / "learned.fxq"), pickle.loads(pickle.dumps(learned)), without_tables):
        with pytest.raises(InputError, match="these would be lost:") as caught:
            fxq.equalize(each, data, progress=False)
        assert named <= {line.strip() for line in str(caught.value).splitlines()}
        assert "hint:     prepare the model again, equalize first" in str(caught.value)
    # The hint, followed.
    scaled = fxq.equalize(prepared(model, data[0], qconfig), data, progress=False)
    again = learn(fxq.calibrate(scaled, data, progress=False), data, progress=False)
    assert bool(fxq.convert(again)(data[0]).isfinite().all())


def test_scales_that_were_learned_without_roundings_count():
    data = [torch.randn(16, 4, generator=torch.Generator().manual_seed(0))]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    start = fxq.calibrate(prepared(model, data[0]), data, progress=False)
    start.learned_qparams = {ref: start.observers[ref.name].qparams() for ref in [TensorRef("_1")]}
    with pytest.raises(InputError, match="the scale of _1"):
        fxq.equalize(start, data, progress=False)


def test_roundings_that_were_not_learned_yet_are_made_anew(tmp_path):
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    weight = fxq.AdaRoundFakeQuantize.with_args(observer=PER_TENSOR)
    qconfig = fxq.QConfig(activation=fxq.MinMaxObserver, weight=weight)
    start = prepared(model, x, qconfig)
    fxq.save(fxq.calibrate(start, [x], progress=False), tmp_path / "start.fxq")
    for each in (prepared(model, x, qconfig), fxq.load(tmp_path / "start.fxq")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FxQuantWarning)  # what was observed does not count
            assert len(fxq.equalize(each, progress=False).weight_layers) == 2
    layer = start.weight_layers["_2"]
    with torch.no_grad():
        layer.weight_fake_quant.V.neg_()
    with pytest.raises(InputError, match=r"lost:\n *the integers of the weight of _2\n"):
        fxq.equalize(start, progress=False)


def test_no_region_and_no_example():
    alone = fxq.equalize(prepared(nn.Sequential(nn.Linear(4, 2)).eval(), torch.randn(2, 4)), progress=False)
    assert alone.equalization is not None
    assert [row.outcome for row in alone.equalization] == [
        "it is an input of the model",
        "it is an output of the model",
    ]
    blind = fxq.equalize(fxq.prepare(network(["relu"], 2), None, QCONFIG), progress=False)
    assert "without example inputs the shapes of values are not known" in str(blind.equalization)
    none = fxq.QConfigMapping().set_global(QCONFIG).set_module_name("0", None).set_module_name("2", None)
    floats = fxq.equalize(prepared(network(["relu"], 2), qconfig=none), progress=False)
    assert floats.equalization is not None
    assert floats.equalization.rows[1].outcome == "no weight that is quantized makes or reads it"


def test_it_trains_and_is_saved(tmp_path):
    equalized = fxq.equalize(prepared(network(["norm", "relu"], 2)), progress=False)
    fxq.calibrate(equalized, [images()], progress=False)
    expected = fxq.convert(equalized)(images())
    fxq.save(equalized, tmp_path / "equalized.fxq")
    assert torch.equal(fxq.convert(fxq.load(tmp_path / "equalized.fxq"))(images()), expected)


def test_progress(capsys):
    fxq.equalize(prepared(network(["relu"], 2)), [images()])
    assert "equalize: 100%" in capsys.readouterr().err
