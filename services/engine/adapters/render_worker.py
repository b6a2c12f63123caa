"""A process that renders and tokenizes prompts, one after the other: off the engine's loop, and without its interpreter lock.

`python -m services.engine.adapters.render_worker`, with a socket as standard input. Ends with the socket.
A template that takes too long is interrupted here; what can't be interrupted is killed from outside (`render_pool`).
Imports neither vllm nor transformers, so that it starts in a moment.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

import jinja2
import msgspec

from services.engine.adapters.chat_template import ChatTemplate, TemplateRefusal
from services.engine.adapters.prompt_tokens import Marker, NoMarkError, PromptTokenizer
from services.engine.adapters.render_frames import (
    ChatJob,
    FrameReader,
    NotRendered,
    Ready,
    Rendered,
    RenderJob,
    Reply,
    Setup,
    TemplateSetup,
    TextJob,
    frame,
)

_READ_BYTES = 1 << 18


class TooSlow(BaseException):
    """The deadline of a job passed. No `Exception`: nothing on the way may catch it."""


class Renderer:
    """Does jobs for one model."""

    def __init__(self, setup: Setup) -> None:
        self._tokenizer = PromptTokenizer(setup.tokenizer_json)
        self._variables = setup.variables
        self._chat = self._compiled(setup.chat)
        self._tools = self._compiled(setup.tools)
        self._timeout_s = setup.timeout_s

    def do(self, job: RenderJob) -> Reply:
        """Return the tokens, or why there are none."""
        try:
            return Rendered(job.number, self._tokens_in_time(job))
        except TooSlow:
            text = f"rendering the prompt took more than {self._timeout_s:g} s; shorten it"
            return NotRendered(job.number, text)
        except (TemplateRefusal, NoMarkError) as error:
            return NotRendered(job.number, str(error))
        except Exception as error:  # noqa: BLE001 - a template is a program: it may raise anything
            text = f"the chat template of the model can't render these messages: {_told(error)}"
            return NotRendered(job.number, text)

    def _tokens_in_time(self, job: RenderJob) -> list[int]:
        signal.setitimer(signal.ITIMER_REAL, self._timeout_s)
        try:
            return self._tokens(job)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _tokens(self, job: RenderJob) -> list[int]:
        match job:
            case TextJob():
                return self._tokenizer.encode_raw(job.text)
            case ChatJob():
                return self._chat_tokens(job)

    def _chat_tokens(self, job: ChatJob) -> list[int]:
        template = self._chat if job.tools_json is None else self._tools
        assert template is not None, "chats are refused where there is no template"
        messages = template.prepared(msgspec.json.decode(job.messages_json, type=list))
        tools = None if job.tools_json is None else msgspec.json.decode(job.tools_json, type=list)
        marker = Marker(self._tokenizer.specials, [messages, tools])
        return self._tokenizer.encode_rendered(template.render(*marker.marked()), marker)

    def _compiled(self, template: TemplateSetup | None) -> ChatTemplate | None:
        if template is None:
            return None
        return ChatTemplate(
            template.source, variables=self._variables, content_format=template.content_format
        )


def _told(error: Exception) -> str:
    """Return what the error says, without the values in it where jinja adds none of its own."""
    return str(error) if isinstance(error, jinja2.TemplateError) else type(error).__name__


def _stop(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise TooSlow


def serve(stream: socket.socket) -> None:
    """Do jobs until the other side is gone."""
    bodies = _bodies(stream)
    renderer = Renderer(msgspec.msgpack.decode(next(bodies), type=Setup))
    stream.sendall(frame(Ready()))
    decoder = msgspec.msgpack.Decoder(RenderJob)
    for body in bodies:
        stream.sendall(frame(renderer.do(decoder.decode(body))))


def _bodies(stream: socket.socket) -> Iterator[bytes]:
    reader = FrameReader()
    while data := stream.recv(_READ_BYTES):
        yield from reader.feed(data)


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, _stop)
    # The terminal's Ctrl-C is for the engine, which closes the socket when it has finished.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=sys.stdin.fileno()) as peer:
        try:
            serve(peer)
        except (StopIteration, ConnectionError):
            sys.exit(0)
