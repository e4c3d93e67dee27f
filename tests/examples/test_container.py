"""The container: as meup and a builder read it; `make container` builds it where there is one."""

import json
import re
import sys
from pathlib import Path

import yaml

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
