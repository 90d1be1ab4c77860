"""What can be set on a bus."""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 1 << 20


@dataclass(frozen=True)
class BusOptions:
    """Limits and times of a bus; every service of a deployment uses the same.

    Attributes:
        timeout_s: how long a method waits for the broker, reconnecting included, before BusUnavailable.
        ack_wait_s: a claim without sign of life for so long is delivered to another instance.
        max_ack_pending: items of one stage and model that may be held at once, over all its instances.
        work_max_msgs, work_max_bytes: size of the work stream; beyond it publish_work raises QueueFull.
        log_max_bytes: size of the feed stream, and of the out stream; beyond it append raises QueueFull.
        log_max_age_s: backstop for logs that nobody purged; longer than the longest request.
        dead_max_bytes, dead_max_age_s: how much of the dead letters is kept, and for how long.
        bucket_max_bytes: size of one key-value bucket.
        objects_max_bytes: size of one object bucket.
        idle_check_s: a log that heard nothing for so long looks whether it missed its last records.
        read_batch: records per read of a log's history.
        replicas: copies of each stream; above 1 only on a clustered broker.
    """

    timeout_s: float = 5.0
    ack_wait_s: float = 1.5
    max_ack_pending: int = 4096
    work_max_msgs: int = 100_000
    work_max_bytes: int = 64 * _MIB
    log_max_bytes: int = 512 * _MIB
    log_max_age_s: float = 2 * 3600.0
    dead_max_bytes: int = 64 * _MIB
    dead_max_age_s: float = 7 * 24 * 3600.0
    bucket_max_bytes: int = 64 * _MIB
    objects_max_bytes: int = -1
    idle_check_s: float = 3.0
    read_batch: int = 256
    replicas: int = 1
