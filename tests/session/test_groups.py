"""Whose exception leaves a block with background tasks."""

import anyio
import pytest

from meup_agent.session.groups import background_tasks
from tests.session.gate import PATIENCE

pytestmark = pytest.mark.anyio


async def test_a_tasks_defect_is_logged_where_the_block_raises_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def defect() -> None:
        raise LookupError("the task's")

    async def block() -> None:
        async with background_tasks() as tasks:
            tasks.start_soon(defect)
            try:
                await anyio.sleep_forever()
            finally:
                raise ValueError("the block's")

    with anyio.fail_after(PATIENCE), pytest.raises(ValueError, match="the block's"):
        await block()
    assert "LookupError: the task's" in caplog.text
