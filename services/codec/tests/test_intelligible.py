"""What the decoder makes of the voice's real frames is speech that a recognizer understands."""

from __future__ import annotations

import numpy as np
import pytest
import soxr
from hibari import Hibari
from pocketsphinx import Decoder

from omnistage_codec.engine.pcm import to_int16
from omnistage_codec.models.hibari import HibariWave

RECOGNIZER_RATE_HZ = 16_000


@pytest.mark.model
def test_a_sentence_is_understood() -> None:
    voice = Hibari()
    ids = voice.ids(voice.g2p("The capital of France is Paris."))
    feeds = {"ids": np.array([ids], np.int64), "speed": np.array([1.0], np.float32)}
    *branches, f0 = voice.sess.run(None, feeds)
    frames = np.concatenate([*(branch[0].T for branch in branches), f0.T], axis=1)
    model = HibariWave()
    samples = model.decode(model.new_state(seed=1, voice="heart"), frames, segment=0, segment_frame=0, segment_end=True)
    assert np.abs(samples).max() <= 1.0
    resampled = soxr.resample(to_int16(samples), model.facts.sample_rate_hz, RECOGNIZER_RATE_HZ)
    recognizer = Decoder(samprate=RECOGNIZER_RATE_HZ)
    recognizer.start_utt()
    recognizer.process_raw(resampled.tobytes(), full_utt=True)
    recognizer.end_utt()
    heard = recognizer.hyp().hypstr.split()
    assert {"capital", "france", "paris"} <= set(heard)
