"""Simulations in which each unit has the bits that were chosen for it, made of one prepared model."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.fx import GraphModule

from fxquant.calibration.observed_qparams import qparams_of
from fxquant.errors import FxQuantWarning, error_context
from fxquant.measure.parity import plan_of
from fxquant.plan.precision import Choice
from fxquant.plan.quant_plan import QuantUnit, Refusal
from fxquant.plan.spec import QParams, QParamsPolicy, TensorRef
from fxquant.precision.configurations import Configurations
from fxquant.precision.policies import policies_of, refused_scheme
from fxquant.quantizer.attach_observers import attach_observers_and_statistics
from fxquant.quantizer.convert import convert_by
from fxquant.quantizer.final_plan import final_plan
from fxquant.quantizer.quantizer import Quantizer

FLOAT_BY_SEARCH = "the search leaves it in float"


class Simulations:
    """Makes simulations of a calibrated model with other bits. It observes data where it does not know ranges yet.

    Each is what ``prepare`` and ``calibrate`` give by the rules of the choices, but for one thing: a result that only
    float operators read is rounded here, and is float there.

    Args:
        prepared: What was calibrated. It is not changed.
        bases: How its units are configured.
        data: Positional and keyword arguments of each batch.
        seen: Called after each batch that is observed.
    """

    def __init__(
        self,
        prepared: Quantizer,
        bases: Configurations,
        data: Sequence[tuple[tuple[Any, ...], dict[str, Any]]],
        seen: Callable[[], object],
    ) -> None:
        self._prepared, self._data, self._seen = prepared, data, seen
        self._qconfigs, self._context = bases.qconfigs, bases.context
        self._units = {unit.root: unit for unit in prepared.plan.units}
        observers = dict(prepared.observers.items())
        self._own = qparams_of(prepared.graph_module, prepared.plan, observers, prepared.handlers)
        self._observed: dict[str, Mapping[TensorRef, QParams]] = {}
        """Name of a choice -> the qparams of values that another scheme than the configured one is for."""
        self._others: dict[str, Mapping[TensorRef, QParamsPolicy]] = {}
        """Name of a choice -> the policies by which these were observed."""
        self._weights: dict[tuple[str, str], QParams] = {}
        """Root of a unit, name of its choice -> the qparams of its weight, which take long to choose."""
        self._weights_are_own = prepared.backend.bias != "int32"
        """False: a scale may have become larger for a bias, by the scale of the input, which is another unit's."""

    def why_not(self, unit: QuantUnit, choice: Choice) -> str:
        """Say why the back end cannot run a unit with a choice; empty if it can."""
        return refused_scheme(unit, choice, self._qconfigs[unit.root], self._context)

    def needs_data(self, choice: Choice) -> bool:
        """Tell whether a choice has schemes of activations that were not observed yet."""
        return choice.name not in self._observed and bool(self._other_activations(choice))

    def observe(self, choice: Choice) -> None:
        """Observe all values with the schemes of a choice."""
        others = self._other_activations(choice)
        self._others[choice.name] = others
        if choice.name in self._observed or not others:
            self._observed.setdefault(choice.name, {})
            return
        observing = copy.deepcopy(self._prepared)
        observing.__dict__.pop("run_state", None)
        observing.plan = replace(self._prepared.plan, policies={**self._prepared.plan.policies, **others})
        observing.warned = set()
        attach_observers_and_statistics(observing)
        for index, (args, kwargs) in enumerate(self._data):
            with error_context(f"batch {index}"):
                observing.observe(*args, **kwargs)
            self._seen()
        observers = dict(observing.observers.items())
        found = qparams_of(observing.graph_module, observing.plan, observers, observing.handlers)
        self._observed[choice.name] = {ref: found[ref] for ref in others if ref in found}

    def make(self, chosen: Mapping[str, Choice]) -> GraphModule:
        """Return the simulation with the choices of units; those that are not named stay as they are.

        Args:
            chosen: Root of a unit -> its choice. Its schemes were observed.
        """
        policies = dict(self._prepared.plan.policies)
        qparams = dict(self._own)
        refused = []
        # Policies and qparams of each unit, as its choice says.
        for root, choice in chosen.items():
            unit = self._units[root]
            if choice.is_float:
                refused.append(Refusal(root, unit.pattern, FLOAT_BY_SEARCH, excused=True))
                continue
            changed = policies_of(unit, choice, self._qconfigs[root], self._context)
            policies.update(changed)
            observed = self._observed.get(choice.name, {})
            qparams.update({ref: observed[ref] for ref in changed if ref in observed})
        # Values that units read from float ones.
        for ref, choice in self._read_from_float(chosen).items():
            if ref in self._observed.get(choice.name, {}):
                policies[ref], qparams[ref] = self._others[choice.name][ref], self._observed[choice.name][ref]
        # Convert, and keep the qparams that were measured of weights.
        edited = copy.copy(self._prepared)
        edited.plan = replace(self._prepared.plan, policies=policies)
        weights = self._weights_of(chosen)
        qparams.update({ref: self._weights[key] for ref, key in weights.items() if key in self._weights})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FxQuantWarning)  # it was said when the model was calibrated
            simulated = convert_by(edited, "fake_quant", final_plan(edited, qparams, refused))
        found = plan_of(simulated).qparams
        if self._weights_are_own:
            self._weights.update({key: found[ref] for ref, key in weights.items() if ref in found})
        return simulated

    def _weights_of(self, chosen: Mapping[str, Choice]) -> dict[TensorRef, tuple[str, str]]:
        """Return the weight of each unit that has one, with the unit's root and the name of its choice."""
        return {
            unit.roles["weight"]: (root, chosen[root].name if root in chosen else "")
            for root, unit in self._units.items()
            if "weight" in unit.roles
        }

    def _read_from_float(self, chosen: Mapping[str, Choice]) -> dict[TensorRef, Choice]:
        """Return the values of float units that quantized units read, with the one choice that all these have."""
        made = {unit.roles["y"]: root for root, unit in self._units.items() if "y" in unit.roles}
        readers: dict[TensorRef, list[Choice]] = {}
        for root, choice in chosen.items():
            for role in self._units[root].inputs if not choice.is_float else ():
                ref = self._units[root].roles[role]
                if ref in made and made[ref] in chosen and chosen[made[ref]].is_float:
                    readers.setdefault(ref, []).append(choice)
        return {ref: choices[0] for ref, choices in readers.items() if len({each.name for each in choices}) == 1}

    def _other_activations(self, choice: Choice) -> dict[TensorRef, QParamsPolicy]:
        """Return the policies of activations that a choice changes, were all units to have it."""
        found: dict[TensorRef, QParamsPolicy] = {}
        for root, qconfig in self._qconfigs.items():
            unit = self._units[root]
            if not choice.is_float and not self.why_not(unit, choice):
                found |= policies_of(unit, choice, qconfig, self._context)
        own = self._prepared.plan.policies
        return {ref: policy for ref, policy in found.items() if ref.kind == "activation" and policy != own[ref]}
