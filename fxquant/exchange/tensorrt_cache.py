"""TensorRT's calibration cache: a line for each tensor, its scale as the hexadecimal digits of a float32, high first.

Source: NVIDIA's sample sampleINT8, section "Calibration file": the scale is ``abs(max_dynamic_range) / 127``.
"""

from __future__ import annotations

import re
import struct

from fxquant.errors import InputError
from fxquant.exchange.given import Contents, Given

START = "TRT-"
_LINE = re.compile(r"(?P<name>.+): (?P<scale>[0-9a-fA-F]{8})")


def read(text: str) -> Contents:
    """Read a cache: symmetric, 8 bits, per tensor.

    Raises:
        InputError: a line has another form.
    """
    head, *lines = text.splitlines()
    found = []
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise InputError(
                "a line of the calibration cache has another form",
                at=f"line {number}",
                got=ascii(line)[:120],
                expected="name: 3c008912",
            )
        (scale,) = struct.unpack("!f", bytes.fromhex(match["scale"]))
        found.append(Given(match["name"], scale, 0, 8, True))
    if not found:
        raise InputError("the calibration cache holds no tensor", got=ascii(head)[:120])
    return Contents(tuple(found), True, {}, {})
