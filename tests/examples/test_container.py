"""Files for those who run a gateway: a container and a unit, as meup and systemd read them."""

import json
import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml

from meup_agent.cli.cluster.programs import find_nats_server
from meup_agent.gateway.config_file import load_config
from tests.cli.processes import meup
from tests.programs import ROOT

FOLDER = ROOT / "examples" / "container"
INSTRUCTIONS = {
    "FROM": r"docker\.io/library/python:\d+\.\d+-slim( AS \w+)?",
    "COPY": r"(--from=\w+ )?\S+ /\S+",
    "RUN": r".+",
    "USER": r"meup",
    "WORKDIR": r"/\S+",
    "ENV": r"(\w+=\S+\s*)+",
    "VOLUME": r"/\S+",
    "EXPOSE": r"8420",
    "HEALTHCHECK": r"CMD \[.*\]",
    "ENTRYPOINT": r'\["meup"\]',
    "CMD": r"\[.*\]",
}
"""The instructions that the file may have, and the form of what follows."""


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", (FOLDER / "Containerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(name, rest) for name, _, rest in (each.partition(" ") for each in lines if each)]


def test_each_instruction_has_its_form_and_the_last_user_is_not_root() -> None:
    found = instructions()
    for name, rest in found:
        assert re.fullmatch(INSTRUCTIONS[name], rest), (name, rest)
    assert [rest for name, rest in found if name == "USER"] == ["meup"]
    names = [name for name, _ in found]
    assert names[0] == "FROM"
    assert names.index("USER") > max(at for at, name in enumerate(names) if name == "RUN")
    kept = (ROOT / ".dockerignore").read_text()
    assert all(f"!{each}\n" in kept for each in ("meup_agent", "pyproject.toml", "README.md"))


def test_its_command_is_what_meup_understands(tmp_path: Path) -> None:
    arguments = json.loads(dict(instructions())["CMD"])
    servers = tmp_path / "mcp.json"
    servers.write_text(json.dumps({"mcpServers": {"one": {"command": sys.executable}}}))
    words = [str(servers) if each == "/config/mcp.json" else each for each in arguments]
    variables = {"MEUP_GATEWAY_HTTP_CONSOLE": "true"}
    checked = meup(*words, "--check", cwd=tmp_path, variables=variables)
    assert checked.stdout.startswith("listens at ws://0.0.0.0:8420 and http://0.0.0.0:8420"), (
        checked
    )


def test_the_compose_file_publishes_on_this_machine_alone() -> None:
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    service = compose["services"]["meup"]
    assert (FOLDER / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).is_file()
    assert all(each.startswith("127.0.0.1:") for each in service["ports"])
    named = {each.partition(":")[0] for each in service["volumes"] if not each.startswith(".")}
    assert named == set(compose["volumes"])


def test_the_cluster_is_what_nats_and_meup_understand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (FOLDER / "cluster" / "compose.yaml").read_text()
    compose = yaml.safe_load(re.sub(r"\$\{\w+:\?[^}]*\}", "token-of-this-test-0001", text))
    services = compose["services"]
    gateways = {name: each for name, each in services.items() if name.startswith("gateway")}
    servers = {name: each for name, each in services.items() if name.startswith("nats")}
    assert len(gateways) == len(servers) == 3
    assert all(
        port.startswith("127.0.0.1:")
        for each in services.values()
        for port in each.get("ports", ())
    )
    assert {each.partition(":")[0] for one in servers.values() for each in one["volumes"]} == set(
        compose["volumes"]
    )
    (build,) = [each["build"] for each in gateways.values() if "build" in each]
    assert (FOLDER / "cluster" / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    # As compose hands them over.
    contents = {
        name: each["content"].replace("$$", "$") for name, each in compose["configs"].items()
    }
    conf, space = tmp_path / "nats.conf", tmp_path / "space.yaml"
    conf.write_text(contents["nats"])
    space.write_text(contents["space"])
    monkeypatch.setenv("HOSTNAME", "nats-1")
    subprocess.run([find_nats_server(), "-t", "--config", conf], check=True, capture_output=True)
    for name, gateway in gateways.items():
        ((variable, advertise),) = gateway["environment"].items()
        monkeypatch.setenv(variable, advertise)
        nats = load_config(space).journal.nats
        assert nats is not None
        assert nats.advertise == f"{name}:8430"
        assert nats.servers == tuple(f"nats://{each}:4222" for each in servers)
        assert gateway["hostname"] == name


UNIT = ROOT / "examples" / "meup.service"
COMMAND = "/usr/local/bin/meup"


def test_the_unit_is_what_meup_understands() -> None:
    unit = ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[method-assign,assignment]
    unit.read_string(UNIT.read_text())
    assert unit["Service"]["ExecStart"].split() == [COMMAND, "up", "space.yaml"]
    # It ends its programs itself, in order.
    assert unit["Service"]["KillMode"] == "mixed"


@pytest.mark.skipif(sys.platform != "linux", reason="systemd is on Linux alone")
def test_the_unit_is_what_systemd_understands(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    assert analyze, "systemd-analyze checks the unit: install it, as by apt-get install systemd"
    # It looks for the command, which is not where the unit has it.
    unit = UNIT.read_text().replace(COMMAND, sys.executable)
    misspelt = unit.replace("NoNewPrivileges", "NoNewPrivilege")
    said: list[str] = []
    for name, text in (("meup", unit), ("misspelt", misspelt)):
        copy = tmp_path / f"{name}.service"
        copy.write_text(text)
        done = subprocess.run(
            [analyze, "verify", copy], capture_output=True, text=True, check=False
        )
        said.append(done.stderr)
        assert done.returncode == 0 or name == "misspelt", done.stderr
    assert said[0] == ""
    assert "NoNewPrivilege" in said[1]
