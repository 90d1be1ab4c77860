"""The one registry of metric, span and attribute names. A metric that is not here cannot be recorded.

Every metric also carries the labels `stage`, `model` (an engine or served model key; empty where none is meant) and
`instance`. Seconds and bytes are Prometheus' base units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Owner = Literal["every", "stage", "gateway"]
"""Who exports a metric: every service, every service but the gateway, or the gateway alone."""

FIXED_LABELS = ("stage", "model", "instance")

_HOP_S = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.004, 0.006, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0)
_STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 5.0)
_WAIT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 15.0, 30.0, 60.0, 120.0)
_RATIO = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0, 1.2, 1.5, 2.0, 4.0)
_BATCH = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


@dataclass(frozen=True)
class Metric:
    """A registered metric.

    Attributes:
        name: without the "_total" that Prometheus shows after counters.
        unit: "seconds", "bytes", "ratio" or what is counted.
        help: one sentence.
        owner: who exports it.
        labels: its own labels, beside the fixed ones.
    """

    name: str
    unit: str
    help: str
    owner: Owner
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """ "counter", "gauge" or "histogram"."""
        return type(self).__name__.lower()

    @property
    def exposed(self) -> str:
        """The name as Prometheus shows it."""
        return self.name


@dataclass(frozen=True)
class Counter(Metric):
    """Only grows."""

    @property
    def exposed(self) -> str:
        return f"{self.name}_total"


@dataclass(frozen=True)
class Gauge(Metric):
    """A value that goes up and down."""


@dataclass(frozen=True)
class Histogram(Metric):
    """A distribution; `buckets` are upper bounds in the metric's unit."""

    buckets: tuple[float, ...] = _WAIT_S


HTTP_REQUESTS = Counter(
    "omnistage_http_requests", "requests", "HTTP requests answered.", "gateway", ("endpoint", "status")
)
HTTP_IN_FLIGHT = Gauge(
    "omnistage_http_requests_in_flight", "requests", "HTTP requests being answered.", "gateway", ("endpoint",)
)
HTTP_SECONDS = Histogram(
    "omnistage_http_request_seconds", "seconds", "From a request's arrival to its last byte.", "gateway", ("endpoint",)
)
TIME_TO_FIRST_TOKEN = Histogram(
    "omnistage_time_to_first_token_seconds", "seconds", "From a request's arrival to its first text.", "gateway"
)
TIME_TO_FIRST_AUDIO = Histogram(
    "omnistage_time_to_first_audio_seconds", "seconds", "From a request's arrival to its first samples.", "gateway"
)
REAL_TIME_FACTOR = Histogram(
    "omnistage_real_time_factor",
    "ratio",
    "Seconds spent per second of audio made; below 1 is faster than it plays.",
    "gateway",
    buckets=_RATIO,
)
CLIENT_UNDERRUNS = Counter(
    "omnistage_client_underruns",
    "underruns",
    "Times that a stream ran dry by the client's clock, which starts with the first samples written to it.",
    "gateway",
)
CLIENT_UNDERRUN_SECONDS = Counter(
    "omnistage_client_underrun_seconds", "seconds", "How long clients waited for samples in these underruns.", "gateway"
)
REFUSALS = Counter(
    "omnistage_refusals", "requests", "Requests refused at the door, by error code.", "gateway", ("code",)
)
WAITING = Gauge("omnistage_waiting_requests", "requests", "Requests in the gateway's waiting line.", "gateway")
WAITING_SECONDS = Histogram(
    "omnistage_waiting_seconds", "seconds", "Time in the gateway's waiting line.", "gateway", buckets=_WAIT_S
)
REQUESTS_RUNNING = Gauge("omnistage_requests_running", "requests", "Requests between admission and end.", "gateway")
AUDIO_SECONDS = Counter("omnistage_audio_seconds", "seconds", "Audio delivered to clients.", "gateway")
REPUBLISHED_WORK = Counter(
    "omnistage_republished_work", "work items", "Work published again because its log was silent too long.", "gateway"
)
REDOS = Counter(
    "omnistage_redos", "times", "Times that audio was lost on its way and its stage was asked for it again.", "gateway"
)
ABANDONED = Counter(
    "omnistage_abandoned_clean_ups",
    "requests",
    "Requests that could not be taken out of the system in time; the backstops remain.",
    "gateway",
)
SLOW_READERS = Counter(
    "omnistage_slow_readers", "requests", "Answers cut off because their client stopped reading.", "gateway"
)

QUEUE_DEPTH = Gauge("omnistage_queue_depth", "work items", "Work items that no instance has claimed yet.", "stage")
QUEUE_WAIT = Histogram(
    "omnistage_queue_wait_seconds", "seconds", "From the publishing of a work item to its claim.", "stage"
)
SLOTS = Gauge("omnistage_slots", "slots", "Requests that the engine runs at once.", "stage")
SLOTS_IN_USE = Gauge("omnistage_slots_in_use", "slots", "Requests that hold a slot.", "stage")
SLOT_SECONDS = Histogram("omnistage_slot_seconds", "seconds", "How long a request held its slot.", "stage")
ENGINE_READY = Gauge("omnistage_engine_ready", "0 or 1", "Whether the engine answers.", "stage")
ENGINE_FACT = Gauge(
    "omnistage_engine_fact",
    "as named",
    'What the engine announces about itself, by name, e.g. "speed_max".',
    "stage",
    ("fact",),
)
WORK_DONE = Counter(
    "omnistage_work_done",
    "work items",
    'Work items brought to an end, by outcome ("ok" or an error code).',
    "stage",
    ("outcome",),
)
BATCH_SIZE = Histogram("omnistage_batch_size", "requests", "Requests in one engine step.", "stage", buckets=_BATCH)
STEP_SECONDS = Histogram("omnistage_step_seconds", "seconds", "Duration of one engine step.", "stage", buckets=_STEP_S)
TOKENS = Counter(
    "omnistage_tokens",
    "tokens",
    'Tokens read and written, by kind ("prompt", "cached", "completion").',
    "stage",
    ("kind",),
)
FRAMES = Counter("omnistage_frames", "frames", "Acoustic frames or codec tokens made or decoded.", "stage")
CACHE_BLOCKS = Gauge(
    "omnistage_cache_blocks",
    "blocks",
    'Key-value cache blocks, by state ("used", "cached", "free").',
    "stage",
    ("state",),
)
REDELIVERIES = Counter(
    "omnistage_redeliveries", "work items", "Work items claimed that had been delivered before.", "stage"
)
WORK_FOR_LATER = Counter(
    "omnistage_work_for_later_versions",
    "work items",
    "Work items given back because they need a later version.",
    "stage",
)
RESUMPTIONS = Counter(
    "omnistage_resumptions", "requests", "Requests continued from the log of an earlier holder.", "stage"
)
POISONED = Counter("omnistage_poisoned", "work items", "Work items given up on and kept in class dead.", "stage")

HOP_SECONDS = Histogram(
    "omnistage_hop_seconds",
    "seconds",
    "From the publishing of a record to its reader, by edge.",
    "every",
    ("edge",),
    _HOP_S,
)
TENSOR_BYTES = Counter(
    "omnistage_tensor_bytes",
    "bytes",
    'Payload bytes published, by edge and place ("inline", "shm", …).',
    "every",
    ("edge", "place"),
)
ARENA_USED = Gauge("omnistage_arena_used_bytes", "bytes", "Bytes in use in this instance's arena partition.", "every")
ARENA_CAPACITY = Gauge("omnistage_arena_capacity_bytes", "bytes", "Size of this instance's arena partition.", "every")
TENSOR_SPILLS = Counter(
    "omnistage_tensor_spills", "blocks", "Blocks that went to Redis because the arena was full.", "every"
)
TENSOR_RECLAIMED = Counter("omnistage_tensor_reclaimed", "blocks", "Blocks reclaimed by sweeping.", "every")
SKIPPED_MESSAGES = Counter(
    "omnistage_skipped_messages",
    "messages",
    "Messages that were of no use because they are broken or of a later version, by where they came from "
    '("work", "feed", "out", "ctl", "presence").',
    "every",
    ("via",),
)
CANCELLATIONS = Counter("omnistage_cancellations", "requests", "Requests stopped before their end.", "every")
TASKS = Gauge("omnistage_tasks", "tasks", "Asynchronous tasks alive in the process.", "every")
BUS_CONNECTED = Gauge("omnistage_bus_connected", "0 or 1", "Whether the broker connection stands.", "every")
BUS_RECONNECTS = Counter("omnistage_bus_reconnects", "times", "Broker connections made again.", "every")
BUS_GAPS = Counter("omnistage_bus_gaps", "gaps", "Gaps of the live path filled from the log.", "every")
BUS_FENCED = Counter("omnistage_bus_fenced", "appends", "Appends refused because another holder wrote.", "every")
BUS_ERRORS = Counter("omnistage_bus_errors", "errors", "Bus operations that failed, by error code.", "every", ("code",))
PROCESS_START = Gauge(
    "omnistage_process_start_time_seconds", "seconds", "When the process started, in unix time.", "every"
)
BUILD = Gauge("omnistage_build_info", "1", "Always 1; the version is the label.", "every", ("version",))

METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""All of them, in the order of their definition."""

SPAN_REQUEST = "gateway.request"
"""One HTTP request, from its arrival to its last byte."""
SPAN_WAIT = "gateway.wait"
"""Its time in the waiting line."""
SPAN_WORK = "stage.work"
"""One work item, from its claim to its end."""
SPANS = (SPAN_REQUEST, SPAN_WAIT, SPAN_WORK)

ATTR_REQUEST_ID = "omnistage.request_id"
ATTR_ENDPOINT = "omnistage.endpoint"
ATTR_PIPELINE = "omnistage.pipeline"
ATTR_NODE = "omnistage.node"
ATTR_MODEL = "omnistage.model"
ATTR_DELIVERIES = "omnistage.deliveries"
ATTR_OUTCOME = "omnistage.outcome"
ATTR_STATUS = "http.response.status_code"
ATTR_AUDIO_S = "omnistage.audio_s"
ATTR_FIRST_AUDIO_S = "omnistage.first_audio_s"
ATTR_UNDERRUNS = "omnistage.underruns"
ATTR_UNDERRUN_S = "omnistage.underrun_s"
"""Of an answer with sound; where a request has several answers, of the last to end."""
ATTRIBUTES = (
    ATTR_REQUEST_ID,
    ATTR_ENDPOINT,
    ATTR_PIPELINE,
    ATTR_NODE,
    ATTR_MODEL,
    ATTR_DELIVERIES,
    ATTR_OUTCOME,
    ATTR_STATUS,
    ATTR_AUDIO_S,
    ATTR_FIRST_AUDIO_S,
    ATTR_UNDERRUNS,
    ATTR_UNDERRUN_S,
)
