"""`meup demo`: shows what happens, checks it, and leaves nothing behind."""

import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from meup_agent.cli.demo.scenes import NOTE, SCENES, WRITTEN_FILES, workspace_in
from tests.cli.commands import Failure, exit_codes
from tests.cli.processes import INTERRUPT, PYTHON, TERMINATE, Running, meup, running

# Half a dozen demos, of as many processes each, begin at the same time.
pytestmark = pytest.mark.timeout(180)


def contents(folder: Path) -> dict[str, bytes]:
    """Everything in a folder: files with their bytes, folders and links without."""
    return {
        str(each.relative_to(folder)): each.read_bytes() if each.is_file() else b""
        for each in sorted(folder.rglob("*"))
    }


CARELESS_REVIEWER = """
import meup_agent.cli.demo.scenes as reviewer
reviewer.masked = lambda text: text
"""
TRUSTING_REVIEWER = """
import meup_agent.cli.demo.scenes as reviewer
reviewer.leaves_the_folder = lambda path: False
"""
UNTIDY_TOOL = """
from meup_agent.cli.demo.scenes import Workspace
Workspace.remove = lambda self, path: None
"""
RUN = "from meup_agent.cli import main; main()"


@dataclass
class Played:
    """A demo that has ended, and what was in its folders before and after."""

    code: int
    out: str
    err: str
    before: dict[str, bytes]
    after: dict[str, bytes]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Played]:
    """Several demos, played at the same time: mostly they wait."""
    base = tmp_path_factory.mktemp("demo")
    folders = {name: base / name for name in ("sample", "mine", "empty", *INJECTED)}
    for folder in folders.values():
        (folder / "temporary").mkdir(parents=True)
    mine = folders["mine"] / "folder"
    (mine / "deep").mkdir(parents=True)
    (mine / "deep" / "notes.txt").write_text("words to be counted")
    (mine / "out").symlink_to("/etc")
    (folders["empty"] / "folder").mkdir()
    before = {name: contents(folder) for name, folder in folders.items()}
    with ExitStack() as stack:

        def start(name: str, *arguments: str, code: str = "", **variables: str) -> Running:
            command = (*PYTHON, "-c", code + RUN)
            variables["TMPDIR"] = str(folders[name] / "temporary")
            return stack.enter_context(
                running("demo", *arguments, command=command, variables=variables)
            )

        demos = {
            "sample": start("sample", NO_COLOR="1"),
            "mine": start("mine", "--dir", str(mine)),
            "empty": start(
                "empty", "--dir", str(folders["empty"] / "folder"), PYTHONIOENCODING="ascii"
            ),
            **{name: start(name, code=code) for name, (code, _) in INJECTED.items()},
        }
        return {
            name: Played(demo.end(), demo.out, demo.err, before[name], contents(folders[name]))
            for name, demo in demos.items()
        }


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["sample", "mine", "empty"])
def test_it_goes_as_expected_and_leaves_nothing(played: dict[str, Played], name: str) -> None:
    demo = played[name]
    assert (demo.code, demo.err) == (exit_codes.OK, "")
    assert demo.out.splitlines()[-1].startswith("All ")
    assert demo.after == demo.before


def test_it_shows_what_happens_and_compares_it(played: dict[str, Played]) -> None:
    timeline, _, table = played["sample"].out.partition("Expected, and what happened")
    for scene in SCENES:
        assert scene.title in timeline
        assert scene.title in table
    for told in ("fulfilled", "(edited)", "rejected", "withdrawn", "cancelled", "killed"):
        assert told in timeline
    assert timeline.count("  stopped   ") == 2
    assert "✗" not in table
    assert "\x1b" not in timeline + table


def test_it_is_readable_where_there_is_only_ascii(played: dict[str, Played]) -> None:
    assert played["empty"].out.isascii()
    assert "proposer -> reviewer" in played["empty"].out


INJECTED = {
    "careless": (CARELESS_REVIEWER, ["difference told", "on disk", "read through the"]),
    "trusting": (
        TRUSTING_REVIEWER,
        ["outcome", "explanation", "the space saw", "the five proposals"],
    ),
    "untidy": (UNTIDY_TOOL, ["half-written file,", "the scene"]),
}
"""Agents that do not behave, and the expectations that fail then."""


@pytest.mark.parametrize("name", INJECTED)
def test_it_fails_where_reality_differs(played: dict[str, Played], name: str) -> None:
    demo = played[name]
    assert (demo.code, demo.err) == (exit_codes.FAILED, "")
    wrong = [line for line in demo.out.splitlines() if line.lstrip().startswith("✗")]
    assert all(any(what in line for line in wrong) for what in INJECTED[name][1])
    assert "did not go as expected" in demo.out.splitlines()[-1]
    assert demo.after == demo.before


@pytest.mark.parametrize("taken", WRITTEN_FILES)
def test_files_of_the_same_names_are_not_touched(tmp_path: Path, taken: str) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / taken).symlink_to("dangling")
    with pytest.raises(Failure, match=f"has {re.escape(taken)} already"), workspace_in(folder):
        pass
    assert (folder / taken).is_symlink()


def test_a_folder_with_such_a_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / NOTE).write_text("mine")
    done = meup("demo", "--dir", str(tmp_path))
    assert (done.returncode, done.stdout) == (exit_codes.FAILED, "")
    assert done.stderr == (
        f"meup: {tmp_path} has {NOTE} already, and the demo overwrites nothing;"
        " move that away, or give another folder\n"
    )
    assert (tmp_path / NOTE).read_text() == "mine"


@pytest.mark.parametrize(
    ("moment", "number", "code"),
    [
        ("4/10", INTERRUPT, exit_codes.INTERRUPTED),
        ("killed", INTERRUPT, exit_codes.INTERRUPTED),
        ("pending", TERMINATE, exit_codes.TERMINATED),
    ],
)
def test_a_signal_ends_it_cleanly(tmp_path: Path, moment: str, number: int, code: int) -> None:
    with running("demo", variables={"TMPDIR": str(tmp_path)}) as demo:
        demo.until(moment)
        assert demo.end(number) == code
    assert demo.err == ""
    assert "Expected, and what happened" not in demo.out
    assert list(tmp_path.iterdir()) == []
