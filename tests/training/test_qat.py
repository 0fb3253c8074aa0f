"""Training as it will be quantized, and what comes out of it."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from typing import Any

import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

import fxquant as fxq
from fxquant.errors import CalibrationError, FxQuantWarning, InputError
from fxquant.fake_quantize.defaults import default_qat_qconfig
from fxquant.measure.noise import sqnr
from fxquant.nn.fake_quantize import FakeQuantizedConv2d, FakeQuantizedLinear
from fxquant.observers.defaults import DEFAULT_QCONFIG

ONE_STEP = 1.001
"""Steps: int8 may fall on the other side of a rounding boundary."""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.25)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)) + y)
        y = F.dropout(self.drop(y.mean((2, 3))), 0.1, self.training)
        return self.fc(y)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def model():
    return Net().train()


def batch(n: int = 8) -> torch.Tensor:
    return torch.randn(n, 3, 8, 8)


def train(model: nn.Module, steps: int = 3) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        optimizer.step()
    return model


def without_fake_quant(model: nn.Module) -> nn.Module:
    return model.apply(fxq.disable_fake_quant).apply(fxq.disable_observer)


def test_the_users_model_and_the_names_of_its_parameters_stay(model):
    before = copy.deepcopy(model.state_dict())
    qat = train(fxq.prepare_qat(model, batch()))
    assert [name for name, _ in qat.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    missing, unexpected = qat.load_state_dict(before, strict=False)
    assert not unexpected
    assert all("fake_quant" in name for name in missing)
    assert model.training


def test_without_fake_quant_it_trains_as_the_float_model_does(model):
    model.drop.p = 0.0
    qat = without_fake_quant(fxq.prepare_qat(model, batch()))
    qat.get_submodule("dropout_regularizer").arguments["p"] = 0.0
    floats = copy.deepcopy(model)
    floats.forward = lambda x, f=floats: f.fc(F.relu(f.bn2(f.conv2(y := F.relu(f.bn1(f.conv1(x))))) + y).mean((2, 3)))
    for each in (qat, floats):
        torch.manual_seed(1)
        train(each)
    trained = dict(qat.named_parameters()) | dict(qat.named_buffers())
    for name, value in floats.state_dict().items():
        assert torch.allclose(trained[name], value, atol=1e-5), name  # w * f / f is not w to the last bit


def test_dropouts_and_batch_norms_follow_the_mode(model):
    qat = fxq.prepare_qat(model, batch())
    assert qat.training
    assert qat.drop.training
    assert qat.drop.p == 0.25
    x = batch()
    assert not torch.equal(qat(x), qat(x))
    qat.eval().apply(fxq.disable_observer)
    assert torch.equal(qat(x), qat(x))


def test_each_module_keeps_its_own_mode(model):
    model.bn1.eval()
    qat = fxq.prepare_qat(model, batch())
    assert not qat.bn1.training
    assert qat.bn2.training
    assert not any(module.training for module in fxq.prepare_qat(Net().eval(), batch()).modules())


def test_int8_is_the_trained_model_in_evaluation_mode(model):
    qat = train(fxq.prepare_qat(model, batch())).eval().apply(fxq.disable_observer)
    int8 = fxq.convert(qat, check=batch(16))
    assert int8.parity.breaches == ()
    x = batch(64)
    with torch.no_grad():
        scale = float(qat(x).max() - qat(x).min()) / 255  # what it would be, if the result were on a grid
        assert (int8(x) - qat(x)).abs().max() <= ONE_STEP * scale
        simulated = fxq.convert(qat, to="fake_quant")(x)
        assert (simulated - qat(x)).abs().max() <= ONE_STEP * scale


def test_convert_takes_the_grids_in_use_and_observes_nothing(model):
    qat = train(fxq.prepare_qat(model, batch()))
    before = copy.deepcopy(qat.state_dict())
    graph = str(qat.graph)
    int8 = fxq.convert(qat)
    assert all(torch.equal(value, before[name]) for name, value in qat.state_dict().items())
    assert str(qat.graph) == graph
    assert qat.training
    assert torch.equal(int8.conv1.weight_scale, qat.conv1.weight_fake_quant.scale)
    all_qparams = {ref.name: qparams for ref, qparams in int8.quant_plan.qparams.items()}
    assert torch.equal(all_qparams["x"].scale, qat.x_fake_quant.scale)


def test_a_weight_that_leaves_its_frozen_range_saturates_on_both_sides():
    model = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False)).train()
    nn.init.constant_(model[0].weight, -2.0)
    x = torch.rand(16, 1, 1, 1)
    qat = fxq.prepare_qat(model, x)
    qat(x)
    qat.apply(fxq.disable_observer)
    with torch.no_grad():
        qat.get_submodule("0").weight.fill_(-2.01)
    layer = qat.get_submodule("0")
    int8 = fxq.convert(qat).get_submodule("0")
    simulated = layer.weight_fake_quant(layer.weight)
    assert torch.equal(int8.weight.float() * int8.weight_scale, simulated.detach())
    assert int8.weight.item() == -128


def test_gamma_of_zero_stays_finite_and_learns():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()).train()
    nn.init.zeros_(model[1].weight)
    nn.init.constant_(model[1].bias, 0.25)
    qat = fxq.prepare_qat(model, torch.randn(4, 3, 8, 8))
    y = qat(torch.randn(4, 3, 8, 8))
    (y * torch.randn_like(y)).sum().backward()
    assert (y - 0.25).abs().max() <= 1e-6
    assert all(torch.isfinite(parameter.grad).all() for parameter in qat.parameters())
    assert qat.get_submodule("1").weight.grad.abs().min() > 0


def test_linear_batch_norm_is_trained_as_it_is_folded():
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)).train()
    qat = fxq.prepare_qat(model, torch.randn(8, 6))
    for _ in range(3):
        qat(torch.randn(8, 6))
    qat.eval().apply(fxq.disable_observer)
    assert fxq.convert(qat, check=torch.randn(32, 6)).parity.breaches == ()


def test_a_synchronized_batch_norm_is_trained_and_folded_as_a_batch_norm(model):
    """On the CPU it runs only where no process group is: then it does what a batch norm does."""
    synchronized = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model))
    models = [fxq.prepare_qat(each, batch()) for each in (model, synchronized)]
    assert type(models[1].bn1) is nn.SyncBatchNorm
    for each in models:
        torch.manual_seed(1)
        train(each)
    for (name, value), other in zip(models[0].state_dict().items(), models[1].state_dict().values(), strict=True):
        assert torch.equal(value, other), name
    x = batch()
    assert torch.equal(*(fxq.convert(each)(x) for each in models))


def test_parameters_that_will_not_be_trained_are_warned_of():
    class WithHead(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head, self.extra = nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(6, 3)
            self.loose = nn.Parameter(torch.randn(6, 6))

        def forward(self, x):
            y = F.linear(F.relu(self.body(x)), self.loose)
            return (self.head(y), self.extra(y)) if self.training else self.head(y)

    with (
        pytest.warns(FxQuantWarning, match="code that runs only while training"),
        pytest.warns(FxQuantWarning, match="will not be trained") as caught,
    ):
        fxq.prepare_qat(WithHead().train(), torch.randn(2, 6))
    (message,) = (text for each in caught if "will not be trained" in (text := str(each.message)))
    assert message.splitlines() == [
        "parameters of the model are not in the graph of evaluation mode, and will not be trained",
        "  got:      extra.weight",
        "            extra.bias",
        "  hint:     heads that only training runs are left out; what forward makes a number (by item()) is fixed",
    ]


def test_the_parts_of_an_attention_train_the_parameters_that_it_has():
    class SelfAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x)[0]

    model = SelfAttention().train()
    qat = fxq.prepare_qat(model, torch.randn(2, 3, 8))  # warnings are errors here
    assert [name for name, _ in qat.named_parameters()] == [name for name, _ in model.named_parameters()]
    qat(torch.randn(2, 3, 8)).square().mean().backward()
    assert (qat.attention.in_proj_weight.grad.chunk(3)[2] != 0).any()
    assert [
        name for name in ("q_proj", "k_proj", "v_proj") if qat.attention.get_submodule(name).weight is not None
    ] == []


def test_observers_in_a_qconfig_get_a_fake_quantize_around_them(model):
    qat = fxq.prepare_qat(model, batch(), DEFAULT_QCONFIG)
    assert type(qat.x_fake_quant) is fxq.FakeQuantize
    assert isinstance(qat.x_fake_quant.activation_post_process, fxq.HistogramObserver)
    train(qat).eval().apply(fxq.disable_observer)
    assert fxq.convert(qat, check=batch()).parity.breaches == ()


def test_first_and_last_layer_at_other_bits(model):
    four = fxq.QConfig(
        activation=default_qat_qconfig.activation,
        weight=fxq.FakeQuantize.with_args(
            observer=fxq.MovingAveragePerChannelMinMaxObserver,
            bits=4,
            dtype=torch.int8,
            qscheme="per_channel_symmetric",
        ),
    )
    mapping = fxq.QConfigMapping().set_global(four)
    mapping.set_module_name("conv1", default_qat_qconfig).set_module_name("fc", default_qat_qconfig)
    qat = fxq.prepare_qat(model, batch(), mapping)
    bits = {name: qat.get_submodule(name).weight_fake_quant.scheme.bits for name in ("conv1", "conv2", "fc")}
    assert bits == {"conv1": 8, "conv2": 4, "fc": 8}


def test_what_the_configuration_leaves_out_stays_as_it_is(model):
    mapping = fxq.get_default_qat_qconfig_mapping().set_module_name("conv2", None)
    qat = fxq.prepare_qat(model, batch(), mapping)
    assert type(qat.conv2) is nn.Conv2d
    assert type(qat.conv1) is FakeQuantizedConv2d
    assert type(qat.fc) is FakeQuantizedLinear


def test_a_layer_that_is_called_twice_stays_one_layer():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x):
            return self.conv(F.relu(self.conv(x)))

    qat = fxq.prepare_qat(Twice().train(), torch.randn(2, 4, 6, 6))
    assert [name for name, _ in qat.named_parameters(remove_duplicate=False)] == ["conv.weight", "conv.bias"]
    qat(torch.randn(2, 4, 6, 6))
    int8 = fxq.convert(qat.eval().apply(fxq.disable_observer), check=torch.randn(2, 4, 6, 6))
    assert int8.parity.breaches == ()


def test_tied_weights_stay_tied():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)).train()
    model[2].weight = model[0].weight
    qat = fxq.prepare_qat(model, torch.randn(2, 6))
    assert qat.get_submodule("0").weight is qat.get_submodule("2").weight
    assert len(list(qat.parameters())) == 3


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_train_and_convert(model, copied):
    qat = train(fxq.prepare_qat(model, batch()))
    twin = copied(qat)
    qat.eval().apply(fxq.disable_observer)
    twin.eval().apply(fxq.disable_observer)
    x = batch()
    assert torch.equal(qat(x), twin(x))
    assert torch.equal(fxq.convert(qat)(x), fxq.convert(twin)(x))
    twin.train()
    train(twin)
    assert not torch.equal(twin.conv1.weight, qat.conv1.weight)


@pytest.mark.parametrize("qconfig", [None, fxq.get_lsq_qconfig(4, 4)], ids=["fused", "learned"])
def test_a_checkpoint_resumes_to_the_bit(tmp_path, qconfig):
    """In the middle of a schedule, with an optimizer that has momentum, by a file."""
    schedule = fxq.TrainingSchedule(disable_observers=2, freeze_bn_stats=3)

    def start(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        torch.manual_seed(seed)
        qat = fxq.prepare_qat(Net().train(), batch(), qconfig)
        optimizer = torch.optim.SGD(qat.parameters(), 0.1, momentum=0.9)
        return qat, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    def run(qat: nn.Module, optimizer: torch.optim.Optimizer, rates: Any, epochs: range) -> nn.Module:
        for epoch in epochs:
            torch.manual_seed(epoch)
            schedule.start_epoch(qat.train(), epoch)
            if epoch == 2:
                qat.apply(fxq.enable_param_learning)
            for _ in range(2):
                optimizer.zero_grad()
                qat(batch()).square().mean().backward()
                optimizer.step()
            rates.step()
        return qat

    whole = run(*start(), range(6))
    first = start()
    run(*first, range(4))
    torch.save([part.state_dict() for part in first], tmp_path / "checkpoint.pt")
    resumed = start(seed=1)
    for part, state in zip(resumed, torch.load(tmp_path / "checkpoint.pt"), strict=True):
        part.load_state_dict(state)
    run(*resumed, range(4, 6))
    for (name, value), other in zip(whole.state_dict().items(), resumed[0].state_dict().values(), strict=True):
        assert torch.equal(value, other), name
    assert type(resumed[0].bn1) is type(whole.bn1)


def test_an_average_of_weights_is_kept_and_converted(model):
    qat = fxq.prepare_qat(model, batch())
    average = torch.optim.swa_utils.AveragedModel(
        qat, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5), use_buffers=False
    )
    for _ in range(2):
        before = average.module.conv1.weight.clone()
        average.update_parameters(train(qat, 1))
    expected = before + 0.5 * (qat.conv1.weight - before)
    assert torch.allclose(average.module.conv1.weight, expected, atol=1e-6)  # of a float32 average
    assert torch.equal(average.module.x_fake_quant.scale, qat.x_fake_quant.scale)
    assert not torch.equal(average.module.conv1.weight, qat.conv1.weight)
    assert fxq.convert(average.module.eval(), check=batch()).parity.breaches == ()


def test_modes_keep_probabilities_and_constants():
    model = nn.Sequential(
        OrderedDict(conv=nn.Conv2d(3, 4, 3), bn=nn.BatchNorm2d(4, eps=0.02, momentum=0.3), drop=nn.Dropout(0.15))
    )
    qat = fxq.prepare_qat(model.train(), batch())
    for mode in (False, True, False):
        qat.train(mode)
        assert (qat.bn.eps, qat.bn.momentum, qat.drop.p) == (0.02, 0.3, 0.15)
        assert {qat.bn.training, qat.drop.training} == {mode}
    seen = torch.randn(8, 3, 8, 8)
    mean = qat.conv(seen).mean((0, 2, 3))
    qat.train()(seen)
    assert torch.allclose(qat.bn.running_mean, 0.3 * mean, atol=0.01)  # of a convolution of unrounded values


def test_schedule_stops_observers_then_statistics(model):
    qat = train(fxq.prepare_qat(model, batch()))
    schedule = fxq.TrainingSchedule(disable_observers=1, freeze_bn_stats=2)
    changed = {}
    for epoch in range(3):
        schedule.start_epoch(qat.train(), epoch)
        before = copy.deepcopy(qat.state_dict())
        qat(batch() * 3)
        after = qat.state_dict()
        changed[epoch] = [
            not torch.equal(before[name], after[name]) for name in ("x_fake_quant.scale", "bn1.running_mean")
        ]
    assert changed == {0: [True, True], 1: [False, True], 2: [False, False]}


def test_a_grid_that_was_never_chosen_is_named(model):
    qat = fxq.prepare_qat(model, batch())
    with pytest.raises(CalibrationError) as caught:
        fxq.convert(qat)
    assert "x" in str(caught.value)
    assert "conv1.weight" in str(caught.value)
    shell = fxq.convert(qat, allow_uncalibrated=True)
    with pytest.raises(CalibrationError):
        shell(batch())


@pytest.mark.parametrize(
    "qconfig", [None, fxq.get_lsq_qconfig(4, 4), DEFAULT_QCONFIG], ids=["fused", "learned", "plain"]
)
def test_observers_that_are_off_from_the_start_are_named(model, qconfig):
    qat = fxq.prepare_qat(model, batch(), qconfig)
    start = copy.deepcopy(qat)
    qat.apply(fxq.disable_observer)
    with pytest.raises(CalibrationError) as caught:
        qat(batch())
    assert str(caught.value).splitlines() == [
        "a value is to be fake-quantized without qparams: its observer is off, and saw nothing",
        "  at:       x",
        "  hint:     run a batch with observers on (model.apply(fxquant.enable_observer)), or load a state dict that "
        "was saved after that; model.apply(fxquant.disable_fake_quant) trains in float",
    ]
    qat.apply(fxq.disable_fake_quant)(batch())
    qat.apply(fxq.enable_fake_quant).apply(fxq.enable_observer)(batch())
    qat.apply(fxq.disable_observer)(batch())
    start.apply(fxq.disable_observer).load_state_dict(qat.state_dict())
    start(batch())
    weight = fxq.prepare_qat(model, batch(), qconfig).conv2.weight_fake_quant.apply(fxq.disable_observer)
    with pytest.raises(CalibrationError, match=r"at: +conv2\.weight"):
        weight(torch.ones(8, 8, 3, 3))


def test_observers_that_went_on_alone_are_warned_of(model):
    qat = train(fxq.prepare_qat(model, batch())).apply(fxq.disable_fake_quant)
    with pytest.warns(FxQuantWarning, match="observers went on"):
        fxq.convert(qat)


def test_something_else_than_a_prepared_model_is_refused(model):
    with pytest.raises(InputError, match="prepare_qat"):
        fxq.convert(model)


def test_snapshots_show_both_ways(model):
    qat = train(fxq.prepare_qat(model, batch()))
    assert [snapshot.name for snapshot in qat.snapshots[-2:]] == ["insert_training_fake_quant", "compute_tensors"]
    names = [snapshot.name for snapshot in fxq.convert(qat).snapshots]
    assert names[names.index("compute_tensors") + 1 :][:2] == ["strip_fake_quant", "fold_tensors"]
    assert [snapshot.index for snapshot in fxq.convert(qat).snapshots] == list(range(len(names)))


def test_gradients_per_sample(model):
    """``torch.func`` over a whole model: transforms allow no hooks, and look inside the operators."""
    qat = fxq.prepare_qat(model, batch())
    qat(batch())
    qat.eval().apply(fxq.disable_observer)
    x, parameters, rest = batch(3), dict(qat.named_parameters()), dict(qat.named_buffers())

    def loss(parameters, sample):
        return torch.func.functional_call(qat, (parameters, rest), (sample[None],)).square().sum()

    per_sample = torch.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    for i in range(len(x)):
        one = torch.autograd.grad(loss(parameters, x[i]), list(parameters.values()))
        for name, expected in zip(parameters, one, strict=True):
            torch.testing.assert_close(per_sample[name][i], expected, rtol=1e-4, atol=1e-5)  # sums in another order


def test_second_derivatives_of_weights_are_refused_by_name(model):
    qat = fxq.prepare_qat(model, batch())
    gradient = torch.autograd.grad(qat(batch()).square().sum(), qat.conv1.weight, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="fake_quantize_folded_backward has no derivative"):
        gradient.square().sum().backward()


def test_weights_replaced_before_the_backward_pass_leave_it_as_it_was():
    qat = fxq.prepare_qat(nn.Sequential(nn.Linear(6, 4)).train(), torch.randn(2, 6))
    x = torch.randn(2, 6, requires_grad=True)
    qat(x)
    qat.apply(fxq.disable_observer)
    expected = torch.autograd.grad(qat(x).sum(), x)[0]
    y = qat(x)
    for parameter in qat.parameters():
        parameter.data = parameter.data * 2
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], expected)


def test_stochastic_depth_drops_whole_samples_while_training():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 6)
            self.drop = torchvision.ops.StochasticDepth(0.5, "row")

        def forward(self, x):
            return self.drop(self.fc(x))

    qat = fxq.prepare_qat(Residual().train(), torch.randn(4, 6))
    y = qat(torch.randn(64, 6) + 3)
    dropped = (y == 0).all(1)
    assert 0 < int(dropped.sum()) < 64
    assert not (y[~dropped] == 0).all(1).any()
    qat.eval().apply(fxq.disable_observer)
    assert not (qat(torch.randn(64, 6) + 3) == 0).all(1).any()
    assert fxq.convert(qat, check=torch.randn(8, 6) + 3).parity.breaches == ()


def test_hooks_of_a_weights_fake_quant_run():
    qat = fxq.prepare_qat(nn.Sequential(nn.Linear(6, 4)).train(), torch.randn(2, 6))
    seen = []
    qat.get_submodule("0").weight_fake_quant.register_forward_hook(lambda *_: seen.append(None))
    qat(torch.randn(2, 6))
    assert len(seen) == 1


def test_frozen_statistics_are_in_the_state(tmp_path, model):
    """A run that is resumed by its state alone is the run that was not interrupted, to the bit."""

    def run(qat: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            torch.manual_seed(step)
            if step == 2:
                qat.apply(fxq.freeze_bn_stats)
            optimizer.zero_grad()
            qat(batch()).square().mean().backward()
            optimizer.step()

    def start() -> tuple[nn.Module, torch.optim.Optimizer]:
        qat = fxq.prepare_qat(model, batch())
        return qat, torch.optim.SGD(qat.parameters(), 0.1, momentum=0.9)

    whole = start()
    run(*whole, range(3))
    torch.save([part.state_dict() for part in whole], tmp_path / "checkpoint.pt")
    resumed = start()
    for part, state in zip(resumed, torch.load(tmp_path / "checkpoint.pt"), strict=True):
        part.load_state_dict(state)
    for each in (whole, resumed):
        run(*each, range(3, 6))
    state = resumed[0].state_dict()
    assert state.keys() == whole[0].state_dict().keys()
    assert all(torch.equal(value, state[name]) for name, value in whole[0].state_dict().items())
    assert type(resumed[0].bn1) is type(whole[0].bn1)
    assert not any("frozen" in name for name in fxq.convert(resumed[0]).state_dict())


def test_states_thaw_what_they_know_to_be_thawed(model):
    qat = fxq.prepare_qat(model, batch())
    thawed = copy.deepcopy(qat.state_dict())
    assert not any("frozen" in name for name in thawed)
    copied = pickle.loads(pickle.dumps(copy.deepcopy(qat.apply(fxq.freeze_bn_stats))))
    assert "bn1.statistics_frozen" in copied.state_dict()
    copied.load_state_dict(model.state_dict(), strict=False)  # a float model knows nothing of it
    assert type(copied.bn1) is not nn.BatchNorm2d
    copied.eval().load_state_dict(thawed)
    assert type(copied.bn1) is nn.BatchNorm2d
    assert not copied.bn1.training
    copied.load_state_dict(qat.state_dict())
    assert not copied.train().bn1.training
    copied.load_state_dict(thawed)
    assert copied.bn1.training


def test_inference_mode_around_prepare_qat_changes_nothing(model):
    with torch.inference_mode():
        qat = fxq.prepare_qat(model, batch())
        made_inside = fxq.prepare_qat(Net().train(), batch())
    for each in (qat, made_inside):
        train(each, 1)
        assert fxq.convert(each.eval(), check=batch()).parity.breaches == ()


def test_a_model_that_was_trained_on_zeros_alone_warns():
    training = fxq.prepare_qat(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.zeros(2, 4))
    training(torch.zeros(2, 4))
    with pytest.warns(fxq.FxQuantWarning, match="training saw zeros alone") as caught:
        fxq.convert(training)
    assert "input" in str(caught[0].message)
    training(torch.ones(2, 4))
    fxq.convert(training)


def test_weights_are_seen_as_they_are_in_each_step():
    """From batch norms that were never trained the folded weight changes fast: a moving average clips it (16 dB)."""
    layers = (nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    qat = fxq.prepare_qat(nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 4)), (batch(),)).train()
    optimizer = torch.optim.SGD(qat.parameters(), 0.02, momentum=0.9)
    for _ in range(10):
        x = batch()
        optimizer.zero_grad()
        F.cross_entropy(qat(x), (x.mean((1, 2, 3)) * 40).long().clamp(0, 3)).backward()
        optimizer.step()
    qat.eval()
    x = batch()
    int8 = fxq.convert(qat)(x)
    qat.apply(fxq.disable_fake_quant)
    assert sqnr(qat(x), int8) > 28


@pytest.mark.parametrize(
    "layer",
    [lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), lambda: nn.Conv2d(8, 6, 1, bias=False)],
    ids=["depthwise", "1x1"],
)
def test_the_largest_weight_of_a_channel_learns(layer):
    """It gets to half its size as in float; where it is clipped in each step it stays where it was."""
    start, goal = layer(), layer()
    with torch.no_grad():
        for model, largest in ((start, 1.0), (goal, 0.5)):
            model.weight.copy_(torch.linspace(0.02, 0.1, model.weight.numel()).view_as(model.weight))
            model.weight.view(len(model.weight), -1)[:, 0] = largest
    losses = []
    for model in (start, fxq.prepare_qat(nn.Sequential(copy.deepcopy(start)), torch.randn(4, 8, 8, 8))):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        generator = torch.Generator().manual_seed(0)
        for _ in range(60):
            x = torch.randn(4, 8, 8, 8, generator=generator)
            loss = (model(x) - goal(x).detach()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[1] < 1.1 * losses[0] + 1e-3
