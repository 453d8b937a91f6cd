"""The fields of request bodies that the simulator uses, and refusals in vLLM's form."""

from random import Random
from typing import Any, TypeVar, cast

import msgspec

from loadgen.errors import UNDECODABLE
from loadgen.simulator import tokens
from loadgen.simulator.scores import MAX_TOP, Scores

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
    """A text or a chat to tokenize."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True


class Detokenize(msgspec.Struct):
    """Tokens to turn into text."""

    tokens: list[int]
    model: str | None = None


class Faults(msgspec.Struct):
    """The faults from now on, in the syntax of `--fault`."""

    faults: list[str]


class RequestRefused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


def read(model: type[Body], body: bytes) -> Body:
    try:
        return msgspec.json.decode(body, type=model)
    except UNDECODABLE as error:
        raise RequestRefused(400, f"[{{'type': 'json_invalid', 'msg': {str(error)!r}}}]", kind="Bad Request") from None


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
