"""The error of a user's mistake: one clear sentence, no stack trace."""


class UserError(Exception):
    """What was wrong and what to do, in one sentence."""
