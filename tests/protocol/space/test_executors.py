"""The executor of a fulfillment without ``to``: one participant, or none (PROTOCOL 4.4)."""

from typing import Any

import pytest

from tests.protocol.frames import frame_by
from tests.protocol.space.scene import Scene
from tests.spaces import MAX_LISTED_TOOLS, Journal

CAPABILITIES: dict[str, list[dict[str, Any]]] = {
    "human": [{"kind": "*"}],
    "worker": [{"kind": "mcp/proposal"}],
    "files": [],
    "disk": [],
    "onlooker": [],
}


def gathered(*present: str, journal: Journal | None = None) -> Scene:
    return Scene(CAPABILITIES, present=present or tuple(CAPABILITIES), journal=journal)


def list_tools(
    scene: Scene, owner: str, *tools: str, to: bool = True, next_cursor: str = "", cursor: str = ""
) -> None:
    asked = ask_for_tools(scene, *([owner] if to else []), cursor=cursor)
    answer_list(scene, owner, asked, *tools, next_cursor=next_cursor)


def ask_for_tools(scene: Scene, *owners: str, cursor: str = "") -> str:
    params = {"cursor": cursor} if cursor else {}
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params}
    header: dict[str, Any] = {"to": list(owners)} if owners else {}
    return scene.say("human", "mcp.request", request, **header)


def answer_list(scene: Scene, owner: str, asked: str, *tools: str, next_cursor: str = "") -> None:
    listed = [{"name": name, "inputSchema": {"type": "object"}} for name in tools]
    page: dict[str, Any] = {"tools": listed}
    if next_cursor:
        page["nextCursor"] = next_cursor
    response = {"jsonrpc": "2.0", "id": 1, "result": page}
    scene.say(owner, "mcp.response", response, to=["human"], correlationId=asked)


def propose(scene: Scene, *, target: str = "", **header: Any) -> str:
    meta = {"_meta": {"dev.meup/target": target}} if target else {}
    params = {"name": "write", "arguments": {"path": "a"}, **meta}
    return scene.say("worker", "mcp.proposal", {"method": "tools/call", "params": params}, **header)


def approve(scene: Scene, proposal: str, *, by: str = "human", id: str = "", **more: Any) -> None:
    params = {"name": more.pop("name", "write"), "arguments": {"path": "a"}}
    request = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    scene.forget()
    scene.say(by, "mcp.request", request, id=id, correlationId=proposal, **more)


def asked(scene: Scene) -> list[str] | None:
    """The addressees of the one request that the onlooker has got."""
    (request,) = scene.got("onlooker")
    assert request["kind"] == "mcp.request"
    to: list[str] | None = request.get("to")
    return to


def refused(scene: Scene) -> list[str]:
    """The participants that the human is told to choose from; nothing has passed."""
    assert scene.got("onlooker") == []
    error = scene.error("human")
    assert error["error"] == "ambiguous_executor"
    assert "'to'" in error["message"]
    executors: list[str] = error["executors"]
    assert all(repr(each) in error["message"] for each in executors)
    return executors


@pytest.mark.rule("4.4.unaddressed")
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("to", [True, False])
@pytest.mark.parametrize(
    ("lists", "executors"),
    [
        ([("files", "write"), ("disk", "read")], ["files"]),
        ([("files", "write"), ("disk", "read", "write")], ["files", "disk"]),
        ([("disk", "write"), ("files", "write"), ("disk", "read")], ["files"]),
        ([("files", "write"), ("human", "write")], ["files"]),
        ([("files", "write"), ("worker", "write")], ["files"]),
        ([], ["files", "disk", "onlooker"]),
        ([("files", "read"), ("disk",), ("onlooker",)], []),
    ],
    ids=["one", "two", "newer list", "sender", "proposer", "no list", "none has it"],
)
def test_it_goes_to_the_only_owner_of_the_tool_or_to_none(
    lists: list[tuple[str, ...]], executors: list[str], to: bool, restarted: bool
) -> None:
    """One that is away would carry it out as it comes back, and so would another."""
    scene = gathered()
    for owner, *tools in lists:
        list_tools(scene, owner, *tools, to=to)
    proposal = propose(scene)
    if restarted:
        scene = gathered(journal=scene.journal)
    approve(scene, proposal, id="first")
    if len(executors) != 1:
        assert refused(scene) == executors
        executors = ["disk"]
        approve(scene, proposal, id="second", to=executors)
    assert asked(scene) == executors


@pytest.mark.rule("4.4.unaddressed")
def test_each_answer_to_a_request_for_all_lists_counts() -> None:
    scene = gathered()
    asked_all = ask_for_tools(scene)
    answer_list(scene, "files", asked_all, "write")
    answer_list(scene, "disk", asked_all, "write")
    approve(scene, propose(scene))
    assert refused(scene) == ["files", "disk"]


@pytest.mark.rule("4.4.unaddressed")
def test_the_pages_of_a_list_are_one_list() -> None:
    scene = gathered()
    list_tools(scene, "disk", "other", next_cursor="2")
    list_tools(scene, "disk", "write", cursor="2")
    list_tools(scene, "files", "write")
    list_tools(scene, "disk", "other", next_cursor="2")  # another reader begins anew
    approve(scene, propose(scene))
    assert refused(scene) == ["files", "disk"]


@pytest.mark.rule("4.4.unaddressed")
def test_one_that_has_left_owns_nothing() -> None:
    scene = gathered()
    list_tools(scene, "files", "write")
    list_tools(scene, "disk", "write")
    scene.host.leave(scene.members["disk"])
    approve(scene, propose(scene))
    assert asked(scene) == ["files"]


@pytest.mark.rule("4.4.unaddressed")
@pytest.mark.parametrize("restarted", [False, True])
def test_one_that_came_back_shares_its_tools_with_none_that_lists_them_first(
    restarted: bool,
) -> None:
    scene = gathered()
    list_tools(scene, "files", "write")
    scene.host.leave(scene.members["files"])
    if restarted:
        scene = gathered("human", "worker", "disk", "onlooker", journal=scene.journal)
    scene.members["files"] = scene.join("files")
    list_tools(scene, "disk", "write")
    approve(scene, propose(scene))
    assert sorted(refused(scene)) == ["disk", "files"]
    list_tools(scene, "files", "read")
    approve(scene, propose(scene))
    assert asked(scene) == ["disk"], "its next list takes the place"


@pytest.mark.rule("4.4.unaddressed")
def test_one_that_came_back_may_have_more_tools_than_before() -> None:
    scene = gathered("human", "worker", "files", "onlooker")
    list_tools(scene, "files", "read")
    list_tools(scene, "onlooker")
    scene.host.leave(scene.members["files"])
    scene.members["files"] = scene.join("files")
    approve(scene, propose(scene))
    assert asked(scene) == ["files"]


@pytest.mark.rule("4.4.unaddressed")
def test_where_no_list_is_known_the_only_other_participant_gets_it() -> None:
    scene = gathered("human", "worker", "onlooker")
    approve(scene, propose(scene))
    assert asked(scene) == ["onlooker"]


@pytest.mark.rule("4.4.unaddressed")
def test_a_participant_without_tools_may_say_so_by_an_error() -> None:
    scene = gathered("human", "worker", "files", "onlooker")
    asked_list = ask_for_tools(scene, "files")
    error = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "unknown"}}
    scene.say("files", "mcp.response", error, to=["human"], correlationId=asked_list)
    approve(scene, propose(scene))
    assert asked(scene) == ["onlooker"]


@pytest.mark.rule("4.4.unaddressed")
@pytest.mark.parametrize(
    ("named", "executor"),
    [
        ({"target": "disk"}, "disk"),
        ({"to": ["files"]}, "files"),
        ({"to": ["disk"], "protocol": "mew/v0.4"}, "disk"),
    ],
)
def test_what_the_proposal_says_comes_first(named: dict[str, Any], executor: str) -> None:
    scene = gathered()
    list_tools(scene, "files", "write")
    list_tools(scene, "disk", "write")
    if "protocol" in named:
        said = _published(named["to"])
        scene.host.owner.receive_as("worker", said, "mew/v0.4", scene.refused.append)
        proposal = "p1"
    else:
        proposal = propose(scene, **named)
    approve(scene, proposal)
    assert asked(scene) == [executor]


WRITE: dict[str, Any] = {
    "method": "tools/call",
    "params": {"name": "write", "arguments": {"path": "a"}},
}


def _published(to: list[str], payload: dict[str, Any] = WRITE) -> bytes:
    return frame_by("worker", "mcp/proposal", payload, id="p1", to=to, protocol="mew/v0.4")


@pytest.mark.rule("4.4.unaddressed")
def test_a_list_that_was_not_asked_of_its_sender_counts_for_nothing() -> None:
    scene = gathered()
    asked_files = ask_for_tools(scene, "files")
    scene.forget()
    answer_list(scene, "disk", asked_files, "write")
    assert scene.error("disk")["error"] == "capability_violation"
    scene.forget()
    answer_list(scene, "files", asked_files, "write")
    approve(scene, propose(scene))
    assert asked(scene) == ["files"]


def test_a_request_that_only_refers_to_a_proposal_is_left_as_it_is() -> None:
    scene = gathered("human", "worker", "files", "onlooker")
    approve(scene, propose(scene), name="read")
    assert asked(scene) is None


def test_a_fulfillment_that_is_said_twice_is_known_again_without_its_executor() -> None:
    scene = gathered("worker", "files", "onlooker")
    asked_list = ask_for_tools(scene, "files")
    answer_list(scene, "files", asked_list, "write")
    proposal = propose(scene)
    approve(scene, proposal, id="r")
    assert asked(scene) == ["files"]
    approve(scene, proposal, id="r")
    assert scene.got("onlooker") == []
    again = gathered("worker", "files", "onlooker", journal=scene.journal)
    approve(again, proposal, id="r")
    assert again.got("onlooker") == []
    assert all(type(each).__name__ == "Entry" for each in (*scene.refused, *again.refused))


def test_an_old_undecided_proposal_has_one_executor_too() -> None:
    scene = gathered()
    proposal = propose(scene)
    scene.at = 2 * 3600.0
    propose(scene)  # which makes room: the old one is forgotten
    list_tools(scene, "files", "write")
    list_tools(scene, "disk", "write")
    approve(scene, proposal)
    assert refused(scene) == ["files", "disk"]


def test_a_flood_of_tools_is_bounded() -> None:
    scene = gathered()
    for page in range(3):
        names = [f"{page}-{number}" for number in range(MAX_LISTED_TOOLS)]
        list_tools(scene, "disk", *names, next_cursor=str(page + 1), cursor=str(page or ""))
    list_tools(scene, "files", "write")
    approve(scene, propose(scene))
    assert asked(scene) == ["files"]


def test_a_name_of_another_tool_is_quoted_short() -> None:
    scene = gathered()
    params = {"name": "w" * 10_000, "arguments": {}}
    proposal = scene.say("worker", "mcp.proposal", {"method": "tools/call", "params": params})
    scene.forget()
    scene.say(
        "human", "mcp.request", {"method": "tools/call", "params": params}, correlationId=proposal
    )
    error = scene.error("human")
    assert error["executors"] == ["files", "disk", "onlooker"]
    assert "'to'" in error["message"]


@pytest.mark.rule("4.4.executor.written")
@pytest.mark.parametrize(
    "payload",
    [
        WRITE,
        {"method": "prompts/list"},
        {"method": "prompts/list", "params": None},
        {"proposal": {"method": "prompts/list", "params": {"_meta": 7}}},
    ],
)
def test_members_of_other_dialects_are_told_the_executor_also_of_an_absent_sender(
    payload: dict[str, Any],
) -> None:
    scene = gathered("human", "files", "onlooker")
    said = _published(["files"], payload)
    scene.host.owner.receive_as("worker", said, "mew/v0.4", scene.refused.append)
    (proposal,) = scene.got("onlooker")
    assert proposal["kind"] == "mcp.proposal"
    assert "to" not in proposal, "else it would be its decider"
    params = proposal["payload"]["params"]
    assert params.pop("_meta") == {"dev.meup/target": "files"}
    assert params == (WRITE["params"] if payload is WRITE else {})
