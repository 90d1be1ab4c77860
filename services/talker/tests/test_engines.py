"""What the talker tells of its engines without loading one is true."""

from __future__ import annotations

from omnistage_talker.engines import ENGINES, VOICES
from omnistage_talker.models import FAMILIES, FRAME_FAMILIES
from omnistage_talker.models.hibari.model import FACTS


def test_the_engines_told_are_those_that_can_be_loaded() -> None:
    assert (*FAMILIES, *FRAME_FAMILIES) == ENGINES


def test_the_voices_told_are_those_that_the_family_has() -> None:
    assert {FACTS.family: FACTS.voices} == VOICES
