"""A folder that says what run it is of, and holds what was learned."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fxquant.errors import InputError
from fxquant.training.checkpoint import Checkpoint, digest


def test_what_was_learned_is_there_again(tmp_path: Path) -> None:
    v = torch.randn(3, 4)
    Checkpoint(tmp_path / "run", {"seed": "1"}).save(2, {"V": v, "before": 0.5, "after": 0.25})
    like = {"V": torch.empty(3, 4), "before": 0.0, "after": 0.0}
    again = Checkpoint(tmp_path / "run", {"seed": "1"})
    found = again.load(2, like)
    assert found is not None
    assert torch.equal(found["V"], v)
    assert (found["before"], found["after"]) == (0.5, 0.25)
    assert again.load(1, like) is None
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


def test_damaged_files_are_refused_with_words(tmp_path: Path) -> None:
    """Not KeyError, EOFError, UnicodeDecodeError: what is wrong, where, and what to do."""
    shape = torch.Size([3, 4])
    like = {"V": torch.zeros(shape), "before": 0.0, "after": 0.0}
    checkpoint = Checkpoint(tmp_path, {"seed": "1"})
    checkpoint.save(0, {"V": torch.zeros(shape), "before": 1.0, "after": 0.5})
    whole = (tmp_path / "0000.pt").read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"\xff\xfe not a file of torch"):
        (tmp_path / "0000.pt").write_bytes(content)
        with pytest.raises(InputError, match=r"(?s)is damaged.*at: .*0000\.pt.*hint: *remove the file"):
            checkpoint.load(0, like)
    good = {"V": torch.zeros(shape), "before": 1.0, "after": 0.5}
    for bad in (
        {"V": torch.zeros(4)},
        {"V": torch.zeros(3, 4, dtype=torch.complex64)},
        {"V": torch.full(shape, torch.nan)},
        {"V": torch.zeros(shape, dtype=torch.int8)},
    ):
        torch.save({**good, **bad}, tmp_path / "0000.pt")
        with pytest.raises(InputError, match=r"is damaged, or of another run"):
            checkpoint.load(0, like)
    for state in ({"V": torch.zeros(shape)}, {**good, "before": "1"}, torch.zeros(3), {}):
        torch.save(state, tmp_path / "0000.pt")
        with pytest.raises(InputError, match="expected: V, before, after"):
            checkpoint.load(0, like)
    for text in (b"", b"\xff\xfe", b'{"seed": ', b"[1]"):
        (tmp_path / "identity.json").write_bytes(text)
        with pytest.raises(InputError, match=r"(?s)is damaged.*identity\.json"):
            Checkpoint(tmp_path, {"seed": "1"})


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
