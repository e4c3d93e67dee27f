"""`meup token`: makes tokens, and the hashes that a gateway's file keeps of them."""

import json
import re

from tests.cli.commands import exit_codes
from tests.cli.processes import meup
from tests.gateways import hash_token


def test_a_new_token_is_shown_once_with_its_hash() -> None:
    first, second = (meup("token", "new") for _ in range(2))
    shown = re.fullmatch(r"token: (\S{43})\nhash:  (sha256:[0-9a-f]{64})\n", first.stdout)
    assert shown
    assert shown[2] == hash_token(shown[1])
    assert shown[1] not in second.stdout
    assert (first.returncode, first.stderr) == (exit_codes.OK, "")


def test_a_new_token_as_json() -> None:
    made = json.loads(meup("token", "new", "--json").stdout)
    assert made["hash"] == hash_token(made["token"])


def test_the_hash_of_a_token_is_the_one_that_was_made_with_it() -> None:
    done = meup("token", "hash", given="secret\n")
    assert done.stdout == f"{hash_token('secret')}\n"
    made = json.loads(meup("token", "hash", "--json", given="secret").stdout)
    assert made == {"hash": hash_token("secret")}


def test_what_is_no_token_has_no_hash_and_is_not_shown() -> None:
    for given in ("", "two words", "caf\u00e9", "x" * 5_000):
        done = meup("token", "hash", given=given)
        assert (done.returncode, done.stdout) == (exit_codes.USAGE, "")
        assert done.stderr == (
            "meup: expected a token of ASCII characters, without blanks, on standard input\n"
        )
