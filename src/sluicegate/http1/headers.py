"""Parsing, encoding and caching of the heads of requests and answers. Pure.

llhttp splits a head. Before that, the head must match the grammar of RFC 9112, because llhttp accepts more than that:
HTTP/0.9, other versions, a repeated `Host`. Only this module determines the length of a body.
"""

import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from http import HTTPStatus
from typing import Final, Generic, TypeVar

import httptools
import msgspec

from sluicegate.errors import LocalProtocolError

Fields = tuple[tuple[str, str], ...]
"""Headers to send. A tuple, so that their encoding can be cached."""

CHUNKED: Final = -1
UNTIL_CLOSE: Final = -2
MAX_FIELDS: Final = 128
DEFAULT_KEEP: Final = 4.0
"""Seconds for which a connection is reused if its server does not say how long: most close it after five, and a
request that is sent at that moment is lost."""

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_TEXT: Final = rb"[\t\x20-\x7e\x80-\xff]*"  # No NUL, no bare CR or LF, and so no folded line.
_FIELDS: Final = rb"((?:" + _TOKEN + rb":" + _TEXT + rb"\r\n)*)\r\n"
_REQUEST: Final = re.compile(rb"(" + _TOKEN + rb") ([!-\"$-~]+) HTTP/1\.([01])\r\n" + _FIELDS)
_ANSWER: Final = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: " + _TEXT + rb")?\r\n" + _FIELDS)
_OTHER_VERSION: Final = re.compile(_TOKEN + rb" [!-~]+ HTTP/(?!1\.[01]\r)[0-9]\.[0-9]\r\n.*", re.DOTALL)
# A registered name, an IPv4 address or a bracketed IPv6 address; nothing that could end the host in a rebuilt URL.
HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]+)(?::([0-9]{1,5}))?")
_FIELD_NAME: Final = re.compile(_TOKEN.decode())
_FIELD_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_TARGET: Final = re.compile(r"[!-\"$-~]+")

_FIRST_LINE: Final = re.compile(_TOKEN + rb" [!-~]+ HTTP/[0-9]\.[0-9]\r\n")
_KEEP_TIME: Final = re.compile(r"timeout=([0-9]{1,6})(?![0-9])")
_BARE_LF: Final = re.compile(rb"(?<!\r)\n")
_BESIDE_URL: Final = 64  # The longest method, the version, the spaces.

_FRAMING: Final = frozenset({"content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "trailer"})


class BadHead(Exception):
    """The head is refused; `status` is for a client. The sentence contains nothing of the input."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


class Headers:
    """The fields of a head, in order. Names are case-insensitive; values are stripped Latin-1 text."""

    __slots__ = ("_each", "_joined", "items")

    def __init__(self, items: Fields) -> None:
        self.items = items
        """Name (lower case) and value of each line."""
        # Built once: heads are cached, and each request looks up a dozen fields.
        self._each: dict[str, list[str]] = {}
        for name, value in items:
            self._each.setdefault(name, []).append(value)
        self._joined = {name: ", ".join(values) for name, values in self._each.items()}

    def get(self, name: str) -> str | None:
        """The value; several lines are joined by commas (RFC 9110, 5.3), so that no line can hide another."""
        return self._joined.get(name.lower())

    def get_all(self, name: str) -> list[str]:
        """The value of each line of that name."""
        return list(self._each.get(name.lower(), ()))

    def tokens(self, name: str) -> set[str]:
        """The members of a comma-separated list, in lower case."""
        return {token.strip().lower() for token in (self.get(name) or "").split(",")} - {""}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._joined

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.items)


class RequestHead(msgspec.Struct, eq=False):
    """The head of a request."""

    method: str
    path: str
    query: str
    minor: int
    """0 or 1, as in HTTP/1.1."""
    headers: Headers
    """All but `Content-Length`."""
    length: int
    """The length of the body in bytes, or CHUNKED."""
    keep_alive: bool
    expects_continue: bool


class AnswerHead(msgspec.Struct, eq=False):
    """The head of an answer."""

    status: int
    headers: Headers
    """All but `Content-Length`."""
    length: int
    """The length of the body in bytes, or CHUNKED, or UNTIL_CLOSE."""
    keep_alive: bool
    keep_time: float
    """For how long the connection may be reused: less than the server says, because its clock started earlier."""
    media_type: str
    """Without parameters."""
    coding: str


def read_request_head(raw: bytes, *, url: int, headers: int) -> RequestHead:
    """The head of a request, given from its first byte to the empty line; the ceilings are in bytes.

    Raises:
        BadHead: it is refused; where the next request begins is unknown.
    """
    match = _REQUEST.fullmatch(raw)
    if match is None:
        if _OTHER_VERSION.fullmatch(raw):
            raise BadHead(505, "Only HTTP/1.1 is supported.")
        raise BadHead(400, "The request's head is malformed.")
    target = match[2]
    if len(target) > url:
        raise BadHead(414, "The request's URL is too long.")
    if len(match[4]) > headers:
        raise BadHead(431, "The request's headers are too large.")
    fields, lengths = _split(httptools.HttpRequestParser, raw)
    if match[1] == b"CONNECT":
        raise BadHead(400, "This is not a proxy.")
    # The absolute form is for proxies, too; its host would have to be compared with `Host`.
    if not (target.startswith(b"/") or (target == b"*" and match[1] == b"OPTIONS")):
        raise BadHead(400, "The request's target must be a path.")
    minor = match[3] == b"1"
    hosts = fields.get_all("host")
    if len(hosts) > 1 or (minor and not hosts) or (hosts and not is_host(hosts[0])):
        raise BadHead(400, "The request needs one Host header, a name or address with or without a port.")
    path, _, query = target.decode("ascii").partition("?")
    expects_continue = minor and "expect" in fields
    if expects_continue and (fields.get("expect") or "").lower() != "100-continue":
        raise BadHead(417, "Only 100-continue can be expected.")
    length = _body_length(fields, lengths, minor, without_any=0)
    # HTTP/1.0 connections are always closed.
    keep_alive = minor and "close" not in fields.tokens("connection")
    return RequestHead(match[1].decode("ascii"), path, query, int(minor), fields, length, keep_alive, expects_continue)


def check_beginning(raw: bytes | bytearray, seen: int = 0, *, url: int, headers: int) -> None:
    """Refuse the beginning of a head that cannot become valid. `seen` bytes of it were checked before.

    Raises:
        BadHead: it is refused.
    """
    if _BARE_LF.search(raw, seen):
        raise BadHead(400, "The request's head is malformed.")
    line = raw.find(b"\r\n") + 2
    if line < 2:
        if len(raw) > url + _BESIDE_URL:
            raise BadHead(414, "The request's URL is too long.")
    elif line > url + _BESIDE_URL:
        raise BadHead(414, "The request's URL is too long.")
    elif line > seen and not _FIRST_LINE.match(raw):
        raise BadHead(400, "The request's head is malformed.")
    elif len(raw) - line > headers + 3:
        raise BadHead(431, "The request's headers are too large.")


def read_answer_head(raw: bytes) -> AnswerHead:
    """The head of an answer, given from its first byte to the empty line.

    Raises:
        BadHead: it is invalid or ambiguous.
    """
    match = _ANSWER.fullmatch(raw)
    if match is None:
        raise BadHead(502, "the head of its answer is malformed")
    fields, lengths = _split(httptools.HttpResponseParser, raw)
    status, minor = int(match[2]), match[1] == b"1"
    length = _body_length(fields, lengths, minor, without_any=UNTIL_CLOSE)
    if status < 200 or status in (204, 304):
        length = 0
    keep_alive = minor and "close" not in fields.tokens("connection") and length != UNTIL_CLOSE
    timeout = _KEEP_TIME.search(fields.get("keep-alive") or "")
    keep_time = max(0.0, int(timeout[1]) - 1.0) if timeout else DEFAULT_KEEP
    media_type = (fields.get("content-type") or "").split(";")[0].strip().lower()
    codings = fields.tokens("content-encoding") - {"identity"}
    if codings - {"gzip", "x-gzip", "deflate"} or len(codings) > 1:
        raise BadHead(502, "it is compressed in a way that was not asked for")
    coding = "deflate" if "deflate" in codings else "gzip" if codings else ""
    return AnswerHead(status, fields, length, keep_alive, keep_time, media_type, coding)


def is_host(value: str) -> bool:
    """Whether this is `host[:port]`."""
    match = HOST.fullmatch(value)
    return match is not None and (match[2] is None or int(match[2]) <= 65535)


class _Collector:
    """Collects the fields that llhttp finds."""

    def __init__(self) -> None:
        self.items: list[tuple[str, str]] = []
        self.lengths: list[str] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        field = name.decode("ascii").lower(), value.strip(b" \t").decode("latin-1")
        if field[0] == "content-length":
            self.lengths.append(field[1])
        else:
            self.items.append(field)


def _split(
    parser: type[httptools.HttpRequestParser] | type[httptools.HttpResponseParser], raw: bytes
) -> tuple[Headers, list[str]]:
    """The fields of a head without Content-Length, and the values of that."""
    collector = _Collector()
    try:
        parser(collector).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # We support no other protocol and ignore the field.
    except httptools.HttpParserInvalidMethodError:
        raise BadHead(501, "The request's method is unknown.") from None
    except httptools.HttpParserError:
        raise BadHead(400, "The request's head is malformed.") from None
    if len(collector.items) + len(collector.lengths) > MAX_FIELDS:
        raise BadHead(431, "The request has too many headers.")
    return Headers(tuple(collector.items)), collector.lengths


def _body_length(headers: Headers, lengths: list[str], minor: int, *, without_any: int) -> int:
    codings = headers.get_all("transfer-encoding")
    if codings:
        # Two lengths allow request smuggling: another reader may use the other one.
        if lengths or len(codings) > 1 or codings[0].lower() != "chunked" or minor == 0:
            raise BadHead(400, "The length of the body is ambiguous.")
        return CHUNKED
    if not lengths:
        return without_any
    if len(lengths) > 1 or not (lengths[0].isascii() and lengths[0].isdigit()) or len(lengths[0]) > 18:
        raise BadHead(400, "The length of the body is ambiguous.")
    return int(lengths[0])


@lru_cache(maxsize=512)
def answer_head(status: int, headers: Fields, close: bool) -> bytes:
    """The head of an answer without its framing headers and the empty line.

    Raises:
        LocalProtocolError: a header cannot be sent.
    """
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    if not 200 <= status <= 599:
        raise LocalProtocolError(f"{status} is not the status of an answer.")
    connection = b"Connection: close\r\n" if close else b""
    return b"HTTP/1.1 %d %b\r\n%b%b" % (status, phrase.encode("ascii"), _encode_fields(headers), connection)


def request_head(method: str, target: str, host: str, headers: Fields) -> bytes:
    """The head of a request without its framing headers and the empty line.

    Raises:
        LocalProtocolError: it cannot be sent.
    """
    if not _FIELD_NAME.fullmatch(method) or not _TARGET.fullmatch(target) or not is_host(host):
        raise LocalProtocolError("The request's method or URL cannot be sent.")
    names = {name.lower() for name, _ in headers}
    if "host" in names:
        raise LocalProtocolError("The header 'host' is set by the URL.")
    coding = b"" if "accept-encoding" in names else b"Accept-Encoding: identity\r\n"
    return b"%b %b HTTP/1.1\r\nHost: %b\r\n%b%b" % (
        method.encode("ascii"),
        target.encode("ascii"),
        host.encode("ascii"),
        coding,
        _encode_fields(headers),
    )


def _encode_fields(headers: Fields) -> bytes:
    lines: list[str] = []
    for name, value in headers:
        if name.lower() in _FRAMING:
            raise LocalProtocolError(f"The header {name.lower()!r} is set by the connection.")
        # A line break in a value would let an attacker add headers or a whole answer.
        if not _FIELD_NAME.fullmatch(name) or not _FIELD_VALUE.fullmatch(value):
            raise LocalProtocolError("A header's name or value has characters that cannot be sent.")
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines).encode("latin-1")


def is_plain(headers: Headers) -> bool:
    """Whether the body is not compressed. Compressed requests are refused (415): their size is not known in advance."""
    return headers.tokens("content-encoding") <= {"identity"}


# ------------------------------------------------------------------------------------------- cached heads

H = TypeVar("H", RequestHead, AnswerHead)

MAX_CACHED_LENGTH: Final = 2048
MAX_CACHED: Final = 512

_LENGTHS: Final = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")
"""The spellings of nearly all programs. A head with another spelling is found only if all its bytes are the same."""


class HeadCache(Generic[H]):
    """Parsed heads by their bytes: peers send few different ones, and a lookup takes a tenth of the time of parsing.

    Most heads differ only in Content-Length, so a head is also found with another one. Heads whose Content-Length
    exceeds `largest` are not cached.
    """

    __slots__ = ("_largest", "_models", "exact")

    def __init__(self, largest: int = sys.maxsize) -> None:
        self.exact: dict[bytes, H] = {}
        """Heads with exactly these bytes. Public, so that connections save a call."""
        self._models: dict[bytes, H] = {}
        self._largest = largest

    def find(self, raw: bytes) -> H | None:
        """The parsed head, if one is cached that differs at most in Content-Length."""
        head = self.exact.get(raw)
        if head is not None:
            return head
        model, length = _apart(raw)
        head = self._models.get(model) if model else None
        if head is None or length > self._largest:
            return None
        if len(self.exact) >= MAX_CACHED:
            self.exact.clear()  # Simpler than LRU; the few in use are back at once.
        head = self.exact[raw] = msgspec.structs.replace(head, length=length)
        return head

    def learn(self, raw: bytes, head: H) -> None:
        """Cache a head, so that heads which differ only in Content-Length are found, too."""
        if len(raw) > MAX_CACHED_LENGTH:
            return
        model, length = _apart(raw)
        # An answer that never has a body, such as 304, is no model: its length is 0, whatever its Content-Length is.
        is_model = length > 0 and length == head.length
        # Each dict has its own limit, so that many lengths do not evict the few models.
        for heads, key in ((self.exact, raw), (self._models, model))[: 1 + is_model]:
            if len(heads) >= MAX_CACHED:
                heads.clear()
            heads[key] = head


def _apart(raw: bytes) -> tuple[bytes, int]:
    """A head without the digits of its first `Content-Length`, and their value; (b"", 0) if there is none.

    Heads with two of them are refused by the parser and never cached.
    """
    for name in _LENGTHS:
        at = raw.find(name)
        if at >= 0:
            at += len(name)
            end = raw.find(b"\r\n", at)
            digits = raw[at:end]
            if digits.isdigit() and len(digits) <= 15:
                return raw[:at] + raw[end:], int(digits)
    return b"", 0
