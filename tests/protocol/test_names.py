"""Names that people would take for each other (PROTOCOL 3)."""

import pytest

from meup_agent.protocol.wire.shown_text import NameSet

pytestmark = pytest.mark.rule("3.names.look_alike")


@pytest.mark.parametrize(
    ("known", "name"),
    [
        ("reviewer", "Reviewer"),
        ("reviewer", "rev\u0456ewer"),  # cyrillic i
        ("reviewer", "reviewer\u2060"),  # nothing to see at the end
        ("reviewer", "\uff52eviewer"),  # wide
        ("reviewer", "re\u2028viewer"),
        ("coco", "\u0441\u043e\u0441\u043e"),  # cyrillic as a whole
        ("KATE", "\u039a\u0391\u03a4\u0395"),  # greek as a whole
        ("kate", "\u039a\u0391\u03a4\u0395"),
        ("tools", "too1s"),
        ("tools", "tooIs"),
        ("tools", "t0ols"),
        ("Iris", "iris"),
        ("Iris", "lris"),
        ("re-viewer", "re\u2010viewer"),
        ("andr\u00e9", "andre\u0301"),
        ("stra\u00dfe", "strasse"),
        ("\u0441\u043e\u0441\u043e", "coco"),
        ("worker", "system:gatewаy"),
        ("worker", "System"),
    ],
)
def test_a_name_that_looks_like_another_is_named(known: str, name: str) -> None:
    problem = NameSet([known]).problem(name)
    assert "looks like" in problem or "several scripts" in problem


@pytest.mark.parametrize("name", ["rev\u0454ewer", "tools\u13aa", "\u0430\u03b2"])
def test_the_letters_of_a_name_are_of_one_script(name: str) -> None:
    """Also where no table says what a letter looks like."""
    assert "several scripts" in NameSet().problem(name)


@pytest.mark.parametrize(
    "name",
    [
        "reviewer",
        "reviewer-2",
        "reviewer-3",
        "viewer",
        "pr\u00fcfer",
        "prufer",
        "\u0440\u0435\u0446\u0435\u043d\u0437\u0435\u043d\u0442",
        "\u6f22\u5b57\u304b\u306a-agent",
        "\U0001f916",
    ],
)
def test_other_names_are_free(name: str) -> None:
    assert NameSet(["reviewer-1", "tools", "pruefer"]).problem(name) == ""
    assert NameSet([name]).problem(name) == ""
