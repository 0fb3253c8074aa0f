from __future__ import annotations

import torch

from fxquant.samples.photographs import calibration_batches, labelled_batch, labelled_photographs


def test_labels_are_read_from_the_names() -> None:
    photographs = labelled_photographs()
    assert [photograph.label for photograph in photographs[:3]] == [243, 559, 438]
    assert len(photographs) == 20
    assert all(photograph.name.startswith("imagenet_") for photograph in photographs)


def test_inputs_are_normalised() -> None:
    images, labels = labelled_batch()
    assert images.shape == (20, 3, 224, 224)
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64
    # the darkest and the brightest pixel that (value - mean) / std can give
    assert images.amin() >= -0.485 / 0.229 - 1e-6
    assert images.amax() <= (1 - 0.406) / 0.225 + 1e-6
    assert images.amin() < -2
    assert images.amax() > 2


def test_calibration_crops_repeat_with_the_seed_and_differ_from_each_other() -> None:
    first, second = calibration_batches(batch_size=4, num_batches=2), calibration_batches(batch_size=4, num_batches=2)
    assert [batch.shape for batch in first] == [(4, 3, 224, 224)] * 2
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert len({image.sum().item() for batch in first for image in batch}) == 8
    assert not torch.equal(first[0], calibration_batches(batch_size=4, num_batches=2, seed=1)[0])
