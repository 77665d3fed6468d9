"""Ctrl-C of the demonstration: raised where it strikes, unless something is just being taken up."""

import signal
from collections.abc import Iterator

import pytest

from demo.servers.interrupts import Interrupted, held, interruptible


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Those of the test run, whatever becomes of them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_raised_where_it_strikes() -> None:
    done = []
    with pytest.raises(Interrupted), interruptible():
        signal.raise_signal(signal.SIGINT)
        done.append("more")
    assert done == []
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN, "asked once more, it still ends in good order"


def test_raised_once_what_is_taken_up_is_held() -> None:
    """Whatever the depth, and however often it is asked."""
    done = []
    with pytest.raises(Interrupted), interruptible():
        with held():
            with held():
                signal.raise_signal(signal.SIGINT)
                done.append("inner")
            signal.raise_signal(signal.SIGTERM)
            done.append("outer")
        done.append("more")
    assert done == ["inner", "outer"]


def test_the_handlers_come_back_if_nobody_asked() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
