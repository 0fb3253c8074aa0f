"""A folder that says what run it is of, and holds what was learned."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fxquant.algorithms.checkpoint import Checkpoint, Learned, digest
from fxquant.errors import InputError


def test_what_was_learned_is_there_again(tmp_path: Path) -> None:
    v = torch.randn(3, 4)
    Checkpoint(tmp_path / "run", {"seed": "1"}).save(2, Learned(v, 0.5, 0.25))
    again = Checkpoint(tmp_path / "run", {"seed": "1"})
    found = again.load(2)
    assert found is not None
    assert torch.equal(found.v, v)
    assert (found.before, found.after) == (0.5, 0.25)
    assert again.load(1) is None
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["0002.pt", "identity.json"]


def test_another_run_is_refused(tmp_path: Path) -> None:
    Checkpoint(tmp_path, {"seed": "1", "data": "a"})
    with pytest.raises(InputError) as raised:
        Checkpoint(tmp_path, {"seed": "2", "data": "a"})
    assert str(raised.value) == (
        "the checkpoint is of another run: seed differ\n"
        f"  at:       {tmp_path}\n"
        "  got:      seed: 2\n"
        "  expected: seed: 1\n"
        "  hint:     give another folder, or remove this one"
    )


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InputError, match="the folder is no checkpoint, and not empty"):
        Checkpoint(tmp_path, {})


def test_a_digest_tells_values_shapes_and_types_apart() -> None:
    x = torch.arange(6.0)
    others = [x + 1, x.view(2, 3), x.double(), x.bfloat16()]
    assert len({digest([each]) for each in (x, *others)}) == 5
    assert digest([{"x": x.clone(), "n": 1}]) == digest([{"x": x, "n": 1}]) != digest([{"x": x, "n": 2}])
    assert digest([torch.zeros(2, 3).t()]) == digest([torch.zeros(3, 2)])
    assert digest([torch.ones(())]) != digest([torch.zeros(())])
