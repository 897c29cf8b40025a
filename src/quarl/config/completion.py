"""What makes a shell complete verbs, options and the values of those that have few; elsewhere names of files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quarl.config import VERBS
from quarl.config.options import options
from quarl.config.words import BESIDES, below
from quarl.errors import QuarlError

SHELLS = {
    "bash": 'eval "$(quarl completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(quarl completion zsh)" in ~/.zshrc, behind compinit',
    "fish": "quarl completion fish > ~/.config/fish/completions/quarl.fish",
}
"""Where the scripts go."""
BASH = """_quarl() {
    local word=${COMP_WORDS[COMP_CWORD]} values=
    case "${COMP_WORDS[*]:1:$((COMP_CWORD - 1))} " in
%s
    esac
    COMPREPLY=($(compgen -W "$values" -- "$word"))
}
complete -o bashdefault -o default -F _quarl quarl"""
FISH = """function __quarl_typed
    set -l typed (commandline -opc)
    set -e typed[1]
    set -l word (commandline -ct)
    string match -q -- "$argv[1]" "$typed "; and string match -q -- "$argv[2]*" "$word"
end
%s"""


def script(shell: str = "") -> str:
    """The script for a shell, whose first line says where it goes; QuarlError for a shell that is none of SHELLS."""
    if shell not in SHELLS:
        raise QuarlError(f"quarl completion is for one of {', '.join(SHELLS)}, got {shell!r}: name one")
    frame, case = BASH, r"        {typed}) [[ $word == {begun}* ]] && values='{words}' ;;"
    if shell == "fish":
        frame, case = FISH, "complete -c quarl -f -n \"__quarl_typed '{typed}' '{begun}'\" -a '{words}'"
    cases = []
    for typed, begun, words in _cases():
        escaped = typed if shell == "fish" else typed.replace(" ", r"\ ")
        cases.append(case.format(typed=escaped, begun=begun, words=" ".join(words)))
    start = "autoload -U bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return f"# {SHELLS[shell]}\n{start}{frame % chr(10).join(cases)}"


def _cases() -> Iterator[tuple[str, str, Sequence[str]]]:
    """(pattern of what stands before a word, how it has begun, what it may be); of bash the first that fits counts."""
    verbs = [kind.verb for kind in VERBS]
    yield " ", "", [*verbs, *BESIDES]
    yield "help ", "", verbs
    yield "completion ", "", [*SHELLS]
    for kind in VERBS:
        if kind not in below(kind):
            yield f"{kind.verb} ", "", [verb.verb.split()[1] for verb in below(kind)]
        for verb in below(kind):
            listed = options(verb)
            for option in listed:
                yield from ((f"{verb.verb} *{name} ", "", option.choices) for name in option.names if option.choices)
            yield f"{verb.verb} *", "-", [name for option in listed for name in option.names]
