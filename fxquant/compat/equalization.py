"""Equalization configurations of ``prepare_fx``: they say for which layers ``fxquant.equalize`` may scale channels."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from fxquant.compat.configuration import original_qconfig
from fxquant.compat.not_offered import refuse_observers
from fxquant.compat.observer import PerChannelMinMaxObserver
from fxquant.equalization.regions import NO_SHAPES
from fxquant.equalization.scaled_copy import scaled_copy
from fxquant.equalization.search import Options, Search
from fxquant.equalization.table import Equalization
from fxquant.errors import warn
from fxquant.graph.inputs import bind
from fxquant.quantizer.quantizer import Quantizer

_OPTIONS = Options(method="auto", iterations=20, headroom=100.0, keep_if=0.02)
"""What ``equalize`` takes by default, but for the headroom: the example inputs are one batch, and other data may come
nearer to the bounds of clamps."""


class EqualizationQConfig(namedtuple("EqualizationQConfig", ["input_activation", "weight"])):
    """Constructors of observers of the columns of inputs and of weights, as torch.ao has it.

    That a layer has one says that its inputs may be scaled, channel by channel. The ranges are measured by
    ``fxquant.equalize``, and not by these observers.
    """

    __slots__ = ()

    def __new__(cls, input_activation: Any = nn.Identity, weight: Any = nn.Identity) -> EqualizationQConfig:
        """Make one.

        Raises:
            ValueError: an observer was given, and no constructor of one.
        """
        refuse_observers("EqualizationQConfig", input_activation, weight)
        return super().__new__(cls, input_activation, weight)


input_equalization_observer = PerChannelMinMaxObserver.with_args(
    ch_axis=1, dtype=torch.quint8, qscheme=torch.per_channel_symmetric
)
weight_equalization_observer = PerChannelMinMaxObserver.with_args(
    ch_axis=1, dtype=torch.qint8, qscheme=torch.per_channel_symmetric
)
default_equalization_qconfig = EqualizationQConfig(
    input_activation=input_equalization_observer, weight=weight_equalization_observer
)


def asks_for_equalization(rules: Mapping[str, Any]) -> bool:
    """Tell whether the dict form of an equalization mapping has a rule that is not None."""
    listed = (rule[-1] for kind, found in rules.items() if kind for rule in found)
    return any(_is_meant(qconfig) for qconfig in (rules.get(""), *listed))


def equalized(quantizer: Quantizer, rules: Mapping[str, Any]) -> Quantizer:
    """Return a Quantizer in which channels are scaled where every layer that reads them has an equalization QConfig.

    Args:
        quantizer: It has observed nothing. It is not changed.
        rules: The dict form of the mapping of equalization QConfigs.

    Returns:
        One that has observed nothing either; its ``equalization`` is the table of what was scaled.
    """
    gm = quantizer.graph_module
    if not quantizer.has_example:
        warn("nothing was equalized", got=NO_SHAPES, hint="prepare_fx(..., example_inputs) of a size that runs")
        return quantizer
    batch = (quantizer.example_args, dict(quantizer.example_kwargs))
    search = Search(quantizer, [batch], [bind(gm, *batch, "the example inputs")], _OPTIONS, lambda: None)
    search.run()
    for number, region in enumerate(search.regions):
        kinds = {end.path: type(gm.get_submodule(end.path)) for end in region.sinks}
        if not all(_is_meant(original_qconfig(rules, path, kind)) for path, kind in kinds.items()):
            search.factors.pop(number, None)
            search.outcomes[number] = "the equalization configuration leaves it as it is"
    scaled = scaled_copy(quantizer, search.used(), search.used_splits())
    scaled.equalization = Equalization(search.rows(), "" if search.used() else "nothing was scaled")
    return scaled


def _is_meant(qconfig: Any) -> bool:
    """Tell whether a rule asks for equalization: ``nn.Identity`` in the place of an observer does not."""
    return qconfig is not None and nn.Identity not in (
        getattr(qconfig, "input_activation", None),
        getattr(qconfig, "weight", None),
    )


__all__ = [
    "EqualizationQConfig",
    "default_equalization_qconfig",
    "input_equalization_observer",
    "weight_equalization_observer",
]
