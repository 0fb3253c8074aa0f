"""A call of a model that fails half way names the layer and the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import fxquant as fxq
from fxquant.errors import InputError

X = torch.linspace(-2, 2, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 1), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).view(-1, 16))  # the line that is named


def converted(model: nn.Module, *data: Tensor, form: str = "int8", **options: Any) -> Any:
    prepared = fxq.prepare(model.eval(), data, **options)
    fxq.calibrate(prepared, [data], progress=False)
    return fxq.convert(prepared, to=form)


@pytest.mark.parametrize("form", ["int8", "fake_quant", "reference", "training"])
def test_the_node_and_the_line_are_named(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = fxq.prepare_qat(Head(), (X,)) if form == "training" else converted(Head(), X, form=form)
    model(X)
    with pytest.raises(InputError) as caught:
        model(X[:1, :, :1, :3])
    lines = str(caught.value).splitlines()
    assert lines[0] == "this batch does not run through the model: shape '[-1, 16]' is invalid for input of size 12"
    assert lines[1].startswith("  at:       %view : ")
    assert "test_failed_call.py:" in lines[1]
    assert lines[2].endswith("[1, 4, 1, 3], (-1, 16))")
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert capsys.readouterr().err == ""  # torch.fx prints generated code where an error leaves it


TOO_SMALL = "this batch does not run through the model: fxquant::"
MODELS: dict[str, tuple[nn.Module, Tensor, Tensor, str]] = {
    "window": (nn.Conv2d(3, 4, 3), X, X[..., :2], "conv2d: the window does not fit the padded input"),
    "pool": (
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.MaxPool2d(3), nn.Conv2d(4, 4, 1)),
        X,
        X[..., :2],
        "max_pool2d: x is smaller than the",
    ),
    "index": (nn.Embedding(5, 8), torch.tensor([[1, 2]]), torch.tensor([[1, 7]]), "embedding: an index is out of"),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_a_native_operator_got_and_expected_is_kept(name: str) -> None:
    layer, data, wrong, text = MODELS[name]
    int8 = converted(nn.Sequential(layer, nn.ReLU()), data)
    for _ in range(3):  # by the graph, then by a program: an index out of range is of the same shape
        with pytest.raises(InputError) as caught:
            int8(wrong)
        lines = str(caught.value).splitlines()
        assert lines[0].startswith(TOO_SMALL + text)
        assert [line[:11] for line in lines[1:4]] == ["  at:      ", "  got:     ", "  expected:"]
        assert "call_module" in lines[1]
        int8(data)


def test_an_error_of_a_layer_gets_its_place() -> None:
    int8 = converted(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()), X)
    with pytest.raises(InputError, match=r"a quantized convolution has the wrong shape\n  at:       0\n"):
        int8(X[:, :2])
    int8 = converted(nn.Sequential(nn.ConvTranspose2d(3, 4, 3, padding=2)), X)
    with pytest.raises(InputError) as caught:
        int8(X[..., :1, :1])
    assert str(caught.value).splitlines()[0] == "an image is too small for a transposed convolution"
    assert "  at:       %_0 : [num_users=1] = call_module[target=0]" in str(caught.value)
    assert "[1, 1], whose result would have [-1, -1]" in str(caught.value)


def refuse(x: Tensor) -> None:
    """By its shape, or by its values: an image of one color."""
    if x.shape[0] > 2 or torch.equal(x[..., 0, 0], x[..., -1, -1]):
        raise ValueError("mine")


class Own(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        refuse(x)
        return x


class Refuses(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if args and isinstance(args[0], Tensor) and args[0].shape[:1] == (4,):
            raise ValueError("mine")
        return func(*args, **(kwargs or {}))


def hooked(model: Any) -> Any:
    def hook(module: nn.Module, args: Any, result: Any) -> None:
        refuse(args[0])

    model.get_submodule("0").register_forward_hook(hook)
    return model


def with_layers(*layers: nn.Module, leaf: type[nn.Module]) -> Any:
    return converted(nn.Sequential(nn.Conv2d(3, 4, 1), *layers, nn.ReLU()), X, leaf_modules=[leaf])


ONLY_CONV = fxq.QConfigMapping().set_object_type(nn.Conv2d, fxq.get_default_qconfig())


@pytest.mark.parametrize(
    "make",
    [
        lambda: with_layers(Own(), leaf=Own),
        lambda: with_layers(nn.Sequential(nn.Softshrink(), Own()), leaf=nn.Sequential),
        lambda: hooked(converted(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Softshrink()), X, qconfig=ONLY_CONV)),
    ],
    ids=["a layer that is kept", "a layer of a layer that is kept", "a hook"],
)
def test_what_code_of_the_users_raises_stays_what_it_is(make: Callable[[], Any]) -> None:
    model = make()
    for batch in (X, X, X):
        model(batch)
    for wrong in (torch.cat([X, X]), torch.ones_like(X)):  # by the graph, and by a program where there is one
        with pytest.raises(ValueError, match=r"^mine$") as caught:
            model(wrong)
        assert not isinstance(caught.value, InputError)


def test_what_a_mode_raises_stays_what_it_is() -> None:
    model = converted(Head(), X, form="fake_quant")
    with pytest.raises(ValueError, match=r"^mine$") as caught, Refuses():
        model(torch.cat([X, X]))
    assert not isinstance(caught.value, InputError)


def test_an_error_under_a_transform_stays_what_it_is() -> None:
    model = converted(Head(), X, form="fake_quant")
    with pytest.raises(RuntimeError) as caught:
        torch.func.vmap(model)(X[:, None, :, :1, :3])
    assert not isinstance(caught.value, InputError)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("no memory is left"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        KeyError("mine"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_of_other_kinds_stay_what_they_are(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    # Raised by code of no file, as torch's own is.
    places: dict[str, Any] = {"error": error}
    exec(compile("def fails(*args):\n    raise error", "<native>", "exec"), places)
    model = converted(Head(), X, form="fake_quant")
    monkeypatch.setattr(type(model.get_submodule("conv")), "forward", places["fails"])
    with pytest.raises(type(error)) as caught:
        model(X)
    assert caught.value is error


def test_a_graph_that_was_edited_gives_no_wrong_place() -> None:
    model = converted(Head(), X, form="fake_quant")
    unread = next(iter(model.graph.nodes))
    with model.graph.inserting_after(unread):
        model.graph.call_function(torch.ones, (1,))  # and not compiled
    with pytest.raises(RuntimeError, match="shape") as caught:
        model(X[:1, :, :1, :3])
    assert not isinstance(caught.value, InputError)


def test_a_call_that_fails_is_observed_once() -> None:
    model = fxq.prepare_qat(Head(), (X,)).train()
    model(X)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    again = fxq.prepare_qat(Head(), (X,)).train()
    again.load_state_dict(before)
    wrong = 3 * X[:1, :, :1, :3]
    with pytest.raises(InputError):
        model(wrong)
    with pytest.raises(RuntimeError):
        type(again).forward.__wrapped__(again, wrong)  # the generated code alone
    for (name, one), two in zip(model.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(one, two), name
    assert not all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
