"""Deadline-aware order: the request whose client runs dry first is served first."""

from omnistage.urgency.policy import PATIENCE, READ_CHARS_PER_S, SPOKEN_CHARS_PER_S, Patience, Reading, Urgency
from omnistage.urgency.turns import Turns

__all__ = ["PATIENCE", "READ_CHARS_PER_S", "SPOKEN_CHARS_PER_S", "Patience", "Reading", "Turns", "Urgency"]
