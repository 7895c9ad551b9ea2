"""Opens the channels of a stage's process, and holds them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omnistage.connectors import make_connector
from omnistage.connectors.contract import Receiver, Sender
from omnistage.connectors.options import Option
from omnistage.stage_configs.declared.edge import Edge
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.rules.parallel import num_lanes
from omnistage.stages.messages.addresses import (
    feed_address,
    opens_address,
    outputs_address,
    requests_address,
    rows_address,
)
from omnistage.stages.messages.edge import Edge as EdgeMessage
from omnistage.stages.messages.to_stage import TO_STAGE, ToStage
from omnistage.stages.worker.ports import Port
from omnistage.stages.worker.stage import Downstream, StagePorts

OWN_FEED_CONNECTOR = "shm"


@dataclass
class Wiring:
    """Holds the ends that are open; `opens` and `feeds`: each with the stage that it is from."""

    ports: StagePorts
    requests: Receiver[ToStage]
    opens: dict[Receiver[EdgeMessage], str] = field(default_factory=dict)
    feeds: dict[Receiver[EdgeMessage], str] = field(default_factory=dict)
    senders: list[Sender] = field(default_factory=list)

    @property
    def ends(self) -> list[Receiver[Any] | Sender]:
        """All of them."""
        return [*self.senders, self.requests, *self.opens, *self.feeds]

    def listen(self, drain: Callable[[], None]) -> None:
        """Call `drain` when something has arrived, and send the rest of what had no room."""
        loop = asyncio.get_running_loop()
        for receiver in (self.requests, *self.opens, *self.feeds):
            loop.add_reader(receiver.fileno(), drain)
        for sender in self.senders:
            flush = self.ports.room.flush if sender is self.ports.outputs else sender.flush
            loop.add_reader(sender.fileno(), flush)

    def forget(self, request_id: str) -> None:
        """Give up what was to be sent for a request."""
        for sender in self.senders:
            sender.forget(request_id)

    def close(self) -> None:
        """Close them; in the event loop that reads them."""
        loop = asyncio.get_running_loop()
        for end in self.ends:
            loop.remove_reader(end.fileno())
            end.close()


def wire(graph: StageGraph, name: str, directory: Path) -> Wiring:
    """Open the channels of a replica of this name."""
    gateway = make_connector("shm", directory, {})
    outputs = gateway.sender(outputs_address(name))
    spec = graph.spec_of(name)
    ports = StagePorts(name, graph.model_of(spec.name), spec.engine, spec.options, outputs)
    ports.deadlines = graph.deadlines
    ports.ledger = str(directory / f"{name}.held")
    ports.num_lanes = num_lanes(spec.engine)
    wiring = Wiring(ports, gateway.receiver(requests_address(name), TO_STAGE), senders=[outputs])
    _wire_upstream(wiring, graph, directory)
    if KINDS[spec.kind].feeds_itself:
        _wire_own_feed(wiring, directory)
    _wire_downstream(wiring, graph, directory)
    return wiring


def _wire_upstream(wiring: Wiring, graph: StageGraph, directory: Path) -> None:
    ports = wiring.ports
    for edge, source in graph.sources_of(ports.name):
        ends = source, ports.name
        ports.source = edge.source
        ports.source_kind = graph.stages[edge.source].kind
        ports.takes |= graph.carried(edge)
        opens = _port(edge, directory, opens_address(*ends))
        wiring.opens[opens.receiver()] = edge.source
        sources = num_lanes(graph.stages[edge.source].engine)
        feed = _port(edge, directory, feed_address(*ends), targets=ports.num_lanes)
        rows = _rows_port(edge, directory, ends, sources, ports.num_lanes)
        if KINDS[graph.spec_of(ports.name).kind].engine_takes_feed:
            ports.feeds += [feed, rows]
        else:
            receivers = [*feed.receivers(), *rows.receivers()]
            wiring.feeds |= dict.fromkeys(receivers, edge.source)
    ports.upstream = wiring.feeds


def _wire_own_feed(wiring: Wiring, directory: Path) -> None:
    ports = wiring.ports
    options: dict[str, Option] = {"credit": 0}
    port = Port(
        feed_address(ports.name, ports.name),
        OWN_FEED_CONNECTOR,
        str(directory),
        options,
        targets=ports.num_lanes,
    )
    ports.feeds.append(port)
    ports.own_feed = port.sender()
    wiring.senders.append(ports.own_feed)


def _wire_downstream(wiring: Wiring, graph: StageGraph, directory: Path) -> None:
    ports = wiring.ports
    for edge, target in graph.targets_of(ports.name):
        ends = ports.name, target
        targets = num_lanes(graph.spec_of(target).engine)
        downstream = Downstream(
            target=target,
            carries=graph.carried(edge),
            open=_port(edge, directory, opens_address(*ends)).sender(),
            feed=_port(edge, directory, feed_address(*ends), targets=targets).sender(),
            rows=_rows_port(edge, directory, ends, ports.num_lanes, targets),
            chunk_sizes=edge.chunk_sizes,
            all_hidden_states=edge.hidden_states == "all",
        )
        ports.downstream.append(downstream)
        wiring.senders += [downstream.open, downstream.feed]


def _port(edge: Edge, directory: Path, address: str, targets: int = 1) -> Port:
    """Return the port of a channel without credit."""
    options = {**edge.connector.options, "credit": 0}
    return Port(address, edge.connector.name, str(directory), options, targets=targets)


def _rows_port(
    edge: Edge, directory: Path, ends: tuple[str, str], sources: int, targets: int
) -> Port:
    address, options = rows_address(*ends), dict(edge.connector.options)
    return Port(address, edge.connector.name, str(directory), options, sources, targets)
