"""``low_bit_qconfig``: few bits everywhere, and more at both ends of a model, which ``prepare`` finds."""

from __future__ import annotations

from torch import nn

from fxquant.observers.defaults import float_qparams_weight_only_qconfig
from fxquant.observers.histogram import HistogramObserver
from fxquant.observers.mse import MSEObserver
from fxquant.plan.qconfig import QConfig, QConfigMapping
from fxquant.plan.spec import QScheme


class LowBitMapping(QConfigMapping):
    """Rules, and a configuration for the first and the last layer with a weight, whichever these are."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: QConfig | None = None
        """None: both are configured like all others."""


def low_bit_qconfig(weight_bits: int, activation_bits: int, *, ends: int | None = 8) -> QConfigMapping:
    """Return a mapping that quantizes everything to few bits, and both ends of the model to more.

    Weights are symmetric, with one scale for each output channel, that of least squared error (``MSEObserver``).
    Activations are affine, with one scale for each tensor (``HistogramObserver``). Biases are corrected. Tables of
    embeddings are as in ``get_default_qconfig_mapping``.

    The ends are the weights of the first and of the last layer, the result of the first one and the input of the last.
    :func:`prepare` finds these layers, and writes rules for them into ``prepared.config``. A rule that is added to the
    mapping, and names one of them, wins.

    Args:
        weight_bits: 2 to 16. On the CPU, up to 8. With 2 bits, weights are ternary: -1, 0 and 1 times their scale.
        activation_bits: The same.
        ends: Bits of weights and activations at the ends; None: the same bits as all others.

    Raises:
        SpecError: a number of bits is out of range.

    Source:
        Both ends keep 8 bits in Li et al., "BRECQ", arXiv:2102.05426, section 4, and in most that is published since.

    Example:
        >>> import torch, fxquant
        >>> model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3))).eval()
        >>> prepared = fxquant.prepare(model, torch.randn(2, 4), low_bit_qconfig(4, 4))
        >>> [prepared.config.resolve(name).qconfig.weight_scheme.bits for name in "012"]
        [8, 4, 8]
    """
    mapping = LowBitMapping()
    mapping.set_global(_qconfig(weight_bits, activation_bits))
    for table in (nn.Embedding, nn.EmbeddingBag):
        mapping.set_object_type(table, float_qparams_weight_only_qconfig)
    mapping.ends = None if ends is None else _qconfig(ends, ends)
    return mapping


def _qconfig(weight_bits: int, activation_bits: int) -> QConfig:
    activation = QScheme(bits=activation_bits, signed=isinstance(activation_bits, int) and activation_bits > 8)
    ternary = (-1, 1) if weight_bits == 2 else None  # a fourth value, on one side alone, would move the middle
    weight = QScheme(bits=weight_bits, symmetric=True, axis=0, limits=ternary)
    return QConfig(
        activation=HistogramObserver.with_args(scheme=activation),
        weight=MSEObserver.with_args(scheme=weight),
        correct_bias=True,
    )
