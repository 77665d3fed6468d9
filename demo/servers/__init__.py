"""PostgreSQL and Apache Kafka as children of this process.

For the demonstration and the tests, never for production.
"""

from __future__ import annotations

from demo.servers.errors import ServerUnavailable
from demo.servers.kafka import EmbeddedKafka
from demo.servers.postgres import EmbeddedPostgres

__all__ = ["EmbeddedKafka", "EmbeddedPostgres", "ServerUnavailable"]
