"""Dynamic quantization of the linear layers of a text classifier, as torch's recipe does it, and a table of words."""

import torch
from torch import nn

from fxquant.compat.quantization import quantize_dynamic


class Classifier(nn.Module):
    """Words to the mean of their vectors, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 32)
        self.hidden, self.head = nn.Linear(32, 64), nn.Linear(64, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.hidden(self.words(words).mean(1))))


def main() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model, words = Classifier().eval(), torch.randint(0, 100, (4, 7))
    quantized = quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    return model(words), quantized(words)


if __name__ == "__main__":
    expected, got = main()
    print(f"largest difference: {(got - expected).abs().max():.4f}")
