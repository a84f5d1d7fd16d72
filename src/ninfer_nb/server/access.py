"""Who may call, and from where: the API key and cross-origin headers, before any body is read (`serving.md` 3)."""

from __future__ import annotations

import hmac
from typing import Any

from litestar.types import ASGIApp, Message, Receive, Scope, Send

from ..frontend.jsontext import dumps
from .errors import ApiError

PROTECTED = ("/props", "/slots", "/tools", "/metrics", "/tokenize", "/detokenize")
CORS_HEADERS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Headers": "Authorization, Content-Type",
    "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
}


def error_body(error: ApiError, path: str) -> bytes:
    """In the shape of the endpoint's protocol."""
    if path.startswith("/v1/messages"):
        return dumps(error.anthropic(), compact=True).encode("utf-8", "replace")
    body = error.openai()
    if path.startswith("/v1/responses") and body["error"]["param"] == "messages":
        body["error"]["param"] = "input"
    return dumps(body, compact=True).encode("utf-8", "replace")


class Access:
    """ASGI wrapper around the whole application."""

    def __init__(self, app: ASGIApp, api_key: str | None, cors: bool):
        self.app, self.api_key, self.cors = app, api_key, cors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        extra = dict(CORS_HEADERS) if self.cors else {}
        if self.cors and scope["method"] == "OPTIONS":
            await _reply(send, 204, b"", extra | _requested(headers))
        elif self._is_refused(scope["path"], headers):
            error = ApiError(401, "missing or invalid API key", code="invalid_api_key")
            await _reply(send, 401, error_body(error, scope["path"]), extra)
        else:
            await self.app(scope, receive, _adding(send, extra) if extra else send)

    def _is_refused(self, path: str, headers: dict[str, str]) -> bool:
        protected = path == "/v1" or path.startswith(("/v1/", *PROTECTED))
        if self.api_key is None or not protected:
            return False
        offered = (headers.get("authorization", ""), f"Bearer {headers.get('x-api-key', '')}")
        expected = f"Bearer {self.api_key}".encode()
        matches = [hmac.compare_digest(text.encode("utf-8", "replace"), expected) for text in offered]
        return not any(matches)


def _requested(headers: dict[str, str]) -> dict[str, str]:
    """The header names that a preflight asks for, each once, as first spelled."""
    names: dict[str, str] = {}
    for name in headers.get("access-control-request-headers", "").split(","):
        if name.strip():
            names.setdefault(name.strip().lower(), name.strip())
    return {"Access-Control-Allow-Headers": ", ".join(names.values())} if names else {}


def _adding(send: Send, extra: dict[str, str]) -> Send:
    encoded = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in extra.items()]

    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *encoded]
        await send(message)

    return wrapped


async def _reply(send: Send, status: int, body: bytes, extra: dict[str, str]) -> None:
    headers: dict[str, Any] = {"content-length": str(len(body)), **{k.lower(): v for k, v in extra.items()}}
    if body:
        headers["content-type"] = "application/json"
    encoded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body, "more_body": False})
