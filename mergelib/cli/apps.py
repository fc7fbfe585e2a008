"""The tree of commands, and options that several commands share."""

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any

import typer
import typer.core

from mergelib.version import __version__

app = typer.Typer(
    help="Merge fine-tuned models.",
    epilog="Start with: mergelib methods",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _tell_version(asked: bool) -> None:
    """Print the version and stop."""
    if asked:
        typer.echo(f"mergelib {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_tell_version, is_eager=True),
    ] = False,
) -> None:
    """Options before a command's name."""


def usable(device: str) -> str:
    """Return the device if PyTorch can compute on it."""
    from mergelib.messages.refusals import check_device

    check_device(device)
    return device


Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1 …", callback=usable)]

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", help="A setting, e.g. --set scale=0.4 or weights=0.3,0.7; repeatable."
    ),
]


class WithSettings(typer.core.TyperCommand):
    """A command that tells how to pass a method's setting, which is none of its options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from mergelib.registry import get_method, method_names

        own = {text for option in self.get_params(ctx) for text in option.opts}
        for name, _, value in (text.partition("=") for text in args if text[:2] == "--"):
            setting = name[2:].replace("-", "_")
            known = [get_method(m, f) for f in ("rule", "calibration") for m in method_names(f)]
            if name not in own and any(setting in method.hyperparameters for method in known):
                value = value or "".join(args[args.index(name) + 1 :][:1])
                raise ValueError(f"no such option: {name}; pass --set {setting}={value}")
        return super().parse_args(ctx, args)


def read_settings(texts: Sequence[str] | None, option: str = "--set") -> dict[str, Any]:
    """Parse ``name=value`` texts: values are JSON, lists with commas, or text."""
    settings: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ValueError(f"{option} expects name=value, got {text!r}")
        if re.fullmatch(r"-?0,\d+", value):
            raise ValueError(
                f"{option} {name}={value} is a list of two numbers: write "
                f"{name}={value.replace(',', '.')}, or {name}=[{value}] for a value per expert"
            )
        if value[:1] in ("{", "["):
            settings[name] = _read_json(f"{option} {name}", value)
        else:
            settings[name] = _read_value(value)
    return settings


def _read_json(what: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{what} is not JSON ({error}): write texts in double quotes, and the whole setting "
            "in single ones"
        ) from None


def _read_value(text: str) -> Any:
    words = {"True": True, "False": False, "None": None}  # as messages write them
    try:
        return words[text] if text in words else json.loads(text)
    except json.JSONDecodeError:
        return [_read_value(part.strip()) for part in text.split(",")] if "," in text else text


def split_commas(texts: Sequence[str] | None) -> list[str] | None:
    """Return the parts of an option that may be repeated or hold commas."""
    return [
        part.strip() for text in texts or () for part in text.split(",") if part.strip()
    ] or None
