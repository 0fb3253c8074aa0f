"""The contestants of ``int8.py``: each makes, from a float model, something to call with a batch."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

import fxquant as fxq

Model = Callable[[Tensor], Tensor]
Peer = Callable[[nn.Module, Sequence[Tensor]], Model]
"""From a float model in eval mode and the calibration batches to what is timed."""


def float_eager(model: nn.Module, batches: Sequence[Tensor]) -> Model:
    return model


def float_channels_last(model: nn.Module, batches: Sequence[Tensor]) -> Model:
    moved = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return lambda x: moved(x.contiguous(memory_format=torch.channels_last))


def fxquant_int8(engine: str | None = None) -> Peer:
    """fxquant's int8 model, run by one of its engines; None: by the default, programs."""

    def build(model: nn.Module, batches: Sequence[Tensor]) -> Model:
        prepared = fxq.prepare(model, batches[0])
        return fxq.convert(fxq.calibrate(prepared, batches, progress=False), engine=engine)

    return build


def torch_ao(engine: str) -> Peer:
    """torch.ao's FX graph mode with the default mapping of one of its engines."""

    def build(model: nn.Module, batches: Sequence[Tensor]) -> Model:
        with _engine(engine), _without_deprecations():
            from torch.ao.quantization import get_default_qconfig_mapping
            from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

            prepared = prepare_fx(copy.deepcopy(model), get_default_qconfig_mapping(engine), (batches[0],))
            for batch in batches:
                prepared(batch)
            converted = convert_fx(prepared)
            converted(batches[0][:1])  # what it warns of once, it warns of here
        return converted

    return build


PEERS: dict[str, Peer] = {
    "fxquant": fxquant_int8(),
    "fxquant graph": fxquant_int8("graph"),
    "fp32": float_eager,
    "fp32 channels_last": float_channels_last,
    "torch.ao x86": torch_ao("x86"),
    "torch.ao onednn": torch_ao("onednn"),
}


@contextmanager
def _engine(name: str) -> Iterator[None]:
    """The engine that torch.ao packs weights for; it keeps it in a global, which is put back."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = name
    try:
        yield
    finally:
        torch.backends.quantized.engine = before


@contextmanager
def _without_deprecations() -> Iterator[None]:
    """torch.ao.quantization and its tensor types are deprecated: no news to whoever measures them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
