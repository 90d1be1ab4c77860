"""Errors to their form on the wire and back: status, type, field and retryability survive every hop."""

from __future__ import annotations

from omnistage import errors
from omnistage.contracts import Failure
from omnistage.errors import OmnistageError, StageFailed


def _tree(root: type[OmnistageError]) -> list[type[OmnistageError]]:
    return [root, *(leaf for branch in root.__subclasses__() for leaf in _tree(branch))]


_BY_CODE = {kind.code: kind for kind in reversed(_tree(errors.OmnistageError)) if kind.__module__ == errors.__name__}
_BY_STATUS: dict[int, type[OmnistageError]] = {
    400: errors.InvalidRequest,
    401: errors.Unauthenticated,
    404: errors.NotFound,
    413: errors.PayloadTooLarge,
    429: errors.RateLimited,
    499: errors.Cancelled,
    503: errors.Unavailable,
    504: errors.DeadlineExceeded,
}


def to_failure(error: BaseException, stage: str) -> Failure:
    """The wire form of an error. What is not ours becomes an internal error without its text, which may hold input."""
    if isinstance(error, OmnistageError):
        return Failure(
            code=error.code,
            message=error.message,
            status=error.status,
            retryable=error.retryable,
            param=error.param,
            stage=error.stage or stage,
            retry_after_s=error.retry_after_s,
        )
    return Failure(
        code=StageFailed.code,
        message=f"the {stage} failed with an internal error ({type(error).__name__})",
        status=StageFailed.status,
        stage=stage,
    )


def to_error(failure: Failure) -> OmnistageError:
    """The error that a failure stands for; a code of our own finds its class, else the status does."""
    kind = _BY_CODE.get(failure.code)
    if kind is None or kind.status != failure.status:
        kind = _BY_STATUS.get(failure.status, StageFailed)
    error = kind(
        failure.message,
        code=failure.code,
        param=failure.param,
        stage=failure.stage,
        retry_after_s=failure.retry_after_s,
    )
    error.status = failure.status
    error.retryable = failure.retryable
    return error
