"""Random chains of convolutions, pools and tables: a program runs them strip by strip; their references one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from calls import BYTES, Arguments, Maker, operator, products, qparams
from torch import Tensor

from fxquant.kernels.call import CALLS as RECORDS
from fxquant.kernels.conv.packing import pack_weight
from fxquant.runtime.program import Program, library
from fxquant.runtime.recording import Recording

Run = Callable[[str, Arguments], Tensor]
"""Name of an operator, and its arguments -> its result."""


@dataclass
class Step:
    """One operator of a chain."""

    name: str
    given: Arguments
    """All arguments but ``x``, which is the result of the step before, and the residual."""
    adds_input: bool = False
    """Whether the residual is the input of the chain."""


@dataclass
class Chain:
    """Operators, each of which reads the result of the one before."""

    x: Tensor
    steps: list[Step]

    def run(self, x: Tensor, run: Run) -> Tensor:
        y = x
        for step in self.steps:
            given = {"x": y, **step.given, **({"residual": x} if step.adds_input else {})}
            y = run(step.name, given)
        return y

    def reference(self) -> Tensor:
        return self.run(self.x, lambda name, given: RECORDS[name](**given).reference())

    def program(self) -> Program:
        """As one program, in which results of any size make chains."""
        before = library().fxquant_chains_from(0)
        try:
            recording = Recording()
            x = self.x.clone(memory_format=torch.preserve_format)
            recording.add_input(x)
            return recording.finish([recording.attempt(lambda: self.run(x, _native))])
        finally:
            library().fxquant_chains_from(before)


def _native(name: str, given: Arguments) -> Tensor:
    call = operator(name)
    return call(*(given[argument.name] for argument in call._schema.arguments))


def chain(m: Maker) -> Chain:
    """Two to five steps, of windows as inverted residuals have them, and others."""
    dtype, first = m.one(*BYTES), m.count(40)
    size, batch = [m.count(24, 5), m.count(16, 3)], m.count(3)
    x = m.put(m.stored(batch, first, *size, dtype=dtype).contiguous(memory_format=torch.channels_last))
    steps: list[Step] = []
    channels, shape = first, list(size)
    for _ in range(m.count(5, 2)):
        kind = m.one("pointwise", "pointwise", "depthwise", "depthwise", "window", "pool")
        wide = m.one(first, m.count(72)) if kind in ("pointwise", "window") else channels
        side = m.one(3, 3, 5, m.count(4)) if kind == "depthwise" else 1 if kind == "pointwise" else m.count(3)
        kernel, stride = m.one([side, side], [side, m.count(side)]), m.one([1, 1], [1, 1], [2, 2], m.sizes(2, 2))
        padding, dilation = [m.count(k // 2, 0) for k in kernel], m.one([1, 1], [1, 1], m.sizes(2, 2))
        after = [
            (n + 2 * pad - step * (k - 1) - 1) // by + 1
            for n, pad, step, k, by in zip(shape, padding, dilation, kernel, stride, strict=True)
        ]
        if min(after) < 1:
            continue
        if kind == "pool":
            walk = {"kernel_size": kernel, "stride": stride, "padding": padding, "dilation": dilation}
            steps.append(Step("max_pool2d", {**walk, "ceil_mode": False}))
        else:
            adds = wide == first and after == size and m.one(True, False)
            groups = channels if kind == "depthwise" else 1
            weight = m.weight(wide, channels // groups, *kernel)
            rest = products(m, weight, pack_weight(weight, groups), None, BYTES)
            walk = {
                "kernel_size": kernel, "stride": stride, "padding": [side for pad in padding for side in (pad, pad)],
                "dilation": dilation, "groups": groups,
            }  # fmt: skip
            of_residual = qparams(m, "residual_", x.dtype) if adds else {}
            zero_point = qparams(m, "", dtype)["zero_point"]
            steps.append(Step("conv2d", {"x_zero_point": zero_point, **rest, **of_residual, **walk}, adds))
            dtype = rest["dtype"]
            if dtype == torch.uint8 and m.one(True, False, False):
                steps.append(Step("table", {"table": m.stored(256)}))
        channels, shape = wide, after
    return Chain(x, steps)
