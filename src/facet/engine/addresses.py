"""Lets the processes of one engine find each other: sockets in a folder, or ports of a network address.

The folder is one that only its user can open. Over a network, a connection takes a key pair that was made for this
engine: whoever does not know it cannot connect, and what is sent is encrypted.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import zmq

TO_ENGINE, FROM_ENGINE = "in", "out"

Socket = zmq.Socket[bytes]


def steps_of(rank: int) -> str:
    """Where a rank gets the steps that rank 0 plans."""
    return f"steps-{rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A pair of keys, which both ends of a connection use."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        return "KeyPair(...)"  # kept out of logs


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """How one process listens, and reaches the others."""

    host: str  # the address of this process's machine that the others know
    folder: Path | None = None  # of sockets, where all processes are on one machine
    keys: KeyPair | None = None  # without a folder

    def at(self, host: str) -> "Network":
        """The network as a process on another machine uses it."""
        return replace(self, host=host)

    def listen(self, socket: Socket, name: str) -> str:
        """Bind a socket, and return the address to connect to."""
        if self.keys is not None:
            socket.curve_server = True
            socket.curve_secretkey = self.keys.secret
        socket.bind(f"tcp://{self.host}:*" if self.folder is None else f"ipc://{self.folder / name}")
        return socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def connect(self, socket: Socket, address: str) -> None:
        if self.keys is not None:
            socket.curve_serverkey = socket.curve_publickey = self.keys.public
            socket.curve_secretkey = self.keys.secret
        socket.connect(address)


def in_folder(folder: Path) -> Network:
    """A network on one machine, where other ports are those of the loopback interface."""
    return Network(host="127.0.0.1", folder=folder)


def over_network(host: str) -> Network:
    public, secret = zmq.curve_keypair()
    return Network(host=host, keys=KeyPair(public=public, secret=secret))


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontAddresses:
    """Where the front process listens."""

    to_engine: str
    from_engine: str
