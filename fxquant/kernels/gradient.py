"""How an operator gets its gradient."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar

import torch
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from fxquant.errors import KernelError
from fxquant.kernels.interception import is_intercepted
from fxquant.kernels.library import LIBRARY


class Differentiable(_SingleLevelFunction):
    """Base of the functions that :func:`differentiate` calls: ``torch.autograd.Function`` without its own dispatch.

    The dispatcher has taken apart nested transforms of ``torch.func`` when it calls an operator, so each call sees one.
    """

    apply: ClassVar[Callable[..., Any]]


def differentiate(
    operator: torch._ops.OpOverload, with_gradient: Callable[..., Any], tensors: int = 1
) -> Callable[..., Any]:
    """Say what runs where one of the first arguments wants a gradient; elsewhere the operator runs as it is.

    This is what ``torch.library.register_autograd`` does, in a third of its time, with a choice of what is saved, and
    for ``torch.func`` and forward-mode derivatives too.

    Args:
        operator: One overload.
        with_gradient: Called with the operator's arguments; gives its results, by a :class:`Differentiable`.
        tensors: How many leading arguments are tensors that may want a gradient.

    Returns:
        What to call in place of the operator: it calls ``with_gradient`` at once where a gradient is wanted and nothing
        else needs to know of the call. The way through the dispatcher and back into Python takes 5 to 15 us.
    """

    def wanted(args: tuple[Any, ...]) -> bool:
        if forward_ad._current_level >= 0:
            return True
        if tensors == 1:  # the usual case, in half the time
            return args[0].requires_grad and torch.is_grad_enabled()
        return torch.is_grad_enabled() and any(argument.requires_grad for argument in args[:tensors])

    def run(keyset: torch._C.DispatchKeySet, *args: Any) -> Any:
        if wanted(args):
            if not torch._C._are_functorch_transforms_active():
                return with_gradient(*args)
            before = torch._C._functorch.get_single_level_autograd_function_allowed()
            torch._C._functorch.set_single_level_autograd_function_allowed(True)
            try:
                return with_gradient(*args)
            finally:
                torch._C._functorch.set_single_level_autograd_function_allowed(before)
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(keyset & torch._C._after_autograd_keyset, *args)

    def call(*args: Any) -> Any:
        return with_gradient(*args) if _is_eager(args[0]) and wanted(args) else operator(*args)

    LIBRARY.impl(operator, run, "Autograd", with_keyset=True)
    return call


def _is_eager(x: Any) -> bool:
    """Tell whether nothing watches or transforms operators: no compiler, tracer, mode, ``torch.func`` or subclass."""
    if torch.compiler.is_compiling() or type(x) not in (torch.Tensor, torch.nn.Parameter):
        return False
    return not is_intercepted()


def below_autograd(operator: Callable[..., Any], *args: Any) -> Any:
    """Call an operator from ``forward`` of a :class:`Differentiable`: without a gradient at this level."""
    if not torch._C._are_functorch_transforms_active():
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*args)
    with ExitStack() as stack:  # forward runs without gradients, which an outer transform wants
        stack.enter_context(torch.enable_grad())
        stack.enter_context(forward_ad._set_fwd_grad_enabled(True))
        stack.enter_context(torch._C._AutoDispatchBelowAutograd())
        return operator(*args)


def in_backward(operator: Callable[..., Any], *args: Any) -> Any:
    """Call an operator from ``backward`` of a :class:`Differentiable`: its kernel at once, where that is all.

    Its own derivative is wanted where gradients are on, and a transform of ``torch.func`` has a say too.
    """
    if torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        return operator(*args)
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*args)


def refuse_derivative(operator: torch._ops.OpOverload, tensors: int) -> None:
    """Say that an operator has no derivative, to whoever asks for one: its results want gradients, and get an error."""

    class NoDerivative(Differentiable):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            return below_autograd(operator, *args)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            raise _no_derivative(operator)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            raise _no_derivative(operator)

    differentiate(operator, NoDerivative.apply, tensors)


def _no_derivative(operator: torch._ops.OpOverload) -> KernelError:
    return KernelError(
        f"{operator.name()} has no derivative", hint="a gradient of a gradient of learned qparams is asked for"
    )
