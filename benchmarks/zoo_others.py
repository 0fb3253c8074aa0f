"""Networks of other kinds and other people: timm, and torchvision's segmentation, video, flow and detection.

Random weights that mean something, photographs as inputs, the default configuration. Beside the SQNR of int8 stands a
control: that of the float model whose inputs carry noise at 45 dB. A network that makes much of little noise does so
to both, so int8 should reach the control (or 45 dB, where that is less) minus 20 dB; where it does not, the table names
the layers that ``fxquant.compare`` finds worst. Of several outputs the worst counts. timm is an extra
(``pip install 'fxquant[zoo]'``). Each network has a process of its own; rows that the JSON file holds are not measured
again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from zoo import measured, run
from zoo_others_models import entries

from fxquant.errors import InputError
from fxquant.registry import did_you_mean

ROW = Path(__file__).with_name("zoo_others_row.py")
QUICK = ("timm:mobilevit_xxs", "segmentation:lraspp_mobilenet_v3_large", "detection:box head")
CONTROL = 45
"""dB of the noise of the control's inputs: int8 need not be better than that."""
ALLOWED = 20
"""dB that int8 may lie below the control."""
ATTENTION = 120
"""dB that the prepared model must reach: attention that is taken apart differs in the last bits."""


def main() -> None:
    options = arguments()
    passed_on = ["--images", str(options.images), "--threads", str(options.threads), "--allowed", str(ALLOWED)]
    settings = {"images": options.images, "threads": options.threads}
    run(options, settings, lambda name: measured(ROW, name, passed_on), table_row, missed)


def table_row(row: dict[str, Any]) -> dict[str, Any]:
    if "failed" in row:
        return {"model": row["model"], "float operators": f"failed: {row['failed']}"}
    return {
        "model": row["model"],
        "px": row["side"],
        "int8 %": 100 * row["int8_macs"],
        "control dB": row["control"],
        "int8 dB": row["int8"],
        "sim. dB": row["simulation"],
        "prepare s": row["prepare_s"],
        "calibrate s": row["calibrate_s"],
        "convert s": row["convert_s"],
        "GB": row["peak_gb"],
        "float operators": ", ".join(f"{count} {name}" for name, count in row["float_operators"].items()),
    }


def missed(row: dict[str, Any]) -> list[str]:
    """Which targets a row misses, in words."""
    if "failed" in row:
        return [row["failed"]]
    wanted = min(row["control"], CONTROL) - ALLOWED
    checks = {
        f"{row['int8']:.1f} dB, not {wanted:.1f}; worst: {', '.join(row.get('guilty', ()))}": row["int8"] < wanted,
        f"the prepared model is at {row['prepared']:.0f} dB of float": row["prepared"] < ATTENTION,
        "its file gives other bits: " + ", ".join(row["file"]["differs"]): bool(row["file"]["differs"]),
        "warnings: " + " ".join(row["warnings"]): bool(row["warnings"]),
    }
    return [said for said, is_missed in checks.items() if is_missed]


def arguments() -> argparse.Namespace:
    everything = list(entries())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=everything, metavar="MODEL", help="default: all of them")
    parser.add_argument("--list", action="store_true", help="print the names of all networks")
    parser.add_argument("--quick", action="store_true", help=f"{len(QUICK)} networks, to see that it runs")
    parser.add_argument("--images", type=int, default=2, help="to measure on, and of each calibration batch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", default="out/zoo_others.json", help="where rows are kept (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="measure again what the file holds")
    options = parser.parse_args()
    if options.list:
        print("\n".join(everything))
        sys.exit()
    if options.quick:
        options.models = QUICK
    for name in options.models:
        if name not in everything:
            raise InputError("there is no such network", got=repr(name), hint=did_you_mean(name, everything))
    return options


if __name__ == "__main__":
    main()
