"""A model as text: that it runs, that equal text gives equal models, and what is left without what nothing needs."""

from __future__ import annotations

import torch
from torch import nn

from tests.fuzz.source import Input, Line, Recipe, draw, names, seeded


def recipe(*lines: str, returns: str = "return v2", members: tuple[str, ...] = ()) -> Recipe:
    return Recipe(
        (Input("x", (2, 4)), Input("y", (2, 4))), tuple(map(Line, members)), tuple(map(Line, lines)), Line(returns)
    )


def test_numbers_are_those_of_every_machine():
    assert draw(3, 2, 2).tolist() == [[-0.47607421875, 1.155517578125], [-0.7557373046875, 0.0582275390625]]
    assert 0.9 < float(draw(0, 10000).std()) < 1.1


def test_a_seeded_layer_has_statistics_and_keeps_the_size_of_what_it_is_given():
    one, two = (seeded(5, nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))).eval() for _ in range(2))
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name
    assert float(one[1].running_var.min()) >= 0.5
    with torch.no_grad():
        assert 0.5 < float(one(draw(1, 100, 64)).std()) < 2


def test_what_code_reads_and_makes():
    assert names("v1, v2 = self.m1(x).chunk(2, -1)") == ({"self.m1", "x"}, {"v1", "v2"})
    assert names("self.m2.weight = self.m1.weight") == ({"self.m2", "self.m1"}, {"self.m2"})
    assert names("v1 += v2") == ({"v1", "v2"}, set())
    assert names("return {'a': v1, 'b': F.dropout(v2, 0.0, self.training)}") == ({"v1", "v2"}, set())


def test_a_recipe_is_a_model():
    made = recipe("v2 = self.m1(x) + y", members=("self.m1 = seeded(3, nn.Linear(4, 4))",))
    x, y = draw(0, 2, 4), draw(1, 2, 4)
    assert torch.equal(made.build()(x, y), seeded(3, nn.Linear(4, 4))(x) + y)
    assert not made.build().training


def test_pruning_keeps_what_the_result_needs():
    members = (
        "self.m1 = nn.Linear(4, 4)",
        "self.m2 = nn.Linear(4, 4)",
        "self.m2.weight = self.m1.weight",
        "self.m3 = nn.ReLU()",
    )
    lines = ("v1 = self.m3(x)", "v2 = self.m2(x)", "v2.add_(1)", "v3 = v2 + y")
    pruned = recipe(*lines, members=members).pruned()
    assert [line.code for line in pruned.members] == list(members[:3])
    assert [line.code for line in pruned.lines] == ["v2 = self.m2(x)", "v2.add_(1)"]
    assert [each.name for each in pruned.inputs] == ["x"]
