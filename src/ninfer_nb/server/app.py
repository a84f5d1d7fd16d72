"""The routes (`serving.md` 2): bodies in, whole or streamed answers out. Each handler reads like its protocol."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from litestar import Litestar, Request, Response, get, post
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.response import Stream

from ..frontend.jsontext import dumps
from .access import error_body
from .anthropic_request import parse_anthropic
from .anthropic_response import PING, AnthropicStream, message
from .chat_request import include_usage, parse_chat
from .chat_response import ChatStream, completion
from .errors import ApiError, of_engine
from .fields import parse_body, string
from .options import ServerOptions
from .serving import Outcome, Running, Serving
from .sse import HEADERS, KEEP_ALIVE, kept_alive
from .work import Work

Body = Mapping[str, Any]


class Gateway:
    """What the handlers of all protocols share."""

    def __init__(self, serving: Serving, options: ServerOptions):
        self.serving, self.options = serving, options

    async def body(self, request: Request) -> dict[str, Any]:
        """The JSON object of a request, within the size limit. Raises ApiError."""
        limit, size, chunks = self.options.max_request_bytes, 0, []
        message = f"request body exceeds the configured payload limit of {limit} bytes"
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > limit:
            raise ApiError(413, message, code="request_too_large")
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise ApiError(413, message, code="request_too_large")
            chunks.append(chunk)
        return parse_body(b"".join(chunks))

    def check_model(self, body: Body) -> str:
        """The public id; a request may leave it out. Raises ApiError."""
        model = string(body, "model") or self.serving.model_id
        if model != self.serving.model_id:
            message = f"model {model} does not exist; this server has {self.serving.model_id}"
            raise ApiError(404, message, code="model_not_found")
        return model

    async def whole(self, request: Request, work: Work, shape: Callable[[Outcome], Any]) -> Response:
        """Run to the end, unless the client goes away before."""
        running = await self.serving.start(work)
        answer = asyncio.ensure_future(running.whole())
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ApiError(499, "client disconnected", code="client_disconnected", type="request_cancelled")
            return json_response(shape(answer.result()), headers=_ignored(work))
        finally:
            gone.cancel()
            answer.cancel()
            await asyncio.gather(gone, answer, return_exceptions=True)
            running.close()

    def stream(self, running: Running, frames: AsyncIterator[bytes], silence: bytes = KEEP_ALIVE) -> Stream:
        """An event stream that is never silent for long."""
        kept = kept_alive(frames, self.options.keepalive_ms / 1000, lambda: silence)
        headers = HEADERS | _ignored(running.work)
        return Stream(kept, media_type="text/event-stream", status_code=200, headers=headers)


def json_response(payload: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = dumps(payload, compact=True).encode("utf-8", "replace")
    return Response(body, status_code=status, media_type="application/json", headers=headers)


def _ignored(work: Work) -> dict[str, str]:
    return {"X-NInfer-Ignored": ",".join(work.ignored)} if work.ignored else {}


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def build_app(serving: Serving, options: ServerOptions) -> Litestar:
    """The application. Wrap it in `access.Access` before serving it."""
    gateway = Gateway(serving, options)
    routes = [*operator_routes(serving, options), *chat_routes(gateway), *anthropic_routes(gateway)]
    return Litestar(
        routes,
        openapi_config=OpenAPIConfig(title="NInfer", version="1", path="/schema"),
        exception_handlers={ApiError: _on_api_error, HTTPException: _on_http_error, Exception: _on_surprise},
        debug=False,
        logging_config=None,
    )


def _on_api_error(request: Request, error: ApiError) -> Response:
    return Response(
        error_body(error, request.url.path), status_code=error.status, media_type="application/json",
        headers=error.headers,
    )  # fmt: skip


def _on_http_error(request: Request, error: HTTPException) -> Response:
    known = {404: f"no such endpoint: {request.url.path}", 405: f"{request.method} is not allowed here"}
    return _on_api_error(request, ApiError(error.status_code, known.get(error.status_code, error.detail)))


def _on_surprise(request: Request, error: Exception) -> Response:
    return _on_api_error(request, of_engine(error))


def operator_routes(serving: Serving, options: ServerOptions) -> list[Any]:
    """Health, metrics and the model list."""

    def model() -> dict[str, Any]:
        return {
            "id": serving.model_id,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "ninfer",
            "status": {"value": "loaded"},
            "meta": {"n_ctx": serving.engine.limits.max_context},
        }

    @get("/health")
    async def health() -> Response:
        if serving.draining or serving.failed:
            return json_response({"status": "draining" if serving.draining else "failed"}, 503)
        return json_response({"status": "ok"})

    @get("/metrics")
    async def metrics() -> Response:
        if not options.metrics:
            raise ApiError(404, "metrics are turned off")
        text = serving.journal.metrics.text(serving.engine)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @get("/v1/models")
    async def models() -> Response:
        return json_response({"object": "list", "data": [model()]})

    @get("/v1/models/{identity:path}")
    async def one_model(identity: str) -> Response:
        if identity.lstrip("/") != serving.model_id:
            raise ApiError(404, f"model {identity.lstrip('/')} does not exist", code="model_not_found")
        return json_response(model())

    return [health, metrics, models, one_model]


def chat_routes(gateway: Gateway) -> list[Any]:
    """OpenAI Chat Completions."""
    serving = gateway.serving

    @post("/v1/chat/completions", status_code=200)
    async def chat(request: Request) -> Response:
        body = await gateway.body(request)
        model = gateway.check_model(body)
        work = parse_chat(body, model, serving.defaults)
        with_usage = include_usage(body)
        if not work.stream:
            return await gateway.whole(request, work, lambda outcome: completion(outcome, model))
        running = await serving.start(work)
        return gateway.stream(running, ChatStream(running, model, with_usage).frames())

    return [chat]


def anthropic_routes(gateway: Gateway) -> list[Any]:
    """Anthropic Messages."""
    serving = gateway.serving

    @post("/v1/messages", status_code=200)
    async def messages(request: Request) -> Response:
        work = parse_anthropic(await gateway.body(request), serving.defaults)
        if not work.stream:
            return await gateway.whole(request, work, lambda outcome: message(outcome, work.model))
        running = await serving.start(work)
        return gateway.stream(running, AnthropicStream(running, work.model).frames(), PING)

    @post("/v1/messages/count_tokens", status_code=200)
    async def count_tokens(request: Request) -> Response:
        work = parse_anthropic(await gateway.body(request), serving.defaults, count_only=True)
        serving.check_open()
        return json_response({"input_tokens": len((await serving.prepare(work)).ids)})

    return [messages, count_tokens]
