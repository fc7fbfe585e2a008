"""Running a command line inside the test's process."""

import sys
from collections.abc import Callable

import pytest

Run = Callable[..., "Outcome"]


class Outcome:
    """What a run printed, and its exit status."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


def runner(
    main: Callable[[], None],
    program: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """What runs `main` with arguments, as a shell would."""

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", [program, *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            sys.exit(main())  # type: ignore[func-returns-value]
        printed = capsys.readouterr()
        return Outcome(left.value.code or 0, printed.out, printed.err)  # type: ignore[arg-type]

    return call


def succeed(run: Run, *arguments: object) -> str:
    outcome = run(*arguments)
    assert outcome.status == 0, outcome.err
    return str(outcome.out)


def fail(run: Run, *arguments: object) -> str:
    """The one line that a refused run prints, without the program's name."""
    outcome = run(*arguments)
    assert outcome.status == 1, (outcome.out, outcome.err)
    program, _, message = outcome.err.partition(": ")
    assert program in ("mergelib", "mergebook")
    assert outcome.err.count("\n") == 1
    assert outcome.err.endswith("\n")
    return str(message.strip())
