"""Every wait and limit of agent-env, named once.

Seconds are floats, sizes are bytes. Each value can be overridden by the configuration table `[limits]` under the same name in
lower case, or by the environment variable `AGENT_ENV_LIMIT_<NAME>`. No other module holds such a literal; a test greps for it.
Numbers marked (reference) are the published system's, kept so that existing tasks behave the same.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one process. Frozen: an override makes a new value with `dataclasses.replace`."""

    # Sandboxes (reference: deploy_sandbox)
    sandbox_ttl_seconds: float = 7200.0
    sandbox_cpu: float = 1.0
    sandbox_memory_bytes: int = 8192 * MIB
    sandbox_disk_bytes: int = 10 * GIB
    sandbox_processes: int = 4096
    deploy_seconds: float = 180.0
    teardown_seconds: float = 120.0
    # Commands in a place
    exec_seconds: float = 600.0
    kill_grace_seconds: float = 5.0
    """Between SIGTERM and SIGKILL of a tree (reference: run_code)."""
    cleanup_seconds: float = 10.0
    """What a shielded clean-up may take after a cancellation."""
    connect_seconds: float = 10.0
    transfer_seconds: float = 600.0
    answer_margin_seconds: float = 2.0
    """How long past its own deadline a place may take to answer before the transport counts as lost."""
    output_limit_bytes: int = 64 * MIB
    # Steps (reference)
    run_code_seconds: float = 600.0
    run_code_sources_bytes: int = 5 * MIB
    run_code_result_bytes: int = 50 * MIB
    run_code_stderr_bytes: int = 1 * MIB
    verify_shell_seconds: float = 120.0
    probe_file_bytes: int = 64 * MIB
    review_seconds: float = 10800.0
    download_seconds: float = 600.0
    download_bytes: int = 10 * GIB
    download_attempts: int = 5
    download_streams: int = 8
    """Downloads at once (reference)."""
    payload_bytes: int = 1 * GIB
    """What an environment's payload may hold once it is unpacked."""
    # Engine
    lease_seconds: float = 30.0
    lease_renew_seconds: float = 10.0
    retry_backoff_seconds: float = 0.5
    retry_backoff_max_seconds: float = 30.0
    control_delay_seconds: float = 0.25
    """How old a run gets before it opens its control socket: one that is over sooner needs none."""
    drain_seconds: float = 30.0
    closing_step_seconds: float = 600.0
    """What an `always_run` step without a limit of its own may take after a failure or cancellation."""
    shutdown_seconds: float = 60.0
    # Stores
    database_busy_seconds: float = 30.0
    group_commit_seconds: float = 0.002
    inline_result_bytes: int = 64 * KIB
    """A larger result is kept as an object and referred to from its row."""
    document_bytes: int = 64 * MIB
    bundle_file_bytes: int = 8 * MIB
    run_memory_bytes: int = 256 * MIB
    """What one run is reckoned to need on this machine when the number of runs at once is derived from its memory."""
    bundle_lock_seconds: float = 300.0
    """How long a run waits while another process writes the documents of the same bundle."""
    gc_grace_seconds: float = 3600.0
    # Back-off of event waits
    poll_first_seconds: float = 0.02
    poll_max_seconds: float = 0.5

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names that configuration may override."""
        return tuple(field.name for field in fields(cls))


DEFAULT_LIMITS = Limits()
