"""The command line: help, and what is refused before anything is done."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omnistage.config import load_models
from omnistage.launcher.cli import app, parse_scale
from omnistage.launcher.examples import examples
from omnistage.launcher.faults import LauncherError, PortInUse
from omnistage.launcher.listening import address_of, free_port, listen

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
    assert str(result.exception) == f"nothing runs from {tmp_path / 'none'}"


def test_logs_that_do_not_exist(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["logs", "talker", "--data", str(tmp_path)])
    assert str(result.exception) == f"{tmp_path / 'logs'} has no log of 'talker'"


def test_logs_are_shown_when_nothing_runs(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "talker-1.log").write_text("one\ntwo\nthree\n")
    (tmp_path / "logs" / "nats.log").write_text("four\n")
    result = CliRunner().invoke(app, ["logs", "-n", "2", "--data", str(tmp_path)])
    assert result.output == "nats     | four\ntalker-1 | two\ntalker-1 | three\n"


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
    text = examples("http://127.0.0.1:1234", load_models())
    assert text.count("http://127.0.0.1:1234/v1") == 3
    assert text.count("curl ") == 2
    assert '"model": "hibari-heart", "voice": "heart"' in text
    assert 'OpenAI(base_url="http://127.0.0.1:1234/v1"' in text
