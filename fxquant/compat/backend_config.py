"""The names of ``torch.ao.quantization.backend_config``: the classes, and the tables of torch.ao's back ends."""

from __future__ import annotations

from fxquant.compat.backend_classes import (
    BackendConfig,
    BackendPatternConfig,
    DTypeConfig,
    DTypeWithConstraints,
    ObservationType,
)
from fxquant.compat.backend_tables import (
    get_fbgemm_backend_config,
    get_native_backend_config,
    get_native_backend_config_dict,
    get_onednn_backend_config,
    get_qnnpack_backend_config,
    get_tensorrt_backend_config,
    get_tensorrt_backend_config_dict,
    get_x86_backend_config,
)
from fxquant.compat.not_offered import refusal_of

__all__ = [
    "BackendConfig",
    "BackendPatternConfig",
    "DTypeConfig",
    "DTypeWithConstraints",
    "ObservationType",
    "get_fbgemm_backend_config",
    "get_native_backend_config",
    "get_native_backend_config_dict",
    "get_onednn_backend_config",
    "get_qnnpack_backend_config",
    "get_tensorrt_backend_config",
    "get_tensorrt_backend_config_dict",
    "get_x86_backend_config",
]

__getattr__ = refusal_of
