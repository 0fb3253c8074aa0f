"""The answers of lookup tables, so that no other version of a function can change them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fxquant.artifact.tensors import TABLE
from fxquant.errors import ArtifactError
from fxquant.nn.table import QuantizedTable


def give_answers(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Have lookup tables answer as the file says.

    Raises:
        ArtifactError: it holds the answers of other tables, or some that are no quantized values.
    """
    tables = {path: module for path, module in model.named_modules() if isinstance(module, QuantizedTable)}
    given = {name.removeprefix(TABLE): tensor for name, tensor in tensors.items() if name.startswith(TABLE)}
    if different := sorted(set(tables) ^ set(given)):
        raise ArtifactError("the file holds the answers of other tables than its modules", got=ascii(different[:3]))
    for path, answers in given.items():
        scheme = tables[path].qparams("y").scheme
        inside = answers.dtype == scheme.dtype and answers.shape == (256,)
        low, high = torch.aminmax(answers.long()) if answers.numel() else (torch.tensor(0), torch.tensor(0))
        if not inside or int(low) < scheme.quant_min or int(high) > scheme.quant_max:
            raise ArtifactError(
                "the answers of a table in the file are no quantized values",
                at=f"module {path}",
                got=f"{answers.dtype} {list(answers.shape)} from {int(low)} to {int(high)}",
                expected=f"{scheme.dtype} [256] from {scheme.quant_min} to {scheme.quant_max}",
            )
        tables[path].answers = answers
