"""Three commands to try, as `up` prints them once everything is ready."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from omnistage.config import ModelsFile
from omnistage.launcher.hints import hint


def ready_line(address: str) -> str:
    """Says where the system answers."""
    return f"Omnistage is ready: {address}/v1"


def first_of(models: ModelsFile, pipeline: str) -> tuple[str, str] | None:
    """The first served model of a pipeline and its default voice; None if there is none."""
    for key, model in models.models.items():
        if model.pipeline == pipeline:
            return key, model.default_voice or next(iter(model.voices), "default")
    return None


def examples(address: str, models: ModelsFile, data: Path) -> str:
    """A command each for speech, a spoken answer and the SDK, of what the models file serves; and how to stop it."""
    parts = []
    if speech := first_of(models, "speech"):
        parts.append(_speech(address, *speech))
    if chat := first_of(models, "omni"):
        parts.append(_chat(address, *chat))
    if speech:
        parts.append(_sdk(address, *speech))
    return "\n\n".join(["", *parts, f"Stop it with {'Ctrl-C or ' if _has_keyboard() else ''}`{hint('down', data)}`."])


def _has_keyboard() -> bool:
    """Whether Ctrl-C can reach this process: in the background there is no terminal that controls it."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _speech(address: str, model: str, voice: str) -> str:
    return f"""\
curl {address}/v1/audio/speech -H 'Content-Type: application/json' -o hello.mp3 \\
  -d '{{"model": "{model}", "voice": "{voice}", "input": "Hello! I can speak."}}'"""


def _chat(address: str, model: str, voice: str) -> str:
    return f"""\
curl {address}/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{{"model": "{model}", "modalities": ["text", "audio"], "audio": {{"voice": "{voice}", "format": "wav"}},
       "temperature": 0, "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}' \\
  | python3 -c 'import base64, json, sys; audio = json.load(sys.stdin)["choices"][0]["message"]["audio"];
print(audio["transcript"]); open("answer.wav", "wb").write(base64.b64decode(audio["data"]))'"""


def _sdk(address: str, model: str, voice: str) -> str:
    return f"""\
{_python_with_sdk()} - <<'EOF'
from openai import OpenAI
client = OpenAI(base_url="{address}/v1", api_key="none")
client.audio.speech.create(model="{model}", voice="{voice}", input="Hello from the SDK.").write_to_file("sdk.mp3")
EOF"""


def _python_with_sdk() -> str:
    """This interpreter, if the SDK is installed beside us; else any, and the reader installs it."""
    if importlib.util.find_spec("openai") is None:
        return "pip install openai && python3"
    python = Path(sys.executable)
    return os.path.relpath(python) if python.is_relative_to(Path.cwd()) else str(python)
