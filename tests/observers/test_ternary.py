"""Weights of two bits that are -1, 0 and 1 times their scale: by one call, and four to a byte in files."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import fxquant as fxq


def test_two_bits_are_ternary_and_lie_four_to_a_byte(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(3))).eval()
    x = torch.randn(64, 128)
    prepared = fxq.prepare(model, x, fxq.low_bit_qconfig(2, 8, ends=None))
    calibrated = fxq.calibrate(prepared, [x], progress=False)
    for result in (calibrated, fxq.gptq(calibrated, [x], progress=False)):
        int8 = fxq.convert(result, check=x)
        assert int8.parity.breaches == ()
        for name in "012":
            assert int8.get_submodule(name).unpacked_weight().unique().tolist() == [-1, 0, 1]
        for saved in (int8, fxq.convert(result, to="fake_quant")):
            fxq.save(saved, tmp_path / "model.fxq", overwrite=True)
            assert torch.equal(fxq.load(tmp_path / "model.fxq")(x), saved(x))
        fxq.save(int8, tmp_path / "model.fxq", overwrite=True)
        assert (tmp_path / "model.fxq").stat().st_size < 3 * 128 * 128 / 4 + 20000
        fxq.save(result, tmp_path / "prepared.fxq", overwrite=True)
        assert torch.equal(fxq.convert(fxq.load(tmp_path / "prepared.fxq"))(x), int8(x))
