"""Presences as a person leaves, or the gateway stops, while a page is asked for."""

import anyio
import pytest

from meup_agent.gateway.console.guard import RequestDenied
from meup_agent.gateway.console.presence import PersonPresences
from tests.gateway.console.test_open_proposals import Hall as Hall
from tests.gateway.console.test_open_proposals import hall as hall
from tests.gateways import Identity
from tests.interaction.people import until
from tests.patience import PATIENCE

pytestmark = pytest.mark.anyio


async def test_page_that_is_asked_for_as_a_gateway_stops_keeps_nobody_waiting(hall: Hall) -> None:
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            presences = PersonPresences(hall.meeting.space._runtime, tasks, "/console")
            presences.close()
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True), pytest.raises(RequestDenied, match="stops"):
                await presences.open(Identity("demo", "second"))


async def test_page_that_is_asked_for_as_its_person_leaves_begins_anew(
    hall: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            presences = PersonPresences(hall.meeting.space._runtime, tasks, "/console")
            first = await presences.open(Identity("demo", "second"))
            monkeypatch.setattr("meup_agent.gateway.console.presence.IDLE_SECONDS", 0.0)
            first.touch()
            await until(lambda: first.ended)
            monkeypatch.undo()
            second = await presences.open(Identity("demo", "second"))
            assert second is not first
            assert not second.ended
            tasks.cancel_scope.cancel()
