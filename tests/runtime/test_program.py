"""Programs: run by several threads, refused where memory is not what it seems."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fxquant import kernels
from fxquant.kernels.library import available_isas
from fxquant.runtime.program import OutputBuffer, Program, View
from fxquant.runtime.recording import Recording

pytestmark = pytest.mark.skipif(not available_isas(), reason="programs are made of native kernels")

TABLE = torch.arange(255, -1, -1).to(torch.uint8)


def chain(x):
    """Some loops, too large for one task, one of them with memory of its own."""
    y = kernels.table(x, TABLE)
    y = kernels.add(y, 0.1, 0, x, 0.2, 3, 0.3, 5, 0, 255)
    return kernels.max_pool2d(y, [3], [1], [1], [1], False)


def image(seed: int):
    torch.manual_seed(seed)
    return torch.randint(0, 256, (2, 64, 40, 40), dtype=torch.uint8).contiguous(memory_format=torch.channels_last)


def program_of(x) -> Program:
    recording = Recording()
    recording.add_input(x)
    return recording.finish([recording.attempt(lambda: chain(x))])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_bits_do_not_depend_on_threads(threads):
    before = torch.get_num_threads()
    program, x = program_of(image(0)), image(1)
    wanted = chain(x)
    try:
        torch.set_num_threads(threads)
        assert torch.equal(program([x])[0], wanted)
    finally:
        torch.set_num_threads(before)


def test_the_number_of_threads_may_change_from_run_to_run():
    before = torch.get_num_threads()
    program, x = program_of(image(0)), image(1)
    wanted = chain(x)
    try:
        for threads in (2, 7, 1, 3, 7, 2):
            torch.set_num_threads(threads)
            assert torch.equal(program([x])[0], wanted)
    finally:
        torch.set_num_threads(before)


def test_several_threads_may_run_one_program():
    program = program_of(image(0))
    inputs = [image(seed) for seed in range(8)]
    wanted = [chain(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: program([inputs[i % 8]])[0], range(40)))
    assert all(torch.equal(found[i], wanted[i % 8]) for i in range(40))


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("FXQUANT_SANITIZE") == "1", reason="AddressSanitizer ends a process that finds no memory"
)
def test_a_run_without_memory_is_an_error_and_later_ones_go_on():
    """In a process of its own, whose memory is limited."""
    subprocess.run([sys.executable, "-c", textwrap.dedent(WITHOUT_MEMORY)], check=True)


WITHOUT_MEMORY = """
    import resource, torch
    from fxquant import kernels
    from fxquant.errors import KernelError
    from fxquant.runtime.recording import Recording

    torch.set_num_threads(1)
    entries, x = torch.arange(256).to(torch.uint8), torch.ones(1 << 26, dtype=torch.uint8)

    def mean(x):
        return kernels.mean(kernels.table(x, entries), [0], False, 1.0, 0, 1.0, 0, 0, 255)

    recording = Recording()
    recording.add_input(x)
    program = recording.finish([recording.attempt(lambda: mean(x))])
    del recording
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 24), resource.RLIM_INFINITY))
    try:
        program([x])
    except KernelError as error:
        assert "there is not enough memory to run a program" in str(error)
        assert f"{program.arena_bytes} bytes more needed" in str(error)
    else:
        raise AssertionError("it ran")
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert program([x])[0] == 1
"""


def test_what_is_read_before_it_is_written_shows():
    x = image(0)
    recording = Recording()
    recording.add_input(x)
    half_written = torch.empty_like(x)

    def call():
        made = torch.empty_like(x)
        made[:, ::2].copy_(x[:, ::2])
        return made, kernels.table(made, TABLE)

    results = recording.attempt(call)
    program = recording.finish([results[1]])
    half_written[:, ::2] = x[:, ::2]
    assert not program.reproduces([x.clone()], [kernels.table(half_written, TABLE)])
    whole = program_of(x)
    assert whole.reproduces([x.clone()], [chain(x)])
    assert not whole.reproduces([x.clone()], [chain(x).contiguous()])
    assert not whole.reproduces([x.clone()], [chain(image(1))])


def test_bits_count():
    x = torch.tensor([0.0, float("nan")])
    recording = Recording()
    recording.add_input(x)
    program = recording.finish([recording.attempt(x.clone)])
    assert program.reproduces([x], [x.clone()])
    assert not program.reproduces([-x], [x])


def test_a_view_is_made_of_an_input_or_of_a_buffer():
    x = torch.arange(12, dtype=torch.uint8).reshape(3, 4)
    buffer = OutputBuffer((2, 2), (1, 2), torch.int8).make()
    assert (buffer.shape, buffer.stride(), buffer.dtype) == ((2, 2), (1, 2), torch.int8)
    assert View(False, 0, True).of([x], [buffer]) is buffer
    assert torch.equal(View(True, 0, False, (2,), (4,), 1, torch.uint8).of([x], []), torch.tensor([1, 5]))
