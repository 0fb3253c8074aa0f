"""Reads the weights that a command line names into a model: a state dict of torch.save or of safetensors."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fxquant.errors import InputError, listing

INSIDE = ("state_dict", "model_state_dict", "model")
"""Keys under which training scripts keep the state dict of a checkpoint."""

WRAPPERS = ("module.", "_orig_mod.")
"""What DataParallel and torch.compile write before each name."""


def load_weights(model: nn.Module, path: Path) -> None:
    """Give a model the weights of a file, in place. No code of the file is run.

    Raises:
        InputError: there is no such file, it holds no state dict, or that of another model.
    """
    state = _unwrapped(_read(path))
    if not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise InputError(
            "this file holds no weights",
            at=str(path),
            got=f"a dict of {', '.join(map(str, state))}"[:120] if state else "a dict without tensors",
            expected="a state dict: name of each parameter and buffer -> tensor",
            hint="torch.save(model.state_dict(), path) writes one",
        )
    own = model.state_dict()
    shapes = [
        f"{name}: {list(state[name].shape)} in the file, {list(value.shape)} in the model"
        for name, value in own.items()
        if name in state and state[name].shape != value.shape
    ]
    fitting = {name: value for name, value in state.items() if name not in own or value.shape == own[name].shape}
    unfit = model.load_state_dict(fitting, strict=False)  # modules rename and fill in what older files have
    of_shape = {line.partition(":")[0] for line in shapes}
    problems = [f"{name}: not in the file" for name in unfit.missing_keys if name not in of_shape]
    problems += [*(f"{name}: not in the model" for name in unfit.unexpected_keys), *shapes]
    if problems:
        raise InputError(
            "these weights are those of another model",
            at=str(path),
            got=listing(problems),
            expected=f"the {len(own)} tensors of {type(model).__name__}",
        )


def _read(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise InputError("there is no such file of weights", got=str(path))
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if not _is_saved(path):
            raise _not_saved(path) from error
        raise InputError(
            "these weights cannot be loaded",
            at=str(path),
            got=str(error).splitlines()[0],
            expected="a state dict: tensors alone, since other objects in a file are code that would run",
            hint="torch.save(model.state_dict(), path) writes one",
        ) from error
    except Exception as error:  # torch raises whatever the first wrong byte leads to
        if path.suffix != ".safetensors" and not _is_saved(path):
            raise _not_saved(path) from error
        raise InputError(
            "these weights cannot be loaded",
            at=str(path),
            got=f"{type(error).__name__}: {error}".splitlines()[0],
            expected="a state dict, as torch.save or safetensors writes it",
        ) from error
    if not isinstance(found, Mapping):
        raise InputError("this file holds no weights", at=str(path), got=type(found).__name__, expected="a state dict")
    return found


def _is_saved(path: Path) -> bool:
    """Tell whether a file begins as those of ``torch.save`` do: an archive, or, before torch 1.6, a pickle."""
    with open(path, "rb") as file:
        return file.read(2) in (b"PK", b"\x80\x02")


def _not_saved(path: Path) -> InputError:
    return InputError(
        "these weights cannot be loaded",
        at=str(path),
        got="no file of torch.save",
        expected="a state dict, as torch.save or safetensors writes it",
        hint="torch.save(model.state_dict(), path) writes one; the name of one of safetensors ends in .safetensors",
    )


def _unwrapped(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Find the state dict in a checkpoint, and take wrappers off its names."""
    for key in INSIDE:
        if isinstance(found.get(key), Mapping):
            found = found[key]
            break
    while found and any(all(str(name).startswith(wrapper) for name in found) for wrapper in WRAPPERS):
        found = {name.partition(".")[2]: value for name, value in found.items()}
    return found
