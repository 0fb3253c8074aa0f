"""The table of torch.ao's names: which move as they are, which with a difference, and what stands for the others."""

from __future__ import annotations

CHANGED: dict[str, str] = {
    "prepare_fx": "what the model returns is rounded as in torch.ao; sums, pools and attention may be fused further",
    "prepare_qat_fx": "batch norms stay modules of their own",
    "convert_fx": "modules of fxquant.nn, plain int8 tensors, float32 biases; recurrent layers by dynamic qconfigs",
    "convert_to_reference_fx": "quantize and dequantize are operators of fxquant, not of quantized dtypes",
    "fuse_fx": "needs a torch that has torch.ao.nn.intrinsic; prepare_fx does without",
    "quantize_dynamic": "returns a graph, or of what cannot be traced a copy with other layers; no float16",
    "FusedMovingAvgObsFakeQuantize": "symmetric scales are the range over 127.5 steps, as of observers, not over 128",
    "BackendConfig": "read for what it forbids; lowering and fused classes are those of fxquant",
    **dict.fromkeys(
        (
            *(f"get_{name}_backend_config" for name in ("native", "x86", "fbgemm", "onednn", "qnnpack", "tensorrt")),
            *("get_native_backend_config_dict", "get_tensorrt_backend_config_dict"),
        ),
        "without the patterns of classes of torch.ao.nn; read for what it forbids",
    ),
    "BackendPatternConfig": "root, qat and reference modules are kept, and not read",
    "PrepareCustomConfig": "quantized inputs and outputs are plain integer tensors",
    "ConvertCustomConfig": "from_observed gets a module whose inputs and results are floats",
    "QuantStub": "passes values on: a graph needs no marks",
    "DeQuantStub": "passes values on",
    "QuantWrapper": "passes values on",
    "FloatFunctional": "its operators are torch's own: the model is traced",
    "FXFloatFunctional": "its operators are torch's own: the model is traced",
    "prepare": "traces the model; allow_list is refused; inplace=True turns the model itself into the graph",
    "prepare_qat": "traces the model; no mapping of classes",
    "convert": "gives modules of fxquant.nn; no mapping of classes",
    "quantize": "traces the model; no mapping of classes",
    "quantize_qat": "traces the model",
    "propagate_qconfig_": "what prepare reads is the attribute qconfig; nothing needs this call",
    "add_quant_dequant": "its stubs pass values on",
    "fuse_modules": "makes nn.Sequential in place of containers; prepare fuses without it",
    "fuse_modules_qat": "makes nn.Sequential in place of containers; prepare_qat does without",
    "default_equalization_qconfig": "fxquant.equalize chooses the scales, on the example inputs, where it lowers noise",
    "EqualizationQConfig": "says for which layers; its observers are not read",
    "float16_static_qconfig": "layers stay float32",
    "float16_dynamic_qconfig": "layers stay float32",
    "default_embedding_qat_qconfig_4bit": "trained in float with 4 bit tables simulated",
    "get_default_qconfig": "the engine decides nothing but the observers: kernels are chosen at run time",
    "get_default_qconfig_mapping": "the engine decides nothing but the observers: kernels are chosen at run time",
}
"""Name -> what is different here."""

NOT_OFFERED: dict[str, str] = {
    "AffineQuantizedObserverBase": "ObserverBase; torchao has observers of blocks",
    **dict.fromkeys(
        (
            *("Granularity", "MappingType", "PerAxis", "PerBlock", "PerGroup", "PerRow", "PerTensor", "PerToken"),
            *("TorchAODType", "ZeroPointDomain", "get_block_size"),
        ),
        "fxquant.QScheme(axis=, group_size=): what pt2e's observers of blocks say",
    ),
    **dict.fromkeys(("convert_dynamic_jit", "prepare_dynamic_jit", "quantize_dynamic_jit"), "quantize_dynamic"),
    **dict.fromkeys(("script_qconfig", "script_qconfig_dict"), "prepare_fx: TorchScript has no part in fxquant"),
    "fuse_conv_bn_jit": "prepare_fx, which folds batch norms",
    **dict.fromkeys(
        (
            *("fuse_conv_bn", "fuse_conv_bn_relu", "fuse_convtranspose_bn", "fuse_linear_bn", "fuse_known_modules"),
            *("get_fuser_method", "get_fuser_method_new"),
        ),
        "fuse_modules; prepare_fx folds batch norms without it",
    ),
    **dict.fromkeys(
        (
            *("DEFAULT_STATIC_QUANT_MODULE_MAPPINGS", "DEFAULT_DYNAMIC_QUANT_MODULE_MAPPINGS"),
            *("DEFAULT_REFERENCE_STATIC_QUANT_MODULE_MAPPINGS", "DEFAULT_MODULE_TO_ACT_POST_PROCESS"),
            *("DEFAULT_FLOAT_TO_QUANTIZED_OPERATOR_MAPPINGS", "get_quantized_operator", "no_observer_set"),
            *("get_default_float_to_quantized_operator_mappings", "get_default_static_quant_reference_module_mappings"),
            *("get_default_compare_output_module_list", "get_default_qconfig_propagation_list"),
            *("get_dynamic_quant_module_class", "get_static_quant_module_class"),
            "get_embedding_static_quant_module_mappings",
        ),
        "the table of fxquant.backends.cpu: no class of torch.ao.nn stands for a layer",
    ),
    **dict.fromkeys(
        (
            *("DEFAULT_STATIC_SPARSE_QUANT_MODULE_MAPPINGS", "DEFAULT_DYNAMIC_SPARSE_QUANT_MODULE_MAPPINGS"),
            "get_default_dynamic_sparse_quant_module_mappings",
            "get_default_static_sparse_quant_module_mappings",
        ),
        "nothing: fxquant has no sparse kernels",
    ),
    **dict.fromkeys(
        ("DEFAULT_QAT_MODULE_MAPPINGS", "get_embedding_qat_module_mappings"), "none: training changes no classes"
    ),
    **dict.fromkeys(
        (
            *("convert_n_shadows_model", "extract_results_n_shadows_model", "print_comparisons_n_shadows_model"),
            "OutputComparisonLogger",
        ),
        "fxquant.sensitivity(prepared, data) measures what each unit costs",
    ),
    "NSTracer": "add_loggers traces by itself",
    **dict.fromkeys(
        ("get_logger_dict", "get_matching_activations", "prepare_model_outputs"), "compare_model_outputs does it all"
    ),
    "prepare_model_with_stubs": "compare_model_stub does it all",
    "Logger": "OutputLogger",
    "Shadow": "ShadowLogger",
    "swap_module": "convert_fx(prepared)",
    "get_default_custom_config_dict": "PrepareCustomConfig()",
    "get_default_qconfig_dict": "get_default_qconfig_mapping(backend)",
    "get_default_qat_qconfig_dict": "get_default_qat_qconfig_mapping(backend)",
    "scale_qat_module": "nothing: batch norms are modules of their own",
    "prepare_n_shadows_model": "fxquant.sensitivity(prepared, data) measures what each unit costs",
    "quantize_jit": "prepare_fx: TorchScript has no part in fxquant",
    "prepare_jit": "prepare_fx",
    "convert_jit": "convert_fx",
    "prepare_pt2e": "fxquant.prepare(exported_program, example_inputs)",
    "prepare_qat_pt2e": "fxquant.prepare_qat(exported_program, example_inputs)",
    "convert_pt2e": "fxquant.convert(prepared)",
    "get_default_static_quant_module_mappings": "the table of fxquant.backends.cpu",
    "get_default_dynamic_quant_module_mappings": "the table of fxquant.backends.cpu",
    "get_default_qat_module_mappings": "none: training changes no classes",
    "get_executorch_backend_config": "fxquant.export gives what ExecuTorch reads",
}
"""Name -> what does the same."""

ELSEWHERE: dict[str, str] = {
    "torch.ao.nn": "modules of quantized dtypes; convert_fx gives fxquant.nn, whose weights are plain int8",
    "torch.nn.quantized": "modules of quantized dtypes; convert_fx gives fxquant.nn, whose weights are plain int8",
    "torch.nn.intrinsic": "containers; prepare_fx fuses without them",
    "torch.nn.qat": "modules that train; prepare_qat_fx changes no classes",
    "torch.ao.ns": "fxquant.compare(float, int8, data) measures every unit",
    "torch.ao.pruning": "fxquant does not prune; masks of torch.nn.utils.prune are taken",
    "torch.backends.quantized": "nothing reads the engine: kernels are chosen by the processor at run time",
    "torch.quantize_per_tensor": "fxquant.kernels.quantize(x, scale, zero_point, quant_min, quant_max, dtype)",
    "torch.quantize_per_channel": "fxquant.kernels.quantize(..., axis=0)",
    "torch.ops.quantized": "torch.ops.fxquant, on plain int8 tensors",
}
"""Beginning of a name outside of torch.ao.quantization -> what stands for it."""

HOMES: dict[str, str] = {
    "torch.ao.quantization": "fxquant.compat.quantization",
    "torch.quantization": "fxquant.compat.quantization",
    "torch.ao.quantization.quantize_fx": "fxquant.compat.quantize_fx",
    "torch.quantization.quantize_fx": "fxquant.compat.quantize_fx",
    "torch.ao.quantization.quantize": "fxquant.compat.quantize",
    "torch.ao.quantization.observer": "fxquant.compat.observer",
    "torch.quantization.observer": "fxquant.compat.observer",
    "torch.ao.quantization.fake_quantize": "fxquant.compat.fake_quantize",
    "torch.quantization.fake_quantize": "fxquant.compat.fake_quantize",
    "torch.ao.quantization.qconfig": "fxquant.compat.qconfig",
    "torch.quantization.qconfig": "fxquant.compat.qconfig",
    "torch.ao.quantization.qconfig_mapping": "fxquant.compat.qconfig_mapping",
    "torch.ao.quantization.backend_config": "fxquant.compat.backend_config",
    "torch.ao.quantization.fx.custom_config": "fxquant.compat.custom_config",
    "torch.ao.quantization.quant_type": "fxquant.compat.quant_type",
    "torch.ao.quantization.utils": "fxquant.compat.utils",
    "torch.ao.quantization.quantization_mappings": "fxquant.compat.quantization",
    "torch.ao.quantization.fuser_method_mappings": "fxquant.compat.quantization",
    "torch.ao.quantization.stubs": "fxquant.compat.stubs",
    "torch.ao.quantization.fuse_modules": "fxquant.compat.fuse_modules",
    "torch.quantization.fuse_modules": "fxquant.compat.fuse_modules",
    "torch.ao.quantization.fx._equalize": "fxquant.compat.equalization",
    "torch.ao.nn.quantized": "fxquant.compat.stubs",
    "torch.ao.nn.quantized.modules.functional_modules": "fxquant.compat.stubs",
    "torch.nn.quantized": "fxquant.compat.stubs",
    "torch.ao.ns._numeric_suite_fx": "fxquant.compat.numeric_suite_fx",
    "torch.ao.ns.fx.utils": "fxquant.compat.numeric_suite_fx",
    "torch.ao.ns._numeric_suite": "fxquant.compat.numeric_suite",
}
"""Module of torch.ao -> the module that takes its place."""
