from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxquant.capture.tracing import trace
from fxquant.graph.query import (
    TensorInfo,
    canonical_type,
    flat_arguments,
    has_hooks,
    info_of,
    is_number,
    module_of,
    module_path,
    move_to_device_of,
    only_device,
    operator_name,
    qualified_name,
    reason_of,
    value_of,
)


class Plain(nn.Conv2d):
    """Adds a constructor and a printed form, nothing that computes."""

    def __init__(self) -> None:
        super().__init__(3, 3, 1)

    def extra_repr(self) -> str:
        return "plain"


class OwnForward(nn.Conv2d):
    def forward(self, x):
        return super().forward(x) * 2


class OwnInner(nn.Conv2d):
    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x, weight * 2, bias)


class OwnWeight(nn.Linear):
    def __getattr__(self, name):
        return super().__getattr__(name)


def patched() -> nn.Module:
    module = nn.ReLU()
    module.forward = lambda x: x
    return module


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Conv2d(3, 3, 1), nn.Conv2d),
        (Plain(), nn.Conv2d),
        (OwnForward(3, 3, 1), None),
        (OwnInner(3, 3, 1), None),
        (OwnWeight(3, 3), None),
        (patched(), None),
        (nn.ReLU6(), nn.ReLU6),
        (nn.modules.linear.NonDynamicallyQuantizableLinear(3, 3), nn.Linear),
        (nn.BatchNorm2d(3), nn.BatchNorm2d),
        (nn.Module(), None),
        (nn.Sequential(), nn.Sequential),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_canonical_type_is_the_torch_class_whose_forward_runs(module, expected):
    assert canonical_type(module) is expected


def test_canonical_type_sees_through_parametrizations():
    module = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    assert type(module) is not nn.Linear
    assert canonical_type(module) is nn.Linear


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())

    def forward(self, x):
        y = self.block(x)
        return F.relu(y), y.shape[0], torch.cat([y, y], dim=1)


@pytest.fixture(scope="module")
def nodes():
    gm = trace(Net(), example_args=(torch.zeros(2, 3, 5, 5),))
    return {node.name: node for node in gm.graph.nodes}


def test_questions_about_a_module_call(nodes):
    node = nodes["block_0"]
    assert isinstance(module_of(node), nn.Conv2d)
    assert module_path(node) == ("block.0", nn.Conv2d)
    assert qualified_name(node) == "block.0"
    assert value_of(node) == TensorInfo((2, 4, 5, 5), torch.float32, torch.device("cpu"))
    assert str(value_of(node)) == "float32[2, 4, 5, 5]"
    assert reason_of(node) is None


def test_questions_about_other_nodes(nodes):
    assert module_of(nodes["relu"]) is None
    assert module_path(nodes["relu"]) == ("", None)
    assert value_of(nodes["getitem"]) is None
    assert is_number(nodes["getitem"])
    assert not is_number(nodes["relu"])
    assert is_number(2.5)
    assert flat_arguments(nodes["cat"]) == [nodes["block_1"], nodes["block_1"], 1]


def test_info_of_containers():
    x = torch.zeros(2, dtype=torch.int64)
    info = TensorInfo((2,), torch.int64, torch.device("cpu"))
    assert info_of((x, 3)) == (info, int)
    assert info_of({"a": [x], "b": None}) == {"a": (info,), "b": type(None)}
    assert info_of(x.shape) is torch.Size


def test_info_says_whether_a_view_of_any_shape_exists():
    image = torch.zeros(2, 3, 4, 4)
    assert info_of(image).contiguous
    assert not info_of(image.contiguous(memory_format=torch.channels_last)).contiguous
    assert info_of(torch.eye(2).to_sparse()).contiguous


def test_has_hooks():
    module = nn.ReLU()
    assert not has_hooks(module)
    handle = module.register_forward_hook(lambda *_: None)
    assert has_hooks(module)
    handle.remove()
    assert not has_hooks(module)


def test_modules_follow_a_model_that_lies_on_one_device():
    """To a GPU in practice; the meta device stands for one here."""
    there, apart = nn.Linear(2, 2, device="meta"), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    assert only_device(there) == torch.device("meta")
    assert only_device(nn.Linear(2, 2)) == torch.device("cpu")
    assert only_device(apart) is only_device(nn.ReLU()) is None
    for model, moved in ((there, True), (apart, False), (nn.Linear(2, 2), False), (nn.ReLU(), False)):
        module = nn.BatchNorm1d(2)
        move_to_device_of(module, model)
        assert module.running_mean.is_meta is moved


def test_a_class_that_nobody_wrote_has_the_name_of_the_one_that_it_is():
    attention = nn.MultiheadAttention(4, 2)
    gm = trace(nn.Sequential(attention.out_proj), example_args=(torch.rand(1, 4),))
    (node,) = (node for node in gm.graph.nodes if node.op == "call_module")
    assert type(attention.out_proj) is not nn.Linear
    assert operator_name(node) == "Linear"
