"""Random models until the time is over: what was found, how fast, and of what they were made."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tabulate import tabulate

from tests.fuzz.case import Case, NothingToDoError
from tests.fuzz.finding import Finding, examine
from tests.fuzz.fingerprint import fingerprint
from tests.fuzz.generate import generate
from tests.fuzz.ingredients import INGREDIENTS
from tests.fuzz.reduce import reduced

MOST_FINDINGS = 10
"""After which a run ends: each takes up to a minute to reduce, and one cause often has many."""


@dataclass
class Tally:
    """What a run has done."""

    models: int = 0
    empty: int = 0
    """Models in which nothing can be quantized."""
    calls: int = 0
    graphs: set[str] = field(default_factory=set)
    """Hashes of normalized graphs."""
    ingredients: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    """What was not checked, and why -> in how many models."""
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        rows = [
            (name, self.ingredients[name]) for name in (*INGREDIENTS, *sorted(self.ingredients.keys() - INGREDIENTS))
        ]
        half = -(-len(rows) // 2)
        table = [(*one, *two) for one, two in zip(rows[:half], [*rows[half:], ("", "")], strict=False)]
        speed = f"{self.models / self.seconds:.1f} models a second" if self.seconds else ""
        skipped = "".join(f"not checked, {count} times: {what}\n" for what, count in self.skipped.most_common())
        return (
            f"{tabulate(table, headers=('ingredient', 'models') * 2)}\n\n{skipped}"
            f"{self.models} models ({len(self.graphs)} distinct graphs), {self.calls} calls of int8 models, "
            f"{self.empty} with nothing to quantize beside; {speed}\n"
            f"{len(self.findings)} findings"
        )


def run(seeds: Iterator[int], ends: Callable[[Tally], bool], say: Callable[[str], None] = print) -> Tally:
    """Check a random model for each seed.

    Args:
        seeds: Of the models.
        ends: Whether the run is over, asked before each model.
        say: Gets each finding, reduced, when it is found.
    """
    tally, start = Tally(), time.perf_counter()
    for seed in seeds:
        tally.seconds = time.perf_counter() - start
        if ends(tally) or len(tally.findings) >= MOST_FINDINGS:
            break
        recipe = generate(seed)
        case = Case.of(recipe, seed)
        try:
            found = examine(case)
        except NothingToDoError:
            tally.empty += 1
            continue
        tally.models += 1
        tally.calls += case.calls
        tally.ingredients.update(recipe.ingredients)
        tally.skipped.update(case.skipped)
        if "prepared" in vars(case):
            tally.graphs.add(fingerprint(case.prepared.graph_module))
        if found is not None:
            finding = reduced(Finding(*found, recipe, seed))
            tally.findings.append(finding)
            say(f"{finding}\n")
    return tally
