"""The one exception a user can cause: a line that says what, where, and the fix."""

MAX_LINE = 600
"""Characters of a message; names out of a file can be of any length."""


class QuarlError(Exception):
    """A mistake outside the program: a bad file, name or number. The command line prints it and exits with 2."""

    def __str__(self) -> str:
        # Messages quote names out of files; whatever those hold, the user sees one line and no terminal codes.
        text = super().__str__()
        if len(text) > MAX_LINE:
            text = f"{text[: MAX_LINE - 100]} ... {text[-90:]}"
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class UnsupportedError(QuarlError):
    """The request is well formed, but this engine or reader has no way to carry it out."""
