"""What people give by mistake: the whole message of each, and what its hint says to do instead, done."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision.transforms.functional import to_pil_image, to_tensor

import fxquant as fxq
from fxquant.errors import (
    ArtifactError,
    CalibrationError,
    FxQuantError,
    InputError,
    PlanError,
    SpecError,
    StateError,
    TracingError,
    UnknownNameError,
)
from fxquant.measure.noise import sqnr

X = torch.linspace(-1, 1, 2 * 3 * 6 * 6).reshape(2, 3, 6, 6)
LABELS = torch.zeros(2, dtype=torch.int64)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)).eval()


def prepared() -> fxq.Quantizer:
    return fxq.prepare(net(), X)


def calibrated() -> fxq.Quantizer:
    return fxq.calibrate(prepared(), [X], progress=False)


def int8() -> Any:
    return fxq.convert(calibrated())


def training() -> Any:
    return fxq.prepare_qat(net().train(), X)


def refusal(call: Callable[[], object], kind: type[FxQuantError] = InputError) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


@dataclass
class Form:
    make: Callable[[], Any]
    what: str
    got: str
    hint: str


FORMS = {
    "prepared": Form(
        calibrated,
        "the model is prepared already",
        "Quantizer, which prepare gave",
        "convert(prepared) makes the int8 model, or give the float model that it was made from",
    ),
    "converted": Form(
        int8,
        "the model is converted already",
        "Sequential, which convert gave",
        "call it as it is, or give the float model that it was made from",
    ),
    "training": Form(
        training,
        "the model is prepared for training already",
        "Sequential, which prepare_qat gave",
        "train it, and convert(model) makes the int8 model, or give the float model that it was made from",
    ),
}

TAKE_FLOAT_MODELS: dict[str, Callable[[Any], object]] = {
    "prepare": lambda model: fxq.prepare(model, X),
    "prepare_qat": lambda model: fxq.prepare_qat(model, X),
    "quantize": lambda model: fxq.quantize(model, [X], progress=False),
    "quantize, of pairs": lambda model: fxq.quantize(model, [(X, LABELS)], progress=False),
    "quantize, of dicts": lambda model: fxq.quantize(model, [{"input": X}], progress=False),
}


@pytest.mark.parametrize("function", TAKE_FLOAT_MODELS)
@pytest.mark.parametrize("form", FORMS)
def test_what_is_quantized_already(function, form):
    row = FORMS[form]
    assert refusal(lambda: TAKE_FLOAT_MODELS[function](row.make())) == (
        f"{row.what}\n  got:      {row.got}\n  expected: a float model\n  hint:     {row.hint}"
    )
    assert TAKE_FLOAT_MODELS[function](net()) is not None


@pytest.mark.parametrize("function", TAKE_FLOAT_MODELS)
def test_a_submodule_that_is_prepared_for_training(function):
    wrapper = nn.Sequential(OrderedDict(body=nn.Sequential(training()), head=nn.Linear(5, 5))).eval()
    assert refusal(lambda: TAKE_FLOAT_MODELS[function](wrapper)) == (
        "the submodule 'body.0' is prepared for training already\n"
        "  got:      Sequential, which prepare_qat gave\n"
        "  expected: float submodules, or those that convert gave\n"
        "  hint:     train it, and put convert(submodule) in its place, or the float model that it was made from"
    )
    trained = training()
    trained(X)
    wrapper.body[0] = fxq.convert(trained)
    assert TAKE_FLOAT_MODELS[function](wrapper) is not None


@pytest.mark.parametrize("form", ["int8", "fake_quant", "reference", "training"])
def test_torch_fx_traces_no_quantized_model(form):
    model = training() if form == "training" else fxq.convert(calibrated(), to=form)
    for traced in (model, nn.Sequential(model)):
        assert refusal(lambda traced=traced: torch.fx.symbolic_trace(traced), TracingError) == (
            "torch.fx.symbolic_trace takes no quantized model\n"
            "  got:      Sequential, as prepare_qat or convert gave it\n"
            "  expected: torch.export or torch.compile, which take it\n"
            "  hint:     torch.export.export(model, args) captures it; torch.save(model, path) keeps it"
        )


@pytest.mark.filterwarnings("error:To copy construct")
def test_a_reference_model_inside_of_another_is_prepared_without_a_warning_of_torch():
    reference = fxq.convert(calibrated(), to="reference")
    wrapper = nn.Sequential(reference, nn.ReLU()).eval()
    assert torch.equal(fxq.prepare(wrapper, X).graph_module(X), wrapper(X))


def test_a_container_of_what_convert_gave():
    with pytest.raises(PlanError, match="no operator that can be quantized") as caught:
        fxq.prepare(nn.Sequential(int8()), X)
    assert str(caught.value).endswith("  hint:     what convert gave is int8 already, and needs nothing more")


@pytest.mark.parametrize("wrapped", [AveragedModel, nn.DataParallel])
def test_a_wrapper_of_what_prepare_qat_gave(wrapped):
    trained = training()
    trained(X)
    model = wrapped(trained)
    assert refusal(lambda: fxq.convert(model)) == (
        "convert takes what prepare or prepare_qat gave\n"
        f"  got:      {wrapped.__name__}\n"
        "  expected: a Quantizer, or the GraphModule of prepare_qat\n"
        "  hint:     give model.get_submodule('module'), the Sequential, which prepare_qat gave"
    )
    assert fxq.convert(model.get_submodule("module"))(X).shape == (2, 5)


def test_what_is_quantized_already_is_used_as_the_hint_says():
    expected = fxq.convert(calibrated())(X)
    assert torch.equal(fxq.convert(calibrated())(X), expected)
    assert torch.equal(int8()(X), expected)
    trained = training()
    trained(X)
    assert fxq.convert(trained)(X).shape == (2, 5)


TAKE_PREPARED: dict[str, Callable[[Any], object]] = {
    "calibrate": lambda model: fxq.calibrate(model, [X], progress=False),
    "adaround": lambda model: fxq.adaround(model, [X], iterations=1, progress=False),
    "equalize": lambda model: fxq.equalize(model, [X], progress=False),
    "reconstruct": lambda model: fxq.reconstruct(model, [X], iterations=1, steps=True, progress=False),
}
TAKE_BOTH: dict[str, Callable[[Any], object]] = {
    "convert": fxq.convert,
    "sensitivity": lambda model: fxq.sensitivity(model, [X], progress=False),
}


@pytest.mark.parametrize("function", [*TAKE_PREPARED, *TAKE_BOTH])
def test_what_was_never_prepared(function):
    call = {**TAKE_PREPARED, **TAKE_BOTH}[function]
    both = function in TAKE_BOTH
    hint = f"{function}(prepare(model, example_inputs)), after calibrate"
    if function == "calibrate":
        hint = "calibrate(prepare(model, example_inputs), data)"
    if function == "equalize":
        hint = "equalize(prepare(model, example_inputs))"
    assert refusal(lambda: call(net())) == (
        f"{function} takes what prepare{' or prepare_qat' if both else ''} gave\n"
        "  got:      Sequential\n"
        f"  expected: a Quantizer{', or the GraphModule of prepare_qat' if both else ''}\n"
        f"  hint:     {hint}"
    )
    assert call(prepared() if function == "equalize" else calibrated()) is not None
    assert refusal(lambda: call(int8())).endswith(
        "  hint:     give the Quantizer that it was converted from: convert never changes it"
    )
    if not both:
        assert refusal(lambda: call(training())).splitlines()[-1] == (
            "  hint:     prepare(model, example_inputs) of the float model; "
            "what prepare_qat gave observes in its own calls"
        )


def test_profile_of_what_is_converted_takes_the_float_model_beside_it():
    assert refusal(lambda: fxq.profile(int8(), X, progress=False)) == (
        "profile takes the float model first\n"
        "  got:      Sequential, which convert gave\n"
        "  expected: a float model, or the Quantizer that prepare gave\n"
        "  hint:     profile(model, inputs, int8=converted)"
    )
    assert fxq.profile(net(), X, int8=int8(), rounds=1, progress=False).rows


class Wrapped(nn.Module):
    """Has a submodule that is wrapped."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.compile(nn.Conv2d(3, 4, 3))
        self.head = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@pytest.mark.parametrize("function", TAKE_FLOAT_MODELS)
def test_compiled_models(function):
    compiled: Any = torch.compile(net())
    with pytest.warns(fxq.FxQuantWarning) as caught:
        assert TAKE_FLOAT_MODELS[function](compiled) is not None
    assert str(caught[0].message) == (
        "the model is compiled; the module inside is taken\n"
        "  got:      the model itself\n"
        "  hint:     torch.compile takes what convert and prepare_qat give"
    )


def test_a_compiled_submodule():
    model: Any = Wrapped().eval()
    with pytest.warns(fxq.FxQuantWarning, match="got:      'body'"):
        prepared = fxq.prepare(model, X)
    assert prepared.coverage().int8_macs == 1.0
    assert "body" in prepared.modules
    assert "body._orig_mod" not in prepared.modules
    assert "_orig_mod" in model.body._modules  # the user's own is as it was


def test_a_model_that_compiles_itself_is_prepared():
    model = net()
    model.compile()
    assert fxq.prepare(model, X).coverage().int8_macs == 1.0


def test_a_compiled_training_model_names_the_one_inside():
    trained = training()
    trained(X)
    compiled: Any = torch.compile(trained)
    assert refusal(lambda: fxq.convert(compiled)).splitlines()[-1] == (
        "  hint:     give model._orig_mod, and wrap what convert or prepare_qat makes of it"
    )
    assert fxq.convert(compiled._orig_mod)(X).shape == (2, 5)


class WithoutForward(nn.Module):
    """Holds layers, and does not say how they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)


class Caller(nn.Module):
    """Calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = WithoutForward()

    def forward(self, input: Tensor) -> Tensor:
        return self.inner.conv(input).relu()


@pytest.mark.parametrize("function", TAKE_FLOAT_MODELS)
def test_modules_without_forward(function):
    model = nn.ModuleList([nn.Conv2d(3, 4, 3), nn.ReLU()]).eval()
    assert refusal(lambda: TAKE_FLOAT_MODELS[function](model)) == (
        "the model has no forward, which would say what it computes\n"
        "  got:      ModuleList\n"
        "  expected: a module whose forward takes the example inputs\n"
        "  hint:     torch.nn.Sequential(*model.children()) calls its modules one after the other"
    )
    assert TAKE_FLOAT_MODELS[function](torch.nn.Sequential(*model.children()).eval()) is not None
    inner = Caller().eval()
    assert refusal(lambda: TAKE_FLOAT_MODELS[function](inner.inner)).splitlines()[-1] == (
        "  hint:     give the module that calls it, or write its forward"
    )
    assert TAKE_FLOAT_MODELS[function](inner) is not None


def lazy() -> nn.Sequential:
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5)).eval()


@pytest.mark.parametrize("function", TAKE_FLOAT_MODELS)
def test_lazy_modules(function):
    assert refusal(lambda: TAKE_FLOAT_MODELS[function](lazy())) == (
        "the model has lazy layers, whose weights have no shape yet\n"
        "  got:      0.weight\n            0.bias\n            3.weight\n            3.bias\n"
        "  expected: a model that has run once\n"
        "  hint:     model(*example_inputs) once, before it is given"
    )
    example_inputs = (X,)
    model = lazy()
    model(*example_inputs)
    TAKE_FLOAT_MODELS[function](model)


class Pairs(Dataset):
    """Images and labels, one by one."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index], LABELS[index]

    def __len__(self) -> int:
        return 2


def loader() -> DataLoader:
    return DataLoader(Pairs(), batch_size=2)


ARRAY = "numpy.ndarray float32[2, 3, 6, 6]"
array, dataset, image = X.numpy(), Pairs(), to_pil_image(X[0])
EXAMPLES: dict[str, tuple[Any, str, str, Any]] = {
    "float32 array": (array, ARRAY, "torch.from_numpy(array) makes a tensor", torch.from_numpy(array)),
    "float64 array": (
        array.astype(numpy.float64),
        "numpy.ndarray float64[2, 3, 6, 6]",
        "torch.from_numpy(array).float() makes a tensor",
        torch.from_numpy(array.astype(numpy.float64)).float(),
    ),
    "arrays in a tuple": ((array,), ARRAY, "torch.from_numpy(array) makes a tensor", (torch.from_numpy(array),)),
    "loader": (
        loader(),
        "a DataLoader",
        "one batch: next(iter(loader)), or next(iter(loader))[0] where it yields (input, label) pairs",
        next(iter(loader()))[0],
    ),
    "iterator": (
        iter([X]),
        "a list_iterator",
        "one batch: next(data), or next(data)[0] where it yields (input, label) pairs",
        next(iter([X])),
    ),
    "data set": (
        dataset,
        "a Pairs",
        "one batch: next(iter(torch.utils.data.DataLoader(dataset, batch_size=8)))[0]",
        next(iter(torch.utils.data.DataLoader(dataset, batch_size=8)))[0],
    ),
    "image": (
        image,
        "an Image",
        "torchvision.transforms.functional.to_tensor(image)[None] makes a batch of one image",
        to_tensor(image)[None],
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("function", [fxq.prepare, fxq.prepare_qat], ids=lambda function: function.__name__)
def test_examples_that_are_no_tensors(function, name):
    given, got, hint, instead = EXAMPLES[name]
    assert refusal(lambda: function(net(), given)) == (
        f"the example inputs hold no tensor\n  got:      {got}\n  expected: tensors\n  hint:     {hint}"
    )
    assert function(net(), instead) is not None


@pytest.mark.parametrize("function", [fxq.prepare, fxq.prepare_qat], ids=lambda function: function.__name__)
def test_no_example(function):
    assert function(net(), None) is not None
    assert function(net(), next(iter(loader()))[0]) is not None
    assert function(net(), None, example_kwargs={"input": X}) is not None


def test_an_example_of_another_kind_shows_no_list_of_overloads():
    first = refusal(lambda: fxq.prepare(net(), 3)).splitlines()[0]
    assert first == (
        "the example inputs do not run through the model: conv2d() received an invalid combination of arguments - "
        "got (int, Parameter, Parameter, tuple, tuple, tuple, int)"
    )


TAKE_DATA: dict[str, Callable[[Any], object]] = {
    "calibrate": lambda data: fxq.calibrate(prepared(), data, progress=False),
    "quantize": lambda data: fxq.quantize(net(), data, progress=False),
    "compare": lambda data: fxq.compare(net(), int8(), data, progress=False),
    "sensitivity": lambda data: fxq.sensitivity(calibrated(), data, progress=False),
    "adaround": lambda data: fxq.adaround(calibrated(), data, iterations=1, progress=False),
    "equalize": lambda data: fxq.equalize(prepared(), data, progress=False),
    "reconstruct": lambda data: fxq.reconstruct(calibrated(), data, iterations=1, steps=True, progress=False),
}


@pytest.mark.parametrize("function", TAKE_DATA)
def test_data_that_is_no_iterable_of_batches(function):
    call, dataset, array = TAKE_DATA[function], TensorDataset(X, LABELS), X.numpy()
    expected = "  expected: a DataLoader, a list, a generator: anything that yields batches\n"
    assert refusal(lambda: call(dataset)) == (
        "calibration data must be an iterable of batches\n"
        f"  got:      a TensorDataset\n{expected}"
        "  hint:     torch.utils.data.DataLoader(dataset, batch_size=32) yields batches of a data set"
    )
    assert call(torch.utils.data.DataLoader(dataset, batch_size=32)) is not None
    assert refusal(lambda: call(array)) == (
        "calibration data must be an iterable of batches\n"
        f"  got:      {ARRAY}\n{expected}"
        "  hint:     [torch.from_numpy(array)] is a list of one batch"
    )
    assert call([torch.from_numpy(array)]) is not None


@pytest.mark.parametrize("function", [fxq.calibrate, fxq.adaround, fxq.equalize], ids=lambda each: each.__name__)
def test_batches_that_are_arrays(function):
    assert refusal(lambda: function(calibrated(), [X.numpy()], progress=False)) == (
        "calibration batch 0 is of the wrong kind (input 0)\n"
        f"  got:      {ARRAY}\n"
        "  expected: float32[2, 3, 6, 6]\n"
        "  hint:     torch.from_numpy(array) makes a tensor"
    )


@pytest.mark.parametrize("function", TAKE_DATA)
def test_labels_in_a_dict_are_left_out(function):
    assert TAKE_DATA[function]([{"input": X, "label": LABELS}]) is not None


@pytest.mark.parametrize("function", TAKE_DATA)
def test_a_dict_of_other_names(function):
    message = refusal(lambda: TAKE_DATA[function]([{"image": X, "label": LABELS}]))
    what, *rest = message.splitlines()
    assert what.endswith("batch 0 holds nothing under a name that the model takes")
    assert rest[0] == "  got:      {image: float32[2, 3, 6, 6], label: int64[2]}"
    assert rest[1].startswith("  expected: Sequential.forward(input")
    assert rest[2:] == ["  hint:     yield {'input': …}, or tuples of the positional inputs"]
    for batch in ({"input": X}, (X,)):
        assert TAKE_DATA[function]([batch]) is not None


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        y = self.fc(x)
        return y if attention_mask is None else y * attention_mask


def test_a_misspelt_optional_input_is_warned_of():
    batch = {"x": torch.rand(2, 4), "atention_mask": torch.ones(2, 4)}
    with pytest.warns(fxq.FxQuantWarning) as caught:
        fxq.quantize(Masked().eval(), [batch], progress=False)
    assert str(caught[0].message) == (
        "batch 0 holds something that the model does not take\n"
        "  got:      'atention_mask'\n"
        "  expected: attention_mask\n"
        "  hint:     did you mean 'attention_mask'?"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fxq.quantize(Masked().eval(), [{"x": batch["x"], "attention_mask": torch.ones(2, 4)}], progress=False)


BATCHES = [X, torch.zeros(2, 4, 6, 6), X]


@pytest.mark.parametrize("function", TAKE_DATA)
def test_a_batch_among_others_that_does_not_fit(function):
    lines = refusal(lambda: TAKE_DATA[function](BATCHES)).splitlines()
    assert "batch 1: " in lines[0]
    assert "4 channels in" in "".join(lines) or "float32[2, 4, 6, 6]" in "".join(lines)
    assert "3 channels" in lines[3] or "3 input channels" in lines[3]
    assert lines[1].startswith("  at:  ")


def test_a_batch_of_another_size_names_the_value_that_is_observed():
    message = refusal(lambda: fxq.calibrate(prepared(), BATCHES, progress=False))
    assert message == (
        "calibration batch 1: the number of channels differs from that of earlier batches\n"
        "  at:       %input_1 : [num_users=1] = placeholder[target=input]\n"
        "  got:      4 channels in a tensor of shape (2, 4, 6, 6)\n"
        "  expected: 3 channels"
    )


@pytest.mark.parametrize("shape", [(), (6,), (6, 6)])
def test_a_batch_of_too_few_dimensions(shape):
    message = refusal(lambda: fxq.calibrate(prepared(), [X, torch.ones(shape)], progress=False))
    assert message == (
        "calibration batch 1: a tensor has too few dimensions for the operator that reads it\n"
        "  at:       %input_1 : [num_users=1] = placeholder[target=input]\n"
        f"  got:      {len(shape)} in a tensor of shape {shape}\n"
        "  expected: at least 3"
    )


@pytest.mark.parametrize(
    ("batch", "what"),
    [
        (X.to_sparse(), "sparse_coo where the model takes a dense tensor"),
        (X.to_mkldnn(), "mkldnn where the model takes a dense tensor"),
        (torch.nested.nested_tensor([X[0], X[0]], layout=torch.jagged), "nested where the model takes a dense tensor"),
        (X.to("meta"), "on the meta device, where tensors hold no values"),
    ],
)
def test_a_batch_of_another_layout(batch, what):
    quantizer = fxq.calibrate(prepared(), [X], progress=False)
    before = {name: value.clone() for name, value in quantizer.state_dict().items()}
    message = refusal(lambda: fxq.calibrate(quantizer, [X, batch], progress=False))
    assert message.splitlines()[0] == f"calibration batch 1: the input 'input' is {what}"
    fxq.calibrate(other := prepared(), [X, X], progress=False)
    after = quantizer.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in other.state_dict().items() if name in before)


BETA = r"ignore:(The PyTorch API of nested tensors|Sparse CSR tensor support is in beta):UserWarning"


def without_strides(layout: str) -> Tensor:
    """Return a tensor [2, 3] of a layout."""
    x = torch.linspace(-1, 1, 6).reshape(2, 3)
    if layout in ("strided", "jagged"):
        return torch.nested.nested_tensor([x[0], x[1]], layout=getattr(torch, layout))
    return getattr(x, f"to_{layout}")()


def dense_layer() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3)).eval()


@pytest.mark.filterwarnings(BETA)
@pytest.mark.parametrize("layout", ["strided", "jagged", "sparse", "sparse_csr", "mkldnn"])
def test_examples_and_batches_without_strides(layout: str) -> None:
    given, dense = without_strides(layout), torch.linspace(-1, 1, 6).reshape(2, 3)
    is_nested = layout in ("strided", "jagged")
    what = "the example inputs hold a nested tensor where the model takes a dense tensor"
    if not is_nested:
        what = "the example input 'input' is sparse, or of MKLDNN, where the model takes a dense tensor"
    hint = "torch.nested.to_padded_tensor(x, 0.0)" if is_nested else "input.to_dense()"
    for prepare in (
        lambda: fxq.prepare(dense_layer(), given),
        lambda: fxq.prepare_qat(dense_layer(), given),
        lambda: fxq.quantize(dense_layer(), [given], progress=False),
    ):
        lines = refusal(prepare).splitlines()
        assert (lines[0], lines[-1]) == (what, f"  hint:     {hint}")

    quantizer = fxq.calibrate(fxq.prepare(dense_layer(), dense), [dense], progress=False)
    calls: dict[str, Any] = {
        "calibration batch 1: ": lambda: fxq.calibrate(quantizer, [dense, given], progress=False),
        "the batch to check parity on: ": lambda: fxq.convert(quantizer, check=given),
        "batch 0: ": lambda: fxq.sensitivity(quantizer, [given], progress=False),
    }
    kind = "nested" if is_nested else {"sparse": "sparse_coo"}.get(layout, layout)
    hint = "torch.nested.to_padded_tensor(input, 0.0)" if is_nested else "input.to_dense()"
    for where, call in calls.items():
        lines = refusal(call).splitlines()
        assert lines[0] == f"{where}the input 'input' is {kind} where the model takes a dense tensor"
        assert lines[-1] == f"  hint:     {hint}"

    # What the hint says.
    x = torch.nested.to_padded_tensor(given, 0.0) if is_nested else given.to_dense()
    fxq.quantize(dense_layer(), [x], progress=False)


def test_a_sparse_input_stays_one_where_the_model_takes_it():
    class Aggregate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 2)

        def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
            return self.last(torch.sparse.mm(adjacency, self.first(x).relu()))

    torch.manual_seed(0)
    model, x, adjacency = Aggregate().eval(), torch.randn(10, 8), torch.eye(10).roll(1, 0)
    converted = fxq.quantize(model, [(x, adjacency.to_sparse())], progress=False)
    with torch.no_grad():
        wanted = model(x, adjacency.to_sparse())
    assert sqnr(wanted, converted(x, adjacency.to_sparse())) > 30
    with pytest.raises(InputError, match="7 features"):  # and is not what an error is laid to
        converted(x[:, :7], adjacency.to_sparse())


def test_a_single_batch_is_named():
    wrong = BATCHES[1]
    for call, what in (
        (lambda: fxq.convert(calibrated(), check=wrong), "the batch to check parity on: "),
        (lambda: fxq.convert(calibrated(), tune=wrong), "the batch to tune on: "),
    ):
        assert refusal(call).startswith(what)


BITS = {
    "bits": lambda: fxq.MinMaxObserver(bits="8"),
    "bits, in a fake-quantize": lambda: fxq.FakeQuantize(bits="8"),
    "bits, in a scheme": lambda: fxq.QScheme(bits="8"),
    "bits, in a configuration": lambda: fxq.QConfig(fxq.MinMaxObserver.with_args(bits="8"), fxq.MinMaxObserver),
    "quant_min": lambda: fxq.MinMaxObserver(quant_min="8", quant_max=255),
    "quant_max": lambda: fxq.MinMaxObserver(quant_min=0, quant_max="8"),
    "eps": lambda: fxq.MinMaxObserver(eps="8"),
    "averaging_constant": lambda: fxq.MovingAverageMinMaxObserver(averaging_constant="8"),
    "percentile": lambda: fxq.PercentileObserver(percentile="8"),
    "candidates": lambda: fxq.MSEObserver(candidates="8"),
    "bins": lambda: fxq.HistogramObserver(bins="8"),
    "power": lambda: fxq.HistogramObserver(power="8"),
}


@pytest.mark.parametrize("name", BITS)
def test_numbers_that_are_text(name):
    lines = refusal(BITS[name], SpecError).splitlines()
    assert lines[:2] == [f"{name.split(',')[0]} is out of range", "  got:      '8' (a str)"]


def test_bits_of_other_types():
    expected = "  expected: a whole number from 2 to 16"
    assert refusal(lambda: fxq.QScheme(bits=True), SpecError) == (
        f"bits is out of range\n  got:      True (a bool)\n{expected}"
    )
    assert refusal(lambda: fxq.QScheme(bits=8.0), SpecError) == f"bits is out of range\n  got:      8.0\n{expected}"


def weight_only(group_size: int) -> fxq.QConfig:
    weight = fxq.PerChannelMinMaxObserver.with_args(
        dtype=torch.int8, bits=4, qscheme=torch.per_channel_symmetric, group_size=group_size
    )
    return fxq.QConfig(activation=fxq.PlaceholderObserver, weight=weight)


@pytest.mark.parametrize("function", [fxq.prepare, fxq.prepare_qat], ids=lambda function: function.__name__)
def test_groups_that_do_not_divide_a_weight(function):
    model = nn.Sequential(nn.Linear(12, 18), nn.Linear(18, 4)).eval()
    x = torch.rand(2, 12)
    assert refusal(lambda: function(model, x, weight_only(7)), PlanError) == (
        "group_size does not divide the weights of these layers\n"
        "  got:      0: group_size=7, weight [18, 12]; 12 divides by 1, 2, 3, 4, 6, 12\n"
        "            1: group_size=7, weight [4, 18]; 18 divides by 1, 2, 3, 6, 9, 18\n"
        "  expected: a group_size that divides the dimension behind the axis\n"
        "  hint:     group_size=6 divides those of all layers"
    )
    assert function(model, x, weight_only(6)) is not None


OBSERVERS = {
    fxq.PerChannelMinMaxObserver: "per_channel_symmetric",
    fxq.MinMaxObserver: "per_tensor_symmetric",
    fxq.MovingAveragePerChannelMinMaxObserver: "per_channel_symmetric",
}


@pytest.mark.parametrize("observer", OBSERVERS, ids=lambda observer: observer.__name__)
def test_a_bare_observer_as_weight(observer):
    scheme = OBSERVERS[observer]
    message = refusal(lambda: fxq.prepare(net(), X, fxq.QConfig(fxq.HistogramObserver, observer)), PlanError)
    assert message.splitlines()[-1] == (
        f"  hint:     QConfig(weight={observer.__name__}.with_args("
        f"dtype=torch.int8, qscheme=torch.{scheme}), activation=…)"
    )
    written = observer.with_args(dtype=torch.int8, qscheme=getattr(torch, scheme))
    assert fxq.prepare(net(), X, fxq.QConfig(weight=written, activation=fxq.HistogramObserver)).plan.units


@pytest.mark.parametrize("backend", ["x86", "fbgemm", "onednn", "qnnpack"])
def test_back_ends_of_torch(backend):
    for function in (fxq.prepare, fxq.prepare_qat):
        assert refusal(lambda call=function: call(net(), X, backend=backend), UnknownNameError) == (
            f"unknown backend\n  got:      {backend!r}\n  expected: cpu, reference, onnxruntime, openvino, tensorrt\n"
            "  hint:     backend='cpu', the default, is for every CPU: instruction sets are chosen at run time"
        )
        assert function(net(), X, backend="cpu") is not None


def test_a_back_end_is_no_name():
    mine = fxq.Backend("mine", ())
    assert refusal(lambda: fxq.prepare(net(), X, backend=mine), UnknownNameError) == (
        "a back end is given by its name\n"
        "  got:      the Backend 'mine'\n"
        "  expected: cpu, reference, onnxruntime, openvino, tensorrt\n"
        "  hint:     fxq.register_backend(...) makes it known once, then backend='mine'"
    )


@pytest.mark.parametrize("function", TAKE_FLOAT_MODELS)
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_scripted_models(function):
    message = refusal(lambda: TAKE_FLOAT_MODELS[function](torch.jit.script(net())), TracingError)
    assert message == (
        "the model is a ScriptModule, whose Python code is gone\n"
        "  got:      RecursiveScriptModule\n"
        "  expected: the torch.nn.Module that torch.jit.script or torch.jit.trace was given\n"
        "  hint:     build the float model from its class, and model.load_state_dict(scripted.state_dict())"
    )
    model = net()
    model.load_state_dict(torch.jit.script(net()).state_dict())
    assert TAKE_FLOAT_MODELS[function](model) is not None


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_scripted_submodule():
    model = net()
    model[0] = torch.jit.script(model[0])
    assert refusal(lambda: fxq.prepare(model, X), TracingError).splitlines()[0] == (
        "the submodule '0' is a ScriptModule, whose Python code is gone"
    )


def test_leaf_modules_that_are_not_there():
    assert refusal(lambda: fxq.prepare(Masked().eval(), torch.rand(2, 4), leaf_modules=["fcc"]), UnknownNameError) == (
        "leaf_modules names a module that the model does not have\n"
        "  got:      'fcc'\n"
        "  expected: the qualified name of a submodule, as model.named_modules() gives it\n"
        "  hint:     did you mean 'fc'?"
    )
    message = refusal(lambda: fxq.prepare(Masked().eval(), torch.rand(2, 4), leaf_modules=["covn"]), UnknownNameError)
    assert message.splitlines()[-1] == "  hint:     the model has fc"
    model = nn.Sequential(Masked(), nn.Linear(4, 4)).eval()
    message = refusal(lambda: fxq.prepare(model, torch.rand(2, 4), leaf_modules=["0.fcc"]), UnknownNameError)
    assert message.splitlines()[-1] == "  hint:     did you mean '0.fc'?"
    assert [row.node for row in fxq.prepare(model, torch.rand(2, 4), leaf_modules=["0.fc"]).coverage().float_rows]
    message = refusal(lambda: fxq.prepare(model, torch.rand(2, 4), leaf_modules=[nn.Conv2d]), UnknownNameError)
    assert message.splitlines()[-1] == "  hint:     the model has Sequential, Masked, Linear"
    assert fxq.prepare(model, torch.rand(2, 4), leaf_modules=[Masked]).coverage().float_rows


@pytest.mark.parametrize("given", [torch.rand(2, 4), [torch.rand(2, 4)] * 9], ids=["tensor", "list"])
def test_an_argument_that_was_fixed(given):
    x = torch.rand(2, 4)
    quantizer = fxq.calibrate(fxq.prepare(Masked().eval(), x), [x], progress=False)
    shown = "float32[2, 4]" if isinstance(given, Tensor) else f"[{', '.join(['float32[2, 4]'] * 4)}, …]"
    for call in (quantizer, fxq.convert(quantizer)):
        assert refusal(lambda run=call: run(x, given)) == (
            "the argument 'attention_mask' was fixed when the model was prepared\n"
            f"  got:      {shown}\n"
            "  expected: None\n"
            "  hint:     give 'attention_mask' that value in the example inputs, and prepare again"
        )
    mask = torch.rand(2, 4)
    assert fxq.prepare(Masked().eval(), (x, mask))(x, mask).shape == (2, 4)


def test_no_batch_at_all():
    assert refusal(lambda: fxq.calibrate(prepared(), [], progress=False), CalibrationError).splitlines()[0] == (
        "there is no calibration data"
    )


def forms() -> dict[str, Any]:
    quantizer = calibrated()
    return {
        "int8": fxq.convert(quantizer),
        "int8, graph": fxq.convert(quantizer, engine="graph"),
        "fake_quant": fxq.convert(quantizer, to="fake_quant"),
        "reference": fxq.convert(quantizer, to="reference"),
        "training": training(),
    }


WRONG_CALLS: dict[str, tuple[Callable[[Any], object], str]] = {
    "uint8 image": (
        lambda model: model((255 * X.abs()).to(torch.uint8)),
        "the input 'input' holds integers where the model takes float values\n"
        "  got:      uint8[2, 3, 6, 6]\n"
        "  expected: float32, as [2, 3, 6, 6] when it was prepared\n"
        "  hint:     input.float() / 255 of an image, or whatever the float model was given",
    ),
    "complex numbers": (
        lambda model: model(X.to(torch.complex64)),
        "the input 'input' holds complex numbers where the model takes float values\n"
        "  got:      complex64[2, 3, 6, 6]\n"
        "  expected: float32, as [2, 3, 6, 6] when it was prepared",
    ),
    "too few": (
        lambda model: model(),
        "the inputs do not fit the model's forward: missing a required argument: 'input'\n"
        "  got:      ()\n"
        "  expected: Sequential.forward(input)",
    ),
    "too many": (
        lambda model: model(X, X),
        "the inputs do not fit the model's forward: too many positional arguments\n"
        "  got:      (float32[2, 3, 6, 6], float32[2, 3, 6, 6])\n"
        "  expected: Sequential.forward(input)",
    ),
    "another name": (
        lambda model: model(image=X),
        "the inputs do not fit the model's forward: missing a required argument: 'input'\n"
        "  got:      (image=float32[2, 3, 6, 6])\n"
        "  expected: Sequential.forward(input)",
    ),
    "meta": (
        lambda model: model(X.to("meta")),
        "the input 'input' is on the meta device, where tensors hold no values\n"
        "  got:      float32[2, 3, 6, 6], meta\n"
        "  expected: float32, as [2, 3, 6, 6] when it was prepared\n"
        "  hint:     give a tensor with values",
    ),
    "sparse": (
        lambda model: model(X.to_sparse()),
        "the input 'input' is sparse_coo where the model takes a dense tensor\n"
        "  got:      float32[2, 3, 6, 6], sparse_coo\n"
        "  expected: float32, as [2, 3, 6, 6] when it was prepared\n"
        "  hint:     input.to_dense()",
    ),
    "nested": (
        lambda model: model(torch.nested.nested_tensor([X[0], X[0]], layout=torch.jagged)),
        "the input 'input' is nested where the model takes a dense tensor\n"
        "  got:      float32 in a nested tensor\n"
        "  expected: float32, as [2, 3, 6, 6] when it was prepared\n"
        "  hint:     torch.nested.to_padded_tensor(input, 0.0)",
    ),
    "None": (
        lambda model: model(None),
        "the input 'input' is no tensor\n  got:      None\n  expected: float32, as [2, 3, 6, 6] when it was prepared",
    ),
    "array": (
        lambda model: model(X.numpy()),
        "the input 'input' is no tensor\n"
        f"  got:      {ARRAY}\n"
        "  expected: float32, as [2, 3, 6, 6] when it was prepared\n"
        "  hint:     torch.from_numpy(array) makes a tensor",
    ),
}


@pytest.mark.parametrize("ran", [0, 3], ids=["fresh", "ran"])
@pytest.mark.parametrize("form", ["int8", "int8, graph", "fake_quant", "reference", "training"])
def test_wrong_calls_of_quantized_models(form, ran):
    model = forms()[form]
    for _ in range(ran):
        model(X)
    for call, message in WRONG_CALLS.values():
        assert refusal(lambda wrong=call: wrong(model)) == message
    assert model((255 * X.abs()).to(torch.uint8).float() / 255).shape == (2, 5)
    assert model(torch.from_numpy(X.numpy())).shape == (2, 5)


def test_integers_where_the_model_takes_them():
    model = nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 4)).eval()
    tokens = torch.tensor([[1, 2]])
    converted = fxq.quantize(model, [tokens], progress=False)
    assert refusal(lambda: converted(tokens.float())) == (
        "the input 'input' holds float values where the model takes integers\n"
        "  got:      float32[1, 2]\n"
        "  expected: int64, as [1, 2] when it was prepared\n"
        "  hint:     input.to(torch.int64)"
    )
    assert torch.equal(converted(tokens.float().to(torch.int64)), converted(tokens))


def test_an_error_of_another_kind_is_that_of_a_node():
    assert refusal(lambda: forms()["fake_quant"](torch.zeros(2, 4, 6, 6))) == (
        "this batch does not run through the model: Given groups=1, weight of size [4, 3, 3, 3], expected "
        "input[2, 4, 6, 6] to have 3 channels, but got 4 channels instead\n"
        "  at:       %_0 : [num_users=1] = call_module[target=0](args = (%input_1_fake_quant,), kwargs = {})\n"
        "  got:      (float32[2, 4, 6, 6])\n"
        "  expected: FakeQuantizedConv2d with 3 input channels\n"
        "  hint:     batches must be inputs that the model itself can run on"
    )


def spared() -> fxq.QConfigMapping:
    return fxq.get_default_qconfig_mapping().set_module_name("3", None)


def shell(mapping: fxq.QConfigMapping | None = None, to: str = "int8") -> Any:
    return fxq.convert(fxq.prepare(net(), X, mapping), to=to, allow_uncalibrated=True)


OTHER = "the state dict is that of another model, or of one that was quantized in another way\n"
INT8_ONLY = "weight_scale, weight_zero_point, x_scale, x_zero_point"


def test_the_state_of_another_configuration_names_the_unit():
    with_float = fxq.quantize(net(), [X], spared(), progress=False)
    model = shell()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert refusal(lambda: model.load_state_dict(with_float.state_dict()), StateError) == (
        f"{OTHER}"
        "  at:       '3', and 1 more\n"
        "  got:      float\n"
        f"  expected: int8, with {INT8_ONLY}\n"
        "  hint:     mapping.set_module_name('3', None) leaves it in float, as the saved model did"
    )
    assert all(torch.equal(value, before[name]) or value.isnan().all() for name, value in model.state_dict().items())
    loaded = shell(spared())
    loaded.load_state_dict(with_float.state_dict())
    assert torch.equal(loaded(X), with_float(X))
    assert refusal(lambda: shell(spared()).load_state_dict(int8().state_dict()), StateError) == (
        f"{OTHER}"
        "  at:       '3', and 1 more\n"
        f"  got:      int8, with {INT8_ONLY}\n"
        "  expected: float\n"
        "  hint:     quantize '3', as the saved model did: a rule of the configuration leaves it in float"
    )
    loaded, saved = shell(), int8()  # without the rule
    loaded.load_state_dict(saved.state_dict())
    assert torch.equal(loaded(X), saved(X))


def test_the_state_of_another_form():
    simulated = forms()["fake_quant"]
    hint = refusal(lambda: shell().load_state_dict(simulated.state_dict()), StateError).splitlines()[-1]
    assert hint == (
        "  hint:     it was saved of to='fake_quant': "
        "convert(prepared, to='fake_quant', allow_uncalibrated=True) takes it"
    )
    loaded = shell(to="fake_quant")
    loaded.load_state_dict(simulated.state_dict())
    assert torch.equal(loaded(X), simulated(X))
    hint = refusal(lambda: shell().load_state_dict(net().state_dict()), StateError).splitlines()[-1]
    assert hint.endswith("this is the state of a float model: load it into that, then prepare, calibrate and convert")
    model = net()
    model.load_state_dict(net().state_dict())
    assert torch.equal(fxq.convert(fxq.calibrate(fxq.prepare(model, X), [X], progress=False))(X), int8()(X))
    saved = int8()
    hint = refusal(lambda: shell(to="fake_quant").load_state_dict(saved.state_dict()), StateError).splitlines()[-1]
    assert hint == (
        "  hint:     it was saved of to='int8': convert(prepared, to='int8', allow_uncalibrated=True) takes it"
    )
    loaded = shell(to="int8")
    loaded.load_state_dict(saved.state_dict())
    assert torch.equal(loaded(X), saved(X))


def test_a_state_of_weights_that_a_method_has_chosen(tmp_path):
    quantizer = fxq.gptq(calibrated(), [X], progress=False)
    with pytest.raises(StateError) as caught:
        fxq.prepare(net(), X).load_state_dict(quantizer.state_dict())
    hint = "weights that adaround, gptq or correct_statistics chose are in no state: use fxq.save(quantizer, path)"
    assert str(caught.value).endswith(f"  hint:     {hint}")
    fxq.save(quantizer, tmp_path / "model.fxq")
    assert torch.equal(fxq.convert(fxq.load(tmp_path / "model.fxq"))(X), fxq.convert(quantizer)(X))


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod."])
def test_the_state_of_a_wrapped_model(prefix):
    converted = int8()
    state = {f"{prefix}{name}": value for name, value in converted.state_dict().items()}
    hint = refusal(lambda: shell().load_state_dict(state), StateError).splitlines()[-1]
    unwrap = "torch.nn.modules.utils.consume_prefix_in_state_dict_if_present"
    assert hint == f"  hint:     {unwrap}(state, {prefix!r}) takes what a wrapper put before the names away"
    torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, prefix)
    loaded = shell()
    loaded.load_state_dict(state)
    assert torch.equal(loaded(X), converted(X))


def test_the_state_of_another_preparation():
    assert refusal(lambda: fxq.prepare(net(), X, spared()).load_state_dict(calibrated().state_dict()), StateError)
    assert refusal(lambda: fxq.prepare_qat(net(), X, spared()).load_state_dict(training().state_dict()), StateError)
    for strict in (True, False):  # as for shapes that differ
        with pytest.raises(StateError, match="quantized in another way"):
            shell(spared()).load_state_dict(int8().state_dict(), strict=strict)


@pytest.mark.parametrize("form", ["int8", "reference"])
def test_training_mode_of_integers_is_warned_of(form):
    model = forms()[form]
    with pytest.warns(fxq.FxQuantWarning) as caught:
        model.train()
    assert str(caught[0].message) == (
        "an int8 model does not train: only what stayed float in it is in training mode now\n"
        "  hint:     prepare_qat makes a model that trains as it will be quantized; eval() undoes this"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.eval()
    assert not any(module.training for module in model.modules())
    forms()["fake_quant"].train()
    trained = fxq.prepare_qat(net().train(), X)
    trained(X).sum().backward()
    assert trained.get_parameter("0.weight").grad is not None


@pytest.mark.parametrize("form", ["int8", "int8, graph", "reference"])
def test_gradients_that_end_at_integers_are_warned_of(form):
    model, x = forms()[form], X.clone().requires_grad_()
    for _ in range(3):
        with pytest.warns(fxq.FxQuantWarning) as caught:
            y = model(x)
        assert not y.requires_grad or torch.autograd.grad(y.sum(), x, allow_unused=True) == (None,)
        assert str(caught[0].message) == (
            "an input asks for gradients, and none flow through integers\n"
            "  got:      requires_grad=True\n"
            "  hint:     convert(prepared, to='fake_quant') is differentiable; "
            "torch.no_grad() says that none are wanted"
        )
    with torch.no_grad():
        model(x)
    model(X)
    assert forms()["fake_quant"](x).requires_grad


def test_inputs_of_another_float_dtype_give_the_dtype_of_the_float_model():
    assert int8()(X.double()).dtype == torch.float32
    wide = fxq.quantize(net().double(), [X.double()], progress=False)
    assert wide(X.double()).dtype == torch.float64


@pytest.mark.parametrize("form", ["int8", "int8, graph", "reference", "training"])
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_torch_script(form):
    model = forms()[form]
    for function in (torch.jit.trace, torch.jit.script):
        inputs = ((X,),) if function is torch.jit.trace else ()
        assert refusal(lambda run=function, inputs=inputs: run(model, *inputs), TracingError) == (
            f"torch.jit.{function.__name__} takes no quantized model\n"
            "  got:      Sequential, as prepare_qat or convert gave it\n"
            "  expected: torch.export or torch.compile, which take it\n"
            "  hint:     torch.export.export(model, args) captures it; torch.save(model, path) keeps it"
        )
    assert torch.equal(torch.export.export(model.eval(), (X,)).module()(X), model(X))


class ImageAndMask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        return self.first(image) * self.second(mask)


def test_inputs_by_other_names():
    rows, model = torch.ones(2, 4), ImageAndMask().eval()
    batch = {"image": rows, "mask": rows}
    message = refusal(lambda: fxq.prepare(model, batch))
    assert (
        message.splitlines()[-1] == "  hint:     inputs by name are example_kwargs: (model, (), example_kwargs=batch)"
    )
    prepared = fxq.prepare(model, (), example_kwargs=batch)
    message = refusal(lambda: fxq.prepare(model, rows, example_kwargs={"maks": rows}))
    assert message.splitlines()[-1] == "  hint:     did you mean 'mask'?"
    message = refusal(lambda: prepared(image=rows, maks=rows))
    assert message.splitlines()[-1] == "  hint:     did you mean 'mask'?"


@pytest.mark.parametrize(
    ("given", "got", "hint"),
    [
        (nn.Linear, "the class Linear", "an instance of it: Linear(...)"),
        (
            {"weight": X},
            "dict",
            "this may be a state dict: build the model from its class, and model.load_state_dict(it)",
        ),
        ([nn.Linear(2, 2)], "list", "torch.nn.Sequential(*layers) is a module"),
        ("net.pt", "str", "build the model from its class, and model.load_state_dict(torch.load(path))"),
    ],
)
def test_what_is_no_model(given, got, hint):
    assert refusal(lambda: fxq.prepare(given, X)) == (
        f"the model is no torch.nn.Module\n  got:      {got}\n  expected: a torch.nn.Module\n  hint:     {hint}"
    )


def test_what_is_no_state_dict():
    for model in (int8(), prepared()):
        assert refusal(lambda model=model: model.load_state_dict("a.pt"), StateError) == (
            "this is no state dict\n  got:      'a.pt'\n  expected: a dict of tensors, as state_dict() gives it\n"
            "  hint:     torch.load(path) reads one that torch.save wrote"
        )


def test_a_tensor_in_place_of_a_path_is_not_printed():
    message = refusal(lambda: fxq.export_onnx(int8(), X, "net.onnx"), ArtifactError)
    assert message == (
        "this is no path of a file\n  got:      float32[2, 3, 6, 6]\n  expected: a str or a pathlib.Path"
    )


def test_what_is_no_back_end():
    assert refusal(lambda: fxq.register_backend("mine"), SpecError).startswith(
        "a back end is a Backend\n  got:      'mine'"
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_batches_of_another_dtype(dtype):
    x = torch.ones(3, 4)
    linear = nn.Linear(4, 4).eval()
    calibrated = fxq.calibrate(fxq.prepare(linear, x), [x], progress=False)
    calls: dict[str, Callable[[], object]] = {
        "Linear": lambda: fxq.calibrate(fxq.prepare(linear, x), [x.to(dtype)], progress=False),
        "Linear ": lambda: calibrated(x.to(dtype)),
        "FakeQuantizedLinear": lambda: fxq.convert(calibrated, to="fake_quant")(x.to(dtype)),
        "FakeQuantizedLinear ": lambda: fxq.prepare_qat(nn.Linear(4, 4), x)(x.to(dtype)),
    }
    for kind, call in calls.items():
        assert f"  expected: float32, as the parameters of this {kind.strip()}\n" in refusal(call)
    image = nn.Sequential(nn.Conv2d(3, 4, 3)).eval()
    assert "  expected: float32, as the parameters of this Conv2d\n" in refusal(
        lambda: fxq.calibrate(fxq.prepare(image, X), [X.to(dtype)], progress=False)
    )
    assert "  expected: Conv2d with 3 input channels\n" in refusal(
        lambda: fxq.calibrate(fxq.prepare(image, X), [X[:, :2]], progress=False)
    )
    assert "  expected: float32, as the other tensors\n" in refusal(lambda: fxq.prepare(linear, x.to(dtype)))


def test_inputs_of_float8():
    x = torch.ones(3, 4)
    prepared = fxq.calibrate(fxq.prepare(nn.Linear(4, 4).eval(), x), [x], progress=False)
    model, small = fxq.convert(prepared), x.to(torch.float8_e4m3fn)
    what = (
        "the input 'input' holds float values of 8 bits, on which torch has no arithmetic\n"
        "  got:      float8_e4m3fn[3, 4]\n"
        "  expected: float32, as [3, 4] when it was prepared\n"
        "  hint:     input.float()"
    )
    assert [refusal(lambda: model(small)) for _ in range(3)] == [what] * 3
    assert refusal(lambda: fxq.calibrate(prepared, [small], progress=False)) == f"calibration batch 0: {what}"
    assert torch.equal(model(small.float()), model(x))


@pytest.mark.parametrize("given", ["abc", "", True, ["abc"]])
@pytest.mark.parametrize("function", [fxq.prepare, fxq.prepare_qat])
def test_example_inputs_that_tracing_fixes(function, given):
    kind = "bool" if given is True else "str"
    shown = repr(given[0] if isinstance(given, list) else given)
    assert refusal(lambda: function(nn.Linear(4, 4).train(function is fxq.prepare_qat), given)) == (
        "the example inputs do not run through the model: "
        f"linear(): argument 'input' (position 1) must be Tensor, not {kind}\n"
        f"  got:      ({shown})\n"
        "  expected: Linear.forward(input: torch.Tensor) -> torch.Tensor\n"
        "  hint:     example_inputs (--input of a command) must be inputs that the model itself can run on"
    )


class Duck:
    def __init__(self, **arguments: Any) -> None:
        pass


@pytest.mark.parametrize("kind", [fxq.FakeQuantize, fxq.LearnableFakeQuantize, fxq.FusedMovingAvgObsFakeQuantize])
def test_fake_quantize_of_what_is_no_observer(kind):
    what = (
        f"  got:      {__name__}.Duck\n"
        "  expected: an observer class, or what its with_args(...) gives; one of your own has a scheme (a QScheme, or "
        "None) and calculate_qparams()\n"
        "  hint:     fxquant.observers has the observers of torch.ao.quantization under the same names"
    )
    made = kind.with_args(observer=Duck)
    assert refusal(made, SpecError) == f"observer= makes something that is no observer of fxquant\n{what}"
    assert refusal(lambda: fxq.QConfig(activation=Duck, weight=Duck), SpecError) == (
        f"QConfig activation makes something that is no observer of fxquant\n{what}"
    )
    for wrong in (3, None, "MinMaxObserver"):
        assert refusal(kind.with_args(observer=wrong), SpecError) == (
            "observer= is no constructor\n"
            f"  got:      {wrong!r}\n"
            "  expected: an observer class, or what its with_args(...) gives"
        )
    assert refusal(kind.with_args(observer=fxq.PlaceholderObserver), SpecError).startswith(
        "this observer has no qparams that could be simulated"
    )


@pytest.mark.parametrize("given", [None, 3, nn.Linear])
def test_training_of_what_is_no_module(given):
    rest = f"  got:      {type(given).__name__}\n  expected: a torch.nn.Module, as prepare_qat gives it"
    assert refusal(lambda: fxq.scale_parameters(given)) == f"scale_parameters takes the model that trains\n{rest}"
    schedule = fxq.TrainingSchedule(disable_observers=0)
    assert refusal(lambda: schedule.start_epoch(given, 0)) == f"start_epoch takes the model that trains\n{rest}"
    assert refusal(lambda: fxq.synchronize_observers(given)) == (
        "synchronize_observers takes a model with observers\n"
        f"  got:      {type(given).__name__}\n"
        "  expected: what prepare or prepare_qat gave, or a torch.nn.Module with observers in it"
    )


def test_nothing_to_synchronize():
    for model in (net(), int8()):
        with pytest.warns(fxq.FxQuantWarning, match="there is nothing to synchronize: the model has neither observers"):
            fxq.synchronize_observers(model)
    for model in (prepared(), calibrated(), training(), fxq.MinMaxObserver()):
        fxq.synchronize_observers(model)
