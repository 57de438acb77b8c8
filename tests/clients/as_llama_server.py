"""What stands for ``llama-server``: has the nursery start a server, and ends with it.

    python as_llama_server.py SOCKET FLAG...

It imports the standard library alone, to be there at once.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path


def main() -> None:
    with socket.socket(socket.AF_UNIX) as nursery:
        nursery.connect(sys.argv[1])
        told = json.dumps([str(Path.cwd()), sys.argv[2:]]).encode()
        socket.send_fds(nursery, [told], [1, 2])
        pid = int(nursery.recv(64))
        signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
        while nursery.recv(64):  # it is open as long as the server lives
            pass


if __name__ == "__main__":
    main()
