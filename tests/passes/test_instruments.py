from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.capture.tracing import trace
from fxquant.errors import InputError
from fxquant.passes.base import graph_pass
from fxquant.passes.instruments import (
    Snapshot,
    _new_file,
    debug_output,
    format_plan,
    instruments_for,
    print_passes,
    qparams_notes,
    with_notes,
)
from fxquant.passes.manager import PassManager
from fxquant.passes.normalize import normalize
from fxquant.passes.pipelines import CONVERT
from fxquant.plan.quant_plan import QuantPlan, QuantUnit, Refusal
from fxquant.plan.spec import Observed, QParams, QScheme, SharedWith, TensorRef
from fxquant.settings import Settings

X = torch.arange(12.0).reshape(4, 3)
LOGGER = logging.getLogger("fxquant")
Y, INPUT = TensorRef("_1"), TensorRef("input_1")
UNIT = QuantUnit("linear_act", ("_0", "_1"), {}, ("x",), {"x": INPUT, "y": Y})
QPARAMS = QParams(
    QScheme(signed=False), scale=torch.tensor([0.0235]), zero_point=torch.tensor([114], dtype=torch.int32)
)
PLANNED = QuantPlan(
    units=(UNIT,),
    policies={INPUT: Observed(nn.Identity), Y: SharedWith(INPUT)},
    refusals=(Refusal("_2", "", "no pattern knows this operator"),),
)


@graph_pass()
def annotate(gm, ctx):
    """Stand in for the pass of that name."""
    ctx.plan = PLANNED
    LOGGER.debug("_1: linear_act")
    return gm


def run(settings: Settings) -> PassManager:
    gm = trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.LogSoftmax(1)), example_args=(X,))
    ctx = SimpleNamespace(plan=QuantPlan(), example_args=(X,), example_kwargs={}, has_example=True)
    manager = PassManager((normalize, annotate), instruments_for(settings), settings=settings)
    manager.run(gm, ctx)
    return manager


@contextmanager
def no_logging_set_up() -> Iterator[None]:
    """The logger as in a program that has set up no logging: pytest has, on every logger, while a test runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LOGGER, "propagate", False)
        patch.setattr(LOGGER, "handlers", [])
        yield


def printed(settings: Settings, capsys) -> list[str]:
    with no_logging_set_up():
        run(settings)
    return capsys.readouterr().err.splitlines()


def test_silent_by_default(capsys):
    assert printed(Settings(), capsys) == []


def test_debug_1_prints_a_line_per_pass_and_the_plan(capsys):
    lines = printed(Settings(debug=1), capsys)
    assert lines[0].startswith("[1/2] normalize  +1 -1  ")
    assert lines[1].startswith("[2/2] annotate  +0 -0  ")
    assert lines[2:] == format_plan(PLANNED).splitlines()


def test_debug_2_adds_the_diff(capsys):
    lines = printed(Settings(debug=2), capsys)
    assert lines[1:3] == [
        "- _1 = ReLU[1](_0)                                                      float32[4,3]",
        "+ _1 = F.relu(_0)                                                       float32[4,3]",
    ]
    assert max(map(len, lines)) <= 100


def test_debug_3_shows_what_passes_say(capsys):
    assert "_1: linear_act" in printed(Settings(debug=3), capsys)
    assert "_1: linear_act" not in printed(Settings(debug=2), capsys)


def test_print_after_prints_the_whole_graph_as_a_table(capsys):
    lines = printed(Settings(print_after=("annotate",)), capsys)
    start = lines.index("the graph after annotate:")
    assert lines[start + 1].split() == ["node", "operation", "value", "qparams", "from"]
    assert [line.split()[0] for line in lines[start + 3 :]] == ["input_1", "_0", "_1", "_2", "output"]
    assert "qparams of input_1" in lines[start + 5]


def test_dump_dir_holds_a_numbered_file_per_pass(tmp_path):
    folder = tmp_path / "made" / "on demand"
    manager = run(Settings(dump_dir=str(folder)))
    assert sorted(path.name for path in folder.iterdir()) == ["001_normalize.txt", "002_annotate.txt"]
    text = (folder / "001_normalize.txt").read_text()
    snapshot = manager.snapshots[0]
    assert text == (
        f"# pass\n{snapshot.title()}\n\n# before\n{snapshot.before}\n\n# after\n{snapshot.after}\n\n"
        f"# diff\n{snapshot.diff()}\n"
    )
    assert "qparams of input_1" in (folder / "002_annotate.txt").read_text()


def test_dump_dir_keeps_what_was_written_before(tmp_path):
    settings = Settings(dump_dir=str(tmp_path))
    run(settings)
    first = {path.name: path.read_text() for path in tmp_path.iterdir()}
    (tmp_path / "my_notes.txt").write_text("mine")
    run(settings)
    names = ["001_normalize.txt", "002_annotate.txt", "003_normalize.txt", "004_annotate.txt", "my_notes.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert {name: (tmp_path / name).read_text() for name in first} == first


def test_every_form_has_dumps_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("FXQUANT_DUMP_DIR", str(tmp_path))
    prepared = fxq.calibrate(fxq.prepare(nn.Sequential(nn.Linear(3, 3)).eval(), X), [X], progress=False)
    passes = [snapshot.name for snapshot in prepared.snapshots]
    for to in CONVERT:
        passes += [snapshot.name for snapshot in fxq.convert(prepared, to=to).snapshots[len(prepared.snapshots) :]]
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == [f"{number:03d}_{name}.txt" for number, name in enumerate(passes, start=1)]


def test_the_logger_is_left_as_it_was():
    with no_logging_set_up():
        with debug_output(Settings(debug=2)):
            assert LOGGER.level == logging.INFO
            assert len(LOGGER.handlers) == 1
        assert LOGGER.level == logging.NOTSET
        assert LOGGER.handlers == []


def test_an_application_that_logs_gets_records_not_output(logged, capsys):
    with logged.at_level(logging.INFO, logger="fxquant"):
        run(Settings())
    assert logged.messages[0].startswith("[1/2] normalize")
    logged.records.clear()
    run(Settings(debug=1))
    assert len(logged.messages) == 3
    assert capsys.readouterr().err == ""


def test_plan_as_tables():
    assert format_plan(PLANNED) == (
        "unit    pattern     with    reads    qparams\n"
        "------  ----------  ------  -------  ------------------\n"
        "_1      linear_act  _0      input_1  qparams of input_1\n"
        "\n"
        "stays float    pattern    reason\n"
        "-------------  ---------  ------------------------------\n"
        "_2                        no pattern knows this operator"
    )
    assert format_plan(QuantPlan()) == "no unit"


def test_notes_show_qparams_once_they_are_known():
    assert qparams_notes(PLANNED) == {"input_1": "observed", "_1": "qparams of input_1"}
    known = PLANNED.with_observations({INPUT: QPARAMS})
    assert qparams_notes(known)["_1"] == "uint8 s=0.0235 z=114"


def test_notes_never_make_a_line_too_wide():
    wide = "+ _1 = F.relu(" + "x" * 80 + ")"
    text = with_notes(f"- gone = f(x)\n{wide}\n+ b = g(x)", {"_1": "uint8 s=0.0235 z=114", "b": "observed"})
    assert text.splitlines() == ["- gone = f(x)", wide, "+         uint8 s=0.0235 z=114", "+ b = g(x)  observed"]


def test_padding_makes_room_for_a_note_and_a_type_is_said_once():
    line = f"{'+ _1 = F.relu(_0)':<72}uint8[1,64,112,112]"
    (noted,) = with_notes(line, {"_1": "uint8 s=0.0235 z=114"}).splitlines()
    assert noted.split() == ["+", "_1", "=", "F.relu(_0)", "uint8[1,64,112,112]", "s=0.0235", "z=114"]
    assert len(noted) == 100


def test_a_node_that_takes_two_lines_has_its_note_in_the_last():
    text = with_notes(
        "+ _1 = F.relu(" + "x" * 80 + "\n+         uint8[4,3]\n- _2 = f(x)", {"_1": "uint8 s=0.0235 z=114"}
    )
    assert text.splitlines()[1] == "+         uint8[4,3]  s=0.0235 z=114"


def test_a_line_that_went_shows_no_grid_of_now():
    text = with_notes("- a = ReLU(x)\n+ a = F.relu(x)", {"a": "uint8 s=0.0235 z=114"})
    assert text.splitlines() == ["- a = ReLU(x)", "+ a = F.relu(x)  uint8 s=0.0235 z=114"]


def test_print_passes(monkeypatch):
    manager = run(Settings())
    out = io.StringIO()
    print_passes(manager, file=out)
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "[1/2] normalize",
        "- _1 = ReLU[1](_0)",
        "+ _1 = F.relu(_0)",
        "[2/2] annotate",
    ]
    assert "\x1b" not in out.getvalue()

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    monkeypatch.delenv("NO_COLOR", raising=False)
    print_passes(manager, file=out)
    assert "\x1b[31m- _1 = ReLU[1](_0)" in out.getvalue()

    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    print_passes(manager, file=out)
    assert "\x1b" not in out.getvalue()


def test_print_passes_folds_repeats_unless_told_otherwise():
    layers = [nn.Sequential(nn.Linear(3, 3), nn.ReLU()) for _ in range(4)]
    for linear, _ in layers:
        nn.init.eye_(linear.weight)  # so that no channel dies, of which calibration warns
        nn.init.ones_(linear.bias)
    prepared = fxq.calibrate(fxq.prepare(nn.Sequential(*layers).eval(), X), [X], progress=False)
    folded, whole = io.StringIO(), io.StringIO()
    int8 = fxq.convert(prepared)
    print_passes(int8, file=folded)
    print_passes(int8, file=whole, every_line=True)
    assert "  × 3 more like _0: _1 to _3 (6 lines)" in folded.getvalue()
    assert "×" not in whole.getvalue()
    assert "+ _3_1 = QuantizedLinear[3.0](_2_1)" in whole.getvalue()
    assert " s=" in whole.getvalue()
    assert max(map(len, whole.getvalue().splitlines())) <= 100


def test_a_file_that_another_process_wrote_meanwhile_is_kept(tmp_path, monkeypatch):
    taken = tmp_path / "001_normalize.txt"
    taken.write_text("of another process")
    numbers = iter((1, 1, 2))
    monkeypatch.setattr("fxquant.passes.instruments._next_number", lambda folder: next(numbers))
    with _new_file(tmp_path, "normalize") as file:
        file.write("ours")
    assert taken.read_text() == "of another process"
    assert (tmp_path / "002_normalize.txt").read_text() == "ours"


def test_a_dump_dir_that_cannot_be_used():
    with pytest.raises(InputError) as caught:
        run(Settings(dump_dir="/dev/null/dumps"))
    assert str(caught.value) == (
        "the folder of FXQUANT_DUMP_DIR cannot be used\n"
        "  got:      /dev/null/dumps: Not a directory\n"
        "  expected: a folder that can be made and written to"
    )


def test_title_counts_lines():
    snapshot = Snapshot(4, "annotate", before="a\nb", after="a\nc\nd", seconds=0.0031, step=2, steps=4)
    assert snapshot.changed
    assert snapshot.diff() == "- b\n+ c\n+ d"
    assert snapshot.title() == "[2/4] annotate  +2 -1  3.1 ms"


def test_nothing_changed():
    snapshot = Snapshot(0, "idle", before="a", after="a", seconds=0.0)
    assert not snapshot.changed
    assert snapshot.diff() == ""
    assert snapshot.title() == "[1/1] idle  +0 -0  0.0 ms"


def test_notebooks_show_the_diff():
    shown = Snapshot(0, "mine", "a = f(<x>)\nb", "a = g(<x>)\nb", 0.001)._repr_html_()
    assert "[1/1] mine  +1 -1  1.0 ms" in shown
    assert '<span style="color: #c45500">- a = f(&lt;x&gt;)</span>' in shown
    assert '<span style="color: #0072b2">+ a = g(&lt;x&gt;)</span>' in shown
    assert "(nothing)" in Snapshot(0, "mine", "a", "a", 0.001)._repr_html_()
