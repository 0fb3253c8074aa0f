"""Files that somebody changed, thrown at ``fxq.load``, in a process that may take little more memory than the file has.

python tests/artifact/mutations.py FILE COUNT SEED    # FILE may be "new" or "prepared": then a small model is made
"""

from __future__ import annotations

import copy
import json
import random
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fxquant as fxq
from fxquant.errors import ArtifactError

MORE = 300 << 20
"""Bytes beside the process as it is, and the file."""

ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**40, 2**63, 10**30, 0.5, "", "x", "os.system", "__class__", "a.b.c", [], {}, [[]]),
    *({"n": "x"}, {"c": "torch.relu"}, {"t": "int8"}, {"u": [1, 2]}, {"l": []}, {"f": "nan"}, {"o": "Clamp", "v": {}}),
    *({"o": "QScheme", "v": {"bits": 99}}, {"z": [2**40]}, {"s": [1, 2, 3]}, "x); import os; (", "torch.nn.Linear"),
    *("fxquant.nn.QuantizedConv", "torch.nn.LSTM", "builtins.eval", "no buffer", "parameter", "unsaved", "\ud800"),
)


def main() -> None:
    count, seed = int(sys.argv[2]), int(sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        path = new_file(Path(folder), sys.argv[1]) if sys.argv[1] in ("new", "prepared") else Path(sys.argv[1])
        original = path.read_bytes()
        fxq.load(path)
    limit_memory(len(original))
    loaded = 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(seed, seed + count):
            changed = Path(folder) / "changed.fxq"
            changed.write_bytes(mutated(original, random.Random(number)))
            try:
                fxq.load(changed)
                loaded += 1
            except ArtifactError as error:
                str(error).encode()
            except BaseException:
                print(f"mutation {number} raised something else", file=sys.stderr)
                raise
    print(json.dumps({"count": count, "loaded": loaded}))


def new_file(folder: Path, kind: str) -> Path:
    """A file of a small model, converted or prepared."""
    x = torch.randn(2, 3, 8, 8)
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.ConvTranspose2d(4, 4, 2), nn.Tanh(), nn.Linear(7, 4)
    prepared = fxq.calibrate(fxq.prepare(nn.Sequential(*layers).eval(), x), [x], progress=False)
    fxq.save(prepared if kind == "prepared" else fxq.convert(prepared), folder / "new.fxq")
    return folder / "new.fxq"


def limit_memory(size: int) -> None:
    """Let the process grow by the file and by ``MORE``, where the system says how large it is."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + size + MORE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def mutated(data: bytes, choice: random.Random) -> bytes:
    """Change bytes, the header, or the graph inside of it."""
    kind = choice.choice((flipped, cut, with_other_header, with_other_graph, with_other_graph, with_other_graph))
    return kind(data, choice)


def flipped(data: bytes, choice: random.Random) -> bytes:
    """Change some bytes, most of them in the header."""
    found = bytearray(data)
    for _ in range(choice.randint(1, 8)):
        end = choice.choice((8, 200, len(found) // 2, len(found)))
        found[choice.randrange(end)] = choice.randrange(256)
    return bytes(found)


def cut(data: bytes, choice: random.Random) -> bytes:
    """Cut the file off, or put something behind it."""
    place = choice.randrange(len(data))
    return choice.choice((data[:place], data + data[:place], data[place:], data[:place] + b"[" * 5000 + data[place:]))


def parts(data: bytes) -> tuple[Any, bytes]:
    """The header, parsed, and what is behind it."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def joined(header: Any, rest: bytes) -> bytes:
    """A file of a header and tensors."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + rest


def with_other_header(data: bytes, choice: random.Random) -> bytes:
    """Change where tensors lie, their names or the metadata."""
    header, rest = parts(data)
    return joined(changed(header, choice, choice.choice((1, 1, 3))), rest)


def with_other_graph(data: bytes, choice: random.Random) -> bytes:
    """Change the graph, the modules or the plan."""
    header, rest = parts(data)
    graph = json.loads(header["__metadata__"]["fxquant.graph"])
    header["__metadata__"]["fxquant.graph"] = json.dumps(changed(graph, choice, choice.choice((1, 1, 1, 2, 5))))
    return joined(header, rest)


def changed(data: Any, choice: random.Random, times: int) -> Any:
    """Put something odd in some places, take something away, or say it twice."""
    for _ in range(times):
        holder, key = place_in(data, choice)
        if holder is None:
            return copy.deepcopy(choice.choice(ODD))
        what = choice.choice(("odd", "drop", "twice", "near"))
        if what == "drop":
            del holder[key]
        elif what == "twice" and isinstance(holder, list):
            holder.insert(choice.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
        elif what == "near" and isinstance(holder[key], (int, float)):
            holder[key] = holder[key] + choice.choice((-1, 1, 256, -256, 0.5))
        else:
            holder[key] = copy.deepcopy(choice.choice(ODD))
    return data


def place_in(data: Any, choice: random.Random) -> tuple[Any, Any]:
    """A random place: a list or dict, and an index or key in it."""
    holder, key = None, None
    while isinstance(data, (list, dict)) and data and (holder is None or choice.random() < 0.85):
        holder, key = data, choice.randrange(len(data)) if isinstance(data, list) else choice.choice(sorted(data))
        data = holder[key]
    return holder, key


if __name__ == "__main__":
    main()
