"""Names and docstrings: of classes one of each name; the thing first; modules that are there."""

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import meup_agent

PACKAGE = Path(meup_agent.__file__).parent
TESTS = Path(__file__).parent

UNFIT = (
    *("How", "What", "When", "Where", "Whether", "Which", "Who", "Whoever", "Whom", "Whose", "Why"),
    *("Nobody", "Somebody"),
)
"""First words of a docstring that leave open which thing it describes."""

# Read as text: syntax trees of a thousand files took four seconds.
A_CLASS = re.compile(r"^ *class (\w+)", re.MULTILINE)
A_MODULE = re.compile(r":mod:`~?\.?([\w.]+)`")
AN_UNFIT_DOCSTRING = re.compile(rf'^ *r?"""((?:{"|".join(UNFIT)})\b.*)', re.MULTILINE)


A_DOCSTRING = re.compile(r'r?"""(.*?)"""', re.DOTALL)
A_VAGUE_WORD = re.compile(r"\b(?:any|every|no|some)body\b|\bwhoever\b", re.IGNORECASE)
"""Words that leave open if a participant, a sender, a caller or a gateway is meant."""

A_BARE_VERB = re.compile(r"def (_?(?:look|say|see_to|tell|do|go))\(")
"""Verbs that tell no reader the effect of a function."""


OLD_CLASSES = (
    *("Answers", "Arrival", "Arrivals", "Arriving", "Audience", "Beside", "CatchUp", "Doors"),
    *("Exchanges", "Expired", "Fulfilled", "GatewaysWords", "Guesses", "Handling", "Issued"),
    *("Ledger", "Line", "Link", "Listeners", "Memory", "Onlooker", "OpenExchanges", "Outgoing"),
    *("OwnProposal", "Pace", "Reading", "Recent", "Rejected", "Replies", "Served", "Situation"),
    *("Slots", "SpaceHost", "Standing", "Told", "Translations", "Turn", "Visit", "Voice"),
    *("Wakeup", "Withdrawn"),
)
"""Names of classes and aliases that were given up, since no engineer of the field expects them."""

OLD_MODULES = (
    *("arrival", "arrivals", "arriving", "audience", "beside", "doors", "host", "ledger"),
    *("listeners", "moments", "reaching", "saying", "standing", "tap", "telling", "wording"),
)
"""Names of modules that were given up likewise."""

OLD_FUNCTIONS = ("agents_stay_put", "not_allowed", "not_from", "place_given_free")
"""Names of functions that were given up likewise."""

AN_OLD_NAME = re.compile(
    rf"^(?: *class )?_?({'|'.join(OLD_CLASSES)})\b(?=[(:\[]| = )"
    rf"|def _?({'|'.join(OLD_FUNCTIONS)})\(",
    re.MULTILINE,
)

MAX_LINES = 500

A_GERUND = re.compile(r"^( *)(?:async )?def _?([a-z]+ing)\(", re.MULTILINE)
NO_GERUNDS = ("nothing", "reasoning", "string", "heading", "greeting", "ending")


def given_up(sources: dict[str, str]) -> list[str]:
    """Modules, classes, aliases and functions that have a name again which was given up."""
    found = [
        f"{file}: {hit[1] or hit[2]}"
        for file, source in sources.items()
        for hit in AN_OLD_NAME.finditer(source)
    ]
    return found + [file for file in sources if Path(file).stem in OLD_MODULES]


def gerunds(sources: dict[str, str]) -> list[str]:
    """Functions that are called by a gerund alone, but for properties and blocks of `with`."""
    found: list[str] = []
    for file, source in sources.items():
        for hit in A_GERUND.finditer(source):
            above = source[: hit.start()].rstrip("\n").rpartition("\n")[2].strip()
            if hit[2] not in NO_GERUNDS and above not in NOT_CALLED_BARE:
                found.append(f"{file}: {hit[2]}")
    return found


NOT_CALLED_BARE = ("@property", "@contextmanager", "@asynccontextmanager")


def bare(sources: dict[str, str]) -> list[str]:
    """Functions whose name does not tell their effect."""
    return [
        f"{file}: {found[1]}"
        for file, source in sources.items()
        for found in A_BARE_VERB.finditer(source)
    ]


def repeated(sources: dict[str, str]) -> dict[str, list[str]]:
    """Names of classes that several places define, with these places."""
    places: dict[str, list[str]] = defaultdict(list)
    for file, source in sources.items():
        for found in A_CLASS.finditer(source):
            line = source.count("\n", 0, found.start(1)) + 1
            places[found[1]].append(f"{file}:{line}")
    return {name: found for name, found in places.items() if len(found) > 1}


def unfit(sources: dict[str, str]) -> list[str]:
    """First lines of docstrings that begin with an unfit word."""
    return [
        f"{file}: {line}"
        for file, source in sources.items()
        for line in AN_UNFIT_DOCSTRING.findall(source)
    ]


def vague(sources: dict[str, str]) -> list[str]:
    """Vague words of docstrings."""
    return [
        f"{file}: {word}"
        for file, source in sources.items()
        for text in A_DOCSTRING.findall(source)
        for word in A_VAGUE_WORD.findall(text)
    ]


def missing(sources: dict[str, str]) -> list[str]:
    """Modules that docstrings name, absolutely or in their own folder, and that are not there."""
    modules = {file.removesuffix(".py").removesuffix("/__init__") for file in sources}
    return [
        f"{file}: {name}"
        for file, source in sources.items()
        for name in A_MODULE.findall(source)
        if (name if name.startswith(PACKAGE.name) else f"{file.rpartition('/')[0]}.{name}").replace(
            ".", "/"
        )
        not in modules
    ]


def alike(files: Iterable[str]) -> list[tuple[str, str]]:
    """Modules whose names differ by their ending; commands are named by what users type."""
    names = {Path(each.removesuffix("/__init__.py")).stem for each in files}
    return sorted(
        (name, longer)
        for name in names
        for ending in ("s", "es", "ed", "er", "ing")
        for longer in {name + ending, name.removesuffix("e") + ending}
        if longer in names
    )


def sources(folders: Iterable[Path]) -> dict[str, str]:
    return {
        str(file.relative_to(folder.parent)): file.read_text(encoding="utf-8")
        for folder in folders
        for file in sorted(folder.rglob("*.py"))
    }


def test_no_two_classes_have_one_name() -> None:
    assert repeated(sources([PACKAGE])) == {}


def test_functions_are_called_by_their_effect() -> None:
    assert bare(sources([PACKAGE])) == []


def test_names_that_were_given_up_stay_so() -> None:
    assert given_up(sources([PACKAGE, TESTS])) == []


def test_no_function_is_called_by_a_gerund() -> None:
    assert gerunds(sources([PACKAGE])) == []


def test_no_file_is_too_long_to_be_read() -> None:
    longest = {
        file: lines
        for file, source in sources([PACKAGE, TESTS]).items()
        if (lines := source.count("\n")) > MAX_LINES
    }
    # One list each, which nobody reads from its beginning to its end.
    assert longest.keys() == {"meup_agent/errors.py", "tests/conformance/lines.py"}


def test_a_name_that_was_given_up_is_found() -> None:
    wrong = {"a.py": "class Voice:\nTold = int\nx.Line = 3\ndef" + " not_from():", "b/doors.py": ""}
    assert given_up(wrong) == ["a.py: Voice", "a.py: Told", "a.py: not_from", "b/doors.py"]


def test_a_gerund_is_found() -> None:
    wrong = "def telling(): ...\n@property\ndef waiting(self): ...\ndef telling_of(): ...\n"
    assert gerunds({"a.py": wrong}) == ["a.py: telling"]


def test_a_bare_verb_is_found() -> None:
    assert bare({"a.py": "def _look(x): ...\ndef look_up(x): ...\n"}) == ["a.py: _look"]


def test_docstrings_begin_with_the_thing() -> None:
    found = sources([PACKAGE, TESTS, TESTS.parent / "examples"])
    assert len(found) > 500
    assert unfit(found) == []


def test_docstrings_say_who_is_meant() -> None:
    assert vague(sources([PACKAGE])) == []


def test_a_vague_word_is_found() -> None:
    assert vague({"a.py": '"' * 3 + "Tell nobody." + '"' * 3}) == ["a.py: nobody"]


def test_no_two_modules_differ_by_their_ending() -> None:
    files = (each for each in sources([PACKAGE]) if "/commands/" not in each)
    # Users import `adapters.approvals` by its name, as its page says.
    assert alike(files) == [("approval", "approvals")]


def test_modules_that_differ_by_their_ending_are_found() -> None:
    files = ["a/reason.py", "b/reasons.py", "b/fold.py", "folding.py", "a/code.py", "b/coder.py"]
    assert alike(files) == [("code", "coder"), ("fold", "folding"), ("reason", "reasons")]


def test_modules_that_docstrings_name_are_there() -> None:
    assert missing(sources([PACKAGE])) == []


def test_a_module_that_is_not_there_is_found() -> None:
    wrong = {"meup_agent/a/__init__.py": ":mod:`.b`, :mod:`c`", "meup_agent/a/b.py": ""}
    assert missing(wrong) == ["meup_agent/a/__init__.py: c"]


def test_a_second_class_of_a_name_is_found() -> None:
    twice = {"a.py": "class Limits: ...", "b.py": "\nclass Limits: ...", "c.py": "class Other: ..."}
    assert repeated(twice) == {"Limits": ["a.py:1", "b.py:2"]}


def test_an_unfit_docstring_is_found() -> None:
    wrong = {"a.py": '"' * 3 + "What is said." + '"' * 3 + '\n"""Sends it."""\n'}
    assert unfit(wrong) == ['a.py: What is said."""']
