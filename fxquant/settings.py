"""Every FXQUANT_* environment variable, read into one frozen data class."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

from fxquant.errors import SpecError, warn
from fxquant.registry import did_you_mean

logger = logging.getLogger("fxquant")

Kernels = Literal["auto", "native", "reference"]
# fmt: off
CpuIsa = Literal[
    "auto", "portable", "avx2", "avx512", "avx512_vnni", "brgemm", "amx", "amx_emulated", "neon_dotprod", "neon_i8mm"
]
# fmt: on


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that the environment asks for. An empty environment gives the defaults."""

    debug: int = 0
    """FXQUANT_DEBUG: 0 silent; 1 a line per pass, the plan, and what convert measured; 2 also diffs, repeats folded;
    3 also every line, and every pattern tried."""
    print_after: tuple[str, ...] = ()
    """FXQUANT_PRINT_AFTER: names of passes after which the whole graph is printed."""
    dump_dir: str = ""
    """FXQUANT_DUMP_DIR: folder for one text file per pass."""
    skip_passes: tuple[str, ...] = ()
    """FXQUANT_SKIP_PASSES: names of passes to leave out."""
    verify: bool = False
    """FXQUANT_VERIFY: after value-preserving passes, run the example inputs and compare."""
    kernels: Kernels = "auto"
    """FXQUANT_KERNELS: which kernels run; ``native`` raises where one is missing."""
    cpu_isa: CpuIsa = "auto"
    """FXQUANT_CPU_ISA: what the CPU kernels use; ``brgemm`` leaves large int8 products to the framework's kernels,
    ``amx`` multiplies on tiles, and ``amx_emulated`` runs the same loops without AMX, slowly."""
    cache_dir: str = ""
    """FXQUANT_CACHE: folder for the demo's weights and photographs; empty: fxquant in the user's cache folder."""


def read_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the environment.

    Raises:
        SpecError: a variable has a value that it cannot have; the message names it and lists what it may be.
    """
    return Settings(
        debug=int(_choice(environ, "FXQUANT_DEBUG", ("0", "1", "2", "3"))),
        print_after=_names(environ.get("FXQUANT_PRINT_AFTER", "")),
        dump_dir=environ.get("FXQUANT_DUMP_DIR", ""),
        skip_passes=_names(environ.get("FXQUANT_SKIP_PASSES", "")),
        verify=_choice(environ, "FXQUANT_VERIFY", ("0", "1")) == "1",
        kernels=_choice(environ, "FXQUANT_KERNELS", get_args(Kernels)),  # type: ignore[arg-type]
        cpu_isa=_choice(environ, "FXQUANT_CPU_ISA", get_args(CpuIsa)),  # type: ignore[arg-type]
        cache_dir=environ.get("FXQUANT_CACHE", ""),
    )


@contextmanager
def debug_output(settings: Settings) -> Iterator[None]:
    """Let the log be seen for a while, if FXQUANT_DEBUG or FXQUANT_PRINT_AFTER asks for it.

    Level 3 shows DEBUG records too. The level is put back, and the handler, which is added only where the application
    has none of its own, is taken away at the end.
    """
    if not (settings.debug or settings.print_after):
        yield
        return
    handler = None if logger.hasHandlers() else logging.StreamHandler(sys.stderr)
    level = logger.level
    logger.setLevel(logging.DEBUG if settings.debug >= 3 else logging.INFO)
    if handler is not None:
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.setLevel(level)
        if handler is not None:
            logger.removeHandler(handler)


NOT_READ_HERE = ("FXQUANT_CUDA", "FXQUANT_SANITIZE", "FXQUANT_TORCH_TESTS")
"""Variables of the build, and of ``benchmarks/torch_suite.py``."""


VARIABLES = (
    *(f"FXQUANT_{name.upper()}" for name in Settings.__dataclass_fields__ if name != "cache_dir"),
    "FXQUANT_CACHE",
    *NOT_READ_HERE,
)
"""Names of all variables that something reads."""


def warn_of_unknown(environ: Mapping[str, str] = os.environ) -> None:
    """Warn of variables that look like ours and are not: most are misspelt."""
    for name in sorted(environ):
        if is_unknown(name):
            warn(
                "an environment variable that fxquant does not read",
                got=name,
                expected=", ".join(VARIABLES),
                hint=did_you_mean(name, VARIABLES),
            )


def is_unknown(name: str) -> bool:
    """Tell whether the name of an environment variable looks like one of ours, and is none."""
    return name.startswith("FXQUANT_") and name not in VARIABLES


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _choice(environ: Mapping[str, str], variable: str, allowed: tuple[str, ...]) -> str:
    value = environ.get(variable, "") or allowed[0]
    if value not in allowed:
        raise SpecError(
            f"the environment variable {variable} has an unknown value",
            got=repr(value),
            expected=", ".join(allowed),
            hint=did_you_mean(value, list(allowed)),
        )
    return value
