"""``reconstruct``: blocks that learn roundings, biases and scales of activations from data."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Sequence
from typing import Any

from fxquant.errors import PlanError, listing
from fxquant.fake_quantize.adaround import set_learned_bias
from fxquant.quantizer.checks import check_seed, not_prepared
from fxquant.quantizer.quantizer import Quantizer, outside_inference_mode
from fxquant.training.block_learning import BlockLearning
from fxquant.training.block_run import BlockRun
from fxquant.training.block_table import LearnedBlocks
from fxquant.training.bound_batches import bound_batches
from fxquant.training.checkpoint import open_checkpoint, run_identity
from fxquant.training.learnable_blocks import LearnableBlocks, learnable_blocks
from fxquant.training.resumable_run import Memory
from fxquant.training.rounding_layers import only_modules


@outside_inference_mode
def reconstruct(
    prepared: Quantizer,
    data: Iterable[Any],
    *,
    blocks: str | Sequence[str] = "auto",
    iterations: int = 1000,
    drop: float | str = "auto",
    steps: bool | str = "auto",
    batch: int = 16,
    learning_rate: float | None = None,
    step_rate: float | None = None,
    bias_rate: float = 0.003,
    parts: int = 1,
    num_batches: int | None = None,
    memory: int = 1 << 30,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Quantizer:
    """Learn roundings, biases and scales of activations, block by block, so that blocks give what they give in float.

    A block is what lies between two values through which everything goes, such as a residual block. Each is learned on
    what the quantized blocks before it give. Layers of a block can make up for one another, and biases and scales for
    what rounding activations does: with activations of 4 bits that is most of the error. Labels are not needed.

    Weights of 8 bits or more stay as they are. A block whose error does not fall stays as it was.

    Args:
        prepared: What :func:`prepare` and :func:`calibrate` gave. It is not changed.
        data: As for :func:`calibrate`; the same data will do. A hundred images are a beginning, a thousand are better.
        blocks: ``"auto"``; ``"unit"``: each layer by itself; or the paths of modules, each of which is one block: then
            layers elsewhere are not learned.
        iterations: Steps of Adam for each block.
        drop: Probability with which an activation is not rounded in a step. ``"auto"``: 0.5 in blocks with activations
            of fewer than 8 bits, else 0.
        steps: Whether scales of activations are learned. ``"auto"``: those of fewer than 8 bits. Powers
            of two stay as they are.
        batch: Items of the data in each step.
        learning_rate: Of roundings. None: 14 / iterations, but 0.03 at least and 0.3 at most.
        step_rate: Of the logarithms of scales; it falls along a cosine. None: 1.5 / iterations, between 0.001 and 0.02.
        bias_rate: Of biases, in standard deviations of what their layer gives; it falls likewise.
        parts: Each step adds up the gradients of so many parts of its items. Inside of :func:`share_work` each part is
            computed in one rank; one process with as many parts gives the same bits.
        num_batches: Stop after so many.
        memory: Bytes that stored activations may take; what is more goes to temporary files.
        seed: Of what is drawn. The global random state is not touched.
        checkpoint: A folder, in which each finished block is written down. A run that finds its own goes on there, and
            ends with the same bits.
        progress: Show a progress bar with the time that is left.

    Returns:
        A new Quantizer, to convert: its ``weight_layers`` hold roundings and biases, its ``learned_qparams`` the scales
        of activations, and ``reconstruction`` is a table of each block's error before and after.

    Raises:
        InputError: an argument or a batch is of the wrong kind; blocks that were named overlap, or have several inputs
            or outputs; or the checkpoint is of another run.
        CalibrationError: ``prepared`` was not calibrated, or ``data`` holds no batch, or empty ones alone.
        PlanError: there is nothing to learn.
        UnknownNameError: no weight lies below a module of that name.
        RankError: inside of :func:`share_work`, another rank does not go on.

    Source:
        Li et al., "BRECQ", arXiv:2102.05426, algorithm 1, without weights of errors; Wei et al., "QDrop",
        arXiv:2203.05740, eq. 8; Esser et al., "Learned Step Size Quantization", arXiv:1902.08153, eq. 3. Learned biases
        and the choice of blocks are ours.

    Example:
        >>> import torch, fxquant
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
        >>> data = [torch.randn(32, 4)]
        >>> prepared = fxquant.prepare(model, data[0], fxquant.low_bit_qconfig(3, 4, ends=None))
        >>> prepared = fxquant.calibrate(prepared, data, progress=False)
        >>> learned = reconstruct(prepared, data, iterations=20, progress=False)
        >>> int8 = fxquant.convert(learned)
    """
    # Refuse what cannot be done.
    if not isinstance(prepared, Quantizer):
        raise not_prepared(prepared, "reconstruct")
    check_seed(seed)
    learning = BlockLearning(
        iterations=iterations,
        drop=drop,
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
        step_rate=step_rate,
        bias_rate=bias_rate,
        parts=parts,
    )
    # Simulate the model as it would be converted, and find what can be learned of each block.
    learned = copy.deepcopy(prepared)
    learned.__dict__.pop("run_state", None)
    simulated = learned.convert(to="fake_quant")
    found = learnable_blocks(simulated, dict(learned.weight_layers.items()), blocks, learning)
    if not found.blocks:
        raise PlanError(
            "nothing can be learned",
            got=listing([f"{each.unit}: {each.reason}" for each in found.left]) or "no unit with a weight",
            hint="it needs linear layers or convolutions with symmetric weights, or activations, of fewer than 8 bits",
        )
    inputs = bound_batches(prepared, data, num_batches)

    def identity() -> dict[str, str]:
        choices = f"reconstruct, {learning}, blocks={blocks}, seed={seed}"
        return run_identity(choices, learned.graph_module, found.plan, found.layers, inputs)

    folder = open_checkpoint("reconstruct", checkpoint, identity)
    # Learn one block after the other.
    simulated.requires_grad_(False)
    with Memory(memory) as stored:
        run = BlockRun(simulated, found.order, found.blocks, inputs, iterations, seed, stored, folder)
        learned.reconstruction = LearnedBlocks(run.run(progress), tuple(found.left))
    _take_over(learned, found)
    return learned


def _take_over(learned: Quantizer, found: LearnableBlocks) -> None:
    """Let ``convert`` take what was learned, where the error has fallen."""
    layers: dict[str, Any] = {}
    for each in found.blocks:
        for part in () if each.unchanged else each.parts.layers.values():
            layers[part.root] = found.layers[part.root]
            if part.bias is not None:
                set_learned_bias(layers[part.root], part.bias)
    learned.weight_layers = only_modules({**dict(learned.weight_layers.items()), **layers})
    learned.plan = learned.plan.without_means(layers)
    if learned.trained is None:
        learned.learned_qparams = {**learned.learned_qparams, **found.qparams(learned.plan)}
    else:
        learned.trained = {**learned.trained, **found.qparams(learned.plan)}
