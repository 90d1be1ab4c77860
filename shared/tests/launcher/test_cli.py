"""The command line: help, and what is refused before anything is done."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omnistage.config import load_models
from omnistage.launcher.cli import app, parse_scale
from omnistage.launcher.examples import examples
from omnistage.launcher.faults import LauncherError, PortInUse
from omnistage.launcher.hints import hint, program
from omnistage.launcher.listening import address_of, free_port, listen
from omnistage.launcher.logs import mark_run

COMMANDS = ("up", "down", "status", "scale", "logs", "say", "models", "models check")


def help_of(command: str) -> str:
    result = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"})
    assert result.exit_code == 0
    return result.output


def test_all_commands_are_listed_with_what_they_do() -> None:
    listed = help_of("")
    for command in COMMANDS[:-1]:
        line = next(line for line in listed.splitlines() if line.strip().startswith(command + " "))
        assert len(line.split()) > 4


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_and_argument_is_explained(command: str) -> None:
    text = help_of(command)
    paragraphs = text.split("\n\n")
    assert len(paragraphs[1].split()) >= 6, "a sentence that says what the command does"
    for section in paragraphs:
        if not section.startswith(("Options:", "Arguments:")):
            continue
        entries = [line for line in section.splitlines()[1:] if line.startswith("  ") and not line.startswith("   ")]
        assert entries
        for entry in entries:
            name, _, explanation = entry.strip().partition("  ")
            assert len(explanation.split()) >= 3 or name.startswith(("--help", "--version")), entry


def test_help_names_the_environment() -> None:
    text = help_of("up")
    for variable in ("OMNISTAGE_PORT", "OMNISTAGE_HOST", "OMNISTAGE_MODELS", "OMNISTAGE_DATA"):
        assert variable in text
    assert "8000" in text


def test_scale_arguments() -> None:
    assert parse_scale(["talker=2,codec=3", "gateway=1"]) == {"talker": 2, "codec": 3, "gateway": 1}
    for wrong in ("talker", "talker=", "=2", "talker=two", "talker=-1", ""):
        with pytest.raises(LauncherError, match="SERVICE=COUNT"):
            parse_scale([wrong])


@pytest.mark.parametrize("command", ["down", "status", "scale talker=2", "say hello -o f.wav"])
def test_without_a_system_commands_say_so(command: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--data", str(tmp_path / "none")])
    assert result.exit_code == 1
    told = f"nothing runs from {tmp_path / 'none'}; name the data folder of another system with --data"
    assert str(result.exception) == told


def test_logs_that_do_not_exist(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["logs", "talker", "--data", str(tmp_path)])
    assert str(result.exception) == f"{tmp_path / 'logs'} has no log of 'talker'"


def test_logs_are_shown_when_nothing_runs(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "talker-1.log").write_text("one\ntwo\nthree\n")
    (tmp_path / "logs" / "nats.log").write_text("four\n")
    result = CliRunner().invoke(app, ["logs", "-n", "2", "--data", str(tmp_path)])
    assert result.output == "nats     | four\ntalker-1 | two\ntalker-1 | three\n"


def test_logs_are_those_of_this_run_unless_asked(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "talker-1.log").write_text("before\n")
    (logs / "talker-2.log").write_text("never again\n")
    mark_run(logs)
    for arguments, told in (
        (["talker"], f"{logs} has no log of 'talker' of this run; --all shows those of earlier ones"),
        (["dit"], f"{logs} has no log of 'dit'"),
    ):
        result = CliRunner().invoke(app, ["logs", *arguments, "--data", str(tmp_path)])
        assert str(result.exception) == told
    with (logs / "talker-1.log").open("a") as file:
        file.write("now\n")
    result = CliRunner().invoke(app, ["logs", "talker", "--data", str(tmp_path)])
    assert result.output == "talker-1 | now\n"
    result = CliRunner().invoke(app, ["logs", "talker", "--all", "--data", str(tmp_path)])
    assert result.output == "talker-1 | before\ntalker-1 | now\ntalker-2 | never again\n"


def test_hints_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "a b" / "bin" / "omnistage"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    python = str(command.with_name("python"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert program(str(command), "/usr/bin/python") == f"'{command}'"
    assert program("/x/omnistage/launcher/__main__.py", python) == f"'{command}'"
    assert program("/x/__main__.py", str(tmp_path / "python")) == f"{tmp_path / 'python'} -m omnistage.launcher"
    monkeypatch.chdir(tmp_path)
    assert program("a b/bin/omnistage", python) == "'a b/bin/omnistage'"
    monkeypatch.setenv("PATH", f"{command.parent}:/bin")
    assert program(str(command), python) == "omnistage"
    assert hint("down", tmp_path / "data").endswith(" down")
    assert hint("down", tmp_path / "other").endswith(f" down --data {tmp_path / 'other'}")


def test_a_port_is_taken_once() -> None:
    with listen("127.0.0.1", 0) as first:
        assert address_of(first).startswith("http://127.0.0.1:")
        assert first.get_inheritable()
        with pytest.raises(PortInUse, match="is used by another program"):
            listen("127.0.0.1", first.getsockname()[1])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", free_port()))


def test_hosts_that_are_not_ours() -> None:
    with pytest.raises(LauncherError, match="no address of this machine"):
        listen("no-such-host.invalid", 0)
    with pytest.raises(LauncherError, match="cannot listen on"):
        listen("192.0.2.1", 0)


def test_examples_name_what_is_served() -> None:
    text = examples("http://127.0.0.1:1234", load_models(), Path("/srv/data"))
    assert text.count("http://127.0.0.1:1234/v1") == 3
    assert text.count("curl ") == 2
    assert '"model": "hibari-heart", "voice": "heart"' in text
    assert "omnistage down --data /srv/data`" in text
    assert 'OpenAI(base_url="http://127.0.0.1:1234/v1"' in text


EXAMPLES = (
    "from pathlib import Path; from omnistage.config import load_models;"
    "from omnistage.launcher.examples import examples;"
    "print(examples('http://h', load_models(), Path('data')).splitlines()[-1])"
)


def take_terminal() -> None:
    """Make standard input the terminal that controls this process."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_ctrl_c_is_offered_only_where_a_terminal_controls_the_process() -> None:
    command = [sys.executable, "-c", EXAMPLES]
    alone = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True, timeout=60)
    assert alone.stdout.startswith("Stop it with `")
    ours, theirs = os.openpty()
    try:
        controlled = subprocess.run(
            command, stdin=theirs, stdout=subprocess.PIPE, text=True, check=True, timeout=60,
            start_new_session=True, preexec_fn=take_terminal,
        )  # fmt: skip
    finally:
        os.close(ours)
        os.close(theirs)
    assert controlled.stdout.startswith("Stop it with Ctrl-C or `")
