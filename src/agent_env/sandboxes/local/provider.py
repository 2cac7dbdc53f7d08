"""The provider `local`: sandboxes on this machine, confined, without a container engine."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent_env.clock import SystemClock
from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.errors import InfrastructureError, SandboxNotFoundError, UnsupportedError, UserError
from agent_env.places import Shape
from agent_env.places.helper import binary_path
from agent_env.sandboxes.contract import Capabilities, Level, SandboxInfo, SandboxSpec
from agent_env.sandboxes.local import limits as control
from agent_env.sandboxes.local import link, removal
from agent_env.sandboxes.local.launch import Plan, Started, start
from agent_env.sandboxes.local.probe import Machine, survey
from agent_env.sandboxes.local.processes import MARKER, Identity, boot_id
from agent_env.sandboxes.local.publish import publish, write_port_map
from agent_env.sandboxes.local.records import (
    Facts,
    Records,
    labels_file,
    make_private,
    new_work_dir,
    read_labels,
    work_dirs,
    work_root,
)
from agent_env.sandboxes.local.sandbox import LocalSandbox, Settling, gone, info_of
from agent_env.sandboxes.local.view import HELPER_INSIDE, Network, View, write_sudo
from agent_env.waiting import deadline, poll, shielded

_FIRST_PRIVATE_ID = 1_000_000_000
_IDS_EACH = 65_536
_RANGES = 16_000
_BACKLOG = 64
_SLIRP_SOCKET = "slirp.sock"
_LOG = "helper.log"
_SPARE_PROCESSES = 16
"""What the helper itself may need beside the commands."""


@dataclass(frozen=True, slots=True)
class Options:
    """What configuration may say about the provider."""

    confiner: str = "auto"
    """`auto`, `bwrap` or `helper`."""
    network: str = "auto"
    """`auto` uses slirp4netns where it works; `machine` shares this machine's network; `slirp4netns` refuses to."""

    @classmethod
    def parse(cls, options: Mapping[str, object]) -> Options:
        """Reads the table `[sandbox.providers.local.config]`.

        Raises:
            UserError: An unknown option or value.
        """
        accepted = {"confiner": ("auto", "bwrap", "helper"), "network": ("auto", "slirp4netns", "machine")}
        for name, value in options.items():
            if name not in accepted:
                raise UserError(f"the provider 'local' has no option {name!r}", hint=f"it has {', '.join(accepted)}")
            if value not in accepted[name]:
                raise UserError(f"option {name!r} of the provider 'local' can't be {value!r}", hint=f"one of {', '.join(accepted[name])}")
        return cls(**{name: str(value) for name, value in options.items()})


class LocalProvider:
    """Makes, finds and removes confined machine places on this machine."""

    name = "local"

    def __init__(
        self,
        state_root: Path,
        *,
        limits: Limits = DEFAULT_LIMITS,
        options: Mapping[str, object] | None = None,
        environ: Mapping[str, str] | None = None,
        machine: Machine | None = None,
    ) -> None:
        self._records = Records(state_root)
        self._limits = limits
        self._options = Options.parse(options or {})
        self._environ = dict(os.environ if environ is None else environ)
        self._known_machine = machine
        self._clock = SystemClock()

    @property
    def machine(self) -> Machine:
        """What this machine can do, looked at once."""
        if self._known_machine is None:
            self._known_machine = survey()
        return self._known_machine

    async def capabilities(self) -> Capabilities:
        """What it can do here."""
        return Capabilities(
            shape=Shape.MACHINE_BACKED,
            egress=frozenset({NetworkMode.NONE, NetworkMode.ALLOW_ALL}),
            limits=self._levels(),
            publish=True,
            notes=self._notes(),
        )

    def problems(self, spec: SandboxSpec, capabilities: Capabilities) -> Sequence[str]:
        """Why this spec can't be made here."""
        found = []
        if spec.mode != "vm":
            found.append(f"the provider {self.name!r} runs no containers, so sandbox_mode {spec.mode!r} needs another")
        mode = _effective(spec.network)
        if mode not in capabilities.egress:
            able = ", ".join(sorted(capabilities.egress))
            found.append(f"the provider {self.name!r} can't hold a network policy of mode {mode.value!r}; it can do {able}")
        if not self._can_confine():
            found.append(_NO_CONFINEMENT)
        return found

    async def create(self, spec: SandboxSpec) -> LocalSandbox:
        """Makes the sandbox; a failure or a cancellation leaves nothing behind.

        Raises:
            UnsupportedError: This machine or provider can't make it.
            UserError: A sandbox of that id exists.
            InfrastructureError: It could not be started.
            DeadlineError: It did not start in time.
        """
        reasons = self.problems(spec, await self.capabilities())
        if reasons:
            raise UnsupportedError("; ".join(reasons), concerns=spec.sandbox_id, hint=_UNSAFE_HINT if _NO_CONFINEMENT in reasons else None)
        facts = self._first_facts(spec)
        self._records.open(facts)
        waits: dict[str, int] = {}
        log = self._records.folder(spec.sandbox_id) / _LOG
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self._undo, spec.sandbox_id)
            undo.callback(lambda: Settling(waits, log).close())
            work = asyncio.to_thread(self._make, facts, spec, waits)
            facts = await shielded(work, seconds=self._limits.deploy_seconds, what="making the sandbox")
            if spec.ports:
                facts = await self._publish(facts, spec.ports, Settling(waits, log))
            sandbox = await self._handle(facts, spec.epoch, spec.token, waits)
            undo.pop_all()
            return sandbox

    async def _publish(self, facts: Facts, ports: Sequence[int], settling: Settling) -> Facts:
        """Ports of a place that shares this machine's network are this machine's; without a network there are none to publish."""
        published = {served: served for served in ports} if facts.network["how"] == "machine" else {}
        if facts.network["how"] == "slirp4netns":
            await settling.wait(self._limits.connect_seconds)
            published = await publish(self._records.folder(facts.sandbox_id) / _SLIRP_SOCKET, ports, limits=self._limits)
        await asyncio.to_thread(write_port_map, Path(facts.work_dir), published)
        facts = replace(facts, ports={str(served): port for served, port in published.items()})
        self._records.write(facts)
        return facts

    async def _undo(self, sandbox_id: str) -> None:
        with contextlib.suppress(InfrastructureError):  # the first error is the one to tell; `gc` finds what is left
            await shielded(self.destroy(sandbox_id), seconds=self._limits.teardown_seconds, what="removing the sandbox")

    async def attach(self, sandbox_id: str, *, epoch: int, token: str) -> LocalSandbox:
        """A handle on an existing sandbox.

        Raises:
            SandboxNotFoundError: There is no record of it.
            PlaceLostError: It was, and is gone.
        """
        facts = self._records.read(sandbox_id)
        if facts is None:
            known = next(work_dirs(self._work_root, sandbox_id), None)
            hint = f"its folder {known[1]} is still there; `agent-env gc` removes it" if known else None
            raise SandboxNotFoundError(f"no sandbox {sandbox_id!r} on this machine", concerns=sandbox_id, hint=hint)
        lost = gone(facts, self._records.events(sandbox_id))
        if lost is not None:
            raise lost
        return await self._handle(facts, epoch, token, {})

    async def destroy(self, sandbox_id: str) -> bool:
        """Removes it whole. Idempotent; of an id that this state root and work root don't know, nothing is touched.

        Raises:
            InfrastructureError: Something can't be removed; the record stays, so that it can be tried again.
        """
        facts = self._records.read(sandbox_id)
        folders = [path for _, path in work_dirs(self._work_root, sandbox_id)]
        if facts is None and not folders:
            return False
        facts = facts or Facts(sandbox_id, "", boot=boot_id())
        async with deadline(self._limits.teardown_seconds, f"removing sandbox {sandbox_id}"):
            await asyncio.to_thread(removal.stop, facts, limits=self._limits)
            await self._remove_groups(facts)
            await asyncio.to_thread(self._remove_folders, facts, folders)
        return True

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """Every sandbox that carries these labels, also half-made ones and those whose record is lost."""
        seen = set()
        for sandbox_id in [*self._records.ids()]:
            facts = self._records.read(sandbox_id)
            if facts is None:
                continue
            seen.add(sandbox_id)
            if labels.items() <= dict(facts.labels).items():
                yield info_of(facts)
        for sandbox_id, path in [*work_dirs(self._work_root)]:
            found = read_labels(path)
            if sandbox_id not in seen and found and labels.items() <= dict(found).items():
                yield SandboxInfo(sandbox_id, found, alive=False, facts={"work_dir": str(path)})

    async def aclose(self) -> None:
        """Nothing is held."""

    # What the machine gives

    @property
    def _work_root(self) -> Path:
        return work_root(self._environ, self._records.root.with_name("work"))

    def _can_confine(self) -> bool:
        match self._options.confiner:
            case "bwrap":
                return self.machine.bwrap is not None
            case "helper":
                return self.machine.is_root or not self.machine.user_namespaces
        return self.machine.can_confine

    def _levels(self) -> dict[str, Level]:
        return control.levels(self.machine)

    def _bwrap(self) -> str | None:
        """For root always our own confiner, which gives each place private ids; for others bubblewrap, which some machines allow alone."""
        if self._options.confiner == "helper" or (self.machine.is_root and self._options.confiner == "auto"):
            return None
        return self.machine.bwrap

    def _network(self, policy: NetworkPolicy | None) -> Network:
        if _effective(policy) is NetworkMode.NONE:
            return Network("none", "none")
        if self._options.network != "machine" and self.machine.slirp is not None:
            return Network("allow_all", "slirp4netns")
        if self._options.network == "slirp4netns":
            raise UnsupportedError(
                f"slirp4netns is demanded by configuration: {self.machine.slirp_problem}", hint="apt install slirp4netns"
            )
        return Network("allow_all", "machine")

    def _notes(self) -> Sequence[str]:
        notes = []
        if self._options.network == "machine" or self.machine.slirp is None:
            why = self.machine.slirp_problem or "by configuration"
            notes.append(
                f"places that may use the network use this machine's own, with its loopback ({why}); slirp4netns would separate them"
            )
        levels = self._levels()
        weak = [
            f"{name} is {'watched' if level is Level.WATCHED else 'not limited'}"
            for name, level in levels.items()
            if level is not Level.HARD
        ]
        return [*notes, *weak]

    # Making

    def _first_facts(self, spec: SandboxSpec) -> Facts:
        network = self._network(spec.network)
        policy = spec.network or NetworkPolicy()
        private = self.machine.is_root and self._bwrap() is None
        maker = Identity.of(os.getpid())
        return Facts(
            sandbox_id=spec.sandbox_id,
            work_dir=str(new_work_dir(self._work_root, spec.sandbox_id)),
            labels=dict(spec.labels),
            boot=boot_id(),
            maker=maker.dump() if maker else {},
            confiner="bwrap" if self._bwrap() else "helper",
            cgroups=tuple(str(group.folder) for group in control.groups(self.machine, spec, self._records.home)),
            base_uid=_private_range(spec.sandbox_id) if private else None,
            network={
                "mode": network.mode,
                "how": network.how,
                "demanded": spec.network is not None,
                "policy": policy.model_dump(mode="json"),
            },
            levels={name: level.value for name, level in self._levels().items()},
            limits={"memory": spec.memory_bytes, "processes": spec.processes, "cpu": spec.cpu, "disk": spec.disk_bytes},
            ttl_seconds=spec.ttl_seconds,
            notes=tuple(self._notes()),
        )

    def _make(self, facts: Facts, spec: SandboxSpec, waits: dict[str, int]) -> Facts:
        """In a worker thread: the folder, the groups, the processes, the record. Fills `waits`, also if it fails later."""
        work_dir = Path(facts.work_dir)
        try:
            make_private(work_dir.parent)
            work_dir.mkdir(mode=0o700)
            groups = [control.make(group) for group in control.groups(self.machine, spec, self._records.home)]
            started = self._start(facts, spec, groups)
        except OSError as error:
            raise InfrastructureError(f"can't prepare {error.filename or work_dir}: {error.strerror}", concerns=spec.sandbox_id) from error
        waits.update(started.waits)
        running = replace(facts, phase="running", first=started.first.dump(), guardian=started.guardian.dump())
        self._records.write(running)
        return running

    def _start(self, facts: Facts, spec: SandboxSpec, groups: Sequence[Path]) -> Started:
        """Fills the folder and starts the place in it."""
        folder = self._records.folder(spec.sandbox_id)
        view = View(
            machine=self.machine,
            work_dir=Path(facts.work_dir),
            sandbox_id=spec.sandbox_id,
            network=Network(str(facts.network["mode"]), str(facts.network["how"])),
            environ=self._environ,
            extra=spec.env,
            helper=binary_path(),
            sudo=write_sudo(self._records.tools()),
            marks=dict([labels_file(spec.sandbox_id, spec.labels)]),
            base_uid=facts.base_uid,
        )
        view.build()
        limited = facts.levels["processes"] == Level.HARD
        with listening(folder / "helper.sock") as listener, link.config(spec, view.environment(), limited=limited) as config:
            plan = Plan(
                helper=view.helper,
                own=self._own_options(facts, spec, groups, folder),
                view=view.arguments(),
                payload=link.payload(HELPER_INSIDE, listener.fileno(), config),
                environment={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", MARKER: spec.sandbox_id},
                log=folder / _LOG,
                keep=(listener.fileno(), config),
                network=facts.network["how"] == "slirp4netns",
                limited=bool(groups),
            )
            return start(plan, seconds=self._limits.deploy_seconds)

    def _own_options(self, facts: Facts, spec: SandboxSpec, groups: Sequence[Path], folder: Path) -> Sequence[str]:
        words = ["--events", str(folder / "events")]
        bwrap = self._bwrap()
        for group in groups:
            words += ["--cgroup", str(group)]
        if facts.base_uid is not None:
            for option in ("--uid-map", "--gid-map"):
                words += [option, "0", str(facts.base_uid), str(_IDS_EACH)]
        if spec.processes and facts.levels["processes"] == Level.HARD:
            words += ["--processes", str(spec.processes + _SPARE_PROCESSES)]
        if spec.memory_bytes and facts.levels["memory"] == Level.WATCHED:
            words += ["--watch-memory", str(spec.memory_bytes)]
        if spec.disk_bytes:
            words += ["--file-size", str(spec.disk_bytes), "--watch-disk", str(spec.disk_bytes), facts.work_dir]
        if facts.network["how"] == "slirp4netns":
            words += ["--slirp", str(self.machine.slirp)]
            words += ["--slirp-api", str(folder / _SLIRP_SOCKET)] if spec.ports else []
        return [*words, *(["--bwrap", bwrap] if bwrap else [])]

    async def _handle(self, facts: Facts, epoch: int, token: str, waits: dict[str, int]) -> LocalSandbox:
        folder = self._records.folder(facts.sandbox_id)
        connection = await link.connect(folder / "helper.sock", sandbox_id=facts.sandbox_id, epoch=epoch, token=token, limits=self._limits)
        return LocalSandbox(facts, self._records, connection, settling=Settling(waits, folder / _LOG), limits=self._limits)

    # Removing

    async def _remove_groups(self, facts: Facts) -> None:
        async def removed() -> bool | None:
            return None if control.remove(facts.cgroups) else True

        if control.remove(facts.cgroups):
            await poll(
                removed, within_seconds=self._limits.cleanup_seconds, what="emptying the sandbox's control groups", limits=self._limits
            )

    def _remove_folders(self, facts: Facts, folders: Sequence[Path]) -> None:
        until = self._clock.monotonic() + self._limits.teardown_seconds
        recorded = Path(facts.work_dir) if facts.work_dir else None
        if recorded is not None and recorded.name.startswith(f"agent-env-{facts.sandbox_id}-"):
            folders = [*folders, recorded]
        for folder in dict.fromkeys(folders):
            removal.remove_tree(folder, until=until)
        removal.remove_state(self._records.folder(facts.sandbox_id))


_NO_CONFINEMENT = "this machine can confine nothing: its users may not make user namespaces, and bubblewrap is not installed"
_UNSAFE_HINT = (
    "set user.max_user_namespaces (and kernel.apparmor_restrict_unprivileged_userns=0), or install bubblewrap; "
    "--unsafe-host runs without a sandbox, on a machine you can lose"
)


def _effective(policy: NetworkPolicy | None) -> NetworkMode:
    """What a policy comes to: none given allows everything, and an allow-list without entries denies everything."""
    if policy is None:
        return NetworkMode.ALLOW_ALL
    empty = policy.mode is NetworkMode.ALLOWLIST and not (policy.allow_hosts or policy.allow_cidrs)
    return NetworkMode.NONE if empty else policy.mode


def _private_range(sandbox_id: str) -> int:
    number = int.from_bytes(hashlib.sha256(sandbox_id.encode()).digest()[:8], "big")
    return _FIRST_PRIVATE_ID + number % _RANGES * _IDS_EACH


@contextlib.contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A socket at a path of any length: it is named through its folder's descriptor."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        listener.listen(_BACKLOG)
        yield listener
    finally:
        listener.close()
        os.close(folder)
