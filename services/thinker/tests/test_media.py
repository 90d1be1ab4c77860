"""Media as the model takes them equal transformers' processors; bad files are refused by name, and good ones follow."""

from __future__ import annotations

import io
import struct
import wave
import zlib
from pathlib import Path
from typing import Any, get_args

import av
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from omnistage.contracts import ChatMessage, MediaKind, MediaPart
from omnistage.errors import InvalidRequest
from omnistage.parity import Tolerance
from omnistage_thinker.media import MediaLimits, MediaProcessor, Placeholders, PreparedMedia, expand, template_messages
from omnistage_thinker.media.videos import FrameRule, chosen_frames
from omnistage_thinker.models.qwen3_omni.audio_tower import audio_tokens
from omnistage_thinker.models.qwen3_omni.patches import PixelLimits
from omnistage_thinker.models.qwen3_omni.thinker import Thinker

_FIELD = "messages.[0].content.[1].image_url.url"
_processor_of_transformers: Any = Qwen2VLImageProcessorPil


@pytest.fixture(name="processor")
def _processor(thinker: Thinker) -> MediaProcessor:
    frames = FrameRule(pixels=PixelLimits(least=32 * 32, most=64 * 64))
    limits = MediaLimits(pixels=200_000, seconds=5.0, frames=100)
    return MediaProcessor(thinker.config.vision, thinker.config.audio.mel_bins, frames=frames, limits=limits)


def _png(height: int = 70, width: int = 100, mode: str = "RGB") -> bytes:
    pixels = np.random.default_rng(height * width).integers(0, 256, (height, width, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(out, "PNG")
    return out.getvalue()


def _wav(samples: Any, rate_hz: int = 16_000) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(np.rint(np.asarray(samples) * 32767).astype("<i2").tobytes())
    return out.getvalue()


def _mp4(frames: int = 20, rate_hz: int = 10, *, sound: bool = False) -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as file:
        video: Any = file.add_stream("mpeg4", rate=rate_hz)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        audio: Any = file.add_stream("aac", rate=16_000, layout="mono") if sound else None
        for index in range(frames):
            pixels = np.full((48, 64, 3), 255 * index // max(1, frames - 1), np.uint8)
            file.mux(video.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        file.mux(video.encode())
        if audio is not None:
            tone = np.sin(np.arange(16_000 * frames // rate_hz) * 0.1).astype(np.float32)[None]
            frame = av.AudioFrame.from_ndarray(tone, format="fltp", layout="mono")
            frame.sample_rate = 16_000
            file.mux(audio.encode(frame))
            file.mux(audio.encode())
    return out.getvalue()


def _prepare(
    processor: MediaProcessor, *files: tuple[MediaKind, str, bytes], audio_in_video: bool = False
) -> PreparedMedia:
    parts, offset = [], 0
    for kind, name, data in files:
        parts.append(MediaPart(kind=kind, format=name, at=0, offset=offset, nbytes=len(data), param=_FIELD))
        offset += len(data)
    payload = np.frombuffer(b"".join(data for *_, data in files), np.uint8)
    message = ChatMessage(role="user", content="What?", media=tuple(parts))
    return processor.prepare([message], payload, audio_in_video=audio_in_video)


@pytest.mark.parametrize(("height", "width"), [(64, 96), (70, 100), (33, 250), (300, 41)])
def test_pictures_are_those_of_transformers(processor: MediaProcessor, height: int, width: int) -> None:
    data = _png(height, width)
    reference = _processor_of_transformers(
        patch_size=16, image_mean=[0.5] * 3, image_std=[0.5] * 3, min_pixels=3_136, max_pixels=12_845_056
    )
    with Image.open(io.BytesIO(data)) as picture:
        expected = reference(picture, return_tensors="pt")
    found = _prepare(processor, ("image", "png", data))
    assert found.pixel_values is not None
    assert found.image_grids() == [tuple(expected["image_grid_thw"][0].tolist())]
    assert (found.pixel_values - expected["pixel_values"]).abs().max() <= 1e-5


def test_sound_is_that_of_the_recorded_fixture(processor: MediaProcessor, golden_omni: Path) -> None:
    recorded = load_file(golden_omni / "fixtures" / "audio.safetensors")
    clip = recorded["audio_waveform_16k"].numpy()
    out = io.BytesIO()
    with av.open(out, "w", format="wav") as file:
        stream: Any = file.add_stream("pcm_f32le", rate=16_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(clip[None], format="flt", layout="mono")
        frame.sample_rate = 16_000
        file.mux(stream.encode(frame))
        file.mux(stream.encode())
    found = _prepare(processor, ("audio", "wav", out.getvalue()))
    assert found.input_features is not None
    assert (found.input_features - recorded["input_features"]).abs().max() <= Tolerance.LOG_MEL
    assert found.feature_attention_mask is not None
    assert torch.equal(found.feature_attention_mask.int(), recorded["feature_attention_mask"])


def test_clips_are_padded_to_the_longest_and_cut_again(processor: MediaProcessor) -> None:
    rng = np.random.default_rng(0)
    files: list[tuple[MediaKind, str, bytes]] = [
        ("audio", "wav", _wav(rng.uniform(-0.5, 0.5, n))) for n in (4000, 8000)
    ]
    both = list(_prepare(processor, *files).clips())
    assert [clip.shape for clip in both] == [(128, 25), (128, 50)]
    for clip, file in zip(both, files, strict=True):
        assert torch.equal(clip, next(_prepare(processor, file).clips()))


@pytest.mark.parametrize(
    ("total", "rate_hz", "expected"),
    [(20, 10.0, [0, 5, 10, 15]), (1, 25.0, [0]), (3, 30.0, [0, 1]), (300, 30.0, list(range(0, 300, 15)))],
)
def test_frames_are_spread_over_a_video(total: int, rate_hz: float, expected: list[int]) -> None:
    assert chosen_frames(total, rate_hz, FrameRule()) == expected


def test_a_video_is_seen_in_time(processor: MediaProcessor) -> None:
    found = _prepare(processor, ("video", "mov", _mp4()))
    assert found.video_grids()[0][0] == 2
    assert found.seconds_per_step() == pytest.approx([1.0], rel=0.01)
    assert found.pixel_values_videos is not None
    shades = found.pixel_values_videos.view(2, -1).mean(dim=1)
    assert shades[0] < shades[1]
    assert found.video_has_sound == (False,)


def _places() -> Placeholders:
    return Placeholders(
        audio=1,
        image=2,
        video=3,
        audio_start=4,
        audio_end=5,
        merge_size=2,
        positions_per_second=13,
        audio_tokens=lambda frames: audio_tokens(frames, 100),
    )


def test_places_are_as_many_as_results(processor: MediaProcessor) -> None:
    media = _prepare(processor, ("image", "png", _png(64, 96)), ("audio", "wav", _wav(np.zeros(16_000))))
    assert expand([9, 2, 9, 1, 9], media, _places()) == [9, *[2] * 6, 9, *[1] * 13, 9]
    with pytest.raises(InvalidRequest, match="placeholders"):
        expand([9, 2, 2, 1], media, _places())


def test_a_videos_sound_lies_among_its_pictures(processor: MediaProcessor) -> None:
    media = _prepare(processor, ("video", "mov", _mp4(sound=True)), audio_in_video=True)
    assert media.video_has_sound == (True,)
    time, tall, wide = media.video_grids()[0]
    each = tall * wide // 4
    heard = audio_tokens(media.clip_frames()[0], 100)
    tokens = expand([9, 3, 9], media, _places())
    assert tokens[:3] == [9, 4, 3]
    assert tokens[-2:] == [5, 9]
    assert (tokens.count(3), tokens.count(1)) == (time * each, heard)
    # The second step is at 13 positions: thirteen tokens of sound come before it.
    assert tokens[2 : 2 + each + 13] == [3] * each + [1] * 13


def test_turns_as_templates_read_them() -> None:
    part = MediaPart(kind="image", format="png", at=4, offset=0, nbytes=1)
    message = ChatMessage(role="user", content="See this?", media=(part,))
    assert template_messages([message, ChatMessage(role="system", content="Hi")]) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "See "},
                {"type": "image", "image": ""},
                {"type": "text", "text": "this?"},
            ],
        },
        {"role": "system", "content": "Hi"},
    ]


def test_equal_media_have_equal_hashes_and_others_do_not(processor: MediaProcessor) -> None:
    first, same = (_prepare(processor, ("image", "png", _png())).content_hash for _ in range(2))
    assert first == same != _prepare(processor, ("image", "png", _png(71))).content_hash


def _lying_png(width: int, height: int) -> bytes:
    """A picture whose header tells other sizes than its content has."""
    data = bytearray(_png())
    data[16:24] = struct.pack(">II", width, height)
    data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
    return bytes(data)


_BAD: list[tuple[MediaKind, str, bytes]] = [
    *(("image", "png", _png()[:size]) for size in (0, 7, 30, 60, 500)),
    ("image", "png", _lying_png(60_000, 60_000)),
    ("image", "png", _lying_png(100, 4_000_000)),
    ("image", "png", _lying_png(0, 10)),
    ("image", "png", _lying_png(120, 90)),
    ("image", "png", _png(500, 500)),
    ("image", "png", _png(1, 400)),
    ("image", "jpeg", _png()),
    ("image", "gif", b"GIF89a" + b"\0" * 20),
    ("image", "webp", b"RIFF\xff\xff\xff\xffWEBPVP8 " + b"\xff" * 20),
    ("image", "bmp", b"BM" + b"\xff" * 60),
    ("image", "tiff", b"II*\0" + b"\0" * 20),
    ("image", "wav", _wav(np.zeros(800))),
    *(("audio", "wav", _wav(np.zeros(8_000))[:size]) for size in (0, 11, 30, 44)),
    ("audio", "wav", _wav(np.zeros(100))),
    ("audio", "wav", _wav(np.zeros(8_000), 1_000)),
    ("audio", "wav", _wav(np.zeros(16_000 * 6))),
    ("audio", "wav", _png()),
    ("audio", "flac", b"fLaC" + b"\xff" * 60),
    ("audio", "ogg", b"OggS" + b"\xff" * 60),
    ("audio", "mp3", b"\xff\xfb" + b"\0" * 20),
    ("audio", "aac", b"\xff\xf1" + b"\0" * 20),
    ("audio", "concat", b"ffconcat version 1.0\nfile /etc/hostname\n"),
    ("audio", "hls", b"#EXTM3U\nhttp://127.0.0.1/x\n"),
    ("audio", "mov", _mp4()),
    *(("video", "mov", _mp4()[:size]) for size in (0, 8, 40, 900)),
    ("video", "mov", _png()),
    ("video", "matroska", b"\x1aE\xdf\xa3" + b"\xff" * 60),
    ("video", "wav", _wav(np.zeros(8_000))),
    ("video", "mov", _mp4(101)),
    ("video", "mov", _mp4(20, 2)),
]


@pytest.mark.parametrize(("kind", "name", "data"), _BAD, ids=[f"{i}-{k}-{n}" for i, (k, n, _) in enumerate(_BAD)])
def test_bad_files_are_refused_by_name(processor: MediaProcessor, kind: MediaKind, name: str, data: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _prepare(processor, (kind, name, data))
    assert caught.value.param == _FIELD
    assert caught.value.message.startswith(f"Invalid value for '{_FIELD}': ")
    assert kind in get_args(MediaKind)
    assert _prepare(processor, ("image", "png", _png())).pixel_values is not None


def test_a_part_outside_of_its_payload(processor: MediaProcessor) -> None:
    part = MediaPart(kind="image", format="png", at=0, offset=3, nbytes=10, param=_FIELD)
    message = ChatMessage(role="user", content="", media=(part,))
    with pytest.raises(InvalidRequest, match="bytes are missing"):
        processor.prepare([message], np.zeros(5, np.uint8))
