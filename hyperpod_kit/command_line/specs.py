"""What a command line takes, as tables of constants: `program` makes argparse's parser of them, `cli` click's commands.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Callable, NamedTuple, Optional, Sequence, Tuple, Union

HELP_FLAGS = ("-h", "--help")


@dataclass(frozen=True)
class ArgumentSpec:
    """A positional argument.

    dest: its name in the parsed arguments; count: how many words it takes, "" for one, "?", "*" or "+" as of argparse.
    """

    dest: str
    metavar: str
    help: str = ""
    count: str = ""
    default: Any = None

    @property
    def usage(self) -> str:
        """Return the argument as the usage line shows it."""
        return {"": "{}", "?": "[{}]", "*": "[{}]...", "+": "{}..."}[self.count].format(self.metavar)


class OptionSpec(NamedTuple):
    """An option; one without metavar and choices takes no value.

    help: {default} in it stands for the default; kind: makes the value of its text, and raises as a type of argparse
    does, or UsageError with the sentence to show; dest: its name in the parsed arguments, by default that of the flag;
    is_given_once: a second one is an error, where otherwise the last one counts.
    """

    flag: str
    help: str = ""
    metavar: str = ""
    kind: Callable[[str], Any] = str
    default: Any = None
    choices: Sequence[str] = ()
    dest: str = ""
    is_required: bool = False
    is_repeated: bool = False
    is_given_once: bool = False
    is_hidden: bool = False

    @property
    def takes_value(self) -> bool:
        """Whether a value follows the flag."""
        return bool(self.metavar or self.choices)

    @property
    def help_text(self) -> str:
        """Return the help with the default in the place of {default}."""
        shown = str(self.default)
        if isinstance(self.default, float):
            shown = f"{self.default:g}"
        return self.help.replace("{default}", shown)

    @property
    def value_name(self) -> str:
        """Return what stands for the value in the help."""
        return self.metavar or f"[{'|'.join(self.choices)}]"


class CommandSpec(NamedTuple):
    """A command that does something.

    summary: a sentence for the help of its group; description: for its own help, by default the summary; a paragraph of
    it with indented lines is shown as it stands; run: the
    function `module:name` that is called with the parsed arguments; examples: what follows the command's name; usage:
    what the usage line has after it, where that is not as the options and arguments have it; exactly_one_of: flags of
    which one must be given, and no second one; takes_foreign_words: what follows is of another program and is not
    parsed, but for a --help in front.
    """

    name: str
    summary: str
    run: str
    arguments: Tuple[ArgumentSpec, ...] = ()
    options: Tuple[OptionSpec, ...] = ()
    examples: Tuple[str, ...] = ("",)
    description: str = ""
    usage: str = ""
    exactly_one_of: Tuple[str, ...] = ()
    takes_foreign_words: bool = False

    @property
    def usage_words(self) -> str:
        """Return what the usage line has after the name."""
        return self.usage or " ".join(["[OPTIONS]", *(argument.usage for argument in self.arguments)])

    def help_paragraphs(self, path: str) -> Sequence[Tuple[str, bool]]:
        """Return the paragraphs of the help, the examples last, each with whether its lines stay as they are.

        `path`: the command with the words before it.
        """
        description = (self.description or self.summary).split("\n\n")
        paragraphs = [(paragraph, "\n " in paragraph) for paragraph in description]
        if self.examples:
            lines = [f"  {path} {example}".rstrip() for example in self.examples]
            paragraphs.append(("\n".join(["Examples:", *lines]), True))
        return paragraphs

    def call(self, arguments: Any) -> int:
        """Import the function that runs the command and return its exit code. Raises as that function."""
        return int(import_object(self.run)(arguments))


class DeferredSpec(NamedTuple):
    """A command whose table is in a module with dear imports: its attribute `COMMAND`, beside `main(words)`."""

    name: str
    summary: str
    module: str


@dataclass(frozen=True)
class GroupSpec:
    """Commands under one name."""

    name: str
    summary: str
    commands: Tuple[Union[CommandSpec, DeferredSpec], ...]

    usage_words = "[OPTIONS] COMMAND [ARGS]..."

    def find_command(self, name: str) -> Optional[Union[CommandSpec, DeferredSpec]]:
        """Return the command of that name; None for no such command."""
        return next((command for command in self.commands if command.name == name), None)


def import_object(path: str) -> Any:
    """Import the object at `module:name`."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
