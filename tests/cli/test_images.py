from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from fxquant.cli.images import MEAN, STD, ImageBatches, Picture, pictures_in, preprocessing, two_parts
from fxquant.errors import InputError
from tests.cli.folder import write_images


def test_folders_are_classes_in_the_order_of_their_names(tmp_path: Path) -> None:
    found = pictures_in(write_images(tmp_path))
    assert (len(found.pictures), found.classes, found.numbered) == (12, 2, False)
    assert {(picture.path.parent.name, picture.label) for picture in found.pictures} == {("blue", 0), ("red", 1)}
    labels = [picture.label for picture in found.pictures]
    assert labels != sorted(labels)  # mixed
    assert pictures_in(tmp_path) == found  # the same in each call


def test_folders_that_are_numbers(tmp_path: Path) -> None:
    write_images(tmp_path)
    (tmp_path / "blue").rename(tmp_path / "007")
    (tmp_path / "red").rename(tmp_path / "2")
    (tmp_path / "empty").mkdir()
    (tmp_path / ".hidden").mkdir()
    found = pictures_in(tmp_path)
    assert (found.classes, found.numbered) == (2, True)
    assert {(picture.path.parent.name, picture.label) for picture in found.pictures} == {("007", 7), ("2", 2)}


def test_images_without_classes(tmp_path: Path) -> None:
    found = pictures_in(write_images(tmp_path) / "red")
    assert (len(found.pictures), found.classes) == (6, 0)
    assert {picture.label for picture in found.pictures} == {None}


def test_a_folder_without_images(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(InputError, match="there are no images in this folder"):
        pictures_in(tmp_path)


def test_data_sets_in_two_parts(tmp_path: Path) -> None:
    assert two_parts(tmp_path) == (tmp_path, None)
    (tmp_path / "val").mkdir()
    assert two_parts(tmp_path) == (tmp_path, None)
    (tmp_path / "train").mkdir()
    assert two_parts(tmp_path) == (tmp_path / "train", tmp_path / "val")


def test_an_image_is_shrunk_cut_and_normalised(tmp_path: Path) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    path = tmp_path / "noise.png"
    torch.manual_seed(0)
    values = torch.randint(0, 256, (300, 400, 3), dtype=torch.uint8)
    Image.frombytes("RGB", (400, 300), bytes(values.flatten().tolist())).save(path)
    reading = preprocessing((1, 3, 224, 224), None, None)
    wanted = transforms.Compose(
        [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    )
    with Image.open(path) as image:
        torch.testing.assert_close(reading.of(path), wanted(image))
    assert preprocessing((4, 3, 64, 300), (0.5,), (0.5,)).of(path).shape == (3, 64, 300)
    gray = preprocessing((1, 1, 500, 32), None, None).of(path)
    assert gray.shape == (1, 500, 32)


def test_an_image_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "text.png"
    path.write_text("no image")
    reading = preprocessing((1, 3, 8, 8), None, None)
    with pytest.raises(InputError, match=r"this file is no image\n  got:      .*text.png"):
        reading.of(path)
    Image.effect_noise((64, 64), 9).save(path)
    path.write_bytes(path.read_bytes()[:900])
    with pytest.raises(InputError, match=r"this image cannot be read\n  at:       .*text.png"):
        reading.of(path)


def test_batches_are_read_anew_in_each_round(tmp_path: Path) -> None:
    pictures = pictures_in(write_images(tmp_path)).pictures[:5]
    batches = ImageBatches(pictures, 2, preprocessing((1, 3, 8, 8), None, None))
    assert len(batches) == 3
    for _ in range(2):
        found = list(batches)
        assert [images.shape for images, _ in found] == [(2, 3, 8, 8), (2, 3, 8, 8), (1, 3, 8, 8)]
        assert [label for _, labels in found for label in labels.tolist()] == [each.label for each in pictures]
    alone = ImageBatches([Picture(pictures[0].path, None)], 2, preprocessing((1, 3, 8, 8), None, None))
    assert [batch.shape for batch in alone] == [(1, 3, 8, 8)]
