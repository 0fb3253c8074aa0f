"""``fxq.export`` with a dynamic batch, from every form, before and after runs; what a file without operators says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import ExportError, InputError
from tests.sampling import one_of

FORMS = ("int8", "reference", "fake_quant")


class Net(nn.Module):
    """A residual, pools, a head, and a second input."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.head = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: Tensor, factor: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = nn.functional.max_pool2d(torch.relu(self.conv(x) + x), 2)
        return self.head(x.mean((2, 3))) * factor


@pytest.fixture(scope="module")
def quantizer() -> fxq.Quantizer:
    torch.manual_seed(0)
    x, factor = torch.randn(2, 3, 8, 8), torch.ones(2, 1)
    return fxq.calibrate(fxq.prepare(Net().eval(), (x, factor)), [(x, factor)], progress=False)


@pytest.mark.parametrize("form", one_of(3, FORMS))
def test_a_dynamic_batch_before_and_after_runs(quantizer: fxq.Quantizer, form: str) -> None:
    x, factor = torch.randn(2, 3, 8, 8), torch.full((2, 1), 2.0)
    reference = fxq.convert(quantizer, to="reference")
    batch = torch.export.Dim("batch", max=64)
    for runs in (0, 3):
        model = fxq.convert(quantizer, to=form)
        for _ in range(runs):
            model(x, factor)
        program = fxq.export(
            model, (x,), example_kwargs={"factor": factor}, dynamic_shapes={"x": {0: batch}, "factor": {0: batch}}
        )
        targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
        assert not [target for target in targets if "fxquant" in target or target.startswith("aten.to.")]
        assert {
            f"quantized_decomposed.{name}.default" for name in ("quantize_per_tensor", "dequantize_per_channel")
        } <= targets
        more = torch.cat([x, x.flip(0), x])
        factors = torch.cat([factor] * 3)
        assert torch.equal(program.module()(more, factor=factors), reference(more, factors))


def test_a_lone_tensor_is_the_input() -> None:
    x = torch.randn(2, 3)
    int8 = fxq.quantize(nn.Sequential(nn.Linear(3, 2)).eval(), [x], progress=False)
    explicit = fxq.explicit(int8)
    assert torch.equal(fxq.export(int8, x).module()(x), explicit(x))
    assert torch.equal(fxq.export(explicit, (x,)).module()(x), explicit(x))


@dataclass
class Pair:
    """What ``Boxed`` returns, where it is not registered as a pytree."""

    first: Tensor
    second: Tensor


class Boxed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Pair:
        y = self.layer(x)
        return Pair(y, y + 1)


class TestRefusals:
    def test_outputs_of_a_class_that_is_not_registered(self) -> None:
        x = torch.randn(2, 3)
        with pytest.raises(ExportError) as caught:
            fxq.export(fxq.quantize(Boxed().eval(), [x], progress=False), x)
        text = str(caught.value)
        assert "torch.export.register_dataclass(Pair)" in text
        assert "dynamic_shapes" not in text

    @pytest.mark.parametrize(
        ("inputs", "words"),
        [
            (None, "there are no example inputs"),
            (3, "the example inputs do not run through the model: "),
            ({"input": torch.zeros(2, 3)}, "the example inputs do not run through the model: "),
            (torch.zeros(2, 4), "the example inputs do not run through the model: "),
            ((torch.zeros(2, 3), torch.zeros(2, 3)), "the example inputs do not fit the model's forward"),
        ],
    )
    def test_inputs(self, inputs: object, words: str) -> None:
        with pytest.raises(InputError) as caught:
            fxq.export(self.int8(), inputs)
        assert str(caught.value).startswith(words)

    @pytest.mark.parametrize("shapes", [3, ({7: torch.export.Dim("b")},), ({1: torch.export.Dim("b")},), ({}, {})])
    def test_shapes(self, shapes: object) -> None:
        with pytest.raises(ExportError, match=r"torch\.export cannot export this model") as caught:
            fxq.export(self.int8(), torch.zeros(2, 3), dynamic_shapes=shapes)
        assert "dynamic_shapes must fit the model" in str(caught.value)
        assert caught.value.__cause__ is not None

    def test_a_cast_of_what_the_graph_casts_to(self) -> None:
        explicit = fxq.explicit(self.int8())
        before = explicit(torch.ones(2, 3))
        for cast in (explicit.half, explicit.double, lambda: explicit.to(torch.bfloat16)):
            with pytest.raises(InputError, match="the dtype of an explicit model is part of its graph"):
                cast()
        assert torch.equal(explicit.to("cpu").float()(torch.ones(2, 3)), before)
        half = fxq.explicit(self.int8().half())
        assert half(torch.ones(2, 3).half()).dtype == torch.float16

    @staticmethod
    def int8() -> nn.Module:
        torch.manual_seed(0)
        return fxq.quantize(nn.Sequential(nn.Linear(3, 2)).eval(), [torch.randn(2, 3)], progress=False)


class Keywords(nn.Module):
    """Its keyword inputs have one shape, so that what takes one for the other runs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor, a: Tensor | None = None, b: Tensor | None = None) -> Tensor:
        y = self.two(b).sigmoid() * x
        return y if a is None else y + torch.relu(self.one(a))


class KeywordsOnly(Keywords):
    def forward(self, x: Tensor, *, a: Tensor, b: Tensor) -> Tensor:
        return super().forward(x, a, b)


class AnyKeywords(Keywords):
    def forward(self, x: Tensor, a: Tensor | None = None, **more: Tensor) -> Tensor:
        return super().forward(x, a, more["b"])


def keyword_inputs() -> tuple[Tensor, dict[str, Tensor]]:
    torch.manual_seed(0)
    return torch.randn(3, 4), {"b": 5 * torch.randn(3, 8), "a": torch.randn(3, 8)}


def with_keywords(model: nn.Module, x: Tensor, kwargs: dict[str, Tensor]) -> nn.Module:
    prepared = fxq.prepare(model.eval(), (x,), example_kwargs=kwargs)
    prepared.observe(x, **kwargs)
    return fxq.convert(prepared)


@pytest.mark.usefixtures("translations_read_once")
@pytest.mark.parametrize("kind", one_of(2, [Keywords, KeywordsOnly]))
def test_keyword_inputs_in_any_order(kind: type[nn.Module], tmp_path: Path) -> None:
    x, kwargs = keyword_inputs()
    model = with_keywords(kind(), x, kwargs)
    explicit = fxq.explicit(model)
    wanted = explicit(x, **kwargs)
    assert not torch.allclose(explicit(x, a=kwargs["b"], b=kwargs["a"]), wanted, atol=1e-2)
    for given in (kwargs, {name: kwargs[name] for name in ("a", "b")}):
        assert torch.equal(fxq.export(model, x, example_kwargs=given).module()(x, **given), wanted)
        path = tmp_path / f"{'-'.join(given)}.onnx"
        report = fxq.export_onnx(model, path, x, example_kwargs=given, check=True)
        assert report.breaches == ()
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        feeds = {name: tensor.numpy() for name, tensor in {"x": x, **given}.items()}
        assert torch.allclose(torch.from_numpy(session.run(None, feeds)[0]), wanted, atol=1e-2)


def test_keyword_inputs_without_a_position_are_refused(tmp_path: Path) -> None:
    x, kwargs = keyword_inputs()
    only = {"b": kwargs["b"]}
    no_position = "inputs behind *args and in **kwargs have no position"
    for kind, hint in ((Keywords, "give the default of 'a', too"), (AnyKeywords, no_position)):
        model = with_keywords(kind(), x, only)
        for export in (
            lambda model=model: fxq.export(model, x, example_kwargs=only),
            lambda model=model: fxq.export_onnx(model, tmp_path / "net.onnx", x, example_kwargs=only),
        ):
            with pytest.raises(InputError, match="exported by position") as caught:
                export()
            assert str(caught.value).endswith(f"hint:     {hint}")
    assert not list(tmp_path.iterdir())
    model = with_keywords(Keywords(), x, only)
    program = fxq.export(model, x, example_kwargs={**only, "a": None})
    assert torch.equal(program.module()(x, a=None, **only), fxq.explicit(model)(x, **only))
    with pytest.raises(InputError, match="do not fit the model's forward"):
        fxq.export(model, x, example_kwargs={"c": x})


LOAD = """
import importlib
import sys
import torch
try:
    torch.export.load(sys.argv[1])
    raise SystemExit("loaded before the import")
except Exception:  # the reason is in the log
    importlib.import_module(sys.argv[3])
program = torch.export.load(sys.argv[1])
saved = torch.load(sys.argv[2])
assert torch.equal(program.module()(saved["x"]), saved["y"])
"""


@pytest.mark.slow
def test_a_file_says_what_to_import(fresh: Any, tmp_path: Path) -> None:
    x = torch.randn(2, 3)
    int8 = fxq.quantize(nn.Sequential(nn.Linear(3, 2), nn.ReLU()).eval(), [x], progress=False)
    explicit = fxq.export(int8, x)
    cases = (
        (
            "explicit",
            explicit,
            "before torch.export.load: import fxquant.exporting.operators, or torch.ao",
            "fxquant.exporting.operators",
        ),
        ("int8", torch.export.export(int8, (x,)), "failed to resolve torch.ops.fxquant.", "fxquant"),
    )
    for name, program, says, imported in cases:
        torch.export.save(program, tmp_path / f"{name}.pt2")
        torch.save({"x": x, "y": program.module()(x).detach()}, tmp_path / f"{name}.pt")
        files = [tmp_path / f"{name}.{ending}" for ending in ("pt2", "pt")]
        run = fresh(LOAD, *files, imported, strict=False)
        assert run.returncode == 0, run.stderr
        assert says in run.stderr
