"""Three commands to try, as `up` prints them once everything is ready."""

from __future__ import annotations

from omnistage.config import ModelsFile


def examples(address: str, models: ModelsFile) -> str:
    """The address and a command each for speech, a spoken answer and the SDK; of what the models file serves."""
    speech = next((key for key, model in models.models.items() if model.pipeline == "speech"), None)
    chat = next((key for key, model in models.models.items() if model.pipeline == "omni"), None)
    parts = [f"Omnistage is ready: {address}/v1   (stop it with Ctrl-C or `omnistage down`)"]
    if speech is not None:
        voice = models.models[speech].default_voice or "default"
        parts.append(_speech(address, speech, voice))
    if chat is not None:
        voice = models.models[chat].default_voice or "default"
        parts.append(_chat(address, chat, voice))
    if speech is not None:
        parts.append(_sdk(address, speech, models.models[speech].default_voice or "default"))
    return "\n\n".join(parts) + "\n"


def _speech(address: str, model: str, voice: str) -> str:
    return f"""\
curl {address}/v1/audio/speech -H 'Content-Type: application/json' -o hello.mp3 \\
  -d '{{"model": "{model}", "voice": "{voice}", "input": "Hello! I can speak."}}'"""


def _chat(address: str, model: str, voice: str) -> str:
    return f"""\
curl {address}/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{{"model": "{model}", "modalities": ["text", "audio"], "audio": {{"voice": "{voice}", "format": "wav"}},
       "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}' \\
  | python3 -c 'import base64, json, sys; m = json.load(sys.stdin)["choices"][0]["message"]["audio"];
print(m["transcript"]); open("answer.wav", "wb").write(base64.b64decode(m["data"]))'"""


def _sdk(address: str, model: str, voice: str) -> str:
    return f"""\
python3 - <<'EOF'      # needs: pip install openai
from openai import OpenAI
client = OpenAI(base_url="{address}/v1", api_key="none")
speech = client.audio.speech.create(model="{model}", voice="{voice}", input="Hello from the SDK.")
speech.write_to_file("sdk.mp3")
EOF"""
