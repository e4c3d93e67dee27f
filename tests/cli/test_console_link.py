"""The way into the console: the address that a gateway prints, its link, and `--open`."""

import re
import shutil
from pathlib import Path

import httpx
import pytest

from tests.cli.commands import exit_codes
from tests.cli.processes import TERMINATE, running
from tests.no_tls import ALONE

SPACE = """
space: {id: harbour}
participants:
  ann: {tokens: [ann-token], capabilities: [{kind: chat}]}
"""

LINK = re.compile(r"http://127\.0\.0\.1:\d+/console/link\?code=\S+")


def get(url: str) -> httpx.Response:
    return httpx.get(url, **ALONE)


@pytest.fixture
def space(tmp_path: Path) -> Path:
    (tmp_path / "space.yaml").write_text(SPACE)
    return tmp_path


def test_gateway_prints_the_address_of_its_console(space: Path) -> None:
    with running("gateway", "--config", "space.yaml", "--port", "0", cwd=space) as gateway:
        said = gateway.until("/console\n", stream="err")
        found = re.search(r"the console is at (http://127\.0\.0\.1:\d+/console)\n", said)
        assert found
        assert get(f"{found[1]}/sign-in").status_code == 200
        assert gateway.end(TERMINATE) == exit_codes.OK


ELSEWHERE = ("gateway", "--config", "space.yaml", "--host", "0.0.0.0", "--port", "0", "--insecure")


@pytest.mark.parametrize("is_wanted", [False, True], ids=["by default", "by setting"])
def test_console_is_served_elsewhere_by_setting_alone(space: Path, *, is_wanted: bool) -> None:
    http = "http: {console: true}\n" if is_wanted else "http: {}\n"
    (space / "space.yaml").write_text(SPACE + http)
    with running(*ELSEWHERE, cwd=space) as gateway:
        said = gateway.until("can be read on the way\n", stream="err")
        port = re.search(r"listening at ws://0\.0\.0\.0:(\d+)", said)
        assert port
        status = get(f"http://127.0.0.1:{port[1]}/console/sign-in").status_code
        assert status == (200 if is_wanted else 404)
        gateway.end(TERMINATE)
        assert ("the console is at" in gateway.err) == is_wanted


def test_open_opens_the_link_that_is_printed(tmp_path: Path) -> None:
    # Any program is a browser that takes an address; this one keeps it.
    kept = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > "{kept}.part" && mv "{kept}.part" "{kept}"\n')
    browser.chmod(0o755)
    variables = {"BROWSER": str(browser)}
    with running("gateway", "--dev", "--open", "--port", "0", variables=variables) as gateway:
        said = gateway.until("Their tokens are kept in ")
        gateway.until("listening at ws://127.0.0.1:", stream="err")
        assert gateway.end(TERMINATE) == exit_codes.OK
        printed = LINK.search(said)
        assert printed
    assert kept.read_text() == printed[0]


def test_open_without_a_browser_says_so_and_goes_on() -> None:
    false = shutil.which("false")
    assert false
    with running(
        "gateway", "--dev", "--open", "--port", "0", variables={"BROWSER": false}
    ) as gateway:
        gateway.until("no browser could be opened; open the link yourself\n", stream="err")
        link = LINK.search(gateway.until("Their tokens are kept in "))
        assert link
        assert "as <bdi" in get(link[0]).text
        assert gateway.end(TERMINATE) == exit_codes.OK
