"""The container engine of a machine, through its API: containers with the helper as their first process, networks, volumes."""

from agent_env.lazy import names_of

__getattr__, __dir__ = names_of(
    __name__,
    {
        "endpoint": ["EngineEndpoint", "find_endpoint"],
        "engine": ["Engine", "EngineInfo", "engine_problem", "open_engine"],
        "spec": ["SHARED", "ContainerSpec", "Mount", "Privileges"],
        "container": ["attach", "deploy", "image_facts", "start_again"],
        "exec_place": ["ExecPlace", "reduced"],
        "networks": ["Network", "network_for_one", "own_network", "release_shared", "shared_network"],
        "place": ["ContainerPlace", "ENTRY_ATTEMPT"],
        "objects": ["Listed", "Removed", "labelled", "named", "remove_all", "remove_container"],
        "volumes": ["remove_old_helpers"],
    },
)
