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

AGENT_DOCKER_IMAGE = "docker:27-dind"
"""The container engine that an agent with `enable_docker` is given."""
ENVIRONMENT_BASE_IMAGE = "python:3.12-slim"
"""What the gateway's image is built upon: Debian or Alpine with a Python from 3.11 and pip."""
ENVIRONMENT_DATABASE_IMAGE = "postgres:16-alpine"
DATABASE_SYNCHRONOUS = "NORMAL"
"""SQLite's word for how hard a commit is pushed to the disk: safe against kills."""


# Compared as objects: to compile a comparison of so many fields is the longest single thing that a start would do.
@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """The limits of one process. Frozen: an override makes a new value with `dataclasses.replace`."""

    # Sandboxes (reference: deploy_sandbox)
    sandbox_ttl_seconds: float = 7200.0
    """When a sandbox ends by itself, where the task says nothing else."""
    sandbox_cpu: float = 1.0
    """Processor cores of a sandbox, where the task says nothing else."""
    sandbox_memory_bytes: int = 8192 * MIB
    """Memory of a sandbox, where the task says nothing else."""
    sandbox_disk_bytes: int = 10 * GIB
    """Disk space of a sandbox, where the task says nothing else."""
    sandbox_processes: int = 4096
    """Processes and threads of a sandbox at once."""
    deploy_seconds: float = 180.0
    """Making one sandbox, without the time that its image takes; also what a provider may take to say what it can do."""
    deploy_attempts: int = 2
    """How often a provider is asked for a sandbox whose start failed for no reason of its own, before the next of the chain is."""
    conformance_case_seconds: float = 60.0
    """What one case of the conformance kit may take."""
    teardown_seconds: float = 120.0
    """Removing one sandbox with all that is in it."""
    # Commands in a place
    exec_seconds: float = 600.0
    """One command in a place, where the step has no limit of its own."""
    kill_grace_seconds: float = 5.0
    """Between SIGTERM and SIGKILL of a tree (reference: run_code)."""
    cleanup_seconds: float = 10.0
    """What a shielded clean-up may take after a cancellation."""
    connect_seconds: float = 10.0
    """Opening a connection: to a place, the run database, a server of files."""
    transfer_seconds: float = 600.0
    """One copy of files into a place or out of it."""
    archive_copy_bytes: int = 32 * MIB
    """A file of a container that is larger than this is copied by its engine's archive instead of its helper's stream."""
    archive_copy_most_bytes: int = 2 * GIB
    """And one above this by the stream again: an engine answers no question about a container that it copies out of, and others would wait
    for longer than `engine_seconds`."""
    rejoin_seconds: float = 10.0
    """How long a connection to a place is tried for again that broke under a command; the helper keeps the output for a minute."""
    rejoin_attempts: int = 5
    """How often one command is gone on with after its connection broke."""
    silence_seconds: float = 30.0
    """How long the helper of a container that runs may leave every question unanswered before its connection counts as broken."""
    answer_margin_seconds: float = 2.0
    """How long past its own deadline a place may take to answer before the transport counts as lost."""
    output_limit_bytes: int = 64 * MIB
    """What is kept of each stream of a command; the rest is counted and dropped."""
    # Steps (reference)
    run_code_seconds: float = 600.0
    """A script of `run_code` or of a verifier, where the task says nothing else."""
    run_code_sources_bytes: int = 5 * MIB
    """The `.py` files of a script together."""
    run_code_result_bytes: int = 50 * MIB
    """What a script may return, as JSON."""
    run_code_stderr_bytes: int = 1 * MIB
    """What is kept of what a script prints."""
    verify_shell_seconds: float = 120.0
    """Each command and each search of a verifier, where the task says nothing else."""
    probe_file_bytes: int = 64 * MIB
    """The largest file that a criterion reads whole."""
    review_seconds: float = 10800.0
    """How long a `review` waits for a person, where the task says nothing else."""
    download_seconds: float = 600.0
    """One file that is fetched from an address, with all its attempts."""
    download_bytes: int = 10 * GIB
    """The largest file that is fetched from an address."""
    download_attempts: int = 5
    """How often such a file is asked for."""
    download_streams: int = 8
    """Downloads at once (reference)."""
    collect_file_bytes: int = 10 * GIB
    """The largest file that `collect_artifacts` brings over; a larger one is told, and the others are kept."""
    payload_bytes: int = 1 * GIB
    """What an environment's payload may hold once it is unpacked."""
    payload_entries: int = 100_000
    """Members of an archive."""
    payload_ratio: int = 200
    """How many times its own size an archive may unpack to, above `payload_unquestioned_bytes`: databases pack to 1 in 20, bombs to 1 in
    1000."""
    payload_unquestioned_bytes: int = 64 * MIB
    """Up to here `payload_ratio` is not looked at."""
    # Images
    image_builds: int = 2
    """Builds at once on one engine by this installation, in whatever processes."""
    image_build_seconds: float = 3600.0
    """One build of an image."""
    image_pull_seconds: float = 3600.0
    """One pull or push of an image, with all its attempts."""
    image_pull_attempts: int = 4
    """How often a registry is asked for an image."""
    image_lock_seconds: float = 3600.0
    """How long one process waits while another one builds or fetches the same image, or has all turns to build."""
    image_budget_bytes: int = 50 * GIB
    """What the images that this installation built may hold; `image gc` removes the least recently used ones above it."""
    image_layers_bytes: int = 20 * GIB
    """The same for images that are unpacked without an engine."""
    image_free_bytes: int = 2 * GIB
    """What must stay free on a disk that an image is put on."""
    image_layer_bytes: int = 50 * GIB
    """What one layer may hold once it is unpacked."""
    image_layer_entries: int = 2_000_000
    """Files and folders of one layer."""
    image_layer_streams: int = 3
    """Layers that are fetched and unpacked at once (registries' own clients use three)."""
    image_manifest_bytes: int = 8 * MIB
    """A registry's manifest or an image's configuration (registries refuse more than 4 MiB)."""
    image_log_lines: int = 40
    """The end of a failed build's log that its error shows (reference)."""
    image_read_seconds: float = 60.0
    """How long a registry may send nothing."""
    image_question_seconds: float = 5.0
    """How long a command that only looks asks a registry whether it has an image: longer, and nobody would look."""
    wheelhouse_seconds: float = 900.0
    """Fetching the wheels of one set of requirements."""
    wheelhouse_keep_seconds: float = 30 * 86400.0
    """Wheels that were not used for so long are removed by `image gc`."""
    # Environments (reference: the protocol's own client, and the gateway's constants)
    environment_card_seconds: float = 10.0
    """An environment's card."""
    environment_call_seconds: float = 30.0
    """A reset, an export, an extension or a manifest."""
    environment_add_seconds: float = 120.0
    """A `data/add` of inline data, and the export and reset around a load."""
    environment_load_seconds: float = 900.0
    """Loading seed data of an unknown size, and the least for any."""
    environment_load_gigabyte_seconds: float = 1200.0
    """What each gigabyte of seed data adds to that."""
    environment_load_most_seconds: float = 3600.0
    """The most for a load of any size."""
    environment_loads: int = 4
    """Servers of one environment that are loaded at once."""
    environment_ready_seconds: float = 180.0
    """How long a server may take from the start of its container to its first answer."""
    environment_listen_seconds: float = 10.0
    """How long a place looks by itself for a server that starts, before it is asked again."""
    environment_poll_seconds: float = 0.05
    """The longest pause between two looks at a server that starts."""
    environment_tools_seconds: float = 60.0
    """How long a server that answers may take to list its tools."""
    environment_answer_bytes: int = 256 * MIB
    """The largest answer that is read whole."""
    environment_deploy_seconds: float = 900.0
    """One deployment with all its servers, without the time that images take."""
    environment_repeats: int = 3
    """How often a step is done whose environment is started again each time."""
    tool_call_seconds: float = 600.0
    """One call of an environment's tool that we make ourselves."""
    database_ready_seconds: float = 60.0
    """How long an environment's database may take from the start of its container until it answers."""
    # Agents (reference: the published system's own waits)
    agent_ready_seconds: float = 300.0
    """How long an agent may take from the start of its container to its card (reference)."""
    agent_call_seconds: float = 60.0
    """A card, a setting, or another small call (reference)."""
    human_card_seconds: float = 5.0
    """A card of somebody who may have none (reference)."""
    agent_wire_seconds: float = 180.0
    """Registering an MCP server, which an agent may look at at once (reference)."""
    agent_cancel_seconds: float = 10.0
    """Asking an agent to end a task (reference)."""
    agent_send_attempts: int = 5
    """How often a message is sent that certainly did not arrive (reference)."""
    agent_poll_seconds: float = 2.0
    """The longest pause between two looks at a task that can't be streamed (reference)."""
    agent_unreachable_seconds: float = 60.0
    """How long an agent that ran a task may not answer before the task counts as lost (reference)."""
    agent_silence_seconds: float = 60.0
    """How long a stream may bring nothing before the task is read instead; our own agents say every 15 s that they live."""
    agent_answer_bytes: int = 64 * MIB
    """What an answer may hold, with its attachments."""
    agent_trajectory_bytes: int = 256 * MIB
    """How much of a trajectory is kept; what is beyond is left out, and said to be."""
    agent_trajectory_seconds: float = 120.0
    """Fetching the trajectory of a turn."""
    agent_changelog_seconds: float = 120.0
    """Fetching or replaying what an agent's calls of tools changed (reference)."""
    agent_changelog_drain_seconds: float = 5.0
    """How often that is fetched while the agent works (reference)."""
    # Judges (reference)
    judge_seconds: float = 1000.0
    """One answer of a judge."""
    judge_attempts: int = 3
    """How often a judge is asked for one answer that can be read."""
    judge_concurrency: int = 4
    """Answers of a judge that a verifier waits for at once, where the task says nothing else."""
    judge_material_characters: int = 400_000
    """What a judge is shown of an answer and a trajectory, about a tenth of a million tokens; of what is longer, the middle is left out."""
    judge_result_characters: int = 1024
    """What it is shown of one tool's result."""
    judge_search_seconds: float = 10.0
    """Looking for one expression of a step among the agent's actions."""
    judge_picture_bytes: int = 5 * MIB
    """The largest picture that it is shown; what most model APIs take."""
    # Engine
    lease_seconds: float = 30.0
    """A run whose process on another machine gave no sign of life for so long may be taken over."""
    lease_renew_seconds: float = 10.0
    """Between two signs of life."""
    retry_backoff_seconds: float = 0.5
    """The pause before something of the network is tried again; it doubles each time."""
    retry_backoff_max_seconds: float = 30.0
    """The longest such pause."""
    control_delay_seconds: float = 0.25
    """How old a run gets before it opens its control socket: one that is over sooner needs none."""
    drain_seconds: float = 30.0
    """What stopping a step and recording its end may take when its run is cancelled."""
    closing_step_seconds: float = 600.0
    """What an `always_run` step without a limit of its own may take after a failure or cancellation."""
    shutdown_seconds: float = 60.0
    """Accepted, and used by nothing in this version."""
    # Container engines
    engine_seconds: float = 60.0
    """One request to a container engine that moves no bulk: what hangs longer is told as hanging."""
    engine_probe_seconds: float = 20.0
    """Finding out whether anything answers on an engine's socket, and what it is."""
    engine_stop_seconds: float = 10.0
    """What a container's own command has between SIGTERM and SIGKILL (the engine's own default)."""
    engine_knows_seconds: float = 1.0
    """How long an engine may take to know that a container has ended to which a connection broke without a word."""
    port_attempts: int = 20
    """How often a container is made again because a port of the host was taken meanwhile."""
    network_attempts: int = 20
    """How often a container is made again because the shared network that it was about to join went or filled up meanwhile."""
    network_settle_seconds: float = 5.0
    """How long a collection leaves a shared network that nobody is on to whoever has just made it; a container takes a second or two."""
    network_removals: int = 4
    """How often the removal of a network that nobody is on is tried when the engine refuses, ever more rarely."""
    container_ready_seconds: float = 120.0
    """How long a `ready_command` may go on failing (reference: 60 tries, 2 s apart)."""
    container_log_bytes: int = 4096
    """How much of a container's log an error about it tells."""
    # Keeper
    keeper_idle_seconds: float = 30.0
    """How long a keeper that carries nothing stays."""
    keeper_head_seconds: float = 30.0
    """What a client in a place may take for its request to the way out."""
    keeper_idle_stream_seconds: float = 3600.0
    """A connection through the keeper on which nothing moves for so long is ended; a model may think for many minutes."""
    keeper_connections: int = 256
    """Connections of one place through the keeper at once."""
    # Models
    model_seconds: float = 600.0
    """How long a model may send nothing (providers' own clients)."""
    model_attempts: int = 6
    """How often a call is sent whose model is busy or away, before anything of an answer was passed on."""
    model_retry_seconds: float = 300.0
    """How long a call is tried in all."""
    model_wait_seconds: float = 60.0
    """The longest pause before another try; an endpoint that asks for a longer one is taken at its word, and its answer is passed on."""
    model_turn_seconds: float = 600.0
    """How long a call waits for others of its run, where the budget lets only so many ask at once."""
    model_key_seconds: float = 15.0
    """How long a call waits for a keeper that was just started to be told the key."""
    model_request_bytes: int = 64 * MIB
    """What a request may hold, with its images."""
    model_answer_bytes: int = 64 * MIB
    """How much of an answer is kept for the transcript and the recording."""
    model_transcript_bytes: int = 1 * GIB
    """What the transcript of a run may hold."""
    # Stores
    database_busy_seconds: float = 30.0
    """How long a write waits while another process has the run database locked."""
    database_away_seconds: float = 30.0
    """How long a server of the run database that was there may be away (restarted, moved), while what wants to read or write waits."""
    group_commit_seconds: float = 0.002
    """How long writes that come together are gathered into one commit, at most."""
    inline_result_bytes: int = 64 * KIB
    """A larger result is kept as an object and referred to from its row."""
    document_bytes: int = 64 * MIB
    """The largest document that is stored."""
    bundle_file_bytes: int = 8 * MIB
    """The largest JSON or TOML file of a bundle that is read."""
    run_memory_bytes: int = 256 * MIB
    """What one run is reckoned to need on this machine when the number of runs at once is derived from its memory."""
    bundle_lock_seconds: float = 300.0
    """How long a run waits while another process writes the documents of the same bundle."""
    gc_grace_seconds: float = 3600.0
    """What was stored or used less long ago is left alone by a collection."""
    gc_resumable_seconds: float = 86_400.0
    """How long a collection leaves what an interrupted run needs to be resumed, from its last sign of life: whoever comes back the next
    morning can go on. A sandbox's own `ttl_seconds` may end it sooner."""
    # Back-off of event waits
    poll_first_seconds: float = 0.02
    """The first pause between two looks at what tells nothing by itself; it doubles each time."""
    poll_max_seconds: float = 0.5
    """The longest such pause."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names that configuration may override."""
        return tuple(field.name for field in fields(cls))


DEFAULT_LIMITS = Limits()
