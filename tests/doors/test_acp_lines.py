"""What passes between an editor and an agent, line by line, and what an agent cannot slip past."""

import json
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest

from meup_agent.doors.acp import CANCELLED, MAX_ASKS, MAX_HELD_BYTES, AcpProxy
from meup_agent.doors.permit import Answer, Denied, HostCall, Permitted, Why
from meup_agent.protocol.wire.outcomes import PermitReport
from tests.patience import PATIENCE

pytestmark = pytest.mark.anyio

TERMINAL = (
    b'{"jsonrpc":"2.0","id":1,"method":"terminal/create","params":{"sessionId":"s","command":"ls"}}'
)

PERMISSION = (
    b'{"id":1,"method":"session/request_permission","params":{"sessionId":"s","toolCall":'
    b'{"toolCallId":"t"},"options":[{"optionId":"o","name":"Yes","kind":"allow_once"}]}}'
)

CANCEL_UNREADABLE = b'{"method":"$/cancel_request","params":{"requestId":1e999}}'


class Wire:
    """A proxy between two peers that a test plays; `decide` answers what waits, in order."""

    def __init__(self) -> None:
        self.asked: list[HostCall] = []
        self.withdrawn = 0
        self.editor: list[bytes] = []
        self.agent: list[bytes] = []
        self.changed = anyio.Event()
        self.answers: list[Answer] = []
        self._to_editor, self.from_agent = anyio.create_memory_object_stream[bytes](100)
        self._to_agent, self.from_editor = anyio.create_memory_object_stream[bytes](100)
        self.told: list[tuple[str, str, int | None, str]] = []
        self.may_read = anyio.Event()  # the editor does
        self.may_read.set()
        self.reading = 0
        self.proxy = AcpProxy(
            self.ask, to_editor=self.read_editor, to_agent=self.read_agent, report=self.report
        )

    def streams(self) -> ExitStack:
        """Closes the streams at the end of a block."""
        stack = ExitStack()
        for each in (self._to_editor, self.from_agent, self._to_agent, self.from_editor):
            stack.enter_context(each)
        return stack

    async def ask(self, call: HostCall) -> Answer:
        self.asked.append(call)
        self.notify()
        try:
            await self.until(lambda: bool(self.answers))
            answer = self.answers.pop(0)
            self.notify()
            return answer
        except anyio.get_cancelled_exc_class():
            self.withdrawn += 1
            self.notify()
            raise

    def report(self, proposal: str, said: PermitReport) -> None:
        self.told.append((proposal, said.outcome, said.exit_code, said.output))
        self.notify()

    async def read_editor(self, line: bytes) -> None:
        self.reading += 1
        self.notify()
        await self.may_read.wait()
        self.editor.append(line)
        self.notify()

    async def read_agent(self, line: bytes) -> None:
        self.agent.append(line)
        self.notify()

    def notify(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    async def until(self, true: Any) -> None:
        while not true():
            await self.changed.wait()

    def decide(self, answer: Answer) -> None:
        self.answers.append(answer)
        self.notify()

    async def agent_sends(self, *lines: bytes) -> None:
        for line in lines:
            await self._to_editor.send(line)

    async def editor_sends(self, *lines: bytes) -> None:
        for line in lines:
            await self._to_agent.send(line)


@asynccontextmanager
async def wire() -> AsyncGenerator[Wire]:
    made = Wire()
    with made.streams(), anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.proxy.run, made.from_editor, made.from_agent)
            yield made
            tasks.cancel_scope.cancel()


MARK = b'{"jsonrpc":"2.0","method":"session/update","params":{"end":true}}'


@pytest.mark.parametrize(
    "line",
    [
        b'{ "method" : "session/update", "params":{"x": 1.50,"y":"\\u00e9"} }\r',
        b'{"id":"7","result":{"unknown":[1e3]}}',
        b'{"id":7,"error":{"code":-1,"message":"no"}}',
        b'{"id":7,"method":"_own/extension","params":[1]}',
        b'{"id":8,"method":"fs/read_text_file","params":{"path":"terminal/create \\"method\\""}}',
        b'{"id":9,"result":null}',
    ],
)
async def test_what_is_not_decided_passes_byte_for_byte(line: bytes) -> None:
    async with wire() as at:
        await at.agent_sends(line)
        await at.editor_sends(line)
        await at.until(lambda: at.editor and at.agent)
        assert (at.editor, at.agent, at.asked) == ([line + b"\n"], [line + b"\n"], [])


@pytest.mark.parametrize(
    "line",
    [
        TERMINAL.replace(b'"method"', b'"method":"session/update","method"'),
        TERMINAL[:-1] + b',"method":"session/update"}',
        TERMINAL[:-1] + b',"Method":"session/update"}',
        TERMINAL[:-1] + b',"\\u006dethod":"session/update"}',
        b'{"Method":"terminal/create","method":"x","id":1}',
        TERMINAL.replace(b'"method"', b'"Method"'),
        TERMINAL.replace(b'"id"', b'"ID"'),
        TERMINAL.replace(b'"params"', b'"Params"'),
        b'{"method":"session/update","params":\r' + TERMINAL + b"\r}",
        b'{"method":"session/update","params":{"text":"\xff"}}',
        TERMINAL[:-2] + b',"command":"rm"}}',
        TERMINAL[:-2] + b',"Command":"rm"}}',
        b"[" + TERMINAL + b"]",
        TERMINAL + TERMINAL,
        TERMINAL.replace(b'"ls"', b"NaN"),
        TERMINAL.replace(b'"id":1,', b""),
        TERMINAL.replace(b'"id":1,', b'"id":null,'),
        TERMINAL.replace(b'"id":1,', b'"id":true,'),
        b"not JSON",
        b'"terminal/create"',
        b"\xef\xbb\xbf" + TERMINAL,
        b"[" * 100_000,
    ],
)
async def test_what_can_be_read_in_two_ways_reaches_nobody(line: bytes) -> None:
    async with wire() as at:
        await at.agent_sends(line, MARK)
        await at.until(lambda: at.editor)
        assert (at.editor, at.asked) == ([MARK + b"\n"], [])


@pytest.mark.parametrize(
    "line", [TERMINAL.replace(b"terminal/create", b"terminal\\/cre\\u0061te"), TERMINAL + b" \r"]
)
async def test_another_spelling_is_decided_as_well(line: bytes) -> None:
    async with wire() as at:
        await at.agent_sends(line)
        await at.until(lambda: at.asked)
        assert at.editor == []
        at.decide(Permitted("p", {}, "ann"))
        await at.until(lambda: at.editor)
        assert at.editor == [line + b"\n"]


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"sessionId": "s"}, "`command`"),
        ({"sessionId": "s", "command": ["ls"]}, "`$.command`"),
        ({"sessionId": "s", "command": "ls", "args": ["-l", 5]}, "$.args["),
        ({"sessionId": "s", "command": "ls", "cwd": 1}, "`$.cwd`"),
        ({"sessionId": "s", "command": "ls", "Args": ["-l"]}, "'Args'"),
        ([], "`object`"),
    ],
)
async def test_a_field_of_another_type_is_named_and_denied(params: Any, field: str) -> None:
    async with wire() as at:
        line = json.dumps({"id": 1, "method": "terminal/create", "params": params})
        await at.agent_sends(line.encode())
        await at.until(lambda: at.agent)
        said = json.loads(at.agent[0])
        words = said["error"]["message"]
        assert "it cannot be read" in words
        assert field in words
        assert "Nobody decided about it: do not try to do the same by another way" in words
        assert (at.asked, at.editor) == ([], [])


@pytest.mark.parametrize("line", [b'{"id":7,"result":{"n":1e999}}', CANCEL_UNREADABLE])
async def test_what_only_we_cannot_read_passes(line: bytes) -> None:
    async with wire() as at:
        await at.editor_sends(b'{"id":7,"method":"session/new"}')
        await at.until(lambda: at.agent)
        await at.agent_sends(line)
        await at.until(lambda: at.editor)
        assert at.editor == [line + b"\n"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"result": {"protocolVersion": 2}}, "version 2 of ACP"),
        ({"result": {"protocolVersion": "1"}}, 'version "1" of ACP'),
        ({"result": {"protocolVersion": True}}, "version true of ACP"),
        ({"result": {}}, "version null of ACP ('protocolVersion')"),
        ({"result": {"protocolVersion": 2}, "error": {"code": 1, "message": "x"}}, "version 2"),
    ],
)
async def test_an_agent_of_another_version_is_not_begun_with(
    answer: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with wire() as at:
        await at.editor_sends(b'{"id":0,"method":"initialize","params":{"protocolVersion":2}}')
        await at.until(lambda: at.agent)
        await at.agent_sends(json.dumps({"id": 0, **answer}).encode(), TERMINAL, MARK)
        await at.agent_sends(b'{"id":2,"method":"command/run","params":{"command":"ls"}}')
        await at.until(lambda: at.editor)
        await anyio.wait_all_tasks_blocked()
        assert (len(at.editor), at.asked, len(at.agent)) == (1, [], 1)
    assert said in json.loads(at.editor[0])["error"]["message"]
    assert "update meup-agent" in caplog.text


async def test_an_agent_that_refuses_to_begin_says_so_itself() -> None:
    async with wire() as at:
        await at.editor_sends(b'{"id":0,"method":"initialize","params":{"protocolVersion":1}}')
        await at.until(lambda: at.agent)
        refusal = b'{"id":0,"error":{"code":-32000,"message":"sign in"}}'
        await at.agent_sends(refusal)
        await at.until(lambda: at.editor)
    assert at.editor == [refusal + b"\n"]


async def test_an_answer_whose_id_some_read_as_another_reaches_nobody() -> None:
    async with wire() as at:
        await at.agent_sends(b'{"id":0.0,"result":{"protocolVersion":2}}', MARK)
        await at.until(lambda: at.editor)
        assert at.editor == [MARK + b"\n"]


@pytest.mark.parametrize("number", [0, 1])
async def test_the_agent_takes_a_request_back(number: int) -> None:
    async with wire() as at:
        await at.agent_sends(TERMINAL.replace(b'"id":1', b'"id":%d' % number))
        await at.until(lambda: at.asked)
        cancel = b'{"method":"$/cancel_request","params":{"requestId":%d}}' % number
        await at.agent_sends(cancel)
        await at.until(lambda: at.agent)
        assert at.withdrawn == 1
        assert json.loads(at.agent[0])["error"]["code"] == -32800
        assert at.editor == []


async def test_a_number_that_only_others_can_read_is_denied() -> None:
    async with wire() as at:
        await at.agent_sends(TERMINAL[:-2] + b',"limit":1e999}}')
        await at.until(lambda: at.agent)
        assert "it cannot be read" in json.loads(at.agent[0])["error"]["message"]


async def test_an_answer_of_the_editor_to_what_it_has_not_seen_reaches_nobody() -> None:
    async with wire() as at:
        await at.agent_sends(TERMINAL)
        await at.until(lambda: at.asked)
        await at.editor_sends(b'{"id":1,"result":{"terminalId":"t"}}', MARK)
        await at.until(lambda: at.agent)
        assert at.agent == [MARK + b"\n"]


async def test_a_turn_that_is_cancelled_as_the_permit_comes_runs_nothing() -> None:
    cancel = b'{"method":"session/cancel","params":{"sessionId":"s"}}'
    at = Wire()

    async def permit(call: HostCall) -> Answer:
        at.asked.append(call)
        at.notify()
        with anyio.CancelScope(shield=True):  # as the gateway has ordered it already
            await at.until(lambda: at.agent)
        return Permitted("p", {}, "ann")

    at.proxy = AcpProxy(permit, to_editor=at.read_editor, to_agent=at.read_agent, report=at.report)
    with at.streams(), anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(at.proxy.run, at.from_editor, at.from_agent)
            await at.agent_sends(TERMINAL)
            await at.until(lambda: at.asked)
            await at.editor_sends(cancel)
            await at.until(lambda: at.agent[1:])
            tasks.cancel_scope.cancel()
    assert at.editor == []
    assert json.loads(at.agent[1])["error"]["code"] == -32800
    assert at.told == [("p", "not_run", None, CANCELLED)]


async def test_a_permit_that_waits_for_its_turn_is_not_written_after_a_cancel() -> None:
    async with wire() as at:
        at.may_read = anyio.Event()
        await at.agent_sends(TERMINAL)
        await at.until(lambda: at.asked)
        await at.agent_sends(MARK)
        await at.until(lambda: at.reading)
        at.decide(Permitted("p", {}, "ann"))
        await at.until(lambda: not at.answers)
        await at.editor_sends(b'{"method":"session/cancel","params":{"sessionId":"s"}}')
        await at.until(lambda: at.agent)
        at.may_read.set()
        await at.until(lambda: at.told and at.agent[1:])
        assert at.editor == [MARK + b"\n"]
        assert json.loads(at.agent[1])["error"]["code"] == -32800
        assert at.told == [("p", "not_run", None, CANCELLED)]


UPDATE = (
    '{"method":"session/update","params":{"sessionId":"s","update":'
    '{"sessionUpdate":"tool_call_update","toolCallId":"t","status":%s}}}'
)
WRITE = (
    b'{"id":1,"method":"fs/write_text_file","params":{"sessionId":"s","path":"/a","content":""}}'
)
EXIT = b'{"id":2,"method":"terminal/wait_for_exit","params":{"sessionId":"s","terminalId":"x"}}'


@pytest.mark.parametrize(
    ("asked", "then", "told"),
    [
        (
            PERMISSION,
            [
                UPDATE % '"in_progress"',
                UPDATE % '"completed","rawOutput":"ok"',
                UPDATE % '"failed"',
            ],
            ("completed", None, "ok"),
        ),
        (
            PERMISSION,
            [UPDATE % '"failed","content":[{"type":"content","content":{"text":"no such file"}}]'],
            ("failed", None, "no such file"),
        ),
        (WRITE, ['E{"id":1,"result":{}}'], ("completed", None, "")),
        (WRITE, ['E{"id":1,"error":{"code":1,"message":"full"}}'], ("failed", None, "full")),
        (
            TERMINAL,
            ['E{"id":1,"result":{"terminalId":"x"}}', EXIT, 'E{"id":2,"result":{"exitCode":2}}'],
            ("failed", 2, ""),
        ),
        (
            TERMINAL,
            [
                'E{"id":1,"result":{"terminalId":"x"}}',
                EXIT,
                'E{"id":2,"result":{"exitCode":0,"signal":null}}',
            ],
            ("completed", 0, ""),
        ),
    ],
)
async def test_what_came_of_a_permit_is_reported_once(
    asked: bytes, then: list[Any], told: tuple[str, int | None, str]
) -> None:
    async with wire() as at:
        at.decide(Permitted("p", {}, "ann"))
        await at.agent_sends(asked)
        await at.until(lambda: at.agent if asked is PERMISSION else at.editor)
        for each in then:
            line = each if isinstance(each, bytes) else each.removeprefix("E").encode()
            is_editors = isinstance(each, str) and each.startswith("E")
            seen = at.agent if is_editors else at.editor
            before = len(seen)
            await (at.editor_sends if is_editors else at.agent_sends)(line)
            await at.until(lambda seen=seen, before=before: len(seen) > before)
        assert at.told == [("p", *told)]


@pytest.mark.thorough
async def test_what_waits_has_bounded_bytes() -> None:
    async with wire() as at:
        for number in range(3):
            content = b"x" * (MAX_HELD_BYTES // 3)
            large = WRITE.replace(b'""', b'"%s"' % content).replace(b'"id":1', b'"id":%d' % number)
            await at.agent_sends(large)
        await at.until(lambda: at.agent)
        assert len(at.asked) == 2
        assert json.loads(at.agent[0])["id"] == 2


async def test_what_the_editor_has_seen_is_taken_back_there() -> None:
    cancel = b'{"method":"$/cancel_request","params":{"requestId":1}}'
    async with wire() as at:
        at.decide(Permitted("p", {}, "ann"))
        await at.agent_sends(TERMINAL)
        await at.until(lambda: at.editor)
        await at.agent_sends(cancel)
        await at.until(lambda: len(at.editor) == 2)
        assert at.editor == [TERMINAL + b"\n", cancel + b"\n"]


@pytest.mark.parametrize("number", [0, 5])
async def test_an_editor_that_takes_its_prompt_back_withdraws_in_that_session_alone(
    number: int,
) -> None:
    other = TERMINAL.replace(b'"id":1', b'"id":2').replace(b'"s"', b'"t"')
    async with wire() as at:
        prompt = b'{"id":%d,"method":"session/prompt","params":{"sessionId":"s"}}' % number
        await at.editor_sends(prompt)
        await at.agent_sends(TERMINAL, other)
        await at.until(lambda: len(at.asked) == 2)
        cancel = b'{"method":"$/cancel_request","params":{"requestId":%d}}' % number
        await at.editor_sends(cancel)
        await at.until(lambda: at.agent[1:])
        assert at.withdrawn == 1
        at.decide(Permitted("p", {}, "ann"))
        await at.until(lambda: at.editor)
        assert at.editor == [other + b"\n"]


async def test_a_flood_is_bounded_and_an_id_is_asked_about_once() -> None:
    async with wire() as at:
        for number in range(MAX_ASKS + 10):
            await at.agent_sends(TERMINAL.replace(b'"id":1', b'"id":%d' % number))
        await at.agent_sends(TERMINAL)
        await at.until(lambda: len(at.agent) == 11)
        assert len(at.asked) == MAX_ASKS
        assert all("wait" in json.loads(each)["error"]["message"] for each in at.agent)


async def test_the_words_of_a_denial_reach_the_agent() -> None:
    async with wire() as at:
        await at.agent_sends(TERMINAL)
        at.decide(Denied(Why.REJECTED, "The call of execute was rejected."))
        await at.until(lambda: at.agent)
        assert json.loads(at.agent[0])["error"] == {
            "code": -32001,
            "message": "The call of execute was rejected.",
        }


async def test_a_side_that_reads_no_more_ends_the_other() -> None:
    async def closed(_: bytes) -> None:
        raise BrokenPipeError

    async def never(_: HostCall) -> Answer:
        raise AssertionError

    for side in ("editor", "agent"):
        at = Wire()
        closing = {"editor": at.read_editor, "agent": at.read_agent, side: closed}
        proxy = AcpProxy(never, to_editor=closing["editor"], to_agent=closing["agent"])
        await at.agent_sends(MARK)
        await at.editor_sends(MARK)
        with at.streams(), anyio.fail_after(PATIENCE):
            assert await proxy.run(at.from_editor, at.from_agent) == side
