"""`meup console`: the way into the console of a gateway that runs, again and again."""

import re
import ssl
import sys
from pathlib import Path

import httpx
import pytest

from tests.cli.commands import exit_codes
from tests.cli.conftest import assert_fails
from tests.cli.processes import meup, up
from tests.cli.test_up_servers import SERVERS, SMALL, configure
from tests.no_tls import ALONE
from tests.patience import PATIENCE
from tests.transport.peers import CERTIFICATE

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="`meup up` needs POSIX")

LINK = re.compile(r"https?://\S+/console/link\?code=\S+")
QUORUM = """
rules:
  - quorum: {tool: "*", of: 2, among: [ann, bob], name: both}
end: true
"""


def test_each_person_signs_in_again_by_a_link_of_their_own(
    tmp_path: Path, state: dict[str, str]
) -> None:
    configure(tmp_path, calc=SMALL)
    (tmp_path / "policy.yaml").write_text(QUORUM)
    options = ("--person", "ann", "--person", "bob", "--policy", "policy.yaml")
    with up(tmp_path, state, *SERVERS, *options) as process:
        process.until("meup inbox list")
        assert "what it asks waits for ann, bob: calc\n" in process.out
        printed = LINK.findall(process.out)
        assert len(printed) == 2
        assert_fails(meup("console", variables=state), exit_codes.USAGE, "meup: which participant?")
        assert_fails(meup("console", "eve", variables=state), exit_codes.USAGE, "no participant")
        names = []
        for name in ("ann", "bob"):
            done = meup("console", name, "--no-open", variables=state)
            assert done.returncode == exit_codes.OK, done.stderr
            printed += LINK.findall(done.stdout)
        for link in printed:
            page = httpx.get(link, **ALONE).text
            names += re.findall(r'<h1>Continue as <bdi class="name">(\w+)</bdi>', page)
        assert sorted(names) == ["ann", "ann", "bob", "bob"]
        said = meup("console", "ann", "--lan", variables=state)
        assert_fails(said, exit_codes.FAILED, "a link that passes a network needs TLS")


def test_votes_that_cannot_come_are_said(tmp_path: Path, state: dict[str, str]) -> None:
    (tmp_path / "policy.yaml").write_text(QUORUM)
    configure(tmp_path, calc=SMALL)
    options = ("--person", "ann", "--policy", "policy.yaml")
    done = meup("up", *SERVERS, *options, cwd=tmp_path, variables=state)
    assert_fails(done, exit_codes.USAGE, "asks for 2 votes", "name each by --person")


@pytest.mark.parametrize("name", ["agent", "reviewer", "calc"])
def test_a_person_needs_a_name_of_its_own(name: str, tmp_path: Path, state: dict[str, str]) -> None:
    configure(tmp_path, calc=SMALL)
    done = meup("up", *SERVERS, "--person", name, cwd=tmp_path, variables=state)
    assert_fails(done, exit_codes.USAGE, "this name is another participant's")


def test_a_phone_gets_a_link_and_a_code_under_tls(tmp_path: Path, state: dict[str, str]) -> None:
    configure(tmp_path, calc=SMALL)
    tls = ("--lan", "--tls-certificate", str(CERTIFICATE), "--tls-key", str(CERTIFICATE))
    variables = {**state, "SSL_CERT_FILE": str(CERTIFICATE), "PYTHONIOENCODING": "utf-8"}
    with up(tmp_path, variables, *SERVERS, *tls) as process:
        process.until("On a phone: meup console --lan")
        done = meup("console", "--lan", "--host", "localhost", variables=variables)
        assert done.returncode == exit_codes.OK, done.stderr
        (link,) = LINK.findall(done.stdout)
        assert link.startswith("https://localhost:")
        assert "▀" in done.stdout
        trust = ssl.create_default_context(cafile=str(CERTIFICATE))
        assert (
            "Continue as" in httpx.get(link, verify=trust, trust_env=False, timeout=PATIENCE).text
        )
