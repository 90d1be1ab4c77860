"""Counters of a bus, exported as metrics by the runtime."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class BusStats:
    """What happened on this bus since it was opened.

    Attributes:
        published: work items and log records that the broker accepted.
        redelivered: claims that were not the item's first delivery.
        gaps_filled: times that a log had missed live records and read them from the stream.
        fenced: appends that were refused because another holder had taken the log.
        reconnects: times that a lost connection came back.
        errors: asynchronous errors of the client library, slow-consumer drops among them, and failed handlers.
    """

    published: int = 0
    redelivered: int = 0
    gaps_filled: int = 0
    fenced: int = 0
    reconnects: int = 0
    errors: int = 0
