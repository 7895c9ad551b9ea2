"""Channels whose ends are on two nodes: a ring on each, joined by one link a node over TCP.

A *link* is a process beside the stages of a node (`link.py`). It copies what a sender wrote into
the ring of its node to the same place in the receiver's ring, and brings back what the receiver
has read and granted. So the window of a request and the room of a channel are those of one ring
from end to end, a link holds nothing of its own, and stages know of no socket: a sender opens the
ring of its node, a receiver that of its node, as on one machine.

What a program needs that owns the stages of a node (`node_link.py`):

    link = NodeLink("node-1", run_directory, LinkSettings(secret=secret, host="10.0.0.1"))
    link.port                                     where it listens
    link.meet("node-2", "10.0.0.2", port)         on both nodes; one of them connects
    link.create("thinker.talker.rows", "node-2", End.SENDER, TcpOptions())    on node-1
    link.create("thinker.talker.rows", "node-1", End.RECEIVER, TcpOptions())  on node-2
    link.renew("thinker.talker.rows")             on either node: both rings are renewed
    link.destroy("thinker.talker.rows")           on both
    link.fileno(), link.events()                  PeerUp, PeerLost, LinkEnded, Trouble
    link.usage("thinker.talker.rows")             on the sender's node
    link.restart(), link.close()

A stage opens its end with `make_connector("tcp", run_directory, options)`, on whichever node it is.
Nodes of one run have the same secret: `new_secret()`.

When a peer is lost, because its link ended, its node is gone, or nothing was heard of it for 1.5 s
(links beat each 0.5 s), both links renew the rings of all channels between the two nodes and then
say PeerLost: what was under way is gone, whoever owns the run fails the requests that have an edge
there. Nothing is sent again. The links go on trying; with PeerUp the channels are joined again.

On one machine `connector: tcp` joins both rings by two links on the loopback (`connector.py`).
"""
