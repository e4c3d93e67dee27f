"""``meup token``: make the secret that says who a participant is, and what a file keeps of it."""

from __future__ import annotations

import sys
from typing import Final

from meup_agent.cli.commands import CommandTyper
from meup_agent.cli.failures import Misuse
from meup_agent.cli.options import Json
from meup_agent.escape import as_json_line
from meup_agent.gateway.auth import hash_token, new_token

MAX_TOKEN_CHARS: Final = 4_096  # characters of a token that is read: longer ones fit into no header

token = CommandTyper("token")


@token.callback()
def token_group() -> None:
    """Make a participant's token, and the hash of it that a gateway's file can keep.

    Example: `meup token new` makes both.
    """


def new(json: Json = False) -> None:
    """Make a random token, and its hash.

    The token is for the participant, in MEUP_TOKEN or a file. The hash is for the gateway's file,
    under `token_hashes`, and is of no use for joining. The token is shown only once.

    Example: `meup token new`
    """
    made = new_token()
    if json:
        sys.stdout.write(as_json_line({"token": made, "hash": hash_token(made)}))
    else:
        sys.stdout.write(f"token: {made}\nhash:  {hash_token(made)}\n")


def hash_of_stdin(json: Json = False) -> None:
    """Tell the hash of a token that is read from standard input.

    It is not an argument, since other users of a machine can read those.

    Example: `meup token hash < token.txt`
    """
    if sys.stdin.isatty():
        sys.stderr.write("meup: type or paste the token, then Enter\n")
    read = sys.stdin.readline(MAX_TOKEN_CHARS + 2).strip()
    if not read or len(read) > MAX_TOKEN_CHARS or not read.isascii() or len(read.split()) != 1:
        raise Misuse("expected a token of ASCII characters, without blanks, on standard input")
    hashed = hash_token(read)
    sys.stdout.write(as_json_line({"hash": hashed}) if json else f"{hashed}\n")


token.add("new", new)
token.add("hash", hash_of_stdin)
