"""What a release consists of agrees: version, changelog, metadata, and the forms for reports."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

import fxquant
from fxquant.commandline import COMMANDS
from scripts.matrix import PYTHONS, TORCHES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def sections(changelog: str) -> list[str]:
    return re.findall(r"^## (.+)$", changelog, re.MULTILINE)


def releases(changelog: str) -> list[Version]:
    """Versions of the sections below the first; each has a date."""
    headings = [re.fullmatch(r"(\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\)", text) for text in sections(changelog)[1:]]
    assert all(headings), sections(changelog)
    return [Version(heading[1]) for heading in headings if heading]


def test_the_changelog_goes_by_release() -> None:
    assert sections(CHANGELOG)[0] == "Unreleased"
    found = releases(CHANGELOG)
    assert found == sorted(set(found), reverse=True)
    version = Version(fxquant.__version__)
    assert not found or found[0] <= version
    if not found:
        assert f"This becomes {version}, the first release." in CHANGELOG


def test_headings_of_releases_are_read() -> None:
    text = "## Unreleased\n\n## 0.2.0 (2027-01-31)\n\n### Deprecated\n\n## 0.1.0 (2026-12-31)\n"
    assert releases(text) == [Version("0.2.0"), Version("0.1.0")]
    with pytest.raises(AssertionError):
        releases("## Unreleased\n\n## 0.2\n")


def test_the_version_is_the_same_everywhere() -> None:
    assert PROJECT["version"] == fxquant.__version__
    assert str(Version(PROJECT["version"])) == PROJECT["version"]


def test_metadata() -> None:
    assert PROJECT["authors"] == [{"name": "fxquant developers"}]
    assert {"quantization", "pytorch", "int8"} <= set(PROJECT["keywords"])
    assert PROJECT["classifiers"] == sorted(set(PROJECT["classifiers"]))
    assert not [each for each in PROJECT["classifiers"] if each.startswith("License")]  # `license` says it
    assert "urls" not in PROJECT  # there is no page yet that could be named


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_forms_name_what_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "\t" not in text
    if path.stem != "config":
        assert re.match(r"name: .+\ndescription: .+\nlabels: \[\w+\]\nbody:\n", text)
        assert "python -m fxquant doctor" in text
    assert set(re.findall(r"python -m fxquant (\w+)", text)) <= {command.name for command in COMMANDS}
    assert [name for name in re.findall(r"\bfxq\.(\w+)", text) if not hasattr(fxquant, name)] == []
    assert [name for name in re.findall(r"docs/\w+\.md", text) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("name", ["SECURITY.md", "docs/releasing.md", "CHANGELOG.md"])
def test_documents_name_what_exists(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= {*targets}
    links = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    assert [link for link in links if not ((ROOT / name).parent / link).exists()] == []


def test_bounds_of_torch_are_those_of_the_matrix() -> None:
    """A torch between them is tried by ``make matrix``; the next one may change operators without an error."""
    (torch,) = (each for each in PROJECT["dependencies"] if each.startswith("torch"))
    series = [tuple(map(int, each.split("."))) for each in TORCHES]
    assert torch == f"torch>={TORCHES[0]},<{series[-1][0]}.{series[-1][1] + 1}"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"PYTHONS ?= {' '.join(PYTHONS)}\nTORCHES ?= {' '.join(TORCHES)}\n" in makefile
