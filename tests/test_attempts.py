"""A password can be tried a few times a minute, and nobody's guesses lock out others."""

from __future__ import annotations

import pytest

from vlm.server.attempts import Attempts
from vlm.server.guard import network_of, place_of
from vlm.server.refusals import Refusal


def test_too_many_wrong_attempts_have_to_wait() -> None:
    now_s = 0.0
    attempts = Attempts(most=3, within_s=60, clock=lambda: now_s)
    for _ in range(3):
        attempts.check("ann")
        attempts.note_wrong("ann")
        now_s += 10.0
    with pytest.raises(Refusal, match="3 wrong logins within 60 s. Try again in 30 s.") as said:
        attempts.check("ann")
    assert (said.value.status, said.value.retry_after_s) == (429, 30)
    attempts.check("bob")
    now_s = 60.0
    attempts.check("ann")
    attempts.note_wrong("ann")
    with pytest.raises(Refusal):
        attempts.check("ann")


@pytest.mark.parametrize(
    ("address", "other", "is_same"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("", "testclient", False),
    ],
)
def test_an_address_that_changes_at_will_stays_one_place(
    address: str, other: str, is_same: bool
) -> None:
    assert (network_of(address) == network_of(other)) is is_same
    assert (place_of(address) == place_of(other)) is is_same
    assert place_of(address, "ann") == place_of(other, "ann") != place_of(other)
