"""Defines the fake-quantize module: an observer and qparams, each with a switch."""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from fxquant.errors import CalibrationError, SpecError
from fxquant.fake_quantize.relu_results import keep_where_positive
from fxquant.observers.base import keeping_dtype
from fxquant.observers.constructor import Constructor
from fxquant.plan.spec import QParams, QScheme

# No ``from __future__ import annotations`` here, nor below these classes: TorchScript reads annotations as they stand.


class Switches(nn.Module):
    """A module that can be told, by buffers of shape [1], what to do in ``forward``.

    They are buffers so that they are saved, loaded, and broadcast by DistributedDataParallel. Reading one waits for the
    GPU and breaks ``torch.compile``, so what it says is remembered, until it is written to or replaced.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, tuple[Tensor, float, bool]] = {}

    def add_switch(self, name: str, on: bool, dtype: torch.dtype) -> None:
        """Register the buffer ``name``."""
        switch = torch.tensor([int(on)], dtype=dtype)
        self.register_buffer(name, switch)
        self._said[name] = (switch, _version(switch), on)

    def is_on(self, name: str) -> bool:
        """Tell whether the switch of that name is on."""
        said = self._said.get(name)
        if torch.compiler.is_compiling():
            return said is not None and said[2]
        switch = self._buffers[name]
        assert switch is not None  # add_switch made it
        if said is None or said[0] is not switch or said[1] != _version(switch):
            # The meta device keeps no values, so there it still says what it said before.
            on = said is not None and said[2] if switch.is_meta else bool(switch[0] == 1)
            said = (switch, _version(switch), on)
            self._said[name] = said
        return said[2]

    def set_switch(self, name: str, on: bool) -> None:
        """Turn the switch."""
        switch = self._buffers[name]
        assert switch is not None  # add_switch made it
        switch.fill_(int(on))
        self._said[name] = (switch, _version(switch), bool(on))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Switches":
        """Move, but never cast: half precision cannot hold a range."""
        super()._apply(keeping_dtype(fn), recurse)
        self._remember()
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._remember()

    def _remember(self) -> None:
        """Read every switch, so that a compiled forward need not."""
        for name in list(self._said):
            self.is_on(name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_said": {name: said[2] for name, said in self._said.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._said = {}
        for name, on in state["_said"].items():
            switch = self._buffers[name]
            assert switch is not None  # as add_switch made it
            self._said[name] = (switch, _version(switch), on)


def _version(switch: Tensor) -> float:
    """Return how often it was written to; of tensors of inference mode, which do not count, NaN."""
    return math.nan if switch.is_inference() else switch._version


class FakeQuantizeBase(Switches):
    """Base class of fake-quantize modules.

    Buffers ``fake_quant_enabled`` and ``observer_enabled``, uint8 [1], say what ``forward`` does:
    fake-quantize; measure the values and choose qparams anew. A derived class writes ``forward`` and
    ``calculate_qparams``; ``scheme``, the kind of qparams that it simulates, is what a ``QConfig`` needs to know of it.
    """

    __jit_ignored_attributes__ = ("_said", "scheme", "place", "_qparams_is_known")

    scheme: QScheme
    fake_quant_enabled: Tensor
    observer_enabled: Tensor
    keep_where_positive = staticmethod(keep_where_positive)
    """For ``forward``, on what it is given, before it rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.add_switch("fake_quant_enabled", True, torch.uint8)
        self.add_switch("observer_enabled", True, torch.uint8)
        self.place = ""
        """In a graph that trains: which value it rounds. Alone, it rounds with scale 1 until it is told otherwise."""
        self._qparams_is_known = False

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Fake-quantize ``x``, float of any shape; the result has its shape, dtype and memory format."""
        raise NotImplementedError(f"{type(self).__name__}.forward")

    @abstractmethod
    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Return ``(scale, zero_point)`` for what was seen."""
        raise NotImplementedError(f"{type(self).__name__}.calculate_qparams")

    def qparams(self) -> QParams:
        """Return the qparams of ``calculate_qparams``, with their scheme."""
        scale, zero_point = self.calculate_qparams()
        kind = torch.float32 if self.scheme.float_qparams else torch.int32
        return QParams(self.scheme, scale.detach().float(), zero_point.detach().to(kind))

    def has_qparams(self) -> bool:
        """Tell whether qparams were ever chosen: by an observer, by learning, or by whoever wrote the buffers."""
        scale, zero_point = getattr(self, "scale", None), getattr(self, "zero_point", None)
        if (
            isinstance(scale, Tensor)
            and isinstance(zero_point, Tensor)
            and bool((scale != 1).any() or zero_point.any())
        ):
            return True
        try:
            observer_in(self).calculate_qparams()
        except CalibrationError:
            return False
        return True

    def rounds(self) -> bool:
        """Tell whether ``forward`` shall round, when it has measured what it is to measure.

        Raises:
            CalibrationError: it stands in a graph that trains, and its observer was turned off before it saw a value.
        """
        on = self.is_on("fake_quant_enabled")
        if on and self.place and not self._qparams_is_known and not torch.compiler.is_compiling():
            if not (self.is_on("observer_enabled") or self.has_qparams()):
                raise CalibrationError(
                    "a value is to be fake-quantized without qparams: its observer is off, and saw nothing",
                    at=self.place,
                    hint="run a batch with observers on (model.apply(fxquant.enable_observer)), or load a state dict "
                    "that was saved after that; model.apply(fxquant.disable_fake_quant) trains in float",
                )
            self._qparams_is_known = True
        return on

    def choose_grid(self) -> None:
        """Choose qparams anew, by what the observer has seen.

        Raises:
            CalibrationError: that is nothing.
        """

    def make_room(self, x: Tensor) -> None:
        """Give the qparams the shape that ``x`` will ask for, before the first call: compiled code resizes nothing."""

    @torch.jit.export
    def enable_fake_quant(self, enabled: bool = True) -> None:
        """Fake-quantize, or pass values on."""
        if torch.jit.is_scripting():
            self.fake_quant_enabled.fill_(int(enabled))
        else:
            self.set_switch("fake_quant_enabled", enabled)

    @torch.jit.export
    def disable_fake_quant(self) -> None:
        """Pass values on as they are."""
        self.enable_fake_quant(False)

    @torch.jit.export
    def enable_observer(self, enabled: bool = True) -> None:
        """Measure values and choose qparams anew, or keep them."""
        if torch.jit.is_scripting():
            self.observer_enabled.fill_(int(enabled))
        else:
            self.set_switch("observer_enabled", enabled)

    @torch.jit.export
    def disable_observer(self) -> None:
        """Keep the qparams as they are."""
        self.enable_observer(False)

    @classmethod
    def with_args(cls, **arguments: Any) -> Constructor:
        """Return a constructor with these arguments filled in, for a ``QConfig``; it has ``with_args`` itself."""
        return Constructor(cls, arguments)


def observer_in(module: Any) -> Any:
    """Return the observer inside a fake-quantize module; an observer itself is answered with itself."""
    return getattr(module, "activation_post_process", module)


def refuse_script(module: nn.Module, hint: str) -> SpecError:
    """Raise what ``__prepare_scriptable__`` of a module that TorchScript cannot run raises."""
    return SpecError("this fake-quantize module cannot be scripted", got=type(module).__name__, hint=hint)


def can_be_switched(module: nn.Module) -> bool:
    """Tell whether it is a fake-quantize module, or one that ``torch.jit.script`` made of one."""
    if isinstance(module, torch.jit.ScriptModule):
        return all(hasattr(module, name) for name in ("enable_fake_quant", "enable_observer"))
    return isinstance(module, FakeQuantizeBase)


def enable_fake_quant(module: nn.Module) -> None:
    """For ``model.apply``: every fake-quantize module rounds."""
    if can_be_switched(module):
        cast(FakeQuantizeBase, module).enable_fake_quant()


def disable_fake_quant(module: nn.Module) -> None:
    """For ``model.apply``: every fake-quantize module passes values on."""
    if can_be_switched(module):
        cast(FakeQuantizeBase, module).disable_fake_quant()


def enable_observer(module: nn.Module) -> None:
    """For ``model.apply``: every fake-quantize module measures its values, and chooses its qparams anew."""
    if can_be_switched(module):
        cast(FakeQuantizeBase, module).enable_observer()


def disable_observer(module: nn.Module) -> None:
    """For ``model.apply``: every fake-quantize module keeps its qparams."""
    if can_be_switched(module):
        cast(FakeQuantizeBase, module).disable_observer()
