"""What a prepared or converted model is: saved, copied, called from threads, cast, hooked."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from tests.outputs import rounding_outputs

FORMS = ("int8", "fake_quant", "reference")
THREADS = 8


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c, self.bn, self.l = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.bn(self.c(x))) + 1.5
        return torch.sigmoid(self.l(h.mean((2, 3))))


def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, 3, 8, 8, generator=generator) for _ in range(2)]


def calibrated() -> fxq.Quantizer:
    return fxq.prepare(Net().eval(), batches()[0], rounding_outputs()).calibrate(batches(), progress=False)


def through_a_file(state: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("seen", [False, True])
def test_a_calibrated_state_goes_into_a_fresh_quantizer(seen):
    prepared, x = calibrated(), batches()[0]
    fresh = fxq.prepare(Net().eval(), x, rounding_outputs())
    if seen:
        fresh.calibrate([x * 100], progress=False)
    fresh.load_state_dict(through_a_file(prepared.state_dict()))
    assert prepared.state_dict().keys() == fresh.state_dict().keys()
    assert all(torch.equal(value, fresh.state_dict()[name]) for name, value in prepared.state_dict().items())
    assert torch.equal(fresh(x), prepared(x))
    for to in FORMS:
        assert torch.equal(fxq.convert(fresh, to=to)(x), fxq.convert(prepared, to=to)(x))


@pytest.mark.parametrize("to", FORMS)
def test_a_converted_state_goes_into_a_shell(to):
    prepared, x = calibrated(), batches()[0]
    converted = fxq.convert(prepared, to=to)
    shell = fxq.convert(fxq.prepare(Net().eval(), x, rounding_outputs()), to=to, allow_uncalibrated=True)
    assert {name: value.shape for name, value in shell.state_dict().items()} == {
        name: value.shape for name, value in converted.state_dict().items()
    }
    shell.load_state_dict(through_a_file(converted.state_dict()))
    assert torch.equal(shell(x), converted(x))


@pytest.mark.slow
def test_other_processes_read_pickles(tmp_path, fresh):
    prepared, x = calibrated(), batches()[0]
    saved = {"prepared": prepared, **{to: fxq.convert(prepared, to=to) for to in FORMS}}
    expected = {name: (fxq.convert(prepared) if name == "prepared" else model)(x) for name, model in saved.items()}
    (tmp_path / "models").write_bytes(pickle.dumps((saved, x)))
    code = (
        "import pickle, sys, torch, fxquant as fxq\n"
        "saved, x = pickle.load(open(sys.argv[1], 'rb'))\n"
        "prepared = saved['prepared'].calibrate([x], progress=False)\n"
        "saved['prepared'] = fxq.convert(prepared)\n"
        "torch.save({name: model.eval()(x) for name, model in saved.items()}, sys.argv[2])\n"
    )
    # the user's own source is not there: the classes of the saved model are not looked for
    done = fresh(code, tmp_path / "models", tmp_path / "outputs")
    assert done.returncode == 0, done.stderr
    outputs = torch.load(tmp_path / "outputs", weights_only=True)
    assert outputs.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in outputs.items())


@pytest.mark.parametrize("to", FORMS)
def test_threads_may_share_a_model_from_the_first_call(to):
    prepared = calibrated()
    inputs = [torch.randn(2, 3, 8, 8) for _ in range(THREADS)]
    expected = [fxq.convert(prepared, to=to)(x).detach() for x in inputs]
    fresh = fxq.convert(prepared, to=to)
    start, outputs, failed = threading.Barrier(THREADS), {}, []

    def call(index: int) -> None:
        try:
            start.wait()
            for _ in range(5):
                outputs[index] = fresh(inputs[index]).detach()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=call, args=(index,)) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert all(torch.equal(outputs[index], expected[index]) for index in range(THREADS))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_casting_touches_the_results_alone(dtype):
    int8, x = fxq.convert(calibrated()), batches()[0]
    expected, qparams = int8(x), {name: value.clone() for name, value in int8.state_dict().items()}
    cast = copy.deepcopy(int8).to(dtype)
    got = cast(x)
    assert got.dtype == dtype
    assert torch.equal(got, expected.to(dtype))
    assert all(torch.equal(value, qparams[name]) for name, value in cast.state_dict().items())


@pytest.mark.parametrize("to", FORMS)
def test_modes_make_no_difference(to):
    converted, x = fxq.convert(calibrated(), to=to), batches()[0]
    assert not any(module.training for module in converted.modules())
    expected = converted(x).detach()
    with torch.no_grad():
        assert torch.equal(converted(x), expected)
    with torch.inference_mode():
        assert torch.equal(converted(x), expected)
    assert torch.equal(converted(x).detach(), expected)
    assert torch.equal(converted.eval()(x).detach(), expected)
    with torch.inference_mode():
        first_call = fxq.convert(calibrated(), to=to)(x)
    assert first_call.shape == expected.shape


def test_preparing_in_inference_mode():
    x = batches()[0]
    with torch.inference_mode():
        prepared = fxq.prepare(Net().eval(), x, rounding_outputs()).calibrate([x], progress=False)
        inside = fxq.convert(prepared)(x)
    assert torch.equal(fxq.convert(prepared)(x), inside)


@pytest.mark.parametrize("to", FORMS)
def test_hooks_and_names(to):
    converted, x = fxq.convert(calibrated(), to=to), batches()[0]
    assert {"c", "l"} <= dict(converted.named_modules()).keys()
    seen: list[tuple[str, torch.dtype]] = []
    handles = [
        converted.get_submodule("c").register_forward_hook(lambda module, args, out: seen.append(("c", out.dtype))),
        converted.get_submodule("l").register_forward_pre_hook(lambda module, args: seen.append(("l", args[0].dtype))),
        converted.register_forward_hook(lambda module, args, out: seen.append(("model", out.dtype))),
    ]
    expected = converted(x)
    inside = torch.uint8 if to == "int8" else torch.float32
    assert seen == [("c", inside), ("l", inside), ("model", torch.float32)]
    copy.deepcopy(converted)(x)
    assert len(seen) == 6
    for handle in handles:
        handle.remove()
    assert torch.equal(converted(x), expected)
    assert len(seen) == 6
