import asyncio


def decode(raw):
    return raw.decode("utf-8")  # culprit


async def batches(rank):
    for number in range(5):
        await asyncio.sleep(0.01)
        yield decode(b"\xff\xfe" if number == rank * 2 == 2 else b"text")
