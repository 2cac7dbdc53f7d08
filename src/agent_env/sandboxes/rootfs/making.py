"""Makes one sandbox of an unpacked image: its folder, its namespaces, and the helper in them as the first process.

Everything here blocks and is called from a worker thread.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from agent_env.defaults import Limits
from agent_env.images.oci.manifests import ImageConfig
from agent_env.images.oci.store import UnpackedImage
from agent_env.keeper.wiring import proxy_environment, relay_token
from agent_env.places.helper import HelperConfig, binary_path
from agent_env.sandboxes.confined import link
from agent_env.sandboxes.confined.launch import Started
from agent_env.sandboxes.confined.making import HELPER_INSIDE, confine, map_options, own_options
from agent_env.sandboxes.confined.network import KEEPER, MACHINE, SLIRP, Network, network_files
from agent_env.sandboxes.confined.probe import Machine
from agent_env.sandboxes.confined.records import Facts, Records, labels_file
from agent_env.sandboxes.contract import Level, SandboxSpec
from agent_env.sandboxes.rootfs.top import TOP, WORK, Top, furnish, volumes

ENTRY_ATTEMPT = "image"
"""The attempt that the image's own command belongs to, as in an engine's containers."""
LOG = "image.log"
"""What the image's own command writes, beside the sandbox's files and within their limit."""
_MEMORY_FOLDER_BYTES = str(8 << 20)
_MANY = "--many-users"
_MOUNTS = ("proc", "dev", ".agentenv")


@dataclass(slots=True)
class Making:
    """One sandbox that is being made."""

    facts: Facts
    spec: SandboxSpec
    image: UnpackedImage
    machine: Machine
    records: Records
    state_root: Path
    limits: Limits
    stacked: bool
    read_only: bool
    volumes: Mapping[str, Path] = field(default_factory=dict)
    """Of an image whose root can't be written: the folders that can, and where they lie here."""

    @property
    def folder(self) -> Path:
        """Its own files."""
        return Path(self.facts.work_dir)

    def begin(self, check: Callable[[], None], groups: Sequence[Path]) -> Started:
        """Fills the folder and starts the place in it; see `confined.making.make`.

        Args:
            check: Called often while files are copied; raises to end the work.
            groups: The files by which the place joins its control groups.

        Raises:
            OSError: It can't be filled.
            InfrastructureError: It can't be started.
            UnsupportedError: This machine or image does not allow it.
        """
        name, text = labels_file(self.spec.sandbox_id, self.spec.labels)
        (self.folder / name).parent.mkdir(mode=0o700)
        (self.folder / name).write_text(text)
        self._furnish(check)
        return self._start(groups)

    def _furnish(self, check: Callable[[], None]) -> None:
        path, shift = self.folder / TOP, self.facts.base_uid or 0
        if self.stacked:
            top = Top(self.image.root, path, shift)
            (self.folder / WORK).mkdir(mode=0o700)
            top.begin()
        else:
            Top(self.image.root, path, shift).copy(check)
            top = Top(path, path, shift)
        network = Network(str(self.facts.network["mode"]), str(self.facts.network["how"]))
        files = {name.removeprefix("/etc/"): text for name, text in network_files(network, self.spec.sandbox_id).items()}
        config = self.image.config
        furnish(top, files, mounts=_MOUNTS, folders=[config.workdir, *config.volumes])
        if self.read_only:
            self.volumes = volumes(self.image.root, config.volumes, self.folder, shift, check)

    def config(self) -> HelperConfig:
        """What the helper is told: the image's own words, and what the sandbox adds to them."""
        spec, image = self.spec, self.image.config
        proxied = proxy_environment() if self.facts.network["how"] == KEEPER else {}
        limited = spec.processes and self.facts.levels["processes"] == Level.HARD
        words = command_of(image)
        return HelperConfig(
            token=link.token_of(spec.token),
            epoch=spec.epoch,
            ttl_seconds=spec.ttl_seconds,
            env={"HOSTNAME": spec.sandbox_id[:64], **image.env, **proxied, **spec.env, **spec.secrets},
            cwd=image.workdir or "/",
            user=(image.user or "0:0") if self.facts.base_uid is not None else None,
            entrypoint=words,
            entry_later=True,
            hold=not words,
            restart=spec.restart,
            attempt=ENTRY_ATTEMPT,
            relay_token=relay_token(self.state_root, spec.sandbox_id),
            rlimits={resource.RLIMIT_NPROC: spec.processes} if limited else {},
            starter=self._starter,
            limited=bool(self.facts.cgroups),
            network_seconds=self.limits.connect_seconds if self.facts.network["how"] == SLIRP else 0.0,
            demanded=spec.network is not None,
        )

    @property
    def _starter(self) -> bool:
        return self.machine.cgroup_version == 1 and bool(self.facts.cgroups)

    def _start(self, groups: Sequence[Path]) -> Started:
        folder, log = self.records.folder(self.spec.sandbox_id), self.folder / LOG
        os.close(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        log.chmod(0o666)  # the image's programs open /dev/stdout as whoever they are; its folder is closed to everybody else
        own = [*own_options(self.facts, self.spec, self.machine, groups, folder), *self._own_options()]
        view, seconds = self._view(), self.limits.deploy_seconds
        return confine(self.spec.sandbox_id, folder, self.config(), groups=groups, own=own, view=view, log=log, seconds=seconds)

    def _own_options(self) -> Sequence[str]:
        words = [] if self.facts.base_uid is None else [_MANY]
        words += ["--read-only"] if self.read_only else []
        return [*words, *(["--overlay", str(self.image.root), self.facts.work_dir] if self.stacked else [])]

    def _view(self) -> Sequence[str]:
        words = [f"--unshare-{name}" for name in ("user", "pid", "ipc", "uts", "cgroup-try")]
        words += ["--unshare-net"] if self.facts.network["how"] != MACHINE else []
        words += [] if self.stacked else ["--bind", str(self.folder / TOP), "/"]
        words += chain.from_iterable(("--bind", str(folder), inside) for inside, folder in self.volumes.items())
        words += ["--hostname", self.spec.sandbox_id[:64], "--size", _MEMORY_FOLDER_BYTES, "--tmpfs", "/.agentenv"]
        words += ["--ro-bind", str(binary_path()), HELPER_INSIDE, "--proc", "/proc"]
        words += ["--size", str(self.spec.memory_bytes)] if self.spec.memory_bytes else []
        return [*words, "--dev", "/dev", "--chdir", "/"]


def command_of(image: ImageConfig) -> list[str]:
    """What an image runs by itself; empty for nothing."""
    return [*image.entrypoint, *image.cmd]


def who_is_who(base_uid: int | None) -> list[str]:
    """Who owns what inside, in words of `helper confine`: as in `confined.making`, with as many users as an image has."""
    return [] if base_uid is None else [*map_options(base_uid), _MANY]
