"""The fuzzers that are there in every run of the suite: by chance, and the runner's own parts."""

from pathlib import Path

import pytest

from tests.fuzz import patterns, unguided
from tests.fuzz.__main__ import Outcome, command
from tests.fuzz.targets import CASES, NAMES
from tests.programs import ROOT


def test_chance_counts_what_it_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert unguided.main("patterns", 0.05, tmp_path) == 0
    assert capsys.readouterr().out.startswith("stat::number_of_executed_units: ")
    assert not any(tmp_path.iterdir())


def test_chance_keeps_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bytes] = []

    def fails(data: bytes) -> None:
        tried.append(data)
        raise RecursionError

    monkeypatch.setattr(patterns, "run", fails)
    with pytest.raises(RecursionError):
        unguided.main("patterns", 60.0, tmp_path / "found")
    assert [each.read_bytes() for each in (tmp_path / "found").iterdir()] == tried


def test_guided_fuzzer_begins_with_seeds_and_cases(tmp_path: Path) -> None:
    arguments = command("port", 7, tmp_path, guided=True)
    assert "-max_total_time=7" in arguments
    assert f"-artifact_prefix={CASES / 'port'}/" in arguments
    cases = [each.read_bytes() for each in (CASES / "port").iterdir()]
    assert set(cases) < {each.read_bytes() for each in tmp_path.iterdir()}


def test_outcome_says_what_came_of_it() -> None:
    assert str(Outcome("port", 5_000, 930, "")).endswith(
        "5,000 inputs, 930 branches reached: nothing found"
    )
    assert str(Outcome("port", 5, None, "x")).endswith("5 inputs: FOUND SOMETHING")


def test_every_target_is_a_module_and_every_case_a_targets() -> None:
    assert all((ROOT / "tests" / "fuzz" / f"{name}.py").is_file() for name in NAMES)
    assert {each.name for each in CASES.iterdir()} <= set(NAMES)
