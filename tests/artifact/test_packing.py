"""Weights of few bits take few bits of a file, and tables answer as they did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.artifact.packing import pack, unpack
from fxquant.errors import ArtifactError
from fxquant.nn import QuantizedTable


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_every_value_comes_back(bits: int, dtype: torch.dtype) -> None:
    low = 0 if dtype == torch.uint8 else -(2 ** (bits - 1))
    for count in range(20):
        values = (torch.arange(count) % 2**bits + low).to(dtype)
        packed: Any = pack(values, bits)
        assert packed.shape == (-(-count * bits // 8),)
        found = unpack(packed, bits, count, dtype == torch.int8)
        assert found.dtype == dtype
        assert torch.equal(found, values)
    assert pack(torch.tensor([2 ** (bits - 1) if dtype == torch.int8 else 2**bits], dtype=dtype), bits) is None


def test_the_first_value_is_in_the_lowest_bits() -> None:
    four: Any = pack(torch.tensor([1, -1, 7], dtype=torch.int8), 4)
    two: Any = pack(torch.tensor([1, 2, 3, 0, 3], dtype=torch.uint8), 2)
    assert four.tolist() == [0xF1, 0x07]
    assert two.tolist() == [0b00_11_10_01, 3]


def network(bits: int, x: Tensor, **groups: int) -> Any:
    weight = fxq.PerChannelMinMaxObserver.with_args(bits=bits, dtype=torch.int8, qscheme="per_channel_symmetric")
    only_weight = fxq.QConfig(activation=fxq.PlaceholderObserver, weight=weight.with_args(**groups))
    qconfig = fxq.QConfig(activation=fxq.MinMaxObserver, weight=weight)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 7, 3), nn.Flatten(), nn.Linear(112, 50))
    mapping = fxq.QConfigMapping().set_global(qconfig).set_module_name("4", only_weight)
    return fxq.calibrate(fxq.prepare(model.eval(), x, mapping), [x], progress=False)


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("form", ["int8", "reference"])
def test_weights_in_a_file(bits: int, form: str, tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8)
    model = fxq.convert(network(bits, x, group_size=16), to=form)
    fxq.save(model, tmp_path / "a.fxq")
    loaded = fxq.load(tmp_path / "a.fxq")
    assert torch.equal(loaded(x), model(x))
    state, wanted = loaded.state_dict(), model.state_dict()
    assert list(state) == list(wanted)
    for name, value in wanted.items():
        assert torch.equal(state[name], value)
        assert state[name].stride() == value.stride()
    full = fxq.convert(network(8, x, group_size=16), to=form)
    fxq.save(full, tmp_path / "b.fxq")
    small, large = (fxq.inspect_artifact(tmp_path / f"{name}.fxq") for name in "ab")
    assert small.parameters == large.parameters
    saved = sum(value.numel() for name, value in wanted.items() if name.endswith(".weight"))
    assert sum(large.dtypes.values()) - sum(small.dtypes.values()) == pytest.approx(saved * (3 if bits == 2 else 2) / 4)


def test_learned_integers_of_four_bits(tmp_path: Path) -> None:
    x = torch.randn(8, 3, 8, 8)
    learned = fxq.adaround(network(4, x), [x], iterations=3, progress=False)
    fxq.save(learned, tmp_path / "a.fxq")
    assert torch.equal(fxq.convert(fxq.load(tmp_path / "a.fxq"))(x), fxq.convert(learned)(x))


def changed(path: Path, change: Any) -> Path:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, rest = json.loads(data[8 : 8 + length]), bytearray(data[8 + length :])
    graph = json.loads(header["__metadata__"]["fxquant.graph"])
    change(graph, header, rest)
    header["__metadata__"]["fxquant.graph"] = json.dumps(graph)
    text = json.dumps(header).encode()
    path.with_name("changed.fxq").write_bytes(len(text).to_bytes(8, "little") + text + bytes(rest))
    return path.with_name("changed.fxq")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    x = torch.randn(2, 3, 8, 8)
    fxq.save(fxq.convert(network(4, x)), tmp_path / "a.fxq")
    return tmp_path / "a.fxq"


def layout(**fields: Any) -> Any:
    def change(graph: Any, *_: Any) -> None:
        graph["layouts"]["0.weight"] |= fields

    return change


PACKED: dict[str, tuple[Any, str]] = {
    "larger": (layout(shape=[2**30, 2**9]), "another size than its values"),
    "of no size": (layout(shape=[-1]), "of no form"),
    "of other bits": (layout(bits=1), "of no form"),
    "of more fields": (layout(code=1), "of no form"),
    "of an order that is none": (layout(order=[0, 0, 1, 2]), "lies in no order"),
    "of another tensor": (
        lambda graph, *_: graph["layouts"].update({"nothing": graph["layouts"]["0.weight"]}),
        "is not there",
    ),
    "of 8 bits": (lambda graph, *_: graph["layouts"].pop("0.weight"), "module 0"),
}


@pytest.mark.parametrize("name", PACKED)
def test_packed_tensors_that_are_none(name: str, file: Path) -> None:
    change, words = PACKED[name]
    with pytest.raises(ArtifactError) as caught:
        fxq.load(changed(file, change))
    assert words in str(caught.value)


def answer(graph: Any, header: Any, rest: bytearray) -> None:
    begin, _ = header["#table/1"]["data_offsets"]
    rest[begin + 200] ^= 1


def test_a_table_answers_as_the_file_says(file: Path) -> None:
    whole, other = fxq.load(file), fxq.load(changed(file, answer))
    tables = [module for model in (whole, other) for module in model.modules() if isinstance(module, QuantizedTable)]
    assert len(tables) == 2
    for move in (lambda table: table, lambda table: table.to("cpu").double()):
        first, second = (move(table).packed() for table in tables)
        assert torch.nonzero(first != second).tolist() == [[200]]
    other.load_state_dict(whole.state_dict())  # of other qparams, perhaps: the function answers
    assert torch.equal(tables[1].packed(), tables[0].packed())


def test_answers_that_are_none(file: Path) -> None:
    def rename(graph: Any, header: Any, rest: bytearray) -> None:
        header["#table/2"] = header.pop("#table/1")

    def reshape(graph: Any, header: Any, rest: bytearray) -> None:
        header["#table/1"]["shape"] = [2, 128]

    for change, words in ((rename, "answers of other tables"), (reshape, "are no quantized values")):
        with pytest.raises(ArtifactError, match=words):
            fxq.load(changed(file, change))
