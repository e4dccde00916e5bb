"""The paths of a gateway: its configuration files, its state and its control socket."""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec

from sluicegate.config.model import GatewayConfig
from sluicegate.runtime.lock import MAX_PATH, is_private_folder

RUN_USER: Final = f"/run/user/{os.geteuid() if hasattr(os, 'geteuid') else ''}"
"""The folder for sockets that Linux gives a user who is logged in, with or without XDG_RUNTIME_DIR."""
MAX_NOTES: Final = 65_536
"""Bytes of the file with notes; a longer one is not ours."""
_VARIABLES: Final = {"config": "XDG_CONFIG_HOME", "state": "XDG_STATE_HOME", "runtime": "XDG_RUNTIME_DIR"}


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """The folders in which a gateway looks for its files."""

    root: str
    home: str
    config: str | None = None
    """The file given with `--config`: servers, or settings if its name ends in `.toml`."""
    environ: Mapping[str, str] = {}
    added: tuple[str, ...] = ()
    """Keys of servers that are in no file, since a program adds them; rules may name them."""

    @classmethod
    def here(cls, config: str | None = None, root: str | None = None) -> "Places":
        """The paths of this process: working directory, home and environment."""
        return cls(
            root=os.path.abspath(root or os.curdir),
            home=os.path.expanduser("~"),
            config=None if config is None else os.path.abspath(config),
            environ=dict(os.environ),
        )

    @property
    def server_files(self) -> tuple[str, ...]:
        """Files with servers; later ones take precedence."""
        if self.config is not None and not self.config.endswith(".toml"):
            return (self.config,)
        return _once(os.path.join(self.home, ".mcp.json"), os.path.join(self.root, ".mcp.json"))

    @property
    def user_settings(self) -> tuple[str, ...]:
        """The user's own settings files, in every folder that an environment of this user gives. All of them apply."""
        if self.config is not None and self.config.endswith(".toml"):
            return ()
        folders = user_folders(self.environ, self.home).config
        files = (os.path.join(folder, "sluicegate", "sluicegate.toml") for folder in folders)
        return tuple(file for file in dict.fromkeys(files) if file != self._project_settings)

    @property
    def settings_files(self) -> tuple[str, ...]:
        """Files with settings; later ones take precedence, but cannot loosen what those of the user tighten."""
        if self.config is not None and self.config.endswith(".toml"):
            return (self.config,)
        return (*self.user_settings, self._project_settings)

    @property
    def _project_settings(self) -> str:
        return os.path.join(self.root, "sluicegate.toml")

    @property
    def lock_file(self) -> str:
        """The file with the approved definitions of tools."""
        return os.path.join(self.root, "sluicegate.lock")

    @property
    def files(self) -> tuple[str, ...]:
        """All configuration files, whether they exist or not."""
        return self.server_files + self.settings_files


# ------------------------------------------------------------------------------------------- folders of the user


class UserFolders(msgspec.Struct, frozen=True):
    """The folders that any environment of this user gives, as far as they can be known; the first ones are preferred.

    Clients start servers with a small environment, in which the XDG variables of the user's shell are missing. The
    same gateway, state and rules must be found there (T36). So the folders do not depend on the variables alone:
    the home folder of the user database and `/run/user/UID` need none, and folders that only a variable names are
    noted in `~/.sluicegate/folders`, where processes without the variable find them.
    """

    config: tuple[str, ...]
    state: tuple[str, ...]
    runtime: tuple[str, ...]
    """Folders with sockets."""


def user_folders(environ: Mapping[str, str], home: str = "") -> UserFolders:
    """The folders of this user; `home` stands for the variable HOME."""
    homes = _once(home or _home(environ), database_home() or home or _home(environ))
    # Sockets are only those of the same HOME: a process that was given another one is meant to be apart.
    noted = [note for each in homes for note in _notes(each) if each == homes[0] or note[0] != "runtime"]

    def named(kind: str) -> list[str]:
        # The notes first: what they say is the same for every environment of the user.
        own = environ.get(_VARIABLES[kind], "")
        return [*(folder for of, folder in noted if of == kind), *([own] if os.path.isabs(own) else [])]

    runtime = [RUN_USER] if is_private_folder(RUN_USER) else []
    runtime += [folder for folder in named("runtime") if os.access(folder, os.W_OK | os.X_OK)]
    return UserFolders(
        config=_once(*(os.path.join(each, ".config") for each in homes), *named("config")),
        state=_once(*named("state"), *(os.path.join(each, ".local", "state") for each in homes)),
        runtime=_once(
            *(os.path.join(folder, "sluicegate") for folder in runtime),
            *(os.path.join(each, ".sluicegate", "run") for each in homes),
        ),
    )


def named_folders(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that name other folders than those that are found without them."""
    home = _home(environ)
    usual = (os.path.join(home, ".config"), os.path.join(home, ".local", "state"), RUN_USER)
    folders = {variable: environ.get(variable, "") for variable in _VARIABLES.values()}
    return {
        variable: folder
        for variable, folder in folders.items()
        if os.path.isabs(folder) and folder.isprintable() and os.path.normpath(folder) not in usual
    }


def note_folders(environ: Mapping[str, str], *, new: bool = False) -> None:
    """Note the folders that only the environment of this process names, so that others of the user find them too.

    Folders in which we have no files yet are noted only with `new`, for a process that is about to write there.
    """
    home, named = _home(environ), named_folders(environ)
    known = _existing_notes(home)
    new_notes = [
        (kind, named[variable])
        for kind, variable in _VARIABLES.items()
        if variable in named
        and (kind, named[variable]) not in known
        and (os.path.exists(os.path.join(named[variable], "sluicegate")) or (new and kind != "config"))
    ]
    # If the file cannot be written, only processes that have the variables find the folders.
    if new_notes:
        with suppress(OSError):
            _write_notes(home, [*known, *new_notes])


def _write_notes(home: str, notes: list[tuple[str, str]]) -> None:
    """Replace the file with notes; the oldest ones are left out if it would be too long to be read."""
    lines = [os.fsencode(f"{kind} {folder}\n") for kind, folder in notes]
    while sum(map(len, lines)) > MAX_NOTES:
        del lines[0]
    path = _notes_file(home)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(temporary, "wb", opener=_open_private) as file:
            file.writelines(lines)
        # A note that another process writes between our reading and this is lost until that process's next start.
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def _notes(home: str) -> list[tuple[str, str]]:
    """Kind and path of each folder that is noted, still exists, and that no other user can change."""
    return [(kind, folder) for kind, folder in _existing_notes(home) if _is_only_ours(folder)]


def exposed_folders(environ: Mapping[str, str], home: str = "") -> list[str]:
    """The noted folders that are not used, since they belong to another user or others can write to them."""
    folders = dict.fromkeys(folder for _, folder in _existing_notes(home or _home(environ)))
    return [folder for folder in folders if not _is_only_ours(folder)]


def _is_only_ours(folder: str) -> bool:
    try:
        status = os.stat(folder)
    except OSError:
        return False
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _existing_notes(home: str) -> list[tuple[str, str]]:
    """Kind and path of each folder that is noted and still exists."""
    try:
        with open(_notes_file(home), encoding="utf-8", errors="surrogateescape") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & 0o022 or status.st_size > MAX_NOTES:
                return []
            pairs = [tuple(line.rstrip("\n").partition(" ")[::2]) for line in file]
    except OSError:
        return []
    return [(kind, folder) for kind, folder in dict.fromkeys(pairs) if kind in _VARIABLES and os.path.isdir(folder)]


def _notes_file(home: str) -> str:
    return os.path.join(home, ".sluicegate", "folders")


def _open_private(file: str, flags: int) -> int:
    return os.open(file, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


def _home(environ: Mapping[str, str]) -> str:
    return environ.get("HOME") or os.path.expanduser("~")


def database_home() -> str | None:
    """The home folder that the user database gives this user, whatever HOME says; None if it has none."""
    try:
        import pwd  # Not every system has it.

        return pwd.getpwuid(os.geteuid()).pw_dir or None
    except (ImportError, KeyError):
        return None


# ------------------------------------------------------------------------------------------- sockets and state


def control_socket(config: GatewayConfig, environ: Mapping[str, str]) -> str:
    """The path at which a gateway creates its control socket: as configured, else made from its folder's path."""
    return config.control.socket or control_sockets(config.root, environ)[0]


def control_sockets(root: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """All paths at which a gateway of the folder may listen, unless one is configured. New ones use the first."""
    name = f"{_folder_digest(root)}.sock"
    paths = [os.path.join(folder, name) for folder in user_folders(environ).runtime]
    return tuple(sorted(paths, key=lambda path: len(os.fsencode(path)) > MAX_PATH))


def catalogs_folder(root: str, environ: Mapping[str, str]) -> str:
    """The folder in which the gateway of a folder remembers what its servers offer."""
    return os.path.join(_state_folder(root, environ), "catalogs")


def state_file(root: str, environ: Mapping[str, str]) -> str:
    """The file with the approvals, grants and pins of a folder."""
    return os.path.join(_state_folder(root, environ), "state.db")


def audit_folder(config: GatewayConfig, environ: Mapping[str, str]) -> str:
    """The folder of the audit log: as configured, else made from the path of the gateway's folder."""
    return config.audit.folder or os.path.join(_state_folder(config.root, environ), "audit")


def last_checkpoint_file(root: str, environ: Mapping[str, str]) -> str:
    """The file with the last checkpoint of the audit log. It is outside the log's folder, to notice its removal."""
    return os.path.join(_state_folder(root, environ), "audit.last")


def activations_folder(root: str, environ: Mapping[str, str]) -> str:
    """The folder in which the activations of a folder's gateway keep files."""
    return os.path.join(_state_folder(root, environ), "activations")


def state_folders(root: str, environ: Mapping[str, str]) -> list[str]:
    """The folders that have a record of decisions or an audit log of a folder; the first one is used.

    More than one is left over from processes that did not find the others.
    """
    folders = [os.path.join(each, "sluicegate", _folder_digest(root)) for each in user_folders(environ).state]
    return [each for each in folders if any(os.path.exists(os.path.join(each, name)) for name in ("state.db", "audit"))]


def _state_folder(root: str, environ: Mapping[str, str]) -> str:
    existing = state_folders(root, environ)
    return existing[0] if existing else os.path.join(user_folders(environ).state[0], "sluicegate", _folder_digest(root))


def _folder_digest(root: str) -> str:
    return hashlib.blake2b(os.path.realpath(root).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _once(*files: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(files))
