"""Counts what a reader of the gateway has to follow."""

import house


def test_a_spoken_chat_s_body_goes_forward_to_the_wire() -> None:
    trace = house.trace_spoken_chat()
    assert 0 < len(trace.files) <= 14, sorted(trace.files)
    assert trace.num_returns <= 2, trace.path
