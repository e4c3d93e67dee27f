"""Each way to fail has an exit code of its own."""

import pytest

from meup_agent.cli.failures import code_for
from meup_agent.errors import (
    AlreadyDecided,
    CannotConnect,
    InvalidArguments,
    MeupError,
    NotSent,
    OutcomeUnknown,
    ParticipantGone,
    ProposalExpired,
    ProposalRejected,
    Refused,
    RequestError,
    RequestTimeout,
    TokenRefused,
    ToolError,
)
from tests.cli.commands import exit_codes


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AlreadyDecided("p", "fulfilled"), exit_codes.USAGE),
        (ToolError("no"), exit_codes.TOOL_FAILED),
        (RequestError(-32601, "no"), exit_codes.TOOL_FAILED),
        (ProposalRejected("p", "unsafe", "r"), exit_codes.REJECTED),
        (ProposalExpired("p"), exit_codes.TIMED_OUT),
        (RequestTimeout("late"), exit_codes.TIMED_OUT),
        (ParticipantGone("left"), exit_codes.ABSENT),
        (Refused("capability_violation", "no"), exit_codes.REFUSED),
        (OutcomeUnknown("sent"), exit_codes.UNKNOWN),
        (NotSent("not sent"), exit_codes.NO_CONNECTION),
        (CannotConnect("nobody"), exit_codes.NO_CONNECTION),
        (TokenRefused("no"), exit_codes.NO_CONNECTION),
        (InvalidArguments("no"), exit_codes.USAGE),
    ],
    ids=lambda each: type(each).__name__,
)
def test_the_code_says_what_happened(error: MeupError, code: int) -> None:
    assert code_for(error) == code
