"""``python -m fxquant quantize`` with fewer bits: what is equalized, searched for and learned; refusals, by words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fxquant as fxq
from fxquant.__main__ import main
from tests.cli.folder import write_images, write_model, write_weights


@pytest.fixture
def spec(tmp_path: Path) -> str:
    return write_model(tmp_path)


@pytest.fixture
def arguments(spec: str, tmp_path: Path) -> list[str]:
    images, weights = write_images(tmp_path / "images"), write_weights(tmp_path)
    batches = ["--input", "1x3x8x8", "--batch-size", "4", "--batches", "2", "--output", str(tmp_path / "small.fxq")]
    return ["quantize", spec, "--weights", str(weights), "--data", str(images), *batches]


@pytest.mark.slow
def test_bits_are_searched_for_and_learned(arguments, tmp_path, capsys):
    page = tmp_path / "small.html"
    steps = ["--equalize", "--budget", "size=0.6,bitops=0.9", "--reconstruct", "3", "--report", str(page)]
    assert main([*arguments, *steps, "--checkpoint", str(tmp_path / "run")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "layers choice weight result noise size bitops" in shown
    assert "W4A8" in shown
    assert "block" in shown
    assert "right answers" in shown
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"search", "reconstruct"}
    assert '"searches":[{"costs"' in page.read_text(encoding="utf-8")
    loaded = fxq.load(tmp_path / "small.fxq")
    assert {params.scheme.bits for ref, params in loaded.quant_plan.qparams.items() if ref.kind == "parameter"} >= {4}
    assert loaded(torch.zeros(5, 3, 8, 8)).shape == (5, 2)


def test_as_few_bits_as_lose_no_more(arguments, capsys):
    assert main([*arguments, "--max-drop", "1.5"]) == 0
    shown = capsys.readouterr().out
    assert "the metric falls by 0 " in shown
    assert "of 4 images that were held out" in shown


def test_nothing_is_learned_where_all_weights_have_8_bits(arguments, capsys):
    assert main([*arguments, "--budget", "size=1.0", "--reconstruct", "2"]) == 0
    assert "nothing was learned: no weight has fewer than 8 bits" in capsys.readouterr().out


def test_a_prepared_file_is_learned_with_its_own_bits(arguments, tmp_path, capsys):
    names: dict[str, object] = {}
    exec((tmp_path / "nets.py").read_text(), names)
    x = torch.randn(2, 3, 8, 8)
    prepared = fxq.prepare(names["small"]().eval(), x, fxq.low_bit_qconfig(4, 8, ends=None))  # type: ignore[operator]
    fxq.save(prepared, tmp_path / "prepared.fxq")
    command = ["quantize", str(tmp_path / "prepared.fxq"), *arguments[4:]]
    assert main([*command, "--equalize", "--reconstruct", "2"]) == 0
    assert "block" in capsys.readouterr().out
    assert main([*command, "--overwrite", "--max-drop", "1"]) == 1
    assert "--max-drop chooses bits, and those of this file are chosen" in capsys.readouterr().err
    fxq.save(fxq.calibrate(prepared, [x], progress=False), tmp_path / "ranges.fxq")
    assert main(["quantize", str(tmp_path / "ranges.fxq"), "--output", str(tmp_path / "b.fxq"), "--equalize"]) == 1
    assert "--equalize needs data to measure on" in capsys.readouterr().err


REFUSED = {
    "size": (["--budget", "size=1.5"], "the budget of size is out of range"),
    "unit": (["--budget", "size=3 pounds"], "the budget of size has no known unit"),
    "unreachable": (["--budget", "size=0.2"], "the budget cannot be reached"),
    "reconstruct": (["--reconstruct"], "--reconstruct learns weights of fewer than 8 bits, and all have 8 here"),
    "checkpoint": (["--checkpoint", "run"], "--checkpoint is for --budget, --max-drop and --reconstruct"),
}


@pytest.mark.parametrize("options", REFUSED.values(), ids=list(REFUSED))
def test_what_is_refused(options, arguments, tmp_path, capsys):
    assert main([*arguments, *options[0]]) == 1
    assert options[1] in capsys.readouterr().err
    assert not (tmp_path / "small.fxq").exists()


def test_right_answers_need_labels(arguments, spec, tmp_path, capsys):
    data = spec.replace(":small", ":one_batch")
    command = ["quantize", spec, "--data", data, "--output", str(tmp_path / "a.fxq"), "--max-drop", "1"]
    assert main(command) == 1
    refusal = capsys.readouterr().err
    assert "--max-drop counts right answers, which cannot be told here" in refusal
    assert "got:      the data has no labels" in refusal
    (tmp_path / "images" / "green").mkdir()
    (tmp_path / "images" / "blue" / "0.png").rename(tmp_path / "images" / "green" / "0.png")
    assert main([*arguments, "--max-drop", "1"]) == 1
    assert "the folder has 3 classes and the model 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--budget", "weight=0.5"], "'weight=0.5' in 'weight=0.5' is no limit, as size=0.5 or latency=4ms"),
        (["--budget", "size=0.5,size=0.6"], "each of size, bitops, latency, activations once"),
        (["--budget", "0.5"], "is no limit, as size=0.5"),
        (["--budget", "size=0.5", "--max-drop", "1"], "not allowed with argument --budget"),
        (["--max-drop", "-1"], "no number of points from 0 on"),
        (["--max-drop", "nan"], "no number of points from 0 on"),
        (["--budget", "size=0.5", "--reconstruct", "0"], "'0' is no whole number of 1 or more"),
    ],
)
def test_options_that_make_no_sense(options, words, arguments, capsys):
    with pytest.raises(SystemExit):
        main([*arguments, *options])
    assert words in " ".join(capsys.readouterr().err.split())
