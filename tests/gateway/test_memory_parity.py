"""A member sees the same in memory and on a socket, on every loop."""

import anyio
import pytest

from meup_agent.errors import CannotConnect, HandshakeRefused, TransportClosed
from tests.gateway.conftest import DIALECT, LIMITS, PARTICIPANTS, Site, envelope, hear, hear_end

WITHDRAW = {"kind": "mcp/withdraw"}
CALL = {"method": "tools/call", "params": {"name": "x"}}


def member(name: str, *more: object) -> dict[str, object]:
    return {"id": name, "capabilities": [*PARTICIPANTS[name], *more], "dialect": DIALECT}


async def test_welcome_says_who_one_is_and_who_is_there(site: Site) -> None:
    async with site.join("bob"), site.dial("alice") as alice:
        welcome = await hear(alice, "system.welcome")
        assert welcome["to"] == ["alice"]
        assert welcome["from"] == "system:gateway"
        assert welcome["payload"] == {
            "you": member("alice", WITHDRAW),
            "participants": [member("bob")],
            "dev.meup/guarantees": {
                "identity_checked": True,
                "echo": True,
                "resume": True,
                "hidden_targets": False,
                "lists_proposals": True,
                "keeps_yeses": True,
            },
            "active_streams": [],
            "dev.meup/streams": {"journaled": False},
        }
        join = await hear(alice, "system.presence")
        assert join["payload"]["event"] == "join"
        assert join["payload"]["participant"] == welcome["payload"]["you"]


@pytest.mark.rule("3.delivery.order")
async def test_order_is_the_same_for_all(site: Site) -> None:
    async with site.join("alice", "bob") as members:

        async def speak(index: int, name: str) -> None:
            for number in range(20):
                await members[index].send(envelope(name, id=f"{name}-{number}"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(speak, 0, "alice")
            tasks.start_soon(speak, 1, "bob")
        orders = [[(await hear(member, "chat"))["id"] for _ in range(40)] for member in members]
        assert orders[0] == orders[1]
        assert sorted(orders[0]) == sorted(f"{n}-{i}" for n in ("alice", "bob") for i in range(20))


@pytest.mark.rule("3.takeover.gateway")
async def test_newer_connection_takes_over(site: Site) -> None:
    async with site.join("alice", "bob") as (older, bob), site.dial("alice") as newer:
        welcome = await hear(newer, "system.welcome")
        assert [other["id"] for other in welcome["payload"]["participants"]] == ["bob"]
        await hear(newer, "system.presence")
        assert await hear_end(older) == 4409
        assert (await hear(bob, "system.presence"))["payload"]["event"] == "join"
        # The older one's end is not the participant's: nothing but this is heard.
        await newer.send(envelope("alice"))
        await hear(newer, "chat")
        await hear(bob, "chat")


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (envelope("bob"), "identity_mismatch"),
        (envelope("alice", "system.welcome"), "reserved_kind"),
        (envelope("alice", "mcp.request", CALL), "capability_violation"),
        (b"{nope", "invalid_json"),
        (b'{"\xff"}', "invalid_utf8"),
        (b"[]", "invalid_envelope"),
        (b"{}", "invalid_envelope"),
        (b"[" * 300, "too_deep"),
    ],
)
async def test_bad_frame_costs_its_sender_an_error(site: Site, frame: bytes, code: str) -> None:
    async with site.join("alice", "bob") as (alice, bob):
        await alice.send(frame)
        if code == "invalid_utf8" and site.is_mounted:
            # The server in front reads text, and closes whoever sends none (RFC 6455 section 8.1).
            assert await hear_end(alice) == 1007
            return
        error = await hear(alice, "system.error")
        assert error["payload"]["error"] == code
        assert error["to"] == ["alice"]
        await alice.send(envelope("alice"))
        await hear(alice, "chat")
        await hear(bob, "chat")
        assert site.place.counters.refused == {code: 1}


@pytest.mark.rule("3.limits")
async def test_too_large_a_message_closes_its_connection_after_the_error(site: Site) -> None:
    async with site.join("alice", "bob") as (alice, bob):
        size = LIMITS.max_message_bytes
        await alice.send(envelope("alice", payload={"message": "x" * size}))
        told = (await hear(alice, "system.error"))["payload"]
        said = (told["error"], told["limit"], told["max"])
        assert said == ("too_large", "max_message_bytes", size)
        assert await hear_end(alice) == 1009
        assert (await hear(bob, "system.presence"))["payload"]["event"] == "leave"
        await bob.send(envelope("bob"))
        await hear(bob, "chat")


async def test_largest_message_passes(site: Site) -> None:
    async with site.join("alice", "bob") as (alice, bob):
        room = LIMITS.max_message_bytes - len(envelope("alice", payload={"message": ""}))
        await alice.send(envelope("alice", payload={"message": "x" * room}))
        await hear(alice, "chat")
        await hear(bob, "chat")


@pytest.mark.rule("3.always_allowed")
async def test_who_may_not_speak_may_cancel_answer_and_withdraw(site: Site) -> None:
    async with site.join("bob", "carol") as (bob, carol):
        await bob.send(envelope("bob", "mcp.request", CALL, id="r1", to=["carol"]))
        cancel = {"method": "notifications/cancelled", "params": {}}
        await carol.send(envelope("carol", "mcp.request", cancel))
        for member in (bob, carol):
            await hear(member, "mcp.request")
            await hear(member, "mcp.request")
        await carol.send(envelope("carol", "mcp.response", {"result": {}}, correlationId="r1"))
        await carol.send(envelope("carol", "mcp.withdraw", {}, correlationId="unknown"))
        for member in (bob, carol):
            await hear(member, "mcp.response")
            await hear(member, "mcp.withdraw")
        await carol.send(envelope("carol"))
        await hear(carol, "system.error")


@pytest.mark.rule("3.join.token")
@pytest.mark.parametrize(
    ("headers", "space", "status"),
    [
        ({"Authorization": "Bearer wrong"}, "demo", 401),
        ({"Authorization": "Bearer "}, "demo", 401),
        ({"Authorization": "Basic YTpi"}, "demo", 401),
        ({"Authorization": "Bearer wrong"}, "nowhere", 401),
        ({"MEUP-Protocol": "meup/v9"}, "demo", 400),
    ],
)
async def test_stranger(site: Site, headers: dict[str, str], space: str, status: int) -> None:
    with pytest.raises(HandshakeRefused) as refused:
        async with site.dial(space=space, headers=headers):
            pass
    assert refused.value.status == status
    assert refused.value.body
    assert "wrong" not in refused.value.body
    assert site.place.counters.not_admitted == {status: 1}


@pytest.mark.rule("3.join.token")
async def test_unknown_space_is_refused(site: Site) -> None:
    with pytest.raises(HandshakeRefused) as refused:
        async with site.dial("alice", space="nowhere"):
            pass
    assert refused.value.status == 404


async def test_dropped_connection_ends_without_a_close_frame(site: Site) -> None:
    async with site.join("alice", "bob") as (alice, bob):
        site.place.drop("alice")
        assert await hear_end(alice) == 1006
        assert (await hear(bob, "system.presence"))["payload"]["event"] == "leave"
        with pytest.raises(TransportClosed):
            await alice.send(envelope("alice"))


async def test_killed_gateway_lets_nobody_in_until_it_is_restarted(site: Site) -> None:
    async with site.join("alice", "bob") as members:
        site.place.kill()
        for member in members:
            assert await hear_end(member) == 1006
    with pytest.raises(CannotConnect):
        async with site.dial("alice"):
            pass
    for _ in range(3):
        site.place.restart()
        async with site.join("alice", "bob") as members:
            await members[0].send(envelope("alice"))
            await hear(members[1], "chat")
    assert site.place.counters.joined == 2
