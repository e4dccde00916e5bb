"""The short names of servers, as they stand in names of tools and in URIs."""

import hashlib
import re
import unicodedata


def key_of(name: str) -> str:
    """The short name that a server's name gives: `[a-z][a-z0-9-]*`, 31 characters at most (protocol §4.1)."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    key = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")
    if not key:
        return f"server-{_digest(name)}"
    if not key[0].isalpha():
        key = f"s-{key}"
    return key if len(key) <= 31 else f"{key[:24].rstrip('-')}-{_digest(name)}"


def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=3).hexdigest()
