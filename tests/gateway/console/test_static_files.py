"""The files that a browser loads: small, ours or as they were published, and from nowhere else."""

import gzip
import re
from hashlib import sha256

from meup_agent.gateway.console.templating import FOLDER, STATIC

MAX_COMPRESSED = 60 * 1024

SERVED = ("console.css", "console.js", "htmx.min.js", "icon.svg", "notices.js", "worker.js")


def test_all_of_them_are_small() -> None:
    sizes = {name: len(gzip.compress((STATIC / name).read_bytes())) for name in SERVED}
    assert sum(sizes.values()) <= MAX_COMPRESSED, sizes


def test_nothing_else_is_served() -> None:
    assert {each.name for each in STATIC.iterdir()} == {*SERVED, "htmx.LICENSE", "htmx.txt"}


def test_htmx_is_as_it_was_published() -> None:
    said = (STATIC / "htmx.txt").read_text(encoding="utf-8")
    assert sha256((STATIC / "htmx.min.js").read_bytes()).hexdigest() in said
    assert "Zero-Clause BSD" in (STATIC / "htmx.LICENSE").read_text(encoding="utf-8")


def test_no_template_has_code_or_lets_text_become_code() -> None:
    for path in sorted((FOLDER / "templates").glob("*.html")):
        source = path.read_text(encoding="utf-8")
        assert "|safe" not in source, path
        assert "autoescape" not in source, path
        assert not re.search(r"\s(hx-on|hx-vals|on\w+|style)\s*[=:]", source), path
        assert "js:" not in source, path
        # What stands in an attribute of htmx comes from us: paths, and numbers.
        for value in re.findall(r"\shx-[\w:]+=\"([^\"]*)\"", source):
            assert set(re.findall(r"{{\s*([\w.]+)", value)) <= {"base", "older"}, (path, value)


def test_script_runs_no_text() -> None:
    for script in ("console.js", "notices.js", "worker.js"):
        source = (STATIC / script).read_text(encoding="utf-8")
        for word in (
            "eval(",
            "new Function",
            "document.write",
            "outerHTML =",
            "insertAdjacentHTML",
        ):
            assert word not in source
