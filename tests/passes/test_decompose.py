"""Attention, einsum and others taken apart: the same values, the user's paths, rules that mean what they say."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule

import fxquant as fxq
from fxquant.backends.base import BACKENDS
from fxquant.capture.trace_guards import require_value
from fxquant.capture.tracing import trace
from fxquant.graph.decompositions.composites import MANY
from fxquant.graph.query import module_path, reason_of
from fxquant.graph.shapes import record_values
from fxquant.observers.defaults import get_default_qconfig_mapping
from fxquant.passes.base import PassContext
from fxquant.passes.decompose import decompose_attention
from fxquant.passes.manager import PassManager
from fxquant.passes.normalize import normalize
from fxquant.patterns import DEFAULT_PATTERNS, Pattern, op, tensor
from fxquant.patterns.floats import COMPOSITE
from fxquant.plan.quant_plan import QuantPlan
from fxquant.settings import Settings
from tests.outputs import rounding_outputs
from tests.sampling import one_of

CLOSE = 1e-5
"""Absolute difference of values near 1: sums in float32 taken in another order."""

LINEARS = tuple(pattern for pattern in DEFAULT_PATTERNS if torch.matmul not in pattern.root.all_targets)
PRODUCT = Pattern(
    "product", op(torch.matmul)(tensor("a"), tensor("b")), ("a", "b"), lower={"cpu": lambda view: nn.Identity()}
)

LENGTH, KEYS, BATCH, WIDTH, HEADS = 5, 7, 3, 8, 2


def decomposed(
    model: nn.Module, *inputs: Tensor, config: fxq.QConfigMapping | None = None, patterns=(*LINEARS, PRODUCT), **kwargs
) -> GraphModule:
    """The graph after the pass, with what it knows of every value checked against the values."""
    gm = trace(model.eval(), example_args=inputs, example_kwargs=kwargs)
    config = config or get_default_qconfig_mapping("cpu")
    ctx = PassContext(QuantPlan(), config, BACKENDS["cpu"], patterns, example_args=inputs, example_kwargs=kwargs)
    gm = PassManager((normalize, decompose_attention), settings=Settings(verify=True)).run(gm, ctx)
    said = {node.name: str(node.meta["fxquant_value"]) for node in gm.graph.nodes if node.op.startswith("call")}
    record_values(gm, inputs, kwargs)
    assert said == {n.name: str(n.meta["fxquant_value"]) for n in gm.graph.nodes if n.op.startswith("call")}
    return gm


def calls(gm: GraphModule) -> list[str]:
    nodes = [node for node in gm.graph.nodes if node.op.startswith("call") and node.target is not require_value]
    return [str(getattr(node.target, "__name__", node.target)) for node in nodes]


def assert_close(got: object, expected: object) -> None:
    torch.testing.assert_close(got, expected, atol=CLOSE, rtol=0)


class Attend(nn.Module):
    """Self- or cross-attention with fixed options."""

    def __init__(self, options: dict | None = None, cross: bool = False, **call) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, **(options or {}))
        nn.init.uniform_(self.attn.in_proj_bias) if self.attn.in_proj_bias is not None else None
        self.cross, self.call = cross, call

    def forward(self, x: Tensor, memory: Tensor, attn_mask=None, key_padding_mask=None) -> object:
        memory = memory if self.cross else x
        return self.attn(x, memory, memory, attn_mask=attn_mask, key_padding_mask=key_padding_mask, **self.call)


def inputs(batch_first: bool, batched: bool, memory_width: int = WIDTH) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x, memory = torch.randn(BATCH, LENGTH, WIDTH), torch.randn(BATCH, KEYS, memory_width)
    if not batched:
        return x[0], memory[0]
    return (x, memory) if batch_first else (x.transpose(0, 1), memory.transpose(0, 1))


@pytest.mark.parametrize(
    ("batch_first", "batched", "cross", "bias", "need_weights"),
    one_of(3, list(itertools.product((True, False), (True, False), (True, False), (True, False), (True, False)))),
)
def test_multihead_attention_keeps_its_values(batch_first, batched, cross, bias, need_weights):
    options = {"batch_first": batch_first, "bias": bias, "dropout": 0.1}
    model = Attend(options, cross, need_weights=need_weights, average_attn_weights=bias).eval()
    x = inputs(batch_first, batched)
    gm = decomposed(model, *x)
    assert "scaled_dot_product_attention" not in calls(gm)
    assert calls(gm).count("matmul") == 2
    for given in (x, tuple(torch.cat((t, t), -2) for t in x)):  # another length, too
        assert_close(gm(*given), model(*given))


def test_projections_of_other_widths():
    model = Attend({"kdim": 6, "vdim": 6, "batch_first": True}, cross=True).eval()
    x = inputs(True, True, 6)
    gm = decomposed(model, *x)
    assert gm.attn.k_proj.weight.shape == (WIDTH, 6)
    assert_close(gm(*x), model(*x))


MASKS = {
    "bool": torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1),
    "float": torch.randn(LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)),
    "per head": torch.rand(BATCH * HEADS, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)) > 0.9,
    "none": None,
}
PADDINGS = {
    "bool": torch.arange(LENGTH) >= torch.tensor([[5], [3], [4]]),
    "float": torch.randn(BATCH, LENGTH, generator=torch.Generator().manual_seed(2)),
    "none": None,
}


@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("padding", one_of(3, PADDINGS))
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("patterns", [LINEARS, (*LINEARS, PRODUCT)], ids=["linears", "products"])
def test_masks(mask, padding, need_weights, patterns):
    given = {"attn_mask": MASKS[mask], "key_padding_mask": PADDINGS[padding]}
    given = {name: value for name, value in given.items() if value is not None}
    model = Attend({"batch_first": True}, need_weights=need_weights).eval()
    x = inputs(True, True)
    gm = decomposed(model, *x, patterns=patterns, **given)
    assert ("scaled_dot_product_attention" in calls(gm)) == (patterns == LINEARS and not need_weights)
    assert_close(gm(*x, **given), model(*x, **given))


def test_a_causal_hint_stands_for_its_mask():
    model = Attend({"batch_first": True}, is_causal=True, need_weights=False).eval()
    x = inputs(True, True)
    gm = decomposed(model, *x, attn_mask=MASKS["bool"])
    assert_close(gm(*x, attn_mask=MASKS["bool"]), model(*x, attn_mask=MASKS["bool"]))


def test_masks_without_a_batch():
    model = Attend().eval()
    x, masks = inputs(True, False), {"key_padding_mask": PADDINGS["bool"][1], "attn_mask": MASKS["per head"][:HEADS]}
    assert_close(decomposed(model, *x, **masks)(*x, **masks), model(*x, **masks))


def test_layers_lie_below_the_users_path_and_nothing_is_kept_twice():
    gm = decomposed(Attend({"batch_first": True}), *inputs(True, True))
    layers = ("q_proj", "k_proj", "v_proj", "out_proj")
    assert list(gm.state_dict()) == [f"attn.{layer}.{name}" for layer in layers for name in ("weight", "bias")]
    called = [module_path(node)[0] for node in gm.graph.nodes if node.op == "call_module"]
    assert called == [f"attn.{layer}" for layer in layers]
    assert {module_path(node)[0] for node in gm.graph.nodes if node.target is torch.matmul} == {"attn"}


def test_one_attention_called_at_two_places_shares_its_layers():
    class Twice(Attend):
        def forward(self, x, memory):
            x = self.attn(x, x, x)[0]
            return self.attn(x, memory, memory)[0] + self.attn.in_proj_bias.sum()

    model, x = Twice({"batch_first": True}).eval(), inputs(True, True)
    gm = decomposed(model, *x)
    assert [n.target for n in gm.graph.nodes if n.op == "call_module"].count("attn.q_proj") == 2
    assert "attn.in_proj_bias" in gm.state_dict()  # read beside
    assert_close(gm(*x), model(*x))


def test_readers_of_the_whole_pair_of_one_item_and_of_none():
    class Readers(Attend):
        def forward(self, x, memory):
            pair = self.attn(x, x, x, need_weights=False)
            return {"pair": pair, "first": pair[0], "last": pair[-1], "sum": torch.add(pair[0], 1)}

    model, x = Readers({"batch_first": True}).eval(), inputs(True, True)
    gm = decomposed(model, *x)
    got = gm(*x)
    assert got["last"] is None
    assert got["pair"][1] is None
    assert_close(got["sum"], model(*x)["sum"])
    assert "getitem" not in calls(gm)


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_attention_with_keys_of_its_own_stays_whole_with_a_reason(option):
    gm = decomposed(Attend({option: True}), *inputs(False, True))
    reasons = [reason_of(node) for node in gm.graph.nodes if node.target == "attn"]
    assert reasons == [
        "attention with add_bias_kv or add_zero_attn (keys and values of its own) is not taken apart",
    ]


@pytest.mark.parametrize(
    ("causal", "mask"), [(True, None), (False, None), (False, "bool"), (False, "float")]
)  # torch takes one of the two
@pytest.mark.parametrize("scale", [None, 0.3])
def test_scaled_dot_product_attention(causal, mask, scale):
    class Product(nn.Module):
        def forward(self, q, k, v, mask=None):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)

    torch.manual_seed(0)
    given = [torch.randn(2, HEADS, length, 4) for length in (LENGTH, KEYS, KEYS)]
    if mask == "bool":
        given.append(torch.rand(LENGTH, KEYS) > 0.5)
        given[-1][0] = False  # a query that may attend to nothing
    elif mask == "float":
        given.append(torch.randn(2, 1, LENGTH, KEYS))
    gm = decomposed(Product(), *given)
    assert calls(gm).count("matmul") == 2
    assert_close(gm(*given), Product()(*given))


def test_grouped_queries_and_dropout_that_is_always_active():
    class Grouped(nn.Module):
        def forward(self, q, k, v):
            plain = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
            return plain, F.scaled_dot_product_attention(q, k, v, dropout_p=0.5, enable_gqa=True)

    q, k = torch.randn(1, 4, LENGTH, 8), torch.randn(1, 2, LENGTH, 8)
    ctx_model = Grouped().eval()
    gm = decomposed_without_verification(ctx_model, q, k, k)
    assert_close(gm(q, k, k)[0], ctx_model(q, k, k)[0])
    dropouts = [node for node in gm.graph.nodes if node.target is F.dropout]
    assert [node.args[1:] for node in dropouts] == [(0.5, True)]


def decomposed_without_verification(model: nn.Module, *inputs: Tensor) -> GraphModule:
    """For models whose values are random."""
    gm = trace(model, example_args=inputs)
    ctx = PassContext(QuantPlan(), get_default_qconfig_mapping("cpu"), BACKENDS["cpu"], (*LINEARS, PRODUCT))
    return PassManager((normalize, decompose_attention)).run(gm, ctx)


def config(*rules: tuple) -> fxq.QConfigMapping:
    mapping = get_default_qconfig_mapping("cpu")
    for method, *arguments in rules:
        getattr(mapping, method)(*arguments)
    return mapping


@pytest.mark.parametrize(
    "rule",
    [
        ("set_module_name", "attn", None),
        ("set_module_name_regex", r".*attn$", None),
        ("set_object_type", nn.MultiheadAttention, None),
        ("set_global", None),
        ("set_module_name_object_type_order", "", nn.MultiheadAttention, 0, None),
    ],
    ids=lambda rule: rule[0],
)
def test_what_the_configuration_leaves_in_float_stays_one_operator(rule):
    assert calls(decomposed(Attend(), *inputs(False, True), config=config(rule))) == ["attn"]


def test_nothing_is_taken_apart_that_no_pattern_would_quantize():
    assert calls(decomposed(Attend(), *inputs(False, True), patterns=())) == ["attn"]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(16, 4, batch_first=True)
        self.fc = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.attn(x, x, x, need_weights=False)[0])


def fates(*rules: tuple, **options) -> dict[str, str]:
    prepared = fxq.prepare(Block().eval(), torch.randn(2, 5, 16), config(*rules), **options)
    return {row.module: row.fate for row in prepared.coverage() if row.macs and row.module != "attn"}


INT8 = dict.fromkeys(("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.out_proj", "fc"), "int8")


def test_rules_that_name_the_module_a_layer_or_a_type():
    assert fates() == INT8
    assert fates(("set_module_name", "attn.out_proj", None)) == INT8 | {"attn.out_proj": "float"}
    assert fates(("set_module_name", "attn.q_proj", None)) == INT8 | {"attn.q_proj": "float"}
    assert fates(("set_object_type", nn.MultiheadAttention, None)) == {"fc": "int8"}
    int8 = fates(("set_object_type", nn.Linear, None), ("set_module_name", "fc", fxq.get_default_qconfig()))
    assert [name for name, fate in int8.items() if fate == "int8"] == ["fc"]


def test_a_rule_for_the_module_holds_for_its_layers():
    qconfig = fxq.QConfig(fxq.MinMaxObserver.with_args(dtype=torch.int8), fxq.get_default_qconfig().weight)
    rules = (("set_object_type", nn.MultiheadAttention, qconfig), ("set_object_type", nn.Linear, None))
    assert fates(*rules) == dict.fromkeys(INT8, "int8") | {"fc": "float"}


def test_leaf_modules_keeps_attention_whole():
    prepared = fxq.prepare(Block().eval(), torch.randn(2, 5, 16), leaf_modules=("attn",))
    rows = {row.module: row.reason for row in prepared.coverage()}
    assert rows["attn"] == "kept whole and in float by leaf_modules"


def test_softmax_under_a_mask_is_a_unit_as_any_softmax_is():
    x = inputs(True, True)
    model = Attend({"batch_first": True}, need_weights=False).eval()
    forms = [fxq.prepare(model, x, example_kwargs=masks) for masks in ({"attn_mask": MASKS["bool"]}, {})]
    rows = [[row for row in prepared.coverage() if "softmax" in row.node] for prepared in forms]
    assert [[(row.operator, row.fate) for row in each] for each in rows] == [[("attention_weights", "int8")]] * 2


X = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))


class Projection(nn.Module):
    """A linear layer as GPT-2 writes it: one addmm, its weight the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 6))
        self.bias = nn.Parameter(torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.projection = Projection()
        self.glu = nn.GLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.glu(self.projection(x))


class Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layer(x)
        return torch.einsum("ij,kj->ik", y, y), torch.einsum("ij,kj,kl->il", y, y, y)


def units(prepared: fxq.Quantizer) -> list[str]:
    return [unit.pattern for unit in prepared.plan.units]


def reasons(prepared: fxq.Quantizer) -> dict[str, str]:
    return {row.operator: row.reason for row in prepared.coverage().float_rows if not row.excused}


def test_a_projection_is_a_layer_where_its_weight_stood():
    model = Gated().eval()
    prepared = fxq.prepare(model, X, rounding_outputs())
    assert units(prepared) == ["linear", "chunk", "getitem", "getitem", "sigmoid", "mul"]
    assert set(prepared.graph_module.state_dict()) == set(model.state_dict())
    torch.testing.assert_close(prepared(X), model(X))
    assert prepared.coverage().rows[0].module == "projection"


def test_a_product_has_the_name_and_the_line_of_the_einsum():
    prepared = fxq.prepare(Products().eval(), X, rounding_outputs())
    assert units(prepared) == ["linear", "permute", "matmul"]
    assert [row.node for row in prepared.coverage() if row.operator == "matmul"] == ["einsum"]
    assert "test_decompose.py" in next(row.line for row in prepared.coverage() if row.node == "einsum")
    assert reasons(prepared) == {"einsum": MANY}


@pytest.mark.parametrize("named", [torch.einsum, "einsum"])
def test_what_the_configuration_leaves_in_float_stays_whole(named):
    config = fxq.get_default_qconfig_mapping("cpu").set_object_type(named, None)
    prepared = fxq.prepare(Products().eval(), X, config)
    assert units(prepared) == ["linear"]
    assert [row.operator for row in prepared.coverage().float_rows] == ["einsum", "einsum"]


def test_a_rule_for_the_operator_decides_for_its_parts():
    config = fxq.get_default_qconfig_mapping("cpu").set_object_type(nn.GLU, None)
    prepared = fxq.prepare(Gated().eval(), X, config)
    assert units(prepared) == ["linear"]
    assert [row.operator for row in prepared.coverage().float_rows] == ["glu"]


def test_what_a_users_pattern_names_stays_whole():
    mine = Pattern("mine", op(F.glu)(tensor("x")), lower={"cpu": lambda view: nn.GLU()})
    prepared = fxq.prepare(Gated().eval(), X, rounding_outputs(), patterns=(mine, *DEFAULT_PATTERNS))
    assert units(prepared) == ["linear", "mine"]


def test_where_no_part_would_be_quantized_it_stays_whole():
    patterns = tuple(p for p in DEFAULT_PATTERNS if torch.matmul not in p.root.all_targets)
    prepared = fxq.prepare(Products().eval(), X, rounding_outputs(), patterns=patterns)
    assert units(prepared) == ["linear"]
    assert reasons(prepared) == {"einsum": COMPOSITE}


def test_integers_and_constants_are_left_alone():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4, 4))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            counts = torch.einsum("ij,ij->i", (x > 0).long(), (x > 1).long())
            return F.linear(x, torch.einsum("ij,jk->ik", self.weight, self.weight)), counts

    prepared = fxq.prepare(Net().eval(), X, rounding_outputs())
    assert units(prepared) == ["linear"]
    assert [node.target for node in prepared.graph.nodes].count(torch.einsum) == 1
    assert reasons(prepared) == {}


def test_an_einsum_that_changes_nothing_is_gone():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(torch.einsum("ij->ij", x))

    model = Net().eval()
    prepared = fxq.prepare(model, X, rounding_outputs())
    assert [node.name for node in prepared.graph.nodes] == ["x", "layer", "output"]
    assert torch.equal(prepared(X), model(X))


class Joined(nn.Module):
    """Two layers, and between them a function of images [N, 8, 4, 4] that gives as many channels."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.a, self.b = function, nn.Conv2d(4, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.function(self.a(x)))


JOINS = {
    "cat of a chunk": (lambda h: torch.cat(h.chunk(2, 1), 1), ["chunk", "getitem", "getitem", "cat"]),
    "cat of a list of it": (lambda h: torch.cat([*h.chunk(2, 1)], 1), ["chunk", "getitem", "getitem", "cat"]),
    "keywords": (lambda h: torch.cat(tensors=h.chunk(2, 1), dim=1), ["chunk", "getitem", "getitem", "cat"]),
    "cat of a split": (lambda h: torch.cat(torch.split(h, [3, 5], 1), 1), ["split", "getitem", "getitem", "cat"]),
    "stack of a split": (lambda h: torch.stack(h.split(4, 1), 4).mean(4).repeat(1, 2, 1, 1), None),
    "hstack": (lambda h: torch.hstack([h[:, :4], h[:, 4:]]), ["getitem", "getitem", "cat"]),
    "vstack": (lambda h: torch.vstack((h, h)), ["cat"]),
    "dstack": (lambda h: torch.dstack((h, h)), ["cat"]),
    "column_stack": (lambda h: torch.column_stack([h[:, :4], h[:, 4:]]), ["getitem", "getitem", "cat"]),
    "hstack of vectors": (lambda h: torch.hstack((h.flatten(), h.flatten())).view(-1, 8, 4, 4), None),
    "vstack of vectors": (lambda h: torch.vstack((h.flatten(), h.flatten())).view(-1, 8, 4, 4), None),
    "dstack of matrices": (lambda h: torch.dstack((h.flatten(1), h.flatten(1))).view(-1, 8, 4, 4), None),
    "dstack of vectors": (lambda h: torch.dstack((h.flatten(), h.flatten())).view(-1, 8, 4, 4), None),
    "column_stack of vectors": (lambda h: torch.column_stack((h.flatten(), h.flatten())).view(-1, 8, 4, 4), None),
}


@pytest.mark.parametrize("name", JOINS)
def test_what_is_joined_is_integers_in_every_spelling(name):
    torch.manual_seed(0)
    function, wanted = JOINS[name]
    model, x = Joined(function).eval(), torch.randn(2, 4, 4, 4)
    prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
    between = [unit.pattern for unit in prepared.plan.units][1:-1]
    assert between == wanted if wanted else between
    assert prepared.plan.refusals == ()
    int8 = fxq.convert(prepared)
    with torch.no_grad():
        expected = model(x)
        assert torch.equal(prepared(x), expected)
        assert (int8(x) - expected).norm() < 0.05 * expected.norm()


def test_a_chunk_of_fewer_parts_than_the_example_had_is_refused():
    x = torch.randn(2, 4, 4, 4)
    int8 = fxq.quantize(Joined(lambda h: torch.cat(h.split(2, 2), 3)).eval(), [x], progress=False)
    with pytest.raises(fxq.FxQuantError, match="other sizes"):
        int8(torch.randn(2, 4, 6, 4))
