"""The frame layout `qwen3-omni-12hz`, as the talker family of that name writes it.

One frame is 80 ms (12.5 frames a second, 1920 samples at 24 kHz): a row of codec tokens, little-endian int32, group 0
(semantic) first.
"""

from __future__ import annotations

LAYOUT = "qwen3-omni-12hz"
"""Width and codebook size are the checkpoint's: 16 groups of 2048 codes in all that are published."""

SAMPLE_RATE_HZ = 24_000
"""The checkpoint does not say it."""
