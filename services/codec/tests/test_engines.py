"""What the codec tells of its engines without loading one is true."""

from __future__ import annotations

from omnistage_codec.engines import ENGINES
from omnistage_codec.models import FAMILIES


def test_the_engines_told_are_those_that_can_be_loaded() -> None:
    assert tuple(FAMILIES) == ENGINES
