"""Results of the demo, as data: the text and the picture are two views of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fxquant.measure.noise import sqnr


@dataclass(frozen=True, slots=True)
class Comparison:
    """One network in float and in int8, on the same labelled images."""

    labels: Tensor
    """int64 [N]: the right classes."""
    float_logits: Tensor
    """float32 [N, classes]."""
    int8_logits: Tensor
    """float32 [N, classes]."""
    milliseconds: dict[str, float]
    """Median of one image, for ``float`` and ``int8``."""
    file_bytes: dict[str, int]
    """Size of the saved state dict, for ``float`` and ``int8``."""
    layers: tuple[tuple[str, float], ...] = ()
    """SQNR in dB of the output of each layer that became int8, in the order in which they run."""

    @property
    def logits(self) -> dict[str, Tensor]:
        return {"float": self.float_logits, "int8": self.int8_logits}

    def correct(self, k: int) -> dict[str, int]:
        """Images whose label is among the ``k`` largest logits, of float and of int8."""
        return {
            name: int((logits.topk(k, dim=1).indices == self.labels[:, None]).any(dim=1).sum())
            for name, logits in self.logits.items()
        }

    @property
    def agreement(self) -> int:
        """Images for which int8 chooses the same class as float."""
        return int((self.float_logits.argmax(dim=1) == self.int8_logits.argmax(dim=1)).sum())

    @property
    def sqnr(self) -> float:
        """Return the SQNR of the int8 logits against the float ones, in dB."""
        return sqnr(self.float_logits, self.int8_logits)

    @property
    def speed_up(self) -> float:
        return self.milliseconds["float"] / self.milliseconds["int8"]

    @property
    def shrinkage(self) -> float:
        return self.file_bytes["float"] / self.file_bytes["int8"]

    def best(self, which: str) -> list[tuple[int, float]]:
        """Return for every image the class that ``float`` or ``int8`` chooses, and the probability that it gives it."""
        confidence, chosen = torch.softmax(self.logits[which], dim=1).max(dim=1)
        return list(zip(chosen.tolist(), confidence.tolist(), strict=True))

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return a table: what, float, int8, and how they relate."""
        count = len(self.labels)
        top = {k: self.correct(k) for k in (1, 5)}
        ms, mb = self.milliseconds, {name: size / 1e6 for name, size in self.file_bytes.items()}
        return [
            *((f"top-{k}", f"{c['float']} of {count}", f"{c['int8']} of {count}", "") for k, c in top.items()),
            ("same class as float", "", f"{self.agreement} of {count}", ""),
            ("SQNR of the logits", "", f"{self.sqnr:.1f} dB", ""),
            ("one image", f"{ms['float']:.1f} ms", f"{ms['int8']:.1f} ms", f"{self.speed_up:.1f} times faster"),
            ("file", f"{mb['float']:.1f} MB", f"{mb['int8']:.1f} MB", f"{self.shrinkage:.1f} times smaller"),
        ]
