"""QConfig, QConfigMapping: who wins, what matches nothing, and what is refused."""

from __future__ import annotations

import copy
import functools
import operator
import pickle
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.ao import quantization as torch_ao
from torch.ao.quantization import observer as ao

from fxquant.errors import FxQuantWarning, SpecError
from fxquant.observers import (
    FixedQParamsObserver,
    HistogramObserver,
    MinMaxObserver,
    PerChannelMinMaxObserver,
    PlaceholderObserver,
    default_observer,
    default_per_channel_weight_observer,
)
from fxquant.plan.qconfig import QConfig, QConfigMapping
from fxquant.plan.spec import QScheme

INT8 = QConfig(default_observer, default_per_channel_weight_observer)
INT4 = QConfig(default_observer, default_per_channel_weight_observer.with_args(bits=4))
INT6 = QConfig(default_observer, default_per_channel_weight_observer.with_args(bits=6))


def test_qconfig_knows_its_grids():
    assert INT4.activation_scheme == QScheme(signed=False)
    assert INT4.weight_scheme == QScheme(bits=4, symmetric=True, axis=0)
    assert QConfig(default_observer, PlaceholderObserver).weight_scheme is None
    assert QConfig(MinMaxObserver, functools.partial(MinMaxObserver, bits=3)).weight_scheme.bits == 3


def test_qconfig_is_a_value():
    twin = QConfig(HistogramObserver.with_args(dtype=torch.uint8), default_per_channel_weight_observer)
    assert twin == INT8 != INT4
    assert hash(twin) == hash(INT8)
    for copied in (pickle.loads(pickle.dumps(INT4)), copy.deepcopy(INT4)):
        assert copied == INT4
        assert copied.weight_scheme == INT4.weight_scheme
    assert repr(INT4) == (
        "QConfig(activation=HistogramObserver.with_args(dtype=torch.uint8), weight=PerChannelMinMaxObserver.with_args("
        "ch_axis=0, dtype=torch.int8, qscheme='per_channel_symmetric', bits=4), output=None, correct_bias=False)"
    )
    with pytest.raises(AttributeError, match="cannot assign to field"):
        twin.weight = None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: QConfig(MinMaxObserver(), MinMaxObserver),
            "QConfig activation is no constructor\n"
            "  got:      MinMaxObserver(uint8 affine per tensor, min_val=inf, max_val=-inf)\n"
            "  expected: an observer class, or what its with_args(...) gives\n"
            "  hint:     leave out the call: it is made anew for every tensor",
        ),
        (
            lambda: QConfig(MinMaxObserver, None),
            "QConfig weight is no constructor\n"
            "  got:      None\n"
            "  expected: an observer class, or what its with_args(...) gives",
        ),
        (
            lambda: QConfig(MinMaxObserver, nn.Identity),
            "QConfig weight makes something that is no observer of fxquant\n"
            "  got:      torch.nn.modules.linear.Identity\n"
            "  expected: an observer class, or what its with_args(...) gives; one of your own has a scheme (a QScheme, "
            "or None) and calculate_qparams()\n"
            "  hint:     fxquant.observers has the observers of torch.ao.quantization under the same names",
        ),
        (
            lambda: QConfig(ao.MinMaxObserver, MinMaxObserver),
            "QConfig activation makes something that is no observer of fxquant\n"
            "  got:      torch.ao.quantization.observer.MinMaxObserver\n"
            "  expected: an observer class, or what its with_args(...) gives; one of your own has a scheme (a QScheme, "
            "or None) and calculate_qparams()\n"
            "  hint:     fxquant.observers has the observers of torch.ao.quantization under the same names",
        ),
        (
            lambda: QConfig(MinMaxObserver.with_args(bits=1), MinMaxObserver),
            "bits is out of range\n  got:      1\n  expected: a whole number from 2 to 16",
        ),
        (
            lambda: QConfig(MinMaxObserver, MinMaxObserver.with_args(bits=17)),
            "bits is out of range\n  got:      17\n  expected: a whole number from 2 to 16",
        ),
        (
            lambda: QConfig(PerChannelMinMaxObserver.with_args(ch_axis=1), MinMaxObserver),
            "an activation has one scale for the whole tensor\n"
            "  got:      QConfig(activation=PerChannelMinMaxObserver.with_args(ch_axis=1)): "
            "uint8 affine per channel (axis 1)\n"
            "  expected: a per tensor observer such as MinMaxObserver; per channel is for weights",
        ),
        (
            lambda: QConfig(PlaceholderObserver.with_args(is_dynamic=True), MinMaxObserver),
            "a range that is measured at run time is the range of quantized values\n"
            "  got:      PlaceholderObserver.with_args(is_dynamic=True)\n"
            "  expected: an integer dtype",
        ),
        (
            lambda: QConfigMapping().set_global(MinMaxObserver),
            "a rule holds a QConfig\n"
            "  got:      <class 'fxquant.observers.minmax.MinMaxObserver'>\n"
            "  expected: a QConfig of fxquant, or None to leave in float",
        ),
        (
            lambda: QConfigMapping().set_object_type(nn.Linear(1, 1), None),
            "not a type of operator\n"
            "  got:      Linear(in_features=1, out_features=1, bias=True)\n"
            "  expected: a module class, a function, or the name of a method\n"
            "  hint:     for one module of the model, use set_module_name with its path",
        ),
        (
            lambda: QConfigMapping().set_module_name(nn.Linear, None),
            "a module is named by its path\n"
            "  got:      <class 'torch.nn.modules.linear.Linear'>\n"
            "  expected: a string such as 'layer1.0.conv1'",
        ),
        (
            lambda: QConfigMapping().set_module_name_regex("layer(", None),
            "not a regular expression\n"
            "  got:      'layer('\n"
            "  hint:     missing ), unterminated subpattern at position 5",
        ),
        (
            lambda: QConfigMapping().set_module_name_object_type_order("", nn.Linear, -1, None),
            "index counts uses of a type in a module\n  got:      -1\n  expected: 0 or more",
        ),
        (
            lambda: QConfigMapping.from_dict({"object_types": []}),
            "unknown kind of rule\n"
            "  got:      'object_types'\n"
            "  expected: '', 'object_type', 'module_name_regex', 'module_name', 'module_name_object_type_order'\n"
            "  hint:     did you mean 'object_type'?",
        ),
        (
            lambda: QConfigMapping.of(None),
            "not a configuration\n  got:      None\n  expected: a QConfig or a QConfigMapping of fxquant",
        ),
        *(
            (
                lambda inputs=inputs: QConfigMapping.of(inputs),
                f"not a configuration\n  got:      {got}\n  expected: a QConfig or a QConfigMapping of fxquant\n"
                "  hint:     example_inputs come before qconfig: prepare(model, (x,), qconfig)",
            )
            for inputs, got in (
                (torch.ones(4, 3, 8, 8), "float32[4, 3, 8, 8]"),
                ((torch.ones(4, 3, 8, 8),), "(float32[4, 3, 8, 8],)"),
                ({"x": torch.ones(2)}, "{x: float32[2]}"),
            )
        ),
        (
            lambda: QConfigMapping.of(torch_ao.get_default_qconfig_mapping()),
            "not a configuration\n"
            "  got:      torch.ao.quantization.qconfig_mapping.QConfigMapping\n"
            "  expected: a QConfig or a QConfigMapping of fxquant\n"
            "  hint:     the names of torch.ao's are the same in fxq",
        ),
        (
            lambda: QConfigMapping().set_global(torch_ao.default_qconfig),
            "a rule holds a QConfig\n"
            "  got:      torch.ao.quantization.qconfig.QConfig\n"
            "  expected: a QConfig of fxquant, or None to leave in float\n"
            "  hint:     the names of torch.ao's are the same in fxq",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(SpecError) as caught:
        make()
    assert str(caught.value) == message


def test_missing_arguments_are_named():
    with pytest.raises(SpecError, match=r"QConfig weight cannot be built\n  got: .*scale=1.0\)\n  hint: .*zero_point"):
        QConfig(MinMaxObserver, FixedQParamsObserver.with_args(scale=1.0))


def test_later_kinds_win_whatever_the_order_of_the_calls():
    rules = (
        QConfigMapping()
        .set_module_name_object_type_order("body", F.linear, 1, None)
        .set_module_name("body.0", INT6)
        .set_module_name_regex(r".*\.\d", INT4)
        .set_object_type(nn.Linear, None)
        .set_global(INT8)
    )
    occurrence = ("body", F.linear, 1)
    for site, kind, qconfig in (
        (("body.0", [nn.Linear], [occurrence]), "module_name_object_type_order", None),
        (("body.0", [nn.Linear], [("body", F.linear, 0)]), "module_name", INT6),
        (("body.1", [nn.Linear]), "module_name_regex", INT4),
        (("head", [nn.Linear]), "object_type", None),
        (("head", [nn.Conv2d]), "global", INT8),
        (("", []), "global", INT8),
    ):
        rule = rules.resolve(*site)
        assert (rule.kind, rule.qconfig) == (kind, qconfig)


def test_a_skip_wins_over_the_global_rule():
    for rules in (
        QConfigMapping().set_global(INT8).set_module_name_regex(r"blocks\..*\.norm", None),
        QConfigMapping().set_module_name_regex(r"blocks\..*\.norm", None).set_global(INT8),
    ):
        assert rules.resolve("blocks.0.norm", [nn.Linear]).qconfig is None
        assert rules.resolve("blocks.0.fc", [nn.Linear]).qconfig is INT8


def test_a_name_reaches_all_below_it_and_the_longest_wins():
    rules = QConfigMapping().set_module_name("layer1", None).set_module_name("layer1.0", INT4).set_global(INT8)
    assert rules.resolve("layer1.1.conv").qconfig is None
    assert rules.resolve("layer1").qconfig is None
    assert rules.resolve("layer1.0.conv").qconfig is INT4
    assert rules.resolve("layer10.conv").qconfig is INT8
    assert str(rules.resolve("layer1.1.conv")) == "set_module_name('layer1')"


def test_regexes_match_from_the_start_and_the_first_wins():
    rules = QConfigMapping().set_module_name_regex("a.*b", INT4).set_module_name_regex("a", INT6)
    assert rules.resolve("a.0.b").qconfig is INT4
    assert rules.resolve("a.0").qconfig is INT6
    assert rules.resolve("x.a").kind == "global"
    rules.set_module_name_regex("a.*b", None)
    assert rules.resolve("a.0.b").qconfig is None


def test_a_weight_is_a_name_of_its_own_and_no_path_to_anything():
    rules = QConfigMapping().set_module_name("embedding", None).set_module_name_regex("kernel", INT6).set_global(INT8)
    assert rules.resolve("head", weight="embedding.weight").qconfig is INT8
    assert rules.resolve("", weight="kernel").qconfig is INT6
    rules.set_module_name("embedding.weight", INT4).set_module_name("head", INT6)
    assert rules.resolve("head", weight="embedding.weight").qconfig is INT4
    assert rules.resolve("head.0", weight="kernel").qconfig is INT6


def test_the_most_exact_type_wins():
    rules = QConfigMapping().set_object_type(F.relu, INT4).set_object_type(nn.ReLU, INT6).set_object_type("relu", None)
    assert rules.resolve("", [nn.ReLU, F.relu, "relu"]).qconfig is INT6
    assert rules.resolve("", [F.relu, "relu"]).qconfig is INT4
    assert rules.resolve("", ["relu"]).qconfig is None
    assert str(rules.resolve("", ["relu"])) == "set_object_type('relu')"
    assert str(rules.resolve("", [nn.ReLU])) == "set_object_type(ReLU)"
    assert str(rules.resolve("", [nn.Linear])) == "set_global()"


def test_rules_that_match_nothing():
    rules = (
        QConfigMapping()
        .set_global(INT8)
        .set_object_type(nn.Conv2d, None)
        .set_object_type(nn.Linear, None)
        .set_module_name("blocks.0.fcc", None)
        .set_module_name("blocks", None)
        .set_module_name_regex(r"blocks\..*\.norm", None)
        .set_module_name_regex(r"norm", None)
        .set_module_name_object_type_order("blocks.0", operator.add, 2, None)
        .set_module_name_object_type_order("blocks.0", operator.add, 1, None)
        .set_module_name_object_type_order("block", operator.add, 0, None)
    )
    names = ["", "blocks", "blocks.0", "blocks.0.fc", "blocks.0.norm"]
    occurrences = [("blocks.0", operator.add, 0), ("blocks.0", operator.add, 1)]
    unused = rules.unused_rules(names, [nn.Conv1d, nn.Linear, operator.add], occurrences)
    assert [(str(item.rule), item.hint) for item in unused] == [
        ("set_object_type(Conv2d)", "did you mean 'Conv1d'?"),
        ("set_module_name_regex('norm')", "the expression must match from the start of a module's path"),
        ("set_module_name('blocks.0.fcc')", "did you mean 'blocks.0.fc'?"),
        ("set_module_name_object_type_order('blocks.0', add, 2)", "add is used 2 times directly in 'blocks.0'"),
        ("set_module_name_object_type_order('block', add, 0)", "did you mean 'blocks'?"),
    ]
    with pytest.warns(FxQuantWarning) as caught:
        unused[2].warn()
    assert str(caught[0].message) == (
        "a rule of the configuration matches nothing in the model\n"
        "  got:      set_module_name('blocks.0.fcc')\n"
        "  hint:     did you mean 'blocks.0.fc'?"
    )


def test_dict_copy_pickle_and_text():
    rules = (
        QConfigMapping()
        .set_global(INT8)
        .set_object_type(nn.Conv2d, None)
        .set_module_name_regex("a+", INT4)
        .set_module_name("head", None)
        .set_module_name_object_type_order("", F.relu, 0, INT6)
    )
    for twin in (
        QConfigMapping.from_dict(rules.to_dict()),
        copy.deepcopy(rules),
        pickle.loads(pickle.dumps(rules)),
    ):
        assert twin == rules
        twin.set_module_name("head", INT8)
        assert twin != rules
    assert re.findall(r"^  (\S.*?) = ", repr(rules), re.MULTILINE) == [
        "set_global()",
        "set_object_type(Conv2d)",
        "set_module_name_regex('a+')",
        "set_module_name('head')",
        "set_module_name_object_type_order('', relu, 0)",
    ]


def test_of():
    rules = QConfigMapping()
    assert QConfigMapping.of(rules) is rules
    assert QConfigMapping.of(INT4).global_qconfig is INT4


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("Linear", "did you mean the class Linear?"),
        ("Liner", "did you mean the class Linear?"),
        ("einsum", "did you mean the function einsum?"),
        ("ad", "did you mean 'add'?"),
        (nn.Bilinear, "did you mean 'Linear'?"),
    ],
)
def test_a_name_in_place_of_a_type_is_answered_with_what_it_is_the_name_of(key, hint):
    rules = QConfigMapping().set_object_type(key, None)
    (unused,) = rules.unused_rules([], [nn.Linear, torch.einsum, "add", operator.add])
    assert unused.hint == hint
