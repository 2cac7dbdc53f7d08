"""What is wrong with several things that are read one after the other, told at once: none of them hides what is wrong with the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar, cast

from agent_env.errors import Problem, ProblemsError, UserError

S = TypeVar("S")
T = TypeVar("T")


class Diagnostics:
    """What is wrong with what a command was given, from sources that know nothing of each other, told in one round."""

    def __init__(self) -> None:
        self._errors: list[UserError] = []
        self._problems: list[Problem] = []

    def of(self, read: Callable[[], T], *, given: str | None = None) -> T | None:
        """What `read` gives; where it refuses, that is kept, and what could be made of it all the same is given.

        Args:
            read: Raises what is wrong.
            given: Where its input stands, such as an option, for an error that names no place itself.
        """
        try:
            return read()
        except UserError as error:
            self.refuse(error, given=given)
            return cast("T | None", error.readable)

    def judged(self, read: Callable[[], T], *, given: str | None = None) -> tuple[T | None, bool]:
        """Like `of`, and whether nothing was wrong with it."""
        before = len(self._errors)
        return self.of(read, given=given), len(self._errors) == before

    def refuse(self, error: UserError, *, given: str | None = None) -> None:
        """Takes an error that is not raised before all is known."""
        self._errors.append(error)
        if isinstance(error, ProblemsError):
            self._problems += error.problems
        else:
            where = given or error.concerns
            message = error.message.removeprefix(where).lstrip(": ") if where else error.message  # else it would be named twice
            self._problems.append(Problem(message, where, hint=error.hint))

    def add(self, problems: Iterable[Problem]) -> None:
        """Takes problems that nobody raised."""
        if problems := tuple(problems):
            self.refuse(ProblemsError(problems))

    def __bool__(self) -> bool:
        """Whether anything is wrong so far."""
        return bool(self._errors)

    def tell(self, *, readable: object = None) -> None:
        """Raises what was found: a single error as it was, several as one. Equal problems are told once.

        Args:
            readable: What could be made of all of it.
        """
        if not self._errors:
            return
        told = self._errors[0] if len(self._errors) == 1 else ProblemsError(dict.fromkeys(self._problems))
        if len(self._errors) > 1:
            told.hint = next((error.hint for error in self._errors if isinstance(error, ProblemsError) and error.hint), None)
        told.readable = readable
        raise told


def each(read: Callable[[S], T], things: Iterable[S]) -> list[T]:
    """What `read` gives of each thing.

    Raises:
        UserError: What it refused, of all of them at once.
    """
    wrong = Diagnostics()
    found = [wrong.judged(partial(read, thing)) for thing in things]
    wrong.tell()
    return [cast("T", value) for value, _ in found]
