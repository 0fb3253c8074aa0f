"""Every classification network of torchvision, quantized with no edit: how much is int8, how near to float, how long.

Random weights that mean something (``fxquant.samples.networks.random_network``), photographs as inputs, the default
configuration. SQNR in dB against the float model, of the median image, at the last layer's input and at the output, for
the int8 model, its simulation, and torch.ao (FX mode, onednn engine, its default mapping). Each network has a process
of its own, so that a crash costs one row. The int8 model is saved and loaded in an interpreter without torchvision: the
same bits. Rows that the JSON file holds are not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torchvision
from tabulate import tabulate
from tqdm import tqdm

import fxquant as fxq
from fxquant.demo.measure import machine
from fxquant.errors import InputError
from fxquant.registry import did_you_mean

ROW = Path(__file__).with_name("zoo_row.py")
QUICK = ("resnet18", "mobilenet_v3_large", "efficientnet_b0", "convnext_tiny", "vit_b_32", "swin_t")
"""One of each kind."""
TRANSFORMERS = ("vit", "swin")
INT8_SHARE = {True: 0.90, False: 0.99}
"""Multiply-accumulates that must become int8: of transformers, of others."""
AGREEMENT = 0.5
"""dB that int8 may be away from its simulation, or below torch.ao: values that round the other way."""
VIT = 28
"""dB that vision transformers must reach at the last layer's input."""
TIMEOUT = 1800
"""Seconds after which a network counts as failed."""


def main() -> None:
    options = arguments()
    passed_on = ["--rounds", str(options.rounds), "--threads", str(options.threads)]
    passed_on += ["--images", str(options.images)] if options.images else []
    passed_on += ["--exported"] if options.exported else []
    settings = {"exported": options.exported} if options.exported else {}
    settings |= {"images": options.images, "rounds": options.rounds, "threads": options.threads}
    run(options, settings, lambda name: measured(ROW, name, passed_on), table_row, missed)


def run(
    options: argparse.Namespace,
    settings: dict[str, Any],
    measure: Callable[[str], dict[str, Any]],
    table_row: Callable[[dict[str, Any]], dict[str, Any]],
    missed: Callable[[dict[str, Any]], list[str]],
) -> None:
    """Measure what the JSON file does not hold yet, print the table and who misses a target; exit 1 if one failed."""
    path = Path(options.json)
    rows = {} if options.fresh else finished(path, settings)
    about = machine()
    print("\n".join(f"{key}: {value}" for key, value in about.items()), flush=True)
    for name in tqdm([name for name in options.models if name not in rows], unit="network", disable=None):
        rows[name] = measure(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"machine": about, "settings": settings, "rows": rows}, indent=1) + "\n")
    shown = [rows[name] for name in options.models]
    print(tabulate([table_row(row) for row in shown], headers="keys", floatfmt=".1f", missingval="-"))
    misses = {row["model"]: said for row in shown if (said := missed(row))}
    print(f"\n{len(shown) - len(misses)} of {len(shown)} networks meet every target.")
    for name, said in misses.items():
        print(f"{name}: {'; '.join(said)}")
    if any("failed" in row for row in shown):
        sys.exit(1)


def measured(script: Path, name: str, arguments: list[str]) -> dict[str, Any]:
    """The row of one network, from a process of its own; what it said last where it failed."""
    command = [sys.executable, str(script), name, *arguments]
    # The same fxquant as here, installed or not, before what else the path holds.
    path = [str(Path(fxq.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    start = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return {"model": name, "failed": f"not done after {TIMEOUT} s"}
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raised = next((line for line in reversed(lines) if line[:1].strip()), lines[-1])
        return {"model": name, "failed": raised, "stderr": lines[-40:]}
    return {**json.loads(done.stdout.splitlines()[-1]), "seconds": time.perf_counter() - start}


def finished(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Rows of an earlier run with the same settings that went through."""
    if not path.exists():
        return {}
    earlier = json.loads(path.read_text())
    if earlier["settings"] != settings:
        return {}
    return {name: row for name, row in earlier["rows"].items() if "failed" not in row}


def table_row(row: dict[str, Any]) -> dict[str, Any]:
    if "failed" in row:
        return {"model": row["model"], "float operators, torch.ao": f"failed: {row['failed']}"}
    peer = row["torch.ao"]
    remarks = [f"{count} {name}" for name, count in row["float_operators"].items()]
    remarks += [f"torch.ao: {peer['fails'][:60]}"] if "fails" in peer else []
    return {
        "model": row["model"],
        "px": row["side"],
        "images": row["images"],
        "GMACs": row["giga_macs"],
        "int8 %": 100 * row["int8_macs"],
        "int8 dB": row["int8"]["input"],
        "sim. dB": row["simulation"]["input"],
        "torch.ao dB": peer.get("input"),
        "out: int8": row["int8"]["output"],
        "sim.": row["simulation"]["output"],
        "torch.ao": peer.get("output"),
        "prepare s": row["prepare_s"],
        "calibrate s": row["calibrate_s"],
        "convert s": row["convert_s"],
        "float ms": row.get("float_ms"),
        "int8 ms": row.get("int8_ms"),
        "GB": row["peak_gb"],
        "file MB": row["file"]["megabytes"],
        **({"exported": exported(row["exported"])} if "exported" in row else {}),
        "float operators, torch.ao": ", ".join(remarks),
    }


def exported(found: dict[str, Any]) -> str:
    """What came of the program that ``torch.export`` makes of the network, beside what came of the network."""
    if "fails" in found:
        return str(found["fails"])
    units, traced = found["units"], found["traced_units"]
    same = "the same integers" if found["equal"] else "other integers"
    return same if units == traced else f"{same}, {units} units for {traced}"


def missed(row: dict[str, Any]) -> list[str]:
    """Which targets a row misses, in words."""
    if "failed" in row:
        return [row["failed"]]
    name, int8, simulation, peer = row["model"], row["int8"], row["simulation"], row["torch.ao"]
    share = INT8_SHARE[name.startswith(TRANSFORMERS)]
    checks = {
        f"{100 * row['int8_macs']:.2f} % int8, not {100 * share:.0f}": row["int8_macs"] < share,
        f"int8 {int8['input'] - simulation['input']:+.1f} dB against its simulation": abs(
            int8["input"] - simulation["input"]
        )
        > AGREEMENT,
        f"int8 {int8['input'] - peer.get('input', 0):+.1f} dB against torch.ao": int8["input"]
        < peer.get("input", -float("inf")) - AGREEMENT,
        f"{int8['input']:.1f} dB, not {VIT}": name.startswith("vit") and int8["input"] < VIT,
        "other integers by its exported program": row.get("exported", {}).get("differs", False),
        "its file gives other bits: " + ", ".join(row["file"]["differs"]): bool(row["file"]["differs"]),
        "warnings: " + " ".join(row["warnings"]): bool(row["warnings"]),
    }
    return [said for said, is_missed in checks.items() if is_missed]


def arguments() -> argparse.Namespace:
    everything = torchvision.models.list_models(module=torchvision.models)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=everything, metavar="MODEL", help="default: all of them")
    parser.add_argument("--quick", action="store_true", help=f"{len(QUICK)} networks and 2 images, to see that it runs")
    parser.add_argument("--images", type=int, help="to measure on, half as many as to calibrate with (default: 2 to 8)")
    parser.add_argument("--rounds", type=int, default=5, help="of timed calls")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--exported", action="store_true", help="prepare the program of torch.export, too, and compare")
    parser.add_argument("--json", default="out/zoo.json", help="where rows are kept (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="measure again what the file holds")
    options = parser.parse_args()
    if options.quick:
        options.models, options.images, options.rounds = QUICK, 2, 1
    for name in options.models:
        if name not in everything:
            raise InputError("torchvision has no such classifier", got=repr(name), hint=did_you_mean(name, everything))
    return options


if __name__ == "__main__":
    main()
