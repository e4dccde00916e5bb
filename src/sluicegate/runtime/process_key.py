"""The one secret key of this process. `Sealer` derives from it a key for each purpose."""

import os
from functools import cache


@cache
def process_key() -> bytes:
    """A random key, created at the first use; tokens sealed with it are invalid after a restart."""
    return os.urandom(32)
