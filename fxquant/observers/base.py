"""Defines the observer: a module that passes its input on, remembers what it saw, and answers with qparams."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.errors import InputError, TracingError
from fxquant.observers.constructor import Constructor
from fxquant.plan.spec import QParams, QScheme

_POOLED = "pooled."

# No ``from __future__ import annotations`` here: TorchScript reads the annotations of modules as they stand.


def keeping_dtype(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Strip the casts of ``fn``, for ``Module._apply``, so that ``model.half()`` leaves statistics and scales alone."""

    def move(tensor: Tensor) -> Tensor:
        moved = fn(tensor)
        return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

    return move


def cast_dtype(fn: Callable[[Tensor], Tensor], dtype: torch.dtype, beside: Tensor) -> torch.dtype:
    """Return what ``fn``, an argument of ``Module._apply``, makes of a ``dtype`` of which no tensor is kept."""
    return fn(torch.empty(0, dtype=dtype, device=beside.device)).dtype


def refuse_to_trace(what: str, hint: str) -> None:
    """Nothing, unless ``torch.compile`` or ``torch.export`` is tracing: then an error.

    Raises:
        TracingError: ``torch.export`` traces.
        RuntimeError: ``torch.compile`` does, which runs this part in Python then, or quotes it with ``fullgraph``.
    """
    if torch.compiler.is_exporting():
        raise TracingError(what, hint=hint)
    if torch.compiler.is_compiling():
        raise RuntimeError(f"{what}: {hint}")  # of the error classes of fxquant, torch.compile shows no message


def refuse_vmap(x: Tensor) -> None:
    """Nothing, unless ``torch.vmap`` runs: its samples share one observer, which would see each of them alone.

    Raises:
        InputError: it does.
    """
    if not torch.compiler.is_compiling() and torch._C._functorch.is_batchedtensor(x):
        raise InputError("an observer cannot measure inside vmap", hint="disable_observer() once it is calibrated")


def put_pooled(pooled: Mapping[str, Tensor], destination: dict[str, Any], prefix: str) -> None:
    """Save what all processes knew of at the last ``pool``, if there was one: loaded, it goes on counting once."""
    destination.update({f"{prefix}{_POOLED}{name}": value for name, value in pooled.items()})


def take_pooled(state_dict: dict[str, Any], prefix: str) -> dict[str, Tensor]:
    """Take out of a state, and return, what ``put_pooled`` has put into it."""
    names = [name for name in state_dict if name.startswith(prefix + _POOLED)]
    return {name.removeprefix(prefix + _POOLED): state_dict.pop(name).detach().clone() for name in names}


def attributes_of_pooled(pooled: Mapping[str, Tensor]) -> SimpleNamespace:
    """Return what ``put_pooled`` saves as attributes: ``torch.distributed.checkpoint`` looks for each key as one."""
    return SimpleNamespace(**pooled)


class ObserverBase(nn.Module):
    """Base class of observers.

    ``forward(x)`` returns ``x`` itself and hands its values to ``update``, unless there are none. Statistics are
    float32 buffers, and stay float32 when the model is cast. A derived class writes ``update`` and ``qparams``;
    ``pool``, if several processes are to measure together; and, if it is to run in TorchScript, ``update_in_script``
    and ``qparams_in_script``.

    Args:
        scheme: Kind of the qparams asked for; None if the observer leaves values in float.
        dtype: The dtype that the user named, for those who read it.
        is_dynamic: Ranges are meant to be measured at run time.
    """

    __jit_ignored_attributes__ = ("scheme", "_pooled")
    __jit_unused_properties__ = ("quant_min", "quant_max", "pooled")

    def __init__(self, scheme: QScheme | None, *, dtype: torch.dtype, is_dynamic: bool = False) -> None:
        super().__init__()
        self.scheme = scheme
        self.dtype = dtype
        self.is_dynamic = is_dynamic

    @classmethod
    def with_args(cls, **arguments: Any) -> Constructor:
        """Return a constructor with these arguments filled in, for a ``QConfig``.

        It can be compared and pickled, and has ``with_args`` itself.

        Raises:
            SpecError: the class takes no such argument.
        """
        return Constructor(cls, arguments)

    def forward(self, x: Tensor) -> Tensor:
        """Observe ``x``, of any shape and real dtype, and return it. An empty tensor changes nothing.

        Raises:
            InputError: ``x`` holds complex numbers.
        """
        if not torch.jit.is_scripting() and x.is_complex():
            raise InputError(
                "an observer measures float values",
                at=type(self).__name__,
                got=f"{x.dtype} {tuple(x.shape)}",
                hint="torch.view_as_real(x) holds both parts",
            )
        if x.numel() > 0:
            if torch.jit.is_scripting():
                self.update_in_script(x.detach())
            else:
                refuse_vmap(x)
                self.update(x.detach())
        return x

    @abstractmethod
    def update(self, x: Tensor) -> None:
        """Take the values of ``x`` (detached, at least one) into account."""
        raise NotImplementedError(f"{type(self).__name__}.update")

    @abstractmethod
    def qparams(self) -> QParams:
        """Choose qparams for what was seen so far.

        Raises:
            CalibrationError: nothing was seen that qparams could be chosen from.
        """
        raise NotImplementedError(f"{type(self).__name__}.qparams")

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Return ``(scale, zero_point)`` of ``qparams()``: float32 and int32, [1] per tensor, [C] per channel."""
        if torch.jit.is_scripting():
            return self.qparams_in_script()
        else:
            qparams = self.qparams()
            return qparams.scale, qparams.zero_point

    def pool(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Take what several copies of this observer have seen, each a part of the data, for what this one has seen.

        A derived class says how, as in ``self.top.copy_(torch.stack([state["top"] for state in states]).max())``. One
        that learns nothing from what it sees has an empty ``pool``.

        Args:
            states: The ``state_dict()`` of each, this one's among them, in the same order in each process.

        Raises:
            InputError: the class does not say how.
        """
        raise InputError(
            f"{type(self).__name__} has no method 'pool', so several processes would keep different qparams",
            got=f"the states of {len(states)} processes",
            expected=f"def pool(self, states) in {type(self).__name__}: set the buffers to what all of them have seen",
            hint="states holds the state_dict() of each; an observer that learns nothing has an empty pool",
        )

    def update_in_script(self, x: Tensor) -> None:
        """Do what ``update`` does, for TorchScript."""
        raise RuntimeError("this observer cannot measure in TorchScript: those of extremes and averages can")

    def qparams_in_script(self) -> tuple[Tensor, Tensor]:
        """Do what ``calculate_qparams`` does, for TorchScript."""
        raise RuntimeError("this observer cannot choose qparams in TorchScript")

    @property
    def pooled(self) -> SimpleNamespace:
        """Return what all processes knew of at the last ``pool``."""
        return attributes_of_pooled(getattr(self, "_pooled", {}))

    @property
    def quant_min(self) -> int | None:
        """Smallest quantized value; None if values stay float."""
        return self.scheme.quant_min if self.scheme else None

    @property
    def quant_max(self) -> int | None:
        """Largest quantized value; None if values stay float."""
        return self.scheme.quant_max if self.scheme else None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ObserverBase":
        """Move buffers as ``fn`` says, but keep their dtype: half precision cannot hold a range."""
        super()._apply(keeping_dtype(fn), recurse)
        return self

    def extra_repr(self) -> str:
        return str(self.scheme or self.dtype)
