"""One server's entry under the eyes of its readers: its values, whatever they mean, and what is wrong with them."""

import os
from typing import Final

from sluicegate.config.jsonc import Member, Node, Object, Scalar
from sluicegate.config.page import Page
from sluicegate.config.problems import Severity
from sluicegate.config.secrets import Secret

LONGEST_STRING: Final = 128 * 1024
"""Characters; no system gives a program a longer argument."""


class EntryBody:
    """One entry; each slip is told, and the first one that matters says why the server does not run."""

    def __init__(self, page: Page, member: Member, path: tuple[str, ...]) -> None:
        self.name = member.key
        self.member = member
        self.body = Object(0, 0, [])
        """What is in it; nothing if it is no object."""
        self.why = ""
        """Why the server does not run."""
        self.is_invalid = False
        """Whether it cannot be read."""
        self.variables = page.variables
        self._page = page
        self._path = path

    def open(self, body: Object) -> None:
        """Read on in what the entry holds."""
        self.body = body
        self._page.note_repeated(body, self._path, self.name)

    @property
    def line(self) -> int:
        """Where it stands."""
        return self._page.line(self.member.key_start)

    def get(self, key: str) -> Member | None:
        """What stands under a key."""
        return self.body.get(key)

    # What is said about it.

    def say(self, severity: Severity, sentence: str, at: Node | Member, *keys: str) -> None:
        """Note something that is said about a place in it."""
        self._page.say(severity, f"{self.name}: {sentence}", at, (*self._path, *keys), self.name)

    def refuse(self, sentence: str, at: Node | Member, *keys: str) -> None:
        """The entry cannot be read: the server does not run, and that is why."""
        self.say("warning", sentence, at, *keys)
        self.is_invalid = True
        self.why = self.why or sentence

    def disable(self, sentence: str, at: Node | Member, *keys: str) -> None:
        """The entry is fine, and the server cannot run as things are."""
        self.say("warning", sentence, at, *keys)
        self.why = self.why or sentence

    # Values, whatever they mean.

    def string(self, node: Node, *keys: str) -> Secret | None:
        """The string with its variables put in, masked where they were; None if it is none."""
        if not isinstance(node, Scalar) or not isinstance(node.value, str):
            self.refuse(f'"{keys[0]}" should be a string.', node, *keys)
            return None
        if len(node.value) > LONGEST_STRING:
            self.refuse(f'"{keys[0]}" is longer than {LONGEST_STRING} characters.', node, *keys)
            return None
        expanded = self.variables.expand(node.value)
        for name in expanded.missing:
            # Only a program has variables of its own that a file of such can give.
            file = " use envFile," if keys[0] == "env" else ""
            way_out = f"set it where the gateway is started and start that again,{file} or write a default"
            self.disable(f"The variable {name} is not set; {way_out}: ${{{name}:-…}}.", node, *keys)
        for name in expanded.elsewhere:
            kind = name.partition(":")[0]
            what = "is asked of a person by the editor" if kind == "input" else "is known to another program alone"
            self.disable(f"${{{name}}} {what}; put a variable in its place, as ${{env:NAME}}.", node, *keys)
        if "\0" in expanded.value:
            self.refuse("A string holds a zero byte, which no command and no header can take.", node, *keys)
            return None
        return Secret(expanded.value, expanded.shown)

    def written(self, node: Node) -> str:
        """A value as it stands in the file: a number may be a version, of which `1.10` is another than `1.1`."""
        return self._page.written(node)

    def text(self, key: str) -> Secret | None:
        """The string under a key, if there is one."""
        member = self.get(key)
        return self.string(member.value, key) if member else None

    def mapping(self, key: str) -> dict[str, Secret]:
        """An object of strings, every value a secret. Numbers and truth values are taken as they are written."""
        member = self.get(key)
        if member is None or (isinstance(member.value, Scalar) and member.value.value is None):
            return {}
        if not isinstance(member.value, Object):
            self.refuse(f'"{key}" should be an object of strings.', member.value, key)
            return {}
        self._page.note_repeated(member.value, (*self._path, key), self.name)
        found: dict[str, Secret] = {}
        for item in member.value.effective():
            match item.value:
                case Scalar(value=None):
                    continue
                case Scalar(value=bool() | int() | float()):
                    found[item.key] = Secret(self.written(item.value))
                case Scalar():
                    if value := self.string(item.value, key, item.key):
                        found[item.key] = Secret(value.reveal())
                case _:
                    self.refuse(f'"{key}.{item.key}" should be a string.', item.value, key, item.key)
        return found

    def from_here(self, path: str) -> str:
        """A path that is meant from the folder of the file."""
        return os.path.normpath(os.path.join(self._page.folder, self.from_home(path)))

    def from_home(self, path: str) -> str:
        """A path that may begin with `~`."""
        return self.variables.home + path[1:] if path == "~" or path.startswith("~/") else path
