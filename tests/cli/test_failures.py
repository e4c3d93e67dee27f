"""Each way to fail has an exit code of its own."""

import pytest

from meup_agent import errors
from meup_agent.cli.failures import code_for
from tests.cli.commands import exit_codes


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.AlreadyDecided("p", "fulfilled"), exit_codes.USAGE),
        (errors.ToolError("no"), exit_codes.TOOL_FAILED),
        (errors.RequestError(-32601, "no"), exit_codes.TOOL_FAILED),
        (errors.ProposalRejected("p", "unsafe", "r"), exit_codes.REJECTED),
        (errors.ProposalExpired("p"), exit_codes.TIMED_OUT),
        (errors.RequestTimeout("late"), exit_codes.TIMED_OUT),
        (errors.ParticipantGone("left"), exit_codes.ABSENT),
        (errors.Refused("capability_violation", "no"), exit_codes.REFUSED),
        (errors.OutcomeUnknown("sent"), exit_codes.UNKNOWN),
        (errors.NotSent("not sent"), exit_codes.NO_CONNECTION),
        (errors.CannotConnect("nobody"), exit_codes.NO_CONNECTION),
        (errors.TokenRefused("no"), exit_codes.NO_CONNECTION),
        (errors.InvalidArguments("no"), exit_codes.USAGE),
    ],
    ids=lambda each: type(each).__name__,
)
def test_the_code_says_what_happened(error: errors.MeupError, code: int) -> None:
    assert code_for(error) == code
