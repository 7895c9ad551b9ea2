"""Parts of `omnistage verify`: questions, the reference's process, judgement, report."""
