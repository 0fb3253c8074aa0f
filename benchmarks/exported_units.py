"""What each runtime makes of the units of exported networks: of the plan for that runtime, and of the plan for the CPU.

Each network is written by ``fxq.export_onnx(check=...)`` for ONNX Runtime and OpenVINO, which runs every unit there on
the inputs that it has here. A unit counts as integer where a kernel computes it on integers, or only moves integers.
Random weights that mean something, but MiniLM's, which are its own. Networks that the JSON file holds are not run
again; the table of ``docs/deploy.md`` is what is printed.

python benchmarks/exported_units.py --json out/exported_units.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from real_text import minilm_task
from runtimes import versions
from tabulate import tabulate
from torch import Tensor, nn
from zoo import finished

import fxquant as fxq
from fxquant.errors import FxQuantError
from fxquant.samples.networks import random_network
from fxquant.samples.photographs import calibration_batches

NETWORKS = (
    *("resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "efficientnet_b0"),
    *("googlenet", "vit_b_16", "swin_t", "minilm"),
)
RUNTIMES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
MOST_KINDS = 5
"""Types of kernels that a row of the table shows, the most frequent first."""
COPIES = (
    "Reshape",
    "Transpose",
    "QuantizeLinear",
    "DequantizeLinear",
    "Const",
    "Constant",
    "Input",
    "Parameter",
    "Result",
)
"""Types of nodes that compute nothing."""


def main() -> None:
    options = arguments()
    path, settings = Path(options.json), {"runtimes": options.runtimes}
    found = {} if options.fresh else finished(path, settings)
    for name in options.models:
        if name in found:
            continue
        start = time.perf_counter()
        model, batches = network(name)
        found[name] = [
            measured(model, batches, plan, runtime) for runtime in options.runtimes for plan in (runtime, "cpu")
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {"machine": dict(versions()), "settings": settings, "rows": found}
        path.write_text(json.dumps(about, indent=1) + "\n")
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    shown = [line(name, row) for name in options.models for row in found[name]]
    print(tabulate(shown, headers="keys", tablefmt="github", disable_numparse=True))
    if any("failed" in row for name in options.models for row in found[name]):
        sys.exit(1)


def network(name: str) -> tuple[nn.Module, list[Tensor]]:
    """A network, and batches that it takes."""
    if name == "minilm":
        task = minilm_task()
        return task.model, [batch[:8] for batch in list(task.calibration)[:2]]
    batches = calibration_batches(batch_size=2, num_batches=2)
    return random_network(name, batches), batches


def measured(model: nn.Module, batches: list[Tensor], plan: str, runtime: str) -> dict[str, Any]:
    """What a runtime makes of one plan; why it cannot be written where it cannot."""
    row: dict[str, Any] = {"plan": plan, "runtime": runtime}
    prepared = fxq.calibrate(fxq.prepare(model, batches[0], backend=plan), batches, progress=False)
    converted = fxq.convert(prepared, to="int8" if plan == "cpu" else "reference")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            report = fxq.export_onnx(converted, Path(folder, "net.onnx"), batches[0][:1], target=runtime, check=runtime)
        except FxQuantError as error:
            return row | {"failed": str(error)}
    units = [each for each in report.rows if each.operators]
    reasons = Counter(each.reason for each in units if not each.is_integer)
    return row | {
        "units": len(units),
        "integer": report.integer_kernels,
        "kernels": dict(report.kernels),
        "reasons": dict(reasons.most_common()),
        "breaches": sum(each.unfused_beyond_ties for each in report.rows),
        "most steps fused": max((each.fused_steps for each in report.rows if each.unrounded), default=0.0),
        "warnings": [str(each.message) for each in caught if issubclass(each.category, fxq.FxQuantWarning)],
    }


def line(name: str, row: dict[str, Any]) -> dict[str, str]:
    """A row of the table."""
    plan = "that runtime" if row["plan"] == row["runtime"] else row["plan"]
    head = {"network": name, "runtime": RUNTIMES[row["runtime"]], "planned for": plan}
    if "failed" in row:
        return head | {"on integers": "refused", "kernels": row["failed"].splitlines()[0], "in float": ""}
    counted = Counter(row["kernels"])
    kernels = [f"{count} {kind}" for kind, count in counted.most_common() if kind.split(" ")[0] not in COPIES]
    reasons = [f"{count} {reason}" for reason, count in row["reasons"].items()]
    return head | {
        "on integers": f"{row['integer']} of {row['units']}",
        "kernels": ", ".join(kernels[:MOST_KINDS]),
        "in float": "; ".join(reasons[:3]),
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(NETWORKS), help="names of torchvision.models, or minilm")
    parser.add_argument("--runtimes", nargs="+", default=list(RUNTIMES), choices=list(RUNTIMES))
    parser.add_argument("--json", default="out/exported_units.json", help="where all is written, and read from")
    parser.add_argument("--fresh", action="store_true", help="run what the JSON file holds, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    return options


if __name__ == "__main__":
    main()
