"""Every error that crosses a module border, with its code, HTTP status and whether a retry can help.

    OmnistageError
    ├── InvalidRequest (400)        the client's fault; `param` names the field
    │   └── PayloadTooLarge (413)
    ├── Unauthenticated (401)
    ├── NotFound (404)
    ├── Cancelled (499)             the client left, or asked to stop
    ├── RateLimited (429)           this key has too much in flight
    ├── Unavailable (503)           nothing is free or ready; `retry_after_s` says when to come back
    ├── DeadlineExceeded (504)
    │   └── InputStarved            a stage waited too long for an input edge
    ├── StageFailed (500)           a stage could not do its work
    │   └── Poisoned                it ended every instance that ran it
    ├── ConfigError                 a setting or models.yaml is wrong; only at start
    ├── BusError (503)
    │   ├── BusUnavailable          no connection, or no answer in time
    │   ├── QueueFull               a work stream refused an item (back-pressure)
    │   ├── Fenced                  another holder has taken this log; stop writing
    │   └── MessageTooLarge         a body over the bus limit: a bug, bulk belongs in the tensor plane
    └── TensorError (503)
        ├── TensorGone              the block was released, reclaimed or overwritten
        ├── TensorCorrupt           the bytes do not match their checksum
        ├── TensorStoreFull         no room within the time allowed
        └── TensorUnavailable       the tensor server does not answer

Errors of libraries (nats, redis, torch, onnxruntime) are mapped to these in the adapters, nowhere else.
"""

from __future__ import annotations


class OmnistageError(Exception):
    """Base of all errors: a message for people, and the fields that survive every hop.

    Attributes:
        code: machine-readable reason, snake_case.
        status: HTTP status that the gateway answers with.
        retryable: whether the same request may succeed later or elsewhere.
        param: the request field at fault, if one is.
        stage: the stage where it happened, if known.
        retry_after_s: seconds after which a retry makes sense, if known.
    """

    code = "internal_error"
    status = 500
    retryable = False

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        stage: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        self.param = param
        self.stage = stage
        self.retry_after_s = retry_after_s


class InvalidRequest(OmnistageError):
    code = "invalid_value"
    status = 400


class PayloadTooLarge(InvalidRequest):
    code = "payload_too_large"
    status = 413


class Unauthenticated(OmnistageError):
    code = "invalid_api_key"
    status = 401


class NotFound(OmnistageError):
    code = "not_found"
    status = 404


class Cancelled(OmnistageError):
    code = "cancelled"
    status = 499


class RateLimited(OmnistageError):
    code = "rate_limit_exceeded"
    status = 429
    retryable = True


class Unavailable(OmnistageError):
    code = "unavailable"
    status = 503
    retryable = True


class DeadlineExceeded(OmnistageError):
    code = "deadline_exceeded"
    status = 504
    retryable = True


class InputStarved(DeadlineExceeded):
    code = "input_starved"


class StageFailed(OmnistageError):
    code = "stage_failed"
    status = 500


class Poisoned(StageFailed):
    code = "poisoned"


class ConfigError(OmnistageError):
    code = "config_error"


class BusError(OmnistageError):
    code = "bus_error"
    status = 503
    retryable = True


class BusUnavailable(BusError):
    code = "bus_unavailable"


class QueueFull(BusError):
    code = "queue_full"


class Fenced(BusError):
    code = "fenced"


class MessageTooLarge(BusError):
    code = "message_too_large"
    status = 500
    retryable = False


class TensorError(OmnistageError):
    code = "tensor_error"
    status = 503
    retryable = True


class TensorGone(TensorError):
    code = "tensor_gone"


class TensorCorrupt(TensorError):
    code = "tensor_corrupt"


class TensorStoreFull(TensorError):
    code = "tensor_store_full"


class TensorUnavailable(TensorError):
    code = "tensor_server_unavailable"
