"""A tokenizer that needs no files, and the words that answers are made of.

The vocabulary's words all have the same length, with their space, so that every event of an answer has the same size
and can be prepared. Text made of these words is tokenized to the same tokens, so that the next turn of a conversation
hits the last answer in the prefix cache. Any other text is cut into pieces of up to six letters or three digits; a
piece's token is a checksum, remembered for `decode`.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import product
from zlib import crc32

VOCABULARY = 128_256
BOS, START, END, NEWLINE = 1, 2, 3, 4
WORDS = [" " + a + b + c + d for a, b, c, d in product("bdfghjklmnprstvz", "aeiou", repeat=2)]
FIRST_WORD = 256
# The words of answers in order; an answer starts at one of them and wraps around.
ANSWER = [word.encode() for word in WORDS[:: len(WORDS) // 64][:64]]
ANSWER_IDS = [FIRST_WORD + WORDS.index(word.decode()) for word in ANSWER]
_PIECE = re.compile(r" ?[^\W\d_]{1,6}| ?\d{1,3}|\s|.")
_AFTER_WORDS = FIRST_WORD + len(WORDS)
_REMEMBERED = 200_000
_id_of = {word: FIRST_WORD + index for index, word in enumerate(WORDS)}
_piece_of = {number: word for word, number in _id_of.items()}
_SPECIAL = {BOS: "<s>", START: "<start>", END: "</s>"}


def encode(text: str) -> list[int]:
    """The tokens of a text, without any from a template."""
    return [_id_of.get(piece) or _learn(piece) for piece in _PIECE.findall(text)]


def decode(ids: Iterable[int]) -> str:
    """A text for any token ids; ids never seen become words of the vocabulary."""
    return "".join(_piece_of.get(number) or WORDS[number % len(WORDS)] for number in ids)


def piece(number: int) -> str:
    """The text of one token that goes with its log probability; special tokens have names."""
    return _SPECIAL.get(number) or decode((number,))


def text(ids: Iterable[int]) -> str:
    """An answer as a client sees it: special tokens have no text."""
    return decode(number for number in ids if number not in _SPECIAL)


def encode_chat(messages: Iterable[tuple[str, str]], *, generation_prompt: bool = True) -> list[int]:
    ids = [BOS]
    for role, content in messages:
        ids += [START, *encode(role), NEWLINE, *encode(content), END]
    if generation_prompt:
        ids += [START, *encode("assistant"), NEWLINE]
    return ids


def answer_start(ids: Sequence[int]) -> int:
    """Where in `ANSWER` the answer to a prompt starts: equal prompts have equal answers."""
    return hash(tuple(ids)) % len(ANSWER)


def answer_ids(start: int, count: int) -> list[int]:
    """The tokens of the first `count` words of an answer."""
    return [answer_id(start + index) for index in range(count)]


def answer_id(index: int) -> int:
    return ANSWER_IDS[index % len(ANSWER_IDS)]


def _learn(piece: str) -> int:
    number = _AFTER_WORDS + crc32(piece.encode("utf-8", "surrogatepass")) % (VOCABULARY - _AFTER_WORDS)
    if len(_id_of) < _REMEMBERED:
        _id_of[piece] = number
        _piece_of.setdefault(number, piece)
    return number


CHARACTER_IDS = {character: _learn(character) for character in " -0123456789"}
"""The tokens of the characters in numbers; learned first, so that no piece with the same checksum takes their place."""
