# What `fastmcp run` serves: a proxy of the stdio server whose command follows `--`. Without this file it would take
# the command from a file of its own form only, and so not the one that a comparison names.
import sys

from fastmcp.client.transports import StdioTransport
from fastmcp.server import create_proxy

command, *arguments = sys.argv[1:]
mcp = create_proxy(StdioTransport(command, arguments), name="proxy")
