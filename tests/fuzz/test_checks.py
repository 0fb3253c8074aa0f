"""Every check finds what it is there for: faults that were mended once, put back, show within 200 models."""

from __future__ import annotations

import itertools

import pytest
import torch

import fxquant as fxq
from fxquant.graph.edit import insert_after
from fxquant.passes.share_qparams import Joins, Readers
from fxquant.passes.training import insert_training_fake_quant
from fxquant.runtime.program import Program
from fxquant.training import qat
from tests.fuzz import checks
from tests.fuzz.finding import find
from tests.fuzz.generate import generate

MODELS = 200

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")


def assert_found(check: str, fault: pytest.MonkeyPatch, among: tuple[str, ...] = ("",)) -> None:
    """That a check finds something in one of the first models, and nothing there once the fault is gone.

    Args:
        check: Its name.
        fault: Undoes it.
        among: Calls, one of which a model has that can show it: others are not tried.
    """
    recipes = ((seed, generate(seed)) for seed in range(1, MODELS + 1))
    tried = ((seed, recipe) for seed, recipe in recipes if any(call in str(recipe) for call in among))
    found = next((seed for seed, recipe in tried if find(recipe, seed, (check,)) is not None), None)
    assert found is not None
    fault.undo()
    assert find(generate(found), found, (check,)) is None


def test_a_program_that_reads_a_copy_of_its_recording_is_found(monkeypatch):
    """Operands that are not dense were copied while recording, and the copy was read in every later call."""
    run = Program._run

    def stale(self, inputs, buffers, pattern):
        if not hasattr(self, "kept"):
            self.kept = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x.contiguous()) for x in inputs]
        old = [x if x.is_contiguous() else kept for x, kept in zip(inputs, self.kept, strict=True)]
        return run(self, old, buffers, pattern)

    monkeypatch.setattr(Program, "_run", stale)
    assert_found("program = graph", monkeypatch)


def test_a_join_that_is_observed_with_its_inputs_is_found(monkeypatch):
    """While training, one module stood behind each input of a join and behind its result, and averaged their ranges."""
    prepare_qat = fxq.prepare_qat

    def faulty(*args, **kwargs):
        trained = prepare_qat(*args, **kwargs)
        for node in list(trained.graph.nodes):
            module = next((user for user in node.users if str(user.target).endswith("_fake_quant")), None)
            if node.target in (torch.cat, torch.stack) and module is not None:
                for joined in node.all_input_nodes:
                    if joined.op != "placeholder":
                        insert_after(joined, str(module.target), users=[node])
        trained.recompile()
        return trained

    monkeypatch.setattr(fxq, "prepare_qat", faulty)
    assert_found("QAT's first step", monkeypatch)


def test_a_joined_value_that_loses_its_own_grid_is_found(monkeypatch):
    """What was joined lay on the grid of the result for all of its readers."""
    reading = Joins._reading

    def faulty(self, owner):
        found = reading(self, owner)
        return Readers(found.joins[:1], others=False)

    monkeypatch.setattr(Joins, "_reading", faulty)
    assert_found("SQNR", monkeypatch, among=("torch.cat(", "torch.stack("))


def test_a_weight_that_forward_computes_and_training_freezes_is_found(monkeypatch):
    monkeypatch.setattr(qat, "TO_TRAINING", (insert_training_fake_quant,))
    assert_found("QAT's first step", monkeypatch)


@pytest.mark.slow
def test_every_check_holds_for_a_plain_network():
    recipe = next(recipe for recipe in map(generate, itertools.count(1)) if recipe.ingredients == {"conv2d"})
    assert find(recipe, 1) is None
    assert len(checks.CHECKS) == 8
