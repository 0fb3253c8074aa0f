"""Makes the modules of this package known to torch.ao, where a program has imported it."""

from __future__ import annotations

import sys
from abc import ABCMeta
from typing import Any

from fxquant.compat import fake_quantize, observer


def take_torch_switches() -> None:
    """Let torch.ao know the modules of this package as its own, where it was imported.

    Then its ``disable_observer`` and the like reach them, and so does ``isinstance(module, MinMaxObserver)``.
    """
    for name, ours in (("fake_quantize", fake_quantize), ("observer", observer)):
        theirs: Any = sys.modules.get(f"torch.ao.quantization.{name}")
        for kind in vars(ours).values() if theirs is not None else ():
            known = getattr(theirs, kind.__name__, None) if isinstance(kind, type) else None
            if isinstance(known, ABCMeta) and not issubclass(kind, known):
                known.register(kind)
