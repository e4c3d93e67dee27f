"""The demo's tools stay in their folder, overwrite nothing, and leave nothing behind."""

import os
from pathlib import Path

import pytest

from meup_agent.cli.demo.scenes import MAX_BYTES, MAX_FILES, NotAllowed, Workspace


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text("secret")
    return folder


@pytest.fixture
def workspace(tmp_path: Path, outside: Path) -> Workspace:
    folder = tmp_path / "inside"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("hello")
    (folder / "to_file").symlink_to(outside / "secret.txt")
    (folder / "to_folder").symlink_to(outside)
    (folder / "to_nothing").symlink_to(outside / "new.txt")
    (folder / "deep" / "up").symlink_to("../..")
    (folder / "loop").symlink_to("loop")
    (folder / "within").symlink_to("a.txt")
    return Workspace(folder)


WAYS_OUT = [
    "../outside/secret.txt",
    "deep/../../outside/secret.txt",
    "/etc/passwd",
    "to_file",
    "to_folder/secret.txt",
    "to_nothing",
    "deep/up/outside/secret.txt",
    "deep/up/inside/../outside/secret.txt",
    "../inside-too/a.txt",
    "nul\x00byte",
    "loop",
    "loop/a.txt",
    "x" * 300,
]


@pytest.mark.parametrize("path", WAYS_OUT)
def test_no_path_leads_out(workspace: Workspace, outside: Path, path: str) -> None:
    with pytest.raises((NotAllowed, OSError)):
        workspace.read(path)
    with pytest.raises((NotAllowed, OSError)):
        workspace.create(path, "overwritten")
    assert [each.name for each in outside.iterdir()] == ["secret.txt"]
    assert (outside / "secret.txt").read_text() == "secret"


def test_a_neighbour_whose_name_begins_alike_is_outside(workspace: Workspace) -> None:
    neighbour = workspace.root.parent / "inside-too"
    neighbour.mkdir()
    with pytest.raises(NotAllowed, match="leads out"):
        workspace.inside("../inside-too/x")


def test_links_within_are_followed(workspace: Workspace) -> None:
    assert workspace.read("within") == "hello"
    assert workspace.read("deep/../a.txt") == "hello"


def test_nothing_is_overwritten(workspace: Workspace) -> None:
    for path in ("a.txt", "within"):
        with pytest.raises(NotAllowed, match="exists"):
            workspace.create(path, "other")
    assert workspace.read("a.txt") == "hello"
    workspace.create("new.txt", "1")
    with pytest.raises(NotAllowed, match="exists"):
        workspace.rename("new.txt", "a.txt")


def test_only_own_files_are_changed_or_removed(workspace: Workspace) -> None:
    with pytest.raises(NotAllowed, match="not made here"):
        workspace.append("a.txt", "more")
    with pytest.raises(NotAllowed, match="not made here"):
        workspace.rename("a.txt", "b.txt")
    with pytest.raises(NotAllowed, match="not made here"):
        workspace.remove("a.txt")
    workspace.create("deep/new.txt", "1")
    workspace.append("deep/new.txt", "2")
    workspace.rename("deep/new.txt", "newer.txt")
    assert workspace.read("newer.txt") == "12"
    workspace.clean()
    assert not (workspace.root / "newer.txt").exists()
    assert workspace.files() == ["a.txt"]


def test_pipes_and_folders_are_not_read(workspace: Workspace) -> None:
    os.mkfifo(workspace.root / "pipe")
    for path in ("pipe", "deep", "nowhere"):
        with pytest.raises(NotAllowed, match="not a file"):
            workspace.read(path)


def test_sizes_are_bounded(workspace: Workspace) -> None:
    (workspace.root / "large").write_bytes(b"x" * (MAX_BYTES + 1))
    assert len(workspace.read("large")) == MAX_BYTES
    with pytest.raises(NotAllowed, match="more than"):
        workspace.create("larger", "x" * (MAX_BYTES + 1))


def test_listing_leaves_out_links_and_hidden_files_and_has_an_end(workspace: Workspace) -> None:
    (workspace.root / ".env").write_text("x")
    (workspace.root / ".git").mkdir()
    (workspace.root / ".git" / "config").write_text("x")
    assert workspace.files() == ["a.txt"]
    for number in range(MAX_FILES + 10):
        (workspace.root / f"f{number}").touch()
    assert len(workspace.files()) == MAX_FILES
