"""``meup fulfill``: carry somebody's proposal out, beside the agent that may decide it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from meup_agent.cli import exit_codes
from meup_agent.cli.address import Space, Token, TokenFile
from meup_agent.cli.arguments import convert_arguments, read_arguments
from meup_agent.cli.beside.address import As, Http, http_address
from meup_agent.cli.beside.deciding import digest_of, pending_proposal
from meup_agent.cli.beside.requesting import request
from meup_agent.cli.beside.showing import call_in_lines, changes_in_lines, confirmed
from meup_agent.cli.beside.visit import HttpVisit
from meup_agent.cli.failures import Failure, code_for
from meup_agent.cli.options import Args, ArgsFile, Json, NoColour, seconds
from meup_agent.cli.render.escape import visible
from meup_agent.cli.render.results import as_json_line, as_text
from meup_agent.client.requests import TIMEOUT
from meup_agent.errors import RequestError, ToolError
from meup_agent.protocol import payloads
from meup_agent.protocol.outcomes import value_of
from meup_agent.protocol.payloads import build_fulfillment

if TYPE_CHECKING:
    from meup_agent.cli.arguments import GivenArguments

OTHERWISE: Final = "read the call above, and give --yes to carry it out"


def fulfill(
    proposal: Annotated[
        str,
        typer.Argument(
            metavar="PROPOSAL", help="The proposal's id, or its beginning.", show_default=False
        ),
    ],
    edit: Annotated[
        list[str] | None,
        typer.Option(
            "--edit",
            metavar="KEY=VALUE",
            help="Another value for one of its arguments; may be given several times. The proposer"
            " is told the difference.",
        ),
    ] = None,
    args: Args = None,
    args_file: ArgsFile = None,
    executor: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The participant that carries it out, if not the one that the proposal names.",
        ),
    ] = None,
    proposer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Whose proposal it is, where several have used the id."),
    ] = None,
    digest: Annotated[
        str | None,
        typer.Option(
            metavar="HEX",
            help="The digest of the call that is meant (`dev.meup/digest`): any other is not"
            " carried out.",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask; needed where no terminal is.")
    ] = False,
    act_as: As = None,
    http: Http = None,
    space: Space = None,
    token: Token = None,
    token_file: TokenFile = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            help="How long to wait for the result, in seconds; then the request is cancelled. inf:"
            " as long as it takes.",
        ),
    ] = TIMEOUT,
    as_json: Json = False,
    no_colour: NoColour = False,
) -> None:
    """Carry out a proposal, and print the result.

    It shows the call, all of it, and asks. What is then requested is the call that was shown, and
    it says whose proposal it carries out.

    The real request is made over HTTP as the participant whose token you have; an agent that runs
    with this token keeps its connection. Ctrl-C cancels the request.

    Example: `MEUP_TOKEN=… meup fulfill 0c9f2c62a4ce --http http://localhost:8421`
    """
    where = http_address(http, space, token, token_file, act_as)
    limit = seconds(timeout, "--timeout")
    given = read_arguments(edit or [], args, args_file)

    async def act(session: HttpVisit) -> None:
        record = await pending_proposal(
            session.space, proposal, proposer=proposer, digest=digest, whichever_call=False
        )
        envelope = await session.space.envelope(int(record["seq"]))
        if envelope.sender == session.space.me:
            raise Failure(
                f"proposal {envelope.id} is {session.space.me!r}'s own, and nobody approves their"
                " own; use the token of whoever decides it",
                exit_codes.USAGE,
            )
        call = payloads.read_proposal(envelope.payload)
        to = executor or call.target
        if to is None:
            raise Failure(
                f"proposal {envelope.id} does not say who should carry it out; give --executor",
                exit_codes.USAGE,
            )
        params, changes = build_fulfillment(
            call, _edited(call.arguments, given), to, proposer=envelope.sender
        )
        said = f"{visible(to, 64)}.{visible(call.name or call.method, 64)}"
        session.stderr.write_lines(call_in_lines(envelope, to, call.method, params))
        for change in changes_in_lines(changes):
            session.stderr.write_lines(f"  {change}")
        if not yes:
            await confirmed(session.stderr, "carry it out?", otherwise=OTHERWISE)
            # It may have been withdrawn, or its id used again, while somebody read it.
            await pending_proposal(
                session.space,
                envelope.id,
                proposer=envelope.sender,
                digest=digest_of(record),
                whichever_call=False,
            )
        answer = await request(
            session, to, call.method, params, seconds=limit, fulfills=(envelope.sender, envelope.id)
        )
        try:
            value = value_of(answer)
        except (ToolError, RequestError) as error:
            raise Failure(f"{said} failed: {error}", code_for(error)) from error
        if as_json:
            document = {
                "proposal": envelope.id,
                "proposer": envelope.sender,
                "executor": to,
                "result": value,
                "edited": bool(changes),
            }
            await session.output.write(as_json_line(document))
        elif text := as_text(answer.result):
            await session.output.write(text)
        else:
            session.stderr.note(f"{said} is done; it returned nothing")

    HttpVisit(where, colour=not no_colour).run(act)


def _edited(proposed: dict[str, Any], given: GivenArguments) -> dict[str, Any] | None:
    """The proposed arguments with what was given over them; ``None`` if nothing was given."""
    if not (given.whole or given.pairs):
        return None
    # What was proposed as text stays text: --edit path=5.
    texts = {
        name: text for name, text in given.pairs.items() if isinstance(proposed.get(name), str)
    }
    others = {name: text for name, text in given.pairs.items() if name not in texts}
    return {**proposed, **convert_arguments(given._replace(pairs=others)), **texts}
