from __future__ import annotations

from fxquant.graph.printer import WIDTH
from fxquant.graph.repeats import folded


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
