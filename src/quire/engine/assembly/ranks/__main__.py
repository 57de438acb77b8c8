"""A rank, as ``RankProcess`` starts it."""

import socket
import sys

from quire.engine.assembly.ranks.follower import run

if __name__ == "__main__":
    run(socket.socket(fileno=int(sys.argv[1])))
