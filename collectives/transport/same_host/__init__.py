"""Messages between ranks of one host: through Unix sockets and shared memory, beside gloo.

gloo sends every message over TCP, as a rendezvous of three parts through a thread of its own: 140
us for 4 bytes to and from a neighbour, where a Unix socket takes 14 (2 cores, torch 2.13), and
three times less time of the calling thread. So among ranks of one host, messages of an exchange go
another way; between hosts, in other backends' groups and for everything else that runs over the
group, nothing changes. What the two ends must agree on, they know from the greeting
(:mod:`collectives.hello`): each rank says whether it has such a door, and on which host.

Each *directed* pair of ranks has a socket of its own, made at the first message: the sender
connects to the door of the receiver, so neither waits for the other. Short messages travel in the
socket itself; long ones in slots of memory that the sender shares (:mod:`.arena`), announced and
given back through the socket. So payloads leave when they are posted, as far as there is room, and
the order of memory between the two processes is the kernel's business. A send is over when the
receiver has asked for the message, as over gloo: a rank whose message nobody wants must learn of it
in the same exchange, so receives are told to the senders, along with the next message. A rank that
ends, however it ends, closes its sockets, and those that wait for it know at once.

No thread: what does not fit is moved on in waits, and what comes while a long message is put into
slots is taken out between them, while it is in the cache. To copy once instead of twice (with
``process_vm_readv``) was considered: a send would then be over only when the receiver waits, and a
rank that computes meanwhile could not run ahead of its neighbour.

Nothing lies in the file system: names of sockets are abstract (of a network namespace), the memory
is a ``memfd``; both vanish with the processes. Hence Linux only; ``COLLECTIVES_SAME_HOST=off``
leaves all to gloo.
"""

from .door import Door
from .host import SameHost
from .inbox import Receive
from .outbox import Parcel

__all__ = ["NEAR", "Door", "SameHost"]

NEAR = (Receive, Parcel)
"""Of messages that go this way: they know their ``peer``, and whether they are ``done``."""
