"""Questions with one right answer, asked under load: an engine may be wrong in a stable way, idle and loaded.

Each answer is a line of its own, so that those given before an interruption count, and only the others are asked again.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from loadgen.criteria import EXACT_MATCH
from loadgen.errors import ServerError
from loadgen.schema.certificate import Counted

if TYPE_CHECKING:
    from loadgen.run.accept.acceptance import Acceptance
    from loadgen.run.run import Run

AT_ONCE = 4  # few, so that the load stays what it is
_MAX_TOKENS = 512
_TIMEOUT_S = 300.0
_PAUSE_S = 1.0
_MIN_CANARIES = 10  # under load, though all questions were answered before


def unanswered(acceptance: Acceptance) -> list[int]:
    """The numbers of the questions that have no answer yet, from 0."""
    answered = {line.subject for line in acceptance.lines if isinstance(line, Counted) and line.figure == EXACT_MATCH}
    return [number for number in range(len(acceptance.questions)) if _subject(number) not in answered]


async def ask_questions(acceptance: Acceptance, run: Run) -> None:
    """Ask what has no answer yet, a few at once; returns when all is asked and canaries had their time, too.

    What fails is asked again in another run; if that is this one, no answer is a wrong answer.
    """
    questions, numbers = acceptance.questions, iter(unanswered(acceptance))
    failures: dict[int, str] = {}

    async def ask_one_by_one() -> None:
        for number in numbers:
            question = questions[number]
            try:
                answer = await run.ask(question.prompt, max_tokens=_MAX_TOKENS, timeout_s=_TIMEOUT_S)
            except ServerError as error:
                failures[number] = str(error)
                await asyncio.sleep(_PAUSE_S)  # the server may just have died
            else:
                right = question.is_answered_by(answer)
                _note(acceptance, number, right=right, text="" if right else f"{question.prompt} {answer}")

    canaries_s = _MIN_CANARIES * acceptance.settings.profile.canary.interval_s
    await asyncio.gather(asyncio.sleep(canaries_s), *(ask_one_by_one() for _ in range(AT_ONCE)))
    if acceptance.complete("output"):
        for number, why in failures.items():
            _note(acceptance, number, right=False, text=f"no answer: {why}")


def _note(acceptance: Acceptance, number: int, *, right: bool, text: str) -> None:
    acceptance.write(
        Counted(
            unix_s=time.time(),
            phase="output",
            figure=EXACT_MATCH,
            subject=_subject(number),
            count=int(right),
            trials=1,
            text=text,
        )
    )


def _subject(number: int) -> str:
    return f"question {number + 1}"
