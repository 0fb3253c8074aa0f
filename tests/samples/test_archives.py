from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from fxquant.errors import SampleError
from fxquant.samples import archives
from fxquant.samples.archives import Archive, DebianPackage, SourceArchive, cache_dir

CONTENT = b"not a photograph"


def make_wheel(folder: Path, name: str = "tiny") -> str:
    """Write a wheel that pip accepts; return its checksum."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}/data/b.txt", CONTENT)
        wheel.writestr(f"{name}/data/a.txt", b"")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip takes for all there is, and an empty cache."""
    folder = tmp_path / "index"
    folder.mkdir()
    for variable, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(folder))):
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("FXQUANT_CACHE", str(tmp_path / "cache"))
    return folder


def test_a_wheel_is_fetched_once_and_read(index: Path) -> None:
    archive = Archive("tiny==1.0", make_wheel(index))
    assert archive.members("tiny/data/") == ["tiny/data/a.txt", "tiny/data/b.txt"]
    for wheel in index.glob("*.whl"):
        wheel.unlink()  # from here on only the cache has it
    assert archive.read("tiny/data/b.txt") == CONTENT
    assert archive.path().is_relative_to(cache_dir())


def test_another_file_under_the_same_name_is_refused_and_not_kept(index: Path) -> None:
    make_wheel(index)
    archive = Archive("tiny==1.0", "0" * 64)
    with pytest.raises(SampleError) as refusal:
        archive.path()
    lines = str(refusal.value).splitlines()
    assert lines[0] == "the wheel of tiny==1.0 is not the expected file"
    assert lines[2] == f"  expected: sha256 {'0' * 64}"
    assert lines[3] == "  hint:     the package index serves another build; nothing of it was used"
    assert not list(cache_dir().rglob("*.whl"))


def test_a_wheel_that_cannot_be_had_gives_pips_reason_and_a_hint(index: Path) -> None:
    with pytest.raises(SampleError) as refusal:
        Archive("tiny==1.0", "").path()
    lines = str(refusal.value).splitlines()
    assert lines[0] == "pip could not fetch tiny==1.0"
    assert "No matching distribution found for tiny==1.0" in lines[1]
    assert lines[3].startswith("  hint:     run it by hand on a machine with a package index, and copy the wheel to ")
    assert lines[3].endswith("tiny-1.0")


def test_the_cache_is_the_users_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FXQUANT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_dir() == Path.home() / ".cache" / "fxquant"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "fxquant"
    monkeypatch.setenv("FXQUANT_CACHE", str(tmp_path / "chosen"))
    assert cache_dir() == tmp_path / "chosen"


def make_tar(prefix: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in ("b.txt", "a.txt"):
            info = tarfile.TarInfo(prefix + name)
            info.size = len(CONTENT)
            tar.addfile(info, io.BytesIO(CONTENT))
    return buffer.getvalue()


def test_source_archives_and_debian_packages_are_read_as_they_are(index: Path) -> None:
    odd = [(b"debian-binary", b"2.0"), (b"data.tar.gz", make_tar("./usr/"))]  # of odd length: a byte is filled in
    ar = b"!<arch>\n" + b"".join(
        name.ljust(48) + str(len(data)).encode().ljust(10) + b"`\n" + data + b"\n" * (len(data) % 2)
        for name, data in odd
    )
    tar = make_tar("tiny-1.0/")
    source = SourceArchive("tiny==1.0", hashlib.sha256(tar).hexdigest())
    package = DebianPackage("tiny==1.0-1", hashlib.sha256(ar).hexdigest())
    for folder, name, data in (
        ("source_archives/tiny-1.0", "tiny-1.0.tar.gz", tar),
        ("packages/tiny-1.0-1", "tiny_1.0-1_all.deb", ar),
    ):
        (cache_dir() / folder).mkdir(parents=True)
        (cache_dir() / folder / name).write_bytes(data)
    assert source.read("tiny-1.0/a.txt") == CONTENT
    assert package.read_all(["usr/a.txt", "usr/b.txt"]) == {"usr/a.txt": CONTENT, "usr/b.txt": CONTENT}


@pytest.mark.slow
def test_a_file_in_the_cache_is_checked_before_it_is_used(index: Path) -> None:
    archive = Archive("tiny==1.0", make_wheel(index))
    path = archive.path()
    path.write_bytes(b"damaged")
    archives._CHECKED.clear()  # as in another process
    with pytest.raises(SampleError) as caught:
        archive.path()
    lines = str(caught.value).splitlines()
    assert lines[0] == "the wheel of tiny==1.0 in the cache is not the expected file"
    assert lines[1] == f"  at:       {path}"
    assert lines[4] == f"  hint:     remove {path.parent}: it is fetched again"
    shutil.rmtree(path.parent)
    assert archive.path().read_bytes() != b"damaged"
