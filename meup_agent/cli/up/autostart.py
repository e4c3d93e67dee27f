"""Programs that start ``meup up``: MCP clients, by ``MEUP_AUTOSTART``, and the service manager.

By the variable a client's command starts ``meup up`` where it does not run. It has the arguments of
``meup up``, and is off where it is not set. What ``meup up`` prints to paste leaves it out: a
program that an editor starts would otherwise start others by itself. What is started outlives its
starter; the lock of its file keeps a second one from starting.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from meup_agent.atomic_file import replace_file
from meup_agent.cli.failures import Failure
from meup_agent.cli.up.state import (
    FILE_MODE,
    STATE_VARIABLE,
    digest_of,
    list_running,
    make_folder,
    up_folder,
)
from meup_agent.errors import ConfigurationError, explain_os_error

AUTOSTART_VARIABLE: Final = "MEUP_AUTOSTART"

LOG_NAME: Final = "autostart.log"
"""Name of the file that has the output of what was started last."""

_SECRET: Final = ("MEUP_TOKEN", "MEUP_URL", "MEUP_SPACE", "MEUP_PARTICIPANT", AUTOSTART_VARIABLE)

log = logging.getLogger("meup_agent.up")


def autostart_words(arguments: Iterable[str], paths: Iterable[Path | None], place: Path) -> str:
    """The value of the variable that starts the same again, from any folder.

    Args:
        arguments: The arguments of ``meup up`` in this process.
        paths: The files and folders among them.
        place: The file that it runs, which need not be among them.
    """
    absolute = {str(each): str(each.absolute()) for each in paths if each is not None}
    words: list[str] = []
    for each in arguments:
        name, is_set, value = each.partition("=")
        if each in absolute:
            words.append(absolute[each])
        elif is_set and name.startswith("--") and value in absolute:
            words.append(f"{name}={absolute[value]}")
        elif each != "--new-tokens":
            words.append(each)
    if str(place) not in absolute:
        words.append(str(place.absolute()))
    return shlex.join(words)


def start_if_absent(url: str) -> None:
    """Start ``meup up`` as the variable says, unless a gateway of this user has the address.

    Raises:
        ConfigurationError: The variable is not a command line, or it cannot be started.
    """
    given = os.environ.get(AUTOSTART_VARIABLE, "").strip()
    if not given:
        return
    try:
        words: Sequence[str] = shlex.split(given)
    except ValueError as error:
        raise ConfigurationError(
            f"{AUTOSTART_VARIABLE} takes the arguments of `meup up`, and cannot be read: {error}"
        ) from None
    if any(url in (each.url, each.socket) for each in list_running(up_folder())):
        return
    try:
        start_up(words)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}, and take {AUTOSTART_VARIABLE} out") from None


def start_up(words: Sequence[str]) -> tuple[subprocess.Popen[bytes], Path]:
    """Start ``meup up`` with some arguments, to outlive this process, and the file of its output.

    Raises:
        ConfigurationError: It cannot be started.
    """
    folder = up_folder()
    make_folder(folder)
    path = folder / LOG_NAME
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_SECRET)}
    with (
        explain_os_error("`meup up` could not be started", "; start it yourself"),
        open(path, "wb", opener=_for_user_alone) as output,
    ):
        process = subprocess.Popen(
            (sys.executable, "-m", "meup_agent.cli", "up", *words),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=Path.home(),
            start_new_session=True,  # it outlives this process, and Ctrl-C in its terminal
        )
    log.info("started `meup up %s`; its output is in %s", shlex.join(words), path)
    return process, path


def _for_user_alone(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, FILE_MODE)


# --- the entry of a client ---

SPACE: Final = "mcp"
"""The space of ``meup up --servers``."""


def client_entry(
    program: str, token_file: Path, *, url: str, space: str, participant: str
) -> dict[str, Any]:
    """The entry of an MCP server that is a space.

    Args:
        program: The program ``meup``.
        token_file: The file of the participant's token.
        url: The gateway.
        space: The space.
        participant: The participant that the client is.
    """
    return {
        "command": program,
        "args": ["mcp", "--token-file", str(token_file)],
        # Named: the client may run in a terminal that is another participant.
        "env": {"MEUP_URL": url, "MEUP_SPACE": space, "MEUP_PARTICIPANT": participant},
    }


# --- units of the user's service manager ---
# systemd's on Linux, launchd's on macOS. A unit starts the same command line in the same folder, so
# that relative paths keep their meaning; only its owner can read it, since a command line may hold
# the address of a service that is told of what waits.

UNIT_MODE: Final = 0o600

COMMAND_SECONDS: Final = 60.0
"""Seconds for the service manager to start or stop a service, which ends its programs first."""

ENVIRONMENT_FILE: Final = "%h/.config/meup/environment"
"""Further variables of the services of a user, such as those that a configuration names."""

_KEPT_VARIABLES: Final = ("PATH", STATE_VARIABLE)
_KEPT_PREFIX: Final = "MEUP_GATEWAY_"


class ServiceUnit(NamedTuple):
    """A command line that a service manager runs for its user.

    Attributes:
        file: What it runs, which names the unit.
        command: The program and its arguments.
        folder: Where it runs.
        environment: Its variables beyond those that the manager gives.
    """

    file: Path
    command: Sequence[str]
    folder: Path
    environment: Mapping[str, str]

    @classmethod
    def of_command_line(cls, file: Path, arguments: Sequence[str]) -> ServiceUnit:
        """The unit of the arguments of this process, without those that ask for a unit."""
        kept = {
            key: value
            for key, value in os.environ.items()
            if key in _KEPT_VARIABLES or key.startswith(_KEPT_PREFIX)
        }
        words = [each for each in arguments if each not in ("--install", "--uninstall")]
        command = (sys.executable, "-m", "meup_agent.cli", *words)
        unit = cls(file=file, command=command, folder=Path.cwd(), environment=kept)
        texts = (*command, str(unit.folder), *kept.values())
        if any(not each.isprintable() for each in texts):
            raise ConfigurationError(
                "a service cannot have line ends or control characters in its command line, folder"
                " or environment; rename what has them"
            )
        return unit

    @property
    def name(self) -> str:
        """The name by which the service manager knows it; the same at each start."""
        return f"meup-{digest_of(self.file)[:8]}"

    def systemd_text(self) -> str:
        """The unit as systemd reads it."""
        command = " ".join(_quoted(each).replace("$", "$$") for each in self.command)
        variables = "".join(
            f"Environment={_quoted(f'{key}={value}')}\n" for key, value in self.environment.items()
        )
        return f"""\
# Written by `meup up --install`; `meup up --uninstall` removes it.

[Unit]
Description=meup up: {str(self.file).replace("%", "%%")}

[Service]
Type=exec
ExecStart={command}
ExecReload=kill -HUP $MAINPID
WorkingDirectory={str(self.folder).replace("%", "%%")}
{variables}EnvironmentFile=-{ENVIRONMENT_FILE}
UMask=0077
# It ends its programs itself, and the gateway after them.
KillMode=mixed
TimeoutStopSec=30
Restart=on-failure
RestartSec=5
# A file that is wrong, or a port that is taken, is not right five seconds later.
RestartPreventExitStatus=2

[Install]
WantedBy=default.target
"""

    def launchd_text(self) -> bytes:
        """The property list as launchd reads it."""
        import plistlib  # here, since each command of an MCP client loads this module

        output = str(up_folder() / f"{self.name}.log")
        return plistlib.dumps(
            {
                "Label": f"dev.meup.{self.name}",
                "ProgramArguments": [*self.command],
                "WorkingDirectory": str(self.folder),
                "EnvironmentVariables": {**self.environment},
                "RunAtLoad": True,
                "KeepAlive": {"SuccessfulExit": False},
                "ExitTimeOut": 30,
                "Umask": 0o077,
                "StandardOutPath": output,
                "StandardErrorPath": output,
            }
        )


def _quoted(text: str) -> str:
    """A word of a unit as systemd reads it: in quotes, without its specifiers."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def install_unit(unit: ServiceUnit) -> str:
    """Write a unit, start it, and have it started at each login; what was done, in lines.

    Raises:
        Failure: The service manager did not start it; what it said is in the sentence.
        ConfigurationError: The unit cannot be written.
    """
    manager = _manager(unit)
    is_new = not manager.path.is_file()
    _write(manager.path, manager.content)
    first, *then = manager.start
    try:
        _run(first, f"{unit.file} is not installed")
    except Failure as error:
        if not is_new:
            raise
        manager.path.unlink()  # or it would start at a login that nobody expects
        raise Failure(
            f"{error}; where that cannot be mended, start `meup up` by other means"
        ) from None
    for command in then:
        _run(command, f"the unit is written to {manager.path}, and does not run")
    return "\n".join([f"{unit.file} runs from now on, and again after each login.", *manager.hints])


def remove_unit(unit: ServiceUnit) -> str:
    """Stop a unit, and remove it; what was done, in a line.

    Raises:
        Failure: There is none, or it does not stop.
    """
    manager = _manager(unit)
    if not manager.path.is_file():
        raise Failure(f"there is no unit for {unit.file}: {manager.path} is missing")
    for command in manager.stop:
        _run(command, f"{manager.path} is not removed")
    manager.path.unlink()
    for command in manager.forget:
        _run(command, f"{manager.path} is removed")
    return f"{unit.file} does not run any more, and {manager.path} is removed."


def is_installed(unit: ServiceUnit) -> bool:
    """True if there is a unit of this name."""
    return _manager(unit).path.is_file()


class _ManagerCommands(NamedTuple):
    """The file of a unit, and the commands of its service manager."""

    path: Path
    content: bytes
    start: tuple[tuple[str, ...], ...]
    stop: tuple[tuple[str, ...], ...]
    forget: tuple[tuple[str, ...], ...]
    hints: tuple[str, ...]


def _manager(unit: ServiceUnit) -> _ManagerCommands:
    if sys.platform == "darwin":
        path = Path.home() / "Library" / "LaunchAgents" / f"dev.meup.{unit.name}.plist"
        domain = f"gui/{os.getuid()}"
        label = f"{domain}/dev.meup.{unit.name}"
        # One that is loaded already is loaded anew: launchd has read its old file.
        asked = subprocess.run(("launchctl", "print", label), capture_output=True, check=False)
        stop = () if asked.returncode else (("launchctl", "bootout", label),)
        return _ManagerCommands(
            path,
            unit.launchd_text(),
            (*stop, ("launchctl", "bootstrap", domain, str(path))),
            stop,
            (),
            (f"Its log, with what to paste into a client: {up_folder() / unit.name}.log",),
        )
    if not sys.platform.startswith("linux"):
        raise Failure(
            "only systemd and launchd have units; start `meup up` at login by other means"
        )
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    service = f"{unit.name}.service"
    path = home / "systemd" / "user" / service
    control = ("systemctl", "--user")
    return _ManagerCommands(
        path,
        unit.systemd_text().encode(),
        (
            (*control, "daemon-reload"),
            (*control, "enable", service),
            (*control, "restart", service),
        ),
        ((*control, "disable", "--now", service),),
        ((*control, "daemon-reload"),),
        (
            f"Its log, with what to paste into a client: journalctl --user -u {unit.name}",
            "To have it run while you are not logged in: loginctl enable-linger",
            f"After a change of its files: systemctl --user reload {unit.name}",
        ),
    )


def _write(path: Path, content: bytes) -> None:
    with explain_os_error(f"{path} cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content, UNIT_MODE)


def _run(command: Sequence[str], outcome: str) -> None:
    if shutil.which(command[0]) is None:
        raise Failure(f"{outcome}: there is no command {command[0]!r} here")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise Failure(f"{outcome}: `{' '.join(command)}` does not end") from None
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise Failure(f"{outcome}: `{' '.join(command)}` failed: {said}")
