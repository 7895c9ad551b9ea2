"""Work for a turn that is done before the turn has ended."""
