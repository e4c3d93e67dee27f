"""The cases of the door suite, and the page that is made of them."""

from typing import Final, Literal, NamedTuple

from tests.doors.hosts.programs import CLAUDE_VERSION, CODEX_VERSION

Door = Literal[
    "claude-http",
    "claude-command",
    "claude-dialog",
    "claude-terminal",
    "claude-deferred",
    "claude-approve",
    "codex-command",
    "codex-mcp-call",
    "codex-mcp-tool",
    "codex-app-server",
    "codex-mcp-approval",
    "claude-sdk",
    "acp",
]
What = Literal[
    "allow",
    "deny",
    "edit",
    "time-out",
    "gateway killed",
    "refused connection",
    "500",
    "junk",
    "silence",
    "interrupted by INT",
    "interrupted by TERM",
    "interrupted by KILL",
    "interrupted by its own API",
    "hook ended by TERM",
    "hook and its shell ended by TERM",
    "ask",
    "answered too late",
    "gateway restarted midway",
    "gateway restarted as it ran",
    "yes at the terminal",
    "no at the terminal",
    "typed into a terminal, which is switched off",
    "typed into a terminal",
    "resumed after a yes",
    "resumed after a no",
    "resumed after an edit",
    "resumed too early",
    "resumed twice at once",
    "gateway restarted, then resumed",
    "gateway restarted after a yes, then resumed",
    "never resumed",
    "at a terminal",
    "meup codex killed as it waits",
    "meup codex killed as it runs",
    "too large a message",
    "another gateway's token",
    "policy broken as it waits",
]


class Case(NamedTuple):
    """One door in one situation.

    Attributes:
        door: The door.
        what: The situation.
        ran: The command ran.
        told: Words that the model read of it; empty: nothing, as its program had ended.
        recorded: The last state of the proposal in the space; empty: there was none.
    """

    door: Door
    what: What
    ran: bool
    told: str
    recorded: str


KILLED: Final[tuple[What, ...]] = (
    "interrupted by INT",
    "interrupted by TERM",
    "interrupted by KILL",
)
INTERRUPTED: Final[tuple[What, ...]] = (*KILLED, "interrupted by its own API")
UNREACHABLE: Final[tuple[What, ...]] = ("refused connection", "500", "junk")
FAILED: Final = "blocking because onFailure"
NO_DIALOG: Final = "needs approval"


def _alike(
    door: Door, situations: tuple[What, ...], ran: bool, told: str, recorded: str
) -> tuple[Case, ...]:
    """Situations that end in the same way."""
    return tuple(Case(door, what, ran, told, recorded) for what in situations)


def _cases(door: Door, failed: str, *, silence_runs: bool = False) -> tuple[Case, ...]:
    return (
        Case(door, "allow", True, "", "fulfilled"),
        Case(door, "deny", False, "not on Fridays", "rejected"),
        Case(door, "edit", True, "", "fulfilled"),
        Case(door, "time-out", False, "No participant decided", "expired"),
        Case(door, "gateway killed", False, failed, "withdrawn"),
        *_alike(door, UNREACHABLE, False, failed, ""),
        Case(door, "silence", silence_runs, "" if silence_runs else failed, ""),
        *_alike(door, KILLED, False, "", "withdrawn"),
        Case(door, "gateway restarted midway", False, failed, "withdrawn"),
        Case(door, "gateway restarted as it ran", True, "", "fulfilled"),
    )


def _misled(door: Door, told: str, undecided: str = "No participant decided") -> tuple[Case, ...]:
    """Those of two gateways, and of a policy that is broken: the one before it stays."""
    return (
        Case(door, "another gateway's token", False, told, ""),
        Case(door, "policy broken as it waits", False, undecided, "expired"),
    )


def _signals(door: Door, failed: str) -> tuple[Case, ...]:
    return (
        Case(door, "hook ended by TERM", False, "it was interrupted", "withdrawn"),
        Case(door, "hook and its shell ended by TERM", False, failed, "withdrawn"),
    )


def _claude_cases(
    door: Door, failed: str, *, asked: tuple[str, str], late: str, silence_runs: bool = False
) -> tuple[Case, ...]:
    return (
        *_cases(door, failed, silence_runs=silence_runs),
        Case(door, "answered too late", False, late, "withdrawn"),
        Case(door, "ask", False, *asked),
        Case(door, "interrupted by its own API", False, "", "withdrawn"),
    )


def _dialog_cases() -> tuple[Case, ...]:
    """Those of the hook of a dialog: where it fails, a program without a terminal asks nobody."""
    door: Door = "claude-dialog"
    return (
        Case(door, "allow", True, "", "fulfilled"),
        Case(door, "deny", False, "not on Fridays", "rejected"),
        Case(door, "edit", True, "", "fulfilled"),
        Case(door, "time-out", False, NO_DIALOG, "expired"),
        Case(door, "gateway killed", False, FAILED, "withdrawn"),
        *_alike(door, UNREACHABLE, False, FAILED, ""),
        Case(door, "silence", False, NO_DIALOG, ""),
        *_alike(door, INTERRUPTED, False, "", "withdrawn"),
        Case(door, "answered too late", False, FAILED, "withdrawn"),
        Case(door, "gateway restarted midway", False, FAILED, "withdrawn"),
        *_misled(door, FAILED, NO_DIALOG),
    )


def _approve_cases() -> tuple[Case, ...]:
    """Those of the permission tool, whose host tells nobody what came of a permit."""
    door: Door = "claude-approve"
    return (
        Case(door, "allow", True, "", "permitted"),
        Case(door, "deny", False, "not on Fridays", "rejected"),
        Case(door, "edit", True, "", "permitted"),
        Case(door, "time-out", False, "No participant decided", "expired"),
        Case(door, "gateway killed", False, "the connection was lost", ""),
        Case(door, "gateway restarted midway", True, "", "permitted"),
        Case(door, "refused connection", False, "no gateway has answered", ""),
        *_alike(door, (*INTERRUPTED, "answered too late"), False, "", "withdrawn"),
    )


CASES: Final = (
    # An answer without a word is no failure to it. The gateway never gives one.
    *_claude_cases(
        "claude-http",
        FAILED,
        asked=("no person is at this terminal", "withdrawn"),
        late=FAILED,
        silence_runs=True,
    ),
    *_claude_cases(
        "claude-command",
        "meup did not answer",
        asked=("No participant decided", "expired"),
        late=FAILED,
    ),
    *_misled("claude-http", FAILED),
    *_signals("claude-command", FAILED),
    *_misled("claude-command", "meup did not answer"),
    *_dialog_cases(),
    *_approve_cases(),
    *_misled("claude-approve", ""),
    *_cases("codex-command", "meup did not answer"),
    *_signals("codex-command", "meup did not answer"),
    *_misled("codex-command", "meup did not answer"),
    # It gives up the hook, and runs the call: so the door must be told its time-out as it is.
    Case("codex-command", "answered too late", True, "", "withdrawn"),
    # It takes this answer for a failed hook, and would run the call: the door never gives it.
    Case("codex-command", "ask", False, "No participant decided", "expired"),
    # It types into what it has opened, and asks nobody: guard switches terminals off.
    Case("codex-command", "typed into a terminal", True, "", "permitted"),
    Case(
        "codex-command",
        "typed into a terminal, which is switched off",
        False,
        "TTY execution is disabled",
        "permitted",
    ),
    Case("codex-mcp-call", "allow", True, "", "fulfilled"),
    Case("codex-mcp-call", "deny", False, "not on Fridays", "rejected"),
    Case("codex-mcp-call", "refused connection", False, "meup did not answer", ""),
    Case("codex-mcp-tool", "allow", True, "", ""),
    Case("codex-mcp-tool", "deny", False, "not on Fridays", ""),
    *_alike(
        "codex-mcp-tool",
        ("edit", "time-out", "gateway killed", "500", "junk", "silence"),
        True,
        "",
        "",
    ),
)


def _without_terminal(door: Door, no: str) -> tuple[Case, ...]:
    """Those of `meup codex` in which nobody answers at its terminal."""
    return (
        Case(door, "allow", True, "", "fulfilled"),
        Case(door, "deny", False, no, "rejected"),
        Case(door, "edit", False, no, "withdrawn"),
        Case(door, "time-out", False, no, "expired"),
        *_alike(door, ("gateway killed", *UNREACHABLE, "silence"), False, no, ""),
    )


def _app_server_cases() -> tuple[Case, ...]:
    """Those of a client beside Codex's own terminal, of which the first answer counts."""
    door: Door = "codex-app-server"
    no = "rejected by user"
    return (
        *_without_terminal(door, no),
        # The server goes on until its turn has ended, so the call waits on.
        Case(door, "interrupted by INT", False, no, "rejected"),
        Case(door, "interrupted by TERM", False, no, "rejected"),
        Case(door, "interrupted by KILL", False, "", "withdrawn"),
        Case(door, "meup codex killed as it waits", False, "", "pending"),
        Case(door, "meup codex killed as it runs", True, "", "permitted"),
        Case(door, "gateway restarted midway", True, "", "fulfilled"),
        Case(door, "too large a message", False, "", ""),
        *_alike(door, ("interrupted by its own API", "answered too late"), False, "", "withdrawn"),
        Case(door, "yes at the terminal", True, "", "withdrawn"),
        Case(door, "no at the terminal", False, "", "withdrawn"),
        *_misled(door, "", no),
    )


def _mcp_approval_cases() -> tuple[Case, ...]:
    """Those of the same client, asked about a call of an MCP server by `elicitation`."""
    door: Door = "codex-mcp-approval"
    no = "user rejected"
    return (
        *_without_terminal(door, no),
        Case(door, "interrupted by KILL", False, "", "withdrawn"),
        Case(door, "interrupted by its own API", False, "", "withdrawn"),
        Case(door, "yes at the terminal", True, "", "withdrawn"),
        Case(door, "no at the terminal", False, "user cancelled", "withdrawn"),
    )


APP_SERVER_CASES: Final = (*_app_server_cases(), *_mcp_approval_cases())
"""Those of ``meup codex``, which take a terminal, too."""


def _sdk_cases() -> tuple[Case, ...]:
    """Those of a callback, whose connection is its program's."""
    door: Door = "claude-sdk"
    return (
        Case(door, "allow", True, "", "permitted"),
        Case(door, "deny", False, "not on Fridays", "rejected"),
        Case(door, "edit", True, "", "permitted"),
        Case(door, "time-out", False, "No participant decided", "expired"),
        Case(door, "gateway killed", False, "the connection was lost", ""),
        Case(door, "gateway restarted midway", True, "", "permitted"),
        *_alike(door, (*INTERRUPTED, "answered too late"), False, "", "withdrawn"),
    )


SDK_CASES: Final = (*_sdk_cases(), *_misled("claude-sdk", ""))
"""Those of ``can_use_tool``."""


def _acp_cases() -> tuple[Case, ...]:
    """Those of a proxy, where the editor runs what its agent asks it to."""
    door: Door = "acp"
    return (
        Case(door, "allow", True, "", "permitted"),
        Case(door, "deny", False, "not on Fridays", "rejected"),
        Case(door, "edit", False, "other arguments", "withdrawn"),
        Case(door, "time-out", False, "No participant decided", "expired"),
        Case(door, "gateway killed", False, "the connection was lost", ""),
        Case(door, "gateway restarted midway", True, "", "permitted"),
        *_alike(door, (*UNREACHABLE, "silence"), False, "no gateway has answered", ""),
        *_alike(door, KILLED, False, "", "withdrawn"),
        Case(door, "interrupted by its own API", False, "it was cancelled before", "withdrawn"),
        Case(door, "answered too late", False, "it was cancelled before", "withdrawn"),
    )


ACP_VERSION: Final = "0.12.1"

ACP_CASES: Final = (*_acp_cases(), *_misled("acp", ""))
"""Those of ``meup acp``."""

TERMINAL_CASES: Final = (
    Case("claude-terminal", "allow", True, "", "fulfilled"),
    Case("claude-terminal", "deny", False, "not on Fridays", "rejected"),
    Case("claude-terminal", "edit", True, "", "fulfilled"),
    # Its dialog stays open: who sits there decides.
    Case("claude-terminal", "time-out", False, "", "expired"),
    Case("claude-terminal", "yes at the terminal", True, "", "withdrawn"),
    Case("claude-terminal", "no at the terminal", False, "", "withdrawn"),
)
"""Those that take a terminal, in manual and in auto mode, each alike."""

DEFERRED_CASES: Final = (
    Case("claude-deferred", "resumed after a yes", True, "", "fulfilled"),
    Case("claude-deferred", "resumed after a no", False, "not on Fridays", "rejected"),
    Case("claude-deferred", "resumed after an edit", True, "", "fulfilled"),
    Case("claude-deferred", "resumed too early", False, "", "pending"),
    Case("claude-deferred", "resumed twice at once", True, "", "fulfilled"),
    Case("claude-deferred", "gateway restarted, then resumed", False, "", "pending"),
    Case("claude-deferred", "gateway restarted after a yes, then resumed", True, "", "fulfilled"),
    Case("claude-deferred", "never resumed", False, "", "permitted"),
    # There it would go by its own rules: so the program never gives that answer there.
    Case("claude-deferred", "at a terminal", False, "No participant decided", "expired"),
)
"""Those of an agent that is sent away while its call waits."""

NAMES: Final = {
    "claude-http": f"Claude Code {CLAUDE_VERSION}, hook `http`, `onFailure: block`",
    "claude-command": f"Claude Code {CLAUDE_VERSION}, hook `command` (`meup-hook`)",
    "claude-dialog": f"Claude Code {CLAUDE_VERSION}, hook `PermissionRequest`, `http`, with `-p`",
    "claude-terminal": (
        f"Claude Code {CLAUDE_VERSION} at a terminal, `prefer: terminal`, manual and auto mode"
    ),
    "claude-deferred": (
        f"Claude Code {CLAUDE_VERSION}, `meup-hook --defer-after`, `-p` and `-p --resume`"
    ),
    "claude-approve": f"Claude Code {CLAUDE_VERSION}, tool `approve` (`meup mcp --approve-tool`)",
    "codex-command": f"Codex {CODEX_VERSION}, hook `command` (`meup-hook`)",
    "codex-mcp-call": f"Codex {CODEX_VERSION}, hook `command`, a call of an MCP server's tool",
    "codex-mcp-tool": f"Codex {CODEX_VERSION}, hook `mcp_tool`: no door of ours",
    "codex-app-server": f"Codex {CODEX_VERSION}, app-server and its terminal (`meup codex`)",
    "codex-mcp-approval": (
        f"Codex {CODEX_VERSION}, app-server, a call of an MCP server's tool (`meup codex`)"
    ),
    "claude-sdk": f"Claude Code {CLAUDE_VERSION}, `can_use_tool` of the Claude Agent SDK",
    "acp": f"ACP SDK {ACP_VERSION}, editor and agent, `terminal/create` (`meup acp`)",
}

NOT_RUN: Final = {
    "hooks, *answered elsewhere*": (
        "cannot happen while a hook waits: the terminal has no dialog then, unless it is preferred"
    ),
    "hooks, `watch`": "decides nothing, so nothing is to hold (`tests/doors/test_hooks.py`)",
    "Claude Code, hook `PermissionRequest`, *ask*": (
        "it takes allow and deny alone; any other answer leaves the call to the dialog"
    ),
    "Claude Code at a terminal, what fails": (
        "its hook `PreToolUse` is asked first, and fails as in the first table; what fails later"
        " leaves the dialog to who sits there"
    ),
    "Claude Code, `--defer-after`, what fails": (
        "while it waits it is the hook `command`, and it has ended while it does not"
    ),
    "Claude Code, tool `approve`, *ask*": "it takes allow and deny alone",
    "Claude Code, tool `approve`, 500, junk, silence": (
        "our own program answers over stdio, and nobody listens in its place"
    ),
    "Codex, hook `PermissionRequest`": (
        "`codex exec` never raises it: it asks for no approval, whatever `approval_policy` says"
    ),
    "Codex, hook, *interrupted by its own API*": "`codex exec` has none",
    "Codex, app-server, *ask*": "it takes accept and decline alone",
    "Codex, app-server, forms of MCP servers, and questions of the model": (
        "they are no approvals: `mcpServer/elicitation/request` without Codex's mark of one, and"
        " `item/tool/requestUserInput`, are left to its terminal"
    ),
    "Codex, hook, a call of an MCP server's tool, what fails": (
        "the same program answers the same hook as for its shell"
    ),
    "`can_use_tool`, refused connection, 500, junk, silence": (
        "the program cannot join, so it starts no agent"
    ),
    "`can_use_tool`, `meup acp`, tool `approve`, *answered elsewhere*": (
        "no other program is asked; in the space the first answer counts"
    ),
    "`can_use_tool`, `meup acp`, *ask*": "they take allow and deny alone",
    "Cursor, Copilot, Gemini": (
        "documented, not run: from inputs that their documentation shows (`tests/doors`)"
    ),
}

HEAD: Final = """\
# Which door holds against what

What a coding agent does when its approval is slow, gone, or answers nonsense. A *door* is the place
where an agent asks: a hook, a tool or its own protocol. Most agents run the call when their hook
fails, unless the hook is set up to block. CI tries each row below with the program as its maker
ships it, and with a stand-in for its model on this machine, which asks for one shell command. The
program's own settings allow that command; for the tool `approve` they neither allow nor deny it.

*Ran* says whether the command ran, *told* what the model was told, and *recorded* the state of the
call in the space afterwards. The page is made from the cases of the tests (`tests/doors/hosts`),
which fail if a program does otherwise. [Put Claude Code's shell behind
approval](../how-to/approve-a-coding-agents-shell.md) says how to set a door up.

*500*, *junk* and *silence* (an empty answer) come from another program at the gateway's address:
the gateway itself always answers with a decision. To Claude Code an empty answer is no failure, so
the call runs: where others can listen at the port, use `meup-hook` over the Unix socket.

*Ask* is a call with `prefer=terminal` where there is no terminal; `meup-hook` sees that, and lets
the space alone decide. In *answered too late* the agent gives its hook up earlier than the hook
knows. Codex then runs the call, and cannot be made not to: give `meup-hook` the same `--timeout` as
Codex's settings. After *gateway restarted as it ran* the gateway still gets the report of the call
that it had permitted.

After the answer *ask* at a terminal, Claude Code raises `PermissionRequest` in manual and in auto
mode (the table of its terminal), so that its dialog and the space are asked at once. After a
*time-out* its dialog stays open, and who sits there decides.

With *another gateway's token* nothing is proposed: `can_use_tool`, `meup acp` and `approve`
do not begin, and `meup codex` ends, with Codex's terminal. A *policy broken as it waits* stays as
it was before, so the call waits for a person until its time is up; the reviewer's log says what is
wrong with the file. After that `PermissionRequest` leaves the call to the dialog, as after each
*time-out*; with `-p` there is none, and the call does not run.

*Typed into a terminal* is `write_stdin` of Codex, which asks no hook: `meup guard codex` switches
terminals off, and so does `meup codex`. A hook of the type `mcp_tool`, which Codex has, too, asks a
tool of an MCP server. Whatever goes wrong with that tool, the call runs, so we offer none; in that
table *gateway killed* is the end of its server, and *500* its error.

*Resumed* is `claude -p --resume` after `claude -p` was sent away with the answer *defer*, while its
call waited on. *Too early* is before a decision: it is sent away again. If Claude Code is sent away
with several calls at once, it asks again about the last one, and never about the others: they are
taken back when its turn ends. At a terminal, in manual mode, it passes over *defer*, and goes by
its own rules, by which the call may run. So `meup-hook` gives that answer only where Claude Code
says that it has no terminal.

*Interrupted by* INT or TERM, the app-server of Codex goes on until its turn has ended, so the call
waits on, and is decided. When `meup codex` is *killed*, its app-server ends with it;
a call that waits gets no permit any more, and expires; of one that runs nothing is reported. *Too
large a message* of the app-server ends its connection, and with it Codex's terminal, which would be
asked alone.

The editor and the agent of `meup acp` are small programs on the SDK of ACP, without a model; real
ones are not tried.
"""


def page() -> str:
    """The page."""
    lines = [HEAD]
    for door, name in NAMES.items():
        lines += [f"## {name}", "", "| what happens | ran | told | recorded |", "|---|---|---|---|"]
        for case in (
            *CASES,
            *TERMINAL_CASES,
            *DEFERRED_CASES,
            *APP_SERVER_CASES,
            *SDK_CASES,
            *ACP_CASES,
        ):
            if case.door == door:
                ran = "**ran**" if case.ran else "did not run"
                told = f"“… {case.told} …”" if case.told else "–"
                lines.append(f"| {case.what} | {ran} | {told} | {case.recorded or '–'} |")
        lines.append("")
    lines += ["## Not run", "", "| door or situation | |", "|---|---|"]
    lines += [f"| {what} | {why} |" for what, why in NOT_RUN.items()]
    return "\n".join((*lines, ""))
