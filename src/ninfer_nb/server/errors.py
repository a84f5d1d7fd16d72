"""Errors as clients see them: one exception, two wire shapes (`serving.md` 4)."""

from __future__ import annotations

from typing import Any

from ..errors import (
    ContextLengthExceeded,
    NonFiniteLogits,
    Overloaded,
    QueueTimeout,
    RequestError,
    Unavailable,
)

INVALID = "invalid_request_error"

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ApiError(Exception):
    """An HTTP error. `param` names the field, `code` is one of `serving.md` 4 or None."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None, type: str = INVALID
    ):
        super().__init__(message)
        self.status, self.message, self.code, self.param, self.type = status, message, code, param, type

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": "1"} if self.status in (429, 503) else {}

    def openai(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def anthropic(self) -> dict[str, Any]:
        kind = "api_error" if self.status >= 500 else _ANTHROPIC_TYPES.get(self.status, INVALID)
        return {"type": "error", "error": {"type": kind, "message": self.message}}


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400."""
    return ApiError(400, message, code=code, param=param)


def of_engine(error: Exception, param: str | None = "messages") -> ApiError:
    """What an exception of the engine or the frontend means to a client."""
    match error:
        case ApiError():
            return error
        case ContextLengthExceeded():
            return ApiError(400, str(error), code="context_length_exceeded", param=param)
        case Overloaded():
            message = "inference request queue is full"
            return ApiError(429, message, code="server_overloaded", type="rate_limit_error")
        case QueueTimeout():
            message = "inference request expired while waiting for admission"
            return ApiError(503, message, code="request_queue_timeout", type="server_error")
        case Unavailable():
            return ApiError(503, str(error), code="service_unavailable", type="server_error")
        case NonFiniteLogits():
            return ApiError(500, "model produced non-finite logits", type="internal_error")
        case RequestError():
            code = "vision_disabled" if str(error).startswith("Vision is disabled") else "invalid_media"
            message = "Vision is disabled for this server" if code == "vision_disabled" else str(error)
            return ApiError(400, message, code=code, param=param)
    return ApiError(500, str(error) or type(error).__name__, type="internal_error")
