"""``reestimate_batch_norm``: the statistics of batch norms are those of the network as it is quantized."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.nn.modules.batchnorm import _BatchNorm

from fxquant.calibration.batches import batches
from fxquant.errors import CalibrationError, InputError, error_context, listing, warn
from fxquant.fake_quantize.base import FakeQuantizeBase, observer_in
from fxquant.graph.inputs import describe_value
from fxquant.graph.module import get_metadata
from fxquant.graph.query import called_module
from fxquant.nn.batch_norm import training_factor
from fxquant.nn.folding import along_outputs
from fxquant.quantizer.checks import named_by_stage, stage_of
from fxquant.quantizer.data import outside_inference_mode

SWITCHES = ("observer_enabled", "static_enabled")
"""Those by which fake-quantize modules choose qparams anew."""


@outside_inference_mode
def reestimate_batch_norm(
    qat: GraphModule, data: Iterable[Any], num_batches: int = 100, *, progress: bool = True
) -> GraphModule:
    """Give batch norms the means and variances of what they normalize in the quantized network, after training.

    While a model trains, running averages mix the statistics of many steps, and with few bits each step moves weights
    by whole quantized values: averages of the last ones are not those of the network that is left. Each batch of
    ``data`` counts alike. Batches are normalized by their own statistics, as in training, and dropouts are idle. The
    qparams of activations stay as they are. A weight that is quantized together with its batch norm keeps its integers,
    where it has scales for each output channel; else its scale is that of its new range, as are scales that are powers
    of two.

    Args:
        qat: What :func:`prepare_qat` gave, trained. It is changed in place, once all batches have run; its modes and
            switches are as before.
        data: As for :func:`calibrate`; a hundred batches of the training data, of the size of training.
        num_batches: Stop after so many.
        progress: Show a progress bar.

    Returns:
        The same module.

    Raises:
        InputError: ``qat`` is nothing that trains, or has no batch norm with running statistics, or a batch does not
            fit; or holds a single value for each channel.
        CalibrationError: ``data`` holds no batch, or a batch norm gets values that are not finite. Nothing is changed.

    Source:
        Nagel et al., "Overcoming Oscillations in Quantization-Aware Training", arXiv:2203.11086, section 3.2.

    Example:
        >>> import torch, fxquant
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
        >>> data = [torch.randn(4, 3, 8, 8)]
        >>> qat = fxquant.prepare_qat(model, data[0])
        >>> y = qat(data[0])
        >>> reestimate_batch_norm(qat, data, progress=False) is qat
        True
    """
    if stage_of(qat) != "training":
        raise InputError(
            "reestimate_batch_norm takes what prepare_qat gave",
            got=named_by_stage(qat),
            expected="the GraphModule of prepare_qat, before convert",
            hint="a model that is not trained keeps its statistics: correct_statistics corrects what quantization adds",
        )
    norms = {name: norm for name, norm in qat.named_modules() if _has_statistics(norm)}
    if not norms:
        raise InputError(
            "the model has no batch norm with running statistics",
            got=type(qat).__name__,
            expected="batch norms with track_running_stats=True, which convert folds or keeps",
        )
    found = {name: _Averages() for name in norms}
    preparation: Any = get_metadata(qat, "preparation")
    example = preparation.example_args if preparation.has_example else None
    with _normalizing_by_batch(qat, norms, found), torch.no_grad():
        read = batches(data, example, qat, num_batches=num_batches, progress=progress)
        for index, (args, kwargs) in enumerate(read):
            with error_context(f"batch {index}"):
                qat(*args, **kwargs)
    _check(found)
    with torch.no_grad():
        factors = _factors(qat)
        for name, norm in norms.items():
            found[name].put_into(norm)
        _follow(qat, factors)
    return qat


def _has_statistics(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and module.running_mean is not None and module.running_var is not None


@dataclass(slots=True)
class _Averages:
    """Means over batches, float64 [C]."""

    mean: Tensor | None = None
    variance: Tensor | None = None
    count: int = 0

    def add(self, x: Tensor) -> None:
        """Take what a batch norm normalizes into account: [N, C] or [N, C, ...]."""
        values = x.detach().transpose(0, 1).flatten(1).double()
        if values.shape[1] < 2:
            raise InputError(
                "a batch norm cannot normalize a single value of each channel",
                got=describe_value(x),
                expected="batches of two samples and more",
            )
        mean, variance = values.mean(1), values.var(1)
        self.count += 1
        self.mean = mean if self.mean is None else self.mean + (mean - self.mean) / self.count
        self.variance = variance if self.variance is None else self.variance + (variance - self.variance) / self.count

    def put_into(self, norm: Any) -> None:
        """Set the running statistics; of a batch norm that no batch has reached, they stay."""
        if self.mean is not None and self.variance is not None:
            norm.running_mean.copy_(self.mean)
            norm.running_var.copy_(self.variance)


def _check(found: Mapping[str, _Averages]) -> None:
    """Refuse statistics that are not finite, and warn of batch norms that no batch has reached."""
    broken = [name for name, each in found.items() if each.count and not _finite(each)]
    if broken:
        raise CalibrationError(
            "batch norms get values that are not finite: their statistics stay as they are",
            got=listing(broken),
            hint="look at the data, and at the layers before the first of them",
        )
    if missed := [name for name, each in found.items() if not each.count]:
        warn("batch norms that no batch has reached keep their statistics", got=listing(missed))


def _finite(averages: _Averages) -> bool:
    both = [each for each in (averages.mean, averages.variance) if each is not None]
    return all(bool(each.isfinite().all()) for each in both)


@contextmanager
def _normalizing_by_batch(qat: GraphModule, norms: Mapping[str, Any], found: Mapping[str, _Averages]) -> Iterator[None]:
    """Let batch norms normalize by each batch and show it, and keep all else as it is; afterwards all is as before.

    Running statistics do not move on the way: weights are quantized by them.
    """
    modes = [(module, module.training) for module in qat.modules()]
    momenta = [(norm, norm.momentum) for norm in norms.values()]
    buffers = [(buffer, buffer.clone()) for buffer in qat.buffers()]
    switches = [
        (module, name, module.is_on(name))
        for module in qat.modules()
        if isinstance(module, FakeQuantizeBase)
        for name in SWITCHES
        if name in module._buffers
    ]
    hooks = [
        norm.register_forward_pre_hook(lambda _, args, name=name: found[name].add(args[0]))
        for name, norm in norms.items()
    ]
    try:
        for module, _ in modes:  # past train(), which frozen batch norms do not follow
            module.training = False
        for norm, _ in momenta:
            norm.training, norm.momentum = True, 0.0
        for module, name, _ in switches:
            module.set_switch(name, False)
        yield
    finally:
        for hook in hooks:
            hook.remove()
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        for module, name, on in switches:
            module.set_switch(name, on)
        for norm, momentum in momenta:
            norm.momentum = momentum
        for module, mode in modes:
            module.training = mode


def _factors(qat: GraphModule) -> dict[Node, Tensor]:
    """Return what weights are multiplied by before they are quantized, [C_out], by the calls of their layers."""
    found: dict[Node, Tensor] = {}
    for node in qat.graph.nodes:
        factor = node.kwargs.get("factor")
        if isinstance(factor, Node) and node.op == "call_module":
            gamma, running_var, eps = factor.args
            values = [None if each is None else _value(qat, each) for each in (gamma, running_var)]
            assert values[1] is not None
            found[node] = training_factor(values[0], values[1], float(eps))  # type: ignore[arg-type]
    return found


def _value(qat: GraphModule, node: Any) -> Tensor:
    path, _, name = str(node.target).rpartition(".")
    found: Tensor = getattr(qat.get_submodule(path), name)
    return found


def _follow(qat: GraphModule, before: Mapping[Node, Tensor]) -> None:
    """Let the qparams of weights follow their factors: the same integers, or those of the new range."""
    for node, after in _factors(qat).items():
        layer: Any = called_module(node)
        fake_quant = layer.weight_fake_quant
        scale, axis = getattr(fake_quant, "scale", None), fake_quant.scheme.axis
        ratio, observer = (after / before[node]).abs(), observer_in(fake_quant)
        own = axis is not None and axis % layer.weight.dim() == layer.output_axis
        resets, powers = hasattr(observer, "reset_min_max_vals"), fake_quant.scheme.power_of_two
        own = own and not (powers and resets)  # a factor would make another number of a power of two
        if isinstance(scale, Tensor) and own and scale.shape[0] == len(ratio):
            ratio = ratio.log2().round().exp2() if powers else ratio
            for each in (scale, getattr(observer, "min_val", None), getattr(observer, "max_val", None)):
                if isinstance(each, Tensor) and each.shape[:1] == ratio.shape:
                    each.data.mul_(ratio.reshape(-1, *[1] * (each.dim() - 1)).to(each))
        elif resets:
            observer.reset_min_max_vals()
            observer(layer.weight * along_outputs(after, layer, layer.output_axis).to(layer.weight.dtype))
            fake_quant.choose_grid()
