"""Stores in a folder what a long run has learned so far, so that an interrupted one goes on."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fxquant.distributed.shared_numbers import compare_in_ranks
from fxquant.distributed.sharing import active_ranks
from fxquant.errors import InputError, check_type, writing
from fxquant.kernels.raw_bytes import raw_bytes
from fxquant.plan.quant_plan import QuantPlan

IDENTITY = "identity.json"


Learned = Mapping[str, Tensor | float]
"""What a finished unit learned: tensors and numbers by their names."""


class Checkpoint:
    """A file for each finished unit, and one that says what the run is.

    Args:
        folder: Made if it is not there.
        identity: What must be the same for a run to go on, by name.

    Raises:
        InputError: the folder holds another run, and the message says what differs; or it cannot be written to.
    """

    def __init__(self, folder: str | os.PathLike[str], identity: Mapping[str, str]) -> None:
        check_type("checkpoint", folder, (str, os.PathLike), "the path of a folder, or None")
        self._folder = Path(folder)
        # Of ranks that share work, the first one makes the folder.
        ranks = active_ranks()
        if ranks is not None and ranks.rank > 0:
            ranks.gather_text("the checkpoint", "")
        self._open(identity)
        if ranks is not None and ranks.rank == 0:
            ranks.gather_text("the checkpoint", "")

    def _open(self, identity: Mapping[str, str]) -> None:
        """Make the folder, or see whether it holds the same run."""
        with self._writing():
            self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / IDENTITY
        if path.exists():
            found = _read_identity(path)
            if differing := [name for name in {**found, **identity} if found.get(name) != identity.get(name)]:
                raise InputError(
                    f"the checkpoint is of another run: {', '.join(differing)} differ",
                    at=str(self._folder),
                    got="; ".join(f"{name}: {identity.get(name)}" for name in differing),
                    expected="; ".join(f"{name}: {found.get(name)}" for name in differing),
                    hint="give another folder, or remove this one",
                )
        elif any(self._folder.iterdir()):
            raise InputError(
                "the folder is no checkpoint, and not empty",
                at=str(self._folder),
                expected=f"a folder with {IDENTITY}, an empty one, or none",
            )
        else:
            self._write(path, (json.dumps(dict(identity), indent=1) + "\n").encode())

    def load(self, index: int, like: Learned) -> dict[str, Any] | None:
        """Return what the unit of that number learned; None if it is not finished.

        Args:
            index: Of the unit.
            like: Names, with tensors of the shapes and dtypes that belong to them, or any number.

        Raises:
            InputError: the file is damaged, or of another unit.
        """
        path = self._folder / f"{index:04}.pt"
        if not path.exists():
            return None
        try:
            state = torch.load(path, weights_only=True)
        except Exception as error:  # torch raises whatever the first damaged byte leads to
            raise _damaged(
                path, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            ) from error
        if not isinstance(state, dict) or not all(_alike(state.get(name), value) for name, value in like.items()):
            raise _damaged(path, f"{type(state).__name__} of other entries", ", ".join(like))
        for name, value in like.items():
            _check_tensor(path, name, state[name], value)
        return {name: state[name] for name in like}

    def save(self, index: int, learned: Learned) -> None:
        """Write down what the unit of that number learned."""
        path = self._folder / f"{index:04}.pt"
        state = {name: value.cpu() if isinstance(value, Tensor) else value for name, value in learned.items()}
        content = io.BytesIO()
        torch.save(state, content)
        self._write(path, content.getbuffer())

    def _write(self, path: Path, content: bytes | memoryview) -> None:
        new = path.with_suffix(f".{os.getpid()}.new")  # of each rank that shares work
        with self._writing():
            new.write_bytes(content)
            os.replace(new, path)  # neither an interrupt nor a full disk leaves half a file

    def _writing(self) -> AbstractContextManager[None]:
        return writing(
            "the checkpoint", self._folder, hint='checkpoint="folder" names a folder, which need not be there'
        )


def _alike(found: object, like: Tensor | float) -> bool:
    """Tell whether an entry of a file is a tensor or a number, as it should be."""
    return isinstance(found, Tensor if isinstance(like, Tensor) else float)


def _check_tensor(path: Path, name: str, found: Tensor | float, like: Tensor | float) -> None:
    """Refuse a tensor of another shape or kind, or one that is not finite."""
    if not isinstance(found, Tensor) or not isinstance(like, Tensor):
        return
    known = found.is_complex() or bool(found.isfinite().all())
    kind = like.is_floating_point()
    if found.shape != like.shape or found.is_complex() or found.is_floating_point() != kind or not known:
        got = f"{name}: {found.dtype} {list(found.shape)}" + ("" if known else ", not finite")
        raise _damaged(path, got, f"{name}: {'finite' if kind else 'whole'} numbers, {list(like.shape)}")


def _read_identity(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}", "JSON") from error
    if not isinstance(found, dict):
        raise _damaged(path, type(found).__name__, "an object of JSON")
    return found


def _damaged(path: Path, got: str, expected: str = "a file that was written whole") -> InputError:
    return InputError(
        "a file of the checkpoint is damaged, or of another run",
        at=str(path),
        got=got,
        expected=expected,
        hint="remove the file, and its unit is learned anew; for identity.json, give another folder",
    )


def open_checkpoint(
    what: str, folder: str | os.PathLike[str] | None, identity: Callable[[], dict[str, str]]
) -> Checkpoint | None:
    """Return the checkpoint of a run in a folder; None without one. Ranks that share work compare their identities.

    Args:
        what: The call, for messages.
        folder: The folder.
        identity: Gives what must be the same; called where it is asked for.

    Raises:
        InputError: as for ``Checkpoint``.
        RankError: another rank does not go on, or has another identity.
    """
    compare_in_ranks(what, identity)
    return None if folder is None else Checkpoint(folder, identity())


def run_identity(
    choices: str, gm: nn.Module, plan: QuantPlan, layers: Mapping[str, Any], inputs: Any
) -> dict[str, str]:
    """Return what must be the same for a run to end with the same bits, as short texts by their names."""
    qparams_by_name = [
        (ref.name, str(qparams.scheme), qparams.scale, qparams.zero_point) for ref, qparams in plan.qparams.items()
    ]
    rounding = [(root, *layer.weight_fake_quant.state_dict().items()) for root, layer in layers.items()]
    return {
        "choices": choices,
        "plan": digest([str(plan.units), sorted(qparams_by_name, key=lambda each: each[0]), rounding]),
        "weights": digest([*gm.state_dict().items()]),
        "data": digest(inputs),
    }


def digest(values: Iterable[Any]) -> str:
    """Return a checksum of tensors, in any structure, and of whatever else has a meaningful ``repr``."""
    found = hashlib.sha256()
    for leaf in pytree.tree_leaves(list(values)):
        if isinstance(leaf, Tensor):
            found.update(f"{tuple(leaf.shape)} {leaf.dtype}".encode())
            found.update(raw_bytes(leaf.cpu()).numpy().data)
        else:
            found.update(repr(leaf).encode())
    return found.hexdigest()[:16]
