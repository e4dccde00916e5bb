"""Calls of every spelling while the rules change: what was recorded, what was decided and what arrived are the same."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, cast

import pytest

from tests.downstream.raw_client import Json
from tests.faults.gateway_stage import Process
from tests.governance.stage import Governed, call_bytes, governing, outcome_of, wire_to
from tests.polling import until

pytestmark = pytest.mark.timeout(7200)

AT_ONCE: Final = 16
RULES: Final = """
[policy]
default = "deny"

[[permissions]]
tool = "mcp__a__rm"
action = "deny"

[[permissions]]
tool = "mcp__a__flip"
action = "{flip}"

[[permissions]]
tool = "mcp__a__put"
args = {{ path = "/srv/**" }}
action = "allow"

[[permissions]]
tool = "mcp__*__get"
action = "allow"
"""
LOOK_ALIKES: Final[tuple[Callable[[str], str], ...]] = (
    str.upper,
    str.title,
    lambda name: name + "\n",
    lambda name: name + "\0",
    lambda name: name + " ",
    lambda name: " " + name,
    lambda name: name + "\u200b",
    lambda name: name[:2] + "\u200d" + name[2:],
    lambda name: "\ufeff" + name,
    lambda name: "\u202e" + name,
    lambda name: name.replace("a", "\u0430"),
    lambda name: name.replace("e", "\u0435"),
    lambda name: name.replace("p", "\u0440"),
    lambda name: "".join(chr(ord(each) + 0xFEE0) for each in name),
    lambda name: name.replace("__", "_"),
    lambda name: name.replace("__", "___"),
    lambda name: name.replace("__", "/"),
    lambda name: name.replace("__", "."),
    lambda name: "a__" + name,
    lambda name: "mcp__" + name + "__",
    lambda name: name + "__" + name,
    lambda name: name.replace("__", "\uff3f\uff3f"),
    lambda name: name.replace("t", "\u0442"),
    lambda name: name[:-1],
    lambda name: name + "*",
    lambda name: name[:-1] + "?",
    lambda name: "*",
    lambda name: "",
)
FOLDED: Final = (
    ', "Name": "a__get"',
    ', "NAME": "a__get"',
    ', "name\\u0000": "a__get"',
    ', "name ": "a__get"',
    ', "name": "a__get"',
    ', "n\\u0061me": "a__get"',
    ', "\uff4eame": "a__get"',
    ', "Arguments": {}',
    ', "argument\u017f": {}',
    ', "arguments": {}',
    ', "_Meta": {}',
    ', "x": NaN',
    ', "x": "\\ud800"',
    ', "x": {"k": 1, "k": 2}',
    ', "x": {"k": 1, "\\u006b": 2}',
    "} {",
    ', "x": 01',
)
BAD_PATHS: Final = (
    *("/etc/passwd", "/srv/../etc/passwd", "/srv/./x", "/srv//x", "/srv", "srv/x", "/SRV/x", "/srv\\..\\x", "//srv/x"),
    *("/srv/%2e%2e/x", "/srv/%2Fx", "/srv/x\n", "/srv/x\u200b", "/srv/\u202ex", "\uff0fsrv/x", "/srv/x\0", " /srv/x"),
)


class Calls:
    """Generated calls: the bytes, and what may come of them (`ok`, `no`, or either)."""

    def __init__(self, seed: int) -> None:
        self._lots = random.Random(seed)

    def __iter__(self) -> Iterator[tuple[int, bytes, str]]:
        number = 0
        while True:
            number += 1
            yield number, *self._next(number)

    def _next(self, number: int) -> tuple[bytes, str]:
        lots = self._lots
        match lots.randrange(10):
            case 0:
                real = lots.choice(["a__rm", "a__get", "a__put", "b__put"])
                name = next(like for like in (lots.choice(LOOK_ALIKES)(real) for _ in range(99)) if like != real)
                return call_bytes(name, self._arguments(number, "/srv/x")), "no"
            case 1:
                more = lots.choice(FOLDED)
                return call_bytes("a__get", self._arguments(number, "/srv/x"), more=more), "no"
            case 2:
                path = lots.choice(BAD_PATHS)
                return call_bytes("a__put", self._arguments(number, path)), "no"
            case 3:
                odd = lots.choice(["null", "1", "[]", "{}", '["/srv/x", "/etc/y"]', '{"path": "/srv/x"}', "true"])
                return call_bytes("a__put", f'{{"nonce": {number}, "path": {odd}}}'), "no"
            case 4:
                name = lots.choice(["a__rm", "b__put", "b__rm", "b__flip"])
                return call_bytes(name, self._arguments(number, "/srv/x")), "no"
            case 5 | 6:
                return call_bytes("a__flip", self._arguments(number, "/srv/x")), "either"
            case 7:
                return call_bytes("a__put", self._arguments(number, f"/srv/{lots.randrange(9)}/x y.é")), "ok"
            case _:
                return call_bytes(lots.choice(["a__get", "b__get"]), self._arguments(number, "")), "ok"

    def _arguments(self, number: int, path: str) -> str:
        """Arguments in one of many spellings, with members that no schema names."""
        lots = self._lots
        members = [f'"nonce": {number}', f'"path": {json.dumps(path, ensure_ascii=lots.random() < 0.5)}']
        for n in range(lots.randrange(4)):
            key = lots.choice(["Path", "pa\\u0074h ", "é", "\\u00e9\\u0301", "", "__proto__", "a.b", "0", "\\t"])
            members.append(f'"{key}{n}": {self._value(3)}')
        lots.shuffle(members)
        blank = lots.choice(["", " ", "\t", "\r\n  "])
        return "{" + f",{blank}".join(members) + blank + "}"

    def _value(self, depth: int) -> str:
        lots = self._lots
        match lots.randrange(9 if depth else 7):
            case 0:
                return lots.choice(["1", "1.0", "-0", "-0.0", "1e3", "1E-7", "true", "false", "null", '"1"'])
            case 1:
                return str(lots.randrange(-(10**40), 10**40))
            case 2:
                return repr(lots.uniform(-1e300, 1e300))
            case 3:
                return lots.choice(
                    ['"\\u0000"', '"\\/"', '"\u2028"', '"\\ud83d\\ude00"', '"\U0001f600"', '"\\\\u0041"']
                )
            case 4:
                return json.dumps("".join(chr(lots.randrange(32, 0xD7FF)) for _ in range(lots.randrange(20))))
            case 5:
                return "9007199254740993" + "0" * lots.randrange(60)
            case 6:
                return lots.choice(["0.1", "0.10000000000000000000001", "123456789.123456789012345678", "5e-324"])
            case 7:
                return f"[{', '.join(self._value(depth - 1) for _ in range(lots.randrange(4)))}]"
            case _:
                keys = [lots.choice(("x", "X", "\u017f", "\\u0078y")) for _ in range(3)]
                inner = (f'"{key}{n}": {self._value(depth - 1)}' for n, key in enumerate(keys))
                return f"{{{', '.join(inner)}}}"


async def reload_again_and_again(folder: Governed, done: asyncio.Event) -> None:
    """Change the rules each time the last change was read, also to ones that have a mistake."""
    turn, last = 0, 0
    while not done.is_set():
        turn += 1
        text = RULES.format(flip="allow" if turn % 2 else "deny")
        folder.settings(text + ('\n[[permissions]]\ntool = "mcp__a__rm"\naction = "alow"\n' if turn % 5 == 0 else ""))
        found = await until(lambda last=last: done.is_set() or folder.rows("config", after=last), bool)
        last = last if isinstance(found, bool) else found[-1].seq
    folder.settings(RULES.format(flip="deny"))


async def make_calls(gateway: Process, calls: Iterator[tuple[int, bytes, str]], count: int) -> dict[int, str]:
    """What came of each call, by its number; each is as it may be."""
    seen: dict[int, str] = {}

    async def work() -> None:
        wire = await wire_to(gateway)
        while len(seen) < count:
            number, data, expected = next(calls)
            seen[number] = ""
            if not wire.is_open:
                wire = await wire_to(gateway)
            came = seen[number] = outcome_of(await wire.ask(data))
            assert expected == "either" or (came == "ok") == (expected == "ok"), (came, data)
        wire.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())
    return seen


async def assert_recorded_is_decided_is_received(tmp_path: Path, count: int) -> None:
    folder = Governed(tmp_path, {"a": (), "b": ("session",)}, RULES.format(flip="allow"))
    done = asyncio.Event()
    try:
        async with governing(folder) as gateway, asyncio.TaskGroup() as group:
            group.create_task(reload_again_and_again(folder, done))
            try:
                seen = await make_calls(gateway, iter(Calls(1405)), count)
            finally:
                done.set()
        received = [*folder.received("a"), *folder.received("b")]
        assert {each["method"] for each in received} == {"tools/call"}
        given = [cast(Json, cast(Json, each["params"])["arguments"]) for each in received]
        arrived = Counter(str(arguments["nonce"]) for arguments in given)
        assert arrived == Counter(str(number) for number, came in seen.items() if came == "ok")
        # A call whose rules changed before it was sent was decided on again, or was unknown by then.
        decisions = {row.request: row for row in folder.rows("decision")}
        outcomes = {row.request: row for row in folder.rows("outcome")}
        unsent = {row.request for row in outcomes.values() if row.verdict == "error" and row.body["delivered"] == "no"}
        assert {outcomes[request].body["reason"] for request in unsent} <= {"outdated", "invalid_params"}
        allowed = [row for row in decisions.values() if row.verdict == "allow" and row.request not in unsent]
        assert Counter(str(row.body["digest"]) for row in allowed) == Counter(map(folder.digest, given))
        assert decisions.keys() == outcomes.keys()
        assert Counter(row.verdict for row in outcomes.values())["ok"] == len(given)
        denied = sum(row.verdict == "deny" for row in decisions.values())
        assert denied == sum(came == "policy_denied" for came in seen.values()) > 0
        assert {row.verdict for row in folder.rows("config")} >= {"applied"}
        assert "internal" not in {row.body.get("reason") for row in folder.rows("outcome")}
        await folder.verified()
    finally:
        folder.remove()


@pytest.mark.soak(short=5000, full=200_000)
async def test_t1_t15_t17_what_is_recorded_is_what_was_decided_and_what_the_server_received(
    tmp_path: Path, repeats: int
) -> None:
    await assert_recorded_is_decided_is_received(tmp_path, repeats)


@pytest.mark.soak
async def test_t17_a_million_calls_are_recorded_as_they_were_received(tmp_path: Path) -> None:
    await assert_recorded_is_decided_is_received(tmp_path, 1_000_000)
