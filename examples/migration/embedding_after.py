"""Tables of embeddings whose weights are integers, one scale a row, in a model of recommendations.

The pattern is that of DLRM (facebookresearch/dlrm, dlrm_s_pytorch.py), where linear layers are quantized dynamically
and tables by weight alone, and of the tests of embedding bags in pytorch (test/quantization/fx).
"""

import torch
from torch import nn

from fxquant.compat.quantization import QConfigMapping, default_dynamic_qconfig, float_qparams_weight_only_qconfig
from fxquant.compat.quantize_fx import convert_fx, prepare_fx


class Recommender(nn.Module):
    """Dense features through a linear layer, sparse ones through two tables, and all of them through a last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.EmbeddingBag(500, 32, mode="sum", include_last_offset=True)
        self.items = nn.EmbeddingBag(800, 32, mode="sum", include_last_offset=True)
        self.bottom = nn.Linear(13, 32)
        self.top = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(
        self, dense: torch.Tensor, users: torch.Tensor, items: torch.Tensor, offsets: torch.Tensor
    ) -> torch.Tensor:
        found = [torch.relu(self.bottom(dense)), self.users(users, offsets), self.items(items, offsets)]
        return self.top(torch.cat(found, dim=1))


def main() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    model = Recommender().eval()
    inputs = torch.randn(16, 13), torch.randint(500, (64,)), torch.randint(800, (64,)), torch.arange(0, 65, 4)
    mapping = (
        QConfigMapping()
        .set_global(default_dynamic_qconfig)
        .set_object_type(nn.EmbeddingBag, float_qparams_weight_only_qconfig)
    )
    prepared = prepare_fx(model, mapping, inputs)
    return model, convert_fx(prepared), inputs


if __name__ == "__main__":
    float_model, quantized, inputs = main()
    print(f"largest difference: {(quantized(*inputs) - float_model(*inputs)).abs().max():.4f}")
