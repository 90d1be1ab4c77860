"""The command `omnistage`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from omnistage import __version__
from omnistage.config import read_models
from omnistage.errors import OmnistageError
from omnistage.launcher import logs as log_reading
from omnistage.launcher.control import ask
from omnistage.launcher.display import display_for
from omnistage.launcher.faults import LauncherError
from omnistage.launcher.folder import DataFolder
from omnistage.launcher.internal import BUS_PORT, TENSOR_PORT, Internal, environment_lines
from omnistage.launcher.models_check import explain
from omnistage.launcher.parity import compare_with_reference
from omnistage.launcher.say import address_given, format_of
from omnistage.launcher.say import say as speak
from omnistage.launcher.state import read_state
from omnistage.launcher.status import status_lines, status_table
from omnistage.launcher.up import UpOptions, up_detached
from omnistage.launcher.up import down as stop_system
from omnistage.launcher.up import up as start_system
from omnistage.parity import table_lines

app = typer.Typer(
    name="omnistage",
    help="Serve omni-modality models behind the OpenAI API, as services on a message broker.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
models_app = typer.Typer(
    help="Look at models files, which say what is served.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(models_app, name="models")

_STATUS_EVERY_S = 1.0

Data = Annotated[
    Path,
    typer.Option("--data", envvar="OMNISTAGE_DATA", help="The system's data folder; also says which system is meant."),
]
_DATA = Path("data")


def parse_scale(values: list[str]) -> dict[str, int]:
    """["talker=2,codec=3", "gateway=1"] -> counts by service. Raises LauncherError for anything else."""
    counts: dict[str, int] = {}
    for part in (part.strip() for value in values for part in value.split(",")):
        service, equals, count = part.partition("=")
        if not equals or not service or not count.isdecimal():
            raise LauncherError(f"{part!r} was given where SERVICE=COUNT is expected, e.g. talker=2")
        counts[service] = int(count)
    return counts


def interpreter(path: Path) -> str:
    """Absolute path of a Python interpreter, links kept: an environment is known by them.

    Raises:
        LauncherError: there is no program there.
    """
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - Path.resolve would follow the links
    if not absolute.is_file() or not os.access(absolute, os.X_OK):
        raise LauncherError(f"{path} is no Python interpreter")
    return str(absolute)


@app.command()
def up(
    port: Annotated[
        int, typer.Option(envvar="OMNISTAGE_PORT", min=0, max=65535, help="Port of the HTTP API; 0 takes a free one.")
    ] = 8000,
    host: Annotated[
        str, typer.Option(envvar="OMNISTAGE_HOST", help="Address to listen on; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    models: Annotated[
        list[str] | None,
        typer.Option(
            envvar="OMNISTAGE_MODELS",
            help="Models file; further ones (again, or by commas) are laid over it. Default: deploy/models.yaml.",
        ),
    ] = None,
    data: Data = _DATA,
    scale: Annotated[
        list[str] | None, typer.Option(help="Instances of services, e.g. talker=2,codec=2; others have one.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds within which every model must be ready.")] = 300.0,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once everything is ready; go on in the background.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Say only when it is ready, and what went wrong.")
    ] = False,
    internal_host: Annotated[
        str,
        typer.Option(
            envvar="OMNISTAGE_INTERNAL_HOST",
            help="Address of this machine at which services on other hosts reach broker and tensor server.",
        ),
    ] = "",
    bus_port: Annotated[
        int, typer.Option(min=0, max=65535, help="The broker's port there; 0 takes a free one.")
    ] = BUS_PORT,
    tensor_port: Annotated[
        int, typer.Option(min=0, max=65535, help="The tensor server's port there; 0 takes a free one.")
    ] = TENSOR_PORT,
) -> None:
    """Start the system: broker, tensor server and all services that the models need.

    Waits until every model is ready, prints the address and three commands to try, and runs until INT (Ctrl-C), TERM
    or `omnistage down`. Then everything stops within five seconds and only the data folder stays. A process that dies
    is started again. Exits with 1 if something cannot start.
    """
    files = tuple(Path(part) for value in models or [] for part in value.split(",") if part)
    internal = Internal(internal_host, bus_port, tensor_port)
    options = UpOptions(host, port, files, data, parse_scale(scale or []), timeout, quiet, internal)
    display = display_for(Console(), quiet=quiet)
    if detach:
        arguments = [argument for argument in sys.argv[1:] if argument not in ("--detach", "-d")]
        up_detached(options, arguments, display)
    else:
        start_system(options, display)


@app.command()
def down(data: Data = _DATA) -> None:
    """Stop the running system and wait until it is gone; remove what is left of one whose launcher was killed."""
    print(stop_system(data))


@app.command()
def status(
    data: Data = _DATA,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object, once.")] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Print plain lines, once; without a terminal that is the default.")
    ] = False,
) -> None:
    """Show every process: service, instance, pid, version, models, slots, queue and requests in flight.

    On a terminal the table is live until Ctrl-C. `queue` counts work that waits at the broker for a free slot.
    """
    control = read_state(DataFolder(data.resolve())).control
    if as_json:
        print(json.dumps(ask(control, "status"), indent=2))
        return
    console = Console()
    if once or not console.is_terminal:
        print("\n".join(status_lines(ask(control, "status"))))
        return
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(status_table(ask(control, "status")), refresh=True)
                time.sleep(_STATUS_EVERY_S)
    except KeyboardInterrupt:
        return


@app.command()
def environment(data: Data = _DATA) -> None:
    """Print what a service on another host must be told, as lines of an environment file. They hold a password.

    For a system that was started with --internal-host.
    """
    print("\n".join(environment_lines(read_state(DataFolder(data.resolve())))))


@app.command()
def scale(
    counts: Annotated[list[str], typer.Argument(metavar="SERVICE=COUNT...", help="e.g. talker=2")],
    data: Data = _DATA,
) -> None:
    """Run more or fewer instances of a service, while streams go on.

    Returns once the new instances are ready. Instances that are taken away finish what they run, for at most 30 s.
    """
    control = read_state(DataFolder(data.resolve())).control
    for service, count in parse_scale(counts).items():
        before = ask(control, "scale", service=service, count=count)["before"]
        print(f"{service}: {before} -> {count}")


@app.command()
def restart(
    services: Annotated[list[str], typer.Argument(metavar="SERVICE...", help="e.g. talker codec")],
    python: Annotated[
        Path | None,
        typer.Option(
            help="Interpreter of the environment that the new instances run in, e.g. next/.venv/bin/python; "
            "the same as before when left out."
        ),
    ] = None,
    data: Data = _DATA,
) -> None:
    """Replace the instances of services by new ones, one after the other, while streams go on.

    This is how a new version or a changed models file comes into use. An old instance takes no more work once the new
    one is ready, and finishes what it runs, for at most 30 s; what runs longer is handed over. A new instance that does
    not become ready is taken away again, and the old ones stay.
    """
    given = {} if python is None else {"python": interpreter(python)}
    control = read_state(DataFolder(data.resolve())).control
    for service in services:
        names = [process["name"] for process in ask(control, "status")["processes"] if process["service"] == service]
        if not names:
            raise LauncherError(f"there is no service {service!r} here")
        for name in names:
            print(f"{name} -> {ask(control, 'replace', name=name, **given)['by']}", flush=True)


@app.command()
def logs(
    which: Annotated[
        str | None,
        typer.Argument(
            metavar="[SERVICE]", help="A service (talker) or one process of it (talker-1); all when left out."
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines until Ctrl-C.")] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="How many of the last lines of each process to show.")
    ] = 50,
    earlier: Annotated[bool, typer.Option("--all", help="Also what earlier runs of the system wrote.")] = False,
    data: Data = _DATA,
) -> None:
    """Show what the processes of this run wrote, or of the last one when nothing runs any more.

    Logs lie in DATA/logs, one file per process, at most 15 MiB each with its predecessors.
    """
    folder = DataFolder(data.resolve()).logs
    files = log_reading.log_files(folder, which, this_run=not earlier)
    if not files:
        older = " of this run; --all shows those of earlier ones" if log_reading.log_files(folder, which) else ""
        raise LauncherError(f"{folder} has no log" + (f" of {which!r}" if which else "") + older)
    width = max(len(name) for name in files)
    for name, path in files.items():
        for line in log_reading.tail(path, lines, 0 if earlier else log_reading.run_start(path)):
            print(f"{name:<{width}} | {line}")
    if not follow:
        return
    try:
        for name, line in log_reading.follow(folder, which):
            print(f"{name:<{width}} | {line}", flush=True)
    except KeyboardInterrupt:
        return


@app.command()
def say(
    text: Annotated[str, typer.Argument(help="What to say; - reads it from standard input.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write, its suffix says the format; - is standard output.")
    ],
    voice: Annotated[str, typer.Option(help="One of the model's voices.")] = "alloy",
    audio_format: Annotated[
        str | None, typer.Option("--format", help="mp3, opus, aac, flac, wav or pcm; wav on standard output.")
    ] = None,
    model: Annotated[str, typer.Option(help="A served model or one of its aliases.")] = "tts-1",
    speed: Annotated[float | None, typer.Option(min=0.25, max=4.0, help="1.0 is the voice's own pace.")] = None,
    url: Annotated[str | None, typer.Option(help="Address of a system elsewhere, e.g. http://host:8000.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="Key, if the system asks for one.")
    ] = None,
    data: Data = _DATA,
) -> None:
    """Say a text and write the speech to a file, through the HTTP API of the running system or of another one."""
    address = address_given(url) if url else read_state(DataFolder(data.resolve())).address
    file = None if str(output) == "-" else output
    request: dict[str, object] = {
        "input": sys.stdin.read() if text == "-" else text,
        "model": model,
        "voice": voice,
        "response_format": format_of(file, audio_format),
    }
    if speed is not None:
        request["speed"] = speed
    columns = (SpinnerColumn(), TextColumn("speaking: {task.completed:.0f} kB"), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("")
        spoken = speak(
            address,
            request,
            file,
            api_key=api_key,
            progress=lambda nbytes: progress.update(task, completed=nbytes / 1000),
        )
    print(f"{output}: {spoken.summary()}", file=sys.stderr if file is None else sys.stdout)


@models_app.command("check")
def check(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE...", help="A models file and the overlays laid over it. Default: deploy/models.yaml."
        ),
    ] = None,
) -> None:
    """Explain a models file: every model with its names, pipeline, nodes and voices, every engine with its checkpoint.

    Exits with 1 and names all faults if the file is wrong, or an engine or checkpoint is not there; entries that are
    wrong are not explained. Warns of voices that an engine does not have.
    """
    models, faults = read_models(files or ())
    explanation = explain(models)
    print("\n".join(explanation.lines))
    print()
    for warning in explanation.warnings:
        print(f"warning: {warning}")
    faults += explanation.faults
    for fault in faults:
        print(f"fault: {fault}")
    if faults:
        raise typer.Exit(1)
    print("no faults")


@app.command()
def parity(
    folder: Annotated[Path, typer.Argument(help="Fixtures and checkpoints in the golden layout.")],
) -> None:
    """Compare what the services' models compute with what the reference implementations recorded.

    FOLDER holds, for a model family or one level above several, checkpoints and a folder `fixtures` of recorded
    tensors. Prints part, shape, largest error and allowed error of each. Exits with 1 on a miss.
    """
    rows = compare_with_reference(folder)
    print("\n".join(table_lines(rows)))
    if not all(row.passed for row in rows):
        raise typer.Exit(1)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"omnistage {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point: errors of ours are one line (or a few) on standard error, and exit code 1."""
    try:
        app()
    except OmnistageError as error:
        print(f"omnistage: {error.message}", file=sys.stderr)
        raise SystemExit(1) from None
