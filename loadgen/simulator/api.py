"""vLLM's endpoints: turns JSON requests into sequences and answers, and serves endpoints for operators and tests.

Besides vLLM's own: GET /truth (what was served, see `ground_truth`) and GET /truth?since=UNIX_NS&until=UNIX_NS (within
that window; either may be missing), both without vramp's canaries, which are recognised by their X-Request-Id; GET
/truth/sessions (the same of each session); POST /truth/reset; and to change a running engine
POST /admin/faults `{"faults": ["reset:share=0.1"]}` and POST /admin/config `{"base_ms": 12}`; GET on either shows it.
Unknown fields of a body are ignored, as by vLLM.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, fields, replace
from functools import cache
from random import Random
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl

import msgspec

from loadgen.errors import UNDECODABLE, ProfileError
from loadgen.schema.output import CANARY_ID
from loadgen.simulator import tokens
from loadgen.simulator.answers import AnswerStream, BaseAnswer, ComposedStream, Exchange, WholeAnswer
from loadgen.simulator.engine import Sequence
from loadgen.simulator.faults import (
    HANGS,
    NOT_HTTP,
    REFUSALS,
    Fault,
    FaultyStream,
    FaultyWhole,
    chosen,
    parse_fault,
    wrong_scores,
    wrong_text,
)
from loadgen.simulator.ground_truth import TOKEN_HEADER, GroundTruth, ServedSession
from loadgen.simulator.http import Connection, Request
from loadgen.simulator.physics import SIZE_OF_POOL, Physics
from loadgen.simulator.scores import MAX_TOP, Scores
from loadgen.simulator.service import Service
from loadgen.simulator.vllm_events import Events, ResponseEvents, encode
from loadgen.workload.questions import questions_of

COMPLETIONS, RESPONSES = "/v1/completions", "/v1/responses"
_UNCOUNTED = {"/metrics", "/health", "/version"}  # not in the metrics, as in vLLM
VERSION = "0.32.0+simulator"
_KNOWN_QUESTIONS = 1000

Body = TypeVar("Body")


class StreamOptions(msgspec.Struct):
    """What a stream's events should carry."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Message(msgspec.Struct):
    """One message of a chat; content is text or a list of parts."""

    role: str
    content: str | list[dict[str, Any]] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(str(part.get("text", "")) for part in self.content)
        return self.content or ""


class Generate(msgspec.Struct):
    """The fields of a completion, chat or response that are used here; any others are ignored."""

    model: str | None = None
    prompt: str | list[int | str | list[int]] | None = None
    messages: list[Message] | None = None
    input: str | list[Message] | None = None
    max_tokens: int | None = None
    max_output_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = 1
    echo: bool = False
    logprobs: bool | int | None = None  # a bool in a chat, where it is ignored
    prompt_logprobs: int | None = None

    @property
    def conversation(self) -> list[Message]:
        if isinstance(self.input, str):
            return [Message("user", self.input)]
        return self.input or self.messages or []

    @property
    def question(self) -> str:
        """The last message of a chat, or the prompt of a completion; empty if it is no text."""
        chat = self.conversation
        return chat[-1].text if chat else self.prompt if isinstance(self.prompt, str) else ""

    def scores(self, ids: list[int], seed: str, *, completion: bool) -> Scores | None:
        """The log probabilities to return; never for a stream, unlike vLLM."""
        requested = {"prompt_logprobs": self.prompt_logprobs, "logprobs": self.logprobs if completion else None}
        for name, top in requested.items():
            if top is not None and not 0 <= top <= MAX_TOP:
                text = f"Requested {name} of {top}, which is not within 0 and the max allowed: {MAX_TOP}"
                raise RequestRefused(400, text, param=name)
        if self.stream and self.prompt_logprobs:
            text = "`prompt_logprobs` are not available when `stream=True`."
            raise RequestRefused(400, text, param="prompt_logprobs")
        echo = self.echo and completion
        if self.stream or (requested["prompt_logprobs"] is requested["logprobs"] is None and not echo):
            return None
        return Scores(
            prompt=ids,
            prompt_top=requested["prompt_logprobs"],
            top=requested["logprobs"],
            echo=echo,
            prompt_only=echo and self.max_tokens == 0,
            noise=Random(seed),
        )


class Tokenize(msgspec.Struct):
    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True


class Faults(msgspec.Struct):
    """The faults from now on, in the syntax of `--fault`."""

    faults: list[str]


class RequestRefused(Exception):
    def __init__(self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


class Api:
    def __init__(
        self,
        service: Service,
        *,
        api_key: str | None = None,
        adapters: Iterable[str] = (),
        prompt_tokens_details: bool = False,
        session_tokens: bool = False,
    ) -> None:
        """`adapters` are further names for the same model; `session_tokens`: answers have one, as a router's do."""
        self._service = service
        self._names = (service.model, *adapters)
        self._api_key = api_key
        self._prompt_tokens_details = prompt_tokens_details
        self._session_tokens = session_tokens
        self._started = int(time.time())
        get, post = "GET", "POST"

        self._routes: dict[str, dict[str, Callable[[Connection, Request], None]]] = {
            "/health": {get: lambda connection, _: connection.respond(200, b"")},
            "/version": {get: lambda connection, _: reply(connection, {"version": VERSION})},
            "/metrics": {get: self._metrics},
            "/v1/models": {get: self._models},
            COMPLETIONS: {post: self._generate},
            "/v1/chat/completions": {post: self._generate},
            RESPONSES: {post: self._generate},
            "/tokenize": {post: self._tokenize},
            "/truth": {get: self._truth},
            "/truth/reset": {post: self._reset},
            "/truth/sessions": {get: lambda connection, _: reply(connection, service.sessions.report())},
            "/admin/faults": {get: self._show_faults, post: self._set_faults},
            "/admin/config": {get: self._show_config, post: self._set_config},
        }

    def handle(self, connection: Connection, request: Request) -> None:
        """Answer one request, now or when the engine has its tokens."""
        try:
            self._route(request)(connection, request)
        except RequestRefused as refused:
            self._account(request).requests["rejected"] += 1
            connection.respond(refused.status, encode(refused.body))

    def _account(self, request: Request) -> GroundTruth:
        """The ground truth for a request: the load's, or the canaries'."""
        marked = request.headers.get("x-request-id", "").startswith(CANARY_ID)
        return self._service.canaries if marked else self._service.truth

    def _route(self, request: Request) -> Callable[[Connection, Request], None]:
        methods = self._routes.get(request.path)
        if methods is None:
            raise RequestRefused(404, "Not Found", kind="Not Found")
        route = methods.get("GET" if request.method == "HEAD" else request.method)
        if route is None:
            raise RequestRefused(405, "Method Not Allowed", kind="Method Not Allowed")
        allowed = not self._api_key or request.headers.get("authorization") == f"Bearer {self._api_key}"
        if request.path.startswith("/v1/") and not allowed:
            # Its form differs from that of other errors, as in vLLM.
            return lambda connection, _: connection.respond(401, encode({"error": "Unauthorized"}))
        return route

    def _metrics(self, connection: Connection, _request: Request) -> None:
        answered = connection.server.answered
        known = {answer: count for answer, count in answered.items() if answer[0] in self._routes.keys() - _UNCOUNTED}
        text = self._service.metrics.text(self._service.engine, known)
        connection.respond(200, text.encode(), kind="text/plain; version=1.0.0; charset=utf-8")

    def _models(self, connection: Connection, _request: Request) -> None:
        common = {"object": "model", "created": self._started, "owned_by": "vllm", "permission": []}
        base = {"parent": None, "max_model_len": self._service.engine.physics.max_model_len}
        adapter = {"parent": self._service.model, "max_model_len": None}  # vLLM gives the length of the base model only
        cards = [
            {"id": name, "root": name, **common, **(base if name == self._service.model else adapter)}
            for name in self._names
        ]
        reply(connection, {"object": "list", "data": cards})

    def _tokenize(self, connection: Connection, request: Request) -> None:
        body = read(Tokenize, request.body)
        self._check_model(body.model)
        if body.messages is not None:
            chat = [(each.role, each.text) for each in body.messages]
            ids = tokens.encode_chat(chat, generation_prompt=body.add_generation_prompt)
        elif body.prompt is not None:
            ids = [tokens.BOS] * body.add_special_tokens + tokens.encode(body.prompt)
        else:
            raise RequestRefused(400, "Either prompt or messages has to be given.", kind="Bad Request")
        length = self._service.engine.physics.max_model_len
        reply(connection, {"count": len(ids), "max_model_len": length, "tokens": ids, "token_strs": None})

    def _truth(self, connection: Connection, request: Request) -> None:
        engine, truth, query = self._service.engine, self._service.truth, request.query
        if not query:
            report = truth.report(late_steps=engine.late_steps, steps=engine.steps)
            reply(connection, report | {"canaries": self._service.canaries.requests})
            return
        names = {"since": "since_ns", "until": "until_ns"}
        try:
            window = {names[name]: int(value) for name, value in parse_qsl(query, strict_parsing=True)}
        except (KeyError, ValueError):
            text = f"expected since=UNIX_NS and until=UNIX_NS, or one of them, not {query!r}"
            raise RequestRefused(400, text) from None
        reply(connection, truth.history.window(**window))

    def _reset(self, connection: Connection, _request: Request) -> None:
        self._service.truth.reset()
        self._service.canaries.reset()
        self._service.sessions.reset()
        self._service.engine.late_steps = self._service.engine.steps = 0
        reply(connection, {})

    def _show_faults(self, connection: Connection, _request: Request) -> None:
        reply(connection, {"faults": [asdict(fault) for fault in self._service.faults]})

    def _set_faults(self, connection: Connection, request: Request) -> None:
        try:
            self._service.faults = [parse_fault(text) for text in read(Faults, request.body).faults]
            for truth in (self._service.truth, self._service.canaries):
                truth.faults_since = truth.numbered
        except ProfileError as error:
            raise RequestRefused(400, str(error)) from None
        self._show_faults(connection, request)

    def _show_config(self, connection: Connection, _request: Request) -> None:
        reply(connection, asdict(self._service.engine.physics))

    def _set_config(self, connection: Connection, request: Request) -> None:
        changes = read(dict[str, float], request.body)
        if fixed := changes.keys() & SIZE_OF_POOL:
            raise RequestRefused(400, f"cannot be changed while the engine runs: {', '.join(sorted(fixed))}")
        try:
            # JSON does not distinguish 8 from 8.0.
            counts = {field.name for field in fields(Physics) if isinstance(field.default, int)}
            whole = {name: int(value) for name, value in changes.items() if name in counts and value.is_integer()}
            typed: dict[str, Any] = changes | whole
            self._service.engine.physics = replace(self._service.engine.physics, **typed)
        except (ProfileError, TypeError) as error:
            raise RequestRefused(400, str(error)) from None
        self._show_config(connection, request)

    def _generate(self, connection: Connection, request: Request) -> None:
        """Start an answer, unless a fault prevents it."""
        service, truth = self._service, self._account(request)
        truth.numbered += 1
        number, streams = truth.numbered - truth.faults_since, service.truth.open + 1
        faults = chosen(service.faults, number, service.seed, streams)
        if "close_on_reuse" in faults and not connection.served:
            del faults["close_on_reuse"]
        idle_ns = max(0, request.began_ns - connection.answered_ns) if connection.served else -1
        if "reset_idle" in faults and idle_ns < faults["reset_idle"].seconds * 1e9:
            del faults["reset_idle"]
        truth.faults.update(faults.keys())
        for kind in faults.keys() & set(HANGS):
            service.hang(faults[kind])
        if self._fails_at_once(connection, request, faults):
            truth.requests["failed"] += 1
        else:
            self._start(connection, request, faults)

    def _fails_at_once(self, connection: Connection, request: Request, faults: dict[str, Fault]) -> bool:
        """Send the answer of a fault that does not depend on the request; returns whether there was one."""
        kind = next(
            (kind for kind in ("close_on_reuse", "reset_idle", "not_http", "silent", *REFUSALS) if kind in faults), None
        )
        if kind == "close_on_reuse":
            connection.lost()
        elif kind == "reset_idle":
            connection.reset()
        elif kind == "not_http":
            connection.write(NOT_HTTP)
            connection.close()
        elif kind in REFUSALS:
            status = REFUSALS[kind]
            reported = f" {request.headers}" if kind == "echo" else ""
            error = RequestRefused(status, f"Simulated: {kind}.{reported}", kind="SimulatedError")
            connection.respond(status, encode(error.body), headers="retry-after: 1\r\n" if status == 429 else "")
        return kind is not None

    def _start(self, connection: Connection, request: Request, faults: dict[str, Fault]) -> None:
        service, truth, chat = self._service, self._account(request), request.path != COMPLETIONS
        # Canaries are numbered separately: with a seed, a load gets the same answers whether or not there are canaries.
        number = truth.numbered if truth is service.truth else -truth.numbered
        body = read(Generate, request.body)
        self._check_model(body.model)
        ids = prompt_ids(body, chat=chat)
        limit = self._limit(body, len(ids), chat=chat)
        sequence = service.engine.sequence(number, ids, limit, start=tokens.answer_start(ids))
        known = known_answers().get(body.question)
        if known is not None and len(known) < limit:
            sequence.limit, sequence.reason = len(known), "stop"
        elif "endless" not in faults:
            self._end_by_itself(sequence, body)
        scores = body.scores(ids, f"{service.seed}/score/{number}", completion=request.path == COMPLETIONS)
        if scores is not None:
            if "refuse_scores" in faults:
                raise RequestRefused(400, "Simulated: log probabilities are not supported.", param="logprobs")
            sequence.scored = scores.echo or scores.prompt_top is not None
            scores = wrong_scores(faults, scores)
        if "empty" in faults:
            sequence.limit, sequence.reason = 1, "stop"
        options = body.stream_options or StreamOptions()
        with_usage = "usage_none" not in faults
        # `/v1/responses` sends usage at its end, requested or not.
        at_the_end = options.include_usage or not body.stream or request.path == RESPONSES
        events = self._events(sequence, request.path, body, running_usage=with_usage and options.continuous_usage_stats)
        if known is not None:
            events.token_at = lambda index: known[index]
        events.token_at = wrong_text(faults, events.token_at, sequence.number)
        if self._prompt_tokens_details:
            events.cached = lambda: sequence.cached
        session, headers = self._session_of(request)
        exchange = Exchange(
            connection=connection,
            sequence=sequence,
            events=events,
            truth=truth,
            engine=service.engine,
            served=truth.arrived(request.received_ns, began_ns=request.began_ns, kernel_stamp=request.kernel_stamp),
            with_usage=with_usage and at_the_end,
            idle_close="idle_close" in faults,
            session=session,
            headers=headers,
            scores=scores,
        )
        sequence.stream = answer(exchange, faults, stream=body.stream, composed=known is not None)
        service.submit(sequence, request.received_ns)

    def _session_of(self, request: Request) -> tuple[ServedSession | None, str]:
        """The session of a request, which is recorded there, and the header of its answer with the router's token."""
        session = self._service.sessions.of(request.headers)
        if session is None:
            return None, ""
        token = f"token-of-{request.headers['x-session-id']}" if self._session_tokens else None
        session.arrived(request.headers, token)
        return session, "" if token is None else f"{TOKEN_HEADER}: {token}\r\n"

    def _events(self, sequence: Sequence, path: str, body: Generate, *, running_usage: bool) -> Events:
        prefix = {"/v1/completions": "cmpl", RESPONSES: "resp"}.get(path, "chatcmpl")
        name = f"{prefix}-{self._service.seed:x}-{sequence.number:08x}"
        model, prompt, start = body.model or self._service.model, sequence.prompt_len, sequence.start
        if path == RESPONSES:
            return ResponseEvents(name, model, prompt=prompt, start=start)
        chat = path == "/v1/chat/completions"
        return Events(name, model, chat=chat, prompt=prompt, start=start, running_usage=running_usage)

    def _check_model(self, model: str | None) -> None:
        if model is not None and model not in self._names:
            raise RequestRefused(404, f"The model `{model}` does not exist.", kind="NotFoundError", param="model")

    def _limit(self, body: Generate, prompt: int, *, chat: bool) -> int:
        length = self._service.engine.physics.max_model_len
        given = (body.max_output_tokens, body.max_completion_tokens, body.max_tokens)
        default = max(1, length - prompt) if chat else 16
        wanted = next((limit for limit in given if limit is not None), default)
        if not wanted and body.echo:
            wanted = 1  # computed, but not shown
        if wanted < 1:
            raise RequestRefused(400, f"max_tokens must be at least 1, got {wanted}.", param="max_tokens")
        if prompt + wanted > length:
            raise RequestRefused(
                400,
                f"This model's maximum context length is {length} tokens. However, you requested {wanted} output "
                f"tokens and your prompt contains {prompt} input tokens, for a total of {prompt + wanted} tokens. "
                "Please reduce the length of the input prompt or the number of requested output tokens.",
                param="input_tokens",
            )
        return wanted

    def _end_by_itself(self, sequence: Sequence, body: Generate) -> None:
        """Without `ignore_eos`, end some answers before their limit, determined by seed and number."""
        mean = self._service.engine.physics.eos_mean_tokens
        if not mean or body.ignore_eos:
            return
        length = 1 + int(Random(f"{self._service.seed}/eos/{sequence.number}").expovariate(1 / mean))
        length = max(length, body.min_tokens)
        if length < sequence.limit:
            sequence.limit, sequence.reason = length, "stop"


def answer(exchange: Exchange, faults: dict[str, Fault], *, stream: bool, composed: bool = False) -> BaseAnswer:
    """The answer to a request; `composed` is one of other words than `ANSWER`."""
    if stream and faults:
        return FaultyStream(exchange, faults)
    if stream:
        composed = composed or isinstance(exchange.events, ResponseEvents)
        return ComposedStream(exchange) if composed else AnswerStream(exchange)
    fault = next((faults[kind] for kind in ("reset", "truncate", "stall") if kind in faults), None)
    return WholeAnswer(exchange) if fault is None else FaultyWhole(exchange, fault)


def reply(connection: Connection, body: dict[str, Any]) -> None:
    connection.respond(200, encode(body))


def read(model: type[Body], body: bytes) -> Body:
    try:
        return msgspec.json.decode(body, type=model)
    except UNDECODABLE as error:
        raise RequestRefused(400, f"[{{'type': 'json_invalid', 'msg': {str(error)!r}}}]", kind="Bad Request") from None


@cache
def known_answers() -> dict[str, list[int]]:
    """The tokens of the right answers to the questions that vramp asks, by the question."""
    return {
        question.prompt: [tokens.CHARACTER_IDS[character] for character in f" {question.answer}"]
        for question in questions_of(None, _KNOWN_QUESTIONS)
    }


def prompt_ids(body: Generate, *, chat: bool) -> list[int]:
    if body.n != 1:
        raise RequestRefused(400, "The simulator gives one answer to one prompt: n must be 1.", param="n")
    if body.stream_options is not None and not body.stream:
        raise RequestRefused(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    if chat:
        if not body.conversation:
            raise RequestRefused(400, "A chat needs messages.", param="messages")
        return tokens.encode_chat((each.role, each.text) for each in body.conversation)
    prompt: Any = body.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]  # a batch of one
    if isinstance(prompt, str):
        return [tokens.BOS, *tokens.encode(prompt)]
    if not prompt or set(map(type, prompt)) != {int}:
        raise RequestRefused(
            400, "The prompt must be one text or one list of token ids, and not empty.", param="prompt"
        )
    for number in (min(prompt), max(prompt)):
        if not 0 <= number < tokens.VOCABULARY:
            raise RequestRefused(400, f"Token id {number} is out of vocabulary", param="prompt")
    return cast(list[int], prompt)
