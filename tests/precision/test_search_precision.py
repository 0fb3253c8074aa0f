"""The search from end to end on small nets: what is found is what ``prepare`` makes of it, and no choice is better."""

from __future__ import annotations

import itertools
import json
import math
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import CalibrationError, FxQuantWarning, InputError, UnknownNameError
from fxquant.measure.noise import sqnr
from fxquant.precision import estimates, knapsack
from fxquant.precision.group_runs import GroupRuns
from fxquant.precision.options import LARGEST

QCONFIG = fxq.QConfig(
    activation=fxq.MinMaxObserver,
    weight=fxq.PerChannelMinMaxObserver.with_args(dtype=torch.int8, qscheme="per_channel_symmetric", ch_axis=0),
    correct_bias=True,
)
WIDE = fxq.Budget(size="1MB", bitops="1Gbitops", activations="1MB")
WITH_FLOAT = fxq.Budget(size="1.8kB", bitops="30Mbitops", activations="50kB")
NAMES = ["W4A4", "W4A8", "W8A8"]


def images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return values of 12 features in 4 classes, which overlap."""
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(4, 12, generator=torch.Generator().manual_seed(9))
    labels = torch.randint(0, 4, (count,), generator=generator)
    return centers[labels] + 0.9 * torch.randn(count, 12, generator=generator), labels


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    x, labels = images(512, 1)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), labels).backward()
        optimizer.step()
    return net.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def data() -> list[tuple[Tensor, Tensor]]:
    x, labels = images(192, 2)
    return list(zip(x.split(64), labels.split(64), strict=True))


@pytest.fixture(scope="module")
def prepared(model, data) -> fxq.Quantizer:
    return calibrated(model, data)


@pytest.fixture(scope="module")
def found(prepared, data) -> fxq.PrecisionSearch:
    return searched(prepared, data)


def calibrated(model: nn.Module, data: Any, mapping: Any = QCONFIG, backend: str = "cpu") -> fxq.Quantizer:
    return fxq.calibrate(fxq.prepare(model, data[0][0], mapping, backend=backend), data, progress=False)


def searched(prepared: Any, data: Any, **arguments: Any) -> fxq.PrecisionSearch:
    if not {"budget", "max_drop"} & {*arguments}:
        arguments["budget"] = fxq.Budget(size=0.6)
    return fxq.search_precision(prepared, data, **{"candidates": NAMES, "progress": False, **arguments})


def right(output: Tensor, target: Tensor) -> Tensor:
    return 100 * (output.argmax(1) == target).float().mean()


def measured(model: nn.Module, data: Any, mapping: Any) -> float:
    """Return the SQNR in dB of what ``prepare`` makes of a mapping."""
    simulated = fxq.convert(calibrated(model, data, mapping), to="fake_quant")
    x = torch.cat([batch for batch, _ in data])
    return sqnr(model(x), torch.cat([simulated(batch) for batch, _ in data]))


class TestBudget:
    def test_the_mapping_is_what_was_measured(self, model, prepared, data):
        for budget in (fxq.Budget(size=0.7), fxq.Budget(bitops=0.4)):
            found = searched(prepared, data, budget=budget)
            assert measured(model, data, found.mapping()) == pytest.approx(found.measured, abs=1e-3)

    def test_what_was_found_can_be_learned(self, model, data):
        """The bits of a search are those that ``reconstruct`` learns with, and it is no worse for it."""
        names = ["W3A4", "W4A8", "W8A8"]
        start = calibrated(model, data, fxq.low_bit_qconfig(8, 8), backend="reference")
        found = searched(start, data, budget=fxq.Budget(size=0.5, activations=0.7), candidates=names)
        mixed = calibrated(model, data, found.mapping(), backend="reference")
        learned = fxq.reconstruct(mixed, data, iterations=60, progress=False)
        bits = {row.unit: row.choice for row in found}
        assert {*bits.values()} > {"W3A4"}
        for root, layer in learned.weight_layers.items():
            assert f"W{layer.weight_fake_quant.qparams().scheme.bits}" == bits[root][:2]
        of_four_bits = {"input_1", *(root for root, name in bits.items() if name == "W3A4")}
        assert {ref.name for ref in learned.learned_qparams} <= of_four_bits
        x = torch.cat([batch for batch, _ in data])
        before, after = (sqnr(model(x), fxq.convert(each, to="fake_quant")(x)) for each in (mixed, learned))
        assert after > before

    def test_fake_quantize_modules_of_training_get_fewer_bits(self, model, data):
        found = searched(calibrated(model, data, fxq.get_lsq_qconfig()), data, candidates=["W4A8", "W8A8"])
        assert found.excluded == ()
        assert measured(model, data, found.mapping()) == pytest.approx(found.measured, abs=1e-3)
        fxq.prepare_qat(model, data[0][0], found.mapping())

    def test_the_mapping_of_a_search_with_float_is_no_worse_than_measured(self, model, prepared, data):
        """``prepare`` lets a unit whose result only float operators read give float values; the search rounds it."""
        found = searched(prepared, data, candidates=["W4A4", "float"], budget=WITH_FLOAT)
        assert {row.choice for row in found} == {"W4A4", "float"}
        assert found.measured - 0.1 <= measured(model, data, found.mapping()) <= found.measured + 3

    def test_no_choice_within_the_budget_is_better(self, model, prepared, data):
        """All 27 points by hand, each prepared, calibrated and run."""
        budget = fxq.Budget(bitops=0.4)
        found = searched(prepared, data, budget=budget)
        limit = budget.limit("bitops", found.all_at_8)
        macs = {"0": 12 * 32 * 64, "2": 32 * 16 * 64, "4": 16 * 4 * 64}
        best = -math.inf
        for bits in itertools.product([(4, 4), (4, 8), (8, 8)], repeat=3):
            if sum(count * w * a for count, (w, a) in zip(macs.values(), bits, strict=True)) > limit:
                continue
            mapping = fxq.QConfigMapping().set_global(QCONFIG)
            for name, (weight, activation) in zip(macs, bits, strict=True):
                mapping.set_module_name(name, of_bits(weight, activation))
            best = max(best, measured(model, data, mapping))
        assert found.point.cost.bitops <= limit
        assert found.measured >= best - 0.5  # noise adds up to within half a decibel here

    def test_half_the_bytes_cost_little(self, model, prepared, data):
        found = searched(prepared, data, budget=fxq.Budget(size=0.55), metric=right, against="target")
        assert found.point.cost.size <= 0.55 * found.all_at_8.size
        assert found.all_at_8.size == 12 * 32 + 32 * 16 + 16 * 4
        assert found.drop is not None
        assert found.drop <= 1.5
        low, high = found.interval
        assert low <= found.drop <= high
        assert abs(found.predicted - found.measured) < 3

    def test_two_budgets_hold_at_once(self, prepared, data):
        found = searched(prepared, data, budget=fxq.Budget(size=0.9, bitops=0.3))
        assert found.point.cost.size <= 0.9 * found.all_at_8.size
        assert found.point.cost.bitops <= 0.3 * found.all_at_8.bitops

    def test_what_is_not_named_stays_within_all_at_8(self, prepared, data):
        found = searched(prepared, data, candidates=["W4A16", "W8A8"], budget=fxq.Budget(size=1.0))
        assert {row.choice for row in found} == {"W8A8"}

    def test_the_front_goes_from_cheap_to_good(self, found):
        front = found.pareto
        assert 2 < len(front) <= 3 * 2 + 1
        assert [point.part for point in front] == sorted(point.part for point in front)
        assert [point.noise for point in front] == sorted((point.noise for point in front), reverse=True)
        assert front[-1].choices == ("W8A8",) * 3

    def test_any_point_of_the_front_has_a_mapping(self, model, found, data):
        assert found.mapping(-1) == found.config  # all at 8 bits, as they were
        assert found.mapping(0) == found.mapping(found.pareto[0])
        mixed = fxq.prepare(model, data[0][0], found.mapping(0))
        weights = [policy for ref, policy in mixed.plan.policies.items() if ref.kind == "parameter"]
        assert [policy.observer().scheme.bits for policy in weights] == [4, 4, 4]
        with pytest.raises(InputError, match="this is no point of the search"):
            found.mapping(99)

    def test_it_converts_to_int8_with_the_bits_of_the_simulation(self, model, found, data):
        mixed = calibrated(model, data, found.mapping())
        int8 = fxq.convert(mixed, check=data[0][0])
        assert not int8.parity.breaches

    def test_nothing_outside_changes(self, prepared, found, data):
        before, state = {k: v.clone() for k, v in prepared.state_dict().items()}, torch.get_rng_state()
        plan = prepared.plan
        again = searched(prepared, iter(data))
        assert prepared.plan is plan
        assert all(torch.equal(value, before[key]) for key, value in prepared.state_dict().items())
        assert torch.equal(torch.get_rng_state(), state)
        assert again == found

    def test_noise_that_does_not_add_up_is_estimated_anew(self, model, prepared, data, monkeypatch):
        plain = searched(prepared, data, budget=fxq.Budget(bitops=0.3))
        original = GroupRuns.run

        def ten_times(self: GroupRuns, bound: Any) -> Any:
            for place, output in original(self, bound):
                yield place, self.whole(bound, rounded=False) + 3 * (output - self.whole(bound, rounded=False))

        monkeypatch.setattr(GroupRuns, "run", lambda self, bound: (ten_times if self._alone else original)(self, bound))
        found = searched(prepared, data, budget=fxq.Budget(bitops=0.3))
        assert found.corrected
        assert not plain.corrected
        assert abs(found.predicted - found.measured) < 3
        assert "it was estimated anew around the point" in str(found)

    def test_without_any_noise_nothing_is_estimated_anew(self, prepared, data):
        found = searched(prepared, data, candidates=["W8A8", "float"], budget=WIDE)
        assert {row.choice for row in found} == {"float"}
        assert found.predicted == found.measured == math.inf
        assert not found.corrected
        assert "estimated anew" not in str(found)

    def test_an_empty_batch_is_left_out_with_its_target(self, prepared, data):
        empty = (data[0][0][:0], data[0][1][:0])
        with_empty = [empty, data[0], empty, *data[1:]]
        plain = searched(prepared, data, metric=right, against="target")
        assert searched(prepared, with_empty, metric=right, against="target") == plain

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_gradients_leave_out_outputs_that_are_not_finite(self, prepared, data, value):
        """As many as ``estimate="alone"`` leaves out: one row of the first batch."""
        broken = data[0][0].clone()
        broken[3, 2] = value
        rest = (torch.cat([data[0][0][:3], data[0][0][4:]]), torch.cat([data[0][1][:3], data[0][1][4:]]))
        found = searched(prepared, [(broken, data[0][1]), *data[1:]], estimate="gradient")
        plain = searched(prepared, [rest, *data[1:]], estimate="gradient")
        assert len(found.pareto) > 2
        assert all(math.isfinite(row.noise) for row in found)
        assert abs(found.pareto[0].sqnr - plain.pareto[0].sqnr) < 1.5  # other directions are drawn

    def test_by_gradients_it_finds_about_the_same(self, prepared, found, data):
        gradient = searched(prepared, data, estimate="gradient")
        assert abs(found.pareto[0].sqnr - gradient.pareto[0].sqnr) < 3
        assert gradient.measured >= found.measured - 1.5


def of_bits(weight: int, activation: int) -> fxq.QConfig:
    values = (
        QCONFIG.weight
        if weight == 8
        else fxq.MSEObserver.with_args(dtype=torch.int8, qscheme="per_channel_symmetric", ch_axis=0, bits=weight)
    )
    return fxq.QConfig(activation=fxq.MinMaxObserver.with_args(bits=activation), weight=values, correct_bias=True)


class TestMaxDrop:
    def test_the_cheapest_point_that_keeps_to_it(self, prepared, data):
        found = searched(prepared, data, max_drop=4.0, metric=right, against="target")
        assert found.reached
        assert found.drop is not None
        assert found.drop <= 4.0
        assert found.point.part < found.pareto[-1].part

    def test_where_much_is_allowed_it_is_the_cheapest(self, prepared, found, data):
        cheapest = searched(prepared, data, max_drop=50.0, metric=right, against="target")
        assert cheapest.point.choices == found.pareto[0].choices
        assert cheapest.decided
        assert "cannot tell" not in str(cheapest)

    def test_few_items_cannot_tell(self, prepared, data):
        found = searched(prepared, data[:1], max_drop=1.0, metric=right, against="target")
        assert not found.decided
        assert "64 items cannot tell whether the drop is above 1: about" in str(found)

    def test_what_cannot_be_reached_is_the_best_point_and_said_once(self, prepared, data):
        candidates = ["W2A2", "W2A3"]
        with pytest.warns(FxQuantWarning, match="no point that can be chosen keeps to max_drop") as caught:
            found = searched(prepared, data, candidates=candidates, max_drop=0.5, metric=right, against="target")
        assert len(caught) == 1
        assert not found.reached
        assert found.drop > 0.5
        assert "max_drop=0.5 was not reached" in str(found)

    def test_a_metric_that_is_no_mean_over_items_counts_by_batches(self, prepared, data):
        def spread(output: Tensor, target: Tensor) -> float:
            return float(output.std())

        found = searched(prepared, data, metric=spread)
        assert -math.inf < found.interval[0] < found.interval[1] < math.inf

    def test_a_metric_that_is_better_where_it_is_lower(self, prepared, data):
        def wrong(output: Tensor, target: Tensor) -> Tensor:
            return 100 - right(output, target)

        found = searched(prepared, data, metric=wrong, against="target", higher_is_better=False)
        same = searched(prepared, data, metric=right, against="target")
        assert (found.drop, found.interval) == (pytest.approx(same.drop), pytest.approx(same.interval))


class TestCheckpoint:
    def test_an_interrupted_run_ends_with_the_same_bits(self, prepared, found, data, tmp_path, monkeypatch):
        interrupt(monkeypatch, after=4)
        assert searched(prepared, data, checkpoint=tmp_path).rows != ()
        monkeypatch.undo()
        ran: list[int] = []
        count(monkeypatch, ran)
        resumed = searched(prepared, data, checkpoint=tmp_path)
        assert resumed == found
        assert 0 < len(ran) < 6

    def test_an_interrupt_gives_what_is_known(self, prepared, data, monkeypatch):
        interrupt(monkeypatch, after=1)
        found = searched(prepared, data)
        assert len(found.missing) == 6
        assert "interrupted: 6 choices were not measured: each bit more is taken to quarter their noise" in str(found)
        assert {row.choice for row in found} != {"W4A4"}
        assert found.point.cost.size == 512  # W4A8, and 8 bits for the smallest layer: the most below 576
        assert all(math.isnan(row.noise) == (row.choice != "W4A4") for row in found)
        monkeypatch.undo()
        interrupt(monkeypatch, after=1)
        assert {row.choice for row in searched(prepared, data, budget=fxq.Budget(size=1.0))} == {"W8A8"}
        monkeypatch.undo()
        interrupt(monkeypatch, after=0)
        with pytest.raises(KeyboardInterrupt):
            searched(prepared, data)

    def test_another_run_is_refused(self, model, prepared, data, tmp_path):
        searched(prepared, data, checkpoint=tmp_path)
        with pytest.raises(InputError, match="the checkpoint is of another run: choices differ"):
            searched(prepared, data, checkpoint=tmp_path, candidates=["W4A8", "W8A8"])
        with pytest.raises(InputError, match="the checkpoint is of another run: data differ"):
            searched(prepared, data[:2], checkpoint=tmp_path)

    def test_another_back_end_is_refused(self, model, prepared, data, tmp_path):
        searched(prepared, data, checkpoint=tmp_path)
        with pytest.raises(InputError, match="the checkpoint is of another run: backend differ"):
            searched(calibrated(model, data, backend="reference"), data, checkpoint=tmp_path)

    def test_other_observers_of_weights_are_refused(self, model, prepared, data, tmp_path):
        searched(prepared, data, checkpoint=tmp_path)
        weight = fxq.MSEObserver.with_args(dtype=torch.int8, qscheme="per_channel_symmetric", ch_axis=0)
        other = calibrated(model, data, fxq.QConfig(activation=fxq.MinMaxObserver, weight=weight, correct_bias=True))
        with pytest.raises(InputError, match="the checkpoint is of another run: configuration differ"):
            searched(other, data, checkpoint=tmp_path)

    def test_observers_made_by_functions_go_on_whatever_their_address(self, model, data, tmp_path):
        def once() -> fxq.PrecisionSearch:
            qconfig = fxq.QConfig(activation=lambda: fxq.MinMaxObserver(), weight=lambda: QCONFIG.weight())
            candidates = ["W8A8", "float"]
            return searched(
                calibrated(model, data[:1], qconfig), data[:1], candidates=candidates, budget=WIDE, checkpoint=tmp_path
            )

        assert once().rows == once().rows


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Press Ctrl-C once some choices were measured on a batch."""
    done = [0]
    original = estimates.Estimates._measured

    def measure(self: Any, *args: Any) -> Any:
        if done[0] == after:
            raise KeyboardInterrupt
        done[0] += 1
        return original(self, *args)

    monkeypatch.setattr(estimates.Estimates, "_measured", measure)


def count(monkeypatch: pytest.MonkeyPatch, ran: list[int]) -> None:
    original = estimates.Estimates._measured
    monkeypatch.setattr(estimates.Estimates, "_measured", lambda self, *a: ran.append(1) or original(self, *a))


class TestLatency:
    def table(self, prepared: fxq.Quantizer) -> dict[str, dict[str, float]]:
        seconds = [(1e-4, 3e-4), (2e-4, 6e-4), (1e-4, 2e-4)]
        units = [unit.root for unit in prepared.plan.units]
        return {root: {"int8": each[0], "float": each[1]} for root, each in zip(units, seconds, strict=True)}

    def test_given_seconds(self, prepared, data, tmp_path):
        budget, candidates = fxq.Budget(latency="0.9ms"), ["W8A8", "float"]
        path = tmp_path / "latencies.json"
        path.write_text(json.dumps(self.table(prepared)))
        first = searched(prepared, data, budget=budget, candidates=candidates, latencies=self.table(prepared))
        second = searched(prepared, data, budget=budget, candidates=candidates, latencies=str(path))
        assert first == second
        assert first.all_at_8.latency == pytest.approx(4e-4)
        assert 4e-4 <= first.point.cost.latency <= 9e-4

    def test_fewer_bits_are_no_hint_for_seconds(self, prepared, data):
        with pytest.raises(InputError) as caught:
            searched(prepared, data, budget=fxq.Budget(latency=0.9), latencies=self.table(prepared))
        assert "fewer bits lowers" not in str(caught.value)
        assert "takes as long with fewer bits" in str(caught.value).splitlines()[-1]

    def test_parts_of_a_nanosecond_do_not_add_up(self, prepared, data):
        table = {root: {"int8": 1.0006e-6, "float": 2e-6} for root in self.table(prepared)}
        found = searched(prepared, data, budget=fxq.Budget(latency=1.0), latencies=table)
        assert found.point.cost.latency == pytest.approx(3.0018e-6)

    def test_measured_once_into_the_folder(self, prepared, data, tmp_path):
        budget = fxq.Budget(latency=1.0)
        first = searched(prepared, data, budget=budget, checkpoint=tmp_path)
        stored = json.loads((tmp_path / "latencies.json").read_text())
        assert {*stored} == {unit.root for unit in prepared.plan.units}
        assert searched(prepared, data, budget=budget, checkpoint=tmp_path) == first

    def test_a_back_end_without_operators(self, model, data):
        simulated = calibrated(model, data, backend="reference")
        with pytest.raises(InputError, match="backend 'reference' has no operators whose latency could be measured"):
            searched(simulated, data, budget=fxq.Budget(latency=0.9))

    @pytest.mark.parametrize(
        ("change", "what"),
        [
            (lambda table: table.popitem(), "latencies lacks units"),
            (lambda table: table.update(other={"int8": 1.0, "float": 1.0}), "latencies has unknown units"),
            (lambda table: table.update({next(iter(table)): {"int8": 1.0}}), "latencies has rows without seconds"),
        ],
    )
    def test_a_wrong_table(self, prepared, data, change, what):
        table = self.table(prepared)
        change(table)
        with pytest.raises(InputError, match=what):
            searched(prepared, data, latencies=table)


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "got"),
        [({}, "neither"), ({"budget": fxq.Budget(size=0.5), "max_drop": 1.0, "metric": right}, "both")],
    )
    def test_both_or_neither_of_budget_and_max_drop(self, prepared, data, arguments, got):
        with pytest.raises(InputError) as caught:
            fxq.search_precision(prepared, data, **arguments)
        assert str(caught.value).splitlines() == [
            "exactly one of budget and max_drop is given",
            f"  got:      {got}",
            "  expected: budget=Budget(size=0.5), or max_drop=0.5 with a metric",
            "  hint:     the whole front is in .pareto, whichever is given",
        ]

    def test_a_budget_below_the_least_names_the_least(self, prepared, data):
        with pytest.raises(InputError) as caught:
            searched(prepared, data, budget=fxq.Budget(size=0.3))
        lines = str(caught.value).splitlines()
        assert lines[:2] == ["the budget cannot be reached", "  got:      size=0.3"]
        assert lines[2] == "  expected: size: at least 480 B (0.5 of all at 8 bits)"

    def test_a_budget_below_the_least_names_the_candidates_left_out(self, prepared, data):
        with pytest.raises(InputError, match="the budget cannot be reached") as caught:
            searched(prepared, data, candidates=["W4A16", "W8A8"], budget=fxq.Budget(size=0.7))
        assert "W4A16 is left out for 3 of 3 groups: backend 'cpu': " in str(caught.value).splitlines()[-1]

    @pytest.mark.parametrize("estimate", ["alone", "gradient"])
    def test_an_output_without_a_finite_value(self, prepared, data, estimate):
        with pytest.raises(InputError, match="the model's output holds no finite values"):
            searched(prepared, [data[0][0] * math.nan], candidates=["W4A8", "W8A8"], estimate=estimate)

    def test_gradients_that_are_not_finite(self, data):
        class Root(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.fc = nn.Linear(12, 4)

            def forward(self, x: Tensor) -> Tensor:
                return torch.sqrt(torch.relu(self.fc(x)))

        prepared = calibrated(Root().eval(), data)
        with pytest.raises(InputError, match="the gradients of the output are not finite") as caught:
            searched(prepared, data, estimate="gradient")
        assert 'estimate="alone"' in str(caught.value).splitlines()[-1]
        assert searched(prepared, data).rows

    def test_a_model_that_is_no_quantizer(self, model, data):
        with pytest.raises(InputError, match="search_precision takes what prepare gave"):
            searched(model, data)
        with pytest.raises(InputError, match="search_precision takes what prepare gave"):
            searched(fxq.prepare_qat(model, data[0][0]), data)

    def test_learned_roundings(self, prepared, data):
        learned = fxq.adaround(prepared, data[:1], iterations=1, progress=False)
        with pytest.raises(InputError, match="search_precision takes what prepare and calibrate gave") as caught:
            searched(learned, data)
        assert "a Quantizer with learned roundings, which are those of other bits" in str(caught.value)

    def test_learned_scales_are_named_and_not_lost(self, model, data):
        start = calibrated(model, data, fxq.low_bit_qconfig(4, 4, ends=None))
        learned = fxq.reconstruct(start, data[:1], iterations=2, steps=True, progress=False)
        with pytest.raises(InputError, match="learned roundings and scales, which are those of other bits"):
            searched(learned, data)
        for name in list(learned.weight_layers):
            del learned.weight_layers[name]
        with pytest.raises(InputError, match="with learned scales, which are those of other bits") as caught:
            searched(learned, data)
        assert "these would be lost:\n            the scale of " in str(caught.value)

    def test_no_calibration(self, model, data):
        with pytest.raises(CalibrationError, match="values have no range"):
            searched(fxq.prepare(model, data[0][0], QCONFIG), data)

    def test_no_data(self, prepared, data):
        exhausted = iter(data)
        list(exhausted)
        for nothing in ([], exhausted):
            with pytest.raises(CalibrationError, match="there is no data to search on"):
                searched(prepared, nothing)

    def test_data_of_another_kind(self, prepared, data):
        with pytest.raises(InputError, match="calibration data must be an iterable of batches"):
            searched(prepared, data[0][0])
        with pytest.raises(InputError, match="batch 0: this batch does not run through the model"):
            searched(prepared, [torch.zeros(4, 5)])

    def test_labels_that_are_missing(self, prepared, data):
        with pytest.raises(InputError, match="batch 0 holds no target"):
            searched(prepared, [data[0][0]], metric=right, against="target")

    def test_a_candidate_that_is_unknown(self, prepared, data):
        with pytest.raises(UnknownNameError, match="unknown candidate"):
            searched(prepared, data, candidates=["W8A8", "fp8"])

    def test_a_candidate_that_the_back_end_lacks_is_left_out_and_named(self, model, prepared, data):
        found = searched(prepared, data, candidates=["int16", "W8A8", "W4A8"])
        assert {each.choice for each in found.excluded} == {"int16"}
        assert len(found.excluded) == 3
        assert "int16 is left out for 3 of 3 groups: backend 'cpu': 16 bit activations do not fit a byte" in str(found)
        with pytest.raises(InputError, match="no candidate can be run here"):
            searched(prepared, data, candidates=["int16", "W8A16"])
        simulated = calibrated(model, data, backend="reference")
        assert not searched(simulated, data, candidates=["W8A8", "int16"], budget=fxq.Budget(size="2kB")).excluded

    @pytest.mark.parametrize(
        ("metric", "what"),
        [
            (lambda output, target: float("nan"), "batch 0: metric gave a value that is not finite"),
            (lambda output, target: output.argmax(1) == target.argmax(1), "batch 0: metric gave a tensor"),
            (lambda output, target: "good", "batch 0: metric gave no number"),
            (lambda output, target: 1.5, "batch 0: metric gave the same value for any output"),
        ],
    )
    def test_a_metric_that_is_none(self, prepared, data, metric, what):
        with pytest.raises(InputError) as caught:
            searched(prepared, data, max_drop=1.0, metric=metric)
        lines = str(caught.value).splitlines()
        assert lines[0] == what
        assert lines[1].startswith("  got:      ")

    def test_max_drop_without_a_metric(self, prepared, data):
        with pytest.raises(InputError, match="max_drop needs a metric"):
            searched(prepared, data, max_drop=1.0)

    @pytest.mark.parametrize(
        ("argument", "value", "error"),
        [
            ("max_drop", -1.0, InputError),
            ("max_drop", float("nan"), InputError),
            ("confidence", 1.0, InputError),
            ("estimate", "hessian", UnknownNameError),
            ("against", "labels", UnknownNameError),
            ("metric", 3, InputError),
            ("budget", 0.5, InputError),
            ("seed", 1.5, InputError),
        ],
    )
    def test_arguments(self, prepared, data, argument, value, error):
        arguments = {"metric": right, "max_drop": 1.0, argument: value}
        if argument == "budget":
            del arguments["max_drop"]
        with pytest.raises(error):
            searched(prepared, data, **arguments)

    def test_a_model_that_gives_classes(self, data):
        class Classes(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.fc = nn.Linear(12, 4)

            def forward(self, x: Tensor) -> Tensor:
                return self.fc(x).argmax(1)

        prepared = calibrated(Classes().eval(), data)
        with pytest.raises(InputError, match="the model's output holds no float values"):
            searched(prepared, data)


class Quotient(nn.Module):
    """A divisor of little range: with few bits of what is read it is rounded to 0."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.divisor = nn.Linear(8, 32), nn.Linear(32, 8), nn.Linear(8, 8)
        self.behind = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        divisor = nn.functional.hardtanh(self.divisor(x), 0.05, 100.0)
        return self.behind(divisor) * 0.01 + self.last(torch.relu(self.first(x))) / divisor


def test_a_choice_whose_output_is_not_finite_leaves_the_others_as_they_are():
    """Only one of the two batches is not finite there."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Quotient().eval().requires_grad_(False)
    model.divisor.bias.add_(1.0)
    batches = [(torch.randn(128, 8, generator=torch.Generator().manual_seed(0)),), (torch.ones(4, 8),)]
    prepared = fxq.calibrate(fxq.prepare(model, batches[0]), batches, progress=False)

    def chosen(*candidates: str) -> fxq.PrecisionSearch:
        return searched(prepared, batches, budget=fxq.Budget(size=0.8), candidates=candidates)

    plain, found, forced = chosen("W4A8", "W8A8"), chosen("W4A8", "W8A8", "W8A2"), chosen("W4A2", "W8A2")
    assert [row.weight for row in found.rows] == [row.weight for row in plain.rows] == [8, 8, 4]
    assert found.rows[0].choice == "W8A8"
    assert found.predicted == pytest.approx(plain.predicted)
    assert found.gap == 0
    # Where all choices of one group are so, the noise of the others decides still.
    assert forced.rows[0].noise == LARGEST
    assert [row.choice for row in forced.rows] == ["W4A2", "W8A2", "W8A2"]


def test_a_unit_in_float_by_the_configuration_stays_float(model, data):
    mapping = fxq.QConfigMapping().set_global(QCONFIG).set_module_name("2", None)
    found = searched(calibrated(model, data, mapping), data, candidates=["W4A8", "W8A8"])
    assert [row.name for row in found] == ["0", "3", "4"]  # 3 is the ReLU behind it
    again = fxq.prepare(model, data[0][0], found.mapping())
    assert "2" in {row.module for row in again.coverage().float_rows}


def test_the_table_as_text_and_as_html(found):
    text, page = str(found), found._repr_html_()
    assert text.splitlines()[0].split() == ["layers", "choice", "weight", "result", "noise", "size", "bitops"]
    assert "found: size" in text
    assert "SQNR predicted" in text
    assert f"front, {len(found.pareto)} points:" in text
    assert page.startswith("<table>")
    assert len(found) == 3


def test_a_gap_is_said(prepared, data, monkeypatch):
    real = knapsack.solve
    monkeypatch.setattr("fxquant.precision.options.solve", lambda *args: knapsack.Solution(real(*args).chosen, 0.25))
    assert "the search was cut short: a point of the budget may have 0.25 less noise" in str(searched(prepared, data))


def test_ranks_compare_arguments_without_addresses(prepared, data, monkeypatch):
    module = sys.modules["fxquant.precision.search_precision"]
    compared: list[dict[str, str]] = []
    monkeypatch.setattr(module, "compare_in_ranks", lambda _, facts: compared.append(dict(facts())))
    for other in (lambda: fxq.MinMaxObserver(), lambda: fxq.MinMaxObserver()):
        candidates = {"own": fxq.QConfig(activation=other, weight=QCONFIG.weight), "int8": QCONFIG}
        fxq.search_precision(
            prepared, data, budget=WIDE, candidates=candidates, estimate="gradient", num_batches=1, progress=False
        )
    assert compared[0] == compared[1]
    assert "<lambda>" in compared[0]["set of arguments"]
