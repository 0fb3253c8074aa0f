"""``python -m fxquant quantize``: from a model, weights and data to a file; what is refused, by its words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fxquant as fxq
from fxquant.__main__ import main
from fxquant.cli.command import RANDOM, RANDOM_INPUTS, RANDOM_WEIGHTS
from tests.cli.folder import write_images, write_model, write_weights


@pytest.fixture
def spec(tmp_path: Path) -> str:
    return write_model(tmp_path)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images")


@pytest.fixture
def arguments(spec: str, images: Path, tmp_path: Path) -> list[str]:
    weights = write_weights(tmp_path)
    batches = ["--input", "1x3x8x8", "--batch-size", "2", "--batches", "2"]
    return ["quantize", spec, "--weights", str(weights), "--data", str(images), *batches]


def test_a_folder_becomes_a_file_with_its_accuracy(arguments, images, tmp_path, capsys):
    path, page = tmp_path / "small.fxq", tmp_path / "pages" / "small.html"
    assert main([*arguments, "--output", str(path), "--report", str(page)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{images}: 4 images to calibrate on, 8 of 2 classes to measure accuracy on\n")
    assert "units become int8" in shown
    words = " ".join(shown.split())
    assert "float 100.0% quantized 100.0% same answer 100.0% of 8 images that were held out" in words
    assert "kind int8" in words
    assert shown.endswith(f"{page}: opens in any browser\n")  # nothing is random
    assert '["state","calibrated"' in page.read_text(encoding="utf-8")
    assert fxq.load(path)(torch.zeros(5, 3, 8, 8)).shape == (5, 2)


@pytest.mark.slow
def test_the_name_of_the_file_says_its_kind(arguments, tmp_path, capsys):
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "small.onnx"
    assert main([*arguments, "--output", str(path), "--target", "openvino"]) == 0
    assert "for backend 'openvino'" in capsys.readouterr().out
    shape = onnx.load(path).graph.input[0].type.tensor_type.shape.dim
    assert [size.dim_value for size in shape] == [1, 3, 8, 8]  # as --input says, not as batches are read
    other = tmp_path / "small.bin"
    assert main([*arguments, "--output", str(other), "--to", "onnx", "--no-check", "--dynamic-batch"]) == 0
    shape = onnx.load(other).graph.input[0].type.tensor_type.shape.dim
    assert [size.dim_value for size in shape] == [0, 3, 8, 8]
    program = tmp_path / "small.pt2"
    assert main([*arguments, "--output", str(program), "--dynamic-batch"]) == 0
    assert torch.export.load(program).module()(torch.zeros(3, 3, 8, 8)).shape == (3, 2)


@pytest.mark.parametrize(("name", "got"), [("small.xyz", ".xyz"), ("small", "a name without an ending")])
def test_the_name_of_the_file_says_no_kind(name, got, arguments, tmp_path, capsys):
    path = tmp_path / name
    assert main([*arguments, "--output", str(path)]) == 1
    assert capsys.readouterr().err == (
        "InputError: the name of the file does not say what kind of file is written\n"
        f"  at:       {path}\n"
        f"  got:      {got}\n"
        "  expected: .onnx, .fxq, .pt2\n"
        "  hint:     --to says the kind of a file of another name\n"
    )
    assert not path.exists()
    assert main([*arguments, "--output", str(path), "--to", "fxq"]) == 0
    assert path.exists()


def test_a_function_yields_batches_with_labels(spec, tmp_path, capsys):
    data = spec.replace(":small", ":batches")
    command = ["quantize", spec, "--data", data, "--batches", "2", "--output", str(tmp_path / "small.fxq")]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "of 2 images that were held out" in shown
    assert shown.endswith(f"{RANDOM_WEIGHTS['unknown']}\n")
    assert main([*command[:-1], str(tmp_path / "again.fxq"), "--batches", "3"]) == 0
    assert "of 6 images that the model was calibrated on: there are no others" in capsys.readouterr().out


def test_data_without_labels(spec, images, tmp_path, capsys):
    for index, data in enumerate((spec.replace(":small", ":one_batch"), str(images / "red"))):
        output = str(tmp_path / f"{index}.fxq")
        assert main(["quantize", spec, "--data", data, "--input", "1x3x8x8", "--output", output]) == 0
        assert "accuracy was not measured: the data has no labels" in capsys.readouterr().out


def test_classes_that_are_not_the_models(spec, images, tmp_path, capsys):
    (images / "red").rename(images / "green")
    (images / "blue").rename(images / "7")
    write_images(images / "more")
    command = ["quantize", spec, "--data", str(images), "--input", "1x3x8x8", "--batches", "1", "--output"]
    assert main([*command, str(tmp_path / "a.fxq")]) == 0
    assert "the folder has 3 classes and the model 2: which is which cannot be known" in capsys.readouterr().out
    (images / "green").rename(images / "0")
    (images / "more").rename(images / "1")
    assert main([*command, str(tmp_path / "b.fxq")]) == 0
    assert "accuracy was not measured: labels are none of the 2 classes of the model" in capsys.readouterr().out


def test_a_prepared_file_goes_on(arguments, spec, images, tmp_path, capsys):
    names: dict[str, Any] = {}
    exec(Path(spec.rpartition(":")[0]).read_text(), names)
    x = torch.randn(2, 3, 8, 8)
    prepared = fxq.prepare(names["small"]().eval(), x)
    empty, full, float_ = (tmp_path / f"{name}.fxq" for name in ("empty", "full", "float"))
    fxq.save(prepared, empty)
    fxq.save(prepared.graph_module, float_)
    fxq.save(fxq.calibrate(prepared, [x], progress=False), full)
    output = ["--output", str(tmp_path / "int8.fxq"), "--overwrite"]

    assert main(["quantize", str(full), *output]) == 0
    assert f"{full}: with its own ranges" in capsys.readouterr().out
    assert torch.equal(fxq.load(tmp_path / "int8.fxq")(x), fxq.convert(prepared)(x))
    assert main(["quantize", str(empty), *output]) == 1
    assert "this file holds no ranges, and quantize needs data" in capsys.readouterr().err
    for path in (empty, float_):
        assert main(["quantize", str(path), "--data", str(images), "--input", "1x3x8x8", *output]) == 0
        assert "right answers" in capsys.readouterr().out
    assert main(["quantize", str(full), "--backend", "reference", *output]) == 1
    refusal = capsys.readouterr().err
    assert "this file was planned for another back end" in refusal
    assert "'cpu'\n  expected: 'reference'" in refusal


def test_a_file_of_a_quantized_model(arguments, spec, tmp_path, capsys):
    path = tmp_path / "int8.fxq"
    assert main([*arguments, "--output", str(path)]) == 0
    capsys.readouterr()
    for command in (["quantize", str(path), "--output", str(tmp_path / "no.fxq")], ["bench", str(path)]):
        assert main(command) == 1
        assert f"{command[0]} starts from the float model, and this file holds the quantized one" in (
            capsys.readouterr().err
        )
    assert main(["inspect", str(path)]) == 0
    assert "units become int8" in capsys.readouterr().out
    assert main(["report", str(path), "--output", str(tmp_path / "page.html")]) == 0
    assert '["state","converted"' in (tmp_path / "page.html").read_text(encoding="utf-8")
    capsys.readouterr()
    program = tmp_path / "int8.pt2"
    assert main(["export", str(path), "--to", "pt2", "--input", "2x3x8x8", "--output", str(program)]) == 0
    assert capsys.readouterr().out.startswith(f"{program}: ")


def test_commands_say_what_is_random(arguments, spec, tmp_path, capsys):
    given, shape = arguments[2:4], ["--input", "1x3x8x8"]
    data = ["--data", spec.replace(":small", ":batches")]
    page = ["--output", str(tmp_path / "page.html")]
    for command, options in (("inspect", ["--no-passes"]), ("bench", ["--rounds", "1"]), ("report", page)):
        for more, caution in (
            ([], RANDOM),
            (given, RANDOM_INPUTS),
            (data, RANDOM_WEIGHTS["unknown"]),
            ([*given, *data], ""),
        ):
            if command == "report" and more and caution:
                continue  # a page takes a second
            assert main([command, spec, *shape, *options, *more]) == 0
            shown = capsys.readouterr().out
            assert [text for text in (RANDOM, RANDOM_INPUTS, RANDOM_WEIGHTS["unknown"]) if text in shown] == (
                [caution] if caution else []
            )


REFUSED = {
    "nowhere": (["--data", "no/such/folder"], "this names no data"),
    "no data": ([], "quantize needs data to measure ranges on"),
    "no function": (["--data", "{file}:batchs"], "did you mean 'batches'?"),
    "no batch": (["--data", "{file}:nothing"], "this function yields no batch"),
    "no iterable": (["--data", "{file}:number"], "what this gives is no iterable of batches"),
    "failing": (["--data", "{file}:failing"], "got:      ValueError: no more"),
    "size": (["--data", "{file}:batches", "--batch-size", "3"], "--batch-size is for folders of images"),
    "size of nothing": (["--batch-size", "3"], "--batch-size is for batches of --data"),
    "two inputs": (["--data", "{images}", "--input", "1x3x8x8", "--input", "1x4"], "a folder of images is one input"),
    "no images": (["--data", "{images}", "--input", "1x16"], "a folder of images makes no such input"),
    "mean": (["--data", "{images}", "--mean", "1,2"], "--mean has a number for each channel"),
    "std": (["--data", "{images}", "--std", "0"], "--std is divided by"),
    "weights": (["--weights", "no.pt"], "there is no such file of weights"),
    "target": (["--output", "{images}/no/small.fxq", "--data", "{images}"], "the file cannot be written"),
    "report": (["--report", "{images}", "--data", "{images}"], "the report cannot be written"),
}


@pytest.mark.parametrize("options", REFUSED.values(), ids=list(REFUSED))
def test_what_is_refused_before_anything_is_written(options, spec, images, tmp_path, capsys):
    given = [text.format(file=spec.rpartition(":")[0], images=images) for text in options[0]]
    before = sorted(tmp_path.rglob("*"))
    assert main(["quantize", spec, "--output", str(tmp_path / "small.fxq"), *given]) == 1
    assert options[1] in capsys.readouterr().err
    assert [path for path in sorted(tmp_path.rglob("*")) if "__pycache__" not in str(path)] == before


def test_a_report_in_the_place_of_the_file(arguments, tmp_path, capsys):
    path = str(tmp_path / "one.fxq")
    assert main([*arguments, "--output", path, "--report", path]) == 1
    assert "the report cannot be the file of the model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--batches", "0"], "'0' is no whole number of 1 or more"),
        (["--batch-size", "-1"], "no whole number of 1 or more"),
        (["--mean", "1,x"], "'1,x' is no list of numbers, as 0.485,0.456,0.406"),
        (["--to", "onx"], "did you mean 'onnx'?"),
    ],
)
def test_options_that_make_no_sense(options, words, arguments, capsys):
    with pytest.raises(SystemExit):
        main([*arguments, "--output", "no.fxq", *options])
    assert words in capsys.readouterr().err
