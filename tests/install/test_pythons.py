"""Of what calls itself a Python, only what answers as a supported release is taken."""

from pathlib import Path

import pytest

from tests.install.pythons import OLDEST, Python, asked, ends


def command(folder: Path, script: str) -> Path:
    path = folder / "python3.99"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_release_is_taken(tmp_path: Path) -> None:
    path = command(tmp_path, "echo 3 12 4 final")
    assert asked(path) == Python((3, 12, 4), path)


@pytest.mark.parametrize(
    "script",
    ["echo not found >&2; exit 127", "echo 3 10 9 final", "echo 3 15 0 beta"],
    ids=["says that it is absent", "too old", "no release"],
)
def test_anything_else_is_left_out(tmp_path: Path, script: str) -> None:
    assert asked(command(tmp_path, script)) is None


def test_absent_one_is_left_out(tmp_path: Path) -> None:
    assert asked(tmp_path / "python3.99") is None


def test_ends_are_the_oldest_and_the_newest() -> None:
    first, second, third, fourth = (
        Python(version, Path(str(number)))
        for number, version in enumerate([(3, 12, 1), (3, 11, 7), (3, 11, 2), (3, 13, 0)])
    )
    assert ends([first, second, third, fourth]) == (second, fourth)
    assert ends([first]) == (first, first)


def test_oldest_is_the_one_that_the_package_says() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    said = ">=" + ".".join(map(str, OLDEST))
    assert f'requires-python = "{said}"' in project.read_text(encoding="utf-8")
