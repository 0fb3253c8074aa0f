"""Two ranks of one thread each against one process: calibration with histograms, and ``sensitivity``, of ResNet-18.

    python benchmarks/ranks.py                   # 9 turns; needs two cores that do nothing else
    python benchmarks/ranks.py --model           # and what 1,000 ranks and 10^9 samples would cost

One process and two ranks have the turn one after the other; the median of the ratios counts. Beside it stands what two
processes reach that only copy memory: where that is less than 1.8 times one, memory and not the work is the limit. On a
machine that is busy, look at processor time: that of one process, over that of the rank that needs more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from multiprocessing import get_context
from typing import Any

import torch
import torchvision
from torch import Tensor, distributed

import fxquant as fxq
from fxquant.calibration.batch_records import BatchRecords
from fxquant.distributed.ranks import Ranks
from fxquant.quantizer import calibrate_in_ranks, replay_records
from fxquant.quantizer.rank_files import RankFiles

TASKS = ("calibrate", "sensitivity")
WANTED, WANTED_BY_MEMORY, FREE_MEMORY = 1.7, 1.5, 1.8
"""Times one process; the same where memory is the limit; times one copy, below which it is."""
COPIED = 1 << 27
"""Bytes of a copy."""
SAMPLES, BATCH, BANDWIDTH = 10**9, 32, 1e9
"""Of the model of the cost: images, images of a batch, and bytes per second that a rank receives."""
RANKS = (1, 2, 8, 64, 256, 1000, 4000)


def images(count: int, size: int, batch: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(batch, 3, size, size, generator=generator) for _ in range(count)]


class Worker:
    """One process. It does what it is told, alone or with the other rank."""

    def __init__(self, rank: int, folder: str, options: argparse.Namespace) -> None:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore", fxq.FxQuantWarning)  # of random weights
        meeting = f"file://{folder}/meeting"
        distributed.init_process_group("gloo", meeting, timedelta(minutes=30), rank=rank, world_size=2)
        torch.manual_seed(0)
        self.model = torchvision.models.resnet18().eval()
        self.batches = images(options.batches, options.size, options.images)
        self.few = self.batches[: options.sensitivity_batches]
        self.prepared = fxq.calibrate(fxq.prepare(self.model, self.batches[0]), self.batches, progress=False)
        self.bytes = 0
        self.source, self.target = torch.zeros(COPIED, dtype=torch.uint8), torch.zeros(COPIED, dtype=torch.uint8)

    def run(self, task: str, together: bool) -> dict[str, float]:
        """Return seconds of the clock, seconds of the processor, and bytes received from the other rank."""
        self.bytes = 0
        prepared = fxq.prepare(self.model, self.batches[0]) if task == "calibrate" else self.prepared
        clock, processor = time.perf_counter(), time.process_time()
        if together:
            with fxq.share_work(timeout=1800) as ranks:
                self._count_bytes(ranks)
                begin = time.perf_counter(), time.process_time()
                getattr(self, task)(prepared)
                ended = time.perf_counter(), time.process_time()
        else:
            begin = clock, processor
            getattr(self, task)(prepared)
            ended = time.perf_counter(), time.process_time()
        return {"clock": ended[0] - begin[0], "processor": ended[1] - begin[1], "bytes": float(self.bytes)}

    def _count_bytes(self, ranks: Ranks) -> None:
        gather, reduce = ranks.gather_bytes, ranks.reduce

        def gathered(what: str, own: bytes) -> list[bytes]:
            found = gather(what, own)
            self.bytes += sum(map(len, found)) - len(own)
            return found

        def reduced(what: str, values: Tensor, **more: Any) -> Tensor:
            self.bytes += values.nbytes
            return reduce(what, values, **more)

        ranks.gather_bytes, ranks.reduce = gathered, reduced  # type: ignore[method-assign]

    def calibrate(self, prepared: Any) -> None:
        fxq.calibrate(prepared, self.batches, progress=False)

    def sensitivity(self, prepared: Any) -> None:
        fxq.sensitivity(prepared, self.few, progress=False)

    def copy(self) -> float:
        """Return seconds of a copy."""
        begin = time.perf_counter()
        for _ in range(8):
            self.target.copy_(self.source)
        return (time.perf_counter() - begin) / 8

    def costs(self) -> dict[str, float]:
        """Return what the model of the cost is made of: measured in one process, without another rank."""
        prepared = fxq.prepare(self.model, self.batches[0])
        nowhere = RankFiles(Ranks(None, 1.0, None), {})  # on a busy machine this takes longer than a minute
        share = calibrate_in_ranks._Share(prepared, nowhere)
        late = [*range(len(self.batches)), *(1000 + 8 * index for index in range(len(self.batches)))]
        begin = time.process_time()
        for index in late:
            share.add(index, (self.batches[index % len(self.batches)],), {})
        batch = (time.process_time() - begin) / len(late)
        fresh = fxq.prepare(self.model, self.batches[0])
        ordered = share.records.packed(histograms=False)
        own = BatchRecords.unpacked(ordered)
        begin = time.process_time()
        replay_records.replay(fresh, own, len(self.batches))
        replay = (time.process_time() - begin) / len(self.batches)
        stretch = max(each for each, _ in share.records.histograms)
        counts = sum(each[0].nbytes for key, each in share.records.histograms.items() if key[0] == stretch)
        return {
            "batch": batch * BATCH / len(self.batches[0]),
            "replay": replay,
            "bytes": len(ordered) / len(late),
            "counts": float(counts),
        }


def work(rank: int, folder: str, options: argparse.Namespace, pipe: Any) -> None:
    """Be one of the processes: answer until there is nothing more to do."""
    worker = Worker(rank, folder, options)
    pipe.send("ready")
    while (told := pipe.recv()) is not None:
        name, *arguments = told
        pipe.send(getattr(worker, name)(*arguments))
    distributed.destroy_process_group()


def turns(pipes: list[Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return the ratios of all turns."""
    found: dict[str, Any] = {"copy": []}
    for _ in range(options.turns):
        alone = ask(pipes[:1], "copy")[0]
        found["copy"].append(2 * alone / max(ask(pipes, "copy")))
        for task in TASKS:
            one = ask(pipes[:1], "run", task, False)[0]
            both = ask(pipes, "run", task, True)
            rows = found.setdefault(task, [])
            rows.append(
                {
                    "clock": one["clock"] / max(each["clock"] for each in both),
                    "processor": one["processor"] / max(each["processor"] for each in both),
                    "seconds": one["clock"],
                    "bytes": both[0]["bytes"],
                    "slower": max(each["processor"] for each in both),
                }
            )
    return found


def ask(pipes: list[Any], *told: Any) -> list[Any]:
    for pipe in pipes:
        pipe.send(told)
    return [pipe.recv() for pipe in pipes]


def stretches(batches: float) -> int:
    """Count the rows that the range history writes of so many batches, of which one stretch of counts each is kept.

    The first sixteen batches have a row each, then the next row comes when an eighth more have been seen, and half as
    often whenever 64 rows are full.
    """
    rows, kept, last, stride = 0, 0, 0.0, 1
    while last < batches:
        last += stride * max(1, int(last) // 8)
        rows, kept = rows + 1, kept + 1
        if kept == 64:
            kept, stride = 32, stride * 2
    return rows


def print_costs(costs: dict[str, float], samples: float = SAMPLES) -> None:
    """Print the model of the cost of a calibration: what it moves, holds and takes, by the number of ranks."""
    batches = samples / BATCH
    pieces = stretches(batches)
    ordered, counts = batches * costs["bytes"], pieces * costs["counts"]
    print(
        f"\n{samples:.0e} samples in {batches:.2e} batches of {BATCH}: {costs['bytes']:,.0f} bytes of each batch go to"
    )
    print(f"all ranks, and counts of {costs['counts']:,.0f} bytes for each of {pieces} stretches are added up.")
    print(f"A batch takes {costs['batch']:.3f} s of a core, its replay {costs['replay'] * 1e3:.2f} ms in each rank.\n")
    print(" ranks  received, GB  held, GB   hours  times one  of which replay")
    one = batches * costs["batch"]
    for ranks in RANKS:
        received = 0 if ranks == 1 else ordered * (ranks - 1) / ranks + 2 * counts
        replay = 0 if ranks == 1 else batches * costs["replay"]
        seconds = one / ranks + replay + received / BANDWIDTH
        held = 0 if ranks == 1 else ordered + 2 * counts
        part = replay / seconds
        sizes = f"{ranks:6} {received / 1e9:13.1f} {held / 1e9:9.1f}"
        print(f"{sizes} {seconds / 3600:7.1f} {one / seconds:10.1f} {part:10.0%}")
    serial = costs["replay"] + costs["bytes"] / BANDWIDTH
    print("\nIt stops scaling where a rank's share of a batch takes as long as what each rank does of every batch:")
    print(
        f"at {costs['batch'] / serial:,.0f} ranks, whatever the number of samples; there it is half as fast as ideal."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    for name, value in (("turns", 9), ("batches", 16), ("images", 4), ("size", 224), ("sensitivity-batches", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--model", action="store_true", help="print the model of the cost, too")
    parser.add_argument("--json", action="store_true", help="print numbers only")
    options = parser.parse_args()
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ends = [context.Pipe() for _ in range(2)]
        processes = [
            context.Process(target=work, args=(rank, folder, options, ends[rank][1]), daemon=True) for rank in range(2)
        ]
        for process in processes:
            process.start()
        pipes = [own for own, _ in ends]
        for pipe in pipes:
            pipe.recv()
        found = turns(pipes, options)
        costs = ask(pipes[:1], "costs")[0]
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join(60)
    if options.json:
        print(json.dumps({"turns": found, "costs": costs}))
        return
    report(found, costs, options)


def report(found: dict[str, Any], costs: dict[str, float], options: argparse.Namespace) -> None:
    """Print the medians, what is wanted, and the model of the cost."""
    copied = statistics.median(found["copy"])
    wanted = WANTED if copied >= FREE_MEMORY else WANTED_BY_MEMORY
    print(
        f"two processes copy memory {copied:.2f} times as fast as one: {wanted} is wanted (torch {torch.__version__})"
    )
    for task in TASKS:
        clock, processor, seconds, sent, slower = (
            statistics.median(row[name] for row in found[task])
            for name in ("clock", "processor", "seconds", "bytes", "slower")
        )
        print(
            f"{task:12} one process {seconds:6.2f} s, two ranks {clock:5.2f} times as fast by the clock, "
            f"{processor:5.2f} by processor time; {sent / 1e6:.2f} MB received"
        )
        if task == "calibrate":
            pieces, ordered = stretches(options.batches), options.batches * costs["bytes"] / 2
            ideal = costs["batch"] * options.images / BATCH * options.batches / 2 + costs["replay"] * options.batches
            print(
                f"{'':12} the model says {(ordered + pieces * costs['counts']) / 1e6:.2f} MB, and {ideal:.2f} s of the "
                f"processor, where {slower:.2f} s were measured"
            )
    if options.model:
        print_costs(costs)


if __name__ == "__main__":
    sys.exit(main())
