"""What quantization tools got wrong in training, each with the right answer."""

from __future__ import annotations

import copy
import math
import shutil
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.fake_quantize import default_fused_act_fake_quant
from tests.sampling import one_of

SAME_TRAINING = 1e-4
"""Largest difference of weights after three steps: ``w * f / f`` is ``w`` to the last bits only."""
SAME_LOSS = 0.05
"""Relative difference of a loss in bfloat16."""
COMPILED_LOSS = 0.02
"""Relative difference of mean losses where a compiler sums in another order: single roundings fall differently."""


def conv_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).train()


def off(model: nn.Module) -> nn.Module:
    return model.apply(fxq.disable_fake_quant).apply(fxq.disable_observer)


class TestBatchNormWithGammaZero:
    """A residual block that starts as the identity, a pruned channel: gamma / sigma is 0."""

    @pytest.mark.parametrize("zeros", [slice(None), slice(1, 2)])
    def test_outputs_and_gradients_are_finite(self, zeros):
        model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()).train()
        with torch.no_grad():
            model[1].weight[zeros] = 0
        nn.init.constant_(model[1].bias, 0.25)
        torch.manual_seed(1)
        x = torch.randn(4, 3, 8, 8)
        qat = fxq.prepare_qat(model, x)
        y = qat(x)
        (y * torch.randn_like(y)).sum().backward()
        step = next(m for n, m in qat.named_modules() if n.endswith("fake_quant") and n[0] not in "x0").scale.item()
        assert (y[:, zeros] - 0.25).abs().max() <= step
        assert all(torch.isfinite(parameter.grad).all() for parameter in qat.parameters())
        assert qat.get_submodule("1").weight.grad[zeros].abs().min() > 0


class TestFakeQuantOffIsTheFloatModel:
    """Biases dropped or added twice, eps and momentum of other modules, statistics of scaled outputs."""

    def test_three_steps_and_evaluation(self):
        def build() -> nn.Module:
            torch.manual_seed(0)
            return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, eps=1e-2, momentum=0.3)).train()

        def batches() -> list[Tensor]:
            torch.manual_seed(1)
            return [torch.randn(8, 3, 6, 6) + i for i in range(3)]

        def train(model: nn.Module) -> nn.Module:
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for x in batches():
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
            return model

        floats, qat = train(build()), train(off(fxq.prepare_qat(build(), batches()[0])))
        state = qat.state_dict()
        for name, value in floats.state_dict().items():
            assert torch.allclose(state[name], value, atol=SAME_TRAINING), name
        x = batches()[0]
        assert torch.allclose(qat.eval()(x), floats.eval()(x), atol=SAME_TRAINING)


class TestLearnedScales:
    """Parameters that are made in the first forward are in no optimizer; detached ones do not move."""

    def test_they_are_there_before_the_optimizer_and_move(self):
        model = nn.Sequential(nn.Linear(2, 2, bias=False)).train()
        with torch.no_grad():
            model[0].weight.copy_(torch.tensor([[1.0, -1.0], [2.0, -2.0]]))
        torch.manual_seed(0)
        x = torch.randn(8, 2)
        weight = fxq.LearnableFakeQuantize.with_args(
            observer=fxq.MinMaxObserver, quant_min=-128, quant_max=127, dtype=torch.int8, qscheme="per_tensor_symmetric"
        )
        activation = fxq.LearnableFakeQuantize.with_args(
            observer=fxq.MinMaxObserver, quant_min=0, quant_max=255, dtype=torch.uint8
        )
        qat = fxq.prepare_qat(model, x, fxq.QConfig(activation=activation, weight=weight))
        qat(x)
        learnable = [module for module in qat.modules() if isinstance(module, fxq.LearnableFakeQuantize)]
        for module in learnable:
            module.enable_param_learning()
        layer = qat.get_submodule("0")
        layer.weight_fake_quant.initialize_lsq(layer.weight)
        assert layer.weight_fake_quant.scale.item() == pytest.approx(2 * 1.5 / math.sqrt(127))
        optimizer = torch.optim.SGD(qat.parameters(), 0.01)
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        before = [module.scale.item() for module in learnable]
        (qat(x) * torch.randn(8, 2)).sum().backward()
        optimizer.step()
        assert all(id(module.scale) in held for module in learnable)
        assert all(module.scale.item() != scale for module, scale in zip(learnable, before, strict=True))


class TestSwitches:
    """Switches without effect, or with an effect on activations only."""

    def test_all_off_is_the_float_model_to_the_bit(self):
        torch.manual_seed(0)
        model = conv_net()
        torch.manual_seed(1)
        x = torch.randn(2, 3, 8, 8)
        qat = off(fxq.prepare_qat(model, x))
        state = copy.deepcopy(qat.state_dict())
        assert torch.equal(qat(x), model(x))
        assert all(torch.equal(value, state[name]) for name, value in qat.state_dict().items())

    def test_observers_off_keep_every_buffer(self):
        torch.manual_seed(0)
        x = torch.randn(2, 3, 8, 8)
        qat = fxq.prepare_qat(conv_net(), x)
        qat(x)
        qat.apply(fxq.disable_observer)
        state = copy.deepcopy(qat.state_dict())
        assert torch.equal(qat(x * 2), qat(x * 2))
        assert all(torch.equal(value, state[name]) for name, value in qat.state_dict().items())
        assert not torch.equal(qat(x), off(copy.deepcopy(qat))(x))


class TestFrozenStatistics:
    """Frozen statistics that thaw in ``train()``, or that freeze the weights too."""

    def test_in_a_model_that_trains(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).train()
        torch.manual_seed(1)
        x = torch.randn(8, 3, 4, 4) + 10
        qat = off(fxq.prepare_qat(model, x))
        qat.apply(fxq.freeze_bn_stats).train()
        y = qat(x)
        y.square().mean().backward()
        assert torch.allclose(y, copy.deepcopy(model).eval()(x), atol=SAME_TRAINING)
        assert torch.equal(qat.get_submodule("1").running_mean, model[1].running_mean)
        assert qat.get_submodule("0").weight.grad.abs().sum() > 0
        qat.apply(fxq.update_bn_stats)
        qat(x)
        assert not torch.equal(qat.get_submodule("1").running_mean, model[1].running_mean)


class TestAutocastAndCompile:
    """Assertions on dtypes in fused operators; graphs that break, or give something else when compiled."""

    @pytest.mark.parametrize("qconfig", [None, fxq.get_lsq_qconfig()], ids=["fused", "learned"])
    @pytest.mark.parametrize("norms", [False, True], ids=["plain", "batch norms"])
    def test_bfloat16(self, norms, qconfig):
        torch.manual_seed(0)
        model = conv_net()
        if norms:
            model = nn.Sequential(*model[:1], nn.BatchNorm2d(4), *model[1:], nn.BatchNorm1d(3))
        x, target = torch.randn(16, 3, 8, 8), torch.randn(16, 3)
        losses = {}
        for enabled in (False, True):
            qat = fxq.prepare_qat(model.train(), x, qconfig)
            qat(x)
            qat.apply(fxq.enable_param_learning)
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                loss = (qat(x).float() - target).square().mean()
            loss.backward()
            losses[enabled] = loss.item()
            qparams = [*qat.named_buffers(), *qat.named_parameters()]
            assert all(scale.dtype == torch.float32 for name, scale in qparams if name.endswith("scale"))
            trained = {name: parameter.grad for name, parameter in qat.named_parameters()}
            assert all(torch.isfinite(gradient).all() for gradient in trained.values())
            assert all(gradient.abs().sum() > 0 for name, gradient in trained.items() if "zero_point" not in name)
        assert abs(losses[True] - losses[False]) <= SAME_LOSS * losses[False]

    @pytest.mark.parametrize(
        "qconfig", one_of(2, [None, fxq.get_default_qconfig_mapping()]), ids=["fused", "observers"]
    )
    def test_compiled_training_is_eager_training(self, qconfig):
        if qconfig is not None:  # a histogram's bins move by what it sees, which no compiled code can hold
            qconfig = fxq.QConfig(
                activation=fxq.FakeQuantize.with_args(observer=fxq.MovingAverageMinMaxObserver, dtype=torch.uint8),
                weight=default_fused_act_fake_quant.with_args(
                    dtype=torch.int8, quant_min=-128, quant_max=127, qscheme="per_tensor_symmetric"
                ),
            )
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).train()
        torch.manual_seed(1)
        batches = [torch.randn(4, 3, 8, 8) for _ in range(3)]
        eager = fxq.prepare_qat(model, batches[0], qconfig)
        twin = copy.deepcopy(eager)
        compiled = torch.compile(twin, backend="aot_eager", fullgraph=True)
        results = []
        for run, trained in ((eager, eager), (compiled, twin)):
            optimizer = torch.optim.SGD(trained.parameters(), 0.1)
            results.append([])
            for x in batches:
                optimizer.zero_grad()
                y = run(x)
                y.square().mean().backward()
                optimizer.step()
                results[-1].append(y.detach())
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
        state = twin.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in eager.state_dict().items())

    @pytest.mark.slow
    @pytest.mark.skipif(shutil.which("c++") is None, reason="inductor compiles C++")
    def test_inductor_learns_as_eager_does(self):
        torch.manual_seed(0)
        layers = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 4)
        labels, pictures = torch.arange(16) % 4, torch.randn(4, 1, 6, 6)
        batches = [pictures[labels] + torch.randn(16, 1, 6, 6) for _ in range(50)]
        eager = fxq.prepare_qat(nn.Sequential(*layers).train(), batches[0])
        twin = copy.deepcopy(eager)
        means = []
        for run, trained in ((eager, eager), (torch.compile(twin, fullgraph=True), twin)):
            optimizer = torch.optim.SGD(trained.parameters(), 0.05)
            losses = []
            for x in batches:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(run(x), labels)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            means.append(sum(losses) / len(losses))
            assert losses[-1] < losses[0] / 2
        assert means[1] == pytest.approx(means[0], rel=COMPILED_LOSS)


class TestDropoutByFlag:
    """``F.dropout(x, training=self.training)``, traced with the flag of the moment, drops in evaluation too."""

    def test_it_follows_the_mode(self):
        class Dropped(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.l1, self.l2 = nn.Linear(16, 64), nn.Linear(64, 4)

            def forward(self, x: Tensor) -> Tensor:
                return self.l2(nn.functional.dropout(torch.relu(self.l1(x)) + 1, p=0.5, training=self.training))

        torch.manual_seed(0)
        model = Dropped().train()
        x = torch.randn(32, 16)
        qat = fxq.prepare_qat(model, x)
        dropped = []
        qat.l2.register_forward_pre_hook(lambda module, inputs: dropped.append((inputs[0] == 0).float().mean().item()))
        qat(x)
        qat.eval().apply(fxq.disable_observer)
        assert torch.equal(qat(x), qat(x))
        float_range = model.eval()(x).abs().max()
        assert torch.allclose(qat(x), model(x), atol=0.05 * float_range.item())  # a percent or two of rounding
        qat.train()(x)
        assert 0.4 < dropped[0] < 0.6
        assert dropped[1:4] == [0, 0, 0]
        assert 0.4 < dropped[-1] < 0.6


class TestLeavesTrainOn:
    """A module kept whole loses its parameters, or is quantized inside all the same."""

    def test_its_parameters_and_buffers_are_those_of_the_float_model(self):
        class Router(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.lin = nn.Linear(4, 4)
                self.register_buffer("calls", torch.zeros((), dtype=torch.long))

            def forward(self, x: Tensor) -> Tensor:
                self.calls += 1
                return torch.stack([self.lin(x[i]) if float(x[i].detach().sum()) > 0 else x[i] for i in range(len(x))])

        torch.manual_seed(0)
        model = nn.Sequential(OrderedDict(body=nn.Linear(6, 4), router=Router(), head=nn.Linear(4, 2))).train()
        x = torch.randn(5, 6)
        qat = fxq.prepare_qat(model, x, leaf_modules=("router",))
        before = qat.router.calls.item()
        qat(x).square().sum().backward()
        names = {name for name in qat.state_dict() if name.startswith("router.")}
        assert names == {"router.lin.weight", "router.lin.bias", "router.calls"}
        assert qat.router.calls.item() == before + 1
        assert type(qat.router.lin) is nn.Linear
        assert qat.router.lin.weight.grad.abs().sum() > 0


class TestEmptyBatch:
    """Detectors with no boxes: ``min()`` of nothing raises, or the range becomes infinite."""

    def test_it_trains_on_nothing_and_keeps_its_ranges(self):
        torch.manual_seed(0)
        qat = fxq.prepare_qat(nn.Sequential(nn.Linear(8, 4), nn.ReLU()).train(), torch.randn(3, 8))
        qat(torch.randn(3, 8))
        qparams = {name: value.clone() for name, value in qat.state_dict().items() if "weight" not in name}
        y = qat(torch.empty(0, 8))
        assert y.shape == (0, 4)
        y.sum().backward()
        assert qat.get_submodule("0").weight.grad.abs().sum() == 0
        assert all(torch.equal(value, qat.state_dict()[name]) for name, value in qparams.items())


class TestSavedWhileTraining:
    """Sizes of a fresh model's buffers that differ from those of a trained one, models that cannot be pickled."""

    @staticmethod
    def trained(qconfig):
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)
        model = nn.Sequential(*layers).train()
        batches = list(torch.randn(2, 4, 3, 8, 8))
        qat = fxq.prepare_qat(model, batches[0], fxq.QConfigMapping().set_global(qconfig))
        fresh = copy.deepcopy(qat)
        optimizer = torch.optim.SGD(qat.parameters(), 0.01)
        for x in batches:
            optimizer.zero_grad()
            qat(x).square().sum().backward()
            optimizer.step()
        return qat, fresh, batches[0]

    @pytest.mark.parametrize(
        "qconfig", [fxq.get_default_qat_qconfig(), fxq.get_lsq_qconfig(4, 4)], ids=["plain", "lsq"]
    )
    def test_a_state_goes_into_a_fresh_model(self, qconfig):
        qat, fresh, x = self.trained(qconfig)
        state = copy.deepcopy(qat.state_dict())
        # loaders that compare shapes first leave out, silently, what does not fit
        assert {name: value.shape for name, value in fresh.state_dict().items()} == {
            name: value.shape for name, value in state.items()
        }
        fresh.load_state_dict(state, strict=True)
        assert all(torch.equal(value, fresh.state_dict()[name]) for name, value in state.items())
        qat.eval()
        fresh.eval()
        assert torch.equal(fresh(x), qat(x))
        assert torch.equal(fxq.convert(fresh)(x), fxq.convert(qat)(x))

    def test_a_model_goes_to_a_fresh_process_and_trains_on(self, tmp_path, fresh):
        qat, _, x = self.trained(fxq.get_lsq_qconfig(4, 4))
        qat.apply(fxq.enable_param_learning)
        torch.save((qat, x), tmp_path / "model")
        code = (
            "import sys, torch\n"
            "model, x = torch.load(sys.argv[1], weights_only=False)\n"
            "y = model(x)\n"
            "y.square().sum().backward()\n"
            "gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}\n"
            "torch.save((y.detach(), gradients), sys.argv[2])\n"
        )
        done = fresh(code, tmp_path / "model", tmp_path / "after")
        assert done.returncode == 0, done.stderr
        y, gradients = torch.load(tmp_path / "after", weights_only=True)
        qat.zero_grad()
        ours = qat(x)
        ours.square().sum().backward()
        assert torch.equal(y, ours)
        learning = {name: p.grad for name, p in qat.named_parameters() if p.requires_grad}
        assert all(torch.equal(gradients.pop(name), gradient) for name, gradient in learning.items())
        assert not gradients
