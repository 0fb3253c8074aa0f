"""Code that only training runs is left out of graphs of evaluation mode, and that is said."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import FxQuantWarning

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Noisy(nn.Module):
    """Adds noise while it trains."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = x + torch.randn_like(x)
        return x * 2


class Around(nn.Module):
    """Holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.noisy = nn.Linear(8, 8), Noisy()

    def forward(self, x: Tensor) -> Tensor:
        return self.noisy(self.fc(x))


class Attends(Around):
    """Drops products of attention while it trains."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)[None]
        return F.scaled_dot_product_attention(y, y, y, dropout_p=0.1 if self.training else 0.0)


class Compares(Around):
    """Compares the mode."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) if self.training == False else self.fc(x).relu()  # noqa: E712


class Drops(Around):
    """Does what follows the mode of the graph, and asks for the mode where nothing depends on it."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.fc is None:
            x = x * 2
        return F.dropout(self.fc(x), 0.5, self.training)


@pytest.mark.parametrize("capture", ["fx", "export"])
@pytest.mark.parametrize(
    ("kind", "line"),
    [(Around, "if self.training:"), (Attends, "dropout_p=0.1 if"), (Compares, "self.training == False")],
)
def test_what_training_alone_runs_is_named(kind, line, capture):
    with pytest.warns(FxQuantWarning, match="runs only while training is left out") as caught:
        fxq.prepare_qat(kind().train(), X, capture=capture)
    message = next(str(one.message) for one in caught if "only while training" in str(one.message))
    assert line in message
    assert "test_training_code.py" in message


@pytest.mark.parametrize("capture", ["fx", "export"])
def test_dropout_is_no_such_code(capture):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qat = fxq.prepare_qat(Drops().train(), X, capture=capture)
    assert not torch.equal(qat(X), qat(X))


def test_modules_that_stay_whole_train_as_they_do():
    model = Around().train()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qat = fxq.prepare_qat(model, X, leaf_modules=["noisy"])
        fxq.prepare(model.eval(), X)
    assert not torch.equal(qat(X), qat(X))
