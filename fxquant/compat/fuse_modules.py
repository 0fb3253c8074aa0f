"""``fuse_modules``: makes one module of a layer and of those behind it that are named; the others pass values on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fxquant.compat.fusion_rows import default_rows
from fxquant.compat.not_offered import refusal_of
from fxquant.errors import InputError, NotOffered, UnknownNameError

Names = Sequence[str] | Sequence[Sequence[str]]


def fuse_modules(
    model: nn.Module,
    modules_to_fuse: Names,
    inplace: bool = False,
    fuser_func: Any = None,
    fuse_custom_config_dict: Any = None,
) -> nn.Module:
    """Fold batch norms into the layers before them, and put ReLU into one container with its layer.

    ``prepare`` fuses by itself, so that a program may leave it out.

    Args:
        model: The float model, in evaluation mode.
        modules_to_fuse: Paths of modules in the order of their calls, or a list of such lists. The first becomes the
            fused module, an ``nn.Sequential`` where more than one is left; the others become ``nn.Identity``.
        inplace: Change ``model`` itself.
        fuser_func: Refused.
        fuse_custom_config_dict: Refused.

    Raises:
        NotOffered: modules of these classes are not fused; or one of the refused arguments is given.
        InputError: a batch norm is in training mode.
        UnknownNameError: a path that the model does not have.
    """
    return _fused(model, modules_to_fuse, inplace, fuser_func, fuse_custom_config_dict, _in_evaluation)


def fuse_modules_qat(
    model: nn.Module,
    modules_to_fuse: Names,
    inplace: bool = False,
    fuser_func: Any = None,
    fuse_custom_config_dict: Any = None,
) -> nn.Module:
    """Put layers with what follows them into an ``nn.Sequential``, in which batch norms go on training.

    Arguments and errors are those of ``fuse_modules``, but that the model is in training mode.
    """
    return _fused(model, modules_to_fuse, inplace, fuser_func, fuse_custom_config_dict, _in_training)


def _fused(
    model: nn.Module,
    names: Names,
    inplace: bool,
    fuser_func: Any,
    custom: Any,
    fuse: Callable[[Sequence[nn.Module], Any], nn.Module],
) -> nn.Module:
    if fuser_func is not None or custom:
        raise NotOffered(
            "fuse_modules takes no functions of one's own",
            got="fuser_func" if fuser_func is not None else "fuse_custom_config_dict",
            hint="prepare fuses what it quantizes by itself; a pattern of your own is a fxquant.Pattern",
        )
    model = model if inplace else copy.deepcopy(model)
    lists: Any = [names] if all(isinstance(name, str) for name in names) else names
    rows = {row.pattern: row for row in default_rows(_Sequentials())}
    for paths in lists:
        modules = [_module(model, path) for path in paths]
        row = rows.get(tuple(map(type, modules)))
        if row is None:
            raise NotOffered(
                "modules of these classes are not fused",
                at=", ".join(paths),
                got=", ".join(type(module).__name__ for module in modules),
                expected="a convolution or linear layer, a batch norm, nn.ReLU",
                hint="prepare fuses what it quantizes by itself: leave the list out",
            )
        first, *others = paths
        model.set_submodule(first, fuse(modules, row).train(modules[0].training))
        for path, module in zip(others, modules[1:], strict=True):
            model.set_submodule(path, nn.Identity().train(module.training))
    return model


def _in_evaluation(modules: Sequence[nn.Module], row: Any) -> nn.Module:
    if any(isinstance(module, _BatchNorm) and module.training for module in modules):
        raise InputError(
            "a batch norm that is folded does not train",
            got="training mode",
            expected="evaluation mode",
            hint="model.eval(), or fuse_modules_qat for a model that trains",
        )
    fused: nn.Module = row.fuser_method(False, *modules)
    return fused


def _in_training(modules: Sequence[nn.Module], row: Any) -> nn.Module:
    return nn.Sequential(*modules)


def _module(model: nn.Module, path: str) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError as error:
        known = ", ".join(name for name, _ in model.named_modules() if name)
        raise UnknownNameError("the model has no submodule of this name", got=repr(path), expected=known) from error


class _Sequentials:
    """Stands for the containers of torch.ao: each is ``nn.Sequential``, which computes the same."""

    def __getattr__(self, name: str) -> type[nn.Sequential]:
        return nn.Sequential


__all__ = ["fuse_modules", "fuse_modules_qat"]

__getattr__ = refusal_of
