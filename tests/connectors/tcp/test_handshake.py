"""Who is let in: whoever knows the secret, on both sides, and nobody else."""

import secrets

import pytest

from omnistage.connectors.tcp.handshake import (
    ANSWER_BYTES,
    CLOSING_BYTES,
    GREETING_BYTES,
    NONCE_BYTES,
    Handshake,
    Identity,
    Stranger,
    accept,
    connect,
    new_secret,
    own_identity,
)

SECRET = new_secret()
ONE, TWO = Identity("one", bytes(16)), Identity("zwö", b"boot" * 4)


def shake(accepting: Handshake, connecting: Handshake) -> tuple[Identity, Identity]:
    """Run both sides; who each takes the other for."""
    greeting, wanted = next(accepting)
    assert next(connecting) == (b"", len(greeting)) == (b"", GREETING_BYTES)
    answer, closing_bytes = connecting.send(greeting)
    assert (len(answer), wanted, closing_bytes) == (ANSWER_BYTES, ANSWER_BYTES, CLOSING_BYTES)
    closing, wanted = accepting.send(answer)
    assert (len(closing), wanted) == (CLOSING_BYTES, 0)
    return returned(accepting, None), returned(connecting, closing)


def returned(side: Handshake, came: bytes | None) -> Identity:
    with pytest.raises(StopIteration) as done:
        next(side) if came is None else side.send(came)
    identity: Identity = done.value.value
    return identity


def test_both_sides_learn_who_the_other_is() -> None:
    assert shake(accept(SECRET, ONE), connect(SECRET, TWO)) == (TWO, ONE)


def test_who_connects_with_another_secret_is_a_stranger() -> None:
    with pytest.raises(Stranger, match="does not know the run's secret"):
        shake(accept(SECRET, ONE), connect(new_secret(), TWO))


def test_who_accepts_with_another_secret_is_a_stranger() -> None:
    """It lets anyone in, and cannot prove itself: nothing is said to it."""
    connecting = connect(SECRET, TWO)
    next(connecting)
    greeting, _ = next(accept(new_secret(), ONE))
    connecting.send(greeting)
    with pytest.raises(Stranger):
        connecting.send(ONE.pack() + secrets.token_bytes(32))


def test_a_proof_that_is_sent_back_is_none() -> None:
    """Who connects to us and to whom we connect say different things of the same numbers."""
    connecting = connect(SECRET, TWO)
    next(connecting)
    greeting, _ = next(accept(SECRET, ONE))
    answer, _ = connecting.send(greeting)
    with pytest.raises(Stranger):
        connecting.send(answer[NONCE_BYTES:])


def test_a_proof_of_before_is_none_again() -> None:
    accepting, connecting = accept(SECRET, ONE), connect(SECRET, TWO)
    greeting, _ = next(accepting)
    next(connecting)
    answer, _ = connecting.send(greeting)
    again = accept(SECRET, ONE)
    next(again)
    with pytest.raises(Stranger):
        again.send(answer)


def test_a_name_that_was_changed_on_the_way_is_noticed() -> None:
    accepting, connecting = accept(SECRET, ONE), connect(SECRET, TWO)
    greeting, _ = next(accepting)
    next(connecting)
    answer, _ = connecting.send(greeting)
    with pytest.raises(Stranger):
        accepting.send(answer.replace(TWO.name.encode(), b"thre"))


def test_what_is_no_link_is_told_from_one() -> None:
    connecting = connect(SECRET, TWO)
    next(connecting)
    with pytest.raises(Stranger, match="no link"):
        connecting.send(b"HTTP/1.1 400 Bad Request".ljust(GREETING_BYTES))


@pytest.mark.parametrize("name", ["", "n" * 65, "ö" * 33])
def test_a_name_that_does_not_fit_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="1 to 64 bytes"):
        own_identity(name)
