"""Values that must not be seen: what a configuration holds and what may be shown of it are two different strings.

The one rule: nothing but `reveal` gives the value (threats T9). Whatever prints, logs or encodes a secret prints `***`.
"""

import re
from typing import Final, NoReturn
from urllib.parse import SplitResult, urlsplit

import msgspec

MASK: Final = "***"
LONGEST_SHOWN: Final = 4096
"""Characters; nobody reads more, and to look through more for secrets takes its time."""


class Secret:
    """A string that prints as `***`, or as `shown`: the same text with its secret parts as `***`."""

    __slots__ = ("_value", "shown")

    def __init__(self, value: str, shown: str = MASK) -> None:
        self._value = value
        self.shown = shown

    def reveal(self) -> str:
        """The value itself, for the one place that it was configured for."""
        return self._value

    def __eq__(self, other: object) -> bool:
        return self._value == other._value if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._value)

    def __str__(self) -> str:
        return self.shown

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(self.shown, spec)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled or copied to elsewhere")

    def __copy__(self) -> "Secret":
        return self

    def __deepcopy__(self, memo: object) -> "Secret":
        return self


def shown(value: object) -> object:
    """A configuration as plain values for JSON and tables, with every secret as `***`."""
    return msgspec.to_builtins(value, enc_hook=_hidden, str_keys=True)


def _hidden(value: object) -> object:
    if isinstance(value, Secret):
        return value.shown
    raise NotImplementedError(f"{type(value).__name__} has no place in a configuration")


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
    """The URL without what may be secret in it: user and password, values of the query, path segments like tokens."""
    if len(url) > LONGEST_SHOWN:
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
    """Arguments of a command as they may be shown: values after secret names, tokens and URLs' credentials masked."""
    seen: list[str] = []
    follows_secret = False
    for arg in args:
        is_option = arg.startswith("-")
        seen.append(MASK if follows_secret and not is_option else masked_text(arg))
        follows_secret = is_option and "=" not in arg and bool(_secret_name.search(arg))
    return seen


def masked_text(text: str) -> str:
    """One argument as it may be shown."""
    if len(text) > LONGEST_SHOWN or _is_token(text):
        return MASK
    for form in (_assignment, _header):
        if (found := form.fullmatch(text)) and _secret_name.search(found[1]):
            return f"{found[1]}{found[2]}{MASK}"
    text = _url.sub(lambda found: masked_url(found[0]), text)
    return _known_token.sub(MASK, text)


def _is_token(text: str) -> bool:
    return bool(_known_token.fullmatch(text) or _long_random.fullmatch(text))
