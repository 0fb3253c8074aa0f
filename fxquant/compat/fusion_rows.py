"""The pairs and triples of modules that torch.ao fuses by default, and the containers that it fuses them into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from fxquant.errors import NotOffered


@dataclass(frozen=True)
class FusionRow:
    """One pattern, in the order of the calls, and what makes one module of its modules."""

    pattern: tuple[Any, ...]
    fuser_method: Callable[..., nn.Module]
    _pattern_complex_format: Any = None
    _root_node_getter: Any = None
    _extra_inputs_getter: Any = None


def default_rows(containers: Any = None) -> list[FusionRow]:
    """Return the table, larger patterns first.

    Args:
        containers: Has the classes of containers as attributes; None: those of torch.ao.

    Raises:
        NotOffered: torch has no containers any more.
    """
    containers = _containers() if containers is None else containers
    rows: list[FusionRow] = []
    for dims in (1, 2, 3):
        conv, norm = getattr(nn, f"Conv{dims}d"), getattr(nn, f"BatchNorm{dims}d")
        transposed = getattr(nn, f"ConvTranspose{dims}d")
        with_relu = getattr(containers, f"ConvReLU{dims}d")
        rows += [FusionRow((conv, norm, relu), _folded(fuse_conv_bn_eval, with_relu)) for relu in _RELU]
        rows += [FusionRow((conv, relu), _joined(with_relu)) for relu in _RELU]
        rows += [FusionRow((conv, norm), _folded(fuse_conv_bn_eval)), FusionRow((transposed, norm), _transposed)]
        if dims > 1:
            rows += [FusionRow((norm, relu), _joined(getattr(containers, f"BNReLU{dims}d"))) for relu in _RELU]
    rows += [FusionRow((nn.Linear, relu), _joined(containers.LinearReLU)) for relu in _RELU]
    rows.append(FusionRow((nn.Linear, nn.BatchNorm1d), _folded(fuse_linear_bn_eval)))
    return sorted(rows, key=lambda row: -len(row.pattern))


_RELU = (nn.ReLU, F.relu)


def _containers() -> Any:
    try:
        import torch.ao.nn.intrinsic as containers
    except ImportError as error:
        raise NotOffered(
            "fuse_fx makes containers that this torch no longer has",
            got="no torch.ao.nn.intrinsic",
            hint="prepare_fx and prepare_qat_fx fuse what they quantize by themselves",
        ) from error
    return containers


def _folded(fold: Callable[..., Any], container: Any = None) -> Callable[..., nn.Module]:
    def fuse(is_qat: bool, layer: nn.Module, norm: nn.Module, *relu: nn.Module) -> nn.Module:
        folded: nn.Module = fold(layer, norm)
        return container(folded, *relu) if relu else folded

    return fuse


def _joined(container: Any) -> Callable[..., nn.Module]:
    return lambda is_qat, *modules: container(*modules)


def _transposed(is_qat: bool, layer: nn.Module, norm: nn.Module) -> nn.Module:
    folded: Any = fuse_conv_bn_eval
    layer_alone: nn.Module = folded(layer, norm, transpose=True)
    return layer_alone
