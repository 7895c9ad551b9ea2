"""The console script: Ctrl-C while it imports the command line ends it without a traceback."""

import signal


def main() -> None:
    """Run the command line."""
    is_heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from omnistage.server.cli import main as run

    if is_heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
