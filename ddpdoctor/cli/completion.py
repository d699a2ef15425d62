"""``ddpdoctor completion bash|zsh|fish``: a script for the shell, made of the commands and their options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from ddpdoctor.cli.arguments.parsing import build_parser
from ddpdoctor.cli.commands import COMMANDS, load_command
from ddpdoctor.cli.output.display import print_text
from ddpdoctor.errors import EXIT_OK, UsageError
from ddpdoctor.text.shell import quote_word
from ddpdoctor.text.suggest import closest

EXAMPLES = (
    ("source <(ddpdoctor completion bash)", "for this shell; in ~/.bashrc for all"),
    ("source <(ddpdoctor completion zsh)", "the same in ~/.zshrc, after compinit"),
    ("ddpdoctor completion fish > ~/.config/fish/completions/ddpdoctor.fish", "for all fish shells"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``completion``."""
    parser.add_argument("shell", metavar="SHELL", help="bash, zsh or fish")


def run(options: argparse.Namespace) -> int:
    """Print the script.

    Raises:
        UsageError: there is none for this shell.
    """
    make = SHELLS.get(options.shell)
    if make is None:
        near = closest(options.shell, SHELLS) or "bash"
        raise UsageError(
            f"there is no completion for {options.shell!r}",
            context=f"shells: {', '.join(SHELLS)}",
            hint=f"ddpdoctor completion {near}",
        )
    print_text(make(dict(_list_options())))
    return EXIT_OK


def _list_options() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each command with its options in one spelling, and what each does."""
    for name in COMMANDS:
        actions = build_parser(name, load_command(name)).actions()
        yield (
            name,
            {
                flag: (action.help or "").replace("%%", "%")
                for action in actions
                for flag in action.option_strings
                if flag.startswith("-") and "_" not in flag
            },
        )


def _make_bash(options: dict[str, dict[str, str]]) -> str:
    cases = "\n".join(
        f"        {name}) words={quote_word(' '.join(flags))} ;;" for name, flags in options.items()
    )
    return f"""# Completion of ddpdoctor for bash: source <(ddpdoctor completion bash)
_ddpdoctor() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} words=
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{" ".join(options)} --help --version" -- "$word"))
        return
    fi
    case ${{COMP_WORDS[1]}} in
{cases}
    esac
    case $word in
        -*) COMPREPLY=($(compgen -W "$words" -- "$word")) ;;
        *) COMPREPLY=() ;; # bash itself completes names of files
    esac
}}
complete -o default -F _ddpdoctor ddpdoctor
"""


def _make_zsh(options: dict[str, dict[str, str]]) -> str:
    names = " ".join(quote_word(f"{name}:{COMMANDS[name][1]}") for name in options)
    cases = "\n".join(f"        {name}) words_of=({' '.join(flags)}) ;;" for name, flags in options.items())
    return f"""#compdef ddpdoctor
# Completion of ddpdoctor for zsh: source <(ddpdoctor completion zsh)
_ddpdoctor() {{
    local -a names words_of
    names=({names})
    if (( CURRENT == 2 )); then
        _describe command names
        return
    fi
    case $words[2] in
{cases}
    esac
    if [[ $PREFIX == -* ]]; then
        compadd -- $words_of
    else
        _files
    fi
}}
compdef _ddpdoctor ddpdoctor
"""


def _make_fish(options: dict[str, dict[str, str]]) -> str:
    lines = ["# Completion of ddpdoctor for fish"]
    for name in options:
        about = quote_word(COMMANDS[name][1])
        lines.append(f"complete -c ddpdoctor -f -n __fish_use_subcommand -a {name} -d {about}")
    for name, flags in options.items():
        for flag, what in flags.items():
            kind = "-l" if flag.startswith("--") else "-s"
            seen = quote_word(f"__fish_seen_subcommand_from {name}")
            lines.append(f"complete -c ddpdoctor -n {seen} {kind} {flag.lstrip('-')} -d {quote_word(what)}")
    return "\n".join([*lines, ""])


SHELLS: dict[str, Callable[[dict[str, dict[str, str]]], str]] = {
    "bash": _make_bash,
    "zsh": _make_zsh,
    "fish": _make_fish,
}
