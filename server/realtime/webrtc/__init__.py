"""WebRTC: calls, each a client of /v1/realtime, in a process beside the gateway."""
