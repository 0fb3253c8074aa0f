"""Keys of dicts in files: plain values come back as what they are, and ``save`` refuses others by name."""

from __future__ import annotations

import json
import math
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph

import fxquant as fxq
from fxquant.artifact.example import decode_example, encode_example
from fxquant.artifact.values import decode, encode
from fxquant.errors import ArtifactError

KEYS: tuple[Any, ...] = (
    *("a", "", 3, -(2**62), True, False, None, 0.5, -0.0, 1e-320, math.inf, -math.inf, math.nan, ..., ()),
    *(torch.float32, torch.device("cpu"), torch.channels_last, torch.Size([2, 3])),
    *(("disp", 0), ("a", (None, (torch.int8, -1.5)), True), (math.nan, 1)),
)


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_keys(key: Any) -> None:
    ((found, value),) = decode(json.loads(json.dumps(encode({key: 7})))).items()
    assert type(found) is type(key)
    assert repr(found) == repr(key)
    assert value == 7
    assert {key: 1}[found] == 1


class Colour(Enum):
    RED = "red"


def _node() -> Any:
    return Graph().placeholder("x")


@pytest.mark.parametrize(
    "key",
    [Colour.RED, object(), frozenset((1,)), torch.relu, float, (1, object()), (1, _node()), float("nan"), 1j],
    ids=lambda key: type(key).__name__,
)
def test_keys_that_no_file_holds(key: Any) -> None:
    with pytest.raises(ArtifactError, match="a file cannot hold a dict with this key") as caught:
        encode({key: 7})
    assert ascii(key)[:120] in str(caught.value)


@pytest.mark.parametrize(
    "pairs",
    [
        *(
            [[{"l": []}, 1]],
            [[{"u": [1, {"l": [2]}]}, 1]],
            [[{"d": []}, 1]],
            [[{"u": [{"d": []}]}, 1]],
            [[{"n": "x"}, 1]],
        ),
        *([[{"c": "torch.relu"}, 1]], [[{"s": [1, 2, 3]}, 1]], [[{"o": "Clamp", "v": {}}, 1]], [[{"t": "int9"}, 1]]),
        *([[1, 2], [1, 3]], [[1, 2], [True, 3]], [[{"f": "nan"}, 2], [{"f": "nan"}, 3]], [[1]], [1], 1, [[[], 1]]),
    ],
    ids=json.dumps,
)
def test_damaged_keys_are_refused(pairs: Any) -> None:
    with pytest.raises(ArtifactError):
        decode({"d": pairs}, lambda name: _node())
    with pytest.raises(ArtifactError):
        decode_example({"pairs": pairs})


def test_keys_that_are_too_deep_are_refused() -> None:
    key: Any = 1
    for _ in range(100):
        key = {"u": [key]}
    with pytest.raises(ArtifactError, match="too deep"):
        decode({"d": [[key, 1]]})


class ByKeys(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, batch: Any) -> Any:
        y = self.fc(batch["x", 0])
        return {("disp", 0): y, None: y + 1, 2.5: {torch.float32: y * 2, (1, (None,)): y}, True: y - 1, math.nan: y}


def _same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, Tensor):
        assert torch.equal(found, wanted)
        return
    assert repr(list(found)) == repr(list(wanted))
    for one, two in zip(found.values(), wanted.values(), strict=True):
        _same(one, two)


def test_models_that_take_and_give_dicts_of_such_keys(tmp_path: Path) -> None:
    torch.manual_seed(0)
    batch = {("x", 0): torch.randn(2, 4), 7: torch.randn(1)}
    prepared = fxq.calibrate(fxq.prepare(ByKeys().eval(), (batch,)), [(batch,)], progress=False)
    fxq.save(prepared, tmp_path / "p.fxq")
    fxq.save(fxq.convert(prepared), tmp_path / "m.fxq")
    wanted = fxq.convert(prepared)(batch)
    assert wanted["disp", 0].shape == (2, 4)
    _same(fxq.load(tmp_path / "m.fxq")(batch), wanted)
    loaded = fxq.load(tmp_path / "p.fxq")
    _same(fxq.convert(loaded)(batch), wanted)
    _same(loaded.graph_module(batch), prepared.graph_module(batch))
    assert list(loaded.example_args[0]) == list(batch)


def test_examples_that_are_dicts() -> None:
    example = {("x", 0): torch.ones(2, 3), None: {1: torch.ones(1), "a": 2}}
    found = decode_example(json.loads(json.dumps(encode_example(example))))
    assert list(found) == list(example)
    assert list(found[None]) == [1, "a"]
    assert found["x", 0].shape == (2, 3)
