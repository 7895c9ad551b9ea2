"""The stages of a graph and the requests in them; knows nothing of HTTP."""
