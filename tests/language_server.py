"""pyright's language server, asked what an editor shows its user."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import anyio
from anyio.abc import ByteSendStream
from anyio.streams.buffered import BufferedByteReceiveStream

import meup_agent

SETTINGS: dict[str, dict[str, Any]] = {
    # What the tests import, where another version of the package is installed, too.
    "python": {
        "pythonPath": sys.executable,
        "analysis": {"extraPaths": [str(Path(meup_agent.__file__).parents[1])]},
    },
}

MARKDOWN = re.compile(r"\\([^\w\s]|_)|&nbsp;")
"""Marks that Markdown needs, which an editor does not show."""


class LanguageServer:
    """A language server (LSP 3.17) that has one file open.

    Args:
        requests: Its standard input.
        answers: Its standard output.
        file: The file's URI; it need not be there.
    """

    def __init__(
        self, requests: ByteSendStream, answers: BufferedByteReceiveStream, file: str
    ) -> None:
        self._requests = requests
        self._answers = answers
        self._file = {"uri": file}
        self._asked = 0

    @classmethod
    @asynccontextmanager
    async def opened(cls, folder: Path, text: str) -> AsyncGenerator[Self]:
        """Start one in an empty folder, with a text as the file that is open."""
        command = [sys.executable, "-m", "pyright.langserver", "--stdio"]
        async with await anyio.open_process(command, cwd=folder, stderr=None) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            answers = BufferedByteReceiveStream(process.stdout)
            server = cls(process.stdin, answers, (folder / "opened.py").as_uri())
            await server.ask(
                "initialize",
                processId=None,
                rootUri=folder.as_uri(),
                capabilities={
                    "workspace": {"configuration": True},
                    "textDocument": {"hover": {"contentFormat": ["markdown"]}},
                },
            )
            await server._send(method="initialized", params={})
            document = {**server._file, "languageId": "python", "version": 1, "text": text}
            await server._send(method="textDocument/didOpen", params={"textDocument": document})
            yield server
            await server.ask("shutdown")
            await server._send(method="exit")
            await process.wait()

    async def hover(self, line: int, character: int) -> tuple[str, str]:
        """The signature and the text under a place, which count from 0."""
        shown = await self._ask_at("hover", line, character)
        signature, _, text = shown["contents"]["value"].partition("\n---\n")
        return signature, MARKDOWN.sub(r"\1", text)

    async def complete(self, line: int, character: int) -> set[str]:
        """The names that are offered at a place."""
        shown = await self._ask_at("completion", line, character)
        return {each["label"] for each in shown["items"]}

    async def _ask_at(self, request: str, line: int, character: int) -> Any:
        position = {"line": line, "character": character}
        return await self.ask(f"textDocument/{request}", textDocument=self._file, position=position)

    async def ask(self, method: str, **params: Any) -> Any:
        """The result of a request; what the server asks meanwhile is answered."""
        self._asked += 1
        await self._send(id=self._asked, method=method, params=params or None)
        while True:
            message = await self._receive()
            match message:
                case {"method": "workspace/configuration", "id": id, "params": {"items": items}}:
                    found = [SETTINGS.get(each["section"], {}) for each in items]
                    await self._send(id=id, result=found)
                case {"method": _, "id": id}:
                    await self._send(id=id, result=None)
                case {"id": self._asked, "result": result}:
                    return result
                case {"id": self._asked, "error": error}:
                    raise AssertionError(error)
                case _:
                    pass  # a notification

    async def _send(self, **message: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        await self._requests.send(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))

    async def _receive(self) -> Any:
        header = await self._answers.receive_until(b"\r\n\r\n", 4_096)
        fields = dict(line.split(b": ", 1) for line in header.split(b"\r\n"))
        return json.loads(await self._answers.receive_exactly(int(fields[b"Content-Length"])))
