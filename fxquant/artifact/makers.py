"""The observers and fake-quantize modules that a file may name, each with the arguments that make it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from fxquant.artifact.values import DEPTH, decode, encode
from fxquant.errors import ArtifactError, FxQuantError
from fxquant.fake_quantize import (
    AdaRoundFakeQuantize,
    FakeQuantize,
    FixedQParamsFakeQuantize,
    FusedMovingAvgObsFakeQuantize,
    LearnableFakeQuantize,
    WeightFakeQuantize,
)
from fxquant.observers import (
    EntropyObserver,
    FixedQParamsObserver,
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    MSEObserver,
    NoopObserver,
    PercentileObserver,
    PerChannelMinMaxObserver,
    PlaceholderObserver,
)
from fxquant.observers.constructor import Constructor

Maker = Callable[[], Any]

MAKERS: dict[str, type[nn.Module]] = {
    kind.__name__: kind
    for kind in (
        EntropyObserver, FixedQParamsObserver, HistogramObserver, MinMaxObserver, MovingAverageMinMaxObserver,
        MovingAveragePerChannelMinMaxObserver, MSEObserver, NoopObserver, PercentileObserver, PerChannelMinMaxObserver,
        PlaceholderObserver, AdaRoundFakeQuantize, FakeQuantize, FixedQParamsFakeQuantize,
        FusedMovingAvgObsFakeQuantize, LearnableFakeQuantize, WeightFakeQuantize,
    )
}  # fmt: skip
"""Name in a file -> class."""

_WORDS = (
    "per_tensor_affine per_tensor_symmetric per_channel_affine per_channel_symmetric per_channel_affine_float_qparams"
    " quint8 qint8 quint4x2 quint2x4 qint32 uint2 uint3 uint4 uint5 uint6 uint7 uint16 int2 int3 int4 int5 int6 int7"
)
# torch is going to remove the dtypes and schemes of its own quantization; what is gone is left out.
WORDS: dict[str, Any] = {name: getattr(torch, name) for name in _WORDS.split() if hasattr(torch, name)}
"""Constants of torch that arguments of observers may be, beside the dtypes of tensors."""


class Makers:
    """Numbers what makes observers, each kind once."""

    def __init__(self) -> None:
        self.data: list[Any] = []
        self._numbers: dict[str, int] = {}

    def number_of(self, maker: Maker) -> int:
        """Return the number of a maker, which is written down if it is new.

        Raises:
            ArtifactError: it is code: neither a class of this package nor what ``with_args`` of one gave.
        """
        data = encode_maker(maker)
        number = self._numbers.setdefault(json.dumps(data), len(self.data))
        if number == len(self.data):
            self.data.append(data)
        return number


def encode_maker(maker: Any) -> Any:
    """Write a class of ``MAKERS``, or what its ``with_args`` gave.

    Raises:
        ArtifactError: it is anything else, or has an argument that no file can hold.
    """
    kind = maker.target if isinstance(maker, Constructor) else maker
    name = getattr(kind, "__name__", "")
    if MAKERS.get(name) is not kind:
        raise ArtifactError(
            "the configuration makes an observer that no file can hold",
            got=f"{getattr(kind, '__module__', type(kind).__module__)}.{getattr(kind, '__qualname__', repr(kind))}",
            expected="a class of fxquant.observers or fxquant.fake_quantize, or what its with_args gave",
            hint="a converted model can be written: fxq.save(fxq.convert(prepared), path)",
        )
    arguments = maker.arguments if isinstance(maker, Constructor) else {}
    return {"make": name, "with": {key: _encode_argument(value) for key, value in arguments.items()}}


def _encode_argument(value: Any) -> Any:
    if isinstance(value, Constructor) or (isinstance(value, type) and issubclass(value, nn.Module)):
        return encode_maker(value)
    if (word := next((name for name, constant in WORDS.items() if constant is value), None)) is not None:
        return {"word": word}
    return encode(value)


def decode_maker(data: Any, depth: int = DEPTH) -> Maker:
    """Read what ``encode_maker`` wrote, and try it.

    Raises:
        ArtifactError: it is none, or the class does not take the arguments.
    """
    if depth <= 0 or not isinstance(data, dict) or set(data) != {"make", "with"}:
        raise ArtifactError("the file holds no observer here", got=ascii(data)[:120])
    kind = MAKERS.get(data["make"]) if isinstance(data["make"], str) else None
    if kind is None or not isinstance(data["with"], dict):
        raise ArtifactError("the file names an observer that it may not hold", got=ascii(data["make"])[:120])
    arguments = {key: _decode_argument(value, depth - 1) for key, value in data["with"].items()}
    try:
        maker: Any = Constructor(kind, arguments) if arguments else kind
        maker()
    except (FxQuantError, TypeError, ValueError, RuntimeError) as error:
        got = ascii(str(error))[:300]
        raise ArtifactError("an observer in the file cannot be made", at=kind.__name__, got=got) from error
    return maker


def _decode_argument(data: Any, depth: int) -> Any:
    if isinstance(data, dict) and "make" in data:
        return decode_maker(data, depth)
    if isinstance(data, dict) and set(data) == {"word"}:
        if not isinstance(data["word"], str) or data["word"] not in WORDS:
            raise ArtifactError("the file names something that it may not hold", got=ascii(data["word"])[:120])
        return WORDS[data["word"]]
    return decode(data, None, depth)


def bytes_of(maker: Maker) -> int:
    """Bytes of the buffers and parameters of what it makes."""
    tensors: Mapping[str, torch.Tensor] = maker().state_dict()
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
