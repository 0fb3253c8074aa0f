"""Chains: steps of a program that run together, strip by strip of rows, give the bits of the operators one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fxquant as fxq
from fxquant import kernels
from fxquant.kernels.conv.native import NativeConv
from fxquant.kernels.conv.reference import ConvGeometry
from fxquant.kernels.epilogue import Epilogue
from fxquant.kernels.library import available_isas, use_isa
from fxquant.runtime import engine_of
from fxquant.runtime.program import Program, library
from fxquant.runtime.recording import Recording

pytestmark = pytest.mark.skipif(not available_isas(), reason="programs are made of native kernels")

TABLE = torch.arange(255, -1, -1).to(torch.uint8)
Layer = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def small_results_make_chains() -> Iterator[None]:
    """With loops that are no products of tiles: those are in no chain."""
    before = library().fxquant_chains_from(0)
    with use_isa(next(isa for isa in ("avx512_vnni", "avx512", "avx2", "portable") if isa in available_isas())):
        yield
    library().fxquant_chains_from(before)


def bytes_of(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    low = torch.iinfo(dtype).min
    x = torch.randint(low, low + 256, shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    return x.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else x


def layer(conv: nn.Conv2d, dtype: torch.dtype, y_dtype: torch.dtype, *, table: bool = False) -> Layer:
    """A convolution with random weights, and maybe a lookup table behind it."""
    weight = bytes_of(torch.int8, *conv.weight.shape, seed=conv.weight.numel())
    low = torch.iinfo(y_dtype).min
    epilogue = Epilogue(
        x_scale=0.02,
        weight_scale=torch.linspace(0.5, 1.5, conv.out_channels) / (73 * weight[0].numel() ** 0.5),
        bias=torch.linspace(-0.3, 0.3, conv.out_channels),
        y_scale=0.02,
        y_zero_point=low + 120,
        quant_min=low + 3,
        quant_max=low + 255,
        dtype=y_dtype,
        residual_scale=0.01,
        residual_zero_point=low + 130,
    )
    run = NativeConv(weight, dtype, torch.iinfo(dtype).min + 117, ConvGeometry.of(conv), epilogue)

    def call(x: Tensor, residual: Tensor | None = None) -> Tensor:
        y = run(x, residual)
        return kernels.table(y, TABLE) if table and y_dtype == torch.uint8 else y

    return call


def inverted_residual(channels: int, wide: int, stride: int = 1, kernel: int = 3, table: bool = False) -> list[Layer]:
    u8 = torch.uint8
    middle = nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide)
    return [
        layer(nn.Conv2d(channels, wide, 1), u8, u8, table=table),
        layer(middle, u8, u8, table=table),
        layer(nn.Conv2d(wide, channels, 1), u8, u8),
    ]


def in_order(layers: Sequence[Layer]) -> Layer:
    def run(x: Tensor) -> Tensor:
        for each in layers:
            x = each(x)
        return x

    return run


def program_of(call: Layer, x: Tensor) -> Program:
    recording = Recording()
    recording.add_input(x)
    return recording.finish([recording.attempt(lambda: call(x))])


def assert_same_bits(call: Layer, x: Tensor, chains: Sequence[Sequence[int]]) -> None:
    want = call(x)
    program = program_of(call, x.clone(memory_format=torch.preserve_format))
    assert list(map(list, program.chains)) == list(map(list, chains))
    assert program.reproduces([x], [want])


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize(("stride", "kernel"), [(1, 3), (2, 3), (1, 5), (2, 5)])
def test_an_inverted_residual_block_is_one_chain(batch: int, stride: int, kernel: int) -> None:
    block = in_order(inverted_residual(24, 88, stride, kernel, table=kernel == 5))
    numbers = [0, 1, 2] if kernel == 3 else [0, 2, 4]  # the table is fused into the convolution
    for side in (5, 19, 33):
        assert_same_bits(block, bytes_of(torch.uint8, batch, 24, side, side), [numbers])


def test_the_last_link_reads_its_residual() -> None:
    up, middle, down = inverted_residual(16, 48)
    assert_same_bits(lambda x: down(middle(up(x)), x), bytes_of(torch.uint8, 2, 16, 21, 13), [[0, 1, 2]])


def test_blocks_one_behind_the_other_and_int8() -> None:
    i8, u8 = torch.int8, torch.uint8
    layers = [
        layer(nn.Conv2d(3, 20, 3, 2, 1), u8, i8),
        layer(nn.Conv2d(20, 20, 3, padding=1, groups=20), i8, i8),
        layer(nn.Conv2d(20, 32, 1), i8, u8),
        layer(nn.Conv2d(32, 32, 5, 2, 2, groups=32), u8, i8),
        layer(nn.Conv2d(32, 8, 1), i8, u8),
    ]
    assert_same_bits(in_order(layers), bytes_of(u8, 3, 3, 37, 29), [[0, 1, 2, 3, 4]])


def test_a_chain_is_no_longer_than_a_thread_can_note() -> None:
    layers = [layer(nn.Conv2d(16, 16, 3, padding=1, groups=16), torch.uint8, torch.uint8) for _ in range(11)]
    assert_same_bits(in_order(layers), bytes_of(torch.uint8, 1, 16, 24, 9), [range(8), range(8, 11)])


def test_pools_are_links() -> None:
    conv = layer(nn.Conv2d(3, 24, 7, 2, 3), torch.uint8, torch.uint8)
    for ceil in (False, True):
        pooled = lambda x, ceil=ceil: kernels.max_pool2d(conv(x), [3], [2], [1], [1], ceil)  # noqa: E731
        assert_same_bits(pooled, bytes_of(torch.uint8, 2, 3, 45, 31), [[0, 1]])


def test_what_others_read_too_lies_in_no_chain() -> None:
    up, middle, down = inverted_residual(48, 48)

    def twice(x: Tensor) -> Tensor:
        y = up(x)
        return down(middle(y), y)

    assert_same_bits(twice, bytes_of(torch.uint8, 1, 48, 17, 17), [[1, 2]])


def test_results_of_the_program_lie_in_no_chain() -> None:
    up, middle, _ = inverted_residual(8, 32)
    x = bytes_of(torch.uint8, 1, 8, 12, 12)
    recording = Recording()
    recording.add_input(x)
    wide, y = recording.attempt(lambda: (w := up(x), middle(w)))
    program = recording.finish([wide, y])
    assert program.chains == ()
    assert torch.equal(program([x])[1], middle(up(x)))


def test_small_results_lie_in_no_chain() -> None:
    library().fxquant_chains_from(1 << 20)
    assert_same_bits(in_order(inverted_residual(8, 32)), bytes_of(torch.uint8, 1, 8, 12, 12), [])


def test_many_products_or_a_large_weight_end_a_chain() -> None:
    u8 = torch.uint8
    dense = [layer(nn.Conv2d(32, 32, 3, padding=1), u8, u8) for _ in range(2)]
    assert_same_bits(in_order(dense), bytes_of(u8, 1, 32, 14, 14), [])
    large = [layer(nn.Conv2d(128, 1024, 1), u8, u8), layer(nn.Conv2d(1024, 8, 1), u8, u8)]
    assert_same_bits(in_order(large), bytes_of(u8, 1, 128, 6, 6), [])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_bits_do_not_depend_on_threads(threads: int) -> None:
    block, x = in_order(inverted_residual(24, 72, 2)), bytes_of(torch.uint8, 2, 24, 40, 40)
    before, want, program = torch.get_num_threads(), block(x), program_of(block, x)
    try:
        torch.set_num_threads(threads)
        assert all(torch.equal(program([x])[0], want) for _ in range(5))
    finally:
        torch.set_num_threads(before)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_windows_on_every_instruction_set(data: st.DataObject) -> None:
    number = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    channels, layers, dtype = number(1, 40), [], data.draw(st.sampled_from((torch.uint8, torch.int8)))
    height, width = number(8, 30), number(3, 20)
    x, rows, columns = bytes_of(dtype, number(1, 3), channels, height, width), height, width
    for _ in range(number(2, 5)):
        wide, kernel, dilation = number(1, 40), number(1, 3), number(1, 2)
        conv = nn.Conv2d(channels, wide, kernel, number(1, 2), number(0, 3), dilation)
        if data.draw(st.booleans()):
            conv = nn.Conv2d(channels, channels, kernel, conv.stride, conv.padding, dilation, groups=channels)
        size = lambda n, c=conv: (n + 2 * c.padding[0] - c.dilation[0] * (c.kernel_size[0] - 1) - 1) // c.stride[0] + 1  # noqa: E731
        if min(size(rows), size(columns)) < 1:
            break
        rows, columns, channels = size(rows), size(columns), conv.out_channels
        y_dtype = data.draw(st.sampled_from((torch.uint8, torch.int8)))
        layers.append(layer(conv, dtype, y_dtype, table=data.draw(st.booleans())))
        dtype = y_dtype
    call = in_order(layers)
    for isa in available_isas():
        with use_isa(isa):
            want = call(x)
            recording = Recording()
            recording.add_input(given_x := x.clone(memory_format=torch.preserve_format))
            program = recording.finish([recording.attempt(lambda given_x=given_x: call(given_x))])
            assert program.reproduces([x], [want]), isa


def test_a_plan_names_what_runs_together() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.middle, self.down = (
                nn.Conv2d(16, 32, 1),
                nn.Conv2d(32, 32, 3, 1, 1, groups=32),
                nn.Conv2d(32, 16, 1),
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.down(self.middle(self.up(x).relu()).relu())

    x = torch.randn(2, 16, 20, 20)
    int8 = fxq.convert(fxq.calibrate(fxq.prepare(Block().eval(), x), [x], progress=False))
    with torch.no_grad():
        want = [int8(x) for _ in range(3)]
    assert all(torch.equal(want[0], each) for each in want)
    plan = engine_of(int8).plans[-1]
    assert "  strip by strip: up, middle" in str(plan)
    assert [names[:2] for names in plan.programs[0].chains] == [("up", "middle")]
