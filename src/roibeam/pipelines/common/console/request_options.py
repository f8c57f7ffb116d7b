"""Options of commands, declared where their values live: at the fields of a request, or the parameters of a command.

    max_regions: Annotated[int, option("Use at most N regions.", "N", KEPT, min=1)] = 100

typer reads the line as it is, mypy the type in it. tyro would make a command of a dataclass too, but it has no second
page of help and does not let a command answer a wrong name or value in its own words.
"""

from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, TypeVar

import typer

# Groups of options in `--help`, in their order there.
INPUT = "Input"
DETECTOR = "Detector"
MODEL = "Model"
TRAINING = "Training"
END_TO_END = "End to end"
LABELS = "Labelled photos"
QUESTION = "Analysis"
KEPT = "Contents"
SPEED = "Speed"
NETWORK = "Network"
FAILURES = "Failures"
PERFECT = "Perfect store"
OUTPUT = "Output"
GROUPS = (
    INPUT, DETECTOR, MODEL, TRAINING, END_TO_END, LABELS, QUESTION, KEPT, SPEED, NETWORK, FAILURES, PERFECT, OUTPUT,
)  # fmt: skip

Request = TypeVar("Request")


def option(
    help: str,
    value: str = "",
    group: str = OUTPUT,
    *names: str,
    min: float | None = None,
    max: float | None = None,
    default: str | None = None,
    advanced: bool = False,
    convert: Callable[[Any], Any] | None = None,
) -> Any:
    """An option, called as its field: `--max-regions`.

    Args:
        value: name of the value in `--help`; "" for a flag.
        min, max: range of a number, both ends included.
        default: what leaving the option out means, where its default value does not tell it.
        advanced: only in `--help-all`.
        convert: changes the value; of a field with several values it takes their text.
    """
    return typer.Option(
        *names, help=help, metavar=value or None, rich_help_panel=group, min=min, max=max, hidden=advanced,
        show_default=True if default is None else default, callback=convert,
    )  # fmt: skip


def part_of(words: str) -> tuple[int, int]:
    """The numbers of `--part I/N`; ValueError for others."""
    part, _, parts = words.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        known = f"; of {parts} parts 1/{parts} to {parts}/{parts}" if parts.isdecimal() and int(parts) else ""
        raise ValueError(f"--part {words!r}: expected a part and the number of parts, such as 2/8{known}")
    return int(part), int(parts)


def argument(name: str, help: str, *, convert: Callable[[Any], Any] | None = None) -> Any:
    """A positional argument, called `name`, in capitals, in usage, help and messages alike. See `option`."""
    return typer.Argument(metavar=name, help=help, show_default=False, callback=convert)


def renamed(**names: str) -> Callable[[type[Request]], type[Request]]:
    """Class decorator that refuses the fields' names of the release before, each with what stands in its place."""

    def refusing(request: type[Request]) -> type[Request]:
        begin: Callable[..., None] = vars(request)["__init__"]

        @wraps(begin)
        def __init__(self: Request, *args: Any, **given: Any) -> None:
            for name in names.keys() & given.keys():
                raise TypeError(f"{request.__name__}: {name} is called {names[name]} now")
            begin(self, *args, **given)

        request.__init__ = __init__  # type: ignore[assignment]
        return request

    return refusing


# Options that several commands have in the same words.
Device = Annotated[str, option("Where to compute: auto (a GPU if there is one), cpu, cuda or cuda:N.", "DEVICE", SPEED)]
Threads = Annotated[int | None, option("CPU threads of each process.", "N", SPEED, min=1, default="torch's choice")]
Seed = Annotated[int, option("Seed of all random choices.", "N", TRAINING, min=0)]
Json = Annotated[bool, option("Print the result as JSON lines on standard output.", "", OUTPUT, "--json")]
IdRule = Annotated[
    str, option("How a path becomes an image id: no-extension or with-extension.", "RULE", INPUT, advanced=True)
]
CaptionColumn = Annotated[str, option(
    "Column of the captions: its name, or 1 or 2 in a caption .tsv.", "COLUMN", INPUT, default="recognised in the file",
)]  # fmt: skip
Checksums = Annotated[str, option(
    "Records that are compared with their checksums as they are read: all, or sample (one in 16).", "WHICH", INPUT,
    advanced=True,
)]  # fmt: skip
Scratch = Annotated[str | None, option(
    "Folder for temporary copies of files at URLs.", "DIR", SPEED, default="the temporary folder", advanced=True,
)]  # fmt: skip
MaxPixels = Annotated[int, option(
    "Images with more pixels count as failures; a pixel of a WebP, AVIF or JPEG 2000 file counts as 2.",
    "N", FAILURES, min=1, advanced=True,
)]  # fmt: skip
MaxBytes = Annotated[int, option("Image files with more bytes count as failures.", "N", FAILURES, min=1, advanced=True)]
AllowPrivate = Annotated[tuple[str, ...], option(
    "Private network that may be connected to, such as 10.0.0.0/8; may be given several times.", "NETWORK", NETWORK,
    advanced=True,
)]  # fmt: skip
UserAgent = Annotated[str | None, option(
    "User agent that is sent to servers.", "NAME", NETWORK, default="roibeam and its version", advanced=True,
)]  # fmt: skip
