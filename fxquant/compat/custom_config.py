"""Configuration classes of ``prepare_fx``, ``convert_fx`` and ``fuse_fx`` under torch.ao's names, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fxquant.compat.backend_config import BackendConfig
from fxquant.compat.qconfig_mapping import QConfigMapping
from fxquant.compat.quant_type import QuantType, _get_quant_type_to_str, _quant_type_from_str

STANDALONE_MODULE_NAME_DICT_KEY = "standalone_module_name"
STANDALONE_MODULE_CLASS_DICT_KEY = "standalone_module_class"
FLOAT_TO_OBSERVED_DICT_KEY = "float_to_observed_custom_module_class"
OBSERVED_TO_QUANTIZED_DICT_KEY = "observed_to_quantized_custom_module_class"
NON_TRACEABLE_MODULE_NAME_DICT_KEY = "non_traceable_module_name"
NON_TRACEABLE_MODULE_CLASS_DICT_KEY = "non_traceable_module_class"
INPUT_QUANTIZED_INDEXES_DICT_KEY = "input_quantized_idxs"
OUTPUT_QUANTIZED_INDEXES_DICT_KEY = "output_quantized_idxs"
PRESERVED_ATTRIBUTES_DICT_KEY = "preserved_attributes"


@dataclass
class StandaloneModuleConfigEntry:
    """Holds what a submodule is prepared with on its own; None: what its parent is prepared with."""

    qconfig_mapping: Any
    example_inputs: tuple[Any, ...]
    prepare_custom_config: Any
    backend_config: Any


Config = TypeVar("Config", bound="_Config")


class _Config:
    def __init__(self) -> None:
        self.preserved_attributes: list[str] = []

    def set_preserved_attributes(self: Config, attributes: list[str]) -> Config:
        """Keep these attributes of the model, though its forward does not use them."""
        self.preserved_attributes = attributes
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({ {key: value for key, value in vars(self).items() if len(value) > 0} })"


Classes = dict[QuantType, dict[type, type]]


class PrepareCustomConfig(_Config):
    """Says what ``prepare_fx`` does beside the rules of a ``QConfigMapping``. Every method returns the object."""

    def __init__(self) -> None:
        super().__init__()
        self.standalone_module_names: dict[str, StandaloneModuleConfigEntry] = {}
        self.standalone_module_classes: dict[type, StandaloneModuleConfigEntry] = {}
        self.float_to_observed_mapping: Classes = {}
        self.non_traceable_module_names: list[str] = []
        self.non_traceable_module_classes: list[type] = []
        self.input_quantized_indexes: list[int] = []
        self.output_quantized_indexes: list[int] = []

    def set_standalone_module_name(
        self,
        module_name: str,
        qconfig_mapping: Any,
        example_inputs: tuple[Any, ...],
        prepare_custom_config: Any,
        backend_config: Any,
    ) -> PrepareCustomConfig:
        """Prepare the submodule of that path on its own."""
        entry = StandaloneModuleConfigEntry(qconfig_mapping, example_inputs, prepare_custom_config, backend_config)
        self.standalone_module_names[module_name] = entry
        return self

    def set_standalone_module_class(
        self,
        module_class: type,
        qconfig_mapping: Any,
        example_inputs: tuple[Any, ...],
        prepare_custom_config: Any,
        backend_config: Any,
    ) -> PrepareCustomConfig:
        """Prepare the submodules of that class on their own."""
        entry = StandaloneModuleConfigEntry(qconfig_mapping, example_inputs, prepare_custom_config, backend_config)
        self.standalone_module_classes[module_class] = entry
        return self

    def set_float_to_observed_mapping(
        self, float_class: type, observed_class: type, quant_type: Any = QuantType.STATIC
    ) -> PrepareCustomConfig:
        """Let ``observed_class.from_float`` make what takes the place of modules of a class.

        Raises:
            ValueError: another kind than static quantization.
        """
        if int(quant_type) != QuantType.STATIC:
            raise ValueError("set_float_to_observed_mapping is currently only supported for static quantization")
        self.float_to_observed_mapping.setdefault(QuantType(int(quant_type)), {})[float_class] = observed_class
        return self

    def set_non_traceable_module_names(self, module_names: list[str]) -> PrepareCustomConfig:
        """Keep the submodules of these paths whole, and in float."""
        self.non_traceable_module_names = module_names
        return self

    def set_non_traceable_module_classes(self, module_classes: list[type]) -> PrepareCustomConfig:
        """Keep submodules of these classes whole, and in float."""
        self.non_traceable_module_classes = module_classes
        return self

    def set_input_quantized_indexes(self, indexes: list[int]) -> PrepareCustomConfig:
        """Take these inputs as integers."""
        self.input_quantized_indexes = indexes
        return self

    def set_output_quantized_indexes(self, indexes: list[int]) -> PrepareCustomConfig:
        """Give these results as integers."""
        self.output_quantized_indexes = indexes
        return self

    @classmethod
    def from_dict(cls, prepare_custom_config_dict: Mapping[str, Any]) -> PrepareCustomConfig:
        """Read torch.ao's older form; every key may be left out.

        Raises:
            ValueError: something in it is neither such a configuration nor a dict.
        """
        conf = cls()
        for key, standalone in (
            (STANDALONE_MODULE_NAME_DICT_KEY, conf.set_standalone_module_name),
            (STANDALONE_MODULE_CLASS_DICT_KEY, conf.set_standalone_module_class),
        ):
            set_entry: Any = standalone
            for name, rules, example_inputs, custom, backend in prepare_custom_config_dict.get(key, []):
                set_entry(
                    name,
                    _read(rules, QConfigMapping, key),
                    example_inputs,
                    _read(custom, cls, key),
                    _read(backend, BackendConfig, key),
                )
        for name, classes in prepare_custom_config_dict.get(FLOAT_TO_OBSERVED_DICT_KEY, {}).items():
            for float_class, observed_class in classes.items():
                conf.set_float_to_observed_mapping(float_class, observed_class, _quant_type_from_str(name))
        get = prepare_custom_config_dict.get
        conf.set_non_traceable_module_names(get(NON_TRACEABLE_MODULE_NAME_DICT_KEY, []))
        conf.set_non_traceable_module_classes(get(NON_TRACEABLE_MODULE_CLASS_DICT_KEY, []))
        conf.set_input_quantized_indexes(get(INPUT_QUANTIZED_INDEXES_DICT_KEY, []))
        conf.set_output_quantized_indexes(get(OUTPUT_QUANTIZED_INDEXES_DICT_KEY, []))
        return conf.set_preserved_attributes(get(PRESERVED_ATTRIBUTES_DICT_KEY, []))

    def to_dict(self) -> dict[str, Any]:
        """Write torch.ao's older form. Keys that hold nothing are left out."""
        found: dict[str, Any] = {
            STANDALONE_MODULE_NAME_DICT_KEY: [_row(*item) for item in self.standalone_module_names.items()],
            STANDALONE_MODULE_CLASS_DICT_KEY: [_row(*item) for item in self.standalone_module_classes.items()],
            FLOAT_TO_OBSERVED_DICT_KEY: _named(self.float_to_observed_mapping),
            NON_TRACEABLE_MODULE_NAME_DICT_KEY: self.non_traceable_module_names,
            NON_TRACEABLE_MODULE_CLASS_DICT_KEY: self.non_traceable_module_classes,
            INPUT_QUANTIZED_INDEXES_DICT_KEY: self.input_quantized_indexes,
            OUTPUT_QUANTIZED_INDEXES_DICT_KEY: self.output_quantized_indexes,
            PRESERVED_ATTRIBUTES_DICT_KEY: self.preserved_attributes,
        }
        return {key: value for key, value in found.items() if len(value) > 0}


class ConvertCustomConfig(_Config):
    """Says what ``convert_fx`` does beside the rules. Every method returns the object."""

    def __init__(self) -> None:
        super().__init__()
        self.observed_to_quantized_mapping: Classes = {}

    def set_observed_to_quantized_mapping(
        self, observed_class: type, quantized_class: type, quant_type: Any = QuantType.STATIC
    ) -> ConvertCustomConfig:
        """Let ``quantized_class.from_observed`` make what takes the place of modules of a class."""
        self.observed_to_quantized_mapping.setdefault(QuantType(int(quant_type)), {})[observed_class] = quantized_class
        return self

    @classmethod
    def from_dict(cls, convert_custom_config_dict: Mapping[str, Any]) -> ConvertCustomConfig:
        """Read torch.ao's older form; every key may be left out."""
        conf = cls()
        for name, classes in convert_custom_config_dict.get(OBSERVED_TO_QUANTIZED_DICT_KEY, {}).items():
            for observed_class, quantized_class in classes.items():
                conf.set_observed_to_quantized_mapping(observed_class, quantized_class, _quant_type_from_str(name))
        return conf.set_preserved_attributes(convert_custom_config_dict.get(PRESERVED_ATTRIBUTES_DICT_KEY, []))

    def to_dict(self) -> dict[str, Any]:
        """Write torch.ao's older form. Keys that hold nothing are left out."""
        found: dict[str, Any] = {
            OBSERVED_TO_QUANTIZED_DICT_KEY: _named(self.observed_to_quantized_mapping),
            PRESERVED_ATTRIBUTES_DICT_KEY: self.preserved_attributes,
        }
        return {key: value for key, value in found.items() if len(value) > 0}


class FuseCustomConfig(_Config):
    """Says what ``fuse_fx`` does beside fusing. Every method returns the object."""

    @classmethod
    def from_dict(cls, fuse_custom_config_dict: Mapping[str, Any]) -> FuseCustomConfig:
        """Read torch.ao's older form; every key may be left out."""
        return cls().set_preserved_attributes(fuse_custom_config_dict.get(PRESERVED_ATTRIBUTES_DICT_KEY, []))

    def to_dict(self) -> dict[str, Any]:
        """Write torch.ao's older form. Keys that hold nothing are left out."""
        found = self.preserved_attributes
        return {PRESERVED_ATTRIBUTES_DICT_KEY: found} if found else {}


def _read(value: Any, kind: Any, key: str) -> Any:
    if value is None or isinstance(value, kind):
        return value
    if isinstance(value, dict):
        return kind.from_dict(value)
    raise ValueError(f"Expected {kind.__name__} in prepare_custom_config_dict[\"{key}\"], got '{type(value)}'")


def _row(name: Any, entry: StandaloneModuleConfigEntry) -> tuple[Any, ...]:
    rules, custom = (value and value.to_dict() for value in (entry.qconfig_mapping, entry.prepare_custom_config))
    return name, rules, entry.example_inputs, custom, entry.backend_config


def _named(classes: Classes) -> dict[str, dict[type, type]]:
    return {_get_quant_type_to_str(quant_type): dict(found) for quant_type, found in classes.items()}
