"""API keys: who calls. The file holds hashes only; a key itself is shown once, when it is made.

Keys are 256 random bits, so a plain SHA-256 is as good as a slow hash here: there is no dictionary to try, and a check costs a
microsecond.
Lines of the file: `<tenant> sha256:<64 hex digits>`; `#` begins a comment. One tenant may have several keys (for a change of
keys without a gap).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from pathlib import Path

from typing_extensions import override

from shared.errors import UserError
from shared.ids import TenantId
from shared.prefix_salt import prefix_salt

KEY_PREFIX = "hr-"
KEY_BYTES = 32
HASH_PREFIX = "sha256:"
MAX_TENANT_CHARS = 64
FIELDS = 2
ANONYMOUS = TenantId("anonymous")


def new_key() -> str:
    """Return a fresh secret key."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def key_line(tenant: str, key: str) -> str:
    """Return the line of the keys file for a key; it does not reveal the key. Raises `UserError` for a bad tenant name."""
    _check_tenant(tenant, where="tenant")
    return f"{tenant} {HASH_PREFIX}{_digest(key).hex()}"


class Keyring:
    """The keys of one version of the file. The look-up is by a hash under a secret of this process, so its timing tells a caller
    nothing about stored keys.
    """

    def __init__(self, tenants: dict[bytes, TenantId]) -> None:
        self._pepper = secrets.token_bytes(KEY_BYTES)
        self._keys = {self._index(digest): (digest, name) for digest, name in tenants.items()}
        self._salts: dict[TenantId, str] = {}
        for digest, name in tenants.items():
            self._salts.setdefault(name, prefix_salt(name, digest))

    def __len__(self) -> int:
        return len(self._keys)

    @override
    def __repr__(self) -> str:
        return f"<Keyring {len(self._keys)} keys>"

    def tenant(self, key: str) -> TenantId | None:
        """Return whose key this is, or None."""
        digest = _digest(key)
        stored, name = self._keys.get(self._index(digest), (b"", None))
        return name if hmac.compare_digest(stored, digest) else None

    def salt(self, tenant: TenantId) -> str:
        """Return what keeps the tenant's cached prefixes from others; empty for one without a key."""
        return self._salts.get(tenant, "")

    def _index(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._pepper, digest_size=16).digest()


def parse_keys(text: str, *, source: str) -> Keyring:
    """Return the keyring of a file's text. Raises `UserError` with file and line."""
    tenants: dict[bytes, TenantId] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.partition("#")[0].split()
        if not line:
            continue
        where = f"{source}, line {number}"
        if len(line) != FIELDS or not line[1].startswith(HASH_PREFIX):
            raise UserError(f"{where}: want `<tenant> sha256:<64 hex digits>`")
        _check_tenant(line[0], where=where)
        digest = _parse_digest(line[1].removeprefix(HASH_PREFIX), where=where)
        if tenants.get(digest, line[0]) != line[0]:
            raise UserError(f"{where}: this key already belongs to {tenants[digest]}")
        tenants[digest] = TenantId(line[0])
    return Keyring(tenants)


class KeyFile:
    """The keyring that follows its file. Without a file everybody is `anonymous`."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._ring: Keyring | None = None
        if path is not None:
            self.reload()

    @property
    def is_required(self) -> bool:
        """Whether callers must show a key."""
        return self._path is not None

    def __len__(self) -> int:
        return 0 if self._ring is None else len(self._ring)

    def tenant(self, authorization: str | None) -> TenantId | None:
        """Return the tenant of an `Authorization` header, or None where it does not let anybody in."""
        if self._ring is None:
            return ANONYMOUS
        scheme, _, key = (authorization or "").partition(" ")
        return self._ring.tenant(key.strip()) if scheme.lower() == "bearer" else None

    def salt(self, tenant: TenantId) -> str:
        """Return what keeps the tenant's cached prefixes from others; empty where there are no keys: all are one tenant."""
        return "" if self._ring is None else self._ring.salt(tenant)

    def reload_if_changed(self) -> bool:
        """Read the file again if it changed, and return whether it was read. On `UserError` the old keys stay in force."""
        if self._path is None or self._stamp_of(self._path) == self._stamp:
            return False
        self.reload()
        return True

    def reload(self) -> None:
        """Read the file now. Raises `UserError`; the old keys stay in force then, and the same content is not complained about twice."""
        if self._path is None:
            return
        self._stamp = self._stamp_of(self._path)
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read the keys file {self._path}: {error}") from error
        self._ring = parse_keys(text, source=str(self._path))

    @staticmethod
    def _stamp_of(path: Path) -> tuple[int, int, int] | None:
        try:
            stat = path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


def check_exposure(host: str, *, has_keys: bool, insecure_no_auth: bool) -> None:
    """Raise `UserError` where the gateway would answer anybody on a network without asking who it is."""
    if has_keys or insecure_no_auth or is_loopback(host):
        return
    raise UserError(
        f"refusing to listen on {host!r} without API keys: anybody who reaches it could use the models",
        hint="make a key and name its file in `keys_file`, bind to 127.0.0.1, or set `insecure_no_auth`",
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _parse_digest(text: str, *, where: str) -> bytes:
    try:
        digest = bytes.fromhex(text)
    except ValueError as error:
        raise UserError(f"{where}: the hash is not hexadecimal") from error
    if len(digest) != hashlib.sha256().digest_size:
        raise UserError(f"{where}: the hash has {len(digest)} bytes instead of 32")
    return digest


def _check_tenant(name: str, *, where: str) -> None:
    ok = 0 < len(name) <= MAX_TENANT_CHARS and all(c.isalnum() or c in "-_.@" for c in name)
    if not (ok and name.isascii()):
        raise UserError(
            f"{where}: tenant {name!r} must be 1 to {MAX_TENANT_CHARS} ASCII letters, digits or -_.@"
        )


def add_key(path: Path, *, tenant: str) -> str:
    """Append a new key of `tenant` to the keys file, made where there is none, and return the key. Raises `UserError`."""
    key = new_key()
    line = key_line(tenant, key)
    try:
        path.touch(mode=0o600)
        text = path.read_text(encoding="utf-8")
        parse_keys(text, source=str(path))
        with path.open("a", encoding="utf-8") as file:
            file.write(("" if text.endswith("\n") or not text else "\n") + line + "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot write the keys file {path}: {error}") from error
    return key
