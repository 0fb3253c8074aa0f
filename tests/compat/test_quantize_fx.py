"""Programs written for torch.ao's FX mode: the same calls on the same model, with torch.ao as the judge."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import fxquant as fxq
from fxquant.capture.exported.branches import REASON_OF_BRANCHES
from fxquant.compat.backend_config import BackendConfig, BackendPatternConfig, DTypeConfig, DTypeWithConstraints
from fxquant.compat.custom_config import ConvertCustomConfig, PrepareCustomConfig
from fxquant.compat.fake_quantize import FusedMovingAvgObsFakeQuantize, disable_observer
from fxquant.compat.observer import MinMaxObserver, default_weight_observer
from fxquant.compat.qconfig import QConfig, default_dynamic_qconfig, default_qconfig, float16_static_qconfig
from fxquant.compat.qconfig_mapping import (
    QConfigMapping,
    get_default_qat_qconfig_mapping,
    get_default_qconfig_mapping,
)
from fxquant.compat.quantize_fx import (
    _convert_to_reference_decomposed_fx,
    convert_fx,
    convert_to_reference_fx,
    prepare_fx,
    prepare_qat_fx,
)
from fxquant.errors import FxQuantWarning, InputError, UnknownNameError
from fxquant.nn import QuantizedConv, QuantizedLinear, QuantizedRecurrent
from tests.sampling import one_of


class Net(nn.Module):
    """A convolution with batch norm and ReLU, a pool, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(8 * 9, 5)
        self.note = "kept"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(self.relu(self.bn(self.conv(x)))).flatten(1))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    made = Net()
    made.bn.running_mean.uniform_(-0.2, 0.2)
    made.bn.running_var.uniform_(0.5, 1.5)
    return made.eval()


def batches(count: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 3, 6, 6, generator=generator) for _ in range(count)]


def calibrated(net: nn.Module, rules: Any = None, **more: Any) -> GraphModule:
    prepared = prepare_fx(net, rules or QConfigMapping().set_global(default_qconfig), (batches(1)[0],), **more)
    for x in batches():
        prepared(x)
    return prepared


@pytest.mark.filterwarnings("ignore")
def test_numbers_are_those_of_torch_ao(net):
    ao = pytest.importorskip("torch.ao.quantization")
    fx = pytest.importorskip("torch.ao.quantization.quantize_fx")
    ours = calibrated(net, get_default_qconfig_mapping("fbgemm"))
    theirs = fx.prepare_fx(copy.deepcopy(net), ao.get_default_qconfig_mapping("fbgemm"), (batches(1)[0],))
    for x in batches():
        theirs(x)
    names = [name for name, _ in ours.named_modules(remove_duplicate=False) if name.startswith("activation")]
    assert names == [name for name, _ in theirs.named_modules(remove_duplicate=False) if name.startswith("activation")]
    for name in names:
        mine, other = (model.get_submodule(name).calculate_qparams() for model in (ours, theirs))
        torch.testing.assert_close(mine[0], other[0], rtol=1e-6, atol=0)
        assert int(mine[1]) == int(other[1])
    step = float(ours.get_submodule(names[-1]).calculate_qparams()[0])
    int8, quantized = convert_fx(ours), fx.convert_fx(theirs)
    assert (int8(batches()[0]) - quantized(batches()[0])).abs().max() <= step * 1.001
    for layer, other in ((int8.conv, quantized.conv), (int8.head, quantized.head)):
        assert (layer.scale, layer.zero_point) == (pytest.approx(other.scale, rel=1e-6), other.zero_point)


@pytest.mark.filterwarnings("ignore")
def test_objects_of_torch_ao_are_taken_as_they_are(net):
    ao = pytest.importorskip("torch.ao.quantization")
    by_theirs = calibrated(net, ao.QConfigMapping().set_global(ao.default_qconfig))
    x = batches()[0]
    assert torch.equal(convert_fx(by_theirs)(x), convert_fx(calibrated(net))(x))
    assert isinstance(by_theirs.activation_post_process_0, MinMaxObserver)
    assert isinstance(by_theirs.activation_post_process_0, ao.MinMaxObserver)

    class Own(ao.MinMaxObserver):
        """A class derived from one of torch.ao stays what it is."""

        seen = 0

        def forward(self, x):
            Own.seen += 1
            return super().forward(x)

    calibrated(net, {"": ao.QConfig(activation=Own, weight=ao.default_weight_observer)})
    assert Own.seen


def test_prepare_gives_a_graph_module_that_measures(net):
    prepared = calibrated(net)
    assert isinstance(prepared, GraphModule)
    assert type(prepared).__name__ == "Net"
    assert isinstance(prepared.activation_post_process_0, MinMaxObserver)
    assert prepared.activation_post_process_1 is prepared.activation_post_process_2, "a pool has its input's qparams"
    assert torch.equal(prepared(batches()[0]), net(batches()[0]))
    int8 = convert_fx(prepared)
    kinds = {type(module) for module in int8.modules()}
    assert {QuantizedConv, QuantizedLinear} <= kinds
    assert prepared.head.qconfig is default_qconfig
    assert not hasattr(int8.head, "qconfig")
    assert convert_fx(prepared, _remove_qconfig=False).head.qconfig is default_qconfig
    assert not any(name.startswith("activation_post_process") for name, _ in int8.named_modules())


def test_convert_reads_what_was_loaded_and_changed_since(net):
    prepared, x = calibrated(net), batches()[0]
    first = convert_fx(prepared)(x)
    other = prepare_fx(net, QConfigMapping().set_global(default_qconfig), (x,))
    buffer = io.BytesIO()
    torch.save(prepared.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer))
    assert torch.equal(convert_fx(other)(x), first)
    with torch.no_grad():
        other.head.weight.zero_()
    assert not torch.equal(convert_fx(other)(x), first)
    assert torch.equal(convert_fx(copy.deepcopy(prepared))(x), first)
    assert torch.equal(convert_fx(prepared)(x), first), "converting changes nothing"


def test_training_goes_on_in_the_int8_model(net):
    qat = prepare_qat_fx(net.train(), get_default_qat_qconfig_mapping(), (batches(1)[0],))
    optimizer = torch.optim.SGD(qat.parameters(), lr=0.01)
    for x in batches():
        optimizer.zero_grad()
        qat(x).square().mean().backward()
        optimizer.step()
    assert isinstance(qat.activation_post_process_0, FusedMovingAvgObsFakeQuantize)
    qat.apply(disable_observer)
    assert int(qat.activation_post_process_0.observer_enabled) == 0
    qat.eval()
    int8, x = convert_fx(qat), batches()[0]
    step = float(list(qat.children())[-1].calculate_qparams()[0])
    assert (int8(x) - qat(x)).abs().max() <= step * 1.01


@pytest.mark.filterwarnings("ignore")
def test_switches_of_torch_ao_reach_our_modules(net):
    ao = pytest.importorskip("torch.ao.quantization")
    qat = prepare_qat_fx(net.train(), get_default_qat_qconfig_mapping(), (batches(1)[0],))
    qat.apply(ao.disable_observer).apply(ao.disable_fake_quant)
    assert int(qat.activation_post_process_0.observer_enabled) == 0
    assert int(qat.activation_post_process_0.fake_quant_enabled) == 0


def test_rules_by_dict_leave_in_float(net):
    rules = {"": default_qconfig, "module_name": [("head", None)]}
    int8 = convert_fx(calibrated(net, rules))
    assert isinstance(int8.head, nn.Linear)
    assert isinstance(int8.conv, QuantizedConv)
    with pytest.raises(InputError, match="unknown kind of rule"):
        prepare_fx(net, {"module_names": []}, (batches(1)[0],))
    with pytest.raises(InputError, match="not a configuration"):
        prepare_fx(net, default_qconfig, (batches(1)[0],))


def test_a_model_without_units_comes_back_in_float_with_a_warning(net):
    with pytest.warns(FxQuantWarning, match="nothing in the model can be quantized"):
        prepared = prepare_fx(net, QConfigMapping(), (batches(1)[0],))
    assert torch.equal(convert_fx(prepared)(batches()[0]), net(batches()[0]))
    with pytest.warns(FxQuantWarning, match="nothing in the model"):
        prepare_fx(net, QConfigMapping().set_global(float16_static_qconfig), (batches(1)[0],))


def test_values_never_seen_get_scale_1_with_a_warning(net):
    prepared = prepare_fx(net, QConfigMapping().set_global(default_qconfig), (batches(1)[0],))
    with pytest.warns(FxQuantWarning, match="must run observer"):
        int8 = convert_fx(prepared)
    assert float(int8.head.y_scale) == 1.0


def test_dynamic_linear_needs_no_data(net):
    prepared = prepare_fx(net, {"object_type": [(nn.Linear, default_dynamic_qconfig)]}, (batches(1)[0],))
    x = batches()[0]
    assert (convert_fx(prepared)(x) - net(x)).abs().max() < 0.05


def test_references_agree_with_int8(net):
    prepared, x = calibrated(net), batches()[0]
    int8, reference = convert_fx(prepared)(x), convert_to_reference_fx(prepared)(x)
    step = float(prepared.get_submodule("activation_post_process_4").calculate_qparams()[0])
    assert (int8 - reference).abs().max() <= step * 1.001
    assert torch.equal(_convert_to_reference_decomposed_fx(prepared)(x), reference)


def test_rules_of_convert_leave_more_in_float(net):
    rules = QConfigMapping().set_global(default_qconfig).set_module_name("head", default_qconfig)
    prepared = calibrated(net, rules)
    less = QConfigMapping().set_global(default_qconfig).set_module_name("head", None)
    assert isinstance(convert_fx(prepared, qconfig_mapping=less).head, nn.Linear)
    other = QConfigMapping().set_module_name("head", QConfig(MinMaxObserver, default_weight_observer))
    with pytest.raises(AssertionError, match="same qconfig"):
        convert_fx(prepared, qconfig_mapping=other)
    with pytest.raises(AssertionError, match="to also be in prepare"):
        convert_fx(prepared, qconfig_mapping=QConfigMapping().set_module_name("conv", default_qconfig))


def test_custom_configuration(net):
    custom = PrepareCustomConfig().set_non_traceable_module_names(["head"]).set_preserved_attributes(["note"])
    prepared = calibrated(net, prepare_custom_config=custom)
    int8 = convert_fx(prepared, ConvertCustomConfig().set_preserved_attributes(["note"]))
    assert isinstance(int8.head, nn.Linear)
    assert (prepared.note, int8.note) == ("kept", "kept")
    assert int8.meta["_user_preserved_attributes"] == {"note": "kept"}


def test_quantized_inputs_and_outputs(net):
    prepared = calibrated(net, prepare_custom_config={"input_quantized_idxs": [0], "output_quantized_idxs": [0]})
    int8 = convert_fx(prepared)
    scale, zero_point = prepared.activation_post_process_0.calculate_qparams()
    x = (batches()[0] / scale + zero_point).round().clamp(0, 127).to(torch.uint8)
    y = int8(x)
    assert y.dtype == torch.uint8
    out_scale, out_zero = prepared.activation_post_process_4.calculate_qparams()
    assert ((y.float() - out_zero) * out_scale - net(batches()[0])).abs().max() < 0.1


class Pair(nn.Module):
    """Two copies of the network in one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.second = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def test_standalone_modules_are_prepared_on_their_own():
    model, x = Pair().eval(), torch.randn(2, 4)
    custom = PrepareCustomConfig().set_standalone_module_name("first", None, (x,), None, None)
    prepared = prepare_fx(model, {"": default_qconfig}, (x,), custom)
    assert isinstance(prepared.first.activation_post_process_0, MinMaxObserver)
    prepared(x)
    int8 = convert_fx(prepared)
    assert isinstance(int8.first.get_submodule("0"), QuantizedLinear)
    assert (int8(x) - model(x)).abs().max() < 0.1
    custom = PrepareCustomConfig().set_standalone_module_name("third", None, (x,), None, None)
    with pytest.raises(UnknownNameError):
        prepare_fx(model, {"": default_qconfig}, (x,), custom)


class Halved(nn.Module):
    """A module of the user's own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / 2


class ObservedHalved(Halved):
    """What takes its place while values are measured."""

    @classmethod
    def from_float(cls, module: Any) -> ObservedHalved:
        assert module.qconfig is default_qconfig
        return cls()


class QuantizedHalved(Halved):
    """What takes its place in the end."""

    @classmethod
    def from_observed(cls, module: Any) -> QuantizedHalved:
        return cls()


def test_classes_of_the_users_own_for_each_stage():
    x = torch.randn(2, 4)
    custom = PrepareCustomConfig().set_float_to_observed_mapping(Halved, ObservedHalved)
    prepared = prepare_fx(nn.Sequential(nn.Linear(4, 4), Halved()).eval(), {"": default_qconfig}, (x,), custom)
    assert isinstance(prepared.get_submodule("1"), ObservedHalved)
    prepared(x)
    config = ConvertCustomConfig().set_observed_to_quantized_mapping(ObservedHalved, QuantizedHalved)
    assert isinstance(convert_fx(prepared, config).get_submodule("1"), QuantizedHalved)


def test_a_backend_config_forbids(net):
    only_linear = BackendConfig("mine").set_backend_pattern_config(BackendPatternConfig(nn.Linear))
    int8 = convert_fx(calibrated(net, backend_config=only_linear))
    assert isinstance(int8.conv, nn.Conv2d)
    assert isinstance(int8.head, QuantizedLinear)
    bounds = DTypeWithConstraints(torch.quint8, quant_max_upper_bound=63)
    narrow = BackendPatternConfig(nn.Linear).set_dtype_configs([DTypeConfig(input_dtype=bounds)])
    with pytest.warns(FxQuantWarning, match="nothing in the model"):
        calibrated(net, backend_config=BackendConfig().set_backend_pattern_config(narrow))


def test_what_is_not_offered_says_so(net):
    with pytest.raises(NotImplementedError, match="keep_original_weights"):
        convert_fx(calibrated(net), keep_original_weights=True)
    with pytest.raises(InputError, match="was not prepared"):
        convert_fx(net)
    with pytest.warns(FxQuantWarning, match="stay float"):
        prepare_fx(nn.ReLU().eval(), {"": default_qconfig}, (torch.randn(2),), {"output_quantized_idxs": [0]})


def test_nothing_imports_torch_ao(fresh):
    code = (
        "import sys, torch; before = set(sys.modules);"
        "import fxquant.compat.quantize_fx as q, fxquant.compat.qconfig_mapping as m;"
        "p = q.prepare_fx(torch.nn.Linear(2, 2).eval(), m.get_default_qconfig_mapping(), (torch.ones(1, 2),));"
        "p(torch.ones(1, 2)); q.convert_fx(p)(torch.ones(1, 2));"
        "assert not [n for n in set(sys.modules) - before if n.startswith('torch.ao')]"
    )
    done = fresh(code)
    assert done.returncode == 0, done.stderr


def test_normal_use_warns_of_nothing(net):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert_fx(calibrated(net, get_default_qconfig_mapping()))(batches()[0])


@pytest.mark.filterwarnings("ignore")
def test_models_with_standalone_modules_are_pickled():
    model, x = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 3)).eval(), torch.randn(5, 4)
    custom = PrepareCustomConfig().set_standalone_module_name("0", None, (x,), None, None)
    prepared = prepare_fx(model, get_default_qconfig_mapping("fbgemm"), (x,), custom)
    prepared(x)
    for one in (prepared, convert_fx(prepared)):
        assert torch.equal(pickle.loads(pickle.dumps(one))(x), one(x))


class Recurrent(nn.Module):
    """A recurrent layer in front of a linear one."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x, (h, h))[0])


@torch.no_grad()
def test_an_observer_sees_inputs_and_hidden_states_of_a_recurrent_layer():
    torch.manual_seed(0)
    model, x, h = Recurrent().eval(), torch.randn(5, 2, 4), torch.randn(1, 2, 4)
    rules = {"object_type": [(nn.LSTM, default_qconfig), (nn.Linear, default_qconfig)]}
    prepared = prepare_fx(model, rules, (x, h))
    other = copy.deepcopy(prepared)
    assert torch.equal(prepared(x, h), model(x, h))
    (observer,) = (module for module in prepared.modules() if type(module).__name__ == "InsideObserver")
    seen = torch.cat([x.flatten(), h.flatten(), model.lstm(x, (h, h))[0][:-1].flatten()])
    assert (float(observer.min_val), float(observer.max_val)) == pytest.approx((float(seen.min()), float(seen.max())))
    int8 = convert_fx(prepared)
    assert isinstance(int8.lstm, QuantizedRecurrent)
    assert float(int8.lstm.x_scale) == float(observer.calculate_qparams()[0])
    assert (int8(x, h) - model(x, h)).abs().max() < 0.05
    assert [name for name, _ in prepared.named_parameters()] == [name for name, _ in model.named_parameters()]
    other.load_state_dict(prepared.state_dict())
    assert torch.equal(convert_fx(other)(x, h), int8(x, h))


class Either(nn.Module):
    """A layer behind one of two, by the sign of a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cond(x.sum() > 0, self.first, self.second, (x,)))


@pytest.mark.parametrize("trains", one_of(2, [False, True]))
def test_branches_stay_float_and_the_coverage_says_so(trains: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 16)
    mapping = get_default_qat_qconfig_mapping() if trains else get_default_qconfig_mapping()
    prepared = (prepare_qat_fx if trains else prepare_fx)(Either().train(trains), mapping, (x,))
    prepared(x)
    quantized = convert_fx(prepared)
    assert [type(module).__name__ for module in quantized.modules() if "Linear" in type(module).__name__] == (
        ["QuantizedLinear", "Linear", "Linear"] if trains else ["Linear", "Linear", "QuantizedLinear"]
    )
    coverage = quantized.quant_coverage
    assert coverage.int8_macs == pytest.approx(32 * 4 / (32 * 4 + 16 * 32))  # one branch runs
    (row,) = [row for row in coverage.float_rows if row.node == "cond"]
    assert row.reason == REASON_OF_BRANCHES


def test_each_convert_names_the_other() -> None:
    x = torch.randn(2, 4)
    model = nn.Sequential(nn.Linear(4, 4)).eval()
    with pytest.raises(InputError, match=r"hint:     fxquant\.compat\.quantize_fx\.convert_fx\(prepared\)"):
        fxq.convert(prepare_fx(model, get_default_qconfig_mapping(), (x,)))
    with pytest.raises(InputError, match=r"hint:     fxquant\.convert makes the quantized model of a Quantizer"):
        convert_fx(fxq.prepare(model, x))
