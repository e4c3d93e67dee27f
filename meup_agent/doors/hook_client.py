"""``meup-hook AGENT``: a coding agent's hook as a program, over the gateway's Unix socket or port.

It hands what the host says on stdin to the gateway, and the answer to stdout. A host starts it
before every call, so it imports little. Whatever goes wrong, it ends as its host takes for a no:
words on stderr and exit code 2, and for hosts that read only stdout a denial there.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time

from meup_agent.transport.listener_owner import ForeignListener, check_listener

SETTINGS = ("MEUP_HOOK_URL", "MEUP_URL")
AGENTS = ("claude-code", "codex", "cursor", "copilot", "gemini")
TIMEOUTS = {"claude-code": 600.0, "codex": 600.0, "cursor": 60.0, "copilot": 30.0, "gemini": 60.0}

HELP = """\
usage: meup-hook AGENT [--url URL] [--token-file FILE] [--timeout SECONDS] [--ttl SECONDS]
                        [--own NAME] [--prefer space|terminal] [--defer-after SECONDS]
                        [--watch]

The hook of a coding agent (claude-code, codex, cursor, copilot, gemini): asks the space before each
call, and reports what came of it.

  --url URL          the gateway: unix:///run/meup.sock, or http://127.0.0.1:8420; else MEUP_URL
  --token-file FILE  the file with the participant's token; else MEUP_TOKEN
  --timeout SECONDS  the time after which the agent gives its hook up, as it is set up there
  --ttl SECONDS      how long a call waits for a decision; by default as a proposal in that space;
                     in any case it ends 5 s before the time-out
  --own NAME         the name of our own MCP server in the agent's user settings
  --prefer WHO       who decides where a person is at the agent's terminal, too: the space alone
                     (space, the default), or whoever answers first (terminal; Claude Code)
  --defer-after SECONDS
                     Claude Code without a terminal (claude -p): send it away after that time, the
                     call undone and still open; it asks again once it is resumed (claude --resume)
  --watch            decide nothing: the space is told of each call, and every call goes on
"""

MAX_ANSWER_BYTES = 8 * 1024 * 1024

MAX_INPUT_BYTES = 2 * 1024 * 1024  # as the gateway takes it


class Failed(Exception):
    """The gateway did not decide."""


def main() -> None:
    """Run the hook; exits by itself."""
    agent = sys.argv[1] if len(sys.argv) > 1 else ""
    given = sys.argv[2:]
    watches = "--watch" in given
    if agent in ("-h", "--help"):
        sys.stdout.write(HELP)
        return
    for each in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, _interrupt)
    try:
        said = _read_input()
        answer = ask(agent, _options(given), said)
        # From here on it counts, and its host hears it.
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        _tell(agent, answer, given, said)
    except Failed as error:
        _end(agent, str(error), watches)
    except ForeignListener as error:
        _end(agent, f"{error}; {error.advice}", watches)
    except Exception as error:
        _end(agent, f"{type(error).__name__}: {error}", watches)
    except KeyboardInterrupt:
        _end(agent, "it was interrupted", watches)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _read_input() -> bytes:
    said = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
    if len(said) > MAX_INPUT_BYTES:
        # To its end: a host may take a pipe that breaks for a failure of the hook, and go on.
        while sys.stdin.buffer.read(1 << 16):
            pass
        raise Failed(f"its input has more than {MAX_INPUT_BYTES} bytes")
    return said


def _tell(agent: str, answer: str, given: list[str], said: bytes) -> None:
    """Hand the answer to the host; where that is gone, the gateway is told that it heard none."""
    try:
        # In bytes, whatever encoding the settings of the computer say.
        sys.stdout.buffer.write(answer.encode())
        sys.stdout.buffer.flush()
    except OSError:
        try:
            ask(agent, {**_options(given), "--untold": ""}, said)
        finally:
            os._exit(2)


def _options(given: list[str]) -> dict[str, str]:
    known = ("--url", "--token-file", "--timeout", "--ttl", "--own", "--prefer", "--defer-after")
    found: dict[str, str] = {}
    while given:
        name, *given = given
        if name == "--watch":
            found[name] = name
            continue
        if name not in known or not given:
            raise Failed(f"meup-hook does not know the option {name}; see meup-hook --help")
        found[name], *given = given
    return found


def ask(agent: str, options: dict[str, str], said: bytes) -> str:
    """Ask the gateway; its answer, which is a JSON object.

    Raises:
        Failed: There is none.
    """
    if agent not in AGENTS:
        raise Failed(f"meup-hook knows no agent {agent!r}; it knows {', '.join(AGENTS)}")
    url = options.get("--url") or next((os.environ[n] for n in SETTINGS if os.environ.get(n)), "")
    token = _token(options.get("--token-file"))
    seconds = float(options.get("--timeout", TIMEOUTS[agent]))
    query = f"timeout={seconds}"
    if ttl := options.get("--ttl"):
        query += f"&ttl={float(ttl)}"
    if own := options.get("--own"):
        query += f"&own={own}"
    prefer = options.get("--prefer", "space")
    if prefer not in ("space", "terminal"):
        raise Failed(f"--prefer is space or terminal, and not {prefer!r}")
    after = options.get("--defer-after")
    # Claude Code says by itself whether it has a terminal, whatever it was started with. At one it
    # takes no "defer", and goes by its own rules; without one nobody answers "ask".
    is_alone = os.environ.get("CLAUDE_CODE_SESSION_ATTENDED") == "0"
    if prefer == "terminal" and not is_alone:
        query += "&prefer=terminal"
    defer = f"Meup-Defer: {float(after)}\r\n" if after and is_alone else ""
    if "--watch" in options:
        query += "&mode=watch"
    if "--untold" in options:
        query += "&untold=1"
    connection, host = _dial(url)
    with connection:
        check_listener(connection)
        head = (
            f"POST /hooks/{agent}?{query} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
            f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
            f"{defer}Content-Length: {len(said)}\r\n\r\n"
        )
        connection.sendall(head.encode() + said)
        # The gateway answers 5 s before the host gives up; this is for one that hangs.
        status, body = _read(connection, time.monotonic() + max(seconds - 2.0, 0.5))
    if status != 200:
        raise Failed(f"the gateway answers {status}: {body[:300]!r}")
    if not isinstance(json.loads(body, parse_constant=_refuse_constant), dict):
        raise Failed("the gateway's answer is not an object")
    return body


def _refuse_constant(name: str) -> None:
    """Refuse what only Python takes for JSON: a host that cannot read an answer goes on."""
    raise Failed(f"the gateway's answer has {name} in it, which is not JSON")


def _token(file: str | None) -> str:
    token = os.environ.get("MEUP_TOKEN", "")
    if file:
        try:
            with open(os.path.expanduser(file), encoding="utf-8") as opened:
                token = opened.read()
        except PermissionError:
            raise Failed(
                f"the token file {file} is another user's, and this hook is that user's own; where"
                " all users have it, as by managed settings, only that user's calls are decided"
            ) from None
        except OSError as error:
            raise Failed(
                f"the token file {file} cannot be read ({error.strerror}); run meup guard again"
            ) from None
    token = token.strip()
    if not token or any(each in token for each in "\r\n"):
        raise Failed("the token is missing; pass --token-file FILE or set MEUP_TOKEN")
    return token


def _dial(url: str) -> tuple[socket.socket, str]:
    scheme, _, rest = url.partition("://")
    if scheme == "unix" and rest:
        return _dial_socket(rest), "localhost"
    if scheme not in ("ws", "http") or not rest:
        raise Failed(
            "the gateway's address is missing; pass --url unix:///PATH or http://127.0.0.1:PORT, or"
            " set MEUP_URL"
        )
    place = rest.partition("/")[0]
    host, _, port = place.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=5.0), place


def _dial_socket(quoted: str) -> socket.socket:
    path: str | bytes = quoted
    if "%" in quoted:
        from urllib.parse import unquote_to_bytes  # few paths need it, and it takes a while to load

        path = unquote_to_bytes(quoted)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(5.0)
    if len(os.fsencode(path)) < 104 or not sys.platform.startswith("linux"):
        connection.connect(path)
        return connection
    # Longer than an address may be: through a descriptor of its folder.
    folder, name = os.path.split(os.fsdecode(path))
    held = os.open(folder, os.O_PATH)
    try:
        connection.connect(f"/proc/self/fd/{held}/{name}")
    finally:
        os.close(held)
    return connection


def _read(connection: socket.socket, until: float) -> tuple[int, str]:
    """The status and body of the answer.

    A host that is killed leaves its hooks running: who would read our answer is gone then, and with
    our end the gateway takes the call back.
    """
    waits = select.poll()
    waits.register(connection, select.POLLIN)
    waits.register(1, 0)  # that its reader is gone is told in any case
    said = b""
    while True:
        ready = dict(waits.poll(max(until - time.monotonic(), 0.0) * 1_000))
        if not ready:
            raise Failed("the gateway did not answer in time")
        if connection.fileno() not in ready:
            raise Failed("nobody reads the answer any more")
        more = connection.recv(65_536)
        if not more:
            break
        said += more
        if len(said) > MAX_ANSWER_BYTES:
            raise Failed("the gateway's answer is too large")
    head, found, body = said.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    words = lines[0].split(b" ", 2)
    lengths = [
        int(line.partition(b":")[2]) for line in lines if line[:15].lower() == b"content-length:"
    ]
    if not found or len(words) < 2 or lengths != [len(body)]:
        raise Failed("the gateway ended the connection before it had answered")
    return int(words[1]), body.decode()


def _end(agent: str, why: str, watches: bool) -> None:
    """End without an answer of the gateway's: where it decides, as the host takes for a no.

    The host's own form comes first, since some read stdout alone.
    """
    if watches:
        sys.stdout.write("{}")
        return
    why = "".join(each if each.isprintable() else " " for each in why)[:500]
    words = (
        f"meup did not answer, so this call was not carried out ({why}). Nobody decided about it;"
        " do not try to do the same by another way. Tell the user."
    )
    answers = {
        "cursor": {"permission": "deny", "user_message": words, "agent_message": words},
        "copilot": {"permissionDecision": "deny", "permissionDecisionReason": words},
        "gemini": {"decision": "deny", "reason": words},
    }
    try:
        if agent in answers:
            sys.stdout.write(json.dumps(answers[agent]))
        sys.stdout.flush()
        sys.stderr.write(words + "\n")
        sys.stderr.flush()
    finally:
        # Copilot takes any other exit code for a hook that failed, and runs the call.
        os._exit(0 if agent == "copilot" else 2)


if __name__ == "__main__":
    main()
