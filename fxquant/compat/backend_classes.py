"""``BackendConfig`` under torch.ao's name, as data, and what of it ``prepare_fx`` reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import nn

PLAIN = ("pattern", "observation_type", "root_module", "qat_module", "fused_module", "fuser_method")


class ObservationType(Enum):
    """Names who measures the result of an operator: an observer of its own, that of its input, or none."""

    OUTPUT_USE_DIFFERENT_OBSERVER_AS_INPUT = 0
    OUTPUT_SHARE_OBSERVER_WITH_INPUT = 1
    INPUT_OUTPUT_NOT_OBSERVED = 2


@dataclass
class DTypeWithConstraints:
    """A dtype, and what a configuration must keep to, or it is not used for the pattern."""

    dtype: torch.dtype | None = None
    quant_min_lower_bound: float | None = None
    quant_max_upper_bound: float | None = None
    scale_min_lower_bound: float | None = None
    scale_max_upper_bound: float | None = None
    scale_exact_match: float | None = None
    zero_point_exact_match: int | None = None


class DTypeConfig:
    """The dtypes of values, weight and bias that a pattern takes."""

    def __init__(
        self,
        input_dtype: torch.dtype | DTypeWithConstraints | None = None,
        output_dtype: torch.dtype | DTypeWithConstraints | None = None,
        weight_dtype: torch.dtype | DTypeWithConstraints | None = None,
        bias_dtype: torch.dtype | None = None,
        is_dynamic: bool | None = None,
    ) -> None:
        self.input_dtype_with_constraints = _constrained(input_dtype)
        self.output_dtype_with_constraints = _constrained(output_dtype)
        self.weight_dtype_with_constraints = _constrained(weight_dtype)
        self.bias_dtype = bias_dtype
        self.is_dynamic = is_dynamic

    @property
    def input_dtype(self) -> torch.dtype | None:
        """Return the dtype of inputs."""
        return self.input_dtype_with_constraints.dtype

    @property
    def output_dtype(self) -> torch.dtype | None:
        """Return the dtype of results."""
        return self.output_dtype_with_constraints.dtype

    @property
    def weight_dtype(self) -> torch.dtype | None:
        """Return the dtype of weights."""
        return self.weight_dtype_with_constraints.dtype

    @classmethod
    def from_dict(cls, dtype_config_dict: Mapping[str, Any]) -> DTypeConfig:
        """Read torch.ao's older form."""
        names = ("input_dtype", "output_dtype", "weight_dtype", "bias_dtype", "is_dynamic")
        return cls(**{name: dtype_config_dict.get(name) for name in names})

    def to_dict(self) -> dict[str, Any]:
        """Write torch.ao's older form. Keys that hold nothing are left out."""
        found: dict[str, Any] = {
            f"{role}_dtype": getattr(self, f"{role}_dtype_with_constraints")
            for role in ("input", "output", "weight")
            if getattr(self, f"{role}_dtype") is not None
        }
        if self.bias_dtype is not None:
            found["bias_dtype"] = self.bias_dtype
        if self.is_dynamic is not None:
            found["is_dynamic"] = self.is_dynamic
        return found

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if isinstance(other, DTypeConfig) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def __repr__(self) -> str:
        return f"DTypeConfig({', '.join(f'{key}={value}' for key, value in vars(self).items())})"


class BackendPatternConfig:
    """What a back end does with one pattern: a class, a function, or a tuple of them in the order of the calls."""

    def __init__(self, pattern: Any = None) -> None:
        self.pattern = pattern
        self.observation_type = ObservationType.OUTPUT_USE_DIFFERENT_OBSERVER_AS_INPUT
        self.dtype_configs: list[DTypeConfig] = []
        self.root_module: type[nn.Module] | None = None
        self.qat_module: type[nn.Module] | None = None
        self.reference_quantized_module: type[nn.Module] | None = None
        self.fused_module: type[nn.Module] | None = None
        self.fuser_method: Callable[..., Any] | None = None
        self._root_node_getter: Callable[..., Any] | None = None
        self._extra_inputs_getter: Callable[..., Any] | None = None
        self._num_tensor_args_to_observation_type: dict[int, ObservationType] = {}
        self._input_type_to_index: dict[str, int] = {}
        self._pattern_complex_format: Any = None

    def set_pattern(self, pattern: Any) -> BackendPatternConfig:
        """Set the pattern.

        Raises:
            ValueError: the older, nested form is set.
        """
        if self._pattern_complex_format is not None:
            raise ValueError("Only one of 'pattern' or 'pattern_complex_format' can be set")
        self.pattern = pattern
        return self

    def set_observation_type(self, observation_type: ObservationType) -> BackendPatternConfig:
        """Set who measures the result."""
        self.observation_type = observation_type
        return self

    def add_dtype_config(self, dtype_config: DTypeConfig) -> BackendPatternConfig:
        """Add dtypes that the pattern takes."""
        self.dtype_configs.append(dtype_config)
        return self

    def set_dtype_configs(self, dtype_configs: list[DTypeConfig]) -> BackendPatternConfig:
        """Set all dtypes that the pattern takes."""
        self.dtype_configs = dtype_configs
        return self

    def set_root_module(self, root_module: type[nn.Module]) -> BackendPatternConfig:
        """Set the class of the layer that holds the weight."""
        self.root_module = root_module
        return self

    def set_qat_module(self, qat_module: type[nn.Module]) -> BackendPatternConfig:
        """Set the class for training."""
        self.qat_module = qat_module
        return self

    def set_reference_quantized_module(self, reference_quantized_module: type[nn.Module]) -> BackendPatternConfig:
        """Set the class of the reference."""
        self.reference_quantized_module = reference_quantized_module
        return self

    def set_fused_module(self, fused_module: type[nn.Module]) -> BackendPatternConfig:
        """Set the class that fusing makes."""
        self.fused_module = fused_module
        return self

    def set_fuser_method(self, fuser_method: Callable[..., Any]) -> BackendPatternConfig:
        """Set the function that fuses: of ``is_qat`` and the modules, in the order of the calls."""
        self.fuser_method = fuser_method
        return self

    def _set_root_node_getter(self, getter: Callable[..., Any]) -> BackendPatternConfig:
        self._root_node_getter = getter
        return self

    def _set_extra_inputs_getter(self, getter: Callable[..., Any]) -> BackendPatternConfig:
        self._extra_inputs_getter = getter
        return self

    def _set_num_tensor_args_to_observation_type(self, types: dict[int, ObservationType]) -> BackendPatternConfig:
        self._num_tensor_args_to_observation_type = types
        return self

    def _set_input_type_to_index(self, input_type_to_index: dict[str, int]) -> BackendPatternConfig:
        self._input_type_to_index = input_type_to_index
        return self

    def _set_pattern_complex_format(self, pattern: Any) -> BackendPatternConfig:
        if self.pattern is not None:
            raise ValueError("Only one of 'pattern' or 'pattern_complex_format' can be set")
        self._pattern_complex_format = pattern
        return self

    @classmethod
    def from_dict(cls, backend_pattern_config_dict: Mapping[str, Any]) -> BackendPatternConfig:
        """Read torch.ao's older form."""
        conf = cls()
        for name, value in backend_pattern_config_dict.items():
            if name == "dtype_configs":
                conf.dtype_configs = [DTypeConfig.from_dict(v) if isinstance(v, Mapping) else v for v in value]
            elif name == "reference_quantized_module_for_root":
                conf.reference_quantized_module = value
            else:
                setattr(conf, name if name in PLAIN else f"_{name}", value)
        return conf

    def to_dict(self) -> dict[str, Any]:
        """Write torch.ao's older form. Keys that hold nothing are left out."""
        found: dict[str, Any] = {"dtype_configs": [conf.to_dict() for conf in self.dtype_configs]}
        for name, value in vars(self).items():
            key = "reference_quantized_module_for_root" if name == "reference_quantized_module" else name.lstrip("_")
            if name != "dtype_configs" and value is not None and value != {}:
                found[key] = value
        return found


class BackendConfig:
    """A named table of patterns. Every method returns the object."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._pattern_complex_format_to_config: dict[Any, BackendPatternConfig] = {}

    def set_name(self, name: str) -> BackendConfig:
        """Set the name."""
        self.name = name
        return self

    def set_backend_pattern_config(self, config: BackendPatternConfig) -> BackendConfig:
        """Set what is done with a pattern; it replaces what was set for the same one."""
        key = config.pattern if config._pattern_complex_format is None else config._pattern_complex_format
        self._pattern_complex_format_to_config[key] = config
        return self

    def set_backend_pattern_configs(self, configs: list[BackendPatternConfig]) -> BackendConfig:
        """Set what is done with several patterns."""
        for config in configs:
            self.set_backend_pattern_config(config)
        return self

    @property
    def configs(self) -> list[BackendPatternConfig]:
        """Return a copy of the table."""
        return list(self._pattern_complex_format_to_config.values())

    @classmethod
    def from_dict(cls, backend_config_dict: Mapping[str, Any]) -> BackendConfig:
        """Read torch.ao's older form."""
        conf = cls(backend_config_dict.get("name", ""))
        for found in backend_config_dict.get("configs", []):
            is_config = isinstance(found, BackendPatternConfig)
            conf.set_backend_pattern_config(found if is_config else BackendPatternConfig.from_dict(found))
        return conf

    def to_dict(self) -> dict[str, Any]:
        """Write torch.ao's older form."""
        return {"name": self.name, "configs": [config.to_dict() for config in self.configs]}


def _constrained(dtype: torch.dtype | DTypeWithConstraints | None) -> Any:
    if dtype is None or isinstance(dtype, torch.dtype):
        return DTypeWithConstraints(dtype=dtype)
    return dtype
