"""The first rule that matches decides; look-alikes and odd arguments never reach what a rule protects."""

import random
import time
import unicodedata
from collections.abc import Iterator
from typing import Any

import pytest

from sluicegate.exchange import Caller, Target, Verdict
from sluicegate.gate.policy import MAX_ARGUMENT, Careful, Rules, is_hidden, judge, mismatch, possible_verdicts
from sluicegate.gate.rules import Kind, Permission, PolicyConfig, Rule
from tests.gate.rules_of import ADA, BOB, resource, rule, rules, tool

TEAM = """
[[permissions]]
tool = "mcp__github__delete_*"
args = { repo = "acme/**" }
action = "deny"
why = "Ask ops first."

[[permissions]]
tool = "mcp__github"
caller = ["ada", "group:ops"]
action = "allow"
record = "values"

[[permissions]]
tool = "mcp__github__get_*"
action = "allow"

[[permissions]]
prompt = "mcp__github__review"
action = "allow"

[[permissions]]
tool = "solar.*"
action = "deny"
"""


def action(made: Rules, target: Target, arguments: dict[str, object] | None = None, caller: Caller = BOB) -> str:
    return judge(made, caller, target, arguments or {}).action


def test_the_first_match_decides() -> None:
    made = rules(TEAM)
    denied = judge(made, ADA, tool("github delete_repo"), {"repo": "acme/site"})
    assert denied == Verdict("deny", "sluicegate.toml:1", "Ask ops first.")
    allowed = judge(made, ADA, tool("github delete_repo"), {"repo": "other/site"})
    assert allowed == Verdict("allow", "sluicegate.toml:2", records_values=True)
    assert judge(made, BOB, tool("github get_issue"), {}) == Verdict("allow", "sluicegate.toml:3")
    assert judge(made, BOB, tool("github push"), {}) == Verdict("ask", why="No rule names it.")


def test_a_rule_is_for_its_kind_and_a_whole_server_for_all_kinds() -> None:
    made = rules(TEAM)
    assert action(made, Target("github", "prompt", "review")) == "allow"
    assert action(made, Target("github", "prompt", "get_it")) == "ask"
    assert action(made, Target("github", "resource", "github://x"), caller=ADA) == "allow"
    assert action(made, Target("github", "instructions", ""), caller=ADA) == "allow"


def test_names_of_activations_have_a_dot() -> None:
    made = rules(TEAM)
    assert action(made, tool("solar watch")) == "deny" and action(made, tool("solar2 watch")) == "ask"


def test_without_rules_all_is_allowed_and_with_rules_what_none_names_is_asked() -> None:
    assert judge(Rules(), BOB, tool("a b"), {}) == Verdict("allow")
    assert action(rules(TEAM), tool("a b")) == "ask"
    assert action(rules(TEAM, "deny"), tool("a b")) == "deny"
    assert action(rules("", "ask"), tool("a b")) == "ask"


@pytest.mark.parametrize(
    ("caller", "expected"),
    [
        (Caller("ada"), "allow"),
        (Caller("bob", ("ops",)), "allow"),
        (Caller("Ada"), "deny"),
        (Caller("bob", ("ops2",)), "deny"),
        (Caller("bob", ("ada",)), "deny"),
        (Caller("group:ops"), "deny"),
        (Caller("ops"), "deny"),
        (Caller("ada\n"), "deny"),
    ],
)
def test_a_rule_for_callers_is_for_no_others(caller: Caller, expected: str) -> None:
    made = rule(tool="*", caller=["ada", "group:ops"], action="allow")
    assert action(made, tool("a b"), caller=caller) == expected
    assert made.class_of(caller) == made.class_of(Caller("ada" if expected == "allow" else "zoe"))


def test_callers_without_rules_of_their_own_are_one_class() -> None:
    made = rules(TEAM)
    assert made.class_of(BOB) == made.class_of(Caller("eve", ("dev",))) != made.class_of(ADA)
    assert hash(made.class_of(ADA)) is not None


def test_the_version_changes_with_the_rules_and_not_with_their_lines() -> None:
    written = Permission(tool="*", action="ask")
    versions = [
        PolicyConfig((Rule(written, "a.toml", 1),), "ask").version,
        PolicyConfig((Rule(written, "b.toml", 7),), "ask").version,
        PolicyConfig((Rule(written, "a.toml", 1),), "deny").version,
        PolicyConfig((Rule(Permission(tool="*", action="deny"), "a.toml", 1),), "ask").version,
    ]
    assert versions[0] == versions[1] and len(set(versions)) == 3


# ----------------------------------------------------------------------------------------------------------- arguments

MATCHING = "/srv/share/a.txt"
ODD: list[object] = [
    None,
    {},
    {"path": MATCHING},
    [],
    [[MATCHING]],
    [MATCHING, {}],
    [MATCHING, None],
    "/srv/../etc/passwd",
    "/srv/./a",
    "/srv/..",
    "../srv/a",
    "/srv//a",
    "//srv/a",
    "/srv\\..\\a",
    "/srv/a\0",
    "/srv/a\n",
    "/srv/\u202ea",
    "/srv/\u200ba",
    "/srv/%2e%2e/etc",
    "/srv/%2E./etc",
    "/srv/%252e%252e/etc",
    "/srv%2fa",
    "/srv/" + "a" * MAX_ARGUMENT,
    "/srv/" + "\u00e9" * (MAX_ARGUMENT // 2),
    ["/srv/a"] * MAX_ARGUMENT,
    10**400,
]


@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value)[:40])
def test_an_odd_argument_matches_what_denies_and_asks_and_nothing_that_allows(value: object) -> None:
    for glob in ("/srv/**", "/other/*"):
        cases: list[dict[str, object]] = [{"path": value}, {"path": [MATCHING, value]}]
        for arguments in cases:
            for said in ("deny", "ask"):
                assert action(rule(tool="*", args={"path": glob}, action=said), tool("a b"), arguments) == said
            assert action(rule(tool="*", args={"path": glob}, action="allow"), tool("a b"), arguments) == "deny"


def test_a_missing_argument_is_odd() -> None:
    assert action(rule(tool="*", args={"path": "**"}, action="deny"), tool("a b"), {"Path": "x"}) == "deny"
    assert action(rule(tool="*", args={"path": "**"}, action="allow"), tool("a b"), {}) == "deny"
    assert action(rule(tool="*", args={"a": "x", "b": "y"}, action="deny"), tool("a b"), {"a": "z"}) == "allow"


def test_of_a_list_all_elements_must_be_allowed_and_one_is_enough_to_deny() -> None:
    for path in ("paths", "paths.*"):
        allow = rule(tool="*", args={path: "/srv/**"}, action="allow")
        deny = rule(tool="*", args={path: "/srv/**"}, action="deny")
        both: dict[str, object] = {"paths": ["/srv/a", "/etc/b"]}
        assert (action(allow, tool("a b"), both), action(deny, tool("a b"), both)) == ("deny", "deny")
        inside: dict[str, object] = {"paths": ["/srv/a", "/srv/b"]}
        assert action(allow, tool("a b"), inside) == "allow"
        assert action(deny, tool("a b"), {"paths": ["/etc/b"]}) == "allow"


def test_a_path_leads_into_lists_and_objects() -> None:
    made = rule(tool="*", args={"edits.*.path": "/srv/**"}, action="allow")
    assert action(made, tool("a b"), {"edits": [{"path": "/srv/a"}, {"path": "/srv/b"}]}) == "allow"
    assert action(made, tool("a b"), {"edits": [{"path": "/srv/a"}, {"path": "/etc/b"}]}) == "deny"
    assert action(made, tool("a b"), {"edits": [{"path": "/srv/a"}, {}]}) == "deny"
    assert action(made, tool("a b"), {"edits": {"x": {"path": ["/srv/a"]}}}) == "allow"
    assert action(made, tool("a b"), {"edits": "/srv/a"}) == "deny"
    every = rule(tool="*", args={"*": "/srv/**"}, action="allow")
    assert action(every, tool("a b"), {"from": "/srv/a", "to": "/srv/b"}) == "allow"
    assert action(every, tool("a b"), {"*": "/srv/a", "to": "/etc/b"}) == "deny"


@pytest.mark.parametrize(
    ("value", "glob"),
    [
        (1, "1"),
        (1.0, "1"),
        ("1", "1"),
        (True, "true"),
        (0.5, "0.5"),
        (-3, "-3"),
        (1e300, "1e+300"),
        (1e16, "1" + "0" * 16),
    ],
)
def test_numbers_are_compared_as_they_are_written(value: object, glob: str) -> None:
    assert action(rule(tool="*", args={"n": glob}, action="allow"), tool("a b"), {"n": value}) == "allow"


def test_a_pattern_is_for_the_salient_argument() -> None:
    made = rule(tool="*", pattern="git status*", action="allow")
    assert action(made, tool("a sh", "command"), {"command": "git status -s", "path": "x"}) == "allow"
    assert action(made, tool("a sh", "command"), {"command": "rm -r", "path": "git status"}) == "deny"
    assert action(made, tool("a sh"), {"command": "git status"}) == "deny"
    assert action(rule(tool="*", pattern="x", action="deny"), tool("a sh"), {"command": "y"}) == "deny"


def test_globs_without_segments_do_not_mind_the_spelling() -> None:
    made = rule(tool="*", args={"text": "say *"}, action="allow")
    assert action(made, tool("a b"), {"text": "say ..\\ \n"}) == "allow"


# ------------------------------------------------------------------------------------------------- T15 look-alikes

CONFUSABLE = {
    "a": "\u0430\u0251\uff41",
    "e": "\u0435\uff45",
    "o": "\u043e\u03bf\uff4f",
    "i": "\u0456\u0131",
    "c": "\u0441",
}
INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u202e\U000e0041\0\n\r\t "


def look_alikes(name: str, chance: random.Random) -> Iterator[str]:
    """Other names that a person or a careless program takes for this one."""
    while True:
        place = chance.randrange(len(name))
        char = name[place]
        tricks = [
            name[:place] + char.swapcase() + name[place + 1 :],
            name[:place] + chance.choice(CONFUSABLE.get(char, "\uff3f")) + name[place + 1 :],
            name[:place] + chance.choice(INVISIBLE) + name[place:],
            name + chance.choice(INVISIBLE),
            chance.choice(INVISIBLE) + name,
            name[:place] + f"%{ord(char):02x}" + name[place + 1 :],
            name[:place] + char + "\u0301" + name[place + 1 :],
            unicodedata.normalize("NFKD", name[:place] + "\uff41" + name[place:]),
            name[:place] + char * 2 + name[place + 1 :],
            name[:place] + name[place + 1 :],
            name.upper(),
        ]
        found = chance.choice(tricks)
        if found != name:
            yield found


@pytest.mark.parametrize("name", ["delete_repo", "read_file", "a__b__c", "x.y"])
def test_T15_a_look_alike_of_a_name_is_not_allowed(name: str) -> None:
    """500 look-alikes of the server, 500 of the tool: an allow rule is for the exact pair only."""
    chance = random.Random(15)
    made = rule(tool=f"mcp__github__{name}", action="allow")
    assert action(made, Target("github", "tool", name)) == "allow"
    allowed = [
        other
        for other, _ in zip(look_alikes(name, chance), range(500), strict=False)
        if action(made, Target("github", "tool", other)) == "allow"
    ]
    allowed += [
        other
        for other, _ in zip(look_alikes("github", chance), range(500), strict=False)
        if action(made, Target(other, "tool", name)) == "allow"
    ]
    assert allowed == []


def test_T15_the_halves_of_a_name_are_a_pair() -> None:
    made = rule(tool="mcp__a__b__c", action="allow")
    assert action(made, Target("a", "tool", "b__c")) == "allow"
    assert action(made, Target("a__b", "tool", "c")) == "deny"


URI_TRICKS = (
    "file:///ok/../{}",
    "file:///ok/%2e%2e/{}",
    "file:///ok/.%2E/{}",
    "file:///./{}",
    "file:////{}",
    "file:///ok\\..\\{}",
    "FILE:///{}",
    "file://localhost/{}",
    "file://LOCALHOST/{}",
    "file:///{}%00",
    "file:///%252e%252e/{}",
    "file:///ok/%2e%2e%2f{}",
)


def test_T15_a_look_alike_of_a_uri_does_not_get_around_a_deny_rule() -> None:
    chance = random.Random(16)
    made = rule(resource="mcp__files__file:///secret/**", action="deny")
    assert action(made, resource("file:///public/a")) == "allow"
    for _ in range(500):
        path = "secret/key"
        for place in sorted(chance.sample(range(len(path)), chance.randrange(4)), reverse=True):
            if path[place] != "/":
                path = path[:place] + f"%{ord(path[place]):02{chance.choice('xX')}}" + path[place + 1 :]
        uri = chance.choice(URI_TRICKS).format(path)
        assert action(made, resource(uri)) == "deny", uri


def test_T15_a_look_alike_of_a_uri_is_not_allowed() -> None:
    chance = random.Random(17)
    made = rule(resource="mcp__files__file:///srv/**", action="allow")
    assert action(made, resource("file:///srv/a/b")) == action(made, resource("file:///srv/a%20b%C3%A9")) == "allow"
    outside = ["file:///srv/%s../etc/passwd" % ("x/" * n) for n in range(20)]
    outside += [
        "file:///srv/x%2f..%2f..%2fetc",
        "file:///srv\\..\\etc",
        "file:///srv/a\n",
        "file:///srv",
        "file:///Srv/a",
    ]
    outside += [
        f"file:///srv/{'%2e' * 2}/etc",
        "file:///srv//a",
        "file:///srv/%00",
        "file://host/srv/a",
        "http:///srv/a",
    ]
    outside += ["file:///srv/" + "a" * MAX_ARGUMENT, "file:///%73rv/a", "file:///srv/%61", "file://srv@/srv/a"]
    for uri in [*outside, *(chance.choice(outside).replace("/", "//", 1) for _ in range(500))]:
        assert action(made, resource(uri)) == "deny", uri


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example?.acme.example/",
        "https://evil.example#.acme.example/",
        "https://evil.example\\.acme.example/",
        "https://x@www.acme.example/",
        "https://www.acme.example/../x",
        "https://www.acme.example/%61dmin",
        "https://WWW.acme.example/",
        "HTTPS://www.acme.example/",
        "https://www.\u0430cme.example/",
    ],
)
def test_T15_a_url_that_readers_may_understand_differently_is_not_allowed(url: str) -> None:
    made = rule(tool="*", args={"url": "https://*.acme.example/**"}, action="allow")
    assert action(made, tool("web get"), {"url": "https://www.acme.example/a?b=/c&d=%20e"}) == "allow"
    assert action(made, tool("web get"), {"url": url}) == "deny"
    assert (
        action(
            rule(tool="*", args={"url": "https://www.acme.example/admin"}, action="deny"), tool("web get"), {"url": url}
        )
        == "deny"
    )


# ------------------------------------------------------------------------------- other spellings of the same argument

SCHEMES = ("https://", "https:/", "https:", "HTTPS://", "Https:/", "https:///", "//", "", "https:\\\\", "hTTps://")
HOSTS = (
    *("example.com", "EXAMPLE.com", "example.com.", "example.com:443", "example.com:", "example.com:0443"),
    *(
        "me@example.com",
        "me:x@example.com",
        "%65xample.com",
        "ex\u00adample.com",
        "\uff45xample.com",
        "example\u3002com",
    ),
)
PATHS = (
    "/admin/x",
    "/admin",
    "/admin/",
    "//admin/x",
    "/./admin/x",
    "/y/../admin/x",
    "/%61dmin/x",
    "/admin?",
    "/admin#x",
)
BLANKS = ("", " ", "\t", "\n", "\u00a0", "\u3000")


def urls(chance: random.Random) -> Iterator[str]:
    """Spellings of `https://example.com/admin`, and of what is below it."""
    while True:
        blank, end = chance.choice(BLANKS), chance.choice(BLANKS)
        yield blank + chance.choice(SCHEMES) + chance.choice(HOSTS) + chance.choice(PATHS) + end


@pytest.mark.parametrize("said", ["deny", "ask"])
def test_t15_no_spelling_of_a_url_gets_around_a_rule(said: str) -> None:
    chance = random.Random(18)
    for glob in ("https://example.com/admin**", "https://example.com:443/admin**", "*://example.com/**", "https://**"):
        made = rule(tool="*", args={"url": glob}, action=said)
        for url, _ in zip(urls(chance), range(500), strict=False):
            assert action(made, tool("web get"), {"url": url}) == said, (glob, url)
    exact = rule(tool="*", args={"url": "https://example.com/admin"}, action=said)
    for url in ("https://example.com/admin/", "https://example.com/admin#x", "https://example.com/admin?"):
        assert action(exact, tool("web get"), {"url": url}) == said, url


def test_t15_no_other_spelling_of_a_url_is_allowed() -> None:
    chance = random.Random(19)
    made = rule(tool="*", args={"url": "https://example.com/**"}, action="allow")
    plain = {f"https://example.com{path}" for path in ("/admin/x", "/admin", "/admin/", "/admin?", "/admin#x")}
    assert all(action(made, tool("web get"), {"url": url}) == "allow" for url in plain)
    for url, _ in zip(urls(chance), range(1000), strict=False):
        assert url in plain or action(made, tool("web get"), {"url": url}) == "deny", url


@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f000001", "127.1", "0177.0.0.1", "127.0.0.01", "[::ffff:127.0.0.1]", "[0:0:0:0:0:0:0:1]"]
)
def test_t15_an_address_in_an_unusual_spelling_is_doubtful(host: str) -> None:
    made = rule(tool="*", args={"url": "http://127.0.0.1/**"}, action="deny")
    assert action(made, tool("web get"), {"url": f"http://{host}/x"}) == "deny"
    for plain in ("http://10.0.0.1/x", "http://[::1]/x", "http://127.0.0.1:8080/x", "http://1.example/x"):
        assert action(made, tool("web get"), {"url": plain}) == "allow", plain


@pytest.mark.parametrize("said", ["deny", "ask"])
def test_t15_no_spelling_of_a_path_gets_around_a_rule(said: str) -> None:
    """Also relative ones: only the server knows its folder."""
    chance = random.Random(20)
    forms = ("{}", "/{}", "~/{}", "$HOME/{}", "./{}", "../{}", "//{}", "/{}/", "file:///{}", "FILE:/{}", "/x/../{}")
    for glob in ("/srv/secret/**", "/srv/**", "{/srv,/etc}/**", "{/srv,tmp}/**"):
        made = rule(tool="*", args={"path": glob}, action=said)
        assert action(made, tool("a b"), {"path": "/home/ada"}) == "allow"
        for _ in range(300):
            inner = chance.choice(["srv/secret/key", "srv/secret/", "srv/secret/a b", "srv/secret/%C3%A9"])
            path = chance.choice(BLANKS) + chance.choice(forms).format(inner) + chance.choice(BLANKS)
            assert action(made, tool("a b"), {"path": path}) == said, (glob, path)
        for path in ("key", "secret/key", "", "-"):
            assert action(made, tool("a b"), {"path": path}) == said, (glob, path)


@pytest.mark.parametrize(
    ("glob", "path"),
    [
        ("secret/**", "/srv/secret/key"),
        ("secret/key", "/secret/key"),
        ("**/secret/**", "secret/key"),
        ("/srv/secret", "/srv/secret/"),
        ("/srv/M\u00fcll/*", "/srv/Mu\u0308ll/a"),
        ("/srv/Mu\u0308ll/*", "/srv/M\u00fcll/a"),
        ("/srv/a b/*", "/srv/a%20b/c"),
        ("file:///srv/**", "/srv/a"),
    ],
)
def test_t15_a_rule_may_spell_a_path_in_another_way_than_a_call(glob: str, path: str) -> None:
    assert action(rule(tool="*", args={"path": glob}, action="deny"), tool("a b"), {"path": path}) == "deny"
    assert action(rule(tool="*", args={"path": glob}, action="allow"), tool("a b"), {"path": path}) == "deny"


def test_t15_wide_dots_are_dots_to_some_readers() -> None:
    made = rule(tool="*", args={"path": "/srv/**"}, action="allow")
    assert action(made, tool("a b"), {"path": "/srv/M\u00fcll \u00bd.txt"}) == "allow"
    assert action(made, tool("a b"), {"path": "/srv/\uff0e\uff0e/etc/passwd"}) == "deny"


def test_commands_and_words_are_no_relative_paths() -> None:
    deny = rule(tool="*", pattern="/bin/rm **", action="deny")
    assert action(deny, tool("a sh", "command"), {"command": "ls -l"}) == "allow"
    every = rule(tool="*", args={"*": "/etc/**"}, action="deny")
    assert action(every, tool("a b"), {"text": "Hello world.", "number": 3, "word": "yes"}) == "allow"
    assert action(every, tool("a b"), {"text": "hello", "file": "etc/passwd"}) == "deny"


def test_a_uri_of_a_host_is_the_same_with_and_without_a_slash() -> None:
    made = rule(resource="mcp__files__https://host/**", action="deny")
    assert action(made, resource("https://host")) == action(made, resource("https://HOST/")) == "deny"
    assert action(rule(resource="mcp__files__memo://all", action="deny"), resource("memo://all")) == "deny"


# --------------------------------------------------------------------------------------------------- T33 and views


def test_T33_only_what_is_denied_whatever_the_arguments_is_hidden() -> None:
    made = rules(TEAM, "ask")
    assert is_hidden(made, BOB, tool("solar watch"))
    assert not is_hidden(made, BOB, tool("github delete_repo"))
    assert not is_hidden(made, BOB, tool("other x"))
    strict = rules(TEAM, "deny")
    assert is_hidden(strict, BOB, tool("github delete_repo")) and is_hidden(strict, BOB, tool("other x"))
    assert not is_hidden(strict, ADA, tool("github delete_repo"))
    some = rules('[[permissions]]\ntool = "*"\nargs = { a = "b" }\naction = "ask"\n', "deny")
    assert not is_hidden(some, BOB, tool("a b"))
    assert [each.action for each in possible_verdicts(some, BOB, tool("a b"))] == ["ask", "deny"]


# ------------------------------------------------------------------------------------- T17, T19: reasons and speed


@pytest.mark.soak(short=2_000, full=50_000)
def test_the_reasons_agree_with_the_judge(repeats: int) -> None:
    chance = random.Random(3)
    made = rules(TEAM + MANY)
    for _ in range(repeats):
        server, name = chance.choice(["github", "solar", "s1", "s2"]), chance.choice(["delete_x", "get_a", "t3", "t4"])
        kinds: tuple[Kind, ...] = ("tool", "tool", "prompt", "resource")
        target = Target(server, chance.choice(kinds), name, "", chance.choice(["", "path"]))
        values: list[object] = ["acme/a", "other", "/srv/a", "/srv/../a", None, ["acme/b", "x"], 1]
        arguments = {key: chance.choice(values) for key in ("repo", "path") if chance.random() < 0.7}
        caller = chance.choice([ADA, BOB, Caller("eve", ("ops",))])
        first = next((each for each in made.rules if not mismatch(made, each, caller, target, arguments)), None)
        assert judge(made, caller, target, arguments) == (made.default if first is None else first.verdict)


MANY = "\n".join(
    f'[[permissions]]\ntool = "mcp__s{number % 5}__t{number % 7}*"\n'
    + ('args = { path = "/srv/**/*.py" }\n' if number % 2 else "")
    + ('caller = ["e*"]\n' if number % 3 else "")
    + f'action = "{("allow", "deny", "ask")[number % 3]}"\n'
    for number in range(40)
)


def test_T17_the_verdict_of_equal_calls_is_one_value() -> None:
    made = rules(TEAM)
    verdict = judge(made, ADA, tool("github delete_repo"), {"repo": "acme/x"})
    assert judge(made, ADA, tool("github delete_repo"), {"repo": "acme/x"}) is verdict
    with pytest.raises(AttributeError):
        verdict.action = "allow"  # pyright: ignore[reportAttributeAccessIssue]


def test_T19_a_thousand_rules_are_judged_once_for_each_target() -> None:
    """The first call looks at all rules; later ones take no longer than with one rule, up to noise."""
    text = "".join(f'[[permissions]]\ntool = "mcp__s{n % 20}__t{n}_*"\naction = "deny"\n' for n in range(1000))
    few, many, target = rule(tool="mcp__s19__t999_*", action="deny"), rules(text), tool("s19 t999_x")

    def seconds(made: Rules) -> float:
        started = time.process_time()
        for _ in range(2_000):
            assert judge(made, ADA, target, {}).action == "deny"
        return time.process_time() - started

    assert min(seconds(many) for _ in range(5)) < 5 * min(seconds(few) for _ in range(5))


def test_T19_uris_of_callers_do_not_fill_the_memory() -> None:
    made = rule(resource="mcp__files__file:///srv/**", action="allow")
    for number in range(25_000):
        judge(made, BOB, resource(f"file:///srv/{number}"), {})
    assert len(made._applicable) <= 10_000  # pyright: ignore[reportPrivateUsage]


def test_only_a_rule_that_names_a_careful_server_allows_its_tools() -> None:
    target = Target("sh", "tool", "sh.run")
    everything = PolicyConfig((Rule(Permission(tool="*", action="allow")),), "allow")
    verdict = judge(Rules(everything, careful={"sh": Careful(needs_client=True)}), BOB, target, {})
    assert (verdict.action, verdict.needs_client) == ("ask", True)
    assert judge(Rules(everything, careful={"other": Careful()}), BOB, target, {}).action == "allow"
    named = PolicyConfig((Rule(Permission(tool="mcp__sh__run", action="allow")),), "deny")
    assert judge(Rules(named, careful={"sh": Careful()}), BOB, target, {}).action == "allow"
    denied = PolicyConfig((Rule(Permission(tool="mcp__*__run", action="deny")),), "allow")
    assert judge(Rules(denied, careful={"sh": Careful()}), BOB, target, {}).action == "deny"
    assert judge(Rules(PolicyConfig((), "deny"), careful={"sh": Careful()}), BOB, target, {}).action == "deny"
    assert judge(Rules(everything, careful={"sh": Careful("other")}), BOB, target, {}).action == "allow"
    assert Rules(everything, careful={"sh": Careful()}).version != Rules(everything).version


@pytest.mark.parametrize("tool", ["*", "mcp__agent", "agent.*", "agent.permission", "mcp__agent__permission"])
def test_a_rule_allows_a_careful_tool_only_with_a_condition_on_its_argument(tool: str) -> None:
    careful = {"agent": Careful("permission", "tool_name")}
    target, asked = Target("agent", "tool", "agent.permission"), {"tool_name": "Bash", "other": "x"}

    def action(**more: Any) -> str:
        written = Permission(tool=tool, **more)
        return judge(Rules(PolicyConfig((Rule(written),), "allow"), careful), BOB, target, asked).action

    assert action(action="allow") == "ask"
    assert action(action="allow", args={"other": "*"}) == "ask"
    assert action(action="allow", args={"tool_name": "Bash"}) == ("ask" if tool == "*" else "allow")
    assert action(action="allow", args={"tool_name": "Read"}) == "ask"
    assert action(action="deny") == "deny"
    chat = Target("agent", "tool", "agent.chat")
    whole = PolicyConfig((Rule(Permission(tool="mcp__agent", action="allow")),), "deny")
    assert judge(Rules(whole, careful), BOB, chat, {}).action == "allow"
