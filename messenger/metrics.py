"""Every metric of this service, by name, in one place (design, section 8). Labels are bounded sets."""

from prometheus_client import Counter, Gauge, Histogram

_MILLISECONDS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

# --- Lead participants: names of the source document ------------------------------------------------
LEAD_CONSUME_DURATION = Histogram(
    "messenger_lead_participants_consume_duration_ms",
    "Milliseconds from taking up a batch with a record to its commit, per record.",
    buckets=_MILLISECONDS,
)
PARTICIPANTS_ADDED = Counter("messenger_participants_added_total", "People who joined or rejoined a chat.")
PARTICIPANTS_REMOVED = Counter("messenger_participants_removed_total", "People who left a chat.")
LEAD_STALE = Counter("messenger_lead_participants_stale_total", "Snapshots not newer than the applied version.")
LEAD_DLQ = Counter("messenger_lead_participants_dlq_total", "Dead-lettered records of lead participants.")
LEAD_LAG = Gauge(
    "messenger_lead_participants_lag_seconds",
    "Age of the oldest record taken up and not settled yet; 0 when everything is settled.",
)
LEAD_CONTRACT_MISMATCH = Counter(
    "messenger_lead_participants_contract_mismatch_total", "Records of an unexpected ContractVersion, applied."
)
LEAD_NOT_PROVISIONED = Counter(
    "messenger_lead_participants_not_provisioned_total", "Snapshots whose lead had no chat yet, per try."
)

# --- Every consumer, by its group -------------------------------------------------------------------
CONSUMED = Counter("messenger_consumer_records_total", "Settled records, by outcome.", ["group", "outcome"])
CONSUMER_LAG = Gauge("messenger_consumer_lag_seconds", "Age of the oldest record not settled yet.", ["group"])
DEAD_LETTERS = Counter("messenger_consumer_dead_letters_total", "Dead-lettered records.", ["group", "error_code"])
MESSAGE_ID_REUSED = Counter(
    "messenger_consumer_message_id_reused_total", "Known MessageIds that came with another body.", ["group"]
)
CONTRACT_MISMATCH = Counter(
    "messenger_consumer_contract_mismatch_total", "Records of an unexpected ContractVersion, applied.", ["group"]
)
OFFSETS_RESET = Counter(
    "messenger_consumer_offsets_reset_total",
    "Partitions read again from their start since the committed offset was missing or out of range.",
    ["group"],
)
INFRASTRUCTURE_FAULTS = Counter(
    "messenger_infrastructure_faults_total", "Pauses since PostgreSQL or Kafka was away.", ["worker"]
)
CONFLICT_RETRIES = Counter(
    "messenger_consumer_conflict_retries_total", "Transactions tried again after a conflict.", ["group"]
)

# --- Retry job: names of the source document --------------------------------------------------------
PROVISION_FAILED = Gauge("messenger_chat_provision_failed", "Provisions Failed or stuck in Provisioning.")
PROVISION_OLDEST_AGE = Gauge(
    "messenger_chat_provision_oldest_age_seconds", "Age of the oldest provision Failed or stuck, by created_at."
)
PROVISION_RETRIED = Counter("messenger_chat_provision_retried_total", "Attempts of the retry job.")
PROVISION_SUCCEEDED = Counter("messenger_chat_provision_succeeded_total", "Provisions brought to Ready.")
PROVISION_POISON = Counter("messenger_chat_provision_poison_total", "Provisions that ran out of attempts.")
PROVISION_LAST_RUN = Gauge(
    "messenger_chat_provision_last_run_timestamp_seconds", "When a cycle of the retry job last completed."
)

# --- Outbox -----------------------------------------------------------------------------------------
OUTBOX_BACKLOG = Gauge("messenger_outbox_backlog", "Outbox rows that wait to be published.")
OUTBOX_OLDEST_AGE = Gauge("messenger_outbox_oldest_age_seconds", "Age of the oldest row that waits.")
OUTBOX_PUBLISHED = Counter("messenger_outbox_published_total", "Rows published.", ["topic"])
OUTBOX_PUBLISH_LAG = Histogram(
    "messenger_outbox_publish_lag_seconds",
    "From the row's creation to its delivery report.",
    ["topic"],
    buckets=_SECONDS,
)
OUTBOX_PARKED = Counter("messenger_outbox_parked_total", "Rows given up after bounded tries.", ["topic"])
OUTBOX_PARKED_ROWS = Gauge("messenger_outbox_parked_rows", "Parked rows that wait for a person.")

# --- Realtime ---------------------------------------------------------------------------------------
STREAM_CLIENTS = Gauge("messenger_stream_clients", "Open event streams of this process.")
STREAM_PUSH_DELAY = Histogram(
    "messenger_stream_push_delay_seconds", "From the commit of a change to its push to a client.", buckets=_SECONDS
)
STREAM_DROPPED = Counter("messenger_stream_dropped_total", "Clients dropped since they read too slowly.")
