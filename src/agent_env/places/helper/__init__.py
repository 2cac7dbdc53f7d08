"""Our small static program in every place, and this process's end of the line to it."""

from agent_env.places.helper.binary import binary_path
from agent_env.places.helper.place import HelperPlace, connect
from agent_env.places.helper.protocol import HelperConfig, LedgerRecord
from agent_env.places.helper.worker import TcpStream

__all__ = ["HelperConfig", "HelperPlace", "LedgerRecord", "TcpStream", "binary_path", "connect"]
