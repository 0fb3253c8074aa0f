"""The table of torch.ao's names: which move as they are, which with a difference, and what stands for the others."""

from __future__ import annotations

CHANGED: dict[str, str] = {
    "prepare_fx": "what the model returns is rounded as in torch.ao; sums, pools and attention may be fused further",
    "prepare_qat_fx": "batch norms stay modules of their own; freeze_bn_stats comes from fxquant.compat.quantization",
    "convert_fx": "modules of fxquant.nn, plain int8 tensors, float32 biases; recurrent layers by dynamic qconfigs",
    "convert_to_reference_fx": "quantize and dequantize are operators of fxquant, not of quantized dtypes",
    "fuse_fx": "needs a torch that has torch.ao.nn.intrinsic; prepare_fx does without",
    "quantize_dynamic": "returns a graph, or of what cannot be traced a copy with other layers; no float16, no inplace",
    "FusedMovingAvgObsFakeQuantize": "symmetric scales are the range over 127.5 steps, as of observers, not over 128",
    "BackendConfig": "read for what it forbids; lowering and fused classes are those of fxquant",
    "BackendPatternConfig": "root, qat and reference modules are kept, and not read",
    "PrepareCustomConfig": "quantized inputs and outputs are plain integer tensors",
    "ConvertCustomConfig": "from_observed gets a module without activation_post_process, and float inputs",
    "QuantStub": "passes values on: a graph needs no marks",
    "DeQuantStub": "passes values on",
    "QuantWrapper": "passes values on",
    "freeze_bn_stats": "import it from fxquant.compat.quantization: that of torch.ao knows its own modules only",
    "update_bn_stats": "the same",
    "float16_static_qconfig": "layers stay float32",
    "float16_dynamic_qconfig": "layers stay float32",
    "default_embedding_qat_qconfig_4bit": "trained in float with 4 bit tables simulated",
    "get_default_qconfig": "the engine decides nothing but the observers: kernels are chosen at run time",
    "get_default_qconfig_mapping": "the same",
}
"""Name -> what is different here."""

NOT_OFFERED: dict[str, str] = {
    "prepare": "prepare_fx(model, mapping, example_inputs) needs no stubs and no fuse_modules",
    "prepare_qat": "prepare_qat_fx(model, mapping, example_inputs)",
    "convert": "convert_fx(prepared)",
    "quantize": "prepare_fx, the data, convert_fx; or fxquant.quantize(model, data)",
    "quantize_qat": "prepare_qat_fx, the training, convert_fx",
    "propagate_qconfig_": "QConfigMapping().set_module_name(name, qconfig) says it without attributes",
    "add_quant_dequant": "prepare_fx finds what is quantized",
    "swap_module": "convert_fx(prepared)",
    "get_default_custom_config_dict": "PrepareCustomConfig()",
    "fuse_modules": "prepare_fx fuses by itself; fuse_fx(model) makes containers",
    "fuse_modules_qat": "prepare_qat_fx trains with folded batch norms",
    "get_default_qconfig_dict": "get_default_qconfig_mapping(backend)",
    "get_default_qat_qconfig_dict": "get_default_qat_qconfig_mapping(backend)",
    "scale_qat_module": "nothing: batch norms are modules of their own",
    "quantize_jit": "prepare_fx: TorchScript has no part in fxquant",
    "prepare_jit": "prepare_fx",
    "convert_jit": "convert_fx",
    "prepare_pt2e": "fxquant.prepare(exported_program, example_inputs)",
    "prepare_qat_pt2e": "fxquant.prepare_qat(exported_program, example_inputs)",
    "convert_pt2e": "fxquant.convert(prepared)",
    "get_default_static_quant_module_mappings": "the table of fxquant.backends.cpu",
    "get_default_dynamic_quant_module_mappings": "the table of fxquant.backends.cpu",
    "get_default_qat_module_mappings": "none: training changes no classes",
    "get_native_backend_config": "None: the back end cpu is the default",
    "get_fbgemm_backend_config": "None: the back end cpu is the default",
    "get_x86_backend_config": "None: the back end cpu is the default",
    "get_qnnpack_backend_config": "None: the back end cpu is the default",
    "get_onednn_backend_config": "None: the back end cpu is the default",
    "get_executorch_backend_config": "fxquant.export gives what ExecuTorch reads",
    "get_tensorrt_backend_config": "fxquant.prepare(..., backend='tensorrt')",
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
    "torch.ao.quantization.stubs": "fxquant.compat.stubs",
}
"""Module of torch.ao -> the module that takes its place."""
