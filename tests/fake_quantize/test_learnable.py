"""``LearnableFakeQuantize``: its three states, its parameters, its gradients, how it begins."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from fxquant.errors import SpecError
from fxquant.fake_quantize import LearnableFakeQuantize, _LearnableFakeQuantize
from fxquant.observers import MovingAverageMinMaxObserver, PerChannelMinMaxObserver

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def weights(**arguments: object) -> LearnableFakeQuantize:
    return LearnableFakeQuantize(
        PerChannelMinMaxObserver,
        quant_min=-8,
        quant_max=7,
        channel_len=4,
        dtype=torch.int8,
        qscheme="per_channel_symmetric",
        **arguments,
    )


def test_names_defaults_and_state() -> None:
    module = LearnableFakeQuantize()
    assert _LearnableFakeQuantize is LearnableFakeQuantize
    assert {"scale", "zero_point", "fake_quant_enabled", "static_enabled", "learning_enabled", "eps"} <= set(
        module.state_dict()
    )
    assert [module.fake_quant_enabled.item(), module.static_enabled.item(), module.learning_enabled.item()] == [1, 1, 0]
    assert module.bitwidth == 8
    assert isinstance(module.scale, torch.nn.Parameter)


def test_the_observer_estimates_at_first() -> None:
    module = LearnableFakeQuantize(MovingAverageMinMaxObserver, averaging_constant=1.0)
    module(X)
    scale, zero_point = module.calculate_qparams()
    expected = module.activation_post_process.calculate_qparams()
    assert torch.equal(scale, expected[0])
    assert zero_point.dtype == torch.int64
    assert zero_point.item() == expected[1].item()
    assert not module.scale.requires_grad


def test_a_module_that_is_called_twice_before_the_gradients_keeps_the_grid_of_each_call() -> None:
    module = LearnableFakeQuantize(averaging_constant=1.0, dtype=torch.uint8)
    x = torch.tensor([-1.0, 0.0, 1.0], requires_grad=True)
    first = module(x)
    module(0.01 * x)  # on this grid, both ends of the first batch would be clipped
    first.backward(torch.ones(3))
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 1.0, 1.0]


def test_the_grid_is_float32_whatever_dtype_torch_makes_by_default(float64_by_default) -> None:
    module = LearnableFakeQuantize()
    assert (module.scale.dtype, module.zero_point.dtype) == (torch.float32, torch.float32)


def test_static_observation_measures_and_passes_values_on() -> None:
    module = LearnableFakeQuantize()
    module.enable_static_observation()
    assert torch.equal(module(X), X)
    assert module.activation_post_process.max_val.item() == X.max().item()


def test_learning_moves_the_grid_and_rests_the_observer() -> None:
    module = weights()
    module(X)
    module.enable_param_learning()
    before = module.scale.detach().clone()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    module(X).square().sum().backward()
    optimizer.step()
    assert not torch.equal(module.scale, before)
    module(100 * X)
    assert module.activation_post_process.max_val.max() < 10
    assert module.zero_point.abs().max() == 0  # symmetric: it is put back before each use
    module.enable_static_estimate()
    assert not module.scale.requires_grad


def test_one_module_at_two_places_learns_from_both() -> None:
    once, twice = weights(), weights()
    for module in (once, twice):
        module(X)
        module.enable_param_learning()
    once(X).sum().backward()
    (twice(X) + twice(X)).sum().backward()
    assert once.scale.grad is not None
    torch.testing.assert_close(twice.scale.grad, 2 * once.scale.grad)


def test_the_scale_never_falls_below_eps() -> None:
    module = LearnableFakeQuantize()
    module.enable_param_learning()
    with torch.no_grad():
        module.scale.fill_(-1.0)
    module(X)
    assert module.scale.item() == module.eps.item()


def test_symmetric_uint8_holds_its_zero_point_at_the_middle() -> None:
    module = LearnableFakeQuantize(qscheme="per_tensor_symmetric", dtype=torch.uint8)
    module(X)
    assert module.calculate_qparams()[1].item() == 128


def test_gradients_are_scaled_by_size_and_limit() -> None:
    plain, scaled = weights(), weights(use_grad_scaling=True)
    for module in (plain, scaled):
        module(X)
        module.enable_param_learning()
        module(X).square().sum().backward()
    assert plain.scale.grad is not None
    factor = 1 / math.sqrt(X.numel() * 7)
    torch.testing.assert_close(scaled.scale.grad, plain.scale.grad * factor)


def test_how_lsq_begins() -> None:
    """2 * mean(|x|) / sqrt(quant_max), per channel."""
    module = weights().initialize_lsq(X)
    torch.testing.assert_close(module.scale.detach(), 2 * X.abs().mean(1) / math.sqrt(7))


def test_how_lsq_plus_begins() -> None:
    """Weights: the further of mean +- 3 std over half the steps."""
    module = weights().initialize_lsq_plus(X)
    mean, std = X.mean(1), X.std(1, unbiased=False)
    expected = torch.maximum((mean - 3 * std).abs(), (mean + 3 * std).abs()) / 8
    torch.testing.assert_close(module.scale.detach(), expected)


def test_copies_and_states_keep_the_grid() -> None:
    module = weights()
    module(X)
    module.enable_param_learning()
    fresh = weights()
    fresh.load_state_dict(module.state_dict())
    for other in (copy.deepcopy(module), fresh):
        assert torch.equal(other(X), module(X))


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"quant_min": 5, "quant_max": 4}, "these limits leave nothing to learn"),
        ({"quant_min": 1, "quant_max": 4}, "these limits leave nothing to learn"),
        ({"quant_min": -8, "quant_max": 0, "dtype": torch.int8, "use_grad_scaling": True}, "use_grad_scaling divides"),
        ({"channel_len": 0}, "channel_len is no number of channels"),
        ({"channel_len": 3}, "observer and channel_len contradict each other"),
    ],
)
def test_what_cannot_be_learned_is_refused(arguments: dict[str, object], what: str) -> None:
    with pytest.raises(SpecError) as caught:
        LearnableFakeQuantize(**arguments)
    assert what in str(caught.value)
