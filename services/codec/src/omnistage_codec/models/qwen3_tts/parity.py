"""The family beside recorded results of the reference implementation, in the golden layout.

codec.decode.safetensors      codes and waveforms, of the checkpoint `base`
base.encoder.safetensors      recordings, codes, spectrogram, speaker embedding, and what lies between
*.end_to_end*.safetensors     codes and waveform, of the checkpoint that the name begins with
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.numpy import load_file

from omnistage.parity import Comparison, Tolerance, compare
from omnistage.parity.folders import FIXTURES
from omnistage_codec.models import ModelOptions
from omnistage_codec.models.qwen3.waveforms import Recorded, check_waveforms, named, to_frames
from omnistage_codec.models.qwen3.weights import Placement
from omnistage_codec.models.qwen3_tts.config import read_tokenizer_config
from omnistage_codec.models.qwen3_tts.encoder import Clips, Encoder
from omnistage_codec.models.qwen3_tts.loading import load, load_encoder, load_speaker
from omnistage_codec.models.qwen3_tts.model import Qwen3TTSWave


def check(folder: Path) -> Iterator[Comparison]:
    """Compare everything in a family folder that concerns the codec. Raises ConfigError for a broken checkpoint."""
    for path in sorted((folder / FIXTURES).glob("*.safetensors")):
        name, recorded = path.stem, load_file(path)
        checkpoint = folder / name.partition(".")[0]
        if name == "codec.decode":
            yield from named(name, check_waveforms(_decoder(folder / "base"), recorded))
        elif name.endswith(".encoder"):
            yield from named(name, check_encoders(checkpoint, recorded))
        elif ".end_to_end" in name:
            yield from named(name, _end_to_end(_decoder(checkpoint), recorded))


def _decoder(checkpoint: Path) -> Qwen3TTSWave:
    wave, _ = load(ModelOptions(checkpoint=checkpoint, references=False))
    return wave


def _end_to_end(wave: Qwen3TTSWave, recorded: Recorded) -> Iterator[Comparison]:
    context = to_frames(recorded["ref_codes"]) if "ref_codes" in recorded else None
    state = wave.new_state(seed=0, voice="", context=context)
    samples = wave.decode(state, to_frames(recorded["codes"]), segment=0, segment_frame=0, segment_end=True)
    yield compare("waveform", samples, recorded["waveform"], Tolerance.WAVEFORM)


@torch.inference_mode()
def check_encoders(checkpoint: Path, recorded: Recorded) -> Iterator[Comparison]:
    """Codes of both recordings, alone and together, the embedding, and what lies between."""
    config = read_tokenizer_config(checkpoint)
    encoder, _ = load_encoder(checkpoint, config, Placement())
    first, second = (torch.from_numpy(recorded[name]) for name in ("waveform", "waveform_b"))
    yield from _inside(encoder, first, recorded)
    (alone,), (other,), together = encoder([first]), encoder([second]), encoder([first, second])
    yield compare("codes", alone.T, recorded["codes"], Tolerance.CODES)
    yield compare("codes_b", other.T, recorded["codes_b"], Tolerance.CODES)
    yield compare("codes, beside another", together[0].T, recorded["codes"], Tolerance.CODES)
    yield compare("codes_b, beside another", together[1].T, recorded["codes_b"], Tolerance.CODES)
    # The reference pads a shorter clip of a batch to the longer one, which changes its last frame; here it stays.
    kept = recorded["codes_batched_b"][:, :-1]
    yield compare("codes_batched_b but the last frame", together[1].T[:, :-1], kept, Tolerance.CODES)
    found = load_speaker(checkpoint, Placement())
    if found is not None:
        speaker, log_mel, _ = found
        mel = log_mel(first)
        yield compare("mel", mel, recorded["mel"], Tolerance.LOG_MEL)
        for name, spectrum in (("speaker_embedding", mel), ("speaker_embedding_b", log_mel(second))):
            yield compare(name, speaker(spectrum), recorded[name], Tolerance.SPEAKER_EMBEDDING)


def _inside(encoder: Encoder, samples: torch.Tensor, recorded: Recorded) -> Iterator[Comparison]:
    columns = encoder.wave(Clips(samples[None, None], torch.tensor([len(samples)])))
    contexts = encoder.contexts(columns)
    yield _edge("conv_out", columns, recorded, slice(None, recorded["conv_out"].shape[1]))
    yield _edge("transformer_out_last4", contexts, recorded, slice(-recorded["transformer_out_last4"].shape[1], None))
    yield _edge("downsample_out", encoder.latents(contexts), recorded, slice(None))


def _edge(name: str, clips: Clips, recorded: Recorded, columns: slice) -> Comparison:
    return compare(name, clips.columns[0, :, columns], recorded[name], Tolerance.HIDDEN_STATES)
