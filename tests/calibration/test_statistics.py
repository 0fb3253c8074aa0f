"""Which values are looked at, and along which dimension."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from tests.outputs import rounding_outputs


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up, self.fc = nn.Conv2d(3, 6, 3), nn.ConvTranspose2d(6, 4, 2), nn.Linear(4 * 49, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.max_pool2d(self.up(self.conv(x).relu()), 1).flatten(1))


def prepared() -> fxq.Quantizer:
    return fxq.prepare(Net().eval(), torch.randn(2, 3, 8, 8), rounding_outputs())


def test_values_of_layers_are_looked_at_along_their_channels():
    found = prepared().calibration_statistics
    assert [ref.name for ref in found.refs] == ["x", "relu", "up", "fc"]
    assert {name: module.axis for name, module in found.channels.named_children()} == {
        "x": -3,
        "relu": -3,
        "up": -3,
        "fc": -1,
    }
    assert found.channel_owners == {name: name for name in ("x", "relu", "up", "fc")}


def test_every_batch_is_taken_note_of():
    made = prepared()
    for _ in range(3):
        made.observe(torch.randn(2, 3, 8, 8))
    assert made.calibration_statistics.history.batches == 3
    assert made.calibration_statistics.channels["relu"].low.shape == (6,)


def test_a_batch_that_fails_leaves_no_trace():
    made = prepared()
    made.observe(torch.randn(2, 3, 8, 8))
    before = {name: value.clone() for name, value in made.state_dict().items()}
    for bad in (torch.randn(2, 3, 9, 9), torch.randn(2, 4, 8, 8)):
        try:
            made.observe(bad)
        except fxq.FxQuantError:
            continue
        raise AssertionError("this batch should not run")
    assert made.state_dict().keys() == before.keys()
    for name, value in made.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_what_was_never_seen_does_not_keep_ranges_from_being_stable():
    made = prepared()
    x = torch.randn(2, 3, 8, 8)
    made.observers["up"].forward = lambda value: value
    for _ in range(8):
        assert not made.calibration_statistics.stable(made.observers)
        made.observe(x)
    assert made.calibration_statistics.stable(made.observers)


def test_channels_are_looked_at_less_and_less_often():
    made = prepared()
    with torch.no_grad():
        made.graph_module.get_parameter("up.weight")[:, 1] = 0  # which leaves the bias
    looked = []
    for batch in range(40):
        looked.append((batch, tuple(made.calibration_statistics.observers_of_next_batch())))
        made.observe(torch.randn(2, 3, 8, 8))
    everything = tuple(name for name, _ in made.calibration_statistics.channels.named_children())
    assert [batch for batch, names in looked if names == everything] == [0, 1, 2, 3, 8, 16, 24, 32]
    assert {names for batch, names in looked if batch < 16} == {everything, ("up",)}
    assert {names for batch, names in looked if batch > 16 and batch % 8} == {()}
    assert made.calibration_report()["up"].dead == (1,)
