"""The rules of the house, enforced: layers, imports, mirrored tests, complete operators, file sizes, a quiet import."""

from __future__ import annotations

import ast
import doctest
import functools
import graphlib
import importlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import fxquant
from fxquant.kernels.call import CALLS, Call

PACKAGE = Path(fxquant.__file__).parent
TESTS = Path(__file__).parent
CSRC = PACKAGE / "kernels" / "csrc"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("commandline", "errors", "registry"),
    ("settings",),
    ("kernels", "graph", "capture", "plan", "distributed"),
    ("observers", "fake_quantize"),
    ("nn", "patterns"),
    ("backends", "runtime"),
    ("passes",),
    ("calibration", "measure"),
    (
        *("artifact", "equalization", "exchange", "exporting", "quantizer", "training", "api", "reporting", "analysis"),
        "precision",
    ),
    ("compat",),
    ("__main__", "cli", "conformance", "demo", "samples"),
)
"""Modules and packages right below ``fxquant``, lowest first: each imports from its own line and the lines above."""

ROOT_LAYER = 8
"""``fxquant/__init__.py`` gathers what users see; the command line and the demonstration are users of it."""

RUNTIME_DEPENDENCIES = {"torch", "tabulate", "tqdm", "safetensors"}

EXTRAS = {
    "torchvision": ("cli/models.py", "demo/", "samples/"),
    "timm": ("cli/models.py",),
    "PIL": ("cli/images.py", "demo/", "samples/"),
    "matplotlib": ("demo/", "reporting/plots.py"),
    "onnx": ("exporting/onnx/extras.py",),
    "onnx_ir": ("exporting/onnx/extras.py",),
    "onnxscript": ("exporting/onnx/extras.py",),
    "onnxruntime": ("exporting/onnx/extras.py",),
    "openvino": ("exporting/onnx/extras.py",),
}
"""What only the demonstration or a way out needs, and where it may be imported: ``import fxquant`` reaches nothing of
it."""

IMPORTED_LATER = {"__init__.py": "public names of which a program uses few: half of the time of import fxquant"}
"""File that imports names when they are first asked for, and tells type checkers so -> why."""

LAZY_IMPORTS = {
    ("cli/images.py", "PIL"): "an extra: data of the user's own function needs no Pillow",
    ("cli/models.py", "timm"): "an extra, as torchvision",
    ("cli/models.py", "torchvision"): "an extra: a model of the user's own needs no torchvision",
    ("exporting/onnx/extras.py", "onnx"): "an extra of export_onnx",
    ("exporting/onnx/extras.py", "onnx_ir"): "the same",
    ("exporting/onnx/extras.py", "onnxruntime"): "the same",
    ("exporting/onnx/extras.py", "onnxscript"): "the same",
    ("compat/fusion_rows.py", "torch"): "containers that fuse_fx makes; nobody else needs them",
    ("exporting/onnx/extras.py", "openvino"): "the same",
    ("cli/demo.py", "fxquant.demo.story"): "leads to the extras: the other commands run without them",
}
"""(file, module) -> why this import stands inside a function."""

QUANTIZED_TENSORS = {
    "quantize_per_tensor",
    "quantize_per_tensor_dynamic",
    "quantize_per_channel",
    "_empty_affine_quantized",
    "_empty_per_channel_affine_quantized",
    "_make_per_tensor_quantized_tensor",
    "_make_per_channel_quantized_tensor",
    "int_repr",
    "q_scale",
    "q_zero_point",
    "q_per_channel_scales",
}
"""Names in torch that make or read tensors of a quantized dtype."""

DECOMPOSED = {
    "exporting/decomposed.py": "defines operators of another library where nothing else does; asks torch.ao for them",
    "exporting/qparams.py": "calls them",
    "exporting/onnx/program.py": "finds them in exported programs",
    "exporting/onnx/recording.py": "keeps what they give",
    "exporting/onnx/translation.py": "translates them",
}
"""File -> why it names operators of ``quantized_decomposed``: these take plain tensors, and some are called as what
makes tensors of a quantized dtype."""

FORBIDDEN_MODULES = ("torch.ao", "torch.quantization", "torch.nn.quantized", "torch.ops.quantized")

CONTAINERS = "compat/fusion_rows.py"
"""The file that may import what is forbidden, inside a function: ``fuse_fx`` makes containers of torch.ao."""

PRINTING = {
    "cli/": "commands",
    "demo/": "the command ``demo``",
    "fake_quantize/learnable.py": "``observe_quant_params``, which torch.ao has for printing",
}
"""File or folder -> whose purpose it is to print to stdout."""

TABULATE = {"graph/text_table.py"}
"""Files that may import tabulate: one, so that all tables look alike."""

NO_TEST_OF_ITS_OWN: dict[str, str] = {}
"""File -> why no test file mirrors it."""

TESTED_TOGETHER: dict[str, tuple[str, ...]] = {
    # Two processes run all of it.
    "distributed/test_share_work.py": (
        "distributed/facts.py",
        "distributed/processes.py",
        "distributed/ranks.py",
        "distributed/shared_numbers.py",
        "distributed/shared_sums.py",
        "distributed/shares.py",
        "distributed/sharing.py",
        "calibration/batch_records.py",
        "calibration/recorders.py",
        "calibration/summed_counts.py",
        "quantizer/calibrate_in_ranks.py",
        "quantizer/rank_files.py",
        "quantizer/replay_records.py",
    ),
    "reporting/test_facts.py": ("reporting/about.py", "reporting/range_tables.py"),
    # A file is written by one half of these and read by the other.
    "artifact/test_round_trip.py": (
        "artifact/graph.py",
        "artifact/inspect.py",
        "artifact/kinds.py",
        "artifact/layouts.py",
        "artifact/load.py",
        "artifact/modules.py",
        "artifact/plan.py",
        "artifact/quantized_modules.py",
        "artifact/tables.py",
        "artifact/tensors.py",
        "artifact/torch_layers.py",
    ),
    "artifact/test_prepared.py": (
        "artifact/configuration.py",
        "artifact/describe_quantizer.py",
        "artifact/example.py",
        "artifact/fitting_plan.py",
        "artifact/make_quantizer.py",
        "artifact/makers.py",
        "artifact/node_facts.py",
        "artifact/learned_rounding.py",
        "artifact/rounding.py",
        "quantizer/restore.py",
    ),
    "artifact/test_graphs_inside.py": ("artifact/describe_graph.py", "artifact/make_graph.py"),
    # What a program of torch.ao's sees is one thing, whatever files it is made of.
    "compat/test_quantize_fx.py": (
        "compat/backend_patterns.py",
        "compat/configuration.py",
        "compat/conversion.py",
        "compat/observed_graph.py",
        "compat/preparation.py",
        "compat/reading_observers.py",
        "compat/refinement.py",
        "compat/submodules.py",
        "compat/torch_registration.py",
    ),
    "compat/test_observer.py": (
        "compat/duck_typing.py",
        "compat/fake_quantize.py",
        "compat/foreign.py",
        "compat/histogram.py",
        "compat/observer_classes.py",
        "compat/partial.py",
    ),
    "compat/test_backend_config.py": ("compat/backend_classes.py", "compat/backend_tables.py"),
    "compat/test_qconfig_mapping.py": (
        "compat/custom_config.py",
        "compat/qconfig.py",
        "compat/quant_type.py",
    ),
    "compat/test_migration_report.py": (
        "compat/migration.py",
        "compat/not_offered.py",
        "compat/quantization.py",
        "compat/quantize.py",
        "compat/stubs.py",
        "compat/utils.py",
    ),
    "compat/test_fuse.py": ("compat/fusion_rows.py",),
    "compat/test_numeric_suite.py": ("compat/logged_models.py", "compat/numeric_suite_fx.py"),
    "analysis/test_sensitivity.py": ("analysis/unit_scores.py",),
    "analysis/test_profile.py": ("analysis/operator_times.py",),
    # An explicit model is what all of these make of a converted one.
    "exporting/test_explicit.py": (
        "exporting/data_movement.py",
        "exporting/qparams.py",
        "exporting/recurrent.py",
        "exporting/rewrite.py",
        "exporting/table.py",
        "exporting/units.py",
        "exporting/weights.py",
    ),
    # What a pass makes of a graph is read as text; what a file is to a runtime, by running it.
    "exporting/onnx/test_passes.py": (
        "exporting/onnx/biases.py",
        "exporting/onnx/clamps.py",
        "exporting/onnx/data_movement.py",
        "exporting/onnx/dynamic.py",
        "exporting/onnx/editing.py",
        "exporting/onnx/layers.py",
        "exporting/onnx/naming.py",
        "exporting/onnx/weights.py",
    ),
    "exporting/onnx/test_export.py": (
        "exporting/onnx/extras.py",
        "exporting/onnx/program.py",
        "exporting/onnx/targets.py",
        "exporting/onnx/translation.py",
        "exporting/onnx/writing.py",
    ),
    "exporting/onnx/test_check.py": (
        "exporting/onnx/reasons.py",
        "exporting/onnx/report.py",
        "exporting/onnx/runtimes.py",
        "exporting/onnx/units.py",
    ),
    "exporting/test_decomposed.py": ("exporting/operators.py",),
    # Qparams are written by one half of these and read by the other.
    "exchange/test_exchange.py": (
        "exchange/apply.py",
        "exchange/collect.py",
        "exchange/formats.py",
        "exchange/given.py",
        "exchange/own_format.py",
        "exchange/planned.py",
        "exchange/rows.py",
        "exchange/table.py",
        "exchange/weight_qparams.py",
    ),
    "exchange/test_other_formats.py": (
        "exchange/aimet_encodings.py",
        "exchange/onnxruntime_overrides.py",
        "exchange/tensorrt_cache.py",
    ),
    # What is scaled between which layers is one answer of all these.
    "equalization/test_regions.py": (
        "equalization/channels.py",
        "equalization/layers.py",
        "equalization/operators.py",
        "equalization/products.py",
        "equalization/tracker.py",
        "plan/region.py",
    ),
    "equalization/test_equalize.py": (
        "equalization/choices.py",
        "equalization/clamps.py",
        "equalization/factor_choice.py",
        "equalization/factors.py",
        "equalization/noise.py",
        "equalization/product_factors.py",
        "equalization/scaled_copy.py",
        "equalization/search.py",
        "equalization/smoothing.py",
        "equalization/table.py",
        "passes/scale_channels.py",
    ),
    # The bits of each layer are one answer of all these.
    "precision/test_search_precision.py": (
        "plan/precision.py",
        "precision/arguments.py",
        "precision/configurations.py",
        "precision/drop.py",
        "precision/estimates.py",
        "precision/evaluation.py",
        "precision/given.py",
        "precision/gradients.py",
        "precision/group_runs.py",
        "precision/latencies.py",
        "precision/policies.py",
        "precision/results.py",
        "precision/search.py",
        "precision/start.py",
        "precision/table.py",
    ),
    # A model of integers at its boundaries is what all of these make.
    "passes/test_integer_boundaries.py": (
        "artifact/integers.py",
        "passes/boundary_names.py",
        "quantizer/integer_requests.py",
    ),
    # What is planned is one answer of all these modules.
    "passes/test_planning.py": (
        "passes/annotate.py",
        "passes/qconfig_rules.py",
        "passes/refusals.py",
        "passes/unit_building.py",
    ),
    # What conversion does to a graph is read as one text, pass by pass, in the order of the pipelines.
    "passes/test_conversion.py": (
        "passes/fold_conv_bn.py",
        "passes/insert_fake_quant.py",
        "passes/lower_units.py",
        "passes/pipelines.py",
        "passes/rounding.py",
    ),
    # What a comparison finds, and what it says of it, is the answer of all of these.
    "analysis/test_compare.py": (
        "analysis/float_reference.py",
        "analysis/comparison_points.py",
        "analysis/comparison_run.py",
        "analysis/suspects.py",
        "analysis/weights.py",
    ),
    "measure/test_parity.py": ("measure/parity_table.py",),
    # Weights that are computed: into training and back, by models.
    "test_computed_weights.py": (
        "nn/computed.py",
        "passes/computed_tensors.py",
    ),
    "cli/test_main.py": ("__main__.py", "commandline.py"),
    # Data, a model and its accuracy come together in one command.
    "cli/test_quantize.py": ("cli/accuracy.py", "cli/data.py", "cli/subject.py"),
    # A recurrent layer in float, in the simulation and in int8 is one order of steps.
    "nn/test_quantized_recurrent.py": (
        "graph/recurrent.py",
        "kernels/recurrent/sequence.py",
        "nn/packed_recurrent.py",
        "nn/recurrent.py",
        "nn/simulated_recurrent.py",
        "patterns/recurrent.py",
    ),
    "nn/test_fake_quantize.py": ("nn/recomputed.py", "nn/weight_forms.py"),
    "patterns/test_registry.py": ("patterns/defaults.py",),
    # Into training and back is one way.
    "training/test_qat.py": (
        "fake_quantize/from_policy.py",
        "passes/training.py",
        "training/trained.py",
    ),
    # A model is prepared by one call, which users make; what it does, and what it saves, is seen from there.
    "quantizer/test_quantizer.py": (
        "quantizer/attach_observers.py",
        "quantizer/plan_checks.py",
        "quantizer/prepare.py",
        "quantizer/run_passes.py",
        "quantizer/state.py",
    ),
    "quantizer/test_without_example.py": ("capture/optional_arguments.py",),
    "capture/test_automatic.py": (
        "capture/attempts.py",
        "capture/exported/exporting.py",
        "capture/exported/sizes.py",
    ),
    # A program becomes a graph by all of these at once.
    "capture/exported/test_program.py": (
        "capture/exported/attention.py",
        "capture/exported/branches.py",
        "capture/exported/constants.py",
        "capture/exported/guards.py",
        "capture/exported/in_place.py",
        "capture/exported/inline.py",
        "capture/exported/layers.py",
        "capture/exported/names.py",
        "capture/exported/spelling.py",
        "capture/exported/structure.py",
    ),
    # A block is cut, learned and kept by all of these.
    "training/test_blocks.py": ("training/named_blocks.py",),
    "training/test_block_reconstruction.py": (
        "training/block_learning.py",
        "training/block_parts.py",
        "training/block_run.py",
        "training/block_table.py",
        "training/block_values.py",
        "training/flat_gradients.py",
        "training/learnable_blocks.py",
        "training/learning_block.py",
    ),
    "quantizer/test_ends.py": ("observers/low_bit.py",),
    "quantizer/test_convert.py": ("quantizer/final_plan.py", "quantizer/measured.py"),
    "calibration/test_interpreter.py": ("quantizer/calibrate.py",),
    # What one call does, from arguments to integers.
    "training/test_learned_rounding.py": ("training/unit_block.py",),
    "training/test_gptq.py": (
        "training/bound_batches.py",
        "training/gptq_layers.py",
        "training/gptq_weight.py",
        "training/rounded_layers.py",
    ),
    "training/test_weight_matrix.py": ("training/input_products.py",),
    "training/test_correct_statistics.py": (
        "training/channel_statistics.py",
        "training/correctable_layers.py",
        "training/corrected_layers.py",
    ),
}
"""Test file -> the files that it tests as one subject."""

LINES = 400
LARGER_FILES: dict[str, str] = {}
"""File -> why it is one file all the same."""


@dataclass(frozen=True)
class Source:
    """One Python file of the package."""

    path: Path

    @property
    def name(self) -> str:
        """Path below the package, with slashes."""
        return self.path.relative_to(PACKAGE).as_posix()

    @property
    def module(self) -> str:
        """Dotted name."""
        parts = ("fxquant", *self.path.relative_to(PACKAGE).with_suffix("").parts)
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"))

    @functools.cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Everything in the tree."""
        return tuple(ast.walk(self.tree))

    @functools.cached_property
    def imports(self) -> tuple[tuple[ast.stmt, str], ...]:
        """Each import statement, and each module that it names."""
        return tuple(self._imports())

    def _imports(self) -> Iterator[tuple[ast.stmt, str]]:
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node, alias.name
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.name}:{node.lineno}: a relative import"
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield node, inner if inner in MODULES else str(node.module)


SOURCES = tuple(Source(path) for path in sorted(PACKAGE.rglob("*.py")))
MODULES = {source.module for source in SOURCES}


def dotted(node: ast.AST) -> str:
    """``torch.ops.aten`` as code has it; what is no name, as a call before the first dot, is left out."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id if isinstance(node, ast.Name) else "", *reversed(parts)])


def layer_of(module: str) -> int:
    """Number of the layer; the lowest is 0."""
    if module == "fxquant":
        return ROOT_LAYER
    part = module.split(".")[1]
    return next(number for number, parts in enumerate(LAYERS) if part in parts)


def has_code(source: Source) -> bool:
    """Whether there is more than docstrings, imports and ``__all__`` in a file."""
    names = [ast.unparse(node.targets[0]) for node in source.tree.body if isinstance(node, ast.Assign)]
    plain = (ast.Import, ast.ImportFrom, ast.Expr)
    return any(not isinstance(node, (*plain, ast.Assign)) for node in source.tree.body) or bool(
        set(names) - {"__all__", "__version__"}
    )


def test_every_module_has_a_layer():
    known = {part for parts in LAYERS for part in parts}
    assert {module.split(".")[1] for module in MODULES if "." in module} <= known


IMPORTS = 12
"""Modules of ours that a file imports at most."""

TABLES = {
    "compat/quantization.py": "the table of the modules that hold names of torch.ao.quantization",
    "passes/pipelines.py": "the table of all passes in their order",
}
"""File -> the table that it is, whose rows name modules."""


def test_files_import_few_modules():
    found = {
        source.name
        for source in SOURCES
        if source.path.name != "__init__.py" and len({m for _, m in source.imports if m in MODULES}) > IMPORTS
    }
    assert found == set(TABLES)


def test_contributing_draws_these_layers():
    drawing = (TESTS.parent / "CONTRIBUTING.md").read_text("utf-8").split("## The house")[1].split("```")[1]
    rows = [line.split("#")[0].split() for line in drawing.strip().splitlines()]
    drawn = {int(number): set(parts) for number, *parts in rows}
    assert drawn == {number: set(parts) for number, parts in enumerate(LAYERS)}


def test_modules_import_from_their_own_layer_and_lower_ones_only():
    upwards = [
        f"{source.name}:{node.lineno} (layer {layer_of(source.module)}) imports {module} (layer {layer_of(module)})"
        for source in SOURCES
        for node, module in source.imports
        if module.split(".")[0] == "fxquant" and layer_of(module) > layer_of(source.module)
    ]
    assert upwards == []


def test_modules_do_not_import_each_other_in_circles():
    edges = {
        source.module: {module for _, module in source.imports if module in MODULES and module != source.module}
        for source in SOURCES
    }
    graphlib.TopologicalSorter(edges).prepare()


def test_a_pass_imports_no_pass():
    """Passes meet in pipelines only. What two of them share lives in a module that is no pass."""
    passes = {
        source.module
        for source in SOURCES
        if source.name.startswith("passes/") and "@graph_pass(" in source.path.read_text(encoding="utf-8")
    }
    assert passes, "no pass was found, so the test tests nothing"
    found = [
        f"{source.name}:{node.lineno} imports {module}"
        for source in SOURCES
        if source.module in passes
        for node, module in source.imports
        if module in passes
    ]
    assert found == []


def test_no_imports_for_type_checkers_only_and_no_star_imports():
    found = []
    for source in SOURCES:
        for node in source.nodes:
            if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
                found.append(f"{source.name}:{node.lineno}: import *")
            if isinstance(node, (ast.Name, ast.Attribute)) and dotted(node).endswith("TYPE_CHECKING"):
                if source.name in IMPORTED_LATER:
                    continue
                found.append(f"{source.name}:{node.lineno}: TYPE_CHECKING")
    assert found == []


def test_imports_stand_at_the_head_of_the_file():
    found = {
        (source.name, module.split(".")[0] if module.split(".")[0] != "fxquant" else module)
        for source in SOURCES
        for node, module in source.imports
        if node not in source.tree.body and source.name not in IMPORTED_LATER
    }
    assert found == set(LAZY_IMPORTS)


def test_nothing_but_the_declared_dependencies_is_imported():
    found = []
    for source in SOURCES:
        for node, module in source.imports:
            package = module.split(".")[0]
            if package == "fxquant" or package in RUNTIME_DEPENDENCIES or package in sys.stdlib_module_names:
                continue
            if not source.name.startswith(EXTRAS.get(package, ("nowhere",))):
                found.append(f"{source.name}:{node.lineno} imports {module}")
    assert found == []


def test_only_what_is_there_for_it_prints_to_stdout():
    printing = {
        source.name
        for source in SOURCES
        for node in source.nodes
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
        if "file" not in {keyword.arg for keyword in node.keywords}
    }
    assert {name for name in printing if not name.startswith(tuple(PRINTING))} == set()
    assert all(any(name.startswith(place) for name in printing) for place in PRINTING)


def test_tables_are_printed_in_one_place():
    assert {source.name for source in SOURCES if "tabulate" in {module for _, module in source.imports}} == TABULATE


def test_the_framework_that_is_measured_against_is_not_used():
    found = []
    for source in SOURCES:
        found += [
            f"{source.name}:{node.lineno} imports {module}"
            for node, module in source.imports
            if module.startswith(FORBIDDEN_MODULES) and (source.name, node in source.tree.body) != (CONTAINERS, False)
        ]
        for node in source.nodes:
            name = dotted(node) if isinstance(node, ast.Attribute) else ""
            if name.startswith("torch.ops.quantized_decomposed") and source.name in DECOMPOSED:
                continue
            if name.startswith(FORBIDDEN_MODULES):
                found.append(f"{source.name}:{node.lineno} uses {name}")
    assert found == []


def test_no_tensor_of_a_quantized_dtype_is_made_or_read():
    found = []
    for source in SOURCES:
        if source.name in DECOMPOSED:
            continue
        for node in source.nodes:
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            if name in QUANTIZED_TENSORS:
                found.append(f"{source.name}:{node.lineno}: {name}")
    for path in native_sources():
        text = path.read_text(encoding="utf-8")
        found += [f"{path.name}: {name}" for name in QUANTIZED_TENSORS if re.search(rf"\b{name}\b", text)]
    assert found == []


def native_sources() -> list[Path]:
    return sorted(path for path in CSRC.rglob("*") if path.suffix in (".h", ".cpp", ".cu", ".cuh"))


def definitions() -> dict[str, list[ast.Call]]:
    """Stem of a file below ``kernels`` -> its calls of ``define(schema, ...)`` and ``define_operator(record)``."""
    found: dict[str, list[ast.Call]] = {}
    for source in SOURCES:
        if not source.name.startswith("kernels/") or source.name in ("kernels/library.py", "kernels/call.py"):
            continue
        for node in source.nodes:
            if isinstance(node, ast.Call) and dotted(node.func).split(".")[-1] in ("define", "define_operator"):
                found.setdefault(source.path.stem, []).append(node)
    return found


def composing() -> set[str]:
    """Stems of the files whose operators all call other operators, so that none has native sources."""
    native = {record.__module__ for record in CALLS.values() if not record.composed}
    return {record.__module__.split(".")[-1] for record in CALLS.values() if record.__module__ not in native}


def test_operators_are_defined_through_the_library_alone():
    """Whatever defines a schema is seen by the tests below."""
    makers = ("torch.library.Library", "torch.library.custom_op", "torch.library.define", "LIBRARY.define")
    found = [
        f"{source.name}:{node.lineno}"
        for source in SOURCES
        if source.name not in ("kernels/library.py", *DECOMPOSED)
        for node in source.nodes
        if isinstance(node, ast.Attribute) and dotted(node) in makers
    ]
    assert found == []


def test_every_operator_has_schema_reference_and_fake():
    calls = definitions()
    assert calls, "no operator was found, so the test tests nothing"
    for stem, found in calls.items():
        for call in found:
            given = {keyword.arg for keyword in call.keywords}
            assert call.args, f"kernels/{stem}.py:{call.lineno}: no schema"
            if ast.unparse(call.func) == "define":
                assert {"reference", "fake"} <= given, f"kernels/{stem}.py:{call.lineno}: {given}"
    assert CALLS, "no record was found, so the test tests nothing"
    for record in CALLS.values():
        for method in ("reference", "empty_result"):
            assert getattr(record, method) is not getattr(Call, method), f"{record.__name__} has no {method}"


@pytest.mark.parametrize("name", sorted(name for name, record in CALLS.items() if not record.composed))
def test_every_record_has_kernels_for_both_devices(name):
    """Its native sources have the stem of its module, and register the operator by its name."""
    *_, family, stem = CALLS[name].__module__.split(".")
    for device, place in (("cpu", f"cpu/{stem}.cpp"), ("cuda", f"cuda/{stem}.cu")):
        text = (CSRC / family / place).read_text(encoding="utf-8")
        assert re.search(rf'm\.impl\("{re.escape(name)}",\s*FXQ_KERNEL\(\w+_{device}(<\w+>)?\)\)', text), place


@pytest.mark.parametrize("place", ["cpu/{}.cpp", "cuda/{}.cu"])
def test_every_operator_has_native_sources_of_its_stem(place):
    """They lie in the folder of its family, which has the same name in Python and in C++."""
    families = {source.path.stem: source.path.parent.name for source in SOURCES if source.name.startswith("kernels/")}
    wanted = [f"{families[stem]}/{place.format(stem)}" for stem in definitions().keys() - composing()]
    assert [path for path in wanted if not (CSRC / path).exists()] == []


def test_every_native_source_belongs_to_an_operator():
    stems = {*definitions(), "isa", "amx", "brgemm", "copy", "program", "recorder"}  # what bindings and programs share
    found = {path.stem for folder in ("cpu", "cuda") for path in CSRC.rglob(f"{folder}/*.c*")}
    assert found - stems == set()


def test_loops_open_with_what_they_do():
    silent = [path.name for path in CSRC.rglob("loops/*.cpp") if not path.read_text("utf-8").startswith("// ")]
    assert silent == []


def test_formulas_see_neither_torch_nor_pointers():
    found = []
    for path in sorted((CSRC / "math").glob("*")):
        code = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        if re.search(r"torch/|ATen/|\bfor\s*\(|\bwhile\s*\(", code):
            found.append(path.name)
    assert found == []


def test_tests_mirror_the_package():
    missing = [name for name in TESTED_TOGETHER if not (TESTS / name).exists()]
    exempt = {*NO_TEST_OF_ITS_OWN, *(name for names in TESTED_TOGETHER.values() for name in names)}
    for source in SOURCES:
        if not has_code(source) or source.name in exempt:
            continue
        relative = source.path.relative_to(PACKAGE)
        name = (relative.parent.name or "api") if relative.stem == "__init__" else relative.stem
        if not (TESTS / relative.parent / f"test_{name}.py").exists():
            missing.append((relative.parent / f"test_{name}.py").as_posix())
    assert missing == []


def test_exceptions_are_still_needed():
    exempt = [*NO_TEST_OF_ITS_OWN, *(name for names in TESTED_TOGETHER.values() for name in names)]
    assert [name for name in exempt if not (PACKAGE / name).exists()] == []
    assert [name for name in exempt if (TESTS / name).with_name(f"test_{Path(name).name}").exists()] == []
    assert [name for name in LARGER_FILES if len((PACKAGE / name).read_text().splitlines()) <= LINES] == []


def test_files_are_about_one_thing():
    files = [*(source.path for source in SOURCES), *native_sources()]
    long = {
        path.relative_to(PACKAGE).as_posix(): lines
        for path in files
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > LINES
    }
    assert {name: lines for name, lines in long.items() if name not in LARGER_FILES} == {}


def test_every_module_says_what_it_is_about():
    assert [source.name for source in SOURCES if not ast.get_docstring(source.tree)] == []


@pytest.mark.parametrize("module", [source.module for source in SOURCES if ">>> " in source.path.read_text("utf-8")])
def test_examples_in_docstrings_run(module):
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted
    assert not result.failed


def test_public_names_are_sorted_and_documented():
    assert fxquant.__all__ == sorted(
        fxquant.__all__, key=lambda name: (not name.isupper(), not name[0].isupper(), name)
    )
    assert len(set(fxquant.__all__)) == len(fxquant.__all__)
    undocumented = []
    for name in fxquant.__all__:
        item = getattr(fxquant, name)
        if inspect.isclass(item) or inspect.isroutine(item) or inspect.ismodule(item):
            text = inspect.getdoc(item) if not inspect.isclass(item) else item.__doc__
            if not text or text.startswith(f"{name}("):  # what dataclass writes where there is nothing
                undocumented.append(name)
    assert undocumented == []


IMPORT = """
import json, logging, sys, warnings
import torch

def state():
    root, own = logging.getLogger(), logging.getLogger("fxquant")
    return {
        "logging": [root.level, len(root.handlers), own.level, len(own.handlers), own.disabled, own.propagate],
        "warnings": len(warnings.filters),
        "dtype": str(torch.get_default_dtype()),
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "grad": torch.is_grad_enabled(),
        "determinism": torch.are_deterministic_algorithms_enabled(),
        "engine": torch.backends.quantized.engine,
        "seed": torch.get_rng_state().sum().item(),
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
    }

before, loaded = state(), set(sys.modules)
import fxquant
after = state()
print(json.dumps({"before": before, "after": after, "modules": sorted(set(sys.modules) - loaded)}))
"""


@pytest.fixture(scope="module")
def imported() -> dict[str, object]:
    """What a process that imports torch, then fxquant, says of itself."""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT], capture_output=True, text=True, cwd=TESTS.parent
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    lines = run.stdout.splitlines()
    assert len(lines) == 1, lines
    return json.loads(lines[0])


def test_importing_brings_in_nothing_but_the_dependencies(imported):
    packages = {name.split(".")[0] for name in imported["modules"]}
    usual = {"fxquant", *RUNTIME_DEPENDENCIES, *sys.stdlib_module_names, "wcwidth", "_distutils_hack"}
    assert packages - usual == set()
    unwanted = ("torch.ao", "torch.onnx", "torchvision", "fxquant.compat")
    assert [name for name in imported["modules"] if name.startswith(unwanted)] == []


def test_importing_leaves_the_process_as_it_was(imported):
    assert imported["after"] == imported["before"]
