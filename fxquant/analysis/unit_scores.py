"""Scores a model's output with each unit quantized alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.fx import GraphModule

from fxquant.analysis.isolated import UnitsAlone
from fxquant.analysis.metrics import Numbers, Score
from fxquant.analysis.naming import title_of
from fxquant.analysis.overrides import addresses
from fxquant.analysis.sensitivity_table import Sensitivity, UnitCost
from fxquant.errors import user_line
from fxquant.graph.inputs import bind
from fxquant.graph.query import nodes_by_name
from fxquant.measure.parity import plan_of
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.plan.spec import SharedWith
from fxquant.quantizer.quantizer import Quantizer


class UnitScores:
    """Scores of each unit, of the float model, and of all units together."""

    def __init__(self, prepared: Quantizer, simulated: GraphModule, scorer: Callable[[], Score], seed: int) -> None:
        self._prepared, self._simulated = prepared, simulated
        plan = plan_of(simulated)
        self._units = tuple(unit for unit in plan.units if not _keeps_values(unit, plan))
        self._alone = UnitsAlone(simulated, self._units, seed)
        self._scores = {unit.root: scorer() for unit in self._units}
        self._float, self._together = scorer(), scorer()

    @property
    def steps(self) -> int:
        """Count the steps of the progress bar for each batch."""
        return len(self._units) + 2

    @property
    def started(self) -> bool:
        """Tell whether anything was measured."""
        return self._float.batches > 0

    def measure(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], target: Any, against_target: bool, bar: Any
    ) -> Iterator[tuple[str, Numbers]]:
        """Measure one batch: yield the name of each score, and what ``fold`` adds to it."""
        bound = bind(self._simulated, args, kwargs, "this batch")
        reference = self._alone.float_output(bound)
        expected = target if against_target else reference
        yield "float", self._float.measure(reference, expected)
        bar.update()
        yield "together", self._together.measure(self._alone.all_quantized(bound), expected)
        bar.update()
        for unit, output in self._alone.run(bound):
            yield f"unit {unit.root}", self._scores[unit.root].measure(output, expected)
            bar.set_postfix_str(unit.root)
            bar.update()

    def fold(self, name: str, found: Numbers) -> None:
        """Add what one batch has given to a score."""
        of_all = {"float": self._float, "together": self._together}
        score = of_all[name] if name in of_all else self._scores[name.removeprefix("unit ")]
        score.fold(found)

    def result(self, metric: str) -> Sensitivity:
        """Return what was measured so far."""
        nodes = nodes_by_name(self._prepared.graph_module)
        planned = {unit.root: unit for unit in self._prepared.plan.units}  # batch norms not yet folded in
        ideal = self._float.value
        rows, missing = [], []
        for unit in self._units:
            score, layer = self._scores[unit.root], nodes[planned[unit.root].nodes[0]]
            name = title_of(layer, unit.root)
            if score.batches:
                cost = score.cost(ideal)
                rows.append(UnitCost(unit.root, name, unit.pattern, user_line(layer), score.value, cost, score.batches))
            else:
                missing.append(name)
        rows.sort(key=lambda row: -row.cost)
        config = self._prepared.config
        return Sensitivity(
            rows=tuple(rows),
            metric=metric,
            float_value=ideal,
            quantized_value=self._together.value,
            batches=self._float.batches,
            missing=tuple(missing),
            config=config,
            addresses=addresses(self._prepared.graph_module, self._prepared.plan.units, config),
        )


def _keeps_values(unit: QuantUnit, plan: QuantPlan) -> bool:
    """Tell whether a unit rounds nothing: it has the qparams of its input."""
    policy = plan.policies.get(unit.roles["y"]) if "y" in unit.roles else None
    return isinstance(policy, SharedWith) and "weight" not in unit.roles
