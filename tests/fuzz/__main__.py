"""``python -m tests.fuzz --seconds 60 --seed 1``: random models until the time is over."""

from __future__ import annotations

import argparse
import itertools
import sys

import torch

from tests.fuzz.run import Tally, run


def main(arguments: list[str] | None = None) -> int:
    """Returns:
    1 if anything was found, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="after which no further model begins")
    parser.add_argument("--seed", type=int, default=1, help="of the first model; the others follow")
    parser.add_argument("--models", type=int, default=None, help="end after so many, too")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)

    def ends(tally: Tally) -> bool:
        return tally.seconds >= options.seconds or (options.models is not None and tally.models >= options.models)

    tally = run(itertools.count(options.seed), ends)
    print(tally)
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
