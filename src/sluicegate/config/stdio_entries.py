"""Servers that are programs to be run, as entries write them down."""

import os
import re
from typing import Final

from sluicegate.config import commands
from sluicegate.config.dotenv import dotenv
from sluicegate.config.entry_body import EntryBody
from sluicegate.config.jsonc import Array, Node, Scalar
from sluicegate.config.problems import Problem
from sluicegate.config.reading import read_text
from sluicegate.config.secrets import Secret, masked_args, masked_text
from sluicegate.config.values import Stdio

_variable_name: Final = re.compile(r"[^=\0]+")


def stdio_in(entry: EntryBody) -> Stdio | None:
    """The program that an entry's command names; None if it names none."""
    member = entry.get("command")
    assert member is not None
    node, extra = member.value, list[Node]()
    if isinstance(node, Array) and node.items:  # Some write the whole command line as one list.
        node, extra = node.items[0], node.items[1:]
    command = entry.string(node, "command")
    args = _args(entry, extra)
    env = _env_file(entry) | entry.mapping("env")
    for name in env:
        if not _variable_name.fullmatch(name):
            entry.refuse(f"{ascii(name)} is no name of a variable.", member, "env", name)
    cwd = _folder(entry)
    if command is None:
        return None
    if not command.reveal().strip() and not entry.why:
        entry.refuse("The command is empty.", member.value, "command")
    program, words = entry.from_home(command.reveal()), [arg.reveal() for arg in args]
    path = env["PATH"].reveal() if "PATH" in env else entry.variables.environ.get("PATH", os.defpath)
    found = commands.find_program(program, cwd, path) if not entry.why else None
    sentence = ""
    if found is None and not entry.why:
        sentence = commands.not_found(command.shown, words, program=program, cwd=cwd, path=path)
        entry.say("warning", sentence, member, "command")
    masks = masked_args([arg.shown for arg in args])
    if package := commands.floating(program, words):
        name = dict(zip(words, masks, strict=True)).get(package) or masked_text(package)
        floats = f"{name} comes without a fixed version, so that tomorrow it may be another program; name one."
        entry.say("note", floats, entry.get("args") or member, "args")
    secrets = tuple(Secret(arg, mask) for arg, mask in zip(words, masks, strict=True))
    return Stdio(command=program, program=found, missing=sentence, args=secrets, env=env, cwd=cwd)


def _args(entry: EntryBody, items: list[Node]) -> list[Secret]:
    member = entry.get("args")
    if member is not None:
        if not isinstance(member.value, Array):
            entry.refuse('"args" should be a list of strings.', member.value, "args")
            return []
        items = [*items, *member.value.items]
    found: list[Secret] = []
    for index, item in enumerate(items):
        if isinstance(item, Scalar) and isinstance(item.value, int | float) and not isinstance(item.value, bool):
            number = entry.written(item)
            found.append(Secret(number, number))
        elif value := entry.string(item, "args", str(index)):
            found.append(value)
    return found


def _folder(entry: EntryBody) -> str:
    """Where the server runs: as its file says, from the file's own folder; else in the folder of the gateway."""
    member, root = entry.get("cwd"), entry.variables.root
    value = entry.text("cwd")
    if member is None or value is None or not value.reveal():
        return root
    folder = entry.from_here(value.reveal())
    if not entry.why and not os.path.isdir(folder):
        entry.say("warning", f'The folder "{value}" of its cwd does not exist.', member.value, "cwd")
    return folder


def _env_file(entry: EntryBody) -> dict[str, Secret]:
    member = entry.get("envFile")
    value = entry.text("envFile")
    if member is None or value is None or entry.why:
        return {}
    text = read_text(entry.from_here(value.reveal()))
    if isinstance(text, str):
        return {name: Secret(value) for name, value in dotenv(text)}
    why = text.sentence if isinstance(text, Problem) else "There is no such file."
    entry.disable(f'The envFile "{value}" cannot be used. {why}', member.value, "envFile")
    return {}
