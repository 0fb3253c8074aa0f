"""The loops as a plain program: what is compared, what a difference is, and the loops of ARM under an emulator."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import pytest

from scripts import plain_loops
from scripts.plain_loops import CHOICE, CPUS, LOOPS, SOURCE, STEMS, Outcome, builder, compared, main, missing

HEADER = re.compile(r'#include "\w+/cpu/loops/(\w+)\.h"')


def ended(code: int, out: str, err: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], code, out, err)


def test_what_a_program_printed_is_read() -> None:
    text = "conv 0 aa\nconv 0: avx2 differs from portable\nconv 1 bb\nsets: portable avx2; best avx2; 2 results\n"
    outcome = Outcome.of(ended(1, text))
    assert outcome.digests == ("conv 0 aa", "conv 1 bb")
    assert outcome.differences == ("conv 0: avx2 differs from portable",)
    assert outcome.summary == "portable avx2; best avx2; 2 results"


def test_a_program_that_does_not_come_to_its_end_stops() -> None:
    with pytest.raises(SystemExit, match=r"ended with -4\nIllegal instruction"):
        Outcome.of(ended(-4, "conv 0 aa\n", "Illegal instruction"))


def test_tools_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(plain_loops.shutil, "which", lambda name: None if "qemu" in name else name)
    assert missing() == "no qemu-aarch64 (apt-get install g++-aarch64-linux-gnu qemu-user)"
    assert main([]) == 1
    assert capsys.readouterr().out.startswith("loops for aarch64: not run: no qemu-aarch64 (")
    monkeypatch.setattr(plain_loops.shutil, "which", lambda name: name)
    assert missing() == ""


def test_the_program_is_linked_with_the_loops_that_it_calls() -> None:
    assert sorted(HEADER.findall(SOURCE.read_text(encoding="utf-8"))) == sorted(STEMS)
    stems = {step.stem for step in builder("aarch64").cpu_steps("true", Path())}  # a compiler that takes everything
    assert {*CHOICE, *(f"portable-{stem}" for stem in STEMS)} <= stems
    of_neon = {f"{isa}-{stem}" for isa in ("neon_dotprod", "neon_i8mm") for stem in ("conv2d", "depthwise", "matmul")}
    assert {stem for stem in stems if stem.startswith("neon")} == of_neon


def test_a_compiler_that_does_not_know_the_dot_products_of_arm_leaves_them_out() -> None:
    steps = builder("aarch64").cpu_steps("false", Path())
    assert {step.stem.partition("-")[0] for step in steps} == {"cpu", "portable"}
    assert not [step.stem for step in steps if "-DFXQ_ARM=1" in step.command]


def outcomes(monkeypatch: pytest.MonkeyPatch, **changed: Outcome) -> None:
    """Let each CPU print what it should, but those that ``changed`` has by the name of their best set."""
    right = {best: Outcome(("conv 0 aa",), (), f"portable; best {best}; 0 differences") for best in CPUS.values()}
    here = Outcome(("conv 0 aa",), (), "portable; best portable; 0 differences")
    monkeypatch.setattr(plain_loops, "missing", lambda: "")
    monkeypatch.setattr(plain_loops, "build", lambda machine, cxx, target: target)
    monkeypatch.setattr(
        plain_loops, "run", lambda program, cases, cpu=None: {**right, **changed}[CPUS[cpu]] if cpu else here
    )


def test_cases_for_sanitizers_run_in_stretches_without_gap_or_overlap(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[int] = []

    def run(program: Path, cases: int, first: int) -> Outcome:
        ran.extend(range(first, first + cases))
        wrong = ("conv 1100: avx2 differs from portable",) if first <= 1100 < first + cases else ()
        return Outcome(("conv 0 aa",) * cases * LOOPS, wrong, "portable avx2; best avx2;")

    monkeypatch.setattr(plain_loops, "build", lambda machine, cxx, target, sanitize: target)
    monkeypatch.setattr(plain_loops, "run", run)
    assert main(["--sanitize", "--cases", "1100", "--first", "7"]) == 1
    assert sorted(ran) == list(range(7, 1107))
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"{platform.machine()}: portable avx2; {1100 * LOOPS} calls, each with every set, 1 differences",
        "conv 1100: avx2 differs from portable",
    ]


def test_a_build_for_sanitizers_checks_every_loop() -> None:
    steps = builder(platform.machine(), sanitize=True).cpu_steps("true", Path())
    assert all("-fsanitize=address,undefined" in step.command for step in steps)
    steps = builder(platform.machine()).cpu_steps("true", Path())
    assert not any("-fsanitize=address,undefined" in step.command for step in steps)


def test_a_case_has_a_call_of_each_kind() -> None:
    assert SOURCE.read_text(encoding="utf-8").count('    each("') == LOOPS


def test_results_that_agree_pass(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes(monkeypatch)
    assert main([]) == 0
    assert capsys.readouterr().out.splitlines()[1] == (
        "aarch64, cortex-a53: portable; best portable; 0 differences; 0 of 1 digests are not those of here"
    )


@pytest.mark.parametrize(
    ("outcome", "wrong"),
    [
        (Outcome(("conv 0 bb",), (), "portable; best neon_i8mm;"), "max: conv 0 bb is not that of here"),
        (Outcome(("conv 0 aa",), ("conv 0: differs",), "portable; best neon_i8mm;"), "max: conv 0: differs"),
        (Outcome(("conv 0 aa",), (), "portable; best portable;"), "max: the best set should be neon_i8mm"),
    ],
)
def test_whatever_differs_is_wrong(
    outcome: Outcome, wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes(monkeypatch, neon_i8mm=outcome)
    assert main([]) == 1
    assert capsys.readouterr().out.splitlines()[4:] == [wrong]


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=f"loops for aarch64: {missing()}")
def test_the_sets_of_arm_agree_to_the_bit_with_their_portable_one_and_with_this_machine() -> None:
    said, wrong = compared(40)
    assert wrong == []
    assert len(said) == 1 + len(CPUS)
    assert all("; 0 of 360 digests" in line for line in said[1:])
