"""A character model of two LSTM layers, trained in a moment, and its int8 form: what it loses, weighs and writes.

python examples/lstm.py
"""

from __future__ import annotations

import codecs
import contextlib
import io
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq

STEPS, ROWS, HIDDEN = 48, 16, 64


class Characters(nn.Module):
    """Predicts the next character of each, and gives the states to go on from."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.table = nn.Embedding(characters, 32)
        self.lstm = nn.LSTM(32, HIDDEN, num_layers=2, batch_first=True)
        self.head = nn.Linear(HIDDEN, characters)

    def forward(self, x: Tensor, states: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, states = self.lstm(self.table(x), states)
        return self.head(y), states


def zen() -> str:
    """The poem that ``import this`` prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    return codecs.decode(this.s, "rot13")


def no_states(rows: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(2, rows, HIDDEN), torch.zeros(2, rows, HIDDEN)


def bits(model: nn.Module, text: Tensor) -> float:
    """Bits that the model needs for a character."""
    with torch.no_grad():
        scores, _ = model(text[None, :-1], no_states(1))
    return float(F.cross_entropy(scores[0], text[1:])) / torch.log(torch.tensor(2.0)).item()


def continued(model: nn.Module, text: Tensor, count: int) -> list[int]:
    """Go on with a text, character by character, with the states of the step before."""
    written: list[int] = []
    with torch.no_grad():
        scores, states = model(text[None], no_states(1))
        for _ in range(count):
            written.append(int(scores[0, -1].argmax()))
            scores, states = model(torch.tensor([[written[-1]]]), states)
    return written


def main() -> None:
    torch.manual_seed(0)
    poem = zen()
    names = sorted(set(poem))
    text = torch.tensor([names.index(c) for c in poem])
    model = Characters(len(names))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(150):
        starts = torch.randint(len(text) - STEPS - 1, (ROWS,)).tolist()
        windows = torch.stack([text[start : start + STEPS + 1] for start in starts])
        loss = F.cross_entropy(model(windows[:, :-1], no_states(ROWS))[0].flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    prepared = fxq.prepare(model.eval(), (text[None, :STEPS], no_states(1)), fxq.default_dynamic_qconfig)
    print(prepared.coverage())
    int8 = fxq.convert(prepared)  # each call measures its ranges: there is nothing to calibrate
    print(f"bits for a character: float {bits(model, text):.3f}, int8 {bits(int8, text):.3f}")
    begin = text[: poem.index("\n")]
    print("int8 goes on:", repr("".join(names[i] for i in continued(int8, begin, 60))))

    with tempfile.TemporaryDirectory() as folder:
        fxq.save(int8, Path(folder) / "lstm.fxq")
        loaded = fxq.load(Path(folder) / "lstm.fxq")
        weights = sum(p.numel() * p.element_size() for p in model.lstm.parameters())
        stored = sum(t.numel() * t.element_size() for t in loaded.lstm.state_dict().values())
        print(f"LSTM: float {weights:,} bytes, int8 {stored:,}")
        print("loaded, the same text:", continued(loaded, begin, 60) == continued(int8, begin, 60))


if __name__ == "__main__":
    main()
