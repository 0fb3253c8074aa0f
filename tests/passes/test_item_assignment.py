"""Item assignment as a join: the values of the float model for every shape, and integers on both sides."""

from __future__ import annotations

import copy
import operator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.capture.tracing import trace
from fxquant.measure.noise import sqnr
from fxquant.passes.normalize import ALIASED, GIVEN, NO_PLAIN_FORM, PROMOTED, normalize
from tests.sampling import one_of


class Net(nn.Module):
    def __init__(self, body) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(3, 6, 1)
        self.small, self.last = nn.Conv2d(3, 3, 1), nn.Conv2d(6, 4, 3)
        self.token = nn.Parameter(torch.randn(1, 3, 1, 1))
        self.body = body

    def forward(self, x):
        return self.last(self.body(self, x))


def net(body) -> nn.Module:
    torch.manual_seed(0)
    return Net(body).eval()


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def channels(m, x):
    y = m.first(x)
    y[:, :3] = m.small(x)
    return y


def one_channel(m, x):
    y = m.first(x)
    y[:, -2] = m.small(x)[:, 0]
    return F.relu(y)


def number(m, x):
    y = m.first(x)
    y[:, 0] = 1.0
    return F.relu(y)


def interior(m, x):
    y = m.first(x)
    y[..., 1:-1, 1:-1] = m.second(x)[..., 1:-1, 1:-1]
    return y


def added(m, x):
    y = m.first(x)
    y[:, 2:5] += m.small(x)
    return y


def from_the_end(m, x):
    y = m.first(x)
    y[:, -3:-1] = m.small(x)[:, :2]
    return y


def parameter(m, x):
    y = m.first(x)
    y[:, 3:] = m.token
    return y


def whole(m, x):
    y = torch.empty_like(m.first(x))
    y[:] = m.second(x)
    return y


def filled(m, x):
    y = torch.empty(x.shape[0], 6, *x.shape[2:])
    y[:, :3] = m.small(x)
    y[:, 3:] = 2 * m.small(x)
    return y


def filled_by_three(m, x):
    y = torch.empty(x.shape[0], 6, *x.shape[2:])
    y[:, 4:] = m.second(x)[:, :2]
    y[:, 1:4] = m.small(x)
    y[:, :1] = m.first(x)[:, 5:]
    return y


def in_turn(m, x):
    y, z = torch.empty_like(m.first(x)), m.second(x)
    y[:, ::2] = z[:, :3]
    y[:, 1::2] = z[:, 3:]
    return y


ALL_INTEGERS = (
    channels,
    one_channel,
    interior,
    added,
    from_the_end,
    parameter,
    whole,
    filled,
    filled_by_three,
    in_turn,
)


@pytest.mark.parametrize("body", one_of(3, [*ALL_INTEGERS, number]), ids=lambda body: body.__name__)
def test_it_is_a_join_with_the_values_of_the_float_model(body):
    model = net(body)
    prepared = fxq.prepare(model, X)
    rows = prepared.coverage().rows
    assert {row.fate for row in rows if row.macs} == {"int8"}
    if body in ALL_INTEGERS:
        assert {row.operator for row in rows if row.fate == "float"} <= {"empty_like"}
    nodes = [node.target for node in prepared.graph_module.graph.nodes]
    assert operator.setitem not in nodes
    assert torch.empty not in nodes
    with torch.no_grad():
        for x in (X, torch.randn(3, 3, 10, 8), torch.randn(1, 3, 5, 5)):
            assert torch.equal(prepared(x), model(x))
        fxq.calibrate(prepared, [X], progress=False)
        int8, graph = fxq.convert(prepared), fxq.convert(prepared, engine="graph")
        for _ in range(3):
            assert torch.equal(int8(X), graph(X))
        assert sqnr(model(X), int8(X)) > 30


def whole_of_bools(m, x):
    y, z = m.first(x).clone(), m.second(x)
    y[:, :] = z > 0
    return y


def doubles(m, x):
    y = m.first(x)
    y[:, :3] = m.small(x).double()
    return y


def every_other_row(m, x):
    y, z = m.first(x), m.second(torch.relu(m.small(x)))
    y[:, :, ::2] = 0.5
    y[::2] += 1
    return torch.cat([y, z], -1).narrow(-1, 2, 6)


@pytest.mark.parametrize("body", [whole_of_bools, doubles, every_other_row], ids=lambda body: body.__name__)
def test_dtypes_of_the_tensor_stay_and_sizes_need_be_no_multiple_of_a_step(body):
    model = net(body)
    prepared = fxq.prepare(model, X)
    with torch.no_grad():
        for x in (X, torch.randn(3, 3, 9, 8), torch.randn(1, 3, 5, 5)):
            assert prepared(x).dtype == model(x).dtype
            assert torch.equal(prepared(x), model(x))


def test_it_trains_as_the_float_model():
    model = net(added).train()
    del model.second, model.token
    prepared = fxq.prepare_qat(copy.deepcopy(model), X)
    losses = [each(X).square().mean() for each in (model, prepared)]
    for loss in losses:
        loss.backward()
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=0.05)
    trained = dict(prepared.named_parameters())
    for name in ("first.weight", "small.weight", "last.weight"):
        wanted, found = model.get_parameter(name).grad, trained[name].grad
        assert torch.cosine_similarity(wanted.flatten(), found.flatten(), 0) > 0.98


def changed_after_all(m, x):
    y, z = torch.empty_like(m.first(x)), m.second(x)
    y[:] = z
    y.add_(1)
    return y * z


def pieces_that_change(m, x):
    y, z, part = torch.empty_like(m.first(x)), m.second(x), m.small(x)
    y[:, :3] = part
    part.select(1, 0).mul_(2)  # stays in place
    y[:, 3:] = z[:, 3:] + part
    return y


def value_that_changes(m, x):
    y, z = m.first(x), m.small(x)
    y[:, :3] = z
    z.add_(1)
    y[:, 3:] = z
    return y


@pytest.mark.parametrize("body", [changed_after_all, pieces_that_change, value_that_changes])
def test_later_changes_are_of_the_tensor_or_of_the_value_alone(body):
    model = net(body)
    prepared = fxq.prepare(model, X)
    with torch.no_grad():
        assert torch.equal(prepared(X), model(X))


def alias(m, x):
    y = m.first(x)
    view = y[:, 1]
    y[:, :3] = m.small(x)
    return y * view[:, None]


def alias_of_sum(m, x):
    y = m.first(x)
    view = y[:, 1]
    y[:, :3] += m.small(x)
    return y * view[:, None]


def given(m, x):
    x[:, :1] = 1.0
    return m.first(x)


def given_by_mask(m, x):
    x[x > 0.5] = 0.25
    return m.first(x)


def wider(m, x):
    y = m.first(x)
    y[:, :3] = m.small(x).double()
    return y


def by_list(m, x):
    y = m.first(x)
    y[:, [0, 2]] = m.small(x)[:, :2]
    return y


def by_mask(m, x):
    y = m.first(x)
    y[y > 0] = m.second(x)[y > 0]
    return y + m.second(x)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (alias, ALIASED),
        (alias_of_sum, ALIASED),
        (given, GIVEN),
        (given_by_mask, GIVEN),
        (wider, PROMOTED),
        (by_list, NO_PLAIN_FORM),
        (by_mask, NO_PLAIN_FORM),
    ],
)
def test_what_cannot_be_a_join_stays_and_says_so(body, reason):
    model = net(body)
    prepared = fxq.prepare(model, X.clone())
    assert any(reason in row.reason for row in prepared.coverage().rows)
    ours, theirs = X.clone(), X.clone()
    with torch.no_grad():
        assert torch.equal(prepared(ours), model(theirs))
    assert torch.equal(ours, theirs)


def number_by_mask(m, x):
    y = m.first(x)
    y[y > 0.25] = 0.5
    return m.second(x) + y


def rows_by_mask(m, x):
    y = m.first(x)
    y[y.mean((2, 3)) > 0] = 0  # channels
    y[y.sum((1, 2, 3)) > 0] = torch.tensor(0.25)  # images
    return m.second(x) + y


def put_by_mask(m, x):
    y = m.first(x)
    z = y.index_put_((y > 0.25,), torch.tensor(0.5))
    return m.second(x) + y * z


@pytest.mark.parametrize("body", [number_by_mask, rows_by_mask, put_by_mask])
def test_a_number_by_a_mask_is_a_fill_and_leaves_the_rest_alone(body):
    model = net(body)
    prepared = fxq.prepare(model, X.clone())
    rows = {row.node: row.reason for row in prepared.coverage().rows}
    assert not any("in-place" in reason for reason in rows.values())
    assert {"first", "add", "last"} <= {unit.root for unit in prepared.plan.units}
    for x in (X.clone(), X[:1] * 3, torch.zeros(0, *X.shape[1:])):
        with torch.no_grad():
            assert torch.equal(prepared.graph_module(x), model(x))


def integers_by_mask(m, x):
    y = (m.first(x) * 10).long()
    y[y > 3] = 2.7  # becomes 2
    return m.second(x) + y


def another_dtype_by_mask(m, x):
    y = m.first(x)
    y[y > 0.25] = torch.tensor(1, dtype=torch.int64)
    return m.second(x) + y


@pytest.mark.parametrize("body", [integers_by_mask, another_dtype_by_mask])
def test_a_fill_that_would_convert_its_number_stays_an_assignment(body):
    model = net(body)
    prepared = fxq.prepare(model, X.clone())
    assert any(NO_PLAIN_FORM in row.reason for row in prepared.coverage().rows)
    with torch.no_grad():
        assert torch.equal(prepared(X.clone()), model(X.clone()))


BOUNDS = (None, 0, 1, 2, 3, -1, -2, -3)


@pytest.mark.parametrize("start", BOUNDS)
def test_the_join_has_the_values_of_the_assignment_for_every_size(start):
    """The size of the example decides what is a join, and others may come later."""
    joins = 0
    for stop in BOUNDS:
        part = slice(start, stop)
        model = Assigns(part).eval()
        gm = normalize(trace(model, example_args=(torch.randn(4, 2),)), None)
        gm.recompile()
        joins += operator.setitem not in [node.target for node in gm.graph.nodes]
        for size in range(1, 8):
            x = torch.randn(size, 2)
            assert torch.equal(gm(x), model(x)), (part, size)
    assert joins >= 1


class Assigns(nn.Module):
    """Writes a number to some rows."""

    def __init__(self, part: slice) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        y = x * 1.0
        y[self.part] = 7.0
        return y


def copied(m, x):
    y = m.first(x)
    y[:, :3].copy_(m.small(x))
    return y


def summed(m, x):
    y = m.first(x)
    y[:, :3].add_(m.small(x))
    return F.relu(y)


def zeroed(m, x):
    y = m.first(x)
    y[..., 0].zero_()
    y[..., -1].fill_(2.0)
    return y


def chained(m, x):
    y = m.first(x)
    y[:, :3].add_(1).mul_(2)
    return y + m.second(x)


@pytest.mark.parametrize("exported", [False, True], ids=["traced", "exported"])
@pytest.mark.parametrize("body", [channels, added, copied, summed, zeroed], ids=lambda body: body.__name__)
def test_views_that_are_changed_are_assignments(body, exported):
    """torch.export spells all assignments so."""
    model = net(body)
    prepared = fxq.prepare(torch.export.export(model, (X,)) if exported else model, X)
    rows = [row for row in prepared.coverage().rows if row.macs]
    assert [row.fate for row in rows] == ["int8"] * 3 if body is not zeroed else ["int8"] * 2
    with torch.no_grad():
        assert torch.equal(prepared(X), model(X))
        fxq.calibrate(prepared, [X], progress=False)
        assert sqnr(model(X), fxq.convert(prepared)(X)) > 30


def test_a_chain_of_changes_of_a_view_stays():
    model = net(chained)
    prepared = fxq.prepare(model, X)
    assert any(ALIASED in row.reason for row in prepared.coverage().rows)
    with torch.no_grad():
        assert torch.equal(prepared(X), model(X))


class Scaled(nn.Module):
    """Multiplies items in place, by what needs a gradient, where the assignment stays: by steps, or beside a view."""

    def __init__(self, beside_a_view: bool) -> None:
        super().__init__()
        self.conv, self.factor = nn.Conv1d(4, 6, 1), nn.Parameter(torch.tensor(1.5))
        self.beside_a_view = beside_a_view

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x) * 1.0
        first = y[:, :1]
        if self.beside_a_view:
            y[:, 3:] *= self.factor
            return y + first
        y[:, 1::2] *= self.factor
        return y


@pytest.mark.parametrize("beside_a_view", [False, True])
def test_items_that_stay_in_place_train(beside_a_view):
    torch.manual_seed(0)
    model, x = Scaled(beside_a_view), torch.randn(2, 4, 5)
    trained = fxq.prepare_qat(model, x)
    for each in (model, trained):
        each(x).square().sum().backward()
    expected, got = model.factor.grad, trained.get_parameter("factor").grad
    assert expected is not None
    torch.testing.assert_close(got, expected, rtol=0.05, atol=0)


class Filled(nn.Module):
    """Fills a part of memory that ``new_empty`` gives, and returns another value."""

    def __init__(self, by_mask: bool) -> None:
        super().__init__()
        self.linear, self.by_mask = nn.Linear(4, 3), by_mask

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.new_empty((x.shape[0], 6))
        if self.by_mask:
            y[:, [0, 2]] = x[:, :2]
        else:
            y[:, :2] = x[:, -1:] * 0.5
        return self.linear(x), y[:, :1]


@pytest.mark.parametrize("by_mask", [False, True])
def test_memory_that_is_filled_later_spoils_no_program(by_mask, recwarn):
    """What it holds until then differs from call to call."""
    torch.manual_seed(0)
    model, x = Filled(by_mask).eval(), torch.randn(3, 4)
    int8 = fxq.quantize(model, [x], progress=False)
    for _ in range(3):
        got, expected = int8(x), model(x)
        torch.testing.assert_close(got[0], expected[0], rtol=0, atol=0.05)
        assert torch.equal(got[1], expected[1])
    assert not recwarn.list
