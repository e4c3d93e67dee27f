"""Tools, prompts and resources are found by name, and stay their owner's."""

from typing import Any

import anyio
import pytest

from meup_agent import Agent, Request, Space
from meup_agent.client import offers
from meup_agent.client import offers as offer_finder
from meup_agent.errors import OwnerChanged, OwnerUnknown, ToolError, UsageError
from meup_agent.types import CallNext, OutboundMessage
from tests.interaction.offer_lists import READ, WRITE, lister, writer
from tests.interaction.people import Meeting, Notes, gathered, join, until
from tests.interaction.views import is_request, note_result, taped

IN_MEMORY = pytest.mark.parametrize("meeting", ["memory"], indirect=True)


async def owners(space: Space, tool: str = "write", **options: Any) -> list[str]:
    return [each.participant for each in await space.offers.find(tool, **options)]


async def here(space: Space, *names: str) -> None:
    await until(lambda: {each.id for each in space.participants} >= set(names))


async def gone(space: Space, name: str) -> None:
    await until(lambda: name not in {each.id for each in space.participants})


async def test_a_tool_is_found_and_called_by_its_name_alone(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, writer(notes), "second") as (_, space), taped(space) as tape:
        [found] = await space.offers.find("write")
        assert (found.participant, found.name) == ("tools", "write")
        assert found.described["inputSchema"]["required"] == ["path"]
        assert await space.offers.find("erase") == []
        assert await space.call(None, "write", {"path": "a"}) == "a"
        params = {"name": "write", "arguments": {"path": "b"}}
        result = await space.request(None, "tools/call", params)
        assert result["content"][0]["text"] == "b"
        with pytest.raises(OwnerUnknown, match="no participant that can be asked has the tool"):
            await space.call(None, "erase")
        # The list is asked for once, and the call names the participant that was found.
        assert len(tape.calls("tools/list")) == 1
        assert {each.to for each in tape.calls("tools/call")} == {("tools",)}
    assert notes.all == [("write", "a", 0), ("write", "b", 0)]


async def test_a_newcomer_takes_no_name_over(meeting: Meeting, notes: Notes) -> None:
    """A participant claims the name of a known tool between `find` and `call`."""
    stolen = Notes()
    async with gathered(meeting, writer(notes), "second") as (_, space):
        assert await owners(space) == ["tools"]
        async with join(meeting, writer(stolen), "mallory"):
            await here(space, "mallory")
            assert await space.call(None, "write", {"path": "a"}) == "a"
            assert await owners(space) == ["tools", "mallory"]
            assert await space.call(None, "write", {"path": "b"}) == "b"
    assert stolen.all == []
    assert len(notes.all) == 2


@IN_MEMORY
async def test_a_name_whose_owner_has_gone_is_nobody_elses(meeting: Meeting, notes: Notes) -> None:
    stolen = Notes()
    async with gathered(meeting, "second") as (space,):
        async with join(meeting, writer(notes)):
            await here(space, "tools")
            assert await space.call(None, "write", {"path": "a"}) == "a"
        async with join(meeting, writer(stolen), "mallory"):
            await gone(space, "tools")
            await here(space, "mallory")
            with pytest.raises(OwnerChanged, match="was that of 'tools', which has it no") as e:
                await space.call(None, "write", {"path": "b"})
            assert (e.value.owner, e.value.owners) == ("tools", ("mallory",))
            assert await owners(space) == ["mallory"]
            with pytest.raises(OwnerChanged):
                await space.request(None, "tools/call", {"name": "write", "arguments": {}})
            assert stolen.all == []
            # Only the caller gives the name away.
            assert await owners(space, renew=True) == ["mallory"]
            assert await space.call(None, "write", {"path": "c"}) == "c"
    assert (notes.all, stolen.all) == ([("write", "a", 0)], [("write", "c", 0)])


@IN_MEMORY
async def test_a_call_waits_for_an_owner_that_is_away(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, "second") as (space,), anyio.create_task_group() as tasks:
        async with join(meeting, writer(notes)):
            await here(space, "tools")
            assert await owners(space) == ["tools"]
        await gone(space, "tools")
        async with taped(space) as tape:
            tasks.start_soon(space.call, None, "write", {"path": "later"})
            asked = await tape.until(is_request)
        assert asked.to == ("tools",)
        tasks.cancel_scope.cancel()


@IN_MEMORY
async def test_two_with_one_name_are_ambiguous(meeting: Meeting, notes: Notes) -> None:
    async with (
        gathered(meeting, writer(notes)),
        join(meeting, writer(notes), "deep"),
        join(meeting, "second") as space,
    ):
        with pytest.raises(OwnerUnknown, match="2 participants have the tool 'write'") as caught:
            await space.call(None, "write", {"path": "a"})
        assert caught.value.owners == ("tools", "deep")
        assert await owners(space) == ["tools", "deep"]
        assert await space.call("deep", "write", {"path": "b"}) == "b"
    assert notes.all == [("write", "b", 0)]


@IN_MEMORY
async def test_a_changed_list_moves_no_open_call(meeting: Meeting, notes: Notes) -> None:
    answers = list[Any]()

    async def call(space: Space) -> None:
        answers.append(await space.call(None, "write", {"path": "a"}))

    async with lister(meeting) as mallory, join(meeting, "second") as space:
        async with anyio.create_task_group() as tasks, taped(space) as tape:
            tasks.start_soon(call, space)
            await mallory.give(await mallory.asked(1), WRITE)
            asked = await tape.until(lambda each: each in tape.calls("tools/call"))
            await mallory.say_changed("changed")
            async with join(meeting, writer(notes)):
                await here(space, "tools")
                await mallory.raw.answer(
                    asked, {"jsonrpc": "2.0", "id": asked.id, "result": {"content": []}}
                )
                await until(lambda: bool(answers))
                # The list was forgotten; its owner says that it has the tool no more.
                async with anyio.create_task_group() as asking:
                    asking.start_soon(raises_changed, space)
                    await mallory.give(await mallory.asked(2), READ)
    assert notes.all == []


async def raises_changed(space: Space) -> None:
    with pytest.raises(OwnerChanged, match=r"that of 'mallory', .* but 'tools' has"):
        await space.call(None, "write", {"path": "b"})


@IN_MEMORY
async def test_a_million_tools_hide_no_other(
    meeting: Meeting, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offers, "MAX_PAGES", 3)
    flood = [{"name": f"tool{number}", "inputSchema": {}} for number in range(1000)]
    async with (
        lister(meeting) as mallory,
        join(meeting, writer(notes)),
        join(meeting, "second") as space,
    ):

        async def answer() -> None:
            for page in range(1, 4):
                await mallory.give(await mallory.asked(page), *flood, nextCursor=str(page))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            assert await owners(space) == ["tools"]
        # It is not asked again, though its list was cut, and its names are known.
        assert await space.call(None, "write", {"path": "a"}) == "a"
        assert await owners(space, "tool7") == ["mallory"]
        assert mallory.count() == 3


@IN_MEMORY
async def test_one_that_does_not_answer_is_left_out(meeting: Meeting, notes: Notes) -> None:
    async with (
        lister(meeting) as mallory,
        join(meeting, writer(notes)),
        join(meeting, "second") as space,
    ):
        await space.offers.tools("tools")  # known, and not waited for
        assert await owners(space, timeout=0.5) == ["tools"]
        assert await owners(space, "read") == ["tools"]
        assert mallory.count() == 1
        # What it says of its list is a reason to ask again.
        await mallory.say_changed("changed")
        async with anyio.create_task_group() as tasks:
            found = list[str]()
            tasks.start_soon(note_result, found.extend, owners, space)
            await mallory.give(await mallory.asked(2), WRITE)
        assert found == ["mallory", "tools"]


@IN_MEMORY
async def test_only_so_many_are_asked(
    meeting: Meeting, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newcomers crowd out no participant that was there before."""
    monkeypatch.setattr(offer_finder, "MAX_ASKED", 1)
    monkeypatch.setattr(offer_finder, "MAX_PINNED", 1)
    async with gathered(meeting, writer(notes), "second") as (_, space):
        assert await owners(space) == ["tools"]
        with pytest.raises(UsageError, match="no more are kept"):
            await space.call(None, "read")


@IN_MEMORY
async def test_resources_and_prompts_are_routed_by_their_names(meeting: Meeting) -> None:
    library, said = Agent("tools"), list[str]()
    lists: dict[str, dict[str, Any]] = {
        "resources/list": {"resources": [{"uri": "notes://today", "name": "today"}]},
        "prompts/list": {"prompts": [{"name": "greet"}]},
        "resources/read": {"contents": [{"uri": "notes://today", "text": "rain"}]},
        "prompts/get": {"messages": []},
        "completion/complete": {"completion": {"values": ["ann"]}},
    }

    @library.on_request("resources/*", "prompts/*", "completion/*")
    async def answer(request: Request) -> dict[str, Any]:
        said.append(request.method)
        return lists[request.method]

    async with gathered(meeting, library, "second") as (_, space):
        [text] = await space.offers.read_resource(None, "notes://today")
        assert text["text"] == "rain"
        assert await space.offers.prompt(None, "greet", {"name": "ann"}) == {"messages": []}
        ref = {"type": "ref/prompt", "name": "greet"}
        assert await space.offers.complete(None, ref, "name", "a") == ["ann"]
        # Each list is asked for once.
        assert (said.count("prompts/list"), said.count("resources/list")) == (1, 1)
        with pytest.raises(OwnerUnknown, match="the resource 'notes://never'"):
            await space.offers.read_resource(None, "notes://never")
        for method in ("tools/list", "tools/call", "completion/complete"):
            with pytest.raises(UsageError, match="say which participant it is for"):
                await space.request(None, method, {})


def librarian(name: str, templates: list[str], *, resources: list[str] | None = None) -> Agent:
    """An agent that has resources, some by a template alone, and says for whom it answers."""
    agent = Agent(name)
    answers: dict[str, dict[str, Any]] = {
        "resources/list": {"resources": [{"uri": each} for each in resources or []]},
        "resources/templates/list": {
            "resourceTemplates": [{"uriTemplate": each} for each in templates]
        },
        "resources/read": {"contents": [{"uri": "", "text": name}]},
        "resources/subscribe": {"by": name},
        "completion/complete": {"completion": {"values": [name]}},
    }

    @agent.on_request("resources/**", "completion/*")
    async def answer(request: Request) -> dict[str, Any]:
        return answers[request.method]

    return agent


NOTES = {"type": "ref/resource", "uri": "notes://{day}"}
ONE_NOTE = {"type": "ref/resource", "uri": "notes://monday"}


async def test_what_only_a_template_names_is_routed_and_pinned(meeting: Meeting) -> None:
    """A resource that was read keeps its owner: neither a URI nor a broader template takes it."""

    async def read(space: Space, uri: str) -> Any:
        return (await space.offers.read_resource(None, uri))[0]["text"]

    tools = librarian("tools", ["notes://{day}", "files:///{+path}"])
    async with gathered(meeting, tools, "deep", "second") as (_, _, space):
        async with taped(space) as tape:
            assert await read(space, "notes://monday") == "tools"
            assert await read(space, "files:///a/b?c") == "tools"
            watched = {"uri": "notes://sunday"}
            assert await space.request(None, "resources/subscribe", watched) == {"by": "tools"}
            assert await space.offers.complete(None, NOTES, "day", "m") == ["tools"]
            assert await space.offers.complete(None, ONE_NOTE, "day", "m") == ["tools"]
            # One that knows no templates is asked for them once.
            asked = [each.to for each in tape.calls("resources/templates/list")]
            assert sorted(asked) == [("deep",), ("tools",)]
        with pytest.raises(OwnerUnknown, match="has the resource 'notes://a/b'"):
            await read(space, "notes://a/b")
        listed = ["notes://monday", "notes://friday"]
        async with join(meeting, librarian("mallory", ["{+all}"], resources=listed), "mallory"):
            await here(space, "mallory")
            assert await read(space, "notes://monday") == "tools"
            assert await space.offers.complete(None, NOTES, "day", "m") == ["tools"]
            with pytest.raises(OwnerUnknown, match="2 participants have the resource") as caught:
                await read(space, "notes://friday")
            assert caught.value.owners == ("tools", "mallory")


@IN_MEMORY
async def test_a_template_that_is_gone_gives_its_resources_to_nobody(meeting: Meeting) -> None:
    async with gathered(meeting, "second") as (space,):
        async with join(meeting, librarian("tools", ["notes://{day}"])):
            await here(space, "tools")
            [found] = await space.offers.read_resource(None, "notes://monday")
            assert found["text"] == "tools"
        async with (
            join(meeting, Agent("tools")),
            join(meeting, librarian("mallory", ["notes://{day}"]), "mallory"),
        ):
            await here(space, "tools", "mallory")
            with pytest.raises(OwnerChanged, match="was that of 'tools'") as caught:
                await space.offers.read_resource(None, "notes://monday")
            assert caught.value.owners == ("mallory",)


@IN_MEMORY
@pytest.mark.parametrize(
    ("result", "read"),
    [
        (
            {"contents": "rain", "mimeType": "text/plain"},
            {"mimeType": "text/plain", "text": "rain"},
        ),
        ({"contents": {"blob": "AA=="}}, {"blob": "AA=="}),
        ({"contents": {"a": [1]}}, {"text": '{"a": [1]}'}),
    ],
)
async def test_contents_that_existing_participants_give_without_a_list_are_read(
    meeting: Meeting, result: dict[str, Any], read: dict[str, Any]
) -> None:
    agent = Agent("tools")

    @agent.on_request("resources/read")
    async def answer(request: Request) -> dict[str, Any]:
        return {"uri": request.params["uri"], **result}

    async with gathered(meeting, agent, "second") as (_, space):
        assert await space.offers.read_resource("tools", "notes://1") == [
            {"uri": "notes://1", **read}
        ]


@IN_MEMORY
async def test_a_handler_calls_by_name(meeting: Meeting, notes: Notes) -> None:
    bot = Agent("second")

    @bot.tool
    async def twice(path: str, space: Space) -> str:
        with pytest.raises(ToolError):
            await space.call(None, "write", {"path": "full"})
        return str(await space.call(None, "write", {"path": path}))

    tools = Agent("tools")

    @tools.tool
    async def write(path: str) -> str:
        notes(path)
        if path == "full":
            raise ValueError(path)
        return path

    async with gathered(meeting, tools, bot, "deep") as (_, _, space):
        assert await space.call("second", "twice", {"path": "a"}) == "a"
    assert notes.all == ["full", "a"]


@IN_MEMORY
async def test_a_middleware_sees_the_owner_that_was_found(meeting: Meeting, notes: Notes) -> None:
    bot, seen = Agent("second"), list[str | None]()

    @bot.middleware
    async def look(message: OutboundMessage, call_next: CallNext) -> Any:
        seen.append(message.participant)
        return await call_next(message)

    async with gathered(meeting, writer(notes), bot) as (_, space):
        assert await space.call(None, "write", {"path": "a"}) == "a"
        params = {"name": "write", "arguments": {"path": "b"}}
        await space.request(None, "tools/call", params)
    assert seen == ["tools", "tools"]
