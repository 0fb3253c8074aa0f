"""``FakeQuantize``: torch.ao's results, state and arguments, on our observers."""

from __future__ import annotations

import pytest
import torch
from torch.ao.quantization import fake_quantize as peer

from fxquant.errors import CalibrationError, SpecError
from fxquant.fake_quantize import FakeQuantize, defaults
from fxquant.observers import MinMaxObserver, PerChannelMinMaxObserver, PlaceholderObserver

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:torch.ao")

PRESETS = (
    "default_fake_quant",
    "default_weight_fake_quant",
    "default_dynamic_fake_quant",
    "default_per_channel_weight_fake_quant",
    "default_embedding_fake_quant",
    "default_embedding_fake_quant_4bit",
    "default_fixed_qparams_range_neg1to1_fake_quant",
    "default_fixed_qparams_range_0to1_fake_quant",
)


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(6, 10, generator=generator) * (i + 1) for i in range(3)]


@pytest.mark.parametrize("name", PRESETS)
def test_results_are_torch_aos_to_the_bit(name: str) -> None:
    ours, theirs = getattr(defaults, name)(), getattr(peer, name)()
    for x in batches():
        assert torch.equal(ours(x), theirs(x))
    assert torch.equal(ours.scale, theirs.scale)
    assert (ours.quant_min, ours.quant_max, ours.ch_axis) == (theirs.quant_min, theirs.quant_max, theirs.ch_axis)


@pytest.mark.parametrize("name", PRESETS)
def test_a_state_of_torch_ao_is_loaded(name: str) -> None:
    ours, theirs = getattr(defaults, name)(), getattr(peer, name)()
    x = batches()[0]
    theirs(x)
    ours.load_state_dict(theirs.state_dict())
    for module in (ours, theirs):
        module.disable_observer()
    assert torch.equal(ours(2 * x), theirs(2 * x))


def test_the_gradient_is_straight_through() -> None:
    module = FakeQuantize(MinMaxObserver, quant_min=0, quant_max=15, dtype=torch.uint8)
    module(torch.tensor([-1.0, 1.0]))
    module.disable_observer()
    x = torch.tensor([-9.0, 0.3, 9.0], requires_grad=True)
    module(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 1.0, 0.0]


def test_an_empty_batch_changes_nothing() -> None:
    module = FakeQuantize()
    x = batches()[0]
    module(x)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    assert module(torch.empty(0, 10)).shape == (0, 10)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_state_per_channel_is_loaded_into_a_fresh_module_and_another_shape_too() -> None:
    def make() -> FakeQuantize:
        return FakeQuantize(PerChannelMinMaxObserver, dtype=torch.int8, qscheme="per_channel_symmetric")

    trained = make()
    trained(batches()[0])
    fresh = make()
    fresh.load_state_dict(trained.state_dict(), strict=True)
    assert fresh.scale.shape == (6,)
    assert torch.equal(fresh(batches()[0]), trained(batches()[0]))
    state = trained.state_dict()
    del state["scale"]
    assert make().load_state_dict(state, strict=False).missing_keys == ["scale"]
    with pytest.raises(RuntimeError, match="scale"):
        make().load_state_dict(state, strict=True)


def test_qparams_name_the_grid_in_use() -> None:
    module = FakeQuantize(MinMaxObserver)
    module(torch.tensor([0.0, 2.55]))
    qparams = module.qparams()
    assert qparams.scale.item() == pytest.approx(0.01)
    assert qparams.zero_point.tolist() == [0]


def test_limits_outside_the_dtype_are_refused() -> None:
    with pytest.raises(SpecError) as caught:
        FakeQuantize(MinMaxObserver, quant_min=-1, quant_max=255, dtype=torch.uint8)
    assert "quant_min and quant_max do not fit an unsigned integer of 8 bits" in str(caught.value)
    assert "[-1, 255]" in str(caught.value)


def test_an_observer_without_a_grid_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        FakeQuantize(PlaceholderObserver)
    assert "no qparams that could be simulated" in str(caught.value)


def test_no_grid_without_data() -> None:
    with pytest.raises(CalibrationError):
        FakeQuantize().calculate_qparams()


def test_observing_inside_a_compiled_module() -> None:
    eager, compiled = FakeQuantize(MinMaxObserver), FakeQuantize(MinMaxObserver)
    torch._dynamo.reset()
    run = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    for x in batches():
        assert torch.equal(run(x), eager(x))
    assert torch.equal(compiled.scale, eager.scale)
