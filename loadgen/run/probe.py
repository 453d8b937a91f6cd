"""Learns what must be known about a server before load is sent: its model, its limits, the vocabulary for prompts.

Everything here goes through httpx and nothing is timed. `identify` sends nothing that an engine computes. `probe` sends
the first request, so that a refused key, an unknown field or a broken model is one clear message before the load, and
not a table of failures. Only that request must succeed, in a form that the server accepts (`_FALLBACKS`); whatever else
is refused or unknown becomes a note. The findings go to the workers: with their settings for the whole run, by
`templates_of` for a stage.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from loadgen.errors import UNDECODABLE, ServerError
from loadgen.plan.stage import Stage
from loadgen.profile.load import Load
from loadgen.profile.schema import Profile
from loadgen.server.process.log import shortened
from loadgen.server.vllm.client import NAME_MODEL, ModelInfo, Reply, ServerClient, api_key, optional, pick_model
from loadgen.stream.ending import Failed, read_answer
from loadgen.stream.request import (
    Cancellation,
    RequestTemplate,
    ServerAddress,
    SessionHeaders,
    common_fields,
    endpoint_url,
    host_and_port,
    model_shares,
    own_fields,
    request_template,
)
from loadgen.worker.messages import Vocabulary, prompts_of
from loadgen.workload.prompts import ANCHOR, FALLBACK_IDS, WORDS, text_prompts

TemplatesOf = Callable[[Stage], Sequence[RequestTemplate]]  # the request templates of a stage, one per server
_REPEATS = 8
_MIN_WORDS = 4
_MIN_IDS = 32
_CALIBRATIONS = 4

_MAX_TEMPLATE_TOKENS = 8192  # more than any chat template with its system prompt
_MAX_LISTED_CHARS = 200
_HINT_S = 10.0  # for a request that only shows whether the other endpoint would do

_REFUSED = (400, 422, 500, 501)  # what servers answer to a request that they do not understand
_MISSING = (404, 405, 501)
_FALLBACKS = {
    "prompt": "prompts of token ids (they are text)",
    "continuous_usage_stats": "usage in every event (the tokens of a single event are unknown)",
    "ignore_eos": "ignore_eos (answers may end before their OSL)",
    "stream_options": "usage (tokens are counted as events unless it is sent anyway)",
    "store": "store (the server may keep the answers)",
    "temperature": "temperature (the server's default applies)",
    "max_tokens": "max_tokens (max_completion_tokens takes its place)",
}
"""What the load can do without if the server refuses it, in the order in which that is tried."""
_OTHER_ENDPOINT = {"completions": "chat", "chat": "completions", "responses": "chat"}


class Served(msgspec.Struct, frozen=True):
    """A server's identity."""

    base_url: str
    address: ServerAddress
    model: str
    max_model_len: int | None
    version: str | None
    shortest_model_len: int | None = None  # over all models that receive requests


class Accepted(msgspec.Struct, frozen=True):
    """What a server accepts."""

    vocabulary: Vocabulary
    options: dict[str, Any] = {}  # additional fields of the request body that this server accepts
    notes: tuple[str, ...] = ()  # what is unknown, what it does not accept, and what is done instead
    without: tuple[str, ...] = ()  # the `_FALLBACKS` that it needs

    @property
    def osl_name(self) -> str | None:
        """The field for the token limit, if it is not the endpoint's usual one."""
        return "max_completion_tokens" if "max_tokens" in self.without else None


async def identify(client: ServerClient, model: str | None, load: Load, notes: list[str]) -> Served:
    """Query a server's identity, and note what is unknown of it; raises `ServerError`.

    A model that is named (`model`, or `load.models`) needs no list of models, and overrules it.
    """
    address = await resolve_target(client.base_url)
    models = await _listed(client, [name for name in (model, *load.models) if name], notes)
    known = {listed.id: listed for listed in reversed(models)}
    named = model or (None if models else next(iter(load.models), None))
    served = pick_model(models) if named is None else known.get(named, ModelInfo(named))
    lengths = [known[name].max_model_len for name in load.models or [served.id] if name in known]
    version = await optional(client.version())
    if version.value is None:
        notes.append(f"the engine's version is unknown: {version.why}")
    return Served(
        base_url=client.base_url,
        address=address,
        model=served.id,
        max_model_len=served.max_model_len,
        version=version.value,
        # An adapter reports no length: it has its base's.
        shortest_model_len=min((length for length in lengths if length), default=served.max_model_len),
    )


async def _listed(client: ServerClient, named: Sequence[str], notes: list[str]) -> list[ModelInfo]:
    """The models that the server lists; raises `ServerError` if it has no list and none is named."""
    if not named:
        return await client.models(NAME_MODEL)
    found = await optional(client.models())
    models = found.value or []
    missing = [name for name in named if name not in {model.id for model in models}]
    if found.value is None:
        notes.append(f"the list of models is unknown: {found.why}; {', '.join(named)} is requested as named")
    elif missing:
        served = shortened(", ".join(model.id for model in models), _MAX_LISTED_CHARS) or "no model"
        notes.append(f"/v1/models lists {served}; {', '.join(missing)} is requested as named")
    return models


async def probe(client: ServerClient, served: Served, load: Load) -> Accepted:
    """Find out what a server accepts by sending it a few short requests; raises `ServerError`."""
    vocabulary = _id_vocabulary if load.endpoint == "completions" else _chat_vocabulary
    accepted, reply = await _accepted(client, served.model, load, await vocabulary(client, served.model))
    await _check_models(client, [name for name in load.models if name != served.model], load, accepted)
    notes = [*accepted.notes]
    given_up = [text for name, text in _FALLBACKS.items() if name in accepted.without]
    if "stream_options" in accepted.without and "continuous_usage_stats" in accepted.without:
        given_up.remove(_FALLBACKS["continuous_usage_stats"])
    if given_up:
        notes.append(f"the server refuses what the load does without: {'; '.join(given_up)}")
    notes += _usage_notes(load, accepted, reply.content)
    return msgspec.structs.replace(accepted, notes=tuple(notes))


async def probe_twin(client: ServerClient, first: Served, accepted: Accepted, load: Load, notes: list[str]) -> Served:
    """Check that another instance serves the same as the first, and send it one request; raises `ServerError`."""
    twin = await identify(client, first.model, load, notes)
    if None not in (twin.max_model_len, first.max_model_len) and twin.max_model_len != first.max_model_len:
        raise ServerError(
            f"{client.base_url}: max_model_len is {twin.max_model_len}, but {first.max_model_len} on {first.base_url}; "
            "instances of one server must be the same: are their devices?"
        )
    await _check_models(client, load.models or [first.model], load, accepted)
    return twin


async def resolve_target(url: str) -> ServerAddress:
    """Resolve a URL's host to the first address that answers; raises `ServerError`."""
    host, port = host_and_port(url)
    loop = asyncio.get_running_loop()
    try:
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter for a name that no host can have
        raise ServerError(f"{url}: no such host: {getattr(error, 'strerror', None) or error}") from error
    reason = "no address"
    for family, _, _, _, address in addresses:
        try:
            async with asyncio.timeout(5):
                _, writer = await asyncio.open_connection(str(address[0]), port, family=family)
        except OSError as error:  # includes TimeoutError
            reason = error.strerror or "no answer within 5 s"
            continue
        writer.close()
        with contextlib.suppress(OSError):  # it answered; errors in closing do not matter
            await writer.wait_closed()
        tls_name = host if urlsplit(url).scheme == "https" else None
        return ServerAddress(family=int(family), ip=str(address[0]), port=port, tls_name=tls_name)
    raise ServerError(f"{url}: nothing listens there ({reason}); start the server, or check host and port")


# Prompts.


async def _id_vocabulary(client: ServerClient, model: str) -> Accepted:
    """Ids of ordinary text in the server's own vocabulary: never special tokens, never out of range."""
    found = await optional(client.tokenize_text(model, " ".join(WORDS)))
    ids = set(found.value or [])
    if 0 < len(ids) < _MIN_IDS:
        # If the tokenizer yields too few distinct tokens for words, letters will do.
        letters = await optional(client.tokenize_text(model, " ".join("abcdefghijklmnopqrstuvwxyz0123456789,.:;!?")))
        ids |= set(letters.value or [])
    if len(ids) >= _MIN_WORDS:
        return Accepted(Vocabulary(ids=tuple(sorted(ids))))
    why = found.why or f"/tokenize knows only {len(ids)} tokens"
    note = f"the vocabulary is unknown: {why}; prompts are made of the token ids 300 to 999"
    return Accepted(Vocabulary(ids=FALLBACK_IDS), notes=(note,))


async def _chat_vocabulary(client: ServerClient, model: str) -> Accepted:
    """Words that are one token in any position, and the tokens that the chat template adds."""
    text = await _text_vocabulary(client, model)
    if len(text.notes):
        return text
    overhead = await optional(_template_overhead(client, model, text.vocabulary.words))
    if overhead.value is not None:
        return Accepted(msgspec.structs.replace(text.vocabulary, overhead=overhead.value))
    note = f"the tokens of the chat template are unknown: {overhead.why}; the real ISL is the server's usage"
    return msgspec.structs.replace(text, notes=(note,))


async def _text_vocabulary(client: ServerClient, model: str) -> Accepted:
    """Words that are one token in any position, after the tokens of `ANCHOR`."""
    anchor = await optional(client.tokenize_text(model, ANCHOR))
    words = await optional(_one_token_words(client, model, len(anchor.value))) if anchor.value else anchor
    if isinstance(words.value, tuple) and len(words.value) >= _MIN_WORDS:
        return Accepted(Vocabulary(words=words.value, overhead=len(anchor.value or [])))
    why = words.why or "hardly any word is one token in this vocabulary"
    note = f"the tokens of words are unknown: {why}; each counts as one token, the real ISL is the server's usage"
    return Accepted(Vocabulary(words=tuple(WORDS), overhead=1), notes=(note,))


async def _one_token_words(client: ServerClient, model: str, anchor_tokens: int) -> tuple[str, ...]:
    """The words that add exactly one token each, however often they are repeated after the anchor."""

    async def one_token_words(words: list[str]) -> list[str]:
        tokens = await client.tokenize_text(model, ANCHOR + "".join(f" {word}" * _REPEATS for word in words))
        if len(tokens) == anchor_tokens + _REPEATS * len(words):
            return words
        half = len(words) // 2
        if half == 0:
            return []
        first, rest = await asyncio.gather(one_token_words(words[:half]), one_token_words(words[half:]))
        return first + rest

    return tuple(await one_token_words(WORDS))


async def _template_overhead(client: ServerClient, model: str, words: tuple[str, ...]) -> int:
    """A chat prompt's tokens besides its words, adjusted until a prompt of known length comes out right."""
    overhead, wanted = 0, 256
    for _ in range(_CALIBRATIONS):
        text = json.loads(text_prompts(words, 0, overhead=overhead)(0, 0, wanted))
        excess = len(await client.tokenize_messages(model, [{"role": "user", "content": text}])) - wanted
        if excess == 0:
            break
        overhead += excess
    if not 0 <= overhead <= _MAX_TEMPLATE_TOKENS:
        raise ServerError(f"{client.base_url}/tokenize does not count the words of a chat")
    return overhead


# The first request.


async def _accepted(client: ServerClient, model: str, load: Load, first: Accepted) -> tuple[Accepted, Reply]:
    """The fullest request that the server accepts, and its answer; raises `ServerError` if it accepts none."""
    forms = {"prompt" in first.without: first}  # the prompts' two, each learnt once

    async def attempt(without: Sequence[str]) -> tuple[Accepted, Reply]:
        is_text = "prompt" in without
        if is_text not in forms:
            forms[is_text] = await _text_vocabulary(client, model)
        usage = {"include_usage": True}
        if "continuous_usage_stats" not in without:
            usage["continuous_usage_stats"] = True
        options = {"ignore_eos": True, "stream_options": usage}
        sent = {name: value for name, value in options.items() if name not in without and _applies(name, load)}
        accepted = msgspec.structs.replace(forms[is_text], options=sent, without=tuple(without))
        return accepted, await _first_request(client, model, load, accepted)

    accepted, reply = await attempt(())
    deciding = reply
    left = [name for name in _FALLBACKS if _applies(name, load)]
    while _is_refused(reply) and left:
        name = next((name for name in left if _names(reply, name)), left[0])
        left.remove(name)
        tried, reply = await attempt((*accepted.without, name))
        if _is_refused(reply) and name == "max_tokens" and _names(reply, "max_completion_tokens"):
            continue  # it refuses the substitute, too, which says nothing about the rest
        accepted, deciding = tried, reply
    if not _is_success(reply):
        raise ServerError(await _first_failure(client, model, load, deciding))
    # All but the last may have been given up in vain: a refusal need not name its reason. Backwards, because usage per
    # event can only be tried with usage.
    for name in reversed(accepted.without[:-1]):
        tried, retried = await attempt([kept for kept in accepted.without if kept != name])
        if _is_success(retried):
            accepted, reply = tried, retried
    return accepted, reply


def _is_refused(reply: Reply) -> bool:
    """Whether the server did not understand the request; some only notice it, and report it, inside a stream."""
    status = read_answer(reply.content).error_status if reply.status == 200 else reply.status
    return status in _REFUSED


def _names(reply: Reply, field: str) -> bool:
    return re.search(rf"\b{field}\b".encode(), reply.content) is not None


def _applies(name: str, load: Load) -> bool:
    """Whether a fallback gives up something that this load sends."""
    applies = {
        "prompt": load.endpoint == "completions",
        "continuous_usage_stats": load.endpoint != "responses",
        "stream_options": load.endpoint != "responses",
        "ignore_eos": load.ignore_eos,
        "store": load.endpoint == "responses",
        "max_tokens": load.endpoint == "chat",
    }
    return applies.get(name, True)


def _usage_notes(load: Load, accepted: Accepted, content: bytes) -> list[str]:
    """What an accepted request requested and its answer does not have."""
    if "stream_options" not in accepted.options:
        return []
    events = []
    for line in content.splitlines():
        with contextlib.suppress(*UNDECODABLE):
            events.append(msgspec.json.decode(line.removeprefix(b"data:"), type=dict[str, Any]))
    with_usage = [event for event in events if isinstance(event.get("usage"), dict)]
    if not with_usage:
        return ["the server sends no usage: its tokens are unknown, and events are counted"]
    if "continuous_usage_stats" not in accepted.without and not any(event.get("choices") for event in with_usage):
        return ["the server sends usage only at the end: the tokens of a single event are unknown"]
    return []


async def _first_failure(client: ServerClient, model: str, load: Load, reply: Reply) -> str:
    """What the server said to the deciding request, and what to do."""
    failed = _failed(reply) if reply.status == 200 else None
    words = f"HTTP {reply.status}: {reply.words}" if failed is None else failed.message
    failure = f"{client.base_url}: {model}: the first request failed: {words}"
    if reply.status not in (*_REFUSED, *_MISSING):
        return failure
    other = load.model_copy(update={"endpoint": _OTHER_ENDPOINT[load.endpoint], "timeout_s": _HINT_S})
    plain = Accepted(Vocabulary(words=tuple(WORDS), overhead=1))
    found = (await optional(_first_request(client, model, other, plain))).value
    # Only the other endpoint exists, even if it refuses so plain a request.
    if found is not None and (_is_success(found) or (reply.status in _MISSING and found.status in (400, 422))):
        return f"{failure}; the server has {endpoint_url('', other.endpoint)}: use --endpoint {other.endpoint}"
    listed = await optional(client.models())
    names = [listed_model.id for listed_model in listed.value or []]
    if reply.status in _MISSING and names and model not in names:
        return f"{failure}; /v1/models lists {shortened(', '.join(names), _MAX_LISTED_CHARS)}{NAME_MODEL}"
    if reply.status in _MISSING:
        return f"{failure}; check the model's name (--model), and host, port and prefix of the URL"
    return failure


async def _check_models(client: ServerClient, models: Iterable[str], load: Load, accepted: Accepted) -> None:
    """Send each model one request; raises `ServerError` for the first that does not answer."""
    for model in models:
        reply = await _first_request(client, model, load, accepted)
        if not _is_success(reply):
            raise ServerError(await _first_failure(client, model, load, reply))


def _failed(reply: Reply) -> Failed | None:
    """How an answer with status 200 failed all the same, judged as a stream of the load is.

    One token without text is an answer: not every token has any.
    """
    failed = read_answer(reply.content).failed
    return None if failed is None or failed.kind == "empty" else failed


def _is_success(reply: Reply) -> bool:
    return reply.status == 200 and _failed(reply) is None


async def _first_request(client: ServerClient, model: str, load: Load, accepted: Accepted) -> Reply:
    isl = min(16, load.isl) if isinstance(load.isl, int) else 16
    # The first prompt takes 20 ms: numpy.random is loaded, and the text that prompts are cut from is made.
    prompt = await asyncio.to_thread(lambda: prompts_of(accepted.vocabulary, 0)(0, 0, isl))
    own = own_fields(load.endpoint, json.loads(prompt), 1, osl_name=accepted.osl_name)
    body = _shared_fields(load, model, accepted) | own
    return await client.try_request(endpoint_url("", load.endpoint), body, timeout_s=load.timeout_s)


def _shared_fields(load: Load, model: str | None, accepted: Accepted) -> dict[str, object]:
    fields = common_fields(
        load.endpoint, model=model, temperature=load.temperature, options=accepted.options, extra=load.extra_body
    )
    return {name: value for name, value in fields.items() if name not in accepted.without}


def templates_of(
    profile: Profile, model: str, accepted: Accepted, base_urls: Iterable[str], stage: Stage
) -> list[RequestTemplate]:
    """The request templates, one per server, which differ only in the address."""
    load = profile.load
    fields = _shared_fields(load, None if load.models else model, accepted)
    cancel = None if load.cancel is None else Cancellation(share=load.cancel.share, after_s=load.cancel.after)
    named = load.headers.model_dump(exclude={"static"}, exclude_none=True)
    sessions = SessionHeaders(**named) if named else None
    made: dict[str, Any] = {"osl": stage.osl, "api_key": api_key(profile.server), "osl_name": accepted.osl_name}
    return [
        msgspec.structs.replace(
            request_template(url, load.endpoint, fields, **made, headers=load.headers.static),
            models=model_shares(load.models),
            cancel=cancel,
            exact_osl=load.ignore_eos,
            headers=sessions,
        )
        for url in base_urls
    ]
