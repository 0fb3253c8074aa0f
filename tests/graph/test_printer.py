from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxquant.capture.tracing import trace
from fxquant.graph.printer import WIDTH, coloured, diff, format_graph, format_table


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
        self.w = nn.Parameter(torch.ones(4, 1, 1))

    def forward(self, x, gain=2.0):
        y = self.layer(self.layer(x)[:, :3])
        z = F.max_pool2d(y * self.w, 2)
        return {"z": torch.cat((z, z), dim=1).view(2, -1), "gain": gain}


@pytest.fixture(scope="module")
def gm():
    return trace(Net(), example_args=(torch.zeros(2, 3, 4, 4),))


EXPECTED = """\
x = input                                                             float32[2,3,4,4]
gain = input (default 2.0)
layer_0 = Conv2d(x)                                                   float32[2,4,4,4]
layer_1 = ReLU(layer_0)                                               float32[2,4,4,4]
getitem = operator.getitem(layer_1, (:, :3))                          float32[2,3,4,4]
layer_2 = Conv2d[layer.0](getitem)                                    float32[2,4,4,4]
layer_3 = ReLU[layer.1](layer_2)                                      float32[2,4,4,4]
w = attribute w                                                       float32[4,1,1]
mul = operator.mul(layer_3, w)                                        float32[2,4,4,4]
max_pool2d = F.max_pool2d(mul, 2, stride=None, padding=0, dilation=1, ceil_mode=False,
        return_indices=False)
        float32[2,4,2,2]
cat = torch.cat((max_pool2d, max_pool2d), dim=1)                      float32[2,8,2,2]
view = cat.view(2, -1)                                                float32[2,32]
return {'z': view, 'gain': gain}"""


def test_one_short_line_per_node(gm):
    text = format_graph(gm)
    assert text == EXPECTED
    assert max(map(len, text.splitlines())) <= WIDTH - 2


def test_notes_stand_behind_the_value(gm):
    lines = format_graph(gm, {"layer_1": "uint8 s=0.1 z=0", "max_pool2d": "observed"}).splitlines()
    assert lines[3] == "layer_1 = ReLU(layer_0)  float32[2,4,4,4]  uint8 s=0.1 z=0"
    assert lines[11] == "        float32[2,4,2,2]  observed"


def test_table_has_the_users_lines(gm):
    text = format_table(gm, {"mul": "observed"})
    header, _, *rows = text.splitlines()
    assert header.split() == ["node", "operation", "value", "grid", "from"]
    row = next(row for row in rows if row.startswith("mul "))
    assert "operator.mul(layer_3, w)" in row
    assert "observed" in row
    assert row.endswith(f"{__file__}:{Net.forward.__code__.co_firstlineno + 2}")


def test_diff_is_the_changed_lines_only():
    assert diff("a\nb\nc", "a\nB\nc\nd") == "- b\n+ B\n+ d"
    assert diff("a", "a") == ""
    assert diff("-- x", "++ x") == "- -- x\n+ ++ x"


def test_colours():
    assert coloured("- a\n+ b\nc") == "\x1b[31m- a\x1b[0m\n\x1b[32m+ b\x1b[0m\nc"
