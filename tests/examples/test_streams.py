"""The examples of streams: a tool that shows its work, a publisher, and one that records."""

from collections.abc import Generator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from examples import stream_a_draft
from meup_agent import Space
from meup_agent.gateway import Gateway, ThreadedGateway
from tests.cli.participants import act_as
from tests.examples.test_examples import run_example, serving_example

ANYTHING = [{"kind": "*"}]


@pytest.fixture(scope="module")
def gateway() -> Generator[ThreadedGateway]:
    names = ("tools", "recorder", "reviewer")
    with Gateway(participants=dict.fromkeys(names, ANYTHING)).in_thread() as running:
        yield running


def test_a_draft_is_shown_while_it_is_written(gateway: ThreadedGateway) -> None:
    def ask() -> list[str]:
        with run_example(gateway, "stream_a_draft.py", "reviewer") as program:
            assert program.wait() == 0
        return program.stdout

    async def run(_: Space) -> None:
        whole = "A draft about streams ends well"
        said = await anyio.to_thread.run_sync(ask)
        assert said == [f"{whole} | complete, 0 lost", whole]

    act_as(gateway, "tools", run, stream_a_draft.tools)


def test_what_is_published_is_recorded(gateway: ThreadedGateway, tmp_path: Path) -> None:
    with serving_example(gateway, "record_streams.py", "recorder", tmp_path) as recorder:
        with run_example(gateway, "publish_positions.py", "reviewer") as publisher:
            assert publisher.wait() == 0
        recorder.wait_for("3 frames of jsonl, whole")
    [written] = tmp_path.iterdir()
    lines = ['{"x": 0, "y": 0}', '{"x": 1, "y": 1}', '{"x": 2, "y": 4}']
    assert written.read_text(encoding="utf-8").splitlines() == lines
