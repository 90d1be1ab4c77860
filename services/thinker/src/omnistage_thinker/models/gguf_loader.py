"""Llama checkpoints in llama.cpp's GGUF files (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor

from omnistage.errors import ConfigError
from omnistage_thinker.models.llama import LlamaConfig, LlamaModel
from omnistage_thinker.models.tokenizer import Tokenizer

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_CONTROL, _USER_DEFINED = 3, 4


def _pre_tokenizer(kind: str) -> pre_tokenizers.PreTokenizer:
    """How text is split before byte-pair merging, by llama.cpp's name of the scheme.

    Raises:
        ConfigError: a scheme that is not known here; guessing would give wrong tokens silently.
    """
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if kind in ("gpt-2", "default"):
        return byte_level
    if kind == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    raise ConfigError(f"GGUF: pre-tokenizer {kind!r} is not supported")


class _Fields:
    """Metadata of a GGUF file by key."""

    def __init__(self, reader: gguf.GGUFReader) -> None:
        self._fields = reader.fields

    def get(self, key: str, default: Any = None) -> Any:
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ConfigError(f"GGUF: the key {key} is missing")
        return value


def load_gguf(path: Path, *, device: str, dtype: torch.dtype) -> tuple[LlamaModel, Tokenizer]:
    """Read a GGUF file of architecture "llama" with a byte-level BPE tokenizer.

    Raises:
        ConfigError: another architecture or tokenizer, or parts are missing.
    """
    try:
        reader = gguf.GGUFReader(str(path))
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path.name} is not a readable GGUF file: {error}") from error
    fields = _Fields(reader)
    if fields.need("general.architecture") != "llama":
        raise ConfigError(f"GGUF: architecture {fields.need('general.architecture')!r} is not supported")
    tokenizer = _load_tokenizer(fields)
    config = _load_config(fields, len(fields.need("tokenizer.ggml.tokens")))
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    source = _Weights(tensors, config)
    model = LlamaModel(config, source, tied="output.weight" not in tensors, device=device, dtype=dtype)
    return model, tokenizer


def _load_config(fields: _Fields, vocab_size: int) -> LlamaConfig:
    if fields.get("llama.rope.scaling.type", "none") != "none":
        raise ConfigError("GGUF: scaled rotary positions are not supported")
    heads = int(fields.need("llama.attention.head_count"))
    hidden = int(fields.need("llama.embedding_length"))
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=int(fields.need("llama.feed_forward_length")),
        num_layers=int(fields.need("llama.block_count")),
        num_heads=heads,
        num_kv_heads=int(fields.get("llama.attention.head_count_kv", heads)),
        head_dim=int(fields.get("llama.attention.key_length", hidden // heads)),
        max_length=int(fields.need("llama.context_length")),
        rope_theta=float(fields.get("llama.rope.freq_base", 10000.0)),
        norm_eps=float(fields.need("llama.attention.layer_norm_rms_epsilon")),
    )


class _Weights:
    """Dequantizes one tensor at a time, so that the file's weights never lie in memory twice as float32."""

    def __init__(self, tensors: dict[str, Any], config: LlamaConfig) -> None:
        self._tensors = tensors
        self._config = config

    def __call__(self, name: str) -> Tensor:
        ggml_name = _ggml_name(name)
        tensor = self._tensors.get(ggml_name)
        if tensor is None:
            raise ConfigError(f"GGUF: the tensor {ggml_name} is missing")
        # A copy: dequantizing gives a view of the mapped file where the tensor is float32 already.
        weight = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy()).float()
        if ggml_name.endswith("attn_q.weight"):
            return _unpermute(weight, self._config.num_heads)
        if ggml_name.endswith("attn_k.weight"):
            return _unpermute(weight, self._config.num_kv_heads)
        return weight


def _ggml_name(name: str) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    index, _, rest = name.removeprefix("model.layers.").partition(".")
    return f"blk.{index}.{_NAMES[rest.removesuffix('.weight')]}.weight"


def _unpermute(weight: Tensor, heads: int) -> Tensor:
    """From llama.cpp's order of rows, where the pairs turned by rotary positions are neighbours, to halves."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _load_tokenizer(fields: _Fields) -> Tokenizer:
    if fields.need("tokenizer.ggml.model") != "gpt2":
        raise ConfigError(f"GGUF: tokenizer {fields.need('tokenizer.ggml.model')!r} is not supported")
    tokens: list[str] = fields.need("tokenizer.ggml.tokens")
    kinds: list[int] = fields.need("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in fields.need("tokenizer.ggml.merges")]
    fast = FastTokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    fast.pre_tokenizer = _pre_tokenizer(fields.get("tokenizer.ggml.pre", "default"))
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(t, special=True) for t, k in zip(tokens, kinds, strict=True) if k == _CONTROL])
    fast.add_tokens([AddedToken(t, normalized=False) for t, k in zip(tokens, kinds, strict=True) if k == _USER_DEFINED])
    eos = {fields.need("tokenizer.ggml.eos_token_id")}
    for key in ("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"):
        if fields.get(key) is not None:
            eos.add(fields.get(key))
    bos = fields.get("tokenizer.ggml.bos_token_id")
    return Tokenizer(
        fast,
        chat_template=fields.need("tokenizer.chat_template"),
        eos_ids=frozenset(int(token) for token in eos),
        bos_token=tokens[int(bos)] if bos is not None else "",
        eos_token=tokens[int(fields.need("tokenizer.ggml.eos_token_id"))],
    )
