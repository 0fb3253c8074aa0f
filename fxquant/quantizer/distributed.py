"""Several processes, each with its part of the data, come to one and the same qparams."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from torch import Tensor, distributed, nn

from fxquant.calibration.channel_extremes import ChannelExtremes, Extremes
from fxquant.calibration.range_history import RangeHistory
from fxquant.errors import CalibrationError, InputError, warn
from fxquant.fake_quantize.base import FakeQuantizeBase, observer_in
from fxquant.kernels.raw_bytes import raw_bytes
from fxquant.nn.training import JoinedRange
from fxquant.observers.base import ObserverBase
from fxquant.observers.channel_means import ChannelMeans
from fxquant.quantizer.quantizer import Quantizer
from fxquant.quantizer.state import measured

_POOLED = (ObserverBase, ChannelMeans, RangeHistory, ChannelExtremes, Extremes, JoinedRange)
_OBSERVER = "activation_post_process."


def synchronize_observers(model: nn.Module | Quantizer, group: Any = None) -> None:
    """Give every process of a group the same observers, qparams and switches, of what all of them have seen.

    Extremes become the widest, moving averages are averaged, histograms and means are added up; the order of the
    processes does not matter, and what was seen before an earlier call counts once, also if it was saved and loaded
    since; what was saved before the first call counts once for each process that loaded it. Qparams that are still
    measured are chosen anew; those that stay as they are, learned ones too, become those of the first process, and so
    do all switches. Without a process group, and in a process outside of ``group``, it does nothing.

    Call it where each process calibrated on its own part of the data; in training, before qparams are frozen, learned,
    saved or converted. Between these calls ``DistributedDataParallel`` hands on those of the first process, with its
    other buffers, at the start of each forward.

    Args:
        model: What ``prepare`` or ``prepare_qat`` gave, also inside ``DistributedDataParallel``; or any module with
            observers or fake-quantize modules in it. Changed in place.
        group: A process group of ``torch.distributed``; None: the default one.

    Raises:
        InputError: the processes have different modules, or have seen different numbers of channels; the class of an
            observer has no ``pool``, or one that leaves the processes with different states; ``model`` is none.

    Example:
        >>> import torch, fxquant as fxq
        >>> model = fxq.prepare_qat(torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.ones(1, 2))
        >>> synchronize_observers(model)
    """
    if not isinstance(model, (nn.Module, Quantizer)):
        raise InputError(
            "synchronize_observers takes a model with observers",
            got=type(model).__name__,
            expected="what prepare or prepare_qat gave, or a torch.nn.Module with observers in it",
        )
    if isinstance(model, nn.Module) and not any(_measuring(model)):
        warn(
            "there is nothing to synchronize: the model has neither observers nor fake-quantize modules",
            got=type(model).__name__,
            expected="what prepare or prepare_qat gave",
        )
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    if distributed.get_rank(group) < 0:
        return
    modules = dict(_measuring(measured(model) if isinstance(model, Quantizer) else model))
    own = {name: {key: value.cpu() for key, value in each.state_dict().items()} for name, each in modules.items()}
    states: list[dict[str, dict[str, Tensor]]] = [{} for _ in range(distributed.get_world_size(group))]
    distributed.all_gather_object(states, own, group)
    for rank, state in enumerate(states):
        if differing := sorted(state.keys() ^ own.keys()):
            raise InputError(f"process {rank} observes other values", got=differing[0], expected="one model for all")
    for name, module in modules.items():
        _take(module, [state[name] for state in states])
    if len(states) > 1:
        _check_same(modules, group, len(states))


def _measuring(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Fake-quantize modules, and observers that are not inside one."""
    inside: set[nn.Module] = set()
    for name, module in model.named_modules():
        if isinstance(module, FakeQuantizeBase):
            inside.update(module.modules())
        if isinstance(module, FakeQuantizeBase) or (isinstance(module, _POOLED) and module not in inside):
            yield name, module


def _check_same(modules: Mapping[str, Any], group: Any, size: int) -> None:
    """All processes compare what they have come to.

    Raises:
        InputError: it is not the same, so what pools an observer leaves something out.
    """
    own = {(name, key): _digest(value) for name, each in modules.items() for key, value in each.state_dict().items()}
    found: list[dict[tuple[str, str], bytes]] = [{} for _ in range(size)]
    distributed.all_gather_object(found, own, group)
    places = sorted({place for state in found for place in state})
    differing = [(name, key) for name, key in places if len({state.get((name, key)) for state in found}) > 1]
    if differing:
        name, key = differing[0]
        kind = type(observer_in(modules[name])).__name__
        raise InputError(
            f"the processes keep different states of {name!r} after {kind}.pool",
            got=key,
            expected="a pool that sets every buffer from the states that it is given, alike in each process",
        )


def _digest(value: Tensor) -> bytes:
    return hashlib.sha256(bytes(raw_bytes(value.cpu()).numpy().data)).digest()


def _take(module: Any, states: list[Mapping[str, Tensor]]) -> None:
    if not isinstance(module, FakeQuantizeBase):
        module.pool(states)
        return
    own = {key: value for key, value in states[0].items() if not key.startswith(_OBSERVER)}
    module.load_state_dict(own, strict=False)
    if not module.is_on("observer_enabled"):
        module.load_state_dict(dict(states[0]))
        return
    observer_in(module).pool([_of_observer(state) for state in states])
    with suppress(CalibrationError):  # nobody has seen anything
        module.choose_grid()


def _of_observer(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(_OBSERVER): value for key, value in state.items() if key.startswith(_OBSERVER)}
