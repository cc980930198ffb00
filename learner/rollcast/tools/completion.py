"""`rollcast completion SHELL`: prints a script with which a shell completes commands, options and values."""

from collections.abc import Iterator
from typing import IO

from rollcast.services.process.output import write_output
from rollcast.services.settings.command_line import CONFIG, HELP, HELP_ALL
from rollcast.services.settings.options import Option, Takes, options_of
from rollcast.tools.commands import COMMANDS
from rollcast.tools.settings import CompletionSettings

_BASH = """\
# rollcast for bash: eval "$(rollcast completion bash)", in ~/.bashrc
_rollcast() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="${{COMP_WORDS[1]}}"
    COMPREPLY=()
    if (( COMP_CWORD == 1 )); then
        COMPREPLY=($(compgen -W "{commands}" -- "$word"))
        return
    fi
    case "$command $before" in
{values}
    esac
    case "$command" in
{options}
    esac
    [[ ${{#COMPREPLY[@]}} -gt 0 || $word == -* ]] || COMPREPLY=($(compgen -f -- "$word"))
}}
complete -o filenames -F _rollcast rollcast
"""
# zsh runs the function of bash
_ZSH = """\
# rollcast for zsh: eval "$(rollcast completion zsh)", in ~/.zshrc
autoload -Uz compinit bashcompinit && compinit && bashcompinit
"""


def completion(settings: CompletionSettings, output: IO[str]) -> int:
    """Prints the script for a shell; returns the exit code, 0."""
    write_output(output, completion_script(settings))
    return 0


def completion_script(settings: CompletionSettings) -> str:
    """Returns the script for a shell."""
    commands = " ".join(COMMANDS)
    values, options = [], []
    for command, row in COMMANDS.items():
        own = options_of(row.settings())
        values += [f"        {line}" for line in _values(command, own)]
        words = [*(spelling for option in own for spelling in option.spellings), CONFIG, HELP, HELP_ALL]
        choices = [choice for option in own if option.positional for choice in option.choices]
        first = " ".join([*([row.subcommand] if row.subcommand else choices), ""])
        options.append(f'        {command}) COMPREPLY=($(compgen -W "{first}{" ".join(words)}" -- "$word")) ;;')
    bash = _BASH.format(commands=commands, values="\n".join(values), options="\n".join(options))
    return bash if settings.shell == "bash" else _ZSH + bash.partition("\n")[2]


def _values(command: str, options: tuple[Option, ...]) -> Iterator[str]:
    """Yields the cases of the script that complete values of options: with choices, with files, or not at all."""
    paths, free = [CONFIG], list[str]()
    for option in options:
        if option.choices and not option.positional:
            words = " ".join(option.choices)
            yield f'"{command} {option.name}") COMPREPLY=($(compgen -W "{words}" -- "$word")); return ;;'
        elif option.takes is Takes.PATH:
            paths += option.spellings
        elif option.takes is Takes.VALUE:
            free += option.spellings
    yield f'{_pattern(command, paths)}) COMPREPLY=($(compgen -f -- "$word")); return ;;'
    if free:
        yield f"{_pattern(command, free)}) return ;;"


def _pattern(command: str, options: list[str]) -> str:
    return "|".join(f'"{command} {option}"' for option in options)
