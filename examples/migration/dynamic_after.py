"""Dynamic quantization of the LSTM and of the linear layer of a language model.

The pattern is that of "Dynamic Quantization on an LSTM Word Language Model", a tutorial of PyTorch.
"""

import torch
from torch import nn

from fxquant.compat.quantization import quantize_dynamic


class LanguageModel(nn.Module):
    """Words to vectors, two recurrent layers, and a score for each word that may come next."""

    def __init__(self, words: int = 200, size: int = 64) -> None:
        super().__init__()
        self.encoder = nn.Embedding(words, size)
        self.rnn = nn.LSTM(size, size, num_layers=2)
        self.decoder = nn.Linear(size, words)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        output, _ = self.rnn(self.encoder(words))
        return self.decoder(output)


def main() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    model, words = LanguageModel().eval(), torch.randint(0, 200, (20, 4))
    return model, quantize_dynamic(model, {nn.LSTM, nn.Linear}, dtype=torch.qint8), (words,)


if __name__ == "__main__":
    float_model, quantized, inputs = main()
    print(f"largest difference: {(quantized(*inputs) - float_model(*inputs)).abs().max():.4f}")
