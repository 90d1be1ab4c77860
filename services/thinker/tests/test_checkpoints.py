"""Reading checkpoints: the packaged GGUF, Hugging Face folders, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from omnistage.ar.attention import plan_attention
from omnistage.ar.kv_cache import PagedKVCache
from omnistage.ar.linear import MIN_ROWS
from omnistage.ar.runner import StepInputs
from omnistage.ar.scheduler import Row
from omnistage.ar.sequence import Sequence
from omnistage.errors import ConfigError
from omnistage_thinker.models.base import TextModel
from omnistage_thinker.models.checkpoint import Checkpoint, load_checkpoint
from omnistage_thinker.models.llama import LlamaModel

pytestmark = pytest.mark.model

MakeFolder = Callable[..., tuple[Path, Any]]


def logits_of(model: TextModel, tokens: list[int]) -> torch.Tensor:
    """[tokens, vocab] of one sequence computed at once."""
    assert isinstance(model, LlamaModel)
    blocks = -(-len(tokens) // 16)
    cache = PagedKVCache(model.cache_shape(blocks, 16))
    sequence = Sequence("s", list(tokens), len(tokens), 1, block_table=list(range(blocks)))
    rows = [Row(sequence, 0, len(tokens), emits=True)]
    share = model.config.num_heads // model.config.num_kv_heads
    ids = torch.tensor(tokens + [0] * max(0, MIN_ROWS - len(tokens)))
    with torch.inference_mode():
        plan = plan_attention(rows, cache, share=share)
        positions = torch.arange(len(ids))
        return model.forward(StepInputs(ids, positions, positions, plan), cache)[: len(tokens)]


@pytest.mark.parametrize("length", [1, 3, 70])
def test_the_packaged_model_gives_transformers_logits(checkpoint: Checkpoint, reference: Any, length: int) -> None:
    tokens = reference.prompt("Why is the sky blue, and the sunset red? " * 8)[:length]
    with torch.inference_mode():
        expected = reference.model(torch.tensor([tokens])).logits[0]
    assert torch.allclose(logits_of(checkpoint.model, tokens), expected, atol=2e-3, rtol=1e-4)


@pytest.fixture(scope="module")
def make_folder(tmp_path_factory: pytest.TempPathFactory, reference: Any) -> MakeFolder:
    """Saves a small random Llama as transformers does."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def make(**changes: Any) -> tuple[Path, Any]:
        torch.manual_seed(0)
        sizes = {
            "vocab_size": 49152,
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 128,
            "initializer_range": 0.2,
            "eos_token_id": 2,
        }
        build: Any = LlamaForCausalLM
        model = build(LlamaConfig(**{**sizes, **changes})).eval()
        path = tmp_path_factory.mktemp("llama")
        model.save_pretrained(path)
        reference.tokenizer.save_pretrained(path)
        return path, model

    return make


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": True},
        {"tie_word_embeddings": False},
        {"num_key_value_heads": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
        {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "rms_norm_eps": 1e-3},
    ],
)
def test_a_folder_gives_transformers_logits(make_folder: MakeFolder, changes: dict[str, Any]) -> None:
    path, model = make_folder(**changes)
    loaded = load_checkpoint(path)
    tokens = list(range(100, 160))
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0]
    assert torch.allclose(logits_of(loaded.model, tokens), expected, atol=1e-4, rtol=1e-4)


def test_a_folders_tokenizer_and_template_are_used(make_folder: MakeFolder, reference: Any) -> None:
    path, _ = make_folder()
    tokenizer = load_checkpoint(path).tokenizer
    assert tokenizer.encode_chat([{"role": "user", "content": "Hi 12"}]) == reference.prompt("Hi 12")
    assert tokenizer.eos_ids == {2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}}, "yarn"),
        ({"attention_bias": True}, "biases"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"num_hidden_layers": 3}, "model.layers.2.input_layernorm.weight is missing"),
    ],
)
def test_a_folder_of_another_kind_is_refused(make_folder: MakeFolder, change: dict[str, Any], message: str) -> None:
    path, _ = make_folder()
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ConfigError, match=message):
        load_checkpoint(path)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_folder_without_a_file_is_refused(make_folder: MakeFolder, file: str) -> None:
    path, _ = make_folder()
    (path / file).unlink()
    with pytest.raises(ConfigError, match=file):
        load_checkpoint(path)


def test_a_folder_without_a_template_is_refused(make_folder: MakeFolder) -> None:
    path, _ = make_folder()
    (path / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="no chat template"):
        load_checkpoint(path)


def test_files_that_are_no_checkpoint_are_refused(tmp_path: Path) -> None:
    text, broken = tmp_path / "model.txt", tmp_path / "model.gguf"
    text.write_text("hello")
    broken.write_bytes(b"GGUF is not all it takes" * 4)
    with pytest.raises(ConfigError, match="neither"):
        load_checkpoint(text)
    with pytest.raises(ConfigError, match="readable GGUF"):
        load_checkpoint(broken)


def write_gguf(path: Path, architecture: str = "llama", **fields: str) -> Path:
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, value in fields.items():
        writer.add_string(key.replace("__", "."), value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("architecture", "fields", "message"),
    [
        ("mamba", {}, "architecture 'mamba'"),
        ("llama", {}, "tokenizer.ggml.model is missing"),
        ("llama", {"tokenizer__ggml__model": "llama"}, "tokenizer 'llama'"),
        ("llama", {"tokenizer__ggml__model": "gpt2"}, "tokenizer.ggml.tokens is missing"),
    ],
)
def test_a_gguf_of_another_kind_is_refused(
    tmp_path: Path, architecture: str, fields: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_checkpoint(write_gguf(tmp_path / "x.gguf", architecture, **fields))


def test_the_folder_is_not_needed_after_loading(make_folder: MakeFolder) -> None:
    path, _ = make_folder()
    loaded = load_checkpoint(path)
    before = logits_of(loaded.model, [1, 2, 3, 4])
    shutil.rmtree(path)
    assert torch.equal(logits_of(loaded.model, [1, 2, 3, 4]), before)
