"""Every command and every option is documented, and the examples are what the commands take."""

import shlex
import subprocess
import sys

import click
import pytest

from omstore.cli.main import omstore_command
from omstore.convert import options
from omstore.encode import ENCODINGS
from omstore.legacy.mapping import MAP_FIELDS

COMMANDS = list(omstore_command.commands.values())


def test_these_are_the_commands():
    names = ["peek", "convert", "build", "stats", "verify", "compact", "export", "versions", "gc", "rollback"]
    assert [command.name for command in COMMANDS] == names


def examples(command):
    lines = command.help.split("Examples:")[1].splitlines()
    return [line.strip() for line in lines if line.strip()]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_command_has_a_sentence_and_examples(command):
    assert command.help.splitlines()[0].endswith(".")
    assert 0 < len(command.short_help) <= 60
    assert command.short_help.endswith(".")
    assert examples(command)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_option_is_explained_with_its_default(command):
    shown = command.get_help(click.Context(command, info_name=command.name))
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            assert parameter.name in command.help.lower() + shown.lower()
            continue
        assert parameter.help, parameter.name
        assert parameter.help[0].isupper()
        assert parameter.help.endswith("."), parameter.name
        assert max(parameter.opts, key=len) in shown
        if not parameter.is_flag and not parameter.required:
            assert parameter.show_default or parameter.default is not None, parameter.name
    assert {"json", "quiet", "debug"} <= {parameter.name for parameter in command.params}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_examples_parse(command):
    for line in examples(command):
        program, name, *arguments = shlex.split(line)
        assert (program, name) == ("omstore", command.name)
        command.make_context(name, arguments)  # raises a UsageError where an example is wrong


def test_choices_are_those_of_the_library():
    convert = omstore_command.commands["convert"]
    by_name = {parameter.name: parameter for parameter in convert.params}
    assert tuple(by_name["rows"].type.choices) == ("auto", *ENCODINGS)
    for name in MAP_FIELDS:
        assert name in by_name["overrides"].help
    defaults = options.ConvertOptions()
    assert by_name["rows"].default == defaults.rows
    assert convert.make_context("convert", ["x"]).params["max_ram"] == defaults.max_ram


def test_help_is_quick_because_nothing_heavy_is_loaded():
    script = (
        "import sys; from omstore.cli import main; code = main(['--help']);"
        "heavy = {'numpy', 'numba', 'zarr', 'tqdm', 'torch'} & set(sys.modules);"
        "print(code, sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "0 []"
    assert "convert" in done.stdout


def test_version_says_tool_and_schema(run):
    assert run("--version").out == "omstore 0.1.0 (store schema 2)\n"
