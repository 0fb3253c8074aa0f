from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fxquant.capture.tracing import trace
from fxquant.errors import PassError, PlanError, UnknownNameError
from fxquant.graph.module import NamedGraphModule
from fxquant.passes.base import graph_pass
from fxquant.passes.manager import TOLERANCE, PassManager, compare, difference
from fxquant.passes.normalize import normalize
from fxquant.plan.quant_plan import QuantPlan
from fxquant.settings import Settings

X = torch.linspace(-1, 1, 12).reshape(4, 3)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.fc(x))


def traced():
    return trace(Net(), example_args=(X,))


def context():
    return SimpleNamespace(plan=QuantPlan(), example_args=(X,), example_kwargs={}, has_example=True)


@graph_pass()
def idle(gm, ctx):
    """Do nothing."""
    return gm


@graph_pass()
def broken(gm, ctx):
    """Leave a graph in which a node is read before it exists."""
    fc, act = list(gm.graph.nodes)[1:3]
    fc.args = (act,)
    return gm


@graph_pass()
def failing(gm, ctx):
    """Fail."""
    raise ValueError("no such luck")


@graph_pass(after=("normalize",))
def late(gm, ctx):
    """Want to come after normalize."""
    return gm


@graph_pass(keeps_values=True)
def doubles(gm, ctx):
    """Break the promise: act(fc(x)) becomes act(2 * fc(x))."""
    with torch.no_grad():
        gm.fc.weight.mul_(2)
        gm.fc.bias.mul_(2)
    return gm


def run(*passes, settings=None, **options):
    manager = PassManager(tuple(passes), settings=settings or Settings(), **options)
    return manager, manager.run(traced(), context())


def test_snapshots_show_what_each_pass_did():
    manager, _ = run(idle, normalize, first=3)
    first, second = manager.snapshots
    assert (first.index, first.name, first.changed, first.diff()) == (3, "idle", False, "")
    assert (second.index, second.name, second.changed) == (4, "normalize", True)
    assert second.before == first.after
    assert second.diff() == (
        "- act = ReLU(fc)                                                        float32[4,3]\n"
        "+ act = F.relu(fc)                                                      float32[4,3]"
    )
    assert second.seconds > 0
    assert second.title().startswith("[2/2] normalize  +1 -1  ")


def test_the_graph_is_recompiled():
    _, gm = run(normalize)
    assert "relu" in gm.code
    assert "self.act" not in gm.code


@graph_pass()
def adds_one(gm, ctx):
    """Put an addition before the output."""
    *_, act, output = gm.graph.nodes
    with gm.graph.inserting_before(output):
        output.args = (gm.graph.call_function(torch.add, (act, 1)),)
    return gm


@graph_pass()
def adds_true(gm, ctx):
    """Write True for the 1, which it equals."""
    *_, added, _ = gm.graph.nodes
    added.args = (added.args[0], True)
    return gm


def test_code_is_written_anew_only_after_a_pass_that_edited_the_graph(monkeypatch):
    written: list[object] = []
    recompile = NamedGraphModule.recompile
    monkeypatch.setattr(NamedGraphModule, "recompile", lambda gm: written.append(gm.graph) or recompile(gm))
    gm = traced()
    written.clear()
    PassManager((idle, idle, adds_one, idle, adds_true, idle), settings=Settings()).run(gm, context())
    assert len(written) == 3  # after the first pass, whoever edited the graph before it, and after the two that edit
    assert "torch.add(act, True)" in gm.code


def test_what_was_edited_before_the_first_pass_is_in_the_code():
    gm = adds_one(traced(), context())
    assert "add" not in gm.code
    PassManager((idle,), settings=Settings()).run(gm, context())
    assert "add" in gm.code


def test_instruments_see_every_snapshot():
    seen: list[tuple[str, int]] = []
    run(idle, normalize, instruments=(lambda snapshot, gm, ctx: seen.append((snapshot.name, len(gm.graph.nodes))),))
    assert seen == [("idle", 4), ("normalize", 4)]


def test_a_failing_pass_is_named_with_those_before_it():
    with pytest.raises(PassError) as caught:
        run(idle, normalize, failing, late)
    assert str(caught.value) == (
        "pass 'failing' (3 of 4, after idle, normalize) failed: ValueError: no such luck\n"
        "  hint:     FXQUANT_DEBUG=2 prints what each pass before it did"
    )
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_invalid_graph_is_found_at_the_pass_that_left_it():
    with pytest.raises(PassError, match=r"pass 'broken' \(1 of 2, after nothing\) failed: RuntimeError"):
        run(broken, idle)


def test_a_plan_error_is_the_users_answer():
    @graph_pass()
    def refuses(gm, ctx):
        """Refuse."""
        raise PlanError("nothing to do")

    with pytest.raises(PlanError, match=r"^nothing to do$"):
        run(refuses)


def test_order_is_checked_when_the_pipeline_is_built():
    with pytest.raises(PassError) as caught:
        PassManager((late, normalize))
    assert str(caught.value) == (
        "pass 'late' is placed too early\n  got:      late -> normalize\n  expected: late after normalize"
    )
    PassManager((late,))  # what is not in the pipeline need not come before


def test_passes_can_be_skipped():
    manager, gm = run(idle, normalize, settings=Settings(skip_passes=("normalize", "lower_units")))
    assert [snapshot.name for snapshot in manager.snapshots] == ["idle"]
    assert "self.act" in gm.code


@pytest.mark.parametrize(
    ("settings", "variable"),
    [(Settings(skip_passes=("normalise",)), "SKIP_PASSES"), (Settings(print_after=("normalise",)), "PRINT_AFTER")],
)
def test_unknown_names_in_the_environment(settings, variable):
    with pytest.raises(UnknownNameError) as caught:
        PassManager((idle,), settings=settings)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"FXQUANT_{variable} names an unknown pass"
    assert lines[1] == "  got:      'normalise'"
    assert lines[2].startswith("  expected: idle, fold_constants, normalize, ")
    assert lines[3] == "  hint:     did you mean 'normalize'?"


def test_the_environment_is_read(monkeypatch):
    monkeypatch.setenv("FXQUANT_SKIP_PASSES", "idle")
    assert [item.name for item in PassManager((idle, normalize)).passes] == ["normalize"]


def test_verify_finds_the_pass_that_breaks_its_promise():
    run(normalize, settings=Settings(verify=True))
    run(doubles)  # nobody looks
    with pytest.raises(PassError) as caught:
        run(normalize, doubles, settings=Settings(verify=True))
    text = str(caught.value)
    assert text.startswith(
        "pass 'doubles' (2 of 2, after normalize) failed: PassError: pass 'doubles' promises to keep values, and "
        "changed them\n"
        "  at:       fc, the first node whose value differs\n"
        "  got:      an output that differs by 1 of its largest magnitude\n"
        "  expected: at most 0.0001\n"
        "  hint:     FXQUANT_SKIP_PASSES=doubles leaves the pass out\n"
    )


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (torch.tensor([2.0, -4.0]), torch.tensor([2.0, -4.0]), 0.0),
        (torch.tensor([2.0, -4.0]), torch.tensor([2.0, -3.0]), 0.25),
        (torch.tensor([INF, NAN, 1.0]), torch.tensor([INF, NAN, 1.5]), 0.5),
        (torch.tensor([1.0]), torch.tensor([NAN]), INF),
        (torch.tensor([1.0]), torch.tensor([[1.0]]), INF),
        (torch.tensor([1.0]), torch.tensor([1]), INF),
        (torch.tensor([3, 4]), torch.tensor([3, 2]), 0.5),
        (torch.zeros(0), torch.zeros(0), 0.0),
        ({"a": (1, None)}, {"a": (1, None)}, 0.0),
        ({"a": 1}, {"a": 2}, INF),
        ({"a": 1}, {"b": 1}, INF),
    ],
    ids=range(11),
)
def test_difference(before, after, expected):
    assert difference(before, after) == expected


def test_compare_allows_roundings_and_names_the_first_difference():
    x, y = torch.ones(3), torch.full((3,), 2.0)
    compare("fold", {"a": x, "output": x}, {"a": y, "output": x * (1 + TOLERANCE / 2)})  # inner values may differ
    with pytest.raises(PassError, match="at:       b, the first node whose value differs"):
        compare("fold", {"a": x, "b": x, "output": x}, {"a": x, "new": y, "b": y, "output": y})
