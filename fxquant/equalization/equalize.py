"""``equalize``: channels are scaled between layers, so that all of them use the quantization range."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

from fxquant.calibration.batches import batches
from fxquant.equalization.choices import METHODS
from fxquant.equalization.regions import NO_SHAPES
from fxquant.equalization.scaled_copy import Batch, scaled_copy
from fxquant.equalization.search import PASSES_OVER_DATA, Options, Search
from fxquant.equalization.table import Equalization
from fxquant.errors import InputError, UnknownNameError, warn
from fxquant.graph.inputs import bind
from fxquant.passes.instruments import log_table
from fxquant.plan.spec import is_number
from fxquant.quantizer.learned import refuse_learned
from fxquant.quantizer.quantizer import Quantizer, outside_inference_mode


@outside_inference_mode
def equalize(
    prepared: Quantizer,
    data: Iterable[Any] | None = None,
    *,
    method: str = "auto",
    num_batches: int | None = None,
    iterations: int = 20,
    headroom: float = 1.0,
    keep_if: float = 0.02,
    progress: bool = True,
) -> Quantizer:
    """Scale channels between layers, so that the weights on both sides have the same ranges, channel by channel.

    A channel is divided by a factor where it is made, and the weights that read it are multiplied by the same factor:
    the model computes the same. Where all weights of a layer share one scale, channels of small weights lose nothing to
    those of large ones any more. ReLU6, hardtanh and clamps stay as they are: a channel that reaches a bound in
    ``data`` keeps its scale, and no other channel comes to one.

    In a transformer, a norm that both layers and the stream read gets a second one, for the layers: what they read is
    scaled, and the stream is as it was. The values that attention adds up are scaled, too, and head by head queries are
    divided by factors that the keys are multiplied by.

    Args:
        prepared: What :func:`prepare` gave. It is not changed. Observations that it has are not taken over.
        data: As for :func:`calibrate`; the same data will do. It tells how near values come to the bounds of clamps,
            and whether the noise falls. None: layers with such a clamp between them are left as they are, and nothing
            is checked.
        method: ``"weights"``: the ranges of the weights decide. ``"smooth"``: the ranges of the values, which share one
            scale, against those of the weights that read them; it needs ``data``. ``"auto"``: weights, where they have
            one scale for each tensor; values, where weights have one for each channel or a norm makes the values.
            Queries and keys are scaled by their ranges on ``data``, but for ``"weights"``.
        num_batches: Stop after so many.
        iterations: Rounds over all layers, at most; factors that move by less than 1 % end it.
        headroom: How many times the largest value before a clamp that was seen must lie within the bound.
        keep_if: Part by which the noise of what the reading layers give must fall, weights and values rounded. Layers
            where it does not are left as they are.
        progress: Show a progress bar.

    Returns:
        A new Quantizer, to calibrate: its ``equalization`` is a table of what was scaled, with the noise before and
        after, and why the rest was not.

    Raises:
        InputError: an argument or a batch is of the wrong kind, or ``prepared`` was trained, or holds what
            was learned for its weights as they are: roundings, biases or scales; the message names them.
        CalibrationError: ``data`` holds no batch, or a weight is not finite; the message names it.
        UnknownNameError: there is no such method.

    Source:
        Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", arXiv:1906.04721,
        section 4.1; Xiao et al., "SmoothQuant", arXiv:2211.10438, eq. 4. Clamps with factors that stay below their
        bounds, and the check of the noise, are ours.

    Example:
        >>> import torch, fxquant
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)).eval()
        >>> weight = fxquant.MinMaxObserver.with_args(dtype=torch.int8, qscheme="per_tensor_symmetric")
        >>> qconfig = fxquant.QConfig(activation=fxquant.MinMaxObserver, weight=weight)
        >>> prepared = equalize(fxquant.prepare(model, torch.randn(2, 4), qconfig))
        >>> prepared.equalization.scaled
        3
    """
    # Check the arguments, and read the data.
    options = _checked(prepared, method, iterations, headroom, keep_if)
    gm = prepared.graph_module
    if data is None and method == "smooth":
        raise InputError("values are smoothed by what data shows of them", got="method='smooth', data=None")
    found = None if data is None else _read(prepared, data, num_batches)
    if int(prepared.calibration_statistics.history.batches):
        warn(
            "what was observed before equalize does not count any more: it is of weights that are scaled now",
            got=f"{int(prepared.calibration_statistics.history.batches)} batches",
            hint="calibrate what equalize gives; prepare, equalize, calibrate is the usual order",
        )
    # Without an example the shapes are unknown: nothing is scaled.
    if not prepared.has_example:
        scaled = scaled_copy(prepared, ())
        scaled.equalization = Equalization((), NO_SHAPES)
        return scaled
    # Search for factors, and scale a copy by them.
    inputs = [bind(gm, *batch, f"calibration batch {index}") for index, batch in enumerate(found or ())]
    total = PASSES_OVER_DATA * len(inputs)
    with tqdm(total=total, desc="equalize", unit="batch", disable=not progress or not total) as bar:
        search = Search(prepared, found, inputs, options, bar.update)
        search.run()
        bar.update(total - bar.n)
    scaled = scaled_copy(prepared, search.used(), search.used_splits())
    scaled.equalization = Equalization(search.rows(), "" if search.used() else "nothing was scaled")
    log_table(scaled.equalization)
    return scaled


def _checked(prepared: Quantizer, method: str, iterations: int, headroom: float, keep_if: float) -> Options:
    """Refuse arguments that make no sense."""
    refuse_learned(
        prepared,
        "equalize",
        takes=("prepare",),
        fits="weights that are not scaled",
        hint="prepare the model again, equalize first, and calibrate, learn roundings or apply qparams afterwards",
    )
    if method not in METHODS:
        raise UnknownNameError("unknown method of equalization", got=repr(method), expected=", ".join(METHODS))
    if not isinstance(iterations, int) or isinstance(iterations, bool) or iterations < 1:
        raise InputError("iterations is no number of rounds", got=repr(iterations), expected="1 or more")
    if not is_number(headroom) or not 1 <= headroom <= 100:
        raise InputError("headroom is out of range", got=repr(headroom), expected="a number from 1 to 100")
    if not is_number(keep_if) or not 0 <= keep_if < 1:
        raise InputError("keep_if is no part of the noise", got=repr(keep_if), expected="a number in [0, 1)")
    return Options(method=method, iterations=iterations, headroom=headroom, keep_if=keep_if)


def _read(prepared: Quantizer, data: Iterable[Any], num_batches: int | None) -> list[Batch]:
    example = prepared.example_args if prepared.has_example else None
    return list(batches(data, example, prepared.graph_module, num_batches=num_batches, progress=False))
