"""The text that an editor shows of a public name, as pyright finds it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

import meup_agent
from meup_agent import Context, ProposalHandle, Rejection, Space
from meup_agent.gateway import Gateway
from meup_agent.gateway.embedded import ThreadedGateway
from meup_agent.types import DecisionReceipt
from tests.language_server import LanguageServer
from tests.patience import PATIENCE

NAMES: list[str] = vars(meup_agent)["__all__"]

RECORD = {
    *("id", "proposer", "to", "target", "method", "tool", "arguments", "envelope"),
    *("state", "expires_at", "in_progress_by", "cancelled_by", "rejections"),
    *("decided_by", "reason"),
}
"""The public names of a ProposalRecord."""

HANDLE = {
    *("outcome", "result", "has_outcome", "explanation", "withdraw", "renew"),
    *("state", "expires_at", "offered"),
}
"""The public methods and properties of a ProposalHandle."""

REFERRAL = re.compile(r"\bsee\b[^.\n]*`", re.IGNORECASE)
"""Words that send a reader to another text."""


class Shown(NamedTuple):
    """Names as an editor shows them."""

    signatures: dict[str, str]
    texts: dict[str, str]
    record: set[str]


def methods_of(cls: type) -> set[str]:
    """The public methods, properties and decorators of a class of ours."""
    return {
        name
        for base in cls.__mro__
        if base.__module__.startswith("meup_agent.")
        for name, value in vars(base).items()
        if not name.startswith("_")
        # An attribute that slots hold has no text of its own; its class describes it.
        if isinstance(value, property)
        or (hasattr(value, "__get__") and not inspect.isdatadescriptor(value))
    }


def program() -> tuple[str, dict[str, tuple[int, int]]]:
    """A module that uses each public name and method, and where it does."""
    lines = [
        f"from meup_agent import {', '.join(NAMES)}",
        "from meup_agent.types import ProposalRecord",
    ]
    places: dict[str, tuple[int, int]] = {}
    for name in NAMES:
        places[name] = len(lines), 0
        lines.append(name)
        value = getattr(meup_agent, name)
        if isinstance(value, type):
            lines.append(f"def use_{name}(it: {name}) -> None:")
            for method in sorted(methods_of(value)):
                places[f"{name}.{method}"] = len(lines), len("    it.")
                lines.append(f"    it.{method}")
            lines.append("    pass")
    lines.append("def use_record(it: ProposalRecord) -> None:")
    places["record"] = len(lines), len("    it.")
    lines.append("    it.")
    return "\n".join(lines), places


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """All of it, from one language server."""

    async def ask(folder: Path) -> Shown:
        text, places = program()
        record = places.pop("record")
        signatures: dict[str, str] = {}
        texts: dict[str, str] = {}
        with anyio.fail_after(PATIENCE):
            async with LanguageServer.opened(folder, text) as server:
                for name, place in places.items():
                    signatures[name], texts[name] = await server.hover(*place)
                return Shown(signatures, texts, await server.complete(*record))

    return anyio.run(ask, tmp_path_factory.mktemp("hover"))


def unexplained(texts: dict[str, str]) -> list[str]:
    """Names whose text is missing, or begins by sending its reader to another one."""
    return [
        name
        for name, text in texts.items()
        if not text.strip() or REFERRAL.search(text.strip().partition("\n\n")[0])
    ]


def sections(documented: object) -> dict[str, str]:
    """The words of a docstring on each argument, result and error."""
    text = inspect.getdoc(documented) or ""
    _, *found = re.split(r"^(Args|Returns|Raises):\n", text, flags=re.MULTILINE)
    said: dict[str, str] = {}
    for title, body in zip(found[::2], found[1::2], strict=True):
        if title == "Returns":
            said[title] = " ".join(body.split())
        else:
            for entry in re.split(r"^    (?=\S)", body, flags=re.MULTILINE)[1:]:
                name, _, text = entry.partition(":")
                said[name] = " ".join(text.split())
    return said


def test_every_public_name_and_method_has_a_text_of_its_own(shown: Shown) -> None:
    assert {"Context.call", "Agent.tool", "Agent.on_chat", "Space.may", "handlers"} <= set(
        shown.texts
    )
    assert unexplained(shown.texts) == []


def test_a_referral_is_no_text() -> None:
    wrong = {
        "missing": " \n",
        "only": "See `Space.chat`.",
        "also": "Send a chat message; see `Space.chat`.\n\nExample:",
    }
    right = {"fine": "Envelopes that are seen.", "later": "A chat.\n\nSee `Space.chat`."}
    assert unexplained({**wrong, **right}) == list(wrong)


def test_a_call_in_a_handler_shows_all_that_it_takes_and_raises(shown: Shown) -> None:
    signature, text = shown.signatures["Context.call"], shown.texts["Context.call"]
    assert "timeout: Ttl" in signature
    assert "the handler is cancelled or ends" in text
    for each in (*inspect.signature(Context.call).parameters, "ToolError", "ProposalRejected"):
        assert each == "self" or f"{each}:" in text


def test_a_decorator_shows_its_options(shown: Shown) -> None:
    signature, text = shown.signatures["Agent.tool"], shown.texts["Agent.tool"]
    for option in ("name", "title", "description", "read_only", "destructive", "idempotent"):
        assert f"{option}: " in signature
        assert f"{option}: " in text


def test_a_proposal_record_offers_what_users_need(shown: Shown) -> None:
    assert {name for name in shown.record if not name.startswith("_")} == RECORD


def test_proposals_of_ours_and_decisions_offer_what_users_need() -> None:
    assert methods_of(ProposalHandle) == HANDLE
    assert methods_of(Rejection) == {"explanation"}
    assert methods_of(DecisionReceipt) == {"explain"}


@pytest.mark.parametrize("verb", ["call", "propose", "reasoning", "chat"])
def test_a_verb_in_a_handler_says_the_same_as_in_a_space(verb: str) -> None:
    of_context, of_space = getattr(Context, verb), getattr(Space, verb)
    said = sections(of_context)
    assert said.keys() >= inspect.signature(of_context).parameters.keys() - {"self"}
    elsewhere = sections(of_space)
    # A handler's line of thought is about what the handler was started for.
    left_out = {"about"} if verb == "reasoning" else set[str]()
    assert said == {name: text for name, text in elsewhere.items() if name not in left_out}


@pytest.mark.parametrize("name", sorted(methods_of(ThreadedGateway) - {"counters", "url"}))
def test_a_gateway_in_a_thread_says_the_same_as_another(name: str) -> None:
    assert inspect.getdoc(getattr(ThreadedGateway, name)) == inspect.getdoc(getattr(Gateway, name))
