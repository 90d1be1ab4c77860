"""Tokenizers in Hugging Face folders: `tokenizer.json`, or a vocabulary with its merges, and the chat template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import BPE

from omnistage.ar.qwen3.config import read_json
from omnistage.errors import ConfigError
from omnistage_thinker.models.tokenizer import Tokenizer

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen2's pre-tokenizer, the only kind of which folders hold a vocabulary and merges alone."""


def load_tokenizer(path: Path, config: Mapping[str, Any]) -> Tokenizer:
    """Read a folder's tokenizer, its template and the tokens that end an answer.

    Args:
        path: the folder.
        config: content of its `config.json`.

    Raises:
        ConfigError: something is missing or damaged.
    """
    values = read_json(path / "tokenizer_config.json")
    fast = _fast_tokenizer(path, values)
    eos_token = _content(values.get("eos_token"))
    eos = set(_declared_ends(path, config))
    eos_id = fast.token_to_id(eos_token) if eos_token else None
    if eos_id is not None:
        eos.add(eos_id)
    return Tokenizer(
        fast,
        chat_template=_template(path, values),
        eos_ids=frozenset(eos),
        bos_token=_content(values.get("bos_token")),
        eos_token=eos_token,
    )


def _fast_tokenizer(path: Path, values: Mapping[str, Any]) -> FastTokenizer:
    whole, vocabulary, merges = (path / name for name in ("tokenizer.json", "vocab.json", "merges.txt"))
    if not whole.exists() and not (vocabulary.exists() and merges.exists()):
        raise ConfigError(f"{path} has neither tokenizer.json nor vocab.json and merges.txt")
    try:
        return FastTokenizer.from_file(str(whole)) if whole.exists() else _from_merges(vocabulary, merges, values)
    except ConfigError:
        raise
    except Exception as error:
        # The library raises plain Exception for whatever is wrong with its files.
        raise ConfigError(f"the tokenizer of {path} cannot be read: {error}") from error


def _from_merges(vocabulary: Path, merges: Path, values: Mapping[str, Any]) -> FastTokenizer:
    if not str(values.get("tokenizer_class", "")).startswith("Qwen2Tokenizer"):
        raise ConfigError(f"{vocabulary}: tokenizer_class {values.get('tokenizer_class')!r} needs a tokenizer.json")
    fast = FastTokenizer(BPE.from_file(str(vocabulary), str(merges)))
    fast.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_SPLIT), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    fast.decoder = decoders.ByteLevel()
    for index, token in sorted((int(index), token) for index, token in values["added_tokens_decoder"].items()):
        added = AddedToken(token["content"], special=bool(token["special"]), normalized=bool(token["normalized"]))
        fast.add_special_tokens([added]) if added.special else fast.add_tokens([added])
        if fast.token_to_id(added.content) != index:
            raise ConfigError(f"{vocabulary}: the added token {added.content!r} does not get the id {index}")
    return fast


def _template(path: Path, values: Mapping[str, Any]) -> str:
    """The chat template, which has had three places."""
    plain, wrapped = path / "chat_template.jinja", path / "chat_template.json"
    if plain.exists():
        return plain.read_text(encoding="utf-8")
    template = read_json(wrapped).get("chat_template") if wrapped.exists() else values.get("chat_template")
    if not isinstance(template, str):
        raise ConfigError(f"{path} has no chat template")
    return template


def _declared_ends(path: Path, config: Mapping[str, Any]) -> Iterator[int]:
    generation = path / "generation_config.json"
    values = read_json(generation) if generation.exists() else config
    for name in ("eos_token_id", "thinker_eos_token_id"):
        declared = values.get(name)
        yield from declared if isinstance(declared, list) else [] if declared is None else [int(declared)]


def _content(token: Any) -> str:
    """The text of a special token, which is a string or an object that holds one."""
    if isinstance(token, dict):
        return str(token.get("content", ""))
    return token or ""
