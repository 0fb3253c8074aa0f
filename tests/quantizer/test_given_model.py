"""The float model is found in what wraps it, with its own names."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.errors import InputError
from fxquant.quantizer.given_model import float_model

X = torch.randn(2, 4)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()


def test_a_plain_model_is_the_model_itself():
    model = net()
    assert float_model(model) is model
    assert float_model("text") == "text"  # for others to refuse


def test_data_parallel():
    model = net()
    assert float_model(nn.DataParallel(model)) is model
    assert next(iter(fxq.quantize(nn.DataParallel(model), [X], progress=False).state_dict())) == "0.weight"


def test_distributed_data_parallel():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model = net()
        wrapped = nn.parallel.DistributedDataParallel(model)
        assert float_model(wrapped) is model
        trained = fxq.prepare_qat(wrapped, X)
        assert [name for name, _ in trained.named_parameters()] == [name for name, _ in model.named_parameters()]
    finally:
        torch.distributed.destroy_process_group()


def test_a_submodule_that_stands_at_two_places_stays_one():
    inner = nn.DataParallel(nn.Linear(4, 4))
    model = nn.Sequential(inner, nn.Sequential(inner, nn.ReLU()))
    plain = float_model(model)
    assert plain[0] is plain[1][0] is inner.module
    assert model[0] is inner
    assert model[1][0] is inner


class WithoutInit(nn.Module):
    def __init__(self) -> None:
        self.width = 4


def test_a_model_that_was_not_set_up():
    with pytest.raises(InputError) as caught:
        fxq.prepare(WithoutInit(), X)
    assert str(caught.value) == (
        "the model was not set up: its __init__ does not call that of torch.nn.Module\n"
        "  got:      WithoutInit\n"
        "  hint:     super().__init__() is the first line of WithoutInit.__init__"
    )
