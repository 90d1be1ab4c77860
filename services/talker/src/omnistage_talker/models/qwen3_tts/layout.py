"""The frame layout `qwen3-tts-12hz`, as the codec family of that name reads it.

One frame is 80 ms (12.5 frames a second, 1920 samples at 24 kHz): a row of codec tokens, little-endian int32, group 0
(semantic) first.

The codec package holds a copy of these names and numbers (services do not import one another).
"""

from __future__ import annotations

LAYOUT = "qwen3-tts-12hz"
"""Width and codebook size are the checkpoint's: 16 groups of 2048 codes in all that are published."""

FRAME_RATE_HZ = 12.5
