"""The demonstration: a system on a free port that speaks and answers through the OpenAI SDK, and is stopped."""

from __future__ import annotations

import base64
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
from rich.console import Console

from omnistage.config import load_models
from omnistage.errors import OmnistageError
from omnistage.launcher.control import ask
from omnistage.launcher.display import Display, display_for
from omnistage.launcher.examples import first_of
from omnistage.launcher.faults import LauncherError, StartFailed
from omnistage.launcher.folder import DataFolder
from omnistage.launcher.state import read_state
from omnistage.launcher.up import fault_of

SENTENCE = "Hello! I am Omnistage, and every word of this was made on your own machine."
QUESTION = "What is the capital of France?"
_RATE_HZ = 24_000
_BYTES_PER_S = _RATE_HZ * 2
"""What the API calls pcm and pcm16: 24 kHz, 16 bit, mono."""

_STOP_S = 10.0
_LOOK_S = 0.2


@dataclass
class Heard:
    """Audio as it came in: when the first of it and when the last, in seconds since the request."""

    pcm: bytearray
    first_s: float
    total_s: float

    def summary(self) -> str:
        length = len(self.pcm) / _BYTES_PER_S
        return (
            f"{length:.2f} s of audio, first audio after {self.first_s * 1000:.0f} ms, "
            f"real-time factor {self.total_s / length:.2f}"
        )

    def write(self, path: Path) -> None:
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(_RATE_HZ)
            file.writeframes(bytes(self.pcm))


def listen_to(chunks: Iterator[bytes]) -> Heard:
    """Take audio as it comes. Raises LauncherError if none does."""
    begun = time.monotonic()
    heard = Heard(bytearray(), 0.0, 0.0)
    for chunk in chunks:
        if chunk and not heard.pcm:
            heard.first_s = time.monotonic() - begun
        heard.pcm += chunk
    heard.total_s = time.monotonic() - begun
    if not heard.pcm:
        raise LauncherError("no audio came back")
    return heard


def say(client: openai.OpenAI, model: str, voice: str, text: str) -> Heard:
    """A sentence, spoken."""

    def chunks() -> Iterator[bytes]:
        with client.audio.speech.with_streaming_response.create(
            model=model, voice=voice, input=text, response_format="pcm"
        ) as response:
            yield from response.iter_bytes()

    return listen_to(chunks())


def converse(client: openai.OpenAI, model: str, voice: str, question: str, said: list[str]) -> Heard:
    """A question, answered by voice; what the voice says is added to `said`."""

    def chunks() -> Iterator[bytes]:
        stream = client.chat.completions.create(
            model=model,
            modalities=["text", "audio"],
            audio={"voice": voice, "format": "pcm16"},
            messages=[{"role": "user", "content": question}],
            stream=True,
            temperature=0.0,
        )
        for event in stream:
            audio = event.choices[0].delta.audio if event.choices else None
            if audio is not None:
                said.append(audio.transcript or "")
                yield base64.b64decode(audio.data or "")

    return listen_to(chunks())


@contextlib.contextmanager
def running(folder: DataFolder, display: Display) -> Iterator[str]:
    """Address of a system that runs while the context is open. Raises StartFailed."""
    with (folder.root / "launcher.txt").open("w+") as output:
        command = [
            sys.executable,
            "-m",
            "omnistage.launcher",
            "up",
            "--quiet",
            "--port",
            "0",
            "--data",
            str(folder.root),
        ]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            while (address := _address(folder, display)) is None:
                if process.poll() is not None:
                    output.seek(0)
                    raise StartFailed(fault_of(output.read())[1])
                time.sleep(_LOOK_S)
            display.close()
            yield address
        finally:
            display.close()
            process.send_signal(signal.SIGTERM)
            process.wait(_STOP_S)


def _address(folder: DataFolder, display: Display) -> str | None:
    """Show how far the start is; the address once everything is ready."""
    try:
        status = ask(read_state(folder).control, "status")
    except LauncherError:
        return None
    display.update(status["processes"])
    return str(status["address"]) if status["ready"] else None


def demonstrate(console: Console) -> None:
    """Raises LauncherError for whatever does not work."""
    models = load_models()
    speech, chat = first_of(models, "speech"), first_of(models, "omni")
    if speech is None or chat is None:
        raise LauncherError("the demonstration needs a model of the pipeline speech and one of the pipeline omni")
    display = display_for(console, quiet=False)
    with (
        tempfile.TemporaryDirectory(prefix="omnistage-demo-") as root,
        running(DataFolder(Path(root)), display) as address,
    ):
        display.line(f"ready: {address}/v1")
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        try:
            heard = say(client, *speech, SENTENCE)
            heard.write(Path("hello.wav"))
            display.line(f'\nsaid "{SENTENCE}"\n  hello.wav: {heard.summary()}')
            said: list[str] = []
            heard = converse(client, *chat, QUESTION, said)
            heard.write(Path("answer.wav"))
            display.line(f'\nasked "{QUESTION}"\nanswer "{"".join(said).strip()}"\n  answer.wav: {heard.summary()}')
        except openai.OpenAIError as error:
            raise LauncherError(f"the request failed: {error}") from error
    display.line("\nstopped")


def main() -> None:
    """Raises SystemExit(1) for whatever does not work, with its reason on standard error."""
    try:
        demonstrate(Console())
    except OmnistageError as error:
        print(f"omnistage: {error.message}", file=sys.stderr)
        raise SystemExit(1) from None
