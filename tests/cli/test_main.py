"""`sluicegate` itself: its help, its version, and that it loads no command that is not used."""

import subprocess
import sys
from pathlib import Path

import click
import pytest

import sluicegate
from sluicegate.cli.main import COMMANDS, main
from sluicegate.cli.main import sluicegate as group
from tests.cli.folders import Folder

PROMPTLY = 30.0
SCRIPT = Path(sys.executable).with_name("sluicegate")


def ended(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, capture_output=True, text=True, timeout=PROMPTLY, check=False)


@pytest.mark.parametrize("command", [[str(SCRIPT)], [sys.executable, "-m", "sluicegate"]], ids=["script", "module"])
def test_the_command_prints_its_version_and_its_commands(command: list[str]) -> None:
    version = ended(*command, "--version")
    assert (version.returncode, version.stdout, version.stderr) == (0, f"sluicegate {sluicegate.__version__}\n", "")
    help_ = ended(*command, "--help")
    assert (help_.returncode, help_.stderr) == (0, "")
    assert help_.stdout.startswith("Usage: sluicegate [OPTIONS] COMMAND")
    for name, line in COMMANDS.items():
        assert name in help_.stdout and line.split(",")[0] in help_.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["teapot"], "no such command 'teapot'. `sluicegate --help` shows what is right."),
        (["--teapot"], "no such option '--teapot'. `sluicegate --help` shows what is right."),
        (["call"], "missing argument 'SERVER__TOOL'. `sluicegate call --help` shows what is right."),
        (["call", "a__b", "--c", "d"], "there is no option --c. If c is an argument of the tool, write c=d"),
        (
            ["serve", "x.py", "--port", "66000"],
            "invalid value for '--port': 66000 is not in the range 0<=x<=65535. `sluicegate serve --help` shows what is"
            " right.",
        ),
    ],
)
def test_a_wrong_command_line_is_status_2_and_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["sluicegate", *words])
    with pytest.raises(SystemExit) as left:
        main()
    shown = capsys.readouterr()
    assert (left.value.code, shown.out, shown.err) == (2, "", f"sluicegate: {sentence}\n")


def test_a_command_line_without_words_shows_the_help() -> None:
    done = ended(sys.executable, "-m", "sluicegate")
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("Usage: sluicegate")


def test_a_command_that_is_nearly_there_is_named() -> None:
    said = ended(sys.executable, "-m", "sluicegate", "serv").stderr
    assert "Did you mean 'serve'? `sluicegate --help` shows" in said


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_of_a_command_what_its_own_help_says(name: str) -> None:
    with click.Context(group) as context:
        command = group.get_command(context, name)
        assert command is not None and command.name == name
        assert command.help is not None and command.help.startswith(f"{COMMANDS[name]}\n")
        assert "Examples:" in command.help


def commands_in(command: click.Command, context: click.Context) -> list[tuple[click.Command, click.Context]]:
    """A command with all commands in it."""
    found = [(command, context)]
    if not isinstance(command, click.Group):
        return found
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        found += commands_in(inner, click.Context(inner, info_name=name, parent=context, terminal_width=80))
    return found


def test_help_fits_into_eighty_columns_and_is_not_cut_off() -> None:
    for command, context in commands_in(group, click.Context(group, info_name="sluicegate", terminal_width=80)):
        _, *lines = command.get_help(context).splitlines()
        assert [line for line in lines if len(line) > 80 or line.endswith("...")] == []


def test_help_loads_no_command_and_nothing_heavy() -> None:
    code = """
import sys
from sluicegate.cli.main import main
sys.argv = ["sluicegate", "--help"]
try:
    main()
except SystemExit:
    heavy = {"asyncio", "msgspec", "jiter", "rich", "uvloop", "sluicegate.cli.serve"} & set(sys.modules)
    sys.exit(f"loaded: {heavy}" if heavy else 0)
"""
    done = ended(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "\n"),
        (click.UsageError("so it is"), 2, "sluicegate: so it is\n"),
        (click.exceptions.Exit(7), 7, ""),
    ],
)
def test_how_a_command_ends_is_its_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, status: int, said: str
) -> None:
    @click.command()
    def ending() -> None:
        raise raised

    monkeypatch.setattr("sluicegate.cli.main.Commands.get_command", lambda *_: ending)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    monkeypatch.setattr(sys, "argv", ["sluicegate", "ending"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == status
    assert capsys.readouterr().err.endswith(said)


def test_help_is_shown_for_the_word_help_too(folder: Folder) -> None:
    assert folder.invoke("help").stdout == folder.invoke("--help").stdout != ""
    assert folder.invoke("help", "serve").stdout == folder.invoke("serve", "--help").stdout != ""
