"""Settings of a host process: one frozen struct, read once at start; inner parts get only their own sub-struct.

Does not read files or the environment: `shared.settings` does.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from shared.logs import LogSettings
from shared.settings import NatsSettings

PREFIX = "HEADRACE_HOST_"
STOP_S = 8.0
"""What stopping takes beyond `drain_s`: engines that free their backend, those that hang and are killed."""
MAX_PORT = 65_535


class EngineAccess(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How engines reach the bus: as a user of their own, with fewer rights than the host."""

    url: str = ""
    """Empty: as the host does."""
    user: str = ""
    password_file: str = ""
    """File that holds the password; engines read it themselves."""


class ComposeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Driver `compose`: engines are containers."""

    docker: str = "docker"
    """The program; `DOCKER_HOST` says which engine it speaks to."""
    file: str = "compose.yaml"
    """The compose file."""
    project: str = "headrace"
    """Name of the compose project."""
    service: str = "engine"
    """The service whose image, volumes and environment a replica gets; its command is made from the spec."""
    models: str = "/models"
    """Where containers see the host's folder of models."""


class HostSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One host process."""

    name: str = ""
    """What people call this host; empty: the machine's name."""
    zone: str = ""
    """Where it stands; its engines tell it to gateways, which prefer their own zone."""
    folder: str = ""
    """Where logs, black boxes and notes of what runs are kept; one host process uses it at a time."""
    models: str = ""
    """Folder of model directories; models that can be made are made there. With driver `compose` it may be empty: then containers have
    models of their own, and nobody checks them."""
    driver: Literal["processes", "compose"] = "processes"
    """What replicas are: processes of this machine, or containers."""
    compose: ComposeSettings = ComposeSettings()
    nats: NatsSettings = NatsSettings()
    engine: EngineAccess = EngineAccess()
    log: LogSettings = LogSettings()
    metrics_host: str = "127.0.0.1"
    """Address of the metrics pages, of the host and of its engines."""
    metrics_port: int = 0
    """Port of the host's own; 0: none."""
    first_port: int = 0
    """First port of the engines' metrics pages; 0: any that are free."""
    ports: int = 64
    """How many ports there are from `first_port` on: no more replicas can run than that."""
    memory_bytes: int | None = None
    """What replicas may take together; none: what is available when the host starts."""
    gpus: tuple[str, ...] | None = None
    """Devices to give away, as `CUDA_VISIBLE_DEVICES` names them; none: those of that variable, else all that `nvidia-smi` lists."""
    kv_store: str = ""
    """Socket of this host's KV store; empty: there is none."""
    warm: Literal["vllm", "plain", "none"] = "vllm"
    """What is imported before any replica is wanted: `vllm` takes ten seconds once and 0.6 GiB; `plain`, the rest of an engine; `none`:
    each engine imports for itself."""
    drain_s: float = 30.0
    """Time that running answers get when the host ends, or an operator does not say."""

    def __post_init__(self) -> None:
        optional = not self.models and self.driver == "compose"
        if not self.folder.startswith("/") or not (optional or self.models.startswith("/")):
            raise ValueError("folder and models are absolute paths")
        if self.first_port and not 0 < self.first_port <= MAX_PORT + 1 - self.ports:
            raise ValueError("first_port and ports are ports from 1 to 65535")
        if self.ports < 1:
            raise ValueError("ports must be at least 1")
