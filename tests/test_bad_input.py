"""What people give by mistake: the whole message of each, and what its hint says to do instead, done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision.transforms.functional import to_pil_image, to_tensor

import fxquant as fxq
from fxquant.errors import (
    CalibrationError,
    FxQuantError,
    InputError,
    PlanError,
    SpecError,
    TracingError,
    UnknownNameError,
)

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
    assert refusal(lambda: call(net())) == (
        f"{function} takes what prepare{' or prepare_qat' if both else ''} gave\n"
        "  got:      Sequential\n"
        f"  expected: a Quantizer{', or the GraphModule of prepare_qat' if both else ''}\n"
        f"  hint:     {hint}"
    )
    assert call(calibrated()) is not None
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
    assert refusal(lambda: TAKE_FLOAT_MODELS[function](compiled)) == (
        "the model is wrapped by torch.compile\n"
        "  got:      OptimizedModule\n"
        "  expected: the module inside\n"
        "  hint:     give model._orig_mod, and wrap what convert or prepare_qat makes of it"
    )
    assert TAKE_FLOAT_MODELS[function](compiled._orig_mod) is not None


def test_a_compiled_submodule():
    model: Any = Wrapped().eval()
    assert refusal(lambda: fxq.prepare(model, X)) == (
        "the submodule 'body' is wrapped by torch.compile\n"
        "  got:      OptimizedModule\n"
        "  expected: the module inside\n"
        "  hint:     model.set_submodule('body', model.get_submodule('body')._orig_mod)"
    )
    model.set_submodule("body", model.get_submodule("body")._orig_mod)
    assert fxq.prepare(model, X).coverage().int8_macs == 1.0


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
    assert refusal(lambda: function(net(), None)) == (
        "there are no example inputs\n"
        "  got:      None\n"
        "  expected: a tensor, or the tuple of positional inputs, as the model takes them\n"
        "  hint:     next(iter(loader))[0] is the input of the first batch, where loader yields (input, label) pairs"
    )
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


@pytest.mark.parametrize("function", [fxq.calibrate, fxq.adaround], ids=lambda function: function.__name__)
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
            f"unknown backend\n  got:      {backend!r}\n  expected: cpu, reference\n"
            "  hint:     backend='cpu', the default, is for every CPU: instruction sets are chosen at run time"
        )
        assert function(net(), X, backend="cpu") is not None


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
