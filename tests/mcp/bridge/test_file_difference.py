"""The file that a proposed call writes: who decides sees what would change, and no one else."""

import base64
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from meup_agent import Agent, Envelope
from meup_agent.approval import Inbox
from meup_agent.client.file_difference import (
    FILE_DIFFERENCE,
    MAX_LINES,
    FileDifference,
    read_file_difference,
)
from meup_agent.errors import MeupError, RequestError
from meup_agent.mcp import Bridge
from tests.mcp.bridge.stage import AT_ONCE, BRIDGE, stdio
from tests.mcp.conftest import Stage, staged
from tests.patience import PATIENCE
from tests.wire import build_proposal, kinds

MAY: dict[str, list[dict[str, Any]]] = {
    BRIDGE: [{"kind": "mcp/response"}],
    "agent": [
        {"kind": "mcp/proposal"},
        {"kind": "mcp/withdraw"},
        {"kind": "mcp/request", "payload": {"method": "tools/list"}},
    ],
    "you": [{"kind": "mcp/request"}, {"kind": "mcp/reject"}],
    "voter": [{"kind": "mcp/reject"}, {"kind": "mcp/request", "payload": {"method": "dev.meup/*"}}],
    "looker": [{"kind": "mcp/request", "payload": {"method": "dev.meup/*"}}],
}
SECRET = "the old secret text"
TEXT = f"one\n{SECRET}\nthree\n"


@asynccontextmanager
async def reading(root: Path | None, agent: Agent | None = None) -> AsyncGenerator[Stage]:
    """A bridge that reads files below a folder, with who proposes and who decides."""
    roots = [] if root is None else [root]
    bridge = Bridge(BRIDGE, stdio("scripted", "2025-06-18"), roots=roots, settings=AT_ONCE)
    async with staged(**MAY) as stage:
        joining = bridge.join(stage.gateway.url, space="demo", token=stage.token(BRIDGE))
        await stage.stack.enter_async_context(joining)
        await stage.join("agent", agent)
        for each in ("you", "voter", "looker"):
            await stage.join(each)
        yield stage


async def asked(stage: Stage, tool: str, asker: str = "you", **arguments: Any) -> FileDifference:
    """The answer about a call that is proposed."""
    async with stage.spaces["agent"].propose(BRIDGE, tool, arguments, ttl=600) as proposal:
        return await read_file_difference(
            stage.spaces[asker], BRIDGE, proposer="agent", proposal=proposal.id
        )


async def test_who_decides_sees_the_difference_and_no_other_member_hears_it(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text(TEXT)
    heard: list[bytes] = []
    listener = Agent("agent")

    @listener.on("mcp/response")
    async def hear(envelope: Envelope) -> None:
        heard.append(envelope.raw_payload)

    async with reading(tmp_path, listener) as stage:
        for asker in ("you", "voter"):
            found = await asked(
                stage, "write_file", asker, path=str(file), content="one\n2\nthree\n"
            )
            assert found.lines == ("@ line 1", " one", f"-{SECRET}", "+2", " three")
            assert (found.path, found.said, found.omitted) == (str(file), "", 0)
            assert found.read_at
        with anyio.fail_after(PATIENCE):
            while len(answers := [each for each in heard if b"sealed" in each]) < 2:
                await anyio.lowlevel.checkpoint()
        assert len(set(answers)) == 2
        assert not any(b"secret" in base64.b64decode(_sealed(each)) for each in answers)


def _sealed(answer: bytes) -> str:
    sealed: str = json.loads(answer)["result"]["sealed"]
    return sealed


READ_AS: list[tuple[str, dict[str, Any], tuple[str, ...], str]] = [
    (
        "edit_file",
        {"edits": [{"oldText": "one", "newText": "1"}, {"oldText": "three\n", "newText": "3"}]},
        ("@ line 1", "-one", "+1", f" {SECRET}", "-three", "+3", "\\ no line end here"),
        "",
    ),
    ("replace", {"old_string": "e", "new_string": "E"}, (), "stands 7 times"),
    (
        "replace",
        {"old_string": "one", "new_string": "1", "replace_all": True},
        ("@ line 1", "-one", "+1", f" {SECRET}", " three"),
        "",
    ),
    ("edit", {"old_str": "four", "new_str": "4"}, (), "is not in the file"),
    ("write", {"content": TEXT}, (), "has this text already"),
    ("append_file", {"content": "four\n"}, (), "it may not replace the text"),
    ("write_file", {"content": "", "mode": "a"}, (), "arguments that may change what it writes"),
    ("edit", {"old_str": "a", "new_str": "b", "dryRun": True}, (), "nothing is to be written"),
    ("read_file", {}, (), "names no file that it writes"),
]


async def test_calls_are_read_by_the_names_of_their_arguments(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text(TEXT)
    async with reading(tmp_path) as stage:
        for tool, arguments, lines, said in READ_AS:
            found = await asked(stage, tool, path=str(file), **arguments)
            assert found.lines == lines
            assert said in found.said
            assert bool(said) == bool(found.said)


async def test_nothing_outside_the_root_is_read(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "root2"
    root.mkdir()
    outside.mkdir()
    (outside / "secret").write_text(TEXT)
    (root / "link").symlink_to(outside / "secret")
    (root / "folder").symlink_to(outside)
    (root / "inner").mkdir()
    (root / "inner" / "back").symlink_to(root)
    (root / "here").write_text(TEXT)
    os.mkfifo(root / "pipe")
    odd = os.fsencode(root / "odd") + b"\xff"
    (root / "odd").symlink_to(os.fsdecode(odd))
    async with reading(root) as stage:
        for path, said in {
            f"{outside}/secret": "below no folder",
            f"{root}/link": "below no folder",
            f"{root}/folder/secret": "below no folder",
            f"{root}/../root2/secret": "below no folder",
            f"{root}/folder/none": "below no folder",
            str(root): "below no folder",
            "here": "relative",
            "~/here": "relative",
            f"{root}/here\0": "no file's",
            "/" + "x" * 5_000: "no file's",
            f"{root}/{'x' * 300}": "cannot be read",
            f"{root}/pipe": "no regular file",
            f"{root}/inner": "no regular file",
        }.items():
            found = await asked(stage, "write_file", path=path, content="new")
            assert said in found.said, path
            assert found.lines == (), path
        found = await asked(stage, "write_file", path=f"{root}/inner/back/here", content=TEXT + "4")
        assert found.path == str(root / "here")
        assert found.lines[-2:] == ("+4", "\\ no line end here")
        found = await asked(stage, "write_file", path=f"{root}/odd", content="new")
        assert found.path == f"{root}/odd\\udcff"
        assert "is not there" in found.said


async def test_what_is_no_text_or_too_long_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(b"\x89PNG\0\1")
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    (tmp_path / "long").write_bytes(b"x" * 1_048_577)
    (tmp_path / "many").write_text("".join(f"{each}\n" for each in range(5_000)))
    async with reading(tmp_path) as stage:

        async def said(name: str, content: str = "new") -> FileDifference:
            path = str(tmp_path / name)
            return await asked(stage, "write_file", path=path, content=content)

        assert "binary: 6 bytes" in (await said("picture")).said
        assert "binary: 4 bytes" in (await said("latin")).said
        assert "1,048,577 bytes" in (await said("long")).said
        new = await said("new", "a\x1b[31m" + "b" * 5_000)
        assert new.said == "The file is not there; the call would make it."
        assert [len(each) for each in new.lines[1:2]] == [301]
        many = await said("many", "".join(f"x{each}\n" for each in range(5_000)))
        assert len(many.lines) == MAX_LINES
        assert many.omitted == 10_001 - MAX_LINES


async def test_who_does_not_decide_is_refused_and_nothing_is_told(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text(TEXT)
    async with reading(tmp_path) as stage:
        with pytest.raises(RequestError, match="you do not decide"):
            await asked(stage, "write_file", "looker", path=str(file), content="x")
        # The gateway does not let the proposer ask, and approving its question asks nothing.
        with pytest.raises(MeupError):
            await asked(stage, "write_file", "agent", path=str(file), content="x")
        with pytest.raises(RequestError, match="no such proposal"):
            await read_file_difference(
                stage.spaces["you"], BRIDGE, proposer="agent", proposal="nothing"
            )
        question = {"proposal": "p", "proposer": "agent", "key": "AAAA"}
        asks = build_proposal(FILE_DIFFERENCE, question, target=BRIDGE, expires=None)
        await stage.spaces["agent"].send(kinds.MCP_PROPOSAL, asks)
        async with Inbox(stage.spaces["you"]) as inbox:
            with anyio.fail_after(PATIENCE):
                while not inbox.items:
                    await anyio.lowlevel.checkpoint()
            done = await inbox.approve(inbox.items[0])
        assert done is not None
        assert "a request of your own" in json.dumps(done.error)


async def test_question_without_a_key_and_bridge_without_a_root_are_sentences(
    tmp_path: Path,
) -> None:
    async with reading(tmp_path) as stage:
        for key in ("", "AAAA", "no base64", base64.b64encode(bytes(32)).decode()):
            async with stage.spaces["agent"].propose(BRIDGE, "write_file", {}) as proposal:
                question = {"proposal": proposal.id, "proposer": "agent", "key": key}
                with pytest.raises(RequestError, match="its key is no"):
                    await stage.spaces["you"].request(BRIDGE, FILE_DIFFERENCE, question)
    async with reading(None) as stage:
        with pytest.raises(RequestError, match="--root FOLDER"):
            await asked(stage, "write_file", path="/x", content="x")
