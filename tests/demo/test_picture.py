from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

from fxquant.demo.comparison import Comparison
from fxquant.demo.picture import save_picture


def test_a_picture_is_drawn_and_has_content(tmp_path: Path) -> None:
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    found = Comparison(
        labels=logits.argmax(dim=1),
        float_logits=logits,
        int8_logits=logits + 0.01,
        milliseconds={"float": 20.0, "int8": 5.0},
        file_bytes={"float": 14_000_000, "int8": 4_000_000},
        layers=(("stem", 30.0), ("head", 20.0)),
    )
    images = [Image.new("RGB", (224, 224), colour) for colour in ("red", "green", "blue")]
    path = tmp_path / "picture.png"
    save_picture(path, "A title", images, ["cat", "a class with a very long name", "dog", "cow"], found)
    with Image.open(path) as picture:
        assert picture.size == (1700, 1000)
        colours = {colour for _, colour in picture.convert("RGB").getcolors(maxcolors=1 << 20)}
    assert {(255, 0, 0), (0, 128, 0), (0, 0, 255)} <= colours  # the photographs
    assert {(13, 148, 136), (148, 163, 184)} <= colours  # the bars of int8 and float
