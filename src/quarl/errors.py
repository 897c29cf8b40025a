"""The one exception a user can cause: a line that says what, where, and the fix."""


class QuarlError(Exception):
    """A mistake outside the program: a bad file, name or number. The command line prints it and exits with 2."""


class UnsupportedError(QuarlError):
    """The request is well formed, but this engine or reader has no way to carry it out."""
