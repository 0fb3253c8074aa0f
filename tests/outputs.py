"""A configuration for tests of single operators: what the model returns is on a grid, too."""

from __future__ import annotations

from dataclasses import replace

import fxquant as fxq
from fxquant.observers.defaults import default_output_observer


def rounding_outputs(qconfig: fxq.QConfig | None = None) -> fxq.QConfigMapping | fxq.QConfig:
    """A configuration, by default the default one, with ``output``: else what only the model returns stays float."""
    if qconfig is not None:
        return replace(qconfig, output=qconfig.activation)
    default = replace(fxq.get_default_qconfig(), output=default_output_observer)
    return fxq.get_default_qconfig_mapping().set_global(default)
