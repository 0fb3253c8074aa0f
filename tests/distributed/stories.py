"""One of two ranks that share work: ``python stories.py RANK FOLDER STORY...``; see ``test_share_work``."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import fxquant as fxq
from fxquant.distributed import sharing
from fxquant.distributed.ranks import Ranks
from fxquant.distributed.shared_sums import shared_sum
from fxquant.errors import InputError
from fxquant.quantizer.calibrate_in_ranks import calibrate_in_ranks

WORLD = 2


class Net(nn.Module):
    """Has a batch norm, a join of two values, and two layers whose channels are watched."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.other = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(3, 8, 3)
        self.fc = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat((self.bn(self.conv(x)).relu(), self.other(x) * 3), 1)
        return self.fc(x.mean((2, 3)))


def network() -> nn.Module:
    torch.manual_seed(0)
    net = Net().eval()
    net.conv.weight.data[1] = 0  # a channel that is dead
    net.conv.bias.data[1] = 0
    return net


def images(count: int, size: int = 4) -> list[Tensor]:
    """Batches, ever wider, with some values that are not finite."""
    found = []
    for index in range(count):
        generator = torch.Generator().manual_seed(index)
        found.append(torch.randn(size, 3, 8, 8, generator=generator) * (1 + index % 7))
    if count > 3:
        found[3][0, 0, 0, 0] = torch.nan
        found[2] = found[2][:1]
    return found


OBSERVERS: dict[str, Any] = {
    "minmax": fxq.MinMaxObserver,
    "moving_average": fxq.MovingAverageMinMaxObserver.with_args(averaging_constant=0.3),
    "histogram": fxq.HistogramObserver,
    "percentile": fxq.PercentileObserver.with_args(percentile=99.0),
    "mse": fxq.MSEObserver,
    "entropy": fxq.EntropyObserver,
    "fixed": fxq.FixedQParamsObserver.with_args(scale=0.1, zero_point=3),
}
CHANNELS: dict[str, Any] = {
    "minmax of channels": fxq.PerChannelMinMaxObserver.with_args(ch_axis=1),
    "moving average of channels": fxq.MovingAveragePerChannelMinMaxObserver.with_args(ch_axis=1),
    "histograms of channels": fxq.HistogramObserver.with_args(ch_axis=1),
}
"""What no back end takes for activations: shown values alone."""

WEIGHT = fxq.MinMaxObserver.with_args(dtype=torch.int8, qscheme="per_tensor_symmetric")


def prepared(name: str) -> fxq.Quantizer:
    qconfig = fxq.QConfig(activation=OBSERVERS[name], weight=WEIGHT, correct_bias=True)
    return fxq.prepare(network(), images(1)[0], qconfig)


def prepared_by_default() -> fxq.Quantizer:
    return fxq.prepare(network(), images(1)[0])


def calibrated(name: str, batches: Any) -> dict[str, Tensor]:
    made = fxq.calibrate(prepared(name), batches, progress=False)
    return {key: value.clone() for key, value in made.state_dict().items()}


def observers(rank: int) -> dict[str, Any]:
    """Calibrations with each observer on uneven shares; and on one batch, where the second rank has none."""
    found: dict[str, Any] = {}
    for name in OBSERVERS:
        found[name] = calibrated(name, images(5))
    found["one batch"] = calibrated("histogram", images(1))
    found["many batches"] = calibrated("histogram", (each for each in images(19)))
    loader = DataLoader(TensorDataset(torch.cat(images(3))), batch_size=3)
    found["loader"] = calibrated("moving_average", loader)
    twice = fxq.calibrate(prepared("histogram"), images(3), progress=False)
    found["twice"] = dict(fxq.calibrate(twice, images(4), progress=False).state_dict())
    return found


def correct(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(1) == target).float().mean()


def sensitivities(rank: int) -> dict[str, Any]:
    """The cost of each unit, by noise and by a metric of the user's."""
    made, batches = prepared("histogram"), images(5)
    fxq.calibrate(made, batches, progress=False)
    labelled = [(each, torch.arange(len(each)) % 4) for each in batches]
    noise = fxq.sensitivity(made, batches, progress=False)
    metric = fxq.sensitivity(made, labelled, metric=correct, against="target", progress=False)
    return {"noise": numbers(noise), "metric": numbers(metric)}


def numbers(found: fxq.Sensitivity) -> list[Any]:
    rows = [(row.unit, row.value, row.cost, row.batches) for row in found.rows]
    return [found.float_value, found.quantized_value, found.batches, *rows]


class Two(nn.Module):
    """Gives two values."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(x), x.mean((1, 2))


def comparisons(rank: int) -> dict[str, Any]:
    batches = [each.nan_to_num() for each in images(5)]
    made = fxq.calibrate(fxq.prepare(Two().eval(), batches[0]), batches, progress=False)
    found = fxq.compare(made, fxq.convert(made), iter(batches), progress=False)
    rows = [(row.name, str(row.isolated), str(row.accumulated), str(row.cause), row.overrun) for row in found.rows]
    return {"rows": rows, "output": str(found.output), "batches": found.batches}


def searches(rank: int) -> dict[str, Any]:
    batches = [each.nan_to_num() for each in images(3)]
    labelled = [(each, torch.arange(len(each)) % 4) for each in batches]
    made = fxq.calibrate(prepared_by_default(), batches, progress=False)
    found = {}
    folder = Path(sys.argv[2]) / "search" if distributed.is_initialized() else None
    for estimate in ("alone", "gradient"):
        table = fxq.search_precision(
            made,
            batches,
            budget=fxq.Budget(size=0.7),
            candidates=("W4A8", "W8A8"),
            estimate=estimate,
            progress=False,
            checkpoint=folder and folder / estimate,
        )
        found[estimate] = [str(table), [str(point) for point in table.pareto]]
    table = fxq.search_precision(
        made, labelled, max_drop=0.2, metric=correct, against="target", candidates=("W4A8", "W8A8"), progress=False
    )
    return {**found, "drop": str(table)}


def reconstructions(rank: int) -> dict[str, Any]:
    """Steps of two and of three parts; of three, one rank computes two. What is not rounded in a step is drawn."""
    batches = [each.nan_to_num() for each in images(3)]
    start = fxq.prepare(network(), batches[0], fxq.low_bit_qconfig(3, 4, ends=None))
    fxq.calibrate(start, batches, progress=False)
    found = {}
    for parts in (2, 3):
        made = fxq.reconstruct(start, batches, iterations=4, batch=7, parts=parts, progress=False)
        found[parts] = [{key: value.clone() for key, value in made.state_dict().items()}, str(made.reconstruction)]
        made = fxq.adaround(start, batches, iterations=4, rows=50, parts=parts, progress=False)
        found[-parts] = [{key: value.clone() for key, value in made.state_dict().items()}, str(made.reconstruction)]
    return found


def qat_of(name: str) -> nn.Module:
    """Prepare a model, and measure with both processes. Observers are off: each batch would move those of its rank."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)
    qat = fxq.prepare_qat(nn.Sequential(*layers).train(), images(1)[0], fxq.get_lsq_qconfig(4, 4) if name else None)
    qat(images(1)[0])
    fxq.synchronize_observers(qat)
    return qat.apply(fxq.enable_param_learning if name else fxq.disable_observer)


def sharded(qat: nn.Module, mesh: Any, **more: Any) -> nn.Module:
    """FSDP2, each layer with a weight by itself; batch norms, which the weights of others read, go with the whole."""
    for module in qat.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            fully_shard(module, mesh=mesh, **more)
    return fully_shard(qat, mesh=mesh)


def in_parallel(qat: nn.Module) -> nn.Module:
    return DistributedDataParallel(qat, broadcast_buffers=False)  # FSDP does not hand on statistics of batch norms


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)


def steps(
    model: Any, rank: int, optimizer: torch.optim.Optimizer, *, parts: int = 1, again: bool = False
) -> list[float]:
    """Three steps, each of one or more batches; ``again``: activations are computed again in the backward pass."""
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        for part in range(parts):
            x = images(12)[4 + rank + 2 * step + part].nan_to_num() / 4
            last = part + 1 == parts
            wait = model.no_sync() if hasattr(model, "no_sync") and not last else contextlib.nullcontext()
            if hasattr(model, "set_requires_gradient_sync"):
                model.set_requires_gradient_sync(last)
            with wait:
                y = checkpoint(model, x, use_reentrant=False) if again else model(x)
                loss = y.float().square().mean()
                loss.backward()
            losses.append(loss.item())
        optimizer.step()
    return losses


def training(rank: int) -> dict[str, Any]:
    return trained_together(rank, "")


def learning(rank: int) -> dict[str, Any]:
    """As ``training``, with learned steps."""
    return trained_together(rank, "learned")


def trained_together(rank: int, name: str) -> dict[str, Any]:
    """DDP and FSDP2, and what a checkpoint of two ranks holds."""
    mesh, folder = init_device_mesh("cpu", (WORLD,)), Path(sys.argv[2])
    rows: dict[str, Any] = {}
    for parts in (1, 2):
        for form, made in (("ddp", in_parallel(qat_of(name))), ("fsdp", sharded(qat_of(name), mesh))):
            optimizer = optimizer_of(made)
            rows[f"{form} {parts}"] = steps(made, rank, optimizer, parts=parts)
    model_state, optimizer_state = get_state_dict(made, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder / f"qat{name}")
    full = StateDictOptions(full_state_dict=True)
    rows["state"] = get_model_state_dict(made, options=full)
    rows["momentum"] = get_optimizer_state_dict(made, optimizer, options=full)["state"]
    try:
        fxq.convert(made)
    except fxq.FxQuantError as error:
        rows["convert"] = str(error)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mixed = sharded(qat_of(name), mesh, mp_policy=policy)
    rows["mixed"] = steps(mixed, rank, optimizer_of(mixed))
    for form, made in (("ddp", in_parallel(qat_of(name))), ("fsdp", sharded(qat_of(name), mesh))):
        rows[f"{form} again"] = steps(made, rank, optimizer_of(made), again=True)
    return rows


SHARED = ("observers", "sensitivities", "comparisons", "searches")
"""Stories that give the same in one process; so does ``reconstructions``."""


def refused(call: Callable[[], Any], **share: Any) -> str:
    """Return the error of a call that ranks share."""
    try:
        with fxq.share_work(timeout=share.pop("timeout", 60), **share):
            call()
    except fxq.FxQuantError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def faults(rank: int, folder: Path) -> dict[str, Any]:
    """What one rank does wrong, and what both say; the second rank is at fault."""
    odd, found = rank == 1, {}
    good, example = images(3), images(1)[0]

    def calibrate(batches: Any, model: nn.Module | None = None, **more: Any) -> Callable[[], Any]:
        return lambda: fxq.calibrate(fxq.prepare(model or network(), example), batches, progress=False, **more)

    found["no data"] = refused(calibrate([] if odd else good))
    found["data type"] = refused(calibrate([each.double() for each in good] if odd else good))
    found["other data"] = refused(calibrate([each + 1 for each in good] if odd else good))
    found["fewer batches"] = refused(calibrate(iter(good[: 2 if odd else 3])))
    other = network()
    if odd:
        other.fc.bias.data += 1
    found["weights"] = refused(calibrate(good, other))
    wider = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), *([nn.ReLU6()] if odd else [])).eval()
    found["model"] = refused(calibrate(good, wider))
    example = example.double() if odd else example
    found["data type of the model"] = refused(calibrate(good, network().double() if odd else network()))
    example = images(1)[0]
    found["batch"] = refused(calibrate([good[0], torch.ones(4, 3, 8, 8, dtype=torch.int64)]))
    found["until stable"] = refused(calibrate(good, until_stable=True))
    sharing.VERSION = "0.0.9" if odd else "0.1.0"
    found["version"] = refused(calibrate(good))
    sharing.VERSION = "0.1.0"
    found["another step"] = refused(
        (lambda: fxq.sensitivity(prepared("fixed"), good, progress=False)) if odd else calibrate(good)
    )
    begin = time.monotonic()
    found["hangs"] = refused(lambda: time.sleep(4) if odd else calibrate(good)(), timeout=2)
    found["seconds"] = time.monotonic() - begin
    calibrate_alone(rank, folder / "one")
    with fxq.share_work(checkpoint=folder / "one"):
        found["from one"] = dict(fxq.calibrate(prepared("histogram"), images(5), progress=False).state_dict())
    wrong = torch.ones(4, 3, 8, 8, dtype=torch.int64)
    refused(calibrate([*good, wrong]), checkpoint=folder / "later")
    other = [good[0], good[1] + 1, good[2], good[0]]
    found["other data later"] = refused(calibrate(other), checkpoint=folder / "later")
    found["the same data later"] = refused(calibrate([*good, good[0]]), checkpoint=folder / "later")
    found["hangs in a sum"] = refused(summing(lambda: time.sleep(4 if odd else 0)), timeout=2)
    # From here on, the group has a message that never comes.
    found["fails in a sum"] = refused(summing(failing if odd else lambda: None))
    found["dies"] = refused(calibrate(dying(5) if odd else images(5)), checkpoint=folder / "kept")
    return found


def summing(work: Callable[[], Any]) -> Callable[[], Any]:
    """A sum of two terms, as learned rounding makes thousands of."""

    def term(index: int) -> Tensor:
        work()
        return torch.ones(3)

    return lambda: shared_sum("a sum", 2, term, torch.zeros(3))


def failing() -> None:
    raise InputError("no gradient")


def calibrate_alone(rank: int, folder: Path) -> None:
    """Begin a calibration in the first rank alone, and fail after three batches."""
    if rank == 0:
        batches = (inputs if index < 3 else None for index, inputs in enumerate(images(5)))
        made = prepared("histogram")
        with contextlib.suppress(fxq.FxQuantError):
            calibrate_in_ranks(
                made, batches, Ranks(None, 1.0, folder), num_batches=None, progress=False, until_stable=False
            )
        assert len(list(folder.iterdir())) == 1
    distributed.barrier()


def dying(count: int) -> Iterator[Tensor]:
    """Yield some batches, and end this process: no error, no farewell."""
    yield from images(count)[: count - 1]
    os.kill(os.getpid(), signal.SIGKILL)


def main(rank: int, folder: Path, stories: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", ".*broadcast_buffers.*", FutureWarning)  # its other name is not in torch 2.10
    warnings.simplefilter("ignore", fxq.FxQuantWarning)  # of values that are not finite
    meeting = f"file://{folder}/meeting"
    distributed.init_process_group("gloo", meeting, timedelta(minutes=5), rank=rank, world_size=WORLD)
    found = {}
    for name in stories:
        if name == "faults":
            found[name] = faults(rank, folder)
            torch.save(found, folder / f"{rank}.pt")
            os._exit(0)  # the group has lost a member
        with fxq.share_work(timeout=120):
            found[name] = globals()[name](rank)
        torch.save(found, folder / f"{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
