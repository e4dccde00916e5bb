"""Recognises secrets and masks them: the one table for configurations, output of servers and recorded values."""

import re
from collections.abc import Iterator, Mapping
from typing import Final, cast
from urllib.parse import SplitResult, unquote, urlsplit

MASK: Final = "***"
MAX_SHOWN: Final = 4096
"""Characters; longer texts are masked as a whole, since searching them for secrets takes too long."""

_secret_name: Final = re.compile(
    r"(api|access|private|secret|license|client|encryption|signing|master|service|subscription)[-_ ]?key"
    r"|token|secret|passw(or)?d|passphrase|\bpwd\b|\bpat\b|auth|credential|bearer|cookie|\bkey\b|connection[-_]?string|dsn",
    re.IGNORECASE,
)
_known_token: Final = re.compile(
    r"(sk|pk|rk)[-_](live[-_]|test[-_]|ant-|proj-)?[A-Za-z0-9_-]{12,}|gh[opsur]_[A-Za-z0-9]{16,}|github_pat_\w{16,}"
    r"|xox[a-z]-[\w-]{8,}|glpat-[\w-]{8,}|AKIA[A-Z0-9]{12,}|AIza[\w-]{20,}|eyJ[\w-]{8,}\.[\w.-]+|npm_[A-Za-z0-9]{20,}|hf_[A-Za-z0-9]{16,}"
)
_long_random: Final = re.compile(r"(?=[^/]*\d)(?=[^/]*[A-Za-z])[A-Za-z0-9_-]{32,}={0,2}")
_url: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")
_header: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)(\s*:\s*)(.+)", re.DOTALL)
_assignment: Final = re.compile(r"(-{0,2}[A-Za-z][\w.-]*)(=)(.+)", re.DOTALL)


def masked_url(url: str) -> str:
    """The URL with user and password, query values and token-like path segments masked."""
    if len(url) > MAX_SHOWN:
        return MASK
    try:
        parts = urlsplit(url)
    except ValueError:
        return MASK
    if not parts.netloc:
        return MASK if parts.query or "@" in url else url
    host = parts.netloc.rpartition("@")
    netloc = f"{MASK}@{host[2]}" if host[1] else host[2]
    path = "/".join(MASK if _is_token(segment) else segment for segment in parts.path.split("/"))
    query = "&".join(f"{pair.partition('=')[0]}={MASK}" if "=" in pair else MASK for pair in parts.query.split("&"))
    return SplitResult(parts.scheme, netloc, path, query if parts.query else "", "").geturl()


def masked_args(args: list[str]) -> list[str]:
    """Command arguments with values after secret names, tokens and credentials in URLs masked."""
    seen: list[str] = []
    follows_secret = False
    for arg in args:
        is_option = arg.startswith("-")
        seen.append(MASK if follows_secret and not is_option else masked_text(arg))
        follows_secret = is_option and "=" not in arg and bool(_secret_name.search(arg))
    return seen


def masked_text(text: str) -> str:
    """One argument with its secrets masked."""
    if len(text) > MAX_SHOWN or _is_token(text):
        return MASK
    for form in (_assignment, _header):
        if (found := form.fullmatch(text)) and _secret_name.search(found[1]):
            return f"{found[1]}{found[2]}{MASK}"
    text = _url.sub(lambda found: masked_url(found[0]), text)
    return _known_token.sub(MASK, text)


# Begins where a word does, so that a long word is read once.
_name: Final = re.compile(r"""(?<![\w.-])([\w.-]+)["']?\s*[:=]\s*""")
_value: Final = re.compile(r"""(?:(?:bearer|basic|digest)\s+)?(?:"[^"]*"|'[^']*'|[^\s,;}\]]+)""", re.IGNORECASE)
_bearer: Final = re.compile(r"\b(bearer\s+)\S+", re.IGNORECASE)


def masked_line(line: str) -> str:
    """A line of text with its secrets masked: values after secret names, and words that look like secrets."""
    pieces: list[str] = []
    end = 0
    for name in _name.finditer(line):
        value = _value.match(line, name.end()) if name.start() >= end and _secret_name.search(name[1]) else None
        if value is not None:
            pieces += line[end : value.start()], MASK
            end = value.end()
    line = _bearer.sub(rf"\1{MASK}", "".join(pieces) + line[end:])
    words = re.split(r"(\s+)", line)
    words[::2] = masked_args(words[::2])
    return "".join(words)


def masked_value(value: object) -> object:
    """A JSON value with its secrets masked: values under secret names, and what looks like one in any text."""
    match value:
        case str():
            return masked_text(value)
        case list():
            items = cast(list[object], value)
            texts = [item for item in items if isinstance(item, str)]
            # A list of texts may be a command line, in which a secret follows its option.
            return list(masked_args(texts)) if len(texts) == len(items) else [masked_value(item) for item in items]
        case dict():
            return masked_members(cast(dict[str, object], value))
        case _:
            return value


def masked_members(members: Mapping[str, object]) -> dict[str, object]:
    """A JSON object with its secrets masked."""
    return {
        name: MASK if value is not None and _secret_name.search(name) else masked_value(value)
        for name, value in members.items()
    }


def _is_token(text: str) -> bool:
    return bool(_known_token.fullmatch(text) or _long_random.fullmatch(text))


_SCHEMES: Final = frozenset({"basic", "bearer", "digest"})
_separators: Final = re.compile(r"[\s,;&#@:=?'\"]+")


def hidden_parts(value: str, shown: str) -> Iterator[str]:
    """The text behind each `***`, whole and in the pieces a program would split it into.

    These are redacted in the server's output: servers often report a wrong key by printing it.
    """
    if not value or shown == value:
        return
    yield value
    for hidden in _behind_masks(value, shown):
        if "://" in hidden and hidden != value:
            # Redacting its host as well would make the server's log hard to read.
            yield hidden
            yield from hidden_parts(hidden, masked_text(hidden))
            continue
        # A header has a scheme before its token, a URL a user before its password, and both may be percent-encoded.
        for piece in (hidden, *_separators.split(hidden)):
            if piece and piece.lower() not in _SCHEMES:
                yield piece
                yield unquote(piece)


def _behind_masks(value: str, shown: str) -> list[str]:
    first, *others = shown.split(MASK)
    if not value.startswith(first):
        return [value]  # `shown` is not the value with masks, but another text.
    hidden: list[str] = []
    rest = value[len(first) :]
    for literal in others:
        part, _, rest = rest.partition(literal) if literal else (rest, "", "")
        hidden.append(part)
    return hidden
