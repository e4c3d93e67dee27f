"""Half a minute of faults: nothing is lost, doubled, or out of order. `make soak` has ten."""

import os
import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.cluster import standby
from tests.cluster.chaos import run

SECONDS = 30.0
"""Of faults."""


@pytest.mark.anyio
@pytest.mark.parametrize("server", ["NATS", "PostgreSQL"])
async def test_nothing_is_lost_whatever_is_killed_or_cut(tmp_path: Path, server: str) -> None:
    seed = int(os.environ.get("MEUP_SEED") or secrets.randbelow(1_000_000))
    what: dict[str, Any] = {}
    if server == "PostgreSQL":
        what = {"joined": standby.joined, "faults": standby.FAULTS}
    report = await run(tmp_path, seed, SECONDS, **what)
    assert report.result.mistakes == {each: [] for each in report.result.mistakes}, f"seed {seed}"
    assert report.ended == [], f"seed {seed}"
    assert report.result.accepted == report.result.said > 0
