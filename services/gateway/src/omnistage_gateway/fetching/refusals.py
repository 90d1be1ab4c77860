"""Why a URL was not loaded. Messages name the field and a rule, never an address, a redirect's target or an answer."""

from __future__ import annotations

from omnistage.errors import InvalidRequest

INVALID = "invalid_url"
NOT_ALLOWED = "url_not_allowed"
UNREACHABLE = "url_unreachable"
TOO_LARGE = "url_too_large"
TIMED_OUT = "url_timeout"

_NO_ANSWER = "it could not be loaded"


class UrlRefused(InvalidRequest):
    """A URL that a client named was not loaded: a 400 that names the field.

    Attributes:
        reason: what is logged; like the message, but for an address that must not be told to clients.
    """

    def __init__(self, message: str, *, code: str, reason: str | None = None) -> None:
        super().__init__(message, code=code)
        self.reason = reason or message

    def about(self, param: str) -> UrlRefused:
        """The same, with the field that it is about."""
        told = UrlRefused(f"Invalid URL in '{param}': {self.message}.", code=self.code, reason=self.reason)
        told.param = param
        return told


def unreachable(reason: str) -> UrlRefused:
    """Whether a host is unknown, silent or private is one answer for clients: else they could map a network by it."""
    return UrlRefused(_NO_ANSWER, code=UNREACHABLE, reason=reason)
