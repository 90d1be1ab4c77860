"""A tiny Qwen3-Omni checkpoint, joined from the parts that come with the sources, with a tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

_SERVICES = Path(__file__).parents[2] / "services"
_PARTS = ("thinker", "talker", "codec")
_FIRST_SPECIAL = 272
_SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    *("<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>"),
)
_WORDS = ("assistant", "user", "system")
_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_omni(folder: Path) -> Path:
    """A folder with all parts: configuration, weights, vocabulary, merges and chat template, as published ones are."""
    folder.mkdir(parents=True)
    config: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    for part in _PARTS:
        source = _SERVICES / part / "tests" / "fixtures" / "qwen3_omni" / "model"
        config = _merged(config, json.loads((source / "config.json").read_text()))
        tensors |= load_file(source / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(_SERVICES / "thinker/tests/fixtures/qwen3_omni/model/generation_config.json", folder)
    _write_tokenizer(folder)
    return folder


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Both; parts of a section may be in either."""
    result = one | other
    for key in one.keys() & other.keys():
        if isinstance(one[key], dict):
            result[key] = _merged(one[key], other[key])
    return result


def _write_tokenizer(folder: Path) -> None:
    """Token ids of bytes are the bytes themselves; the three roles are one token each."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    vocabulary = {chr(byte) if byte in printable else chr(256 + others.index(byte)): byte for byte in range(256)}
    merges: list[str] = []
    for word in _WORDS:
        for end in range(1, len(word)):
            if word[: end + 1] not in vocabulary:
                merges.append(f"{word[:end]} {word[end]}")
                vocabulary[word[: end + 1]] = len(vocabulary)
    assert len(vocabulary) == _FIRST_SPECIAL
    added = {
        str(_FIRST_SPECIAL + index): {"content": content, "special": True, "normalized": False}
        for index, content in enumerate(_SPECIAL)
    }
    values = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "added_tokens_decoder": added}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": _TEMPLATE}))
