"""Makes the table of a search."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fxquant.errors import SpecError
from fxquant.measure.paired import PairedDifference
from fxquant.plan.precision import Choice
from fxquant.plan.qconfig import QConfig
from fxquant.precision.choices import configured
from fxquant.precision.configurations import Configurations
from fxquant.precision.drop import Found
from fxquant.precision.groups import PrecisionGroup
from fxquant.precision.options import Options
from fxquant.precision.search import Search
from fxquant.precision.table import PrecisionPoint, PrecisionRow, PrecisionSearch

Rule = tuple[str, QConfig | None]


def result_of(
    search: Search, found: Found, missing: Sequence[str], max_drop: float | None, bases: Configurations
) -> PrecisionSearch:
    """Return the table of what was found.

    Args:
        search: It has ended.
        found: Its point.
        missing: Groups and choices whose noise is not known.
        max_drop: What the metric may fall by; None: there was a budget.
        bases: The configurations of the units.
    """
    options = search.options
    loss = found.measured.loss
    decided = loss is None or max_drop is None or not loss.low <= max_drop < loss.high
    point = _point(found.chosen, options, search.predicted)
    return PrecisionSearch(
        rows=tuple(_row(place, choice, options, missing) for place, choice in enumerate(found.chosen)),
        point=point,
        pareto=tuple(_point(chosen, options) for chosen in options.front()),
        predicted=point.sqnr,
        measured=found.measured.sqnr,
        drop=None if loss is None else loss.difference,
        interval=None if loss is None else (loss.low, loss.high),
        decided=decided,
        reached=found.reached,
        missing=tuple(missing),
        excluded=tuple(options.excluded),
        gap=search.gap,
        corrected=search.corrected,
        notes=tuple(_notes(search, found, missing, loss, max_drop, decided)),
        candidates=tuple(options.choices),
        all_at_8=options.all_at_8,
        config=bases.context.config,
        addresses=bases.addresses,
        rules=tuple(
            {choice.name: _rules(group, choice, bases) for choice in options.choices} for group in options.groups
        ),
    )


def _point(chosen: Sequence[Choice], options: Options, noise: float | None = None) -> PrecisionPoint:
    cost = options.total(chosen)
    return PrecisionPoint(
        choices=tuple(choice.name for choice in chosen),
        cost=cost,
        part=options.part(cost, options.all_at_8),
        noise=options.predicted(chosen) if noise is None else noise,
    )


def _row(place: int, choice: Choice, options: Options, missing: Sequence[str]) -> PrecisionRow:
    group, cost = options.groups[place], options.cost(place, choice)
    unknown = f"{group.name} {choice.name}" in missing
    return PrecisionRow(
        unit=group.units[0].root,
        name=group.name,
        choice=choice.name,
        weight=choice.weight if any(work.has_weight for work in group.work) else None,
        activation=choice.activation if any("y" in unit.roles for unit in group.units) else None,
        noise=math.nan if unknown else options.noise[place][choice.name],
        size=cost.size,
        bitops=cost.bitops,
        latency=cost.latency,
        activations=cost.activations,
        together=group.reason,
    )


def _rules(group: PrecisionGroup, choice: Choice, bases: Configurations) -> tuple[Rule, ...]:
    """Return the configuration of each unit of a group that a choice changes."""
    found: list[Rule] = []
    for unit in group.units:
        base = bases.qconfigs[unit.root]
        try:
            qconfig = configured(choice, base)
        except SpecError:  # the choice is excluded, and cannot be asked for
            continue
        if qconfig != base:
            found.append((unit.root, qconfig))
    return tuple(found)


def _notes(
    search: Search,
    found: Found,
    missing: Sequence[str],
    loss: PairedDifference | None,
    max_drop: float | None,
    decided: bool,
) -> list[str]:
    """Return the sentences below the table."""
    lines = []
    if search.corrected:
        lines.append("predicted and measured noise differed by more than 3 dB: it was estimated anew around the point")
    if search.gap:
        lines.append(f"the search was cut short: a point of the budget may have {search.gap:.3g} less noise")
    if not found.reached:
        lines.append(f"max_drop={max_drop:g} was not reached: this is the best point that can be chosen")
    if not decided and loss is not None and max_drop is not None:
        needed = loss.items_needed(max_drop)
        more = f"about {math.ceil(needed):,} items would tell" if needed < math.inf else "no number of items would tell"
        lines.append(f"{loss.items} items cannot tell whether the drop is above {max_drop:g}: {more}")
    if missing:
        lines.append(
            f"interrupted: {len(missing)} choices were not measured: each bit more is taken to quarter their noise"
        )
    return [*lines, *search.options.left_out]
