"""`omnistage bench realtime`: sessions of /v1/realtime that speak as people do, in real time."""
