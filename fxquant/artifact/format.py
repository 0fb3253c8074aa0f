"""The container: a safetensors file whose metadata hold the model. Its header is checked before anything is made."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from fxquant.errors import ArtifactError
from fxquant.graph.inputs import describe_value

FORMAT = 3
"""What is written, and the newest that is read. The second holds lookup tables and integer borders; the third holds
qparams of the plan once, where a module has the same."""
KEYS = ("fxquant.format", "fxquant.kind", "fxquant.written_by", "fxquant.graph", "fxquant.notes")
KINDS = ("int8", "reference", "fake_quant", "float", "prepared")

_DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
_IN_PYTHON = {dtype: str(dtype).removeprefix("torch.") for dtype in _DTYPES.values()}
_TENSOR_NAME = re.compile(r"(#inside/[\w\-/@.]{1,512}/)?(#plan/|#state/|#rounding/|#table/)?[\w\-/@.]{1,512}", re.ASCII)
_MOST_DIMENSIONS = 32
_ROOM = 1 << 20
"""Bytes that must be free beside those of the file."""


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """Limits what a file may ask for. A larger one is refused before memory is taken for it."""

    file: int = 16 << 30
    """Bytes of the file."""
    header: int = 32 << 20
    """Bytes of its header, in which the graph stands. The parser needs about twelve times as much memory."""
    nodes: int = 200_000
    """Nodes of the graph, and modules."""
    tensors: int = 200_000


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor lies in the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """Holds what stands before the tensors."""

    metadata: Mapping[str, str]
    tensors: Mapping[str, Stored]
    size: int
    """Bytes of the file."""

    @property
    def format(self) -> int:
        return int(self.metadata["fxquant.format"])

    @property
    def kind(self) -> str:
        return self.metadata["fxquant.kind"]

    def graph(self) -> dict[str, Any]:
        """Parse the graph."""
        return parsed(self.metadata["fxquant.graph"], "the graph")


def parsed(text: str, what: str) -> dict[str, Any]:
    """Parse a JSON object: no key twice, no NaN, no number of thousands of digits.

    Raises:
        ArtifactError: it is none.
    """
    try:
        found = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError, MemoryError) as error:
        raise ArtifactError(
            f"{what} in the file cannot be parsed", got=ascii(str(error))[:200], expected="JSON"
        ) from error
    if not isinstance(found, dict):
        raise ArtifactError(f"{what} in the file is no JSON object", got=type(found).__name__)
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def read_header(path: str | os.PathLike[str], limits: LoadLimits) -> Header:
    """Read and check everything before the tensors.

    Raises:
        ArtifactError: the file cannot be opened, is none of this package, of a newer format, or larger than allowed.
    """
    path = path_of(path)
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            text = _header_text(file.read(8), size, limits, file)
    except OSError as error:
        raise ArtifactError("the file cannot be read", at=str(path)[:300], got=error.strerror) from error
    found = parsed(text, "the header")
    header = Header(_metadata(found.pop("__metadata__", None)), _stored(found, size - 8 - len(text.encode())), size)
    if len(header.tensors) > limits.tensors:
        raise ArtifactError(
            "the file holds more tensors than allowed", got=len(header.tensors), expected=f"at most {limits.tensors}"
        )
    return header


def _header_text(start: bytes, size: int, limits: LoadLimits, file: Any) -> str:
    length = int.from_bytes(start, "little")
    if size > limits.file:
        raise ArtifactError(
            "the file is larger than allowed", got=f"{size:,} bytes", expected=f"at most {limits.file:,}"
        )
    if len(start) < 8 or length < 2 or length > size - 8:
        raise ArtifactError("this file is no fxquant artifact", got=f"a header of {length:,} bytes in {size:,}")
    if length > limits.header:
        raise ArtifactError(
            "the header of the file is larger than allowed",
            got=f"{length:,} bytes",
            expected=f"at most {limits.header:,}",
        )
    try:
        return str(file.read(length), "utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError("this file is no fxquant artifact", got="a header that is no text") from error


def _metadata(found: Any) -> dict[str, str]:
    if not isinstance(found, dict) or "fxquant.format" not in found:
        raise ArtifactError("this file is no fxquant artifact", got="no key fxquant.format")
    if not all(isinstance(value, str) for value in found.values()):
        raise ArtifactError("the metadata of the file are no strings")
    version = found["fxquant.format"]
    if not version.isascii() or not version.isdigit() or len(version) > 9:
        raise ArtifactError("the file does not say what format it has", got=ascii(version)[:40])
    if int(version) > FORMAT:
        raise ArtifactError(
            "the file is of a newer format", got=version, expected=f"at most {FORMAT}", hint="pip install -U fxquant"
        )
    if set(found) != set(KEYS) or found["fxquant.kind"] not in KINDS:
        raise ArtifactError("the metadata of the file are incomplete, or hold more", got=ascii(sorted(found))[:200])
    return found


def _stored(found: Mapping[str, Any], room: int) -> dict[str, Stored]:
    """Check that tensors lie one after the other, and fill the file."""
    tensors = {name: _entry(name, entry) for name, entry in found.items()}
    place = 0
    for name, entry in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        wanted = math.prod(entry.shape) * entry.dtype.itemsize
        if wanted > room:
            raise ArtifactError(
                "the file wants more memory than it is long",
                got=f"tensor {name} of {wanted:,} bytes" if wanted < 2**63 else f"tensor {name} of 2^63 bytes or more",
                expected=f"at most {room:,}",
            )
        if entry.begin != place or entry.end - entry.begin != wanted:
            raise ArtifactError("the tensors of the file overlap, or leave gaps", at=name)
        place = entry.end
    if place != room:
        raise ArtifactError(
            "the file is cut off, or longer than its tensors", got=f"{room:,} bytes", expected=f"{place:,}"
        )
    return tensors


def _entry(name: str, entry: Any) -> Stored:
    if not _TENSOR_NAME.fullmatch(name):
        raise ArtifactError("a tensor in the file has a name that no model gives", got=ascii(name)[:120])
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ArtifactError("the header of the file is damaged", at=name)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ArtifactError("a tensor in the file has an unknown dtype", at=name, got=ascii(dtype)[:40])
    if not _are_sizes(shape) or len(shape) > _MOST_DIMENSIONS or not _are_sizes(offsets) or len(offsets) != 2:
        raise ArtifactError("the header of the file is damaged", at=name)
    return Stored(_DTYPES[dtype], tuple(shape), *offsets)


def can_hold(dtype: torch.dtype) -> bool:
    """Tell whether a file may hold tensors of this dtype. safetensors has no complex numbers of 128 bits."""
    return dtype in _IN_PYTHON


def _are_sizes(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(type(number) is int and 0 <= number < 2**63 for number in numbers)


def read_tensors(path: str | os.PathLike[str], header: Header) -> dict[str, Tensor]:
    """Read all tensors into memory of their own: nothing depends on the file afterwards.

    Raises:
        ArtifactError: the file changed since its header was read.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name).clone() for name in header.tensors}
    except (safetensors.SafetensorError, OSError) as error:
        raise ArtifactError("the file cannot be read", at=os.fspath(path), got=ascii(str(error))[:200]) from error
    for name, stored in header.tensors.items():
        if (tensors[name].dtype, tuple(tensors[name].shape)) != (stored.dtype, stored.shape):
            raise ArtifactError("the file changed while it was read", at=name)
    return tensors


def path_of(path: object) -> Path:
    """Return the path that a user gave.

    Raises:
        ArtifactError: it is none.
    """
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise ArtifactError("this is no path of a file", got=describe_value(path), expected="a str or a pathlib.Path")
    text = str(os.fspath(path))
    if not text or "\0" in text:
        raise ArtifactError("this is no path of a file", got=ascii(text)[:120], expected="a name without a null byte")
    return Path(text)


def check_place(path: Path, overwrite: bool, size: int = 0, option: str = "overwrite=True") -> None:
    """Refuse a place that cannot be written to, before any work is done.

    Args:
        path: Where to.
        overwrite: Whether a file may stand there already.
        size: Bytes to write.
        option: How the caller says that one may, for the message.

    Raises:
        ArtifactError: the folder is missing or cannot be written to, the file exists, or the disk is too full.
    """
    try:
        _check_place(path, overwrite, size, option)
    except OSError as error:  # a name that is too long, a folder that cannot be entered
        raise ArtifactError("the file cannot be written", at=str(path)[:300], got=error.strerror) from error


def _check_place(path: Path, overwrite: bool, size: int, option: str) -> None:
    folder = path.parent
    if not folder.is_dir():
        raise ArtifactError(
            "the file cannot be written", at=str(path), got=f"no folder {folder}", hint="make the folder first"
        )
    if path.is_dir():
        raise ArtifactError("the file cannot be written", at=str(path), got="a folder of that name")
    if path.exists() and not overwrite:
        raise ArtifactError(
            "the file exists already", at=str(path), expected="a new name", hint=f"{option} takes its place"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ArtifactError("the file cannot be written", at=str(path), got="no right to write into the folder")
    if (free := shutil.disk_usage(folder).free) < size + _ROOM:
        raise ArtifactError(
            "the disk is too full", at=str(path), got=f"{free:,} bytes free", expected=f"{size + _ROOM:,}"
        )


def write_file(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write beside the place, then put the whole file there at once.

    Args:
        path: Where to.
        tensors: Contiguous, on the CPU.
        metadata: As ``KEYS`` says.

    Raises:
        ArtifactError: the system refuses; what stood there before still does.
    """
    specs = {
        name: safetensors.TensorSpec(
            dtype=_IN_PYTHON[tensor.dtype],
            shape=list(tensor.shape),
            data_ptr=tensor.data_ptr(),
            data_len=tensor.numel() * tensor.element_size(),
        )
        for name, tensor in tensors.items()
    }
    try:
        with written_beside(path) as part:
            safetensors.serialize_file(specs, part, dict(metadata))
    except (safetensors.SafetensorError, OSError) as error:
        raise ArtifactError("the file cannot be written", at=str(path), got=ascii(str(error))[:200]) from error


@contextlib.contextmanager
def written_beside(path: Path) -> Iterator[str]:
    """Make a file in the same folder, which takes the name if all goes well, and goes away otherwise."""
    handle, part = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    try:
        yield part
        with open(part, "rb+") as file:
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(part, 0o666 & ~mask)  # as any file that is opened for writing; mkstemp keeps it from others
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
