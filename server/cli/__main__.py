"""`python -m omnistage.server.cli`."""

from omnistage.server.cli import main

main()
