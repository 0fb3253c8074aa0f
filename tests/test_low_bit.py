"""Methods for few bits together: each pair, one after the other, works or is refused by its words; what each gives goes
through everything that takes a Quantizer."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import FxQuantError, InputError
from tests.sampling import one_of

Method = Callable[[fxq.Quantizer, list[Tensor]], fxq.Quantizer]


class Net(nn.Module):
    """A convolution with a batch norm and a bounded activation, a depthwise one, a sum, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.expanded = nn.Sequential(nn.Conv2d(8, 16, 1), nn.ReLU(), nn.Conv2d(16, 8, 1))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.depthwise(self.first(x)))
        x = x + self.expanded(x)
        return self.head(x.mean((2, 3)))


def data() -> list[Tensor]:
    return [torch.randn(6, 3, 6, 6, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]


def net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net().eval()


def calibrated(mapping: Any, model: nn.Module | None = None) -> fxq.Quantizer:
    return fxq.calibrate(fxq.prepare(model or net(), data()[0], mapping), data(), progress=False)


def start() -> fxq.Quantizer:
    return calibrated(fxq.low_bit_qconfig(4, 6))


def equalized(prepared: fxq.Quantizer, batches: list[Tensor]) -> fxq.Quantizer:
    scaled = fxq.equalize(prepared, batches, keep_if=0.0, progress=False)
    return fxq.calibrate(scaled, batches, progress=False)


def searched(prepared: fxq.Quantizer, batches: list[Tensor]) -> fxq.Quantizer:
    budget, candidates = fxq.Budget(size=0.7), ["W3A8", "W8A8"]
    found = fxq.search_precision(prepared, batches, budget=budget, candidates=candidates, progress=False)
    mixed = fxq.prepare(prepared.graph_module, batches[0], found.mapping())
    return fxq.calibrate(mixed, batches, progress=False)


def _learned(name: str, **options: Any) -> Method:
    return lambda prepared, batches: getattr(fxq, name)(prepared, batches, progress=False, **options)


METHODS: dict[str, Method] = {
    "equalize": equalized,
    "search_precision": searched,
    "correct_statistics": _learned("correct_statistics"),
    "gptq": _learned("gptq"),
    "adaround": _learned("adaround", iterations=3, rows=32),
    "reconstruct": _learned("reconstruct", iterations=3),
}
LEARNED = ("correct_statistics", "gptq", "adaround", "reconstruct")
NOTHING_LEFT = {
    "correct_statistics": "no layer can be corrected",
    "gptq": "no weight can be rounded by gptq",
    "adaround": "no weight can be learned",
}
REFUSED: dict[tuple[str, str], str] = {
    **{(first, "equalize"): "equalize takes what prepare gave" for first in LEARNED},
    **{(first, "search_precision"): "search_precision takes what prepare and calibrate gave" for first in LEARNED},
    **{(first, second): text for first in ("correct_statistics", "gptq") for second, text in NOTHING_LEFT.items()},
    ("adaround", "gptq"): NOTHING_LEFT["gptq"],
    ("adaround", "correct_statistics"): NOTHING_LEFT["correct_statistics"],
}
"""Pairs whose second method has no use for what the first one learned: scaled weights and other bits have others, and
integers that are known are not looked for."""


@pytest.fixture(scope="module")
def after() -> dict[str, fxq.Quantizer]:
    """What each method gives."""
    return {name: _quietly(method, start()) for name, method in METHODS.items()}


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore:what was observed before equalize")
@pytest.mark.parametrize("second", one_of(3, METHODS))
@pytest.mark.parametrize("first", METHODS)
def test_pairs(first: str, second: str, after: dict[str, fxq.Quantizer]) -> None:
    expected, found = REFUSED.get((first, second), ""), ""
    try:
        both = METHODS[second](after[first], data())
        int8 = fxq.convert(both, check=data()[0])
        assert int8.parity.breaches == ()
    except FxQuantError as error:
        found = str(error)
    assert found.startswith(expected) if expected else found == ""


USES: dict[str, Callable[[fxq.Quantizer, Path], Any]] = {}


def use(function: Callable[[fxq.Quantizer, Path], Any]) -> Callable[[fxq.Quantizer, Path], Any]:
    USES[function.__name__] = function
    return function


@use
def all_forms(prepared: fxq.Quantizer, folder: Path) -> None:
    x = data()[0]
    assert torch.equal(fxq.convert(prepared, to="fake_quant")(x), fxq.convert(prepared, to="reference")(x))
    assert fxq.convert(prepared, check=x).parity.breaches == ()


@use
def comparison(prepared: fxq.Quantizer, folder: Path) -> None:
    table = fxq.compare(prepared, fxq.convert(prepared), data(), progress=False)
    assert len(table.rows) >= 5


@use
def report(prepared: fxq.Quantizer, folder: Path) -> None:
    assert "head" in fxq.report(prepared, folder / "report.html", data()).read_text()


@use
def files(prepared: fxq.Quantizer, folder: Path) -> None:
    x, expected = data()[0], fxq.convert(prepared)(data()[0])
    assert torch.equal(fxq.convert(pickle.loads(pickle.dumps(prepared)))(x), expected)
    for index, saved in enumerate((prepared, fxq.convert(prepared))):
        fxq.save(saved, folder / f"{index}.fxq")
        loaded = fxq.load(folder / f"{index}.fxq")
        assert torch.equal((fxq.convert(loaded) if index == 0 else loaded)(x), expected)


@use
def states(prepared: fxq.Quantizer, folder: Path) -> None:
    other = pickle.loads(pickle.dumps(prepared))
    other.load_state_dict(prepared.state_dict())
    assert torch.equal(fxq.convert(other)(data()[0]), fxq.convert(prepared)(data()[0]))


@use
def exported(prepared: fxq.Quantizer, folder: Path) -> None:
    x, int8 = data()[0], fxq.convert(prepared)
    assert torch.allclose(fxq.export(int8, x).module()(x), fxq.convert(prepared, to="reference")(x), atol=1e-4)


@use
def training(prepared: fxq.Quantizer, folder: Path) -> None:
    """The float graph, scaled or not, trains with the configuration that was found, and learns on."""
    qat = fxq.prepare_qat(prepared.graph_module, data()[0], prepared.config)
    qat(data()[0]).square().mean().backward()
    assert all(parameter.grad is not None for parameter in qat.parameters())
    assert fxq.convert(qat.eval())(data()[0]).isfinite().all()


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("method", "name"),
    one_of(2, [pytest.param(method, name, id=f"{method}-{name}") for method in METHODS for name in USES]),
)
def test_what_each_gives_goes_through(method: str, name: str, after: dict[str, fxq.Quantizer], tmp_path: Path) -> None:
    USES[name](after[method], tmp_path)


@pytest.mark.usefixtures("translations_read_once")
def test_onnx_takes_what_was_learned(after: dict[str, fxq.Quantizer], tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    fxq.export_onnx(fxq.convert(after["reconstruct"]), tmp_path / "model.onnx", data()[0])
    assert (tmp_path / "model.onnx").stat().st_size > 1000


@pytest.mark.filterwarnings("ignore:what was observed before equalize")
@pytest.mark.parametrize("method", one_of(3, METHODS))
def test_under_inference_mode(method: str, after: dict[str, fxq.Quantizer]) -> None:
    x = data()[0]
    with torch.inference_mode():
        made = _quietly(lambda prepared, batches: METHODS[method](prepared, [x.clone() for x in batches]), start())
        inside = fxq.convert(made)(x)
    assert torch.equal(inside, fxq.convert(after[method])(x))
    assert not any(tensor.is_inference() for tensor in made.state_dict().values())


@pytest.mark.slow
def test_gradients_of_batches_that_were_made_under_inference_mode() -> None:
    with torch.inference_mode():
        batches = [x.clone() for x in data()]
    prepared, options = start(), {"budget": fxq.Budget(size=0.7), "estimate": "gradient", "progress": False}
    found, expected = (fxq.search_precision(prepared, each, **options) for each in (batches, data()))
    assert [row.choice for row in found] == [row.choice for row in expected]


def test_what_was_trained_is_refused_by_each() -> None:
    qat = fxq.prepare_qat(net(), data()[0])
    for name, method in METHODS.items():
        with pytest.raises(InputError, match=f"{name} takes what prepare gave"):
            method(qat, data())  # type: ignore[arg-type]


def _quietly(method: Method, prepared: fxq.Quantizer) -> fxq.Quantizer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fxq.FxQuantWarning)
        return method(prepared, data())
