"""Bodies that never arrive keep nobody else's from being read."""

import anyio
import pytest
from own_loop import run_async
from starlette.requests import Request

from vlm.server.bodies import BodyReader
from vlm.server.refusals import Refusal

# Other tests' servers leave event loops open, which are collected here.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def request_of(*parts, then_silent=False, length=3_000_000):
    """A request whose body comes in parts, and after them nothing or an end."""
    waiting = list(parts)

    async def receive():
        if waiting:
            more = len(waiting) > 1 or then_silent
            return {"type": "http.request", "body": waiting.pop(0), "more_body": more}
        await anyio.sleep_forever()

    headers = [(b"content-length", str(length).encode())]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)


def test_a_body_is_the_sum_of_its_parts():
    reader = BodyReader(100_000_000)
    assert run_async(reader.read, request_of(b"ab", b"", b"c")) == b"abc"


def test_a_body_that_falls_silent_is_refused():
    reader = BodyReader(100_000_000, silent_s=0.05)
    with pytest.raises(Refusal, match="nothing came") as refusal:
        run_async(reader.read, request_of(b"a", then_silent=True))
    assert refusal.value.status == 408


def test_who_gets_no_room_is_told_to_come_back():
    reader = BodyReader(100_000_000, wait_s=0.05)

    async def hold(started):
        async with reader.room(request_of(b"")):
            started.release()
            await anyio.sleep_forever()

    async def crowd():
        started = anyio.Semaphore(0)
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(hold, started)
            for _ in range(4):
                await started.acquire()
            async with reader.room(request_of(b"", length=100)):
                pass  # a small one needs no room
            try:
                with pytest.raises(Refusal) as refusal:
                    async with reader.room(request_of(b"")):
                        pytest.fail("there was no room")
                assert refusal.value.status == 429 and refusal.value.retry_after_s
            finally:
                group.cancel_scope.cancel()

    run_async(crowd)
