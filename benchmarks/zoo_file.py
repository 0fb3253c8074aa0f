"""The file of a network of the zoo, opened in a fresh interpreter without torchvision: what is not as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import fxquant as fxq

SCRIPT = """
import json, sys
import torch
from torch.utils._pytree import tree_leaves
import fxquant as fxq

folder, threads = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(threads)
model, wanted = fxq.load(f"{folder}/model.fxq"), torch.load(f"{folder}/wanted.pt")
with torch.no_grad():
    output = [each for each in tree_leaves(model(*wanted["inputs"])) if isinstance(each, torch.Tensor)]
    state, kept = model.state_dict(), wanted["state"]
equal = {
    "output": len(output) == len(wanted["output"]) and all(map(torch.equal, output, wanted["output"])),
    "state dict": list(state) == list(kept) and all(torch.equal(state[name], kept[name]) for name in state),
    "coverage": str(model.quant_coverage) == wanted["coverage"],
    "imports": "torchvision" not in sys.modules and "timm" not in sys.modules,
}
print(json.dumps([name for name, same in equal.items() if not same]))
"""
"""Prints what differs, as a list."""


def round_trip(model: nn.Module, *inputs: Tensor) -> dict[str, Any]:
    """Save a converted model, load it in another process, and compare outputs, state dict and coverage to the bit.

    Returns:
        ``megabytes`` of the file, and ``differs``: a list of what does, or the last line of an error.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.fxq")
        with torch.no_grad():
            wanted = {"inputs": inputs, "output": tensors(model(*inputs)), "state": dict(model.state_dict())}
        torch.save({**wanted, "coverage": str(model.quant_coverage)}, Path(folder, "wanted.pt"))
        try:
            fxq.save(model, path)  # type: ignore[arg-type]
        except fxq.FxQuantError as error:
            return {"megabytes": float("nan"), "differs": [str(error).splitlines()[0]]}
        environment = {**os.environ, "PYTHONPATH": str(Path(fxq.__file__).parent.parent)}
        command = [sys.executable, "-c", SCRIPT, folder, str(torch.get_num_threads())]
        run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        lines = (run.stdout if run.returncode == 0 else run.stderr).strip().splitlines() or ["it ended"]
        differs = json.loads(lines[-1]) if run.returncode == 0 else [lines[-1]]
        return {"megabytes": path.stat().st_size / 1e6, "differs": differs}


def tensors(tree: Any) -> list[Tensor]:
    """All tensors of an output."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
