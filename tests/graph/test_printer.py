from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxquant.capture.tracing import trace
from fxquant.graph.printer import WIDTH, coloured, diff, folded, format_graph, format_table


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
    assert header.split() == ["node", "operation", "value", "qparams", "from"]
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


def block(stage: int, index: int, size: int = 64, last: str = "relu") -> list[str]:
    prefix = f"layer{stage}_{index}"
    return [
        f"- {prefix}_conv1 = Conv2d({prefix}_in)        float32[1,{size},56,56]",
        f"- {prefix}_bn1 = BatchNorm2d({prefix}_conv1)  float32[1,{size},56,56]",
        f"+ {prefix}_bn1 = Conv2d[{prefix}.conv1]({prefix}_in)",
        f"- add_{stage} = torch.add({prefix}_bn1, 3)",
        f"+ {prefix}_{last} = F.{last}({prefix}_bn2)",
        "+         uint8[1,64,56,56]",
    ]


def test_blocks_that_follow_each_other_are_told_once() -> None:
    lines = [line for index in range(5) for line in block(1, index)]
    assert folded(lines) == [*block(1, 0), "  × 4 more like layer1_0: layer1_1 to layer1_4 (24 lines)"]


def test_blocks_further_on_are_told_by_what_they_are_like() -> None:
    lines = [*block(1, 0), *block(1, 1, last="silu"), *block(2, 0, size=128), *block(2, 1, last="silu")]
    assert folded(lines) == [*lines[:12], "  × 1 more like layer1: layer2 (12 lines)"]
    again = [*lines, *block(3, 0, last="silu"), *block(3, 1)]
    told = "  × 4 more like layer1_0, layer1_1: layer2_0 to layer3_1 (24 lines)"
    assert folded(again) == [*lines[:12], told]


def test_what_differs_in_more_than_names_and_shapes_is_printed() -> None:
    other = [line.replace("_in)", "_out)") for line in block(1, 1)]
    assert len(folded(block(1, 0) + other)) == 7  # which node it reads does not count
    other = [line.replace(", 3)", ", 5)") for line in block(1, 1)]
    assert folded(block(1, 0) + other) == block(1, 0) + other
    assert folded(block(1, 0) + block(1, 1, last="silu")) == block(1, 0) + block(1, 1, last="silu")


def test_little_is_printed_and_nothing_stays_nothing() -> None:
    lines = ["+ a_0_x = f(x)", "+ a_1_x = f(x)", "+ a_2_x = f(x)"]
    assert folded(lines) == lines
    assert folded([]) == []


def test_what_belongs_to_no_block_is_printed() -> None:
    lines = ["- relu = ReLU(x)", "- pool = Pool(relu)"]
    assert folded([*lines, *block(1, 0), *block(1, 1), *lines]) == [
        *lines,
        *block(1, 0),
        "  × 1 more like layer1_0: layer1_1 (6 lines)",
        *lines,
    ]


def test_long_names_do_not_make_a_line_wide() -> None:
    long = "encoder_layers_" * 4 + "layer"
    lines = [f"+ {long}_{index}_{part} = f(x)" for index in range(3) for part in "abc"]
    shown = folded(lines)
    assert max(len(line) for text in shown[3:] for line in text.splitlines()) <= WIDTH
    assert " ".join(shown[-1].split()) == f"× 2 more like {long}_0: {long}_1 to {long}_2 (6 lines)"
