"""Configurations of MCP servers: the file that MCP clients use, read strictly.

Its servers are under ``mcpServers``, or under ``servers`` as VS Code has it.

A key that is not known is refused by its name: a setting that is silently left out may be the one
that keeps a server from the disk. Where problems are reported, keys that are about the client alone
are passed over, and named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from meup_agent.errors import ConfigurationError, explain_os_error, printable
from meup_agent.protocol.wire.payloads import is_list, is_object

MAX_FILE_BYTES: Final = 1_048_576
"""Bytes of a configuration; those in use have less than 10,000."""

MAX_SERVERS: Final = 64
"""Servers of one file: each is a process, and a connection to the gateway."""

MAX_NAME_CHARS: Final = 64
"""Characters of a server's name, which is its participant's as a rule."""

ROOT_KEY: Final = "mcpServers"

OTHER_ROOT: Final = "servers"
"""Name of the same in VS Code's ``.vscode/mcp.json``."""

BY_NAME: Final = 'each server is below its name: {{"{}": {{"NAME": {{"command": …}}}}}}'

OTHER_KEYS: Final = (OTHER_ROOT, "inputs")
"""Keys of such a file: the inputs are what VS Code asks its user for."""

STDIO_KEYS: Final = ("type", "command", "args", "env", "cwd", "disabled", "pin")
HTTP_KEYS: Final = ("type", "url", "headers", "oauth", "disabled", "pin")
CLIENT_KEYS: Final = ("alwaysAllow", "autoApprove", "description", "name", "timeout", "trust")
"""Keys by which a client asks, waits or shows; none of them says what a server may or how it runs.

What would have run unasked waits here, as all else does.
"""

OTHER_NAMES: Final = {
    **dict.fromkeys(("cmd", "program", "executable"), "command"),
    **dict.fromkeys(("arguments", "argv", "parameters", "params"), "args"),
    **dict.fromkeys(("environment", "variables", "envs", "envvars"), "env"),
    **dict.fromkeys(("workingdirectory", "workdir", "directory", "dir"), "cwd"),
    **dict.fromkeys(("uri", "endpoint", "address", "serverurl", "httpurl", "baseurl"), "url"),
    **dict.fromkeys(("transport", "transporttype", "protocol"), "type"),
    **dict.fromkeys(("httpheaders", "requestheaders"), "headers"),
    "auth": "oauth",
}
"""Names that other programs and people have for a server's keys, in small letters alone."""

NEAR: Final = 0.72
"""Likeness from which a key is taken for a slip: ``_comment`` is none of ``command``."""

MAX_SLIP_CHARS: Final = 2
"""Characters by which a slip is longer or shorter: ``disabledTools`` is none of ``disabled``."""

OAUTH_KEYS: Final = (
    *("clientId", "clientSecret", "clientMetadataUrl", "issuer"),
    *("callbackPort", "grantType"),
)
OAUTH_TEXTS: Final = OAUTH_KEYS[:4]

CLIENT_CREDENTIALS: Final = "client_credentials"
"""The grant by which a program signs in without a person."""

GRANTS: Final = ("authorization_code", CLIENT_CREDENTIALS)

HTTP_TYPES: Final = ("http", "streamable-http", "streamableHttp", "sse")
"""Names that clients have for the same transport, and that of the older one."""

MAX_PORTS: Final = 65_536

PINS: Final = {"on": True, "off": False, True: True, False: False}
"""Values of the key ``pin``; YAML reads ``off`` as false."""

EDITOR_VARIABLES: Final = re.compile(
    r"workspaceFolder|userHome|pathSeparator|file[A-Z]|relativeFile"
)
"""Beginnings of what VS Code and Cursor fill in by themselves."""

_VARIABLE: Final = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_LEFT: Final = re.compile(r"\$\{(?:input|command|config|workspaceFolder):[^}]*\}|\$\{/\}")

_TEXT: Final = r'"(?:\\.|[^"\\])*"'
_COMMENT: Final = re.compile(_TEXT + r"|//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA: Final = re.compile(_TEXT + r"|,(?=\s*[}\]])")

_TWICE: Final = object()
"""Value of a key that is given twice."""


@dataclass(frozen=True, slots=True)
class StdioServer:
    """A server that is a program, spoken with over its standard input and output.

    Attributes:
        command: The program.
        args: Its arguments.
        env: Variables beyond the few that every server gets (``PATH``, ``HOME`` …).
        cwd: The folder that it runs in; ``None``: ours.
        pin: Its tools are pinned where those of servers are.
    """

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: Path | None = None
    pin: bool = True


@dataclass(frozen=True, slots=True)
class OAuthClient:
    """The client that we are at a server's sign-in; it registers itself where nothing is given.

    Attributes:
        client_id: The id of a client that was registered before.
        client_secret: Its secret, if it has one.
        client_metadata_url: The https address of a document about the client, for servers that take
            it in place of a registration.
        callback_port: The port of this machine to which the sign-in page answers; else any free
            one, and later the same.
        issuer: The place of the sign-in that knows the client and its secret, which are shown to no
            other one: the client signs in by itself, without a person. ``None``: a person does.
    """

    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    client_metadata_url: str | None = None
    callback_port: int | None = None
    issuer: str | None = None


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server behind an address, spoken with over streamable HTTP.

    Attributes:
        url: Its address.
        headers: Headers of every request.
        sse: It speaks the older HTTP with SSE of 2024-11-05.
        pin: Its tools are pinned where those of servers are.
        oauth: The client that we are where it asks for a sign-in.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    sse: bool = False
    pin: bool = True
    oauth: OAuthClient = OAuthClient()

    @property
    def may_sign_in(self) -> bool:
        """True unless its headers say already who we are."""
        return not any(each.lower() == "authorization" for each in self.headers)


Server = StdioServer | HttpServer


Report = Callable[[str], None]
"""Takes a sentence about a part of a file that is left out."""


def read_servers(
    path: Path,
    variables: Mapping[str, str],
    on_problem: Report | None = None,
    *,
    may_be_none: bool = False,
) -> dict[str, Server]:
    """The servers of a ``mcpServers`` file by name, without the disabled ones.

    Args:
        path: The file.
        variables: The environment: ``${NAME}`` and ``${NAME:-otherwise}`` are filled in from it.
        on_problem: Told of each server that is wrong, of keys beside them or for clients alone,
            and of comments; what is right is returned. Without it each of them is an error.
        may_be_none: A file that names no server is right, too.

    Raises:
        ConfigurationError: The file cannot be read, or says something that is not known.
    """
    with explain_os_error(f"{path} cannot be read"), path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ConfigurationError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    report: Report | None = (
        None if on_problem is None else lambda said: on_problem(f"{path}: {said}")
    )
    try:
        document = _decode(content, report)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not JSON: {printable(str(error))}") from None
    try:
        return parse_servers(
            document, variables, base=path.parent, on_problem=report, may_be_none=may_be_none
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def parse_servers(
    document: object,
    variables: Mapping[str, str],
    *,
    base: Path = Path(),
    on_problem: Report | None = None,
    may_be_none: bool = False,
) -> dict[str, Server]:
    """The servers of a document by name; see :func:`read_servers`.

    Args:
        document: The document.
        variables: The environment.
        base: The folder that a relative ``cwd`` starts from.
        on_problem: See :func:`read_servers`.
        may_be_none: See :func:`read_servers`.

    Raises:
        ConfigurationError: It says something that is not known, or lacks something.
    """
    root = _object(document, "the document")
    is_other = OTHER_ROOT in root and ROOT_KEY not in root
    key = OTHER_ROOT if is_other else ROOT_KEY
    known = OTHER_KEYS if is_other else (ROOT_KEY,)
    with _reported(on_problem if key in root else None):
        _check_keys(root, known, "the document")
    if key not in root:
        raise ConfigurationError(f"has no {ROOT_KEY}, nor {OTHER_ROOT} as VS Code calls them")
    if is_list(root[key]):
        raise ConfigurationError(f"{key} is a list; {BY_NAME.format(key)}")
    entries = _object(root[key], key)
    for own in ("command", "url"):
        if isinstance(entries.get(own), str):
            raise ConfigurationError(f"{key} has {own!r} itself; {BY_NAME.format(key)}")
    if not entries and not may_be_none:
        raise ConfigurationError(f"{key} names no server")
    if len(entries) > MAX_SERVERS:
        raise ConfigurationError(f"{key} has {len(entries)} servers; at most {MAX_SERVERS}")
    servers: dict[str, Server] = {}
    wrong = 0
    for name, entry in entries.items():
        wrong += 1
        with _reported(on_problem):
            check_name(name)
            place = f"{key}.{name}"
            fields = _object(entry, place)
            if not _is_disabled(fields, place):
                if on_problem is not None:
                    fields = _without_client_keys(fields, place, on_problem)
                servers[name] = _server(fields, place, variables, base)
            wrong -= 1
    if not servers and not (may_be_none and not wrong):
        if wrong:
            raise ConfigurationError(f"no server of {key} can be used")
        raise ConfigurationError(f"every server of {key} is disabled")
    return servers


@contextmanager
def _reported(on_problem: Report | None) -> Generator[None]:
    """Report what is wrong in a block, or raise it where it is not reported."""
    try:
        yield
    except ConfigurationError as error:
        if on_problem is None:
            raise
        on_problem(str(error))


def http_server(url: str, headers: Mapping[str, str] | None = None) -> HttpServer:
    """A server behind an address that was checked.

    Raises:
        ConfigurationError: It is not an HTTP address.
    """
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        valid = False
    if not valid:
        # Without the address itself, which may carry a password.
        raise ConfigurationError("the address of an MCP server begins with http:// or https://")
    return HttpServer(url, dict(headers or {}))


def missing_command(command: str) -> str:
    """The sentence for a program that is not there."""
    hint = "; its arguments are in 'args'" if " " in command else ""
    return f"there is no command {command!r}{hint}"


def root_of(given: str | Path) -> dict[str, Any]:
    """A root as MCP has it, of a folder or its ``file://`` URI.

    Raises:
        ConfigurationError: There is no such folder.
    """
    if isinstance(given, str) and given.startswith("file://"):
        return {"uri": given}
    folder = Path(given).expanduser().resolve()
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder {str(given)!r} to be a root")
    return {"uri": folder.as_uri(), "name": folder.name or str(folder)}


def check_name(name: str) -> None:
    """Check that a server's name can be written in a log and in a variable's name.

    Raises:
        ConfigurationError: It cannot.
    """
    if not name or len(name) > MAX_NAME_CHARS or not name.isprintable() or name != name.strip():
        raise ConfigurationError(
            f"{name[:MAX_NAME_CHARS]!r} cannot be a server's name; take 1 to"
            f" {MAX_NAME_CHARS} printable characters"
        )


def _server(
    fields: Mapping[str, Any], place: str, variables: Mapping[str, str], base: Path
) -> Server:
    """One entry of the file."""

    def text(key: str) -> str:
        return _text(fields[key], f"{place}.{key}", variables)

    def required(key: str) -> str:
        if key not in fields:
            raise ConfigurationError(f"{place} lacks {key!r}")
        if not (value := text(key)):
            raise ConfigurationError(f"{place}.{key} is empty")
        return value

    def texts(key: str) -> dict[str, str]:
        inner = f"{place}.{key}"
        given = _object(fields.get(key, {}), inner)
        return {name: _text(value, f"{inner}.{name}", variables) for name, value in given.items()}

    kind = "stdio" if "command" in fields or "url" not in fields else "http"
    if "type" in fields:
        kind = _text(fields["type"], f"{place}.type")
    if kind == "stdio":
        _check_server_keys(fields, STDIO_KEYS, place, kind)
        args = fields.get("args", [])
        if not is_list(args):
            raise ConfigurationError(f'{place}.args must be a list of texts, as ["-y", "NAME"]')
        return StdioServer(
            required("command"),
            tuple(_text(each, f"{place}.args.{at}", variables) for at, each in enumerate(args)),
            texts("env"),
            base / Path(text("cwd")).expanduser() if "cwd" in fields else None,
            _pin(fields, place),
        )
    if kind not in HTTP_TYPES:
        known = ", ".join(("stdio", *HTTP_TYPES))
        raise ConfigurationError(f"{place}.type is {_shown(kind)}; give one of: {known}")
    _check_server_keys(fields, HTTP_KEYS, place, kind)
    headers = texts("headers")
    try:
        server = http_server(required("url"), headers)
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}.url: {error}") from None
    oauth = _oauth(fields, place, variables)
    return replace(server, sse=kind == "sse", pin=_pin(fields, place), oauth=oauth)


def _oauth(fields: Mapping[str, Any], place: str, variables: Mapping[str, str]) -> OAuthClient:
    place = f"{place}.oauth"
    given = _object(fields.get("oauth", {}), place)
    _check_keys(given, OAUTH_KEYS, place)
    port = given.get("callbackPort")
    if port is not None and (not isinstance(port, int) or not 0 < port < MAX_PORTS):
        raise ConfigurationError(f"{place}.callbackPort must be a port")
    texts = {
        key: _text(given[key], f"{place}.{key}", variables) for key in OAUTH_TEXTS if key in given
    }
    about = texts.get("clientMetadataUrl")
    if about is not None and not re.match(r"https://[^/]+/.+", about):
        raise ConfigurationError(f"{place}.clientMetadataUrl must be an https address with a path")
    if "clientSecret" in texts and "clientId" not in texts:
        raise ConfigurationError(f"{place} has a clientSecret, and lacks the clientId")
    _check_grant(given, place)
    return OAuthClient(
        texts.get("clientId"),
        texts.get("clientSecret"),
        about,
        port,
        texts.get("issuer"),
    )


def _check_grant(given: Mapping[str, Any], place: str) -> None:
    """Check that a client that signs in by itself has all that this takes, and no other has it."""
    grant = given.get("grantType", GRANTS[0])
    if grant not in GRANTS:
        raise ConfigurationError(f"{place}.grantType must be one of: {', '.join(GRANTS)}")
    if grant != CLIENT_CREDENTIALS:
        if "issuer" in given:
            raise ConfigurationError(
                f"{place}.issuer is for a client that signs in by itself; add"
                f' "grantType": "{CLIENT_CREDENTIALS}"'
            )
        return
    for key in ("clientId", "clientSecret", "issuer"):
        if not given.get(key):
            raise ConfigurationError(
                f"{place} signs in without a person, and lacks the {key}; the secret is shown to"
                " that issuer alone"
            )
    if not re.match(r"https://|http://(127\.0\.0\.1|localhost)[:/]", str(given["issuer"])):
        raise ConfigurationError(f"{place}.issuer must be an https address")


def _decode(content: bytes, on_problem: Report | None) -> object:
    """A document; where problems are reported, comments and last commas are one of them."""

    def read_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """An object, of whose keys none is given twice unseen: the second would win silently."""
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found and on_problem is None:
                raise ValueError(f"the key {_shown(key)} is there twice")
            found[key] = _TWICE if key in found else value
        return found

    try:
        return json.loads(content, object_pairs_hook=read_pairs)
    except ValueError:
        if on_problem is None:
            raise
        document = json.loads(strict_json(content.decode()), object_pairs_hook=read_pairs)
    on_problem("has comments or commas that JSON does not know; they are read over")
    return document


def strict_json(text: str) -> str:
    """A text of JSON as editors have it, with spaces in place of comments and last commas."""

    def blank(found: re.Match[str]) -> str:
        said = found[0]
        return said if said.startswith('"') else re.sub(r"[^\n]", " ", said)

    return _LAST_COMMA.sub(blank, _COMMENT.sub(blank, text))


def _without_client_keys(fields: dict[str, Any], place: str, on_problem: Report) -> dict[str, Any]:
    """An entry without what is for its client alone, of which is told."""
    theirs = [key for key in fields if key in CLIENT_KEYS]
    if fields.get("tools") == ["*"]:  # all that it has, as Copilot CLI writes it
        theirs.append("tools")
    if theirs:
        named = ", ".join(map(repr, theirs))
        on_problem(f"{place}: passed over what is for its client alone: {named}")
    return {key: value for key, value in fields.items() if key not in theirs}


def _check_keys(fields: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
    for key in fields:
        if key not in known:
            hint = _hint(key, known)
            raise ConfigurationError(f"{place} has the unknown key {_shown(key)}; {hint}")


def _check_server_keys(
    fields: Mapping[str, Any], known: tuple[str, ...], place: str, kind: str
) -> None:
    """Check the keys of an entry of some type, to which the keys of others are known as well."""
    near = known if "command" in fields or "url" in fields else STDIO_KEYS + HTTP_KEYS
    for key in fields:
        if key in known:
            continue
        if key in HTTP_KEYS:
            hint = f"it is for a server with a 'url', and this one is of the type {kind}"
        elif key in STDIO_KEYS:
            hint = f"it is for a server with a 'command', and this one is of the type {kind}"
        elif key == "enabled":
            hint = 'take it out; a server that is off has "disabled": true'
        else:
            hint = _hint(key, known, near)
        raise ConfigurationError(f"{place} has the unknown key {_shown(key)}; {hint}")


def _hint(key: str, known: tuple[str, ...], near: tuple[str, ...] = ()) -> str:
    plain = re.sub(r"[-_ ]", "", key).lower()
    meant = OTHER_NAMES.get(plain, plain)
    close = get_close_matches(meant, near or known, n=1, cutoff=NEAR)
    if close and abs(len(close[0]) - len(meant)) <= MAX_SLIP_CHARS:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(known)}"


def _object(value: object, place: str) -> dict[str, Any]:
    if value is _TWICE:
        raise ConfigurationError(f"{place} is there twice; rename one")
    if not is_object(value):
        raise ConfigurationError(f"{place} must be an object")
    return value


def _is_disabled(fields: Mapping[str, Any], place: str) -> bool:
    value = fields.get("disabled", False)
    if not isinstance(value, bool):
        raise ConfigurationError(f"{place}.disabled must be true or false")
    return value


def _pin(fields: Mapping[str, Any], place: str) -> bool:
    """True unless the file says ``"pin": "off"``."""
    value = fields.get("pin", "on")
    if not isinstance(value, str | bool) or value not in PINS:
        raise ConfigurationError(f"{place}.pin is {_shown(str(value))}; give on or off")
    return PINS[value]


def _text(value: object, place: str, variables: Mapping[str, str] | None = None) -> str:
    if is_list(value):
        raise ConfigurationError(f"{place} must be a text; arguments are in 'args'")
    if not isinstance(value, str) or "\0" in value:
        quoted = f', in quotes: "{json.dumps(value)}"' if isinstance(value, int | float) else ""
        raise ConfigurationError(f"{place} must be a text{quoted}")
    return value if variables is None else fill_variables(value, place, variables)


def fill_variables(text: str, place: str, variables: Mapping[str, str]) -> str:
    """A text with its ``${NAME}``, ``${env:NAME}`` and ``${NAME:-otherwise}`` filled in.

    Raises:
        ConfigurationError: A variable is not set, or VS Code would ask its user for it; the message
            names it and the place of the text.
    """

    def left_to_editor(said: str) -> ConfigurationError:
        does = "VS Code asks for" if said.startswith("${input:") else "only an editor fills in"
        return ConfigurationError(
            f"{place} has {_shown(said)}, which {does}; write ${{NAME}} there, and set that"
            " environment variable"
        )

    left = _LEFT.search(text)
    if left is not None:
        raise left_to_editor(left[0])

    def value(match: re.Match[str]) -> str:
        name: str = match.group(1)
        otherwise: str | None = match.group(2)
        found = variables.get(name, otherwise)
        if found is None and EDITOR_VARIABLES.match(name):
            raise left_to_editor(match[0])
        if found is None:
            raise ConfigurationError(
                f"{place} needs the environment variable {name}, which is not set"
            )
        return found

    return _VARIABLE.sub(value, text)


def _shown(text: str) -> str:
    return repr(text[:MAX_NAME_CHARS])
