"""How a command ends that could not do what it was asked: one sentence on stderr, and a status for scripts.

0 is done, 1 failed, 2 what click says of a wrong command line, 3 could not start.
"""

import click


class Failure(click.ClickException):
    """Ends the command with a sentence that names what is wrong and the way out."""

    exit_code = 1

    def show(self, file: object = None) -> None:
        """Print the sentence to stderr."""
        from sluicegate.cli.render import say  # Here and not above: most commands do not fail.

        say(self.message)


class NotStarted(Failure):
    """Ends a command that was to serve and cannot."""

    exit_code = 3
