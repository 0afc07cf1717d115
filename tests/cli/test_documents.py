"""The documents are true where that can be checked: links lead somewhere, command lines parse."""

import re
import shlex
from pathlib import Path

import pytest

from omstore.cli.main import omstore_command

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#]+)", document.read_text()):
        if not target.startswith("http"):
            assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_named_are_there(document):
    named = re.findall(r"`((?:omstore|tools|tests|docs|trainer)/[\w/.-]+)`", document.read_text())
    assert [name for name in named if not (ROOT / name).exists() and "NAME" not in name] == []


def command_lines():
    text = "\n".join(path.read_text() for path in [*DOCUMENTS, ROOT / "tools" / "demo.sh"])
    lines = re.findall(r"^(?:run )?(omstore [a-z].*?)(?:\s+#.*)?$", text, re.MULTILINE)
    return sorted(set(lines))


def test_there_are_command_lines():
    assert len(command_lines()) >= 6


@pytest.mark.parametrize("line", command_lines())
def test_command_lines_parse(line):
    _, name, *arguments = shlex.split(line)
    omstore_command.commands[name].make_context(name, arguments)


def test_decisions_are_numbered_one_after_the_other():
    numbers = [int(path.name[:4]) for path in sorted((ROOT / "docs" / "decisions").iterdir())]
    assert numbers == list(range(1, len(numbers) + 1))


def test_every_command_is_named_in_the_readme_or_changelog():
    readme = (ROOT / "README.md").read_text() + (ROOT / "CHANGELOG.md").read_text()
    for name in omstore_command.commands:
        assert f"omstore {name}" in readme
