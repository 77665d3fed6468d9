"""Records that no Python client would send, by the C library that came with confluent-kafka."""

import ctypes
from ctypes import c_char_p, c_int, c_size_t, c_ssize_t, c_void_p
from pathlib import Path

import confluent_kafka
import pytest

_PRODUCER = 0
_END, _TOPIC, _VALUE, _FLAGS, _HEADER = 0, 1, 4, 7, 9
_COPY = 2


def _library() -> ctypes.CDLL:
    folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    found = sorted(folder.glob("librdkafka*"))
    if not found:
        pytest.skip("this build of confluent-kafka does not bring its C library as a file")
    return ctypes.CDLL(str(found[0]))


def produce_with_header(servers: str, topic: str, value: bytes, *, name: bytes) -> None:
    """Produce one record with a header called `name`, whatever bytes that is."""
    library = _library()
    library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = c_void_p
    config = c_void_p(library.rd_kafka_conf_new())
    error = ctypes.create_string_buffer(512)
    library.rd_kafka_conf_set(config, b"bootstrap.servers", servers.encode(), error, c_size_t(512))
    client = c_void_p(library.rd_kafka_new(_PRODUCER, config, error, c_size_t(512)))
    assert client.value, error.value
    what = [
        *(c_int(_TOPIC), c_char_p(topic.encode())),
        *(c_int(_FLAGS), c_int(_COPY)),
        *(c_int(_VALUE), c_char_p(value), c_size_t(len(value))),
        *(c_int(_HEADER), c_char_p(name), c_char_p(b"value"), c_ssize_t(5)),
    ]
    assert library.rd_kafka_producev(client, *what, c_int(_END)) == 0
    assert library.rd_kafka_flush(client, c_int(30_000)) == 0
    library.rd_kafka_destroy(client)
