from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

import fxquant.settings as settings
from fxquant.errors import FxQuantWarning, SpecError
from fxquant.settings import Settings, read_settings, warn_of_unknown


def test_an_empty_environment_gives_the_defaults():
    assert read_settings({}) == Settings()
    assert Settings() == Settings(
        debug=0,
        print_after=(),
        dump_dir="",
        skip_passes=(),
        verify=False,
        kernels="auto",
        cpu_isa="auto",
        cache_dir="",
    )


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("FXQUANT_DEBUG", "0", Settings()),
        ("FXQUANT_DEBUG", "3", Settings(debug=3)),
        ("FXQUANT_PRINT_AFTER", "normalize, annotate,", Settings(print_after=("normalize", "annotate"))),
        ("FXQUANT_PRINT_AFTER", " , ", Settings()),
        ("FXQUANT_DUMP_DIR", "/tmp/a b", Settings(dump_dir="/tmp/a b")),
        ("FXQUANT_SKIP_PASSES", "choose_layout", Settings(skip_passes=("choose_layout",))),
        ("FXQUANT_VERIFY", "1", Settings(verify=True)),
        ("FXQUANT_VERIFY", "0", Settings()),
        ("FXQUANT_KERNELS", "reference", Settings(kernels="reference")),
        ("FXQUANT_CPU_ISA", "avx512_vnni", Settings(cpu_isa="avx512_vnni")),
        ("FXQUANT_CACHE", "/tmp/cache", Settings(cache_dir="/tmp/cache")),
    ],
)
def test_each_variable(variable, text, expected):
    assert read_settings({variable: text, "PATH": "/bin"}) == expected


@pytest.mark.parametrize(
    "variable", ["FXQUANT_DEBUG", "FXQUANT_VERIFY", "FXQUANT_KERNELS", "FXQUANT_CPU_ISA", "FXQUANT_PRINT_AFTER"]
)
def test_an_empty_variable_is_as_good_as_none(variable):
    assert read_settings({variable: ""}) == Settings()


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        (
            "FXQUANT_KERNELS",
            "refrence",
            """\
the environment variable FXQUANT_KERNELS has an unknown value
  got:      'refrence'
  expected: auto, native, reference
  hint:     did you mean 'reference'?""",
        ),
        (
            "FXQUANT_CPU_ISA",
            "best",
            """\
the environment variable FXQUANT_CPU_ISA has an unknown value
  got:      'best'
  expected: auto, portable, avx2, avx512, avx512_vnni, brgemm, amx, amx_emulated, neon_dotprod, neon_i8mm""",
        ),
        (
            "FXQUANT_DEBUG",
            "yes",
            """\
the environment variable FXQUANT_DEBUG has an unknown value
  got:      'yes'
  expected: 0, 1, 2, 3""",
        ),
        (
            "FXQUANT_VERIFY",
            "true",
            """\
the environment variable FXQUANT_VERIFY has an unknown value
  got:      'true'
  expected: 0, 1""",
        ),
    ],
)
def test_an_unknown_value(variable, text, message):
    with pytest.raises(SpecError) as caught:
        read_settings({variable: text})
    assert str(caught.value) == message


def test_reads_the_process_environment_at_every_call(monkeypatch):
    monkeypatch.setenv("FXQUANT_DEBUG", "2")
    assert read_settings().debug == 2
    monkeypatch.delenv("FXQUANT_DEBUG")
    assert read_settings().debug == 0


def test_settings_do_not_change():
    with pytest.raises(FrozenInstanceError):
        Settings().debug = 1  # type: ignore[misc]


class Recorder(dict):
    """An empty environment that remembers what was asked for."""

    def get(self, key, default=None):
        self[key] = default
        return default


def test_every_field_says_which_variable_sets_it():
    asked = Recorder()
    read_settings(asked)
    documented = re.findall(r'^    """(FXQUANT_\w+): ', Path(settings.__file__).read_text(encoding="utf-8"), re.M)
    assert documented == list(asked)
    assert len(documented) == len(fields(Settings))


def test_misspelt_variables_are_warned_of():
    with pytest.warns(FxQuantWarning) as caught:
        warn_of_unknown({"FXQUANT_DEBG": "1", "FXQUANT_CACHE": "x", "FXQUANT_CUDA": "0", "OTHER": ""})
    assert len(caught) == 1
    lines = str(caught[0].message).splitlines()
    assert lines[:2] == ["an environment variable that fxquant does not read", "  got:      FXQUANT_DEBG"]
    assert lines[3] == "  hint:     did you mean 'FXQUANT_DEBUG'?"
