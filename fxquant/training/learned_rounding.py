"""``adaround``: rounding that is learned from data, for a model that was prepared and calibrated."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from typing import Any

from fxquant.errors import PlanError, UnknownNameError, listing
from fxquant.measure.parity import plan_of
from fxquant.quantizer.checks import check_seed, not_prepared
from fxquant.quantizer.quantizer import Quantizer, outside_inference_mode
from fxquant.registry import did_you_mean
from fxquant.training.bound_batches import bound_batches
from fxquant.training.checkpoint import open_checkpoint, run_identity
from fxquant.training.resumable_run import Memory
from fxquant.training.rounding_layers import RoundingSizes, only_modules, rounding_layers
from fxquant.training.rounding_steps import Learning
from fxquant.training.unit_block import unit_run
from fxquant.training.unit_table import Reconstruction

GRIDS = ("mse", "observed")


@outside_inference_mode
def adaround(
    prepared: Quantizer,
    data: Iterable[Any],
    *,
    num_batches: int | None = None,
    iterations: int = 1000,
    rows: int = 1024,
    learning_rate: float = 0.05,
    regularization: float = 0.01,
    beta: tuple[float, float] = (20.0, 2.0),
    warmup: float = 0.2,
    parts: int = 1,
    activations: bool = True,
    grids: RoundingSizes = "mse",
    memory: int = 1 << 30,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Quantizer:
    """Learn for each weight whether to round it up or down, so that layers give what they give in float.

    It is the case of :func:`reconstruct` in which each unit is a block, and its rounding is all that is learned, from
    single outputs. In the order of the graph, ``V`` is learned so that the unit, with its activation function, on what
    the quantized units before it give, comes close to what the float model has there. Labels are not needed.

    Args:
        prepared: What :func:`prepare` and :func:`calibrate` gave. It is not changed. Where its configuration has
            ``AdaRoundFakeQuantize``, a weight whose ``V`` has ``requires_grad=False`` stays as it is.
        data: As for :func:`calibrate`; the same data will do. A thousand small images are enough.
        num_batches: Stop after so many.
        iterations: Steps of Adam for each unit.
        rows: Outputs of the unit, of any images and at any places, that each step looks at.
        learning_rate: Of Adam.
        regularization: Weight of the term that drives ``h(V)`` to 0 or 1; lambda of eq. 21, where errors are counted in
            parts of that of rounding to nearest.
        beta: First and last exponent of that term, eq. 24; it falls along a cosine.
        warmup: Part of the steps without that term.
        parts: Each step adds up the gradients of so many parts of its rows. Inside of :func:`share_work` each part is
            computed in one rank; one process with as many parts gives the same bits.
        activations: Units read quantized activations, as they will; False: those of a model with rounded weights alone.
        grids: ``"mse"``: weights get the step sizes of least squared error; ``"observed"``: those of their observers.
            The scale of a ``FixedQParamsObserver`` stays.
        memory: Bytes that stored activations may take; what is more goes to temporary files.
        seed: Of what is drawn. The global random state is not touched.
        checkpoint: A folder, in which each finished unit is written down. A run that finds its own goes on there, and
            ends with the same bits.
        progress: Show a progress bar with the time that is left.

    Returns:
        A new Quantizer, to convert: its ``weight_layers`` hold what was learned, and ``reconstruction`` is a table of
        each unit's error before and after. Biases are not corrected any more: what was learned makes up for it.

    Raises:
        InputError: an argument or a batch is of the wrong kind, or the checkpoint is of another run.
        CalibrationError: ``prepared`` was not calibrated, or ``data`` holds no batch, or empty ones alone.
        PlanError: there is no weight to learn.
        RankError: inside of :func:`share_work`, another rank does not go on.

    Source:
        Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", arXiv:2004.10568, eq. 21-25.

    Example:
        >>> import torch, fxquant
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
        >>> data = [torch.randn(8, 4)]
        >>> prepared = fxquant.calibrate(fxquant.prepare(model, data[0]), data, progress=False)
        >>> learned = adaround(prepared, data, iterations=20, progress=False)
        >>> int8 = fxquant.convert(learned)
    """
    if not isinstance(prepared, Quantizer):
        raise not_prepared(prepared, "adaround")
    if grids not in GRIDS:
        raise UnknownNameError(
            "unknown choice of scales", got=repr(grids), expected=", ".join(GRIDS), hint=did_you_mean(str(grids), GRIDS)
        )
    check_seed(seed)
    learning = Learning(
        iterations=iterations,
        rows=rows,
        learning_rate=learning_rate,
        regularization=regularization,
        beta=beta,
        warmup=warmup,
        parts=parts,
    )
    # Find the layers to learn.
    learned = copy.deepcopy(prepared)
    learned.plan = learned.plan.without_means()
    learned.__dict__.pop("run_state", None)
    simulated = learned.convert(to="fake_quant")
    plan = plan_of(simulated)
    layers, left = rounding_layers(simulated, plan, dict(learned.weight_layers.items()), grids)
    if not layers:
        raise PlanError(
            "no weight can be learned",
            got=listing([f"{each.unit}: {each.reason}" for each in left]) or "no unit with a weight",
            hint="AdaRound needs linear layers or convolutions with symmetric weights",
        )
    # Learn, or go on where a checkpoint stands.
    inputs = bound_batches(prepared, data, num_batches)

    def identity() -> dict[str, str]:
        choices = f"{learning}, activations={activations}, grids={grids}, seed={seed}"
        return run_identity(choices, learned.graph_module, plan, layers, inputs)

    found = open_checkpoint("adaround", checkpoint, identity)
    with Memory(memory) as stored:
        run = unit_run(simulated, plan, layers, inputs, learning, activations, seed, stored, found)
        losses = run.run(progress)
    learned.weight_layers = only_modules({**dict(learned.weight_layers.items()), **layers})
    learned.reconstruction = Reconstruction(losses, tuple(left))
    return learned
