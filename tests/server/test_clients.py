"""The official clients against a server on the mini: whole and streamed answers, errors, disconnects."""

import socket
import threading
import time

import anthropic
import httpx
import openai
import pytest

from ninfer_nb.engine.engine import Engine
from ninfer_nb.engine.options import EngineOptions
from ninfer_nb.server.journal import Journal
from ninfer_nb.server.metrics import Metrics
from ninfer_nb.server.options import ServerOptions
from ninfer_nb.server.run import Server, bind
from ninfer_nb.server.serving import Serving

KEY = "secret"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."


class QuietServer(Server):
    def capture_signals(self):  # signals belong to the main thread
        return threading.Lock()


@pytest.fixture(scope="module")
def served():
    options = ServerOptions(api_key=KEY, max_request_mib=1)
    engine_options = EngineOptions(device="cpu", max_concurrency=3, kv_capacity="auto", spec="mtp", draft_tokens=3)
    with Engine.open("mini", engine_options) as engine, bind("127.0.0.1", 0) as listener:
        serving = Serving(engine, "mini", options.defaults, Journal(Metrics("0", "mini", "w")))
        server = QuietServer(serving, options)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", serving
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def chat(served):
    return openai.OpenAI(base_url=f"{served[0]}/v1", api_key=KEY, max_retries=0).chat.completions


@pytest.fixture
def messages(served):
    return anthropic.Anthropic(base_url=served[0], api_key=KEY, max_retries=0).messages


PLAIN = {"model": "mini", "messages": QUESTION, "temperature": 0, "extra_body": {"enable_thinking": False}}


def test_chat_whole_and_streamed_agree(chat):
    whole = chat.create(**PLAIN)
    assert whole.choices[0].message.content == ANSWER and whole.choices[0].finish_reason == "stop"
    chunks = list(chat.create(**PLAIN, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == ANSWER
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_messages_whole_and_streamed_agree(messages):
    settings = {"model": "any", "max_tokens": 60, "messages": QUESTION, "thinking": {"type": "disabled"}}
    whole = messages.create(**settings, extra_body={"temperature": 0})
    assert whole.content[0].text == ANSWER and whole.stop_reason == "end_turn"
    with messages.stream(**settings, extra_body={"temperature": 0}) as stream:
        assert "".join(stream.text_stream) == ANSWER
        assert stream.get_final_message().usage.output_tokens == whole.usage.output_tokens
    cut = messages.create(**settings, stop_sequences=[" France"], extra_body={"temperature": 0})
    assert (cut.stop_reason, cut.stop_sequence, cut.content[0].text) == (
        "stop_sequence", " France", "The capital of",
    )  # fmt: skip


def test_errors_have_their_status(served, chat):
    base, headers = served[0], {"Authorization": f"Bearer {KEY}"}
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        chat.create(**PLAIN | {"model": "other"})
    with pytest.raises(openai.BadRequestError, match=r"temperature must be in \[0,2\]"):
        chat.create(**PLAIN | {"temperature": 3})
    with pytest.raises(openai.BadRequestError, match="not supported yet"):
        chat.create(**PLAIN, response_format={"type": "json_object"})
    url = f"{base}/v1/chat/completions"
    assert httpx.post(url, json={}).status_code == 401
    assert httpx.post(f"{base}/v1/messages", json={}).json()["error"]["type"] == "authentication_error"
    assert httpx.post(url, content=b"{", headers=headers).json()["error"]["message"] == "request body is not valid JSON"
    assert httpx.post(url, content=b"[" * 100_000, headers=headers).status_code == 400
    assert httpx.post(url, content=b"x" * (2 << 20), headers=headers).status_code == 413
    assert httpx.get(f"{base}/nothing").status_code == 404
    assert httpx.get(f"{base}/health").json() == {"status": "ok"}
    assert "ninfer_engine_up 1.0" in httpx.get(f"{base}/metrics", headers=headers).text


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_lane(served, stream):
    base, serving = served
    host, port = base.removeprefix("http://").split(":")
    body = (
        '{"messages":[{"role":"user","content":"Tell me a long story."}],"max_tokens":1500,"temperature":0,'
        f'"stop":["never"],"stream":{str(stream).lower()}}}'
    )
    with socket.create_connection((host, int(port))) as connection:
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nx-api-key: {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection.sendall((head + body).encode())
        time.sleep(0.15)
    deadline = time.monotonic() + 3
    while serving.running and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not serving.running
    while serving.engine.stats().running_requests and time.monotonic() < deadline:
        time.sleep(0.02)
    assert serving.engine.stats().running_requests == 0
