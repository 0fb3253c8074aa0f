"""Observers and fake-quantize modules of other libraries, inside ones of fxquant."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from fxquant import fake_quantize, observers
from fxquant.compat import fake_quantize as our_fake_quants
from fxquant.compat import observer as our_observers
from fxquant.compat.duck_typing import scheme_of
from fxquant.compat.observer_classes import PlaceholderObserver, ReuseInputObserver
from fxquant.compat.partial import PartialConstructor
from fxquant.compat.range_qparams import qparams_of_answer
from fxquant.errors import SpecError
from fxquant.plan.spec import QParams, QScheme

_ARGUMENTS = ("quant_min", "quant_max", "averaging_constant", "ch_axis", "bins", "is_dynamic", "dtype", "qscheme")
"""Attributes of observers of torch.ao that are arguments of their classes."""


class ShowsInner(nn.Module):
    """A module that answers with the attributes of the module inside where it has none of that name itself."""

    hidden: tuple[str, ...] = ()
    """Names that are not looked for inside."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            inner = self.__dict__.get("_modules", {}).get("inner")
            if inner is None or name.startswith("__") or name in self.hidden or not hasattr(inner, name):
                raise
            return getattr(inner, name)


class Foreign(ShowsInner, observers.ObserverBase):
    """An observer of another library, which measures and chooses as it does."""

    def __init__(self, make: Any) -> None:
        made = make()
        super().__init__(scheme_of(made), dtype=made.dtype, is_dynamic=bool(getattr(made, "is_dynamic", False)))
        self.inner = made
        self.qscheme = getattr(made, "qscheme", None)

    def update(self, x: Tensor) -> None:
        self.inner(x)

    def qparams(self) -> QParams:
        assert self.scheme is not None  # nothing asks the observer of a value that stays float
        return as_qparams(self.inner, self.scheme)


class ForeignFakeQuantize(ShowsInner, fake_quantize.FakeQuantizeBase):
    """A fake-quantize module of another library, which measures and rounds as it does."""

    hidden = ("activation_post_process",)  # an observer of another library, of which the methods here know nothing

    def __init__(self, make: Any) -> None:
        super().__init__()
        made = make()
        found = scheme_of(made)
        if found is None:
            raise SpecError("this module simulates no integers", got=type(made).__name__, expected="an integer dtype")
        self.inner, self.scheme = made, found

    @property
    def scale(self) -> Tensor:
        """Return the scale in use."""
        found: Tensor = self.inner.scale
        return found

    @property
    def zero_point(self) -> Tensor:
        """Return the zero point in use."""
        found: Tensor = self.inner.zero_point
        return found

    def forward(self, x: Tensor) -> Tensor:
        """Fake-quantize ``x`` as the module inside does."""
        rounded: Tensor = self.inner(x)
        return rounded

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Return ``(scale, zero_point)`` of the module inside."""
        scale, zero_point = self.inner.calculate_qparams()
        return scale.reshape(-1), zero_point.reshape(-1)

    def set_switch(self, name: str, on: bool) -> None:
        super().set_switch(name, on)
        if (switch := getattr(self.inner, name, None)) is not None:
            switch.fill_(int(on))


def as_qparams(observer: Any, scheme: QScheme) -> QParams:
    """Return what ``calculate_qparams`` of an observer of any library answers; one of fxquant says it itself."""
    if isinstance(observer, observers.ObserverBase):
        return observer.qparams()
    return qparams_of_answer(scheme, observer.calculate_qparams())


def constructor_of(constructor: Any) -> Any:
    """Return a constructor of an observer or a fake-quantize module of fxquant that does what one of any library does.

    Those of fxquant are taken as they are. Of torch.ao's own classes, those that fxquant has under the same names take
    their place. All others, those derived from them among them, go into one of fxquant.

    Raises:
        SpecError: it makes nothing that chooses qparams.
    """
    if constructor is None or constructor is nn.Identity:
        return PlaceholderObserver
    try:
        made = constructor()
    except TypeError as error:
        raise SpecError(
            "the constructor of a QConfig cannot be called", got=repr(constructor), hint=str(error)
        ) from error
    if isinstance(made, (observers.ObserverBase, fake_quantize.FakeQuantizeBase)):
        return constructor
    if not callable(getattr(made, "calculate_qparams", None)):
        if isinstance(made, nn.Identity):
            return PlaceholderObserver
        raise SpecError(
            "the constructor of a QConfig makes no observer",
            got=f"{type(made).__module__}.{type(made).__qualname__}",
            expected="a module with calculate_qparams()",
        )
    return _ours_for(made) or PartialConstructor(partial(_foreign_class(made), constructor))


def _foreign_class(theirs: Any) -> Any:
    return ForeignFakeQuantize if hasattr(theirs, "fake_quant_enabled") else Foreign


def _ours_for(theirs: Any) -> Any:
    """Return the constructor that takes the place of one of torch.ao's, by its name; None where there is none."""
    kind = type(theirs)
    if not kind.__module__.startswith("torch.ao."):
        return None
    name = kind.__name__
    if name == "ReuseInputObserver":
        return ReuseInputObserver
    # Read the arguments that it was made with from its attributes.
    arguments = {key: getattr(theirs, key) for key in _ARGUMENTS if getattr(theirs, key, None) is not None}
    if name in ("FixedQParamsObserver", "FixedQParamsFakeQuantize"):
        arguments |= {"scale": float(theirs.scale), "zero_point": int(theirs.zero_point)}
    if hasattr(theirs, "eps"):
        arguments["eps"] = float(theirs.eps)
    # An observer of ours.
    ours = getattr(our_observers, name, None)
    if ours is not None:
        return PartialConstructor(partial(ours, **_taken(ours, arguments)))
    # A fake-quantize of ours, around an observer of ours.
    ours = getattr(our_fake_quants, name, None)
    if ours is None:
        return None
    inner = _ours_for(theirs.activation_post_process)
    if inner is None:
        return None
    limits = (
        {} if name == "FixedQParamsFakeQuantize" else {"quant_min": theirs.quant_min, "quant_max": theirs.quant_max}
    )
    return PartialConstructor(partial(ours, observer=inner, **limits))


_TAKEN = {
    "FixedQParamsObserver": ("scale", "zero_point", "dtype", "qscheme", "quant_min", "quant_max"),
    "PlaceholderObserver": ("dtype", "quant_min", "quant_max", "qscheme", "eps", "is_dynamic"),
    "NoopObserver": ("dtype",),
    "RecordingObserver": ("dtype",),
}


def _taken(ours: type, arguments: dict[str, Any]) -> dict[str, Any]:
    if ours.__name__ in _TAKEN:
        return {key: value for key, value in arguments.items() if key in _TAKEN[ours.__name__]}
    own = {"averaging_constant": "MovingAverage", "ch_axis": "PerChannel", "bins": "Histogram"}
    return {key: value for key, value in arguments.items() if key not in own or own[key] in ours.__name__}
