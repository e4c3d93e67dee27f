"""Spaces that are spread over gateways: where they are, what moves, and how members get there."""

import json
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import msgspec
import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import InvalidHandshake, InvalidMessage

from meup_agent.gateway import Gateway
from meup_agent.gateway.cluster import keeper
from meup_agent.gateway.cluster.placement import NodeHeartbeat, owner_of, plan_for, preferred_owner
from meup_agent.gateway.cluster.signing import Signer
from meup_agent.gateway.config_file import load_config
from meup_agent.gateway.console import Console
from meup_agent.gateway.edge.listener import forwarded_for
from meup_agent.gateway.journal.nats.records import FORMAT
from tests.cli.processes import running
from tests.gateway.cluster.test_forwarding import TOKEN
from tests.gateway.cluster.test_forwarding import ports as ports
from tests.gateway.conftest import envelope
from tests.gateway.console.conftest import Browser
from tests.gateway.journal.conftest import nats_config
from tests.gateway.journal.test_gateway import hear_chats
from tests.gateway.own_loop import anyio_backend as anyio_backend
from tests.gateway.websocket_client import open_websocket
from tests.nats_servers import shared_server
from tests.no_tls import ALONE
from tests.patience import PATIENCE, patient, wait_until

NAMES = [f"space-{number}" for number in range(20)]


# --- which space is to be where ---


def there(*names: str, **spaces: list[str]) -> dict[str, NodeHeartbeat]:
    """Gateways that are there, and the spaces that they have."""
    return {
        name: NodeHeartbeat(name, name, "", f"{name}:1", dict.fromkeys(spaces.get(name, ()), 1))
        for name in names
    }


@given(st.sets(st.integers(0, 50), min_size=2, max_size=8))
def test_only_spaces_of_one_that_goes_move(numbers: set[int]) -> None:
    nodes = [NodeHeartbeat(f"n{each}", f"x{each}", "", "a:1") for each in numbers]
    before = {name: preferred_owner(name, nodes) for name in NAMES}
    gone, *rest = nodes
    for name, preferred in before.items():
        now = preferred_owner(name, rest)
        assert now is not None
        assert now is preferred or preferred is gone


def test_spaces_are_spread_evenly() -> None:
    nodes = there("a", "b", "c").values()
    names = [f"space {number}" for number in range(3_000)]
    counts = Counter(
        preferred.node for name in names if (preferred := preferred_owner(name, nodes))
    )
    assert all(800 < count < 1_200 for count in counts.values())
    assert len(counts) == 3


def test_a_gateway_takes_what_nobody_has_and_hands_over_what_is_another_s() -> None:
    alone = plan_for("a", there("a"), NAMES, [])
    assert (alone.take, alone.hand_over) == (NAMES, [])
    two = there("a", "b", a=NAMES)
    theirs = [name for name in NAMES if preferred_owner(name, two.values()) is two["b"]]
    assert 0 < len(theirs) < len(NAMES)
    assert plan_for("a", two, NAMES, ["b"]).hand_over == []  # it has not read their logs
    two["b"].follows = NAMES
    assert plan_for("a", two, NAMES, []).hand_over == []  # it may go at once
    assert plan_for("a", two, NAMES, ["b"]).hand_over == theirs
    assert plan_for("b", two, NAMES, ["a"]) == ([], [], NAMES)
    two["b"].leaves = True
    assert plan_for("a", two, NAMES, ["b"]).hand_over == []


def test_who_has_read_a_log_takes_the_space_and_follows_it_until_it_is_settled() -> None:
    nodes = there("a", "b", "c", "d")
    left, ranked = list(nodes.values()), list[NodeHeartbeat]()
    while (best := preferred_owner("demo", left)) is not None:
        ranked.append(best)
        left.remove(best)
    first, second, third, fourth = ranked

    def follow() -> set[str]:
        return {name for name in nodes if plan_for(name, nodes, ["demo"], []).follow}

    # The first comes back, and has to read the log yet.
    second.spaces["demo"], third.follows, fourth.follows = 1, ["demo"], ["demo"]
    assert follow() == {first.node, third.node, fourth.node}
    # It has: the fourth goes on until the space is there, and the second has read it as well.
    first.follows = ["demo"]
    assert follow() == {first.node, third.node, fourth.node}
    assert plan_for(second.node, nodes, ["demo"], [first.nonce]).hand_over == ["demo"]
    del second.spaces["demo"]
    first.spaces["demo"], first.follows = 1, []
    assert follow() == {second.node, third.node, fourth.node}
    # The first and the third end before that.
    del nodes[first.node], nodes[third.node]
    takes = {name: plan_for(name, nodes, ["demo"], []).take for name in nodes}
    assert takes == {second.node: [], fourth.node: ["demo"]}
    nodes[first.node], nodes[third.node] = first, third
    second.follows = ["demo"]
    assert follow() == {second.node, third.node}


def test_one_that_could_not_begin_a_space_lets_another_try() -> None:
    nodes = there("a", "b")
    preferred = preferred_owner("demo", nodes.values())
    assert preferred is not None
    preferred.refused = ["demo"]
    other = preferred_owner("demo", nodes.values())
    assert other is not None
    assert other is not preferred
    other.refused = ["demo"]
    assert preferred_owner("demo", nodes.values()) is None


def test_of_two_that_say_they_have_a_space_the_later_one_does() -> None:
    nodes = there("a", "b", a=["demo"], b=["demo"])
    nodes["a"].spaces["demo"] = 7
    assert owner_of("demo", nodes.values()) is nodes["a"]


def test_all_spaces_are_at_one_where_no_gateway_takes_connections_of_others() -> None:
    nodes = there("a", "b", b=["space-0"])
    for each in nodes.values():
        each.advertise = ""
    assert plan_for("a", nodes, NAMES, ["b"]) == ([], [], ["space-0"])
    assert plan_for("b", nodes, NAMES, ["a"]) == (NAMES[1:], [], [])


def test_a_space_is_followed_by_those_that_take_it_when_two_gateways_go() -> None:
    nodes = there("a", "b", "c", "d")
    for name in NAMES:
        owner = preferred_owner(name, nodes.values())
        assert owner is not None
        owner.spaces[name] = 1
    follows = {node: plan_for(node, nodes, NAMES, []).follow for node in nodes}
    assert sorted(name for names in follows.values() for name in names) == sorted(2 * NAMES)
    for node, beat in nodes.items():
        beat.follows = follows[node]
    for gone in ({*each} for count in (1, 2) for each in combinations(nodes, count)):
        left = {node: beat for node, beat in nodes.items() if node not in gone}
        taken = {node: {*plan_for(node, left, NAMES, []).take} for node in left}
        assert all(taken[node] <= {*follows[node]} for node in left)
        assert set().union(*taken.values()) == {
            name for each in gone for name in nodes[each].spaces
        }


# --- gateways ---

_BOTH = [NodeHeartbeat(name, "", "", "a:1") for name in ("first", "second")]
FIRST = {name for name in NAMES if preferred_owner(name, _BOTH) is _BOTH[0]}
"""The spaces that are to be at the first of two gateways with these names."""

FILE = """
spaces:
{spaces}
gateway: {{port: {port}}}
journal:
  nats:
    servers: ["{url}"]
    prefix: {prefix}
    replicas: 1
    node: {node}
    advertise: 127.0.0.1:{advertise}
    cluster_token: {token}
"""

SPACE = (
    "  {name}: {{participants: {{alice: {{tokens: [3c0f6d2be1a94758-alice-in-{name}],"
    " capabilities: [{{kind: chat}}]}}}}}}"
)


@pytest.fixture
def steady() -> Generator[None]:
    """Whoever comes gets spaces soon, and nobody is taken to hang, however busy the machine is."""
    with (
        pytest.MonkeyPatch.context() as patch,
        patient(
            "meup_agent.gateway.cluster.membership.SILENT_SECONDS",
            "meup_agent.gateway.cluster.forwarding.GREETING_SECONDS",
        ),
    ):
        patch.setattr("meup_agent.gateway.cluster.membership.STEADY_SECONDS", 0.1)
        yield


def write(folder: Path, node: str, ports: list[int], names: Sequence[str] = NAMES) -> Path:
    path = folder / f"{node}.yaml"
    path.write_text(
        FILE.format(
            spaces="\n".join(SPACE.format(name=name) for name in names),
            url=shared_server().url,
            prefix=nats_config(folder).prefix,
            node=node,
            port=ports.pop(),
            advertise=ports.pop(),
            token=TOKEN,
        )
    )
    return path


def spaces_of(gateway: Gateway) -> set[str]:
    return set(gateway._gateway.runtime.spaces)


@asynccontextmanager
async def member(port: int, space: str) -> AsyncGenerator[ClientConnection]:
    """A member of a space, as soon as it gets in at a port."""
    url, token = f"ws://127.0.0.1:{port}/ws?space={space}", f"3c0f6d2be1a94758-alice-in-{space}"
    async with AsyncExitStack() as stack:
        with anyio.fail_after(PATIENCE):
            while True:
                with suppress(InvalidHandshake, InvalidMessage, ConnectionError):
                    client = await stack.enter_async_context(open_websocket(url, token))
                    break
                await anyio.sleep(0.05)
        yield client


async def says(client: ClientConnection, number: int) -> None:
    await client.send(envelope("alice", id=str(number)))
    assert [each["id"] for each in await hear_chats(client, 1)] == [str(number)]


@pytest.mark.thorough
@pytest.mark.usefixtures("steady")
async def test_when_one_is_killed_its_spaces_move_and_no_others(
    tmp_path: Path, ports: list[int]
) -> None:
    # As the command does where fewer files can be open than for the other one.
    read = load_config(write(tmp_path, "first", ports))
    fewer = replace(read.limits, max_connections=77)
    first = replace(read, limits=fewer, written_limits=read.limits)
    file = write(tmp_path, "second", ports)
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(Gateway(config=first, port=first.port))
        assert spaces_of(gateway) == {*NAMES}
        second = stack.enter_context(running("gateway", "--config", str(file)))
        await anyio.to_thread.run_sync(lambda: second.until("listening at", stream="err"))
        await wait_until(lambda: spaces_of(gateway) == FIRST)
        here = {name: await stack.enter_async_context(member(first.port, name)) for name in NAMES}
        for client in here.values():
            await says(client, 1)
        second.process.send_signal(signal.SIGKILL)
        for name in NAMES:
            if name in FIRST:
                await says(here[name], 2)
            else:
                async with member(first.port, name) as again:
                    await says(again, 2)
        assert spaces_of(gateway) == {*NAMES}


@asynccontextmanager
async def both(folder: Path, ports: list[int]) -> AsyncGenerator[Gateway]:
    """The first of two gateways that have the spaces which are to be there."""
    first = load_config(write(folder, "first", ports))
    second = load_config(write(folder, "second", ports))
    async with (
        Gateway(config=first, port=first.port, page=Console()) as one,
        Gateway(config=second, port=second.port, page=Console()) as other,
    ):
        await wait_until(lambda: spaces_of(other) == {*NAMES} - FIRST)
        yield one


@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize("fragments", [1, 2])
async def test_a_join_frame_alone_says_the_space(
    tmp_path: Path, ports: list[int], fragments: int
) -> None:
    async with both(tmp_path, ports) as one:
        for space in (min(FIRST), min({*NAMES} - FIRST)):
            frame = {"type": "join", "participantId": "alice", "space": space}
            frame["token"] = f"3c0f6d2be1a94758-alice-in-{space}"
            said = json.dumps(frame)
            async with open_websocket(f"{one.url}/ws") as alice:
                await alice.send(said if fragments == 1 else [said[:9], said[9:]])
                await says(alice, 1)
        async with open_websocket(f"{one.url}/ws") as alice:
            await alice.send(json.dumps({**frame, "token": "of-nobody"}))
            await alice.wait_closed()
            assert alice.close_code == 4401
        assert await closed_by(f"{one.url}/ws", "x" * 40_000) == 1009
        assert await closed_by(f"{one.url}/ws", "no join frame") == 4400
        await wait_until(lambda: not forwarded_for)


async def closed_by(url: str, message: str) -> int | None:
    async with open_websocket(url) as client:
        await client.send(message)
        await client.wait_closed()
        return client.close_code


@pytest.mark.usefixtures("steady")
async def test_people_sign_in_at_any_gateway(tmp_path: Path, ports: list[int]) -> None:
    async with both(tmp_path, ports) as one:
        for space in (min(FIRST), min({*NAMES} - FIRST)):
            async with httpx.AsyncClient(base_url=one.http_url, **ALONE) as client:
                browser = Browser(client, one.http_url)
                fields = await browser.fields("/sign-in", "/sign-in")
                fields["token"] = f"3c0f6d2be1a94758-alice-in-{space}"
                answer = await browser.post("/sign-in", fields)
                if space not in FIRST:
                    assert answer.status_code == 307
                    answer = await browser.post("/sign-in", fields)
                assert answer.status_code == 303
                page = await browser.get("/inbox")
                assert page.status_code == 200
                assert space in page.text


@pytest.mark.usefixtures("steady")
async def test_a_space_that_one_configuration_has_is_at_its_gateway(
    tmp_path: Path, ports: list[int]
) -> None:
    """So a space is added or removed by giving one gateway after another the new file."""
    added = min(FIRST)  # it would be at the first, which does not know it
    before = load_config(write(tmp_path, "first", ports, sorted({*NAMES} - {added})))
    after = load_config(write(tmp_path, "second", ports))
    async with (
        Gateway(config=before, port=before.port) as first,
        Gateway(config=after, port=after.port) as second,
    ):
        await wait_until(lambda: spaces_of(first) == FIRST - {added})
        await wait_until(lambda: spaces_of(second) == {*NAMES} - FIRST | {added})
        for number, name in enumerate((added, max(FIRST))):
            async with member(after.port, name) as alice:
                await says(alice, number)


@asynccontextmanager
async def liar(folder: Path, name: str, config: str) -> AsyncGenerator[None]:
    """Something that says it is a gateway, answers, and does nothing."""
    signer, prefix = Signer(TOKEN), nats_config(folder).prefix
    client = await nats.connect(shared_server().url)
    said = NodeHeartbeat(name, "liar", config, "127.0.0.1:1", follows=NAMES, format=2**62)

    async def answer(message: Any) -> None:
        await client.publish(message.reply, signer.sign(b"\x80", message.data))

    async def greet(message: Any) -> None:
        await client.publish(message.reply, signer.sign(msgspec.msgpack.encode(said)))

    async def speak() -> None:
        while True:
            await client.publish(f"{prefix}.beat", signer.sign(msgspec.msgpack.encode(said)))
            await anyio.sleep(0.1)

    await client.subscribe(f"{prefix}.ask.liar", cb=answer)
    await client.subscribe(f"{prefix}.hello", cb=greet)
    await client.flush()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(speak)
            yield
            tasks.cancel_scope.cancel()
    finally:
        await client.close()


@pytest.mark.usefixtures("steady")
async def test_a_gateway_that_is_there_and_does_not_begin_its_spaces_is_passed_over(
    tmp_path: Path, ports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "IDLE_SECONDS", 0.5)
    config = load_config(write(tmp_path, "first", ports))
    async with liar(tmp_path, "second", ""), Gateway(config=config, port=config.port) as gateway:
        await wait_until(lambda: spaces_of(gateway) == {*NAMES})
        mine = gateway._gateway.keeper
        assert isinstance(mine, keeper.SpaceKeeper)
        assert {space for space, _ in mine._passed_over} == {*NAMES}
        assert mine.membership.common_format() == FORMAT


@pytest.mark.usefixtures("steady")
async def test_a_gateway_that_could_not_keep_a_space_is_not_given_it_back_at_once(
    tmp_path: Path, ports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another one could begin it meanwhile."""
    monkeypatch.setattr(keeper, "FIRST_PAUSE_SECONDS", 60.0)
    name = min(FIRST)
    one, other = (load_config(write(tmp_path, node, ports, [name])) for node in ("first", "second"))
    async with (
        Gateway(config=one, port=one.port) as first,
        Gateway(config=other, port=other.port) as second,
    ):
        mine = first._gateway.keeper
        assert isinstance(mine, keeper.SpaceKeeper)
        journal = mine._owned[name]
        journal.abandon()
        mine._lose(name, journal, "the disk is full")
        with anyio.fail_after(PATIENCE):
            while spaces_of(second) != {name} or first._gateway.runtime.stopped:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        assert mine.membership.nodes[mine.membership.nonce].refused == [name]


@pytest.mark.usefixtures("steady")
async def test_a_heartbeat_that_lies_takes_nothing_away(tmp_path: Path, ports: list[int]) -> None:
    """Its owner goes on; what a stranger says of a later release is read as far as it is known."""
    config = load_config(write(tmp_path, "first", ports, [NAMES[0]]))
    async with (
        Gateway(config=config, port=config.port) as gateway,
        member(config.port, NAMES[0]) as alice,
    ):
        assert gateway._gateway.keeper is not None
        assert gateway._gateway.keeper.membership is not None
        membership = gateway._gateway.keeper.membership
        own = membership.nodes[membership.nonce]
        lie = [*msgspec.to_builtins(NodeHeartbeat("liar", "x", own.config, "127.0.0.1:1")), "more"]
        lie[5] = {NAMES[0]: 2**60}
        signer = Signer(TOKEN)
        stranger = await nats.connect(shared_server().url)
        prefix = nats_config(tmp_path).prefix
        subject = f"{prefix}.beat"

        async def answer(message: Any) -> None:
            await stranger.publish(message.reply, signer.sign(b"\x80", message.data))

        await stranger.subscribe(f"{prefix}.ask.x", cb=answer)
        for number in range(3):
            for said in (lie, ["meup/node/2", "later"]):
                await stranger.publish(subject, signer.sign(msgspec.msgpack.encode(said)))
            await stranger.publish(subject, b"?")
            await stranger.flush()
            await says(alice, number)
        await wait_until(lambda: "x" in membership.nodes)
        await says(alice, 4)
        assert spaces_of(gateway) == {NAMES[0]}
        await stranger.close()
